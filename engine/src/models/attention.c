/* Attention: softmax(q @ k * factor + addend) @ v, with k transposed as a product needs it. There are two algorithms,
 * and tuning.c chooses.
 *
 * Fused: one tile's rows of scores are computed, exponentiated and multiplied with v while they are in L1, so the rows
 * x keys matrix of scores is never in memory. Both products use the tiles of models' layers at their full rate: all
 * threads first pack k and v into slivers, then take blocks of rows. The result of a block does not depend on the
 * thread.
 *
 * Apart: as the three separate operators, for a few rows, where packing costs more than it saves. */
#include "models/attention.h"
#include "models/file.h"
#include "models/makers.h"
#include "models/model.h"
#include "models/preparation.h"
#include "models/rates.h"
#include "models/row_kernels.h"
#include "models/step.h"
#include "models/tensors.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/machine.h"
#include "runtime/numbers.h"
#include "runtime/pool.h"

#include "vme_search.h"

#include <string.h>

enum {
    STOP_INTERVAL = 1 << 12, /* elements of a sum, or rows packed, between two checks of the stop flag */
    LINE_FLOATS = 16, /* one cache line; a row of scores is padded by it, so that rows do not map to one set of L1 */
};

typedef struct attention {
    vme_context *context;
    const vme_gemm_kernel *gemm;
    vme_move2 *transpose;
    const model_row_kernels *row_kernels;
    float factor;
    bool guarded;                    /* fully masked rows of weights, which are NaN, count as 0 */
    vme_tensor q, k, v, addend, out; /* addend.data NULL: none */
    /* in bytes, broadcast to out's dimensions */
    int64_t q_strides[VME_RANK_MAX], k_strides[VME_RANK_MAX], v_strides[VME_RANK_MAX], addend_strides[VME_RANK_MAX];
    /* of one item: scores are rows x keys with sums over depth; the result is rows x width */
    int64_t rows, keys, depth, width;
    int64_t items, row_blocks, blocks;               /* row_blocks: of one item; blocks: of all items */
    bool keys_contiguous;                            /* the elements of each key are contiguous */
    int64_t key_slivers, width_slivers, item_floats; /* of packed operands */
    int64_t score_row, result_row, slot_floats;
    float *packed, *slots;
    int slot_count;
} attention;

/* Offset in bytes of the matrix of item `number`, by the strides of the dimensions before the last two. */
static int64_t item_offset(const attention *job, const int64_t *strides, int64_t number)
{
    int64_t offset = 0;
    for (int d = job->out.rank - 3; d >= 0; d--) {
        offset += number % job->out.shape[d] * strides[d];
        number /= job->out.shape[d];
    }
    return offset;
}

/* ---- sizes */
static int64_t size_from_end(const model_value *value, int from_end) { return value->shape[value->rank - from_end]; }

/* Lays out scratch memory; false: its size overflows. */
static bool lay_out(attention *job, const vme_gemm_kernel *gemm, const model_value *q, const model_value *k,
                    const model_value *out)
{
    const int64_t columns = gemm->columns;
    job->rows = size_from_end(out, 2);
    job->width = size_from_end(out, 1);
    job->keys = size_from_end(k, 1);
    job->depth = size_from_end(q, 1);
    job->keys_contiguous = k->strides[k->rank - 2] == sizeof(float);
    job->items = 1;
    for (int d = 0; d < out->rank - 2; d++)
        job->items *= out->shape[d];
    job->row_blocks = ceil_div(job->rows, gemm->rows);
    job->blocks = job->items * job->row_blocks;
    job->key_slivers = ceil_div(job->keys, columns);
    job->width_slivers = ceil_div(job->width, columns);
    job->item_floats = (job->key_slivers * job->depth + job->width_slivers * job->keys) * columns;
    job->score_row = job->key_slivers * columns + LINE_FLOATS;
    job->result_row = job->width_slivers * columns;
    job->slot_floats = (gemm->rows * (job->score_row + job->result_row) + LINE_FLOATS - 1) / LINE_FLOATS * LINE_FLOATS;
    int64_t total;
    return !__builtin_mul_overflow(job->items, job->item_floats, &total) && total < MODEL_ELEMENTS_MAX / 8;
}

/* ---- costs */
static double score_count(const attention *job) { return (double)(job->items * job->rows) * (double)job->keys; }
static double packed_floats(const attention *job) { return (double)job->items * (double)job->item_floats; }

static rates_work scores_work(const attention *job, double products)
{
    return (rates_work){{[VME_RATE_PRODUCTS] = products + ATTENTION_SCORE_PRODUCTS * score_count(job)
                                               + ATTENTION_ROW_PRODUCTS * (double)(job->items * job->rows)}};
}

static rates_work tiles_work(const attention *job, const vme_gemm_kernel *gemm)
{
    return scores_work(job, rates_tile_rows(gemm, job->rows) * packed_floats(job));
}

/* ---- fused */
/* Packs rows x columns of a matrix into a sliver. */
static void pack_sliver(const attention *job, int64_t rows, int64_t columns, const char *from, int64_t row,
                        int64_t column, float *to)
{
    const int64_t sliver_columns = job->gemm->columns;
    for (int64_t r = 0; r < rows && !vme_stopping(job->context); r += STOP_INTERVAL) {
        const int64_t count = min(STOP_INTERVAL, rows - r);
        const char *in = from + r * row;
        float *out = to + r * sliver_columns;
        if (column == sizeof(float))
            for (int64_t i = 0; i < count; i++)
                memcpy(out + i * sliver_columns, in + i * row, (size_t)columns * sizeof(float));
        else if (row == sizeof(float))
            job->transpose(count, columns, in, row, column, (char *)out, sliver_columns * (int64_t)sizeof(float),
                           sizeof(float));
        else
            for (int64_t i = 0; i < count; i++)
                for (int64_t j = 0; j < columns; j++)
                    memcpy(out + i * sliver_columns + j, in + i * row + j * column, sizeof(float));
    }
}

static vme_status pack(void *argument, int64_t begin, int64_t end)
{
    const attention *job = argument;
    const int64_t columns = job->gemm->columns, item_slivers = job->key_slivers + job->width_slivers;
    const int64_t *k = job->k_strides + job->out.rank - 2, *v = job->v_strides + job->out.rank - 2;
    for (int64_t i = begin; i < end && !vme_stopping(job->context); i++) {
        const int64_t item = i / item_slivers, sliver = i % item_slivers, v_sliver = sliver - job->key_slivers;
        float *to = job->packed + item * job->item_floats;
        if (v_sliver < 0)
            pack_sliver(job, job->depth, min(columns, job->keys - sliver * columns),
                        (const char *)job->k.data + item_offset(job, job->k_strides, item) + sliver * columns * k[1],
                        k[0], k[1], to + sliver * columns * job->depth);
        else
            pack_sliver(job, job->keys, min(columns, job->width - v_sliver * columns),
                        (const char *)job->v.data + item_offset(job, job->v_strides, item) + v_sliver * columns * v[1],
                        v[0], v[1], to + job->key_slivers * columns * job->depth + v_sliver * columns * job->keys);
    }
    return VME_OK;
}

/* to = a @ packed slivers, for the rows of one tile. */
static void product(const attention *job, int64_t rows, int64_t k, int64_t columns, const char *a, int64_t a_row,
                    int64_t a_column, const float *packed, float *to, int64_t to_row)
{
    const int64_t sliver_columns = job->gemm->columns, b_row = sliver_columns * (int64_t)sizeof(float);
    vme_gemm_tile tile = {.a_row = a_row,
                          .a_column = a_column,
                          .b_row = b_row,
                          .c_row = to_row * (int64_t)sizeof(float),
                          .ahead = 8 * b_row,
                          .rows = (int)rows};
    const vme_gemm_layer layer = {.runs = 1, .coming = (const char *)packed};
    for (int64_t column = 0; column < columns; column += sliver_columns) {
        tile.c = (char *)(to + column);
        tile.columns = (int)min(sliver_columns, columns - column);
        for (int64_t k0 = 0; k0 < k; k0 += STOP_INTERVAL) {
            if (vme_stopping(job->context))
                return;
            tile.k = min(STOP_INTERVAL, k - k0);
            tile.accumulate = k0 > 0;
            tile.a = a + k0 * a_column;
            tile.b = (const char *)(packed + column * k + k0 * sliver_columns);
            if (a_column == sizeof(float))
                job->gemm->layer_tile(&tile, &layer);
            else
                job->gemm->tile(&tile);
        }
    }
}

static void write_row(const attention *job, const float *from, float factor, char *to, int64_t stride)
{
    if (stride == sizeof(float) || job->width == 1) {
        memcpy(to, from, (size_t)job->width * sizeof(float));
        job->row_kernels->scale(job->width, factor, (float *)to);
        return;
    }
    for (int64_t i = 0; i < job->width; i++)
        *(float *)(to + i * stride) = from[i] * factor;
}

/* The factor that normalizes a row of exponentials with this sum. If the step is guarded, a fully masked row (NaN) is
 * set to 0. */
static float normalizing_factor(const attention *job, float sum, float *row)
{
    if (!job->guarded || sum == sum)
        return 1 / sum;
    memset(row, 0, (size_t)job->keys * sizeof(float));
    return 0;
}

static void attend_block(const attention *job, int64_t number, float *scores)
{
    const int rank = job->out.rank;
    const int64_t item = number / job->row_blocks, row_block = number % job->row_blocks,
                  first = row_block * job->rows / job->row_blocks;
    const int64_t rows = (row_block + 1) * job->rows / job->row_blocks - first;
    const float *k = job->packed + item * job->item_floats, *v = k + job->key_slivers * job->gemm->columns * job->depth;
    float *result = scores + job->gemm->rows * job->score_row;
    float factors[32]; /* at least the rows of any tile */
    product(job, rows, job->depth, job->keys,
            (const char *)job->q.data + item_offset(job, job->q_strides, item) + first * job->q_strides[rank - 2],
            job->q_strides[rank - 2], job->q_strides[rank - 1], k, scores, job->score_row);
    const char *addend = job->addend.data == NULL
                             ? NULL
                             : (const char *)job->addend.data + item_offset(job, job->addend_strides, item)
                                   + first * job->addend_strides[rank - 2];
    for (int64_t i = 0; i < rows && !vme_stopping(job->context); i++) {
        float *row = scores + i * job->score_row;
        const float largest = job->row_kernels->weigh_here(
            job->keys, job->factor, addend == NULL ? NULL : (const float *)(addend + i * job->addend_strides[rank - 2]),
            row);
        factors[i] = normalizing_factor(job, job->row_kernels->exponentials(job->keys, -largest, row), row);
    }
    product(job, rows, job->keys, job->width, (const char *)scores, job->score_row * (int64_t)sizeof(float),
            sizeof(float), v, result, job->result_row);
    if (vme_stopping(job->context))
        return;
    char *to = (char *)job->out.data + item_offset(job, job->out.strides, item) + first * job->out.strides[rank - 2];
    for (int64_t i = 0; i < rows; i++)
        write_row(job, result + i * job->result_row, factors[i], to + i * job->out.strides[rank - 2],
                  job->out.strides[rank - 1]);
}

static void attend_blocks(void *argument, int64_t slot, vme_items *blocks)
{
    const attention *job = argument;
    for (int64_t block; vme_item_next(blocks, &block);)
        attend_block(job, block, job->slots + slot * job->slot_floats);
}

static vme_status run_fused(attention *job, char *scratch)
{
    const int64_t item_slivers = job->key_slivers + job->width_slivers, sliver_floats = job->item_floats / item_slivers;
    job->packed = (float *)scratch;
    job->slots = job->packed + job->items * job->item_floats;
    vme_status status =
        vme_parallel_apart(job->context, job->items * item_slivers, (1 << 14) / (sliver_floats + 1) + 1, pack, job);
    return status == VME_OK ? vme_parallel_slots(job->context, job->slot_count, job->blocks, attend_blocks, job)
                            : status;
}

static rates_work fused_work(const attention *job, const vme_gemm_kernel *gemm)
{
    rates_work result = tiles_work(job, gemm);
    result.of[VME_RATE_BYTES] = ATTENTION_PACKED_BYTES * packed_floats(job);
    return result;
}

static int64_t fused_floats(const attention *job, int slots)
{
    return job->items * job->item_floats + slots * job->slot_floats;
}

/* ---- apart */
static vme_status softmax_rows(void *argument, int64_t begin, int64_t end)
{
    const attention *job = argument;
    const int rank = job->out.rank;
    for (int64_t i = begin; i < end && !vme_stopping(job->context); i++) {
        const char *addend = (const char *)job->addend.data;
        float *row = job->packed + i * job->keys;
        if (addend != NULL)
            addend +=
                item_offset(job, job->addend_strides, i / job->rows) + i % job->rows * job->addend_strides[rank - 2];
        const float largest = job->row_kernels->weigh_here(job->keys, job->factor, (const float *)addend, row);
        job->row_kernels->scale(
            job->keys, normalizing_factor(job, job->row_kernels->exponentials(job->keys, -largest, row), row), row);
    }
    return VME_OK;
}

static vme_status run_apart(attention *job, char *scratch)
{
    int64_t shape[VME_RANK_MAX], strides[VME_RANK_MAX], stride = sizeof(float);
    memcpy(shape, job->out.shape, sizeof *shape * (size_t)job->out.rank);
    shape[job->out.rank - 1] = job->keys;
    for (int d = job->out.rank - 1; d >= 0; d--) {
        strides[d] = stride;
        stride *= shape[d];
    }
    job->packed = (float *)scratch;
    const vme_tensor scores = {
        .data = scratch, .shape = shape, .strides = strides, .rank = job->out.rank, .dtype = VME_FLOAT32};
    vme_status status = vme_matmul(job->context, &job->q, &job->k, &scores);
    if (status == VME_OK)
        status = vme_parallel_apart(job->context, job->items * job->rows, (1 << 13) / job->keys + 1, softmax_rows, job);
    return status == VME_OK ? vme_matmul(job->context, &scores, &job->v, &job->out) : status;
}

/* For few rows, if the elements of each key are contiguous, the first product is computed as dot products, and nothing
 * is packed. */
static rates_work apart_work(const attention *job, const vme_gemm_kernel *gemm)
{
    const double operand_elements = (double)job->items * (double)(job->depth + job->width) * (double)job->keys;
    rates_work result = tiles_work(job, gemm);
    if (job->rows <= ATTENTION_DOT_ROWS && job->keys_contiguous) {
        result = scores_work(job, (double)job->rows * operand_elements);
        result.of[VME_RATE_BYTES] = ATTENTION_DOT_BYTES * score_count(job) + ATTENTION_READ_BYTES * operand_elements;
    } else
        result.of[VME_RATE_BYTES] =
            ATTENTION_SCORE_BYTES * score_count(job) + ATTENTION_MATMUL_BYTES * packed_floats(job);
    return result;
}

static int64_t apart_floats(const attention *job, int slots)
{
    (void)slots;
    return job->items * job->rows * job->keys;
}

/* ---- the table of algorithms */
typedef struct attention_algorithm {
    const char *name;
    rates_work (*work)(const attention *job, const vme_gemm_kernel *gemm);
    int64_t (*floats)(const attention *job, int slots); /* floats of scratch memory */
    vme_status (*run)(attention *job, char *scratch);
} attention_algorithm;

static const attention_algorithm *algorithm_of(model_algorithm algorithm)
{
    static const attention_algorithm fused = {"fused", fused_work, fused_floats, run_fused},
                                     apart = {"apart", apart_work, apart_floats, run_apart};
    return algorithm == ATTENTION_APART ? &apart : &fused;
}

/* Strides of the operand for out's dimensions: its own for the matrix, broadcast for the dimensions before it. */
static vme_status strides_of(const vme_tensor *operand, const vme_tensor *out, int64_t strides[VME_RANK_MAX])
{
    vme_tensor outer = *operand, outer_out = *out;
    outer.rank -= 2;
    outer_out.rank -= 2;
    vme_status status = vme_broadcast_strides(&outer, &outer_out, strides);
    for (int d = 1; d <= 2; d++)
        strides[out->rank - d] = operand->strides[operand->rank - d];
    return status;
}

vme_status attention_run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    attention job = {
        .context = context,
        .gemm = &model->kernels->gemm.of[VME_FLOAT32],
        .transpose = model->kernels->move.transpose[2],
        .row_kernels = model->kernels->rows,
        .q = model_tensor(model, step->operand[0], arena),
        .k = model_tensor(model, step->operand[1], arena),
        .v = model_tensor(model, step->operand[2], arena),
        .out = model_tensor(model, step->out, arena),
        .slot_count = step->slots,
    };
    memcpy(&job.factor, &step->p[0], sizeof job.factor);
    job.guarded = step->p[1] != 0;
    lay_out(&job, job.gemm, &model->value[step->operand[0]], &model->value[step->operand[1]], &model->value[step->out]);
    vme_status status = strides_of(&job.q, &job.out, job.q_strides);
    if (status == VME_OK)
        status = strides_of(&job.k, &job.out, job.k_strides);
    if (status == VME_OK)
        status = strides_of(&job.v, &job.out, job.v_strides);
    if (status == VME_OK && step->operand[3] >= 0) {
        int64_t shape[VME_RANK_MAX];
        vme_tensor scores = job.out;
        memcpy(shape, job.out.shape, sizeof *shape * (size_t)job.out.rank);
        shape[job.out.rank - 1] = job.keys;
        scores.shape = shape;
        job.addend = model_tensor(model, step->operand[3], arena);
        status = vme_broadcast_strides(&job.addend, &scores, job.addend_strides);
    }
    char *scratch = arena + model->value[step->scratch].offset;
    return status == VME_OK ? algorithm_of(step->algorithm)->run(&job, scratch) : status;
}

bool model_is_attention(const model_step *step) { return step->run == attention_run; }
const char *attention_name(model_algorithm algorithm) { return algorithm_of(algorithm)->name; }

static attention layout_of(const vme_kernels *kernels, const vme_model *model, const model_step *step)
{
    attention job;
    lay_out(&job, &kernels->gemm.of[VME_FLOAT32], &model->value[step->operand[0]], &model->value[step->operand[1]],
            &model->value[step->out]);
    return job;
}

rates_work attention_work(const vme_kernels *kernels, const vme_model *model, const model_step *step,
                          model_algorithm algorithm)
{
    const attention job = layout_of(kernels, model, step);
    return algorithm_of(algorithm)->work(&job, &kernels->gemm.of[VME_FLOAT32]);
}

int64_t attention_scratch(const vme_model *model, model_step *step)
{
    const attention job = layout_of(model->kernels, model, step);
    step->slots = (int)min(min(job.blocks, vme_threads()), VME_SLOTS_MAX);
    return algorithm_of(step->algorithm)->floats(&job, step->slots) * (int64_t)sizeof(float);
}

static bool is_matrix(const model_value *value, int64_t rows, int64_t columns)
{
    return value->dtype == VME_FLOAT32 && value->rank >= 2 && size_from_end(value, 2) == rows
           && size_from_end(value, 1) == columns && !value->channels_last;
}

vme_status model_make_attention(model_preparation *preparation, uint32_t number, const model_node_record *node,
                                const uint32_t *operands, model_step *step, int step_number)
{
    (void)operands, (void)step_number;
    vme_model *model = preparation->model;
    step->run = attention_run;
    for (int i = 0; i < 3; i++)
        if (step->operand[i] < 0)
            return MODEL_WRONG(number, "has no operand %d", i);
    model_value *q = &model->value[step->operand[0]], *k = &model->value[step->operand[1]],
                *v = &model->value[step->operand[2]], *out = &model->value[step->out];
    if (node->inputs > 4 || (step->p[1] != 0 && step->p[1] != 1) || q->rank < 2 || k->rank < 2 || v->rank < 2
        || out->rank < 2 || !is_matrix(q, size_from_end(out, 2), size_from_end(k, 2))
        || !is_matrix(k, size_from_end(q, 1), size_from_end(v, 2))
        || !is_matrix(v, size_from_end(k, 1), size_from_end(out, 1))
        || !is_matrix(out, size_from_end(q, 2), size_from_end(v, 1)) || size_from_end(k, 1) > MODEL_ROW_MAX)
        return MODEL_WRONG(number, "has q, k or v that are not float32 matrices of matching sizes");
    int64_t shape[VME_RANK_MAX], strides[VME_RANK_MAX];
    vme_tensor result = model_tensor(model, step->out, NULL), tensors[4];
    for (int i = 0; i < 4; i++)
        if (step->operand[i] >= 0) {
            model->value[step->operand[i]].plain = true;
            if (model_root(model, step->operand[i]) == model_root(model, step->out))
                return MODEL_WRONG(number, "has a result that overlaps an operand");
            tensors[i] = model_tensor(model, step->operand[i], NULL);
        }
    out->plain = true;
    for (int i = 0; i < 3; i++)
        if (strides_of(&tensors[i], &result, strides) != VME_OK)
            return MODEL_WRONG(number, "has operands and a result with different numbers of matrices");
    memcpy(shape, result.shape, sizeof *shape * (size_t)result.rank);
    shape[result.rank - 1] = size_from_end(k, 1);
    result.shape = shape;
    if (step->operand[3] >= 0) {
        const model_value *addend = &model->value[step->operand[3]];
        if (addend->dtype != VME_FLOAT32 || addend->rank < 1 || addend->channels_last
            || size_from_end(addend, 1) != size_from_end(k, 1)
            || (size_from_end(addend, 1) > 1 && addend->strides[addend->rank - 1] != sizeof(float))
            || vme_broadcast_strides(&tensors[3], &result, strides) != VME_OK)
            return MODEL_WRONG(number, "has an addend of another shape or dtype");
    }
    attention sizes;
    return lay_out(&sizes, &model->kernels->gemm.of[VME_FLOAT32], q, k, out)
               ? VME_OK
               : vme_fail(VME_NO_MEMORY, "the values of this model are too large");
}
