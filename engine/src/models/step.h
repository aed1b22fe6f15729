/* A step of a prepared model: what it does, on which values, by which algorithm, and whether a chain of steps
 * begins with it. */
#ifndef VME_MODEL_STEP_H
#define VME_MODEL_STEP_H

#include "models/value.h"
#include "runtime/internal.h"

/* Ways to compute a convolution, and attention; docs/decisions/models-algorithms.md has what each is for. The first of
 * each can always be used. */
typedef enum model_algorithm {
    CONVOLUTION_DIRECT,
    CONVOLUTION_WINOGRAD_2,
    CONVOLUTION_WINOGRAD_4,
    CONVOLUTION_STRASSEN,
    CONVOLUTION_IM2COL,
    CONVOLUTION_ALGORITHMS,
    ATTENTION_FUSED = CONVOLUTION_ALGORITHMS,
    ATTENTION_APART,
    MODEL_ALGORITHMS,
} model_algorithm;

typedef enum step_kind {
    STEP_IMPORT,
    STEP_EXPORT,
    STEP_CONV,
    STEP_DEPTHWISE,
    STEP_MAX_POOL,
    STEP_AVERAGE_POOL,
    STEP_GLOBAL_AVERAGE_POOL,
    STEP_ADD,
    STEP_CLIP,
    STEP_FLATTEN,
    STEP_SHUFFLE,
    STEP_COPY,
    STEP_MARGIN, /* zeros around what other steps make */
    STEP_NOTHING,
    STEP_TENSOR,
} step_kind;

typedef struct model_step model_step;
/* Of the first of some steps that follow each other, which are done by bands of rows (bands.c). */
typedef struct model_chain {
    int steps;                     /* 0: none */
    int slots;                     /* equal parts of the scratch memory, one a thread */
    int scratch;                   /* a value that only this chain uses */
    int64_t rows;                  /* of a band of what the last step makes */
    int64_t slot_bytes, points_at; /* Winograd's points begin so far into a slot */
} model_chain;
typedef vme_status model_run(vme_context *context, const vme_model *model, const model_step *step, char *arena);
struct model_step {
    step_kind kind;
    uint32_t op;       /* the node's */
    char *name;        /* owned: the node's; NULL of STEP_IMPORT and STEP_EXPORT */
    vme_bounds bounds; /* of the activation */
    /* values; -1: none. STEP_ADD adds `addend` to `in`, STEP_SHUFFLE takes it as a second half */
    int in, addend, out;
    int port;                         /* of STEP_IMPORT and STEP_EXPORT */
    int operand[MODEL_STEP_OPERANDS]; /* values that it reads besides, -1: none; of STEP_TENSOR all of them */
    int scratch;                      /* a value that only this step uses, or -1 */
    model_run *run;                   /* of STEP_TENSOR */
    int32_t p[MODEL_PARAMETERS];
    model_algorithm algorithm; /* of STEP_CONV and of attention */
    int guard;                 /* of the model's: where that does not hold, the step is left out; -1: none */
    int slots;                 /* of these and of recurrence: equal parts of the scratch memory, one a thread */
    /* of STEP_CONV, weights as the algorithm's file says, and of STEP_DEPTHWISE */
    int64_t k; /* numbers that are added up */
    /* of the model's packed block; bias: 0 where there is none, as long as whole slivers */
    float *weights, *bias;
    model_chain chain;
};

/* The name of what it does; a text that stays for good. */
const char *model_step_kind(const model_step *step);

/* Rows of one image of what a step makes, and where its values lie. */
typedef struct model_band {
    /* NULL: none. Of a value of which only some rows are there, a copy that says where row 0 would lie */
    const model_value *in, *addend, *out;
    char *arena, *scratch, *outside; /* of Winograd's points; the caller's array of STEP_IMPORT */
    int64_t n, begin, end;
} model_band;

#endif
