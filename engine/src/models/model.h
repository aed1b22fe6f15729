/* What the files of models share: the model file's records, and a prepared model, which is a list of steps over values in an arena.
 *
 * file.c reads the file and answers for its form; model.c makes a model of it (shapes and layouts; arena.c places values in the arena, weights.c
 * packs the weights), of nodes that images.c, tensors.c, rows.c and attention.c make steps of; description.c says what it does;
 * session.c runs one; plans.c makes it anew for other sizes; bands.c has steps that follow each other done by bands of rows, bands_choice.c says which;
 * convolution.c has the step that takes the time, winograd.c, strassen.c and im2col.c other ways to do it, steps.c those that move numbers.
 *
 * A value is a plain tensor, contiguous, of any rank and dtype, or a view of one. Values of rank 4 and float32 that operators of images make or
 * read lie as images instead, with channels last and a margin of zeros as wide as the convolutions that read them want; for those operators
 * plain values of rank 2 are images of one pixel. An image can lie within another's channels: what is put together is written where it
 * belongs, and a part is read where it lies. Whatever its layout, a value is also a tensor with strides (model_tensor). */
#ifndef VME_MODEL_H
#define VME_MODEL_H

#include "runtime/internal.h"

#include "vme_search.h"

#include <pthread.h>

enum {
    MODEL_VERSION = 2, MODEL_HEADER = 128, MODEL_RANK = 8, MODEL_PARAMETERS = 24,
    MODEL_TENSORS_MOST = 1 << 14, MODEL_NODES_MOST = 1 << 14, MODEL_OPERANDS_MOST = 1 << 16, MODEL_NAMES_MOST = 1 << 24,
    MODEL_NODE_INPUTS = 256, MODEL_STEP_OPERANDS = 10, MODEL_NAME_MOST = 1 << 10,
    MODEL_OPEN_MOST = 8, MODEL_VARYING_MOST = 1 << 17, MODEL_TERMS_MOST = 1 << 18, MODEL_EXPONENT_MOST = 4,
};
#define MODEL_FLAG_OPEN 1u                  /* of the header: there are open sizes */
#define MODEL_ABSENT UINT32_MAX             /* an operand that is left out */
#define MODEL_ELEMENTS_MOST ((int64_t)1 << 40)

/* ---- the file: docs/model-format.md. Little-endian, without padding of the compiler's. */
enum { MODEL_COMPUTED, MODEL_CONSTANT, MODEL_VIEW };
/* Numbers in files: an operator keeps its own. Below 32 those that work on images. */
typedef enum model_op {
    MODEL_CONV = 1,             /* x, weights [out, in, kh, kw], bias or absent, addend or absent */
    MODEL_MAX_POOL,             /* x */
    MODEL_GLOBAL_AVERAGE_POOL,  /* x */
    MODEL_GEMM,                 /* x [n, in], weights [out, in], bias or absent */
    MODEL_ADD,                  /* a, b of one shape */
    MODEL_RELU,                 /* x */
    MODEL_FLATTEN,              /* x to [n, the rest] */
    MODEL_CLIP,                 /* x */
    MODEL_AVERAGE_POOL,         /* x */
    MODEL_CONCAT,               /* any number of values, side by side in their channels */
    MODEL_SLICE,                /* x: channels of it that follow each other */
    MODEL_SHUFFLE,              /* x, or two halves of it: channel i of GROUPS equal groups, for each i */
    MODEL_COPY = 32,            /* x, broadcast and cast */
    MODEL_UNARY,                /* x; parameters: vme_unary_op, dtype to compute in */
    MODEL_BINARY,               /* a, b; vme_binary_op, dtype to compute in */
    MODEL_WHERE,                /* condition, a, b */
    MODEL_REDUCE,               /* x; vme_reduce_op, dtype to compute in, axes as bits; the result keeps them */
    MODEL_MATMUL,               /* a, b */
    MODEL_GATHER,               /* x, indices (int64) of dimensions in a row; the first of these */
    MODEL_SOFTMAX,              /* x, addend or absent; logarithm or not, a float's bits: softmax(x * factor + addend) of rows */
    MODEL_NORMALIZE,            /* x, scale, bias or absent; epsilon's bits: each row gets mean 0 and variance 1 first */
    MODEL_ACTIVATE,             /* x; model_curve */
    MODEL_SCAN,                 /* x; vme_scan_op, dtype to compute in, axis */
    MODEL_ARGSORT,              /* x; axis, whether the largest is first. Equal ones stay in order */
    MODEL_SCATTER,              /* x, values, indices as MODEL_GATHER's; the first dimension, vme_binary_op of old and new or -1: the new one */
    MODEL_ATTENTION,            /* q, k transposed, v, addend or absent; a float's bits: softmax(q @ k * factor + addend) @ v */
    MODEL_OPS,
} model_op;
typedef struct model_tensor_record {
    uint32_t name_at, name_size, dtype, rank;
    int64_t shape[MODEL_RANK];
    uint64_t data_at, data_size;
    uint32_t kind, base;                    /* of a view: the tensor that it sees, which is no view */
    int64_t offset, strides[MODEL_RANK];    /* of a view: elements of the base, as if it were contiguous */
    uint32_t reserved[4];
} model_tensor_record;
/* Parameters of what has a window; `activation` of MODEL_GEMM, MODEL_ADD and MODEL_CLIP too. */
enum {
    KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, PAD_TOP, PAD_LEFT, PAD_BOTTOM, PAD_RIGHT, DILATION_H, DILATION_W, GROUPS, ACTIVATION,
    LOW, HIGH,                  /* of ACTIVATION_CLIP: a float32's bits */
    COUNT_PADDING,              /* MODEL_AVERAGE_POOL: whether padding counts, but for */
    UNCOUNTED_BOTTOM, UNCOUNTED_RIGHT,      /* so much of it at the ends */
    CHANNEL,                    /* MODEL_SLICE: the first one */
    PARAMETERS_USED,
};
enum { ACTIVATION_NONE, ACTIVATION_RELU, ACTIVATION_CLIP, ACTIVATION_CURVES /* and a model_curve: of MODEL_CONV and MODEL_GEMM only */ };
/* Parameter of MODEL_ACTIVATE: x * (1 + erf(x / sqrt(2))) / 2, the same by tanh, 1 / (1 + exp(-x)), x times that, x * tanh(log(1 + exp(x))). */
typedef enum model_curve { CURVE_GELU, CURVE_GELU_TANH, CURVE_SIGMOID, CURVE_SILU, CURVE_MISH, CURVES } model_curve;
#define MODEL_ROW_MOST (1 << 16)            /* numbers of a row for MODEL_SOFTMAX and MODEL_NORMALIZE: done between two looks at the stop flag */
typedef struct model_node_record {
    uint32_t name_at, name_size, op, first_operand, inputs, outputs;
    int32_t parameters[MODEL_PARAMETERS];
    uint32_t reserved[2];
} model_node_record;
/* A size that each call chooses: what dimension of an input has it. */
typedef struct model_open_record { uint32_t name_at, name_size, input, dimension; } model_open_record;
/* A number of a tensor's record that follows from open sizes: the sum of some terms. Place 0 to 7: a size, 8: the offset, 9 to 16: a stride.
 * The label is of sizes of inputs and outputs. */
typedef struct model_varying_record { uint32_t tensor, place, first_term, terms, label_at, label_size; } model_varying_record;
enum { PLACE_OFFSET = MODEL_RANK, PLACE_STRIDES, PLACES = PLACE_STRIDES + MODEL_RANK };
typedef struct model_term_record {
    int64_t factor;
    uint8_t exponents[MODEL_OPEN_MOST];     /* of each open size */
} model_term_record;
_Static_assert(sizeof(model_tensor_record) == 192 && sizeof(model_node_record) == 128 && sizeof(model_open_record) == 16
               && sizeof(model_varying_record) == 24 && sizeof(model_term_record) == 16, "records of the file have no holes");

/* A file whose form is right: every number in a record is a place that exists. What operators want of their operands is not looked at. */
typedef struct model_file {
    uint32_t tensors, nodes, inputs, outputs, operands, opens, varyings, terms;
    const char *tensor_records, *node_records, *input_list, *output_list, *operand_list, *open_list, *varying_list, *term_list, *names, *weights;
} model_file;
/* Of `bytes` only what is before the weights is looked at; `size` is the whole file's. */
vme_status model_file_read(const void *bytes, size_t size, model_file *file);
model_tensor_record model_file_tensor(const model_file *file, uint32_t number);
model_node_record model_file_node(const model_file *file, uint32_t number);
uint32_t model_file_number(const char *list, uint32_t place);

/* ---- a prepared model */
typedef struct model_value {
    char *name;                             /* owned; of inputs and outputs only */
    int kind, dtype, rank;
    int64_t shape[MODEL_RANK];              /* as ONNX has it */
    int64_t strides[MODEL_RANK];            /* bytes, in the layout that it has */
    bool plain;                             /* never an image: views see it, or rows of it are read */
    bool channels_last;                     /* an image; else plain */
    bool may_be_apart;                      /* its rows of c numbers may have gaps */
    /* of float32 of rank 2 or 4 */
    int64_t n, h, w, c;
    int64_t top, left, bottom, right;       /* the margin */
    int64_t pixel, row, image;              /* elements from a pixel, a row of pixels and an image to the next */
    int64_t bytes, offset;                  /* in the arena; of a constant in the model's packed block, -1: not there */
    int64_t start;                          /* bytes from there to the element at index 0: a margin */
    int first, last;                        /* steps that write and last read it */
    int within;                             /* the value whose bytes these are too, or -1 */
    int64_t inside;                         /* bytes from that one's place to this one's */
    int64_t strip, strip_at;                /* bands.c: only so many rows of it are there, so far into a slot; 0: all of it is */
} model_value;

/* Ways to compute a convolution, and attention; docs/decisions/models.md has what each is for. The first of each can always be used. */
typedef enum model_algorithm {
    CONVOLUTION_DIRECT, CONVOLUTION_WINOGRAD_2, CONVOLUTION_WINOGRAD_4, CONVOLUTION_STRASSEN, CONVOLUTION_IM2COL, CONVOLUTION_ALGORITHMS,
    ATTENTION_FUSED = CONVOLUTION_ALGORITHMS, ATTENTION_APART, MODEL_ALGORITHMS,
} model_algorithm;

typedef enum step_kind {
    STEP_IMPORT, STEP_EXPORT, STEP_CONV, STEP_DEPTHWISE, STEP_MAX_POOL, STEP_AVERAGE_POOL, STEP_GLOBAL_AVERAGE_POOL, STEP_ADD, STEP_CLIP,
    STEP_FLATTEN, STEP_SHUFFLE, STEP_COPY, STEP_NOTHING, STEP_TENSOR,
} step_kind;

typedef struct model_step model_step;
/* Of the first of some steps that follow each other, which are done by bands of rows (bands.c). */
typedef struct model_chain {
    int steps;                              /* 0: none */
    int slots;                              /* equal parts of the scratch memory, one a thread */
    int scratch;                            /* a value that only this chain uses */
    int64_t rows;                           /* of a band of what the last step makes */
    int64_t slot_bytes, points_at;          /* Winograd's points begin so far into a slot */
} model_chain;
typedef vme_status model_run(vme_context *context, const vme_model *model, const model_step *step, char *arena);
struct model_step {
    step_kind kind;
    uint32_t op;                            /* the node's */
    char *name;                             /* owned: the node's; NULL of STEP_IMPORT and STEP_EXPORT */
    vme_bounds bounds;                      /* of the activation */
    int in, addend, out;                    /* values; -1: none. STEP_ADD adds `addend` to `in`, STEP_SHUFFLE takes it as a second half */
    int port;                               /* of STEP_IMPORT and STEP_EXPORT */
    int operand[MODEL_STEP_OPERANDS];       /* values that it reads besides, -1: none; of STEP_TENSOR all of them */
    int scratch;                            /* a value that only this step uses, or -1 */
    model_run *run;                         /* of STEP_TENSOR */
    int32_t p[MODEL_PARAMETERS];
    model_algorithm algorithm;              /* of STEP_CONV and of attention */
    int slots;                              /* of these: equal parts of the scratch memory, one a thread */
    /* of STEP_CONV, weights as the algorithm's file says, and of STEP_DEPTHWISE */
    int64_t k;                              /* numbers that are added up */
    float *weights, *bias;                  /* of the model's packed block; bias: 0 where there is none, as long as whole slivers */
    model_chain chain;
};

/* Rows of one image of what a step makes, and where its values lie. */
typedef struct model_band {
    const model_value *in, *addend, *out;   /* NULL: none. Of a value of which only some rows are there, a copy that says where row 0 would lie */
    char *arena, *scratch, *outside;        /* of Winograd's points; the caller's array of STEP_IMPORT */
    int64_t n, begin, end;
} model_band;

struct vme_model {
    atomic_int refs;
    vme_context *context;                   /* who paid */
    const vme_kernels *kernels;             /* that the weights are packed for */
    int values, steps, inputs, outputs;     /* values: tensors, then scratch */
    int most_steps;                         /* that its file could have made */
    model_value *value;
    model_step *step;
    int *input, *output;                    /* values */
    char *packed;
    size_t packed_bytes, arena_bytes;
    bool fixed;                             /* algorithms are chosen by built-in rates */
    double total[VME_BACKENDS_MOST];        /* nanoseconds that a run is expected to take on one core of each backend; 0: it was none to choose from */
    int64_t spare;                          /* bytes that packed weights may take beyond plain ones, where that is no algorithm's only point */
    vme_bands bands;
    /* of a model with open sizes, which is never run itself: what plans are made of */
    int opens;
    model_open_record open[MODEL_OPEN_MOST];
    char *front, *names;                    /* the file before its weights, and the names in there */
    size_t front_bytes, file_bytes;
    char **label;                           /* MODEL_RANK of each input and then of each output; NULL: that size is fixed */
    /* of a plan */
    vme_model *base;                        /* whose packed block and names it uses; NULL: it is none */
    int64_t size[MODEL_OPEN_MOST];
    size_t charged;                         /* bytes that the context was charged for beside the packed block */
    void *map;                              /* the kept file that `packed` lies in; NULL: it is the context's memory */
    size_t map_bytes;
};

/* ---- model.c: a model that is being made */
typedef struct model_making {
    vme_model *model;
    const model_file *file;
    int values, steps;          /* so far: parts of concatenations follow the tensors */
    char *defined;              /* of each tensor: 0 it has no value yet, 1 parts of it have, 2 it has one */
    bool *wanted;               /* constants that steps read as they are */
    struct packing {
        bool weights, bias;                 /* there are some, which begin */
        uint64_t weights_at, bias_at;       /* so far into the file's weights */
        int64_t outputs, channels, at;      /* floats into the packed block */
    } *packing;                 /* one a step */
    const char *kept;           /* the kept file's choices, one a step; NULL: there is none */
    char *spent, *end;          /* weights from here on have not been given back, and end there; NULL: their bytes are not ours to spend */
} model_making;
/* The model of a file whose form is right. A plan of `base` if that is not NULL: the file is base's at other sizes. */
vme_status model_new(vme_context *context, const model_file *file, size_t size, const vme_model_options *options, vme_model *base,
                     vme_model **made);

/* ---- plans.c: models with open sizes */
/* Keeps in `model` what plans need of its file, which begins at `bytes`. */
vme_status model_open(vme_model *model, const model_file *file, const void *bytes, size_t size);
void model_close(vme_model *model);
enum { PLANS_MOST = 8 };
typedef struct model_plans {                /* the plans that were used last */
    pthread_mutex_t lock;
    uint64_t clock;
    struct {
        vme_model *plan;
        uint64_t used;
    } kept[PLANS_MOST];
} model_plans;
/* The plan for inputs of these shapes, a new reference; `model` itself where no size is open. */
vme_status plans_find(model_plans *plans, vme_context *context, vme_model *model, const vme_tensor *const *inputs, vme_model **plan);
void plans_free(model_plans *plans);

/* How an operator becomes a step. `operands` are the node's inputs and then its output, each MODEL_ABSENT or a tensor; inputs 0 and the output are
 * there, and inputs that are no constants have values. `step` comes with in, out, the operands that are there, p and relu filled in. */
typedef vme_status model_make(model_making *it, uint32_t number, const model_node_record *node, const uint32_t *operands, model_step *step,
                              int step_number);
/* NULL: there is no such operator. */
model_make *model_maker(uint32_t op);
const char *model_operator_name(uint32_t op);
/* For them: */
bool model_is_constant(const model_making *it, uint32_t tensor);
bool model_same_shape(const model_value *a, const model_value *b);
model_step model_step_empty(step_kind kind);
/* What an operator of images reads or makes: of rank 4 it lies as an image from now on. */
vme_status model_as_image(model_making *it, uint32_t number, int tensor);
void model_margin_widen(model_value *value, int64_t top, int64_t left, int64_t bottom, int64_t right);

#define MODEL_REFUSED "not a model file that this engine can run: "
#define MODEL_WRONG(node, format, ...) \
    vme_fail(VME_BAD_VALUE, MODEL_REFUSED "node %u " format, node, ##__VA_ARGS__)

/* ---- arena.c */
/* Says of values that lie in no other which steps use them first and last. */
void arena_lives(vme_model *model);
/* Largest first, each at the lowest place that no value which lives at the same time has. */
vme_status arena_plan(vme_model *model);
/* Values that lie within others lie where those do. */
void arena_place_views(vme_model *model);

/* ---- weights.c */
/* The weights of a file of `size` bytes are given back as they are packed. */
void weights_spend(model_making *it, size_t size);
/* The weights of products as their tiles want them, then the constants that steps read as they are. */
vme_status weights_pack(model_making *it);

/* ---- images.c: operators on images */
model_make model_make_product, model_make_pool, model_make_global_average_pool, model_make_add, model_make_clip, model_make_flatten, model_make_concat,
    model_make_slice, model_make_shuffle;

/* ---- tensors.c: operators on tensors */
model_make model_make_copy, model_make_unary, model_make_binary, model_make_where, model_make_reduce, model_make_matmul, model_make_gather,
    model_make_scan, model_make_argsort, model_make_scatter;
/* The value as a tensor; `arena` may be NULL where its data are not looked at. Valid as long as the model. */
vme_tensor model_tensor(const vme_model *model, int value, char *arena);
/* Whether the step does the same to every element, whatever its place. */
bool model_is_elementwise(const model_step *step);

/* ---- rows.c: fused operators on rows of float32 */
typedef void model_curve_kernel(int curve, int64_t n, const float *in, float *out);       /* a model_curve; `out` may be `in` */
typedef struct model_row_kernels {
    /* out = in * factor + addend, which may be NULL; returns the most of out, whatever NaNs are there */
    float (*weigh)(int64_t n, const float *in, float factor, const float *addend, float *out);
    float (*weigh_here)(int64_t n, float factor, const float *addend, float *out);         /* the same of out */
    void (*shift)(int64_t n, float by, float *out);
    void (*scale)(int64_t n, float by, float *out);
    float (*sum)(int64_t n, const float *in);
    float (*centre)(int64_t n, const float *in, float by, float *out);                     /* out = in + by; returns the sum of its squares */
    /* out = out * factor * scale + bias, which may be NULL */
    void (*normalize)(int64_t n, float factor, const float *scale, const float *bias, float *out);
    float (*exponentials)(int64_t n, float by, float *out);     /* out = exp(out + by), where no sum is above 0; returns their sum */
    model_curve_kernel *curve;
} model_row_kernels;
model_make model_make_softmax, model_make_normalize, model_make_activate;
bool model_is_activation(const model_step *step);
/* Of steps whose activation is a curve: what does it to finished numbers, or NULL; and for all that the step has written. */
model_curve_kernel *model_curve_of(const vme_model *model, const model_step *step);
vme_status model_activate(vme_context *context, const vme_model *model, const model_step *step, char *arena);

/* ---- tuning.c */
/* Chooses the backend, for steps whose shapes and layouts are known, and says what each would take. `kept`: it was chosen before. VME_NO_MEMORY. */
vme_status backend_choose(vme_model *model, bool kept);
/* Sets the step's algorithm, for shapes that are known, and the bytes of scratch memory that it needs. `kept`: what an earlier process or the plan's base chose, or NULL. */
vme_status algorithm_choose(vme_model *model, model_step *step, const model_algorithm *kept, int64_t *scratch);

/* ---- kept.c: prepared models in files */
/* Maps the kept file at `path` for a model file of `size` bytes, if there is one that is this user's, and says in it->kept what was chosen. */
void kept_open(model_making *it, const char *path, size_t size);
/* The packed block in the mapped file; NULL: it has another one. */
char *kept_packed(const model_making *it);
/* Has all of the mapped file in memory, now that the model's own bytes were given back. */
void kept_return(const model_making *it);
/* Keeps a finished model; where that fails there is no file. */
void kept_write(const vme_model *model, const char *path, size_t size);

/* ---- rates.c */
/* The work of a step, of each kind. */
typedef struct rates_counted { double of[VME_RATES]; } rates_counted;
/* Rows of tiles for `rows` that follow each other, as they cost. */
double rates_tile_rows(const vme_gemm_kernel *kernel, int64_t rows);

/* ---- attention.c */
model_make model_make_attention;
bool model_is_attention(const model_step *step);
const char *attention_name(model_algorithm algorithm);
rates_counted attention_work(const vme_kernels *kernels, const vme_model *model, const model_step *step, model_algorithm algorithm);
int64_t attention_scratch(const vme_model *model, model_step *step);    /* bytes; sets the step's slots */
vme_status attention_run(vme_context *context, const vme_model *model, const model_step *step, char *arena);

/* ---- convolution.c: every algorithm goes through these */
/* One of them. What `possible` says and what is packed do not depend on open sizes. */
typedef struct convolution_way {
    const char *name;
    bool (*possible)(const vme_kernels *kernels, const model_value *in, const model_value *addend, const model_value *out, const model_step *step);
    rates_counted (*work)(const vme_kernels *kernels, const model_value *in, const model_value *out, const model_step *step);
    int64_t (*scratch)(const vme_model *model, model_step *step);       /* bytes; sets the step's slots. NULL: none */
    /* Floats of weights, and how they are packed, to zeros. */
    int64_t (*packed)(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels);
    void (*pack)(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels, const char *weights, float *packed);
    model_run *run;
} convolution_way;
const convolution_way *convolution_way_of(model_algorithm algorithm);
extern const convolution_way convolution_winograd_2, convolution_winograd_4, convolution_strassen, convolution_im2col;      /* each in its file */
/* Weights of the direct algorithm, and of those that read the same ones. */
int64_t direct_packed(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels);
void direct_pack(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels, const char *weights, float *packed);
/* Bytes of weights beyond the plain ones. */
int64_t strassen_more(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels);
/* Whether it looks at single pixels, all of which lie at one distance from the next: it is a product of two matrices. `addend` may be NULL. */
bool convolution_is_product(const model_value *in, const model_value *addend, const model_value *out, const model_step *step);
/* Floats that the packed weights take, without and with the bias; at most 2^44. */
int64_t convolution_packed(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels, bool bias);
/* Packs weights [outputs, channels of a group, kh, kw], which may lie anywhere, and the bias (NULL: none) to `step->weights`, and says
 * in `step->bias` where the bias is. */
void convolution_pack(const vme_kernels *kernels, model_step *step, int64_t outputs, int64_t channels, const char *weights, const char *bias);
int64_t convolution_scratch(const vme_model *model, model_step *step);
vme_status convolution_run(vme_context *context, const vme_model *model, const model_step *step, char *arena);
/* This and others' are on the calling thread, until the context is stopped. */
void convolution_band(vme_context *context, const vme_model *model, const model_step *step, const model_band *band);

/* ---- winograd.c: of steps whose algorithm it is */
int64_t winograd_unit(const model_step *step);                          /* bands begin at its multiples */
int64_t winograd_band_scratch(const vme_model *model, const model_step *step, int64_t rows);        /* bytes for bands of at most so many rows */
int64_t winograd_padded(const vme_model *model, const model_step *step, int64_t rows);             /* squares that so many rows of them take, with tiles filled up */
void winograd_band(vme_context *context, const vme_model *model, const model_step *step, const model_band *band);

/* ---- depthwise.c: convolutions with as many groups as channels; the same functions */
int64_t depthwise_packed(const model_step *step, int64_t channels);
void depthwise_pack(model_step *step, int64_t channels, const char *weights, const char *bias);
vme_status depthwise_run(vme_context *context, const vme_model *model, const model_step *step, char *arena);
void depthwise_band(vme_context *context, const vme_model *model, const model_step *step, const model_band *band);

/* ---- pooling.c: STEP_MAX_POOL, STEP_AVERAGE_POOL, STEP_GLOBAL_AVERAGE_POOL */
vme_status pooling_run(vme_context *context, const vme_model *model, const model_step *step, char *arena);
void pooling_band(vme_context *context, const vme_model *model, const model_step *step, const model_band *band);     /* not of the last */

/* ---- steps.c */
/* `outside` is the caller's tensor of an import or export. */
vme_status step_run(vme_context *context, const vme_model *model, const model_step *step, char *arena, const vme_tensor *outside);
void step_band(vme_context *context, const vme_model *model, const model_step *step, const model_band *band);
model_band model_whole(const vme_model *model, const model_step *step, char *arena);
/* Both until the context is stopped: zeros, and zeros around what a step will write, since the arena's bytes were other values before. */
void model_clear(vme_context *context, void *from, size_t bytes);
void model_clear_margin(vme_context *context, const model_value *value, char *arena);
uint64_t model_now_ns(void);

/* ---- bands_choice.c */
/* Says which steps are chains, which values of them have strips, and how much scratch memory that takes; values know when they live. */
vme_status chains_choose(model_making *it);
/* ---- bands.c */
/* The chain that begins at step `first`; `ns` of its steps, or NULL. */
vme_status chain_run(vme_context *context, const vme_model *model, int first, char *arena, const vme_tensor *const *inputs, uint64_t *ns);

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t parts(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

/* The outermost value that `value` lies within: itself where it lies in none. */
static inline int model_root(const vme_model *model, int value)
{
    while (model->value[value].within >= 0)
        value = model->value[value].within;
    return value;
}

static inline float *model_pixel(const model_value *value, char *arena, int64_t n, int64_t y, int64_t x)
{
    return (float *)(arena + value->offset) + n * value->image + (value->top + y) * value->row + (value->left + x) * value->pixel;
}

#endif
