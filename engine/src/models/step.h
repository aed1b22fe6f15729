/* A step of a prepared model: its operation, values and algorithm, and the chain of steps that begins with it. */
#ifndef VME_MODEL_STEP_H
#define VME_MODEL_STEP_H

#include "models/value.h"
#include "runtime/internal.h"

/* Algorithms of convolution and of attention; docs/decisions/models-algorithms.md describes them. The first one of each
 * is always possible. */
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
    STEP_IMPORT, /* copies an input to the arena */
    STEP_EXPORT, /* copies an output from the arena */
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
    STEP_MARGIN,  /* writes zeros around other steps' results */
    STEP_NOTHING, /* no work: its result is computed in place */
    STEP_TENSOR,  /* an operator on tensors, with a function of its own */
} step_kind;

typedef struct model_step model_step;
/* A chain: consecutive steps that run by bands of rows (bands.c). Stored in the first of them. */
typedef struct model_chain {
    int steps;                         /* 0: none */
    int image_pieces;                  /* pieces of an image, if more than one thread works on the chain */
    int slots;                         /* equal parts of the scratch memory, one for each thread */
    int scratch;                       /* a value that only this chain uses */
    int64_t rows;                      /* rows of a band, of the last step's output */
    int64_t slot_bytes, points_offset; /* points_offset: of Winograd points in a slot, in bytes */
} model_chain;
typedef vme_status model_run(vme_context *context, const vme_model *model, const model_step *step, char *arena);
struct model_step {
    step_kind kind;
    uint32_t op;       /* of the node */
    char *name;        /* of the node; owned; NULL for STEP_IMPORT and STEP_EXPORT */
    vme_bounds bounds; /* of the activation */
    /* values; -1: none. STEP_ADD adds `addend` to `in`; that of STEP_SHUFFLE is the second half of
     * its channels */
    int in, addend, out;
    int port;                         /* of STEP_IMPORT and STEP_EXPORT */
    int operand[MODEL_STEP_OPERANDS]; /* other values that it reads, -1: none; of STEP_TENSOR all operands */
    int scratch;                      /* a value that only this step uses, or -1 */
    model_run *run;                   /* of STEP_TENSOR */
    int32_t p[MODEL_PARAMETERS];      /* of the node */
    model_algorithm algorithm;        /* of STEP_CONV and of attention */
    int guard;                        /* guard of the model: if it does not hold, the step is skipped; -1: none */
    bool idle;                        /* its result has no elements (empty.c) */
    int fills_outside;                /* it writes all of the output at the caller's address of this number; 0: none */
    int slots;                        /* equal parts of the scratch memory, one for each thread */
    /* of STEP_CONV and STEP_DEPTHWISE: weights in the format of the algorithm's file */
    int64_t k; /* terms of each sum */
    /* in the model's packed block; bias: padded to whole slivers, or NULL */
    float *weights, *bias;
    model_chain chain;
};

/* The name of its operation; the string is never freed. */
const char *model_step_kind(const model_step *step);

/* A range of rows of one image of a step's output, and the values that it uses. */
typedef struct model_band {
    /* NULL: none. If only some rows of a value are present, it is a copy with the address that row 0 would have. */
    const model_value *in, *addend, *out;
    char *arena;
    char *scratch;      /* of Winograd points */
    char *caller_data;  /* the array that STEP_IMPORT reads */
    int64_t n;          /* the image */
    int64_t begin, end; /* its rows */
} model_band;

#endif
