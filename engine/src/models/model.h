/* A prepared model: a list of steps over values in an arena.
 *
 * file.c reads and validates the file. model.c makes a model of it (shapes and layouts); arena.c assigns arena offsets,
 * weights.c packs the weights; the files in makers.h turn nodes into steps; outside.c finds values in the caller's
 * memory; empty.c settles tensors without elements; description.c describes the model; session.c runs it; plans.c makes
 * it again for other sizes. bands.c runs consecutive steps by bands of rows, chosen by bands_choice.c. convolution.c
 * has the most expensive step, winograd.c, strassen.c and im2col.c other algorithms for it, steps.c the steps that move
 * data. tuning.c chooses among algorithms, by the costs that rates.c estimates. Each file has a header of its name if
 * others use it. */
#ifndef VME_MODEL_H
#define VME_MODEL_H

#include "models/step.h"
#include "runtime/internal.h"

#include "vme_search.h"

#include <stdatomic.h>

struct vme_model {
    atomic_int refs;
    vme_context *context;               /* the context that is charged */
    const vme_kernels *kernels;         /* the kernels that the weights are packed for */
    int values, steps, inputs, outputs; /* values: tensors, then scratch */
    int max_steps;                      /* an upper bound, from its file */
    model_value *value;
    model_step *step;
    int *input, *output; /* numbers of values */
    struct model_guard { /* as model_guard_record; parent: -1 none */
        int value, parent;
        bool side;
    } *guard;
    int guards;
    char *packed;
    size_t packed_bytes, arena_bytes;
    int outside_count; /* outputs in the caller's memory: their addresses in a run are at the start of the arena */
    bool fixed;        /* algorithms are chosen by the built-in rates */
    double expected_ns[VME_BACKENDS_MAX]; /* of a run on one core, with each backend; 0: not a candidate */
    /* by which packed weights may still exceed plain ones, for algorithms that need more */
    int64_t spare_bytes;
    vme_bands bands;
    /* of a model with open sizes, which is never run itself: plans are made from it */
    int opens;
    model_open_record open[MODEL_OPEN_MAX];
    char *front, *names; /* the file before its weights, and the names in it */
    size_t front_bytes, file_bytes;
    /* names of open sizes: MODEL_RANK for each input and then for each output; NULL: that size is fixed */
    char **label;
    char *notes;     /* NULL in plans */
    vme_model *next; /* the next part of a model in parts, or NULL */
    /* of a plan */
    vme_model *base; /* owns the packed block and the names; NULL: this is no plan */
    int64_t open_sizes[MODEL_OPEN_MAX];
    size_t charged_bytes; /* charged to the context in addition to the packed block */
    void *map;            /* the mapped kept file that holds `packed`; NULL: `packed` is the context's memory */
    size_t map_bytes;
};

/* Whether the guard holds in this arena; call after the steps that compute what it reads. */
bool model_guard_holds(const vme_model *model, int guard, char *arena);

/* The outermost value that contains `value`; `value` itself if none does. */
static inline int model_root(const vme_model *model, int value)
{
    while (model->value[value].container >= 0)
        value = model->value[value].container;
    return value;
}

#endif
