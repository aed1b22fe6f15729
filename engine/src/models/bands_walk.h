/* A walk over a chain's steps, used to choose and to run bands: for each band the row up to which every step computes,
 * and the rows that strips hold. Implemented in bands_walk.c. */
#ifndef VME_MODEL_BANDS_WALK_H
#define VME_MODEL_BANDS_WALK_H

#include "models/model.h"

enum {
    BANDS_STEPS_MAX = 16, /* steps of a chain */
    BANDS_SLOTS_MAX = 8,
};

typedef struct row_strip {
    int root;           /* the value's number */
    int64_t begin;      /* the first row present; rows of a margin are below 0 and from h on */
    int64_t needed_end; /* one past the last row that a step reads for this band */
    int64_t end;        /* one past the last row present */
} row_strip;

typedef struct chain_walk {
    const vme_model *model;
    const model_step *step;
    int steps, strips;
    row_strip strip[BANDS_STEPS_MAX];
    struct {
        int in, addend, out;  /* numbers of strips; -1: a whole value, or none */
        int64_t unit;         /* its bands begin at multiples of this, in rows */
        int64_t done, target; /* one past the last row computed so far, and after this band */
    } state[BANDS_STEPS_MAX]; /* of each step */
    int64_t unit;             /* alignment in rows of pieces and bands of the chain's outputs */
} chain_walk;

void walk_begin(chain_walk *walk, const vme_model *model, const model_step *step, int steps);
/* Starts with empty strips, for the last step's rows from `begin` on. */
void walk_start(chain_walk *walk, int64_t begin);
/* Sets how far each step computes for the last step's rows before `end`. */
void walk_target(chain_walk *walk, int64_t end);
/* Marks the band as computed. */
void walk_advance(chain_walk *walk);
/* The first row of a strip that any step will still read or write. */
int64_t walk_first_needed(const chain_walk *walk, int strip_number);
/* One past the last row present when the band is done. */
int64_t walk_end_needed(const chain_walk *walk, int strip_number);
/* First row of piece `piece` of an image of `h` rows. */
int64_t walk_piece_begin(const chain_walk *walk, int64_t h, int64_t pieces, int64_t piece);

#endif
