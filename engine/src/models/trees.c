/* Ensembles of decision trees, as gradient boosting and random forests make them.
 *
 * The features of a row are converted once to integers in the same order, so that each node is one comparison of
 * integers (the compiler converts other comparisons, engine/onnx/trees.py): nodes need no special case for NaN and the
 * two zeros. Eight rows go through a tree at a time, or one row through eight trees. Sums are in float64. */
#include "models/trees.h"
#include "models/file.h"
#include "models/makers.h"
#include "models/model.h"
#include "models/preparation.h"
#include "models/step.h"
#include "models/tensors.h"
#include "models/value.h"
#include "runtime/numbers.h"
#include "runtime/pool.h"

#include <math.h>
#include <string.h>

enum {
    LANES = 8,
    BLOCK_BYTES = 1 << 14, /* bytes of a block's keys, which fit in L1 together with a tree */
    BLOCK_ROWS = 256,
    STOP_INTERVAL = 1 << 12, /* steps of eight walks between two checks of the stop flag: about 50 us */
};
/* Parameters: how leaves are combined; the divisor of the sum (0: none); which keys a row has (bits: NaN above all
 * numbers, NaN below). */
enum { COMBINE, DIVISOR, NAN_KEYS };
enum { COMBINE_SUM, COMBINE_MIN, COMBINE_MAX, COMBINES };
enum { X, NODES, TREES, VALUES, BASE, OPERANDS };

typedef struct tree_record {
    int32_t root, target;
    int32_t min_depth; /* steps that every walk can take without passing its leaf */
} tree_record;

typedef struct trees {
    vme_context *context;
    const char *nodes, *rows;
    const tree_record *tree;
    const char *values; /* [leaves, targets]; NULL: a leaf's key is its value, for the tree's target */
    const char *base;   /* [targets], initial values of the sums, or NULL */
    char *out, *scratch;
    int64_t trees, leaves, targets, features, row_count;
    int64_t keys; /* of a row: its features, once or twice, and the lowest key */
    int64_t row_bytes, out_bytes;
    int64_t block, slot_bytes;
    int value_bytes, number_bytes, key_bytes; /* the sizes are the same for x and the result */
    int combine, divisor, nan_keys;
} trees;

static inline double combine(int operation, double a, double b)
{
    return operation == COMBINE_SUM ? a + b : operation == COMBINE_MIN ? (b < a ? b : a) : (b > a ? b : a);
}

#define NAME(x)      narrow_##x
#define KEY          int32_t
#define LINK         uint32_t
#define NUMBER       float
#define FEATURE_BITS 16
#include "models/trees_walk.h" /* NOLINT: included once for each size */
#undef NAME
#undef KEY
#undef LINK
#undef NUMBER
#undef FEATURE_BITS
#define NAME(x)      wide_##x
#define KEY          int64_t
#define LINK         uint64_t
#define NUMBER       double
#define FEATURE_BITS 32
#include "models/trees_walk.h" /* NOLINT */

static trees job_of_step(const vme_model *model, const model_step *step, char *arena)
{
    const vme_tensor x = model_tensor(model, step->operand[X], arena),
                     nodes = model_tensor(model, step->operand[NODES], arena),
                     tree = model_tensor(model, step->operand[TREES], arena),
                     out = model_tensor(model, step->out, arena);
    trees job = {
        .nodes = nodes.data,
        .rows = x.data,
        .tree = (const tree_record *)tree.data,
        .out = out.data,
        .trees = tree.shape[0],
        .targets = out.shape[1],
        .features = x.shape[1],
        .row_count = x.shape[0],
        .row_bytes = x.strides[0],
        .out_bytes = out.strides[0],
        .number_bytes = (int)vme_dtype_size((vme_dtype)x.dtype),
        .key_bytes = (int)vme_dtype_size((vme_dtype)nodes.dtype),
        .combine = step->p[COMBINE],
        .divisor = step->p[DIVISOR],
        .nan_keys = step->p[NAN_KEYS],
    };
    job.keys = job.features * ((job.nan_keys & 1) + (job.nan_keys >> 1)) + 1;
    if (step->operand[VALUES] >= 0) {
        const vme_tensor values = model_tensor(model, step->operand[VALUES], arena);
        job.values = values.data;
        job.leaves = values.shape[0];
        job.value_bytes = (int)vme_dtype_size((vme_dtype)values.dtype);
    }
    if (step->operand[BASE] >= 0)
        job.base = model_tensor(model, step->operand[BASE], arena).data;
    job.block = min(BLOCK_ROWS, max(1, BLOCK_BYTES / (job.keys * job.key_bytes * LANES)) * LANES);
    job.block = min(job.block, ceil_div(job.row_count, LANES) * LANES);
    job.slot_bytes =
        (job.block * (job.targets * (int64_t)sizeof(double) + job.keys * job.key_bytes) + VME_ALIGNMENT - 1)
        / VME_ALIGNMENT * VME_ALIGNMENT;
    return job;
}

static void compute_block(const trees *job, int64_t begin, int64_t end, char *slot)
{
    double *totals = (double *)slot;
    void *keys = totals + job->block * job->targets;
    const double initial = job->combine == COMBINE_SUM   ? 0
                           : job->combine == COMBINE_MIN ? (double)INFINITY
                                                         : -(double)INFINITY;
    for (int64_t i = 0; i < (end - begin) * job->targets; i++)
        totals[i] = initial;
    if (job->key_bytes == 4)
        narrow_block(job, begin, end, keys, totals);
    else
        wide_block(job, begin, end, keys, totals);
    for (int64_t i = 0; i < end - begin; i++)
        for (int64_t t = 0; t < job->targets; t++) {
            double total = totals[i * job->targets + t];
            if (job->combine != COMBINE_SUM && total == initial) /* no tree contributed */
                total = 0;
            if (job->divisor > 0)
                total /= job->divisor;
            char *out = job->out + (begin + i) * job->out_bytes;
            if (job->number_bytes == 4)
                ((float *)out)[t] = (float)(total + (job->base == NULL ? 0 : (double)((const float *)job->base)[t]));
            else
                ((double *)out)[t] = total + (job->base == NULL ? 0 : ((const double *)job->base)[t]);
        }
}

static void compute_blocks(void *argument, int64_t slot, vme_items *items)
{
    const trees *job = argument;
    for (int64_t block; vme_item_next(items, &block);)
        compute_block(job, block * job->block, min(job->row_count, (block + 1) * job->block),
                      job->scratch + slot * job->slot_bytes);
}

static vme_status run_trees(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    trees job = job_of_step(model, step, arena);
    job.context = context;
    job.scratch = arena + model->value[step->scratch].offset;
    return vme_parallel_slots(context, step->slots, ceil_div(job.row_count, job.block), compute_blocks, &job);
}

bool model_is_trees(const model_step *step) { return step->kind == STEP_TENSOR && step->run == run_trees; }

int64_t trees_scratch(const vme_model *model, model_step *step)
{
    const trees job = job_of_step(model, step, NULL);
    step->slots = (int)min(min(ceil_div(job.row_count, job.block), vme_threads()), VME_SLOTS_MAX);
    return job.slot_bytes * step->slots;
}

vme_status trees_check(const vme_model *model, const model_step *step)
{
    const trees job = job_of_step(model, step, NULL);
    const int64_t count = model->value[step->operand[NODES]].shape[0];
    bool valid = job.key_bytes == 4 ? narrow_are_trees(&job, count) : wide_are_trees(&job, count);
    for (int64_t t = 0; valid && t < job.trees; t++)
        valid = job.tree[t].root >= 0 && job.tree[t].root < count && job.tree[t].target >= 0
                && job.tree[t].target < job.targets && job.tree[t].min_depth >= 0
                && job.tree[t].min_depth < STOP_INTERVAL;
    return valid
               ? VME_OK
               : vme_fail(VME_BAD_VALUE, MODEL_REFUSED "the nodes of ensemble '%s' are no decision trees", step->name);
}

/* Whether the operand is a constant of that shape, not a view; columns -1: any size. */
static bool is_table(const model_preparation *preparation, int operand, int rank, int64_t columns)
{
    const model_value *value = &preparation->model->value[operand];
    return value->kind == MODEL_CONSTANT && value->rank == rank && (columns < 0 || value->shape[rank - 1] == columns);
}

vme_status model_make_trees(model_preparation *preparation, uint32_t number, const model_node_record *node,
                            const uint32_t *operands, model_step *step, int step_number)
{
    (void)step_number;
    const model_value *value = preparation->model->value, *out = &value[step->out];
    step->run = run_trees;
    if (node->inputs != OPERANDS || operands[NODES] == MODEL_ABSENT || operands[TREES] == MODEL_ABSENT)
        return MODEL_WRONG(number, "has no nodes or no trees");
    const model_value *x = &value[step->operand[X]], *nodes = &value[step->operand[NODES]],
                      *tree = &value[step->operand[TREES]];
    if (x->rank != 2 || out->rank != 2 || out->dtype != x->dtype || out->shape[0] != x->shape[0]
        || (x->dtype != VME_FLOAT32 && x->dtype != VME_FLOAT64)
        || (x->shape[1] > 1 && x->strides[1] != vme_dtype_size((vme_dtype)x->dtype)) || out->kind == MODEL_VIEW)
        return MODEL_WRONG(number, "has rows, or a result, of an unexpected shape or dtype");
    if (!is_table(preparation, step->operand[NODES], 2, 2) || !is_table(preparation, step->operand[TREES], 2, 3)
        || tree->dtype != VME_INT32
        || (nodes->dtype != VME_INT64 && (nodes->dtype != VME_INT32 || x->dtype != VME_FLOAT32)))
        return MODEL_WRONG(number, "has nodes or trees of an unexpected shape or dtype");
    if (step->operand[VALUES] >= 0
        && (!is_table(preparation, step->operand[VALUES], 2, out->shape[1])
            || (value[step->operand[VALUES]].dtype != VME_FLOAT32
                && value[step->operand[VALUES]].dtype != VME_FLOAT64)))
        return MODEL_WRONG(number, "has leaf values of an unexpected shape or dtype");
    if (step->operand[BASE] >= 0
        && (!is_table(preparation, step->operand[BASE], 1, out->shape[1])
            || value[step->operand[BASE]].dtype != out->dtype))
        return MODEL_WRONG(number, "has initial sums of an unexpected shape or dtype");
    if (step->p[COMBINE] < 0 || step->p[COMBINE] >= COMBINES || step->p[DIVISOR] < 0 || step->p[NAN_KEYS] < 1
        || step->p[NAN_KEYS] > 3)
        return MODEL_WRONG(number, "combines leaves by an unknown operation");
    return VME_OK;
}
