/* A prepared model, which is a list of steps over values in an arena.
 *
 * file.c reads the file and answers for its form; model.c makes a model of it (shapes and layouts; arena.c places
 * values in the arena, weights.c packs the weights), of nodes that images.c, tensors.c, rows.c, attention.c,
 * recurrence.c, trees.c and coupling.c make steps of; caches.c finds outputs that continue inputs; description.c says
 * what it does; session.c runs one; plans.c makes it anew for other sizes; bands.c has steps that follow each other
 * done by bands of rows, bands_choice.c says which; convolution.c has the step that takes the time, winograd.c,
 * strassen.c and im2col.c other ways to do it, steps.c those that move numbers; tuning.c chooses among these, by what
 * rates.c says of them. Each has a header of its name where others use it. */
#ifndef VME_MODEL_H
#define VME_MODEL_H

#include "models/step.h"
#include "runtime/internal.h"

#include "vme_search.h"

#include <stdatomic.h>

struct vme_model {
    atomic_int refs;
    vme_context *context;               /* who paid */
    const vme_kernels *kernels;         /* that the weights are packed for */
    int values, steps, inputs, outputs; /* values: tensors, then scratch */
    int max_steps;                      /* that its file could have made */
    model_value *value;
    model_step *step;
    int *input, *output; /* values */
    struct model_guard { /* as model_guard_record; parent: -1 none */
        int value, parent;
        bool side;
    } *guard;
    int guards;
    char *packed;
    size_t packed_bytes, arena_bytes;
    int caches; /* outputs that go on from an input: their addresses in a run stand where the arena begins */
    bool fixed; /* algorithms are chosen by built-in rates */
    /* nanoseconds that a run is expected to take on one core of each backend; 0: it was none to choose from */
    double total[VME_BACKENDS_MAX];
    /* bytes that packed weights may take beyond plain ones, where that is no algorithm's only point */
    int64_t spare;
    vme_bands bands;
    /* of a model with open sizes, which is never run itself: what plans are made of */
    int opens;
    model_open_record open[MODEL_OPEN_MAX];
    char *front, *names; /* the file before its weights, and the names in there */
    size_t front_bytes, file_bytes;
    /* MODEL_RANK of each input and then of each output; NULL: that size is fixed */
    char **label;
    char *notes;     /* NULL of plans */
    vme_model *next; /* the next part of a model in parts, or NULL */
    /* of a plan */
    vme_model *base; /* whose packed block and names it uses; NULL: it is none */
    int64_t size[MODEL_OPEN_MAX];
    size_t charged; /* bytes that the context was charged for beside the packed block */
    void *map;      /* the kept file that `packed` lies in; NULL: it is the context's memory */
    size_t map_bytes;
};

/* Whether the guard holds in this arena, after the steps that make what it looks at. */
bool model_guard_holds(const vme_model *model, int guard, char *arena);

/* The outermost value that `value` lies within: itself where it lies in none. */
static inline int model_root(const vme_model *model, int value)
{
    while (model->value[value].within >= 0)
        value = model->value[value].within;
    return value;
}

#endif
