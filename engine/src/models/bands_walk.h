/* What choosing and running bands share: a walk over a chain's steps, which says of each band up to which row every
 * step goes, and which rows of the strips are there meanwhile. bands_walk.c has it. */
#ifndef VME_MODEL_BANDS_WALK_H
#define VME_MODEL_BANDS_WALK_H

#include "models/model.h"

enum {
    BANDS_STEPS_MAX = 16, /* of a chain */
    BANDS_SLOTS_MAX = 8,
};

typedef struct strip {
    int root;       /* the value */
    int64_t base;   /* the first row that is there; a margin's are below 0 and from h on */
    int64_t wanted; /* the row after the last one that a reader wants */
    int64_t end;    /* the row after the last one that is there */
} strip;

typedef struct chain_walk {
    const vme_model *model;
    const model_step *step;
    int steps, strips;
    strip strip[BANDS_STEPS_MAX];
    struct {
        int in, addend, out; /* numbers of strips, -1: a whole value, or none */
        int64_t unit;        /* its bands begin at multiples of it */
        int64_t done, upto;  /* rows are made up to this one, and in this band up to that one */
    } of[BANDS_STEPS_MAX];
    int64_t unit; /* of pieces and bands of what the chain leaves */
} chain_walk;

void walk_begin(chain_walk *walk, const vme_model *model, const model_step *step, int steps);
/* Nothing is there yet, and the last step's rows from `begin` on are wanted. */
void walk_from(chain_walk *walk, int64_t begin);
/* Up to where each step goes when the last one's rows before `end` are wanted. */
void walk_to(chain_walk *walk, int64_t end);
/* The band is done. */
void walk_on(chain_walk *walk);
/* The first row of a strip that anybody will read or write from now on. */
int64_t walk_first_needed(const chain_walk *walk, int number);
/* The row after the last one that is there when the band is done. */
int64_t walk_end_needed(const chain_walk *walk, int number);
/* Pieces of an image of `h` rows: where number `piece` begins. */
int64_t walk_piece_begin(const chain_walk *walk, int64_t h, int64_t pieces, int64_t piece);

#endif
