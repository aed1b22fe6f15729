/* What the files of models share: the model file's records, and a prepared model, which is a list of steps over values in an arena.
 *
 * model_file.c reads the file and answers for its form; model.c makes a model of it (shapes, layouts, places in the arena, packed weights);
 * session.c runs one; convolution.c has the step that takes the time.
 *
 * Values of rank 4 lie as images with channels last and a margin of zeros as wide as the convolutions that read them want; values of rank 2
 * are images of one pixel. */
#ifndef VME_MODEL_H
#define VME_MODEL_H

#include "internal.h"

enum {
    MODEL_VERSION = 1, MODEL_HEADER = 128, MODEL_RANK = 8, MODEL_PARAMETERS = 24,
    MODEL_TENSORS_MOST = 1 << 14, MODEL_NODES_MOST = 1 << 14, MODEL_OPERANDS_MOST = 1 << 16, MODEL_NAMES_MOST = 1 << 24,
    MODEL_NODE_INPUTS = 4, MODEL_NAME_MOST = 1 << 10,
};
#define MODEL_ABSENT UINT32_MAX             /* an operand that is left out */
#define MODEL_ELEMENTS_MOST ((int64_t)1 << 40)

/* ---- the file: docs/model-format.md. Little-endian, without padding of the compiler's. */
enum { MODEL_COMPUTED, MODEL_CONSTANT };
typedef enum model_op {
    MODEL_CONV = 1,             /* x, weights [out, in, kh, kw], bias or absent, addend or absent */
    MODEL_MAX_POOL,             /* x */
    MODEL_GLOBAL_AVERAGE_POOL,  /* x */
    MODEL_GEMM,                 /* x [n, in], weights [out, in], bias or absent */
    MODEL_ADD,                  /* a, b of one shape */
    MODEL_RELU,                 /* x */
    MODEL_FLATTEN,              /* x to [n, the rest] */
    MODEL_OPS,
} model_op;
typedef struct model_tensor_record {
    uint32_t name_at, name_size, dtype, rank;
    int64_t shape[MODEL_RANK];
    uint64_t data_at, data_size;
    uint32_t kind, reserved[7];
} model_tensor_record;
/* Parameters of MODEL_CONV and MODEL_MAX_POOL; `activation` of MODEL_GEMM and MODEL_ADD too. */
enum {
    KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, PAD_TOP, PAD_LEFT, PAD_BOTTOM, PAD_RIGHT, DILATION_H, DILATION_W, GROUPS, ACTIVATION,
    PARAMETERS_USED,
};
enum { ACTIVATION_NONE, ACTIVATION_RELU };
typedef struct model_node_record {
    uint32_t name_at, name_size, op, first_operand, inputs, outputs;
    int32_t parameters[MODEL_PARAMETERS];
    uint32_t reserved[2];
} model_node_record;
_Static_assert(sizeof(model_tensor_record) == 128 && sizeof(model_node_record) == 128, "records of the file have no holes");

/* A file whose form is right: every number in a record is a place that exists. What operators want of their operands is not looked at. */
typedef struct model_file {
    uint32_t tensors, nodes, inputs, outputs, operands;
    const char *tensor_records, *node_records, *input_list, *output_list, *operand_list, *names, *weights;
} model_file;
vme_status model_file_read(const void *bytes, size_t size, model_file *file);
model_tensor_record model_file_tensor(const model_file *file, uint32_t number);
model_node_record model_file_node(const model_file *file, uint32_t number);
uint32_t model_file_number(const char *list, uint32_t place);

/* ---- a prepared model */
typedef struct model_value {
    char *name;                             /* owned; of inputs and outputs only */
    int rank;                               /* 2 or 4; 0: a constant, which is no value */
    int64_t shape[4];                       /* as ONNX has it */
    int64_t n, h, w, c;
    int64_t top, left, bottom, right;       /* the margin */
    int64_t row, image;                     /* elements from a row of pixels to the next, and from an image */
    int64_t bytes, offset;                  /* in the arena */
    int first, last;                        /* steps that write and last read it */
    int within;                             /* the value whose bytes these are too, or -1 */
} model_value;

typedef enum step_kind {
    STEP_IMPORT, STEP_EXPORT, STEP_CONV, STEP_MAX_POOL, STEP_GLOBAL_AVERAGE_POOL, STEP_ADD, STEP_RELU, STEP_FLATTEN, STEP_NOTHING,
} step_kind;

typedef struct model_step {
    step_kind kind;
    bool relu;
    int in, addend, out;                    /* values; -1: none. STEP_ADD adds `addend` to `in` */
    int port;                               /* of STEP_IMPORT and STEP_EXPORT */
    int32_t p[PARAMETERS_USED];
    /* of STEP_CONV: weights in slivers of the tile's columns, each k rows; see convolution.c */
    int64_t k;
    float *weights, *bias;                  /* of the model's packed block; bias: 0 where there is none */
} model_step;

struct vme_model {
    atomic_int refs;
    vme_context *context;                   /* who paid */
    const vme_kernels *kernels;             /* that the weights are packed for */
    int values, steps, inputs, outputs;
    model_value *value;
    model_step *step;
    int *input, *output;                    /* values */
    char *packed;
    size_t packed_bytes, arena_bytes;
};

/* ---- convolution.c */
/* Floats that the packed weights take, bias included; at most 2^40. */
int64_t convolution_packed(const vme_kernels *kernels, int64_t outputs, int64_t k);
/* Packs weights [outputs, channels, kh, kw], which may lie anywhere, and the bias (NULL: none) to `packed`. */
void convolution_pack(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels, const char *weights,
                      const char *bias, float *packed);
vme_status convolution_run(vme_context *context, const vme_model *model, const model_step *step, char *arena);

static inline float *model_pixel(const model_value *value, char *arena, int64_t n, int64_t y, int64_t x)
{
    return (float *)(arena + value->offset) + n * value->image + (value->top + y) * value->row + (value->left + x) * value->c;
}

#endif
