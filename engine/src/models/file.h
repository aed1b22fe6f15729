/* The format of a model file (docs/model-format.md), little-endian, without compiler padding, and its reader. file.c
 * validates the format. */
#ifndef VME_MODEL_FILE_H
#define VME_MODEL_FILE_H

#include "vme.h"

#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    MODEL_VERSION = 4,
    MODEL_HEADER = 128,
    MODEL_RANK = 8,
    MODEL_PARAMETERS = 24,
    MODEL_TENSORS_MAX = 1 << 14,
    MODEL_NODES_MAX = 1 << 14,
    MODEL_OPERANDS_MAX = 1 << 16,
    MODEL_NAMES_MAX = 1 << 26,
    MODEL_NODE_INPUTS = 256,
    MODEL_STEP_OPERANDS = 10,
    MODEL_NAME_MAX = 1 << 10,
    MODEL_OPEN_MAX = 64,
    MODEL_VARYING_MAX = 1 << 17,
    MODEL_TERMS_MAX = 1 << 18,
    MODEL_QUOTIENTS_MAX = 239,
    MODEL_VARIABLES_MAX = 255, /* open sizes and quotients together: a term stores the number of a variable in a byte */
    MODEL_NEEDS_MAX = 1 << 16,
    MODEL_GUARDS_MAX = 1 << 14,
    MODEL_PARTS_MAX = 32,
    MODEL_DEGREE_MAX = 8,
};
#define MODEL_FLAG_OPEN    1u         /* in the header: the model has open sizes */
#define MODEL_ABSENT       UINT32_MAX /* an omitted operand */
#define MODEL_REFUSED      "not a model file that this engine can run: "
#define MODEL_ELEMENTS_MAX ((int64_t)1 << 40)

enum { MODEL_COMPUTED, MODEL_CONSTANT, MODEL_VIEW };
/* Operator numbers in files; they never change. Those below 32 work on images. */
typedef enum model_op {
    MODEL_CONV = 1,            /* x, weights [out, in, kh, kw], bias or absent, addend or absent */
    MODEL_MAX_POOL,            /* x */
    MODEL_GLOBAL_AVERAGE_POOL, /* x */
    MODEL_GEMM,                /* x [n, in], weights [out, in], bias or absent */
    MODEL_ADD,                 /* a, b of one shape */
    MODEL_RELU,                /* x */
    MODEL_FLATTEN,             /* x to [n, the rest] */
    MODEL_CLIP,                /* x */
    MODEL_AVERAGE_POOL,        /* x */
    MODEL_CONCAT,              /* any number of values, concatenated along channels */
    MODEL_SLICE,               /* x: a range of its channels */
    MODEL_SHUFFLE,             /* x, or its two halves: interleaves the channels of GROUPS equal groups */
    MODEL_INTERLEAVE, /* STRIDE_H * STRIDE_W images: the pixels of image i begin at (i / STRIDE_W, i % STRIDE_W) */
    MODEL_COPY = 32,  /* x, broadcast and cast */
    MODEL_UNARY,      /* x; parameters: vme_unary_op, dtype to compute in */
    MODEL_BINARY,     /* a, b; vme_binary_op, dtype to compute in */
    MODEL_WHERE,      /* condition, a, b */
    MODEL_REDUCE,     /* x; vme_reduce_op, dtype to compute in, axes as a bit mask; reduced axes keep the size 1 */
    MODEL_MATMUL,     /* a, b */
    MODEL_GATHER,     /* x, int64 indices of consecutive dimensions; the first of these dimensions */
    /* x, addend or absent; whether log-softmax, bits of a float: softmax(x * factor + addend) of rows */
    MODEL_SOFTMAX,
    /* x, scale, bias or absent; bits of epsilon, 1: RMS norm of each row, 0: mean 0 and variance 1 */
    MODEL_NORMALIZE,
    MODEL_ACTIVATE, /* x; model_curve */
    MODEL_SCAN,     /* x; vme_scan_op, dtype to compute in, axis */
    MODEL_ARGSORT,  /* x; axis, whether descending. Stable */
    /* x, values, indices as in MODEL_GATHER; the first of these dimensions, vme_binary_op of old and new value, or -1:
     * the new value */
    MODEL_SCATTER,
    /* q, k transposed, v, addend or absent; bits of a float, 1: weights of NaN count as 0: softmax(q @ k * factor +
     * addend) @ v */
    MODEL_ATTENTION,
    /* gates of the inputs, weights of the state, bias, peepholes, initial state, initial cell, lengths: recurrence.c */
    MODEL_RECURRENCE,
    /* x [rows, features], nodes, trees, leaf values or absent, base or absent: trees.c */
    MODEL_TREES,
    MODEL_COUPLE, /* x [rows, pairs of classes]: coupling.c */
    /* image of bytes, weights, their sums, bias, factors, zero points of weights, zero point: integer_products.c */
    MODEL_INTEGER_PRODUCT,
    MODEL_QUANTIZE,           /* x of float32 to bytes (quantized.c) */
    MODEL_DEQUANTIZE,         /* x of bytes to float32 */
    MODEL_QUANTIZED_ADD,      /* a, b of one shape: bytes */
    MODEL_QUANTIZED_MULTIPLY, /* a, b of one shape: bytes */
    MODEL_LOOK_UP,            /* x of bytes, a table of 256 bytes */
    MODEL_NARROW_PRODUCT,     /* rows, narrow weights, scales, zero points, bias: narrow_products.c */
    MODEL_BLEND,              /* x, indices, weights: sums of a few elements along an axis (blending.c) */
    MODEL_SAMPLE,             /* x, grid: images sampled at computed coordinates (sampling.c) */
    MODEL_REGIONS,            /* x, regions, the image of each region: all of one size (regions.c) */
    MODEL_FOURIER,            /* x: transforms of rows (fourier.c) */
    MODEL_CHANCE,             /* a tensor of the result's shape: random numbers (chance.c) */
    MODEL_BITS,               /* x: the same bits as another dtype of the same size */
    MODEL_SUPPRESS,           /* boxes, scores, count, overlap bound, score bound: suppression.c */
    MODEL_BYTE_MAX_POOL,      /* image of bytes: the maximum of each window (byte_pooling.c) */
    MODEL_INTEGER_MEAN,       /* rows of integers: mean, norm or logarithm of a sum (integer_means.c) */
    MODEL_OPS,
} model_op;
typedef struct model_tensor_record {
    uint32_t name_at, name_size, dtype, rank;
    int64_t shape[MODEL_RANK];
    uint64_t data_at, data_size;
    uint32_t kind, base;                 /* of a view: the tensor that it views, itself no view */
    int64_t offset, strides[MODEL_RANK]; /* of a view: in elements of the base, as if it were contiguous */
    uint32_t reserved[4];
} model_tensor_record;
/* Parameters of operators with a window; `activation` also of MODEL_GEMM, MODEL_ADD and MODEL_CLIP. */
enum {
    KERNEL_H,
    KERNEL_W,
    STRIDE_H,
    STRIDE_W,
    PAD_TOP,
    PAD_LEFT,
    PAD_BOTTOM,
    PAD_RIGHT,
    DILATION_H,
    DILATION_W,
    GROUPS,
    ACTIVATION,
    LOW,
    HIGH,             /* of ACTIVATION_CLIP: bits of a float32 */
    COUNT_PADDING,    /* MODEL_AVERAGE_POOL: whether padding counts in the average */
    UNCOUNTED_BOTTOM, /* rows and columns of the padding at the ends that never count */
    UNCOUNTED_RIGHT,
    CHANNEL, /* MODEL_SLICE: the first channel */
    PARAMETERS_USED,
};
/* Whether each pixel of the image is a window of its own, apart from padding. */
static inline bool windows_are_pixels(const int32_t *parameters)
{
    return parameters[KERNEL_H] == 1 && parameters[KERNEL_W] == 1 && parameters[STRIDE_H] == 1
           && parameters[STRIDE_W] == 1;
}
enum {
    ACTIVATION_NONE,
    ACTIVATION_RELU,
    ACTIVATION_CLIP,
    ACTIVATION_CURVES, /* this plus a model_curve: of MODEL_CONV and MODEL_GEMM only */
};
/* Parameter of MODEL_ACTIVATE. */
typedef enum model_curve {
    CURVE_GELU,         /* x * (1 + erf(x / sqrt(2))) / 2 */
    CURVE_GELU_TANH,    /* the approximation of GELU by tanh */
    CURVE_SIGMOID,      /* 1 / (1 + exp(-x)) */
    CURVE_SILU,         /* x * sigmoid(x) */
    CURVE_MISH,         /* x * tanh(log(1 + exp(x))) */
    CURVE_HARD_SIGMOID, /* x / 6 + 1 / 2, clipped to 0 and 1 */
    CURVE_HARD_SWISH,   /* x * hard sigmoid(x) */
    CURVES
} model_curve;
/* Parameters of MODEL_INTEGER_PRODUCT after those of its window, up to GROUPS: zero point, minimum and maximum of a
 * result in bytes; parts of each weight of a depthwise window, 0: not depthwise. */
enum { INTEGER_ZERO = GROUPS + 1, INTEGER_LOW, INTEGER_HIGH, INTEGER_DEPTHWISE };
/* Parameters of quantized operators, for the result and the operands; scales are bits of float32. The result's scale is
 * folded into the operands' scales. */
enum {
    QUANTIZED_ZERO,
    QUANTIZED_LOW,
    QUANTIZED_HIGH,
    QUANTIZED_SCALE_A,
    QUANTIZED_ZERO_A,
    QUANTIZED_SCALE_B,
    QUANTIZED_ZERO_B,
};
/* Parameters of MODEL_NARROW_PRODUCT: narrow_kind; elements of a block of integers; their zero point, if there is one
 * for all. */
enum { NARROW_KIND, NARROW_BLOCK, NARROW_ZERO };
enum { BLEND_AXIS }; /* of MODEL_BLEND */
/* Parameters of MODEL_SAMPLE: interpolation, padding, and the meaning of the coordinates: -1 and 1 are the image's
 * edges, or the centres of its corner pixels; or coordinates are in pixels. */
enum { SAMPLE_MODE, SAMPLE_PADDING, SAMPLE_COORDINATES };
enum { SAMPLE_NEAREST, SAMPLE_LINEAR, SAMPLE_CUBIC, SAMPLE_MODES };
enum { SAMPLE_ZEROS, SAMPLE_BORDER, SAMPLE_REFLECTION, SAMPLE_BORDERS };
enum { SAMPLE_EDGES, SAMPLE_CORNERS, SAMPLE_PIXELS, SAMPLE_COORDINATE_KINDS };
/* Parameters of MODEL_REGIONS: the scale (bits of a float32) converts regions' coordinates to pixels; the ratio is the
 * number of sampling points along each side of an output cell, 0: one per pixel; half_pixel: coordinates are those of
 * pixel edges. */
enum { REGION_MODE, REGION_RATIO, REGION_SCALE, REGION_HALF_PIXEL };
enum { REGION_AVERAGE, REGION_MAX, REGION_PIXELS, REGION_MODES };
enum { FOURIER_KIND }; /* of MODEL_FOURIER: vme_fft_kind */
/* Parameters of MODEL_CHANCE: low and high, or mean and deviation, as bits of float32; whether it is seeded; the seed;
 * the number of the stream of that seed within the model. */
enum { CHANCE_KIND, CHANCE_FIRST, CHANCE_SECOND, CHANCE_SEEDED, CHANCE_SEED, CHANCE_STREAM };
enum { SUPPRESS_CENTERS }; /* of MODEL_SUPPRESS: boxes are centre x, centre y, width and height */
enum { CHANCE_UNIFORM, CHANCE_NORMAL, CHANCE_KINDS };
enum { INTEGER_KIND }; /* of MODEL_INTEGER_MEAN */
enum { INTEGER_MEAN, INTEGER_NORM, INTEGER_LOG_SUM, INTEGER_LOG_SUM_EXP, INTEGER_KINDS };
/* Parameters of MODEL_RECURRENCE; FUNCTIONS: for each direction the functions of gates, candidate and cell, each with
 * two parameters as bits of float32. */
enum {
    RECURRENCE_KIND,
    RECURRENCE_FLAGS,
    RECURRENCE_CLIP, /* bits of a float32: clips the arguments of the functions */
    RECURRENCE_FUNCTIONS,
    RECURRENCE_FUNCTION = 3, /* parameters of each function */
    RECURRENCE_GATES = 3,    /* functions of each direction */
    RECURRENCE_USED = RECURRENCE_FUNCTIONS + 2 * RECURRENCE_GATES * RECURRENCE_FUNCTION,
};
typedef enum recurrence_kind { RECURRENCE_RNN, RECURRENCE_GRU, RECURRENCE_LSTM, RECURRENCE_KINDS } recurrence_kind;
enum {
    RECURRENCE_REVERSE = 1,      /* the first direction runs backwards; a second one always does */
    RECURRENCE_RESET_AFTER = 2,  /* of GRU: the reset gate multiplies the product */
    RECURRENCE_INPUT_FORGET = 4, /* of LSTM: the forget gate is 1 minus the input gate */
    RECURRENCE_FLAGS_ALL = 7,
};
typedef enum recurrence_function {
    FUNCTION_SIGMOID,
    FUNCTION_TANH,
    FUNCTION_RELU,
    FUNCTION_AFFINE,           /* a * x + b */
    FUNCTION_LEAKY_RELU,       /* x < 0: a * x */
    FUNCTION_THRESHOLDED_RELU, /* x <= a: 0 */
    FUNCTION_SCALED_TANH,      /* a * tanh(b * x) */
    FUNCTION_HARD_SIGMOID,     /* a * x + b clipped to 0 and 1 */
    FUNCTION_ELU,              /* x < 0: a * (exp(x) - 1) */
    FUNCTION_SOFTSIGN,
    FUNCTION_SOFTPLUS,
    FUNCTIONS,
} recurrence_function;
/* Maximum elements of a row of MODEL_SOFTMAX and MODEL_NORMALIZE: computed between two checks of the stop flag. */
#define MODEL_ROW_MAX (1 << 16)
typedef struct model_node_record {
    uint32_t name_at, name_size, op, first_operand, inputs, outputs;
    int32_t parameters[MODEL_PARAMETERS];
    uint32_t guard; /* 1 + the number of a guard: if it does not hold, no step reads the result; 0: none */
    uint32_t reserved;
} model_node_record;
/* A size that each call chooses, and the input dimension that determines it. */
typedef struct model_open_record {
    uint32_t name_at, name_size, input, dimension;
} model_open_record;
/* A number in a tensor's record that depends on open sizes: a sum of terms. Field 0 to 7: a size, 8: the offset, 9 to
 * 16: a stride. The label names sizes of inputs and outputs. */
typedef struct model_varying_record {
    uint32_t tensor, field, first_term, terms, label_at, label_size;
} model_varying_record;
enum { FIELD_OFFSET = MODEL_RANK, FIELD_STRIDES, FIELDS = FIELD_STRIDES + MODEL_RANK };
/* Variables: 0 none, open sizes from 1 on, then quotients. */
typedef struct model_term_record {
    int64_t factor;
    uint8_t variables[MODEL_DEGREE_MAX]; /* factors; unused ones are 0 and come last */
} model_term_record;
/* A quotient of two sums, rounded down: of `numerators` and of `denominators` terms, each from its first one on. They
 * use open sizes and earlier quotients. */
typedef struct model_quotient_record {
    uint32_t first_numerator, numerators, first_denominator, denominators;
} model_quotient_record;
/* A condition on the sizes of a call: the sum of some terms is 0, or, if `at_least` is 1, at least 0. The text, among
 * the names, says what fails otherwise and what to do. */
typedef struct model_need_record {
    uint32_t first_term, terms, text_at, text_size, at_least, reserved;
} model_need_record;
/* Holds if the bool tensor, of one element, equals `side` and the parent holds: 1 + the number of an earlier guard, or
 * 0. */
typedef struct model_guard_record {
    uint32_t tensor, side, parent, reserved;
} model_guard_record;
_Static_assert(sizeof(model_tensor_record) == 192 && sizeof(model_node_record) == 128 && sizeof(model_open_record) == 16
                   && sizeof(model_varying_record) == 24 && sizeof(model_term_record) == 16
                   && sizeof(model_quotient_record) == 16 && sizeof(model_need_record) == 24
                   && sizeof(model_guard_record) == 16,
               "records of the file have no holes");

/* A file with a valid format: every number in a record refers to something that exists. Operators' requirements on
 * their operands are not checked. */
typedef struct model_file {
    uint32_t tensors, nodes, inputs, outputs, operands, opens, varyings, terms, quotients, needs, guards;
    const char *tensor_records, *node_records, *input_list, *output_list, *operand_list, *open_list, *varying_list,
        *term_list, *quotient_list, *need_list, *guard_list, *names, *weights;
    uint32_t notes_at, notes_size; /* in the names */
} model_file;
/* Bytes of the first of several concatenated files; `size` if that cannot be determined. */
size_t model_file_size(const void *bytes, size_t size);
/* Reads only the part of `bytes` before the weights; `size` is that of the whole file. `of_plan`: sizes are those of a
 * call, and tensors may have no elements. */
vme_status model_file_read(const void *bytes, size_t size, bool of_plan, model_file *file);
model_tensor_record model_file_tensor(const model_file *file, uint32_t number);
model_node_record model_file_node(const model_file *file, uint32_t number);
uint32_t model_file_number(const char *list, uint32_t field);
model_quotient_record model_file_quotient(const model_file *file, uint32_t number);
model_need_record model_file_need(const model_file *file, uint32_t number);
model_guard_record model_file_guard(const model_file *file, uint32_t number);

#endif
