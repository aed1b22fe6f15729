/* Products of rows with constant weights stored as float16, or as 8- or 4-bit integers in blocks with scales and zero
 * points. Sums are in float32.
 *
 * Operands: 0 rows [rows, k], float32 or float16, as is the result [rows, columns]; 1 weights, [slivers, k, 32] of
 * float16, uint8 [slivers, k / 4, 128] or, for 4 bits, uint8 [slivers, k / 8, 128] (narrow_kernels.h), with any content
 * in missing columns; 2 scales of integers, float32 [slivers, k / block, 32]; 3 zero points likewise, or absent if all
 * are NARROW_ZERO; 4 a bias of the columns, float32, or absent.
 *
 * Few rows read the stored weights directly, once: the rows are converted to 24-bit integers in parts of a block, so
 * that products with integers are sums of integers. For more rows, the weights of one part of the sum at a time are
 * converted to float32, which the tiles of a matrix product then read from L1. */
#include "models/narrow_products.h"
#include "models/file.h"
#include "models/makers.h"
#include "models/model.h"
#include "models/narrow_kernels.h"
#include "models/preparation.h"
#include "models/step.h"
#include "models/tensors.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/numbers.h"
#include "runtime/pool.h"

#include <string.h>

enum {
    SUM_PART = 256,   /* elements of a sum whose weights are converted to float32 at a time */
    FEW_ROWS_MAX = 8, /* maximum rows that read the stored weights directly */
    PIECE = 1 << 14,  /* elements between two checks of the stop flag */
};

typedef struct narrow_product {
    vme_context *context;
    const vme_kernels *kernels;
    narrow_sliver sliver; /* without the addresses, which differ between slivers */
    const uint8_t *weights;
    const float *scales, *zeros, *bias; /* bias NULL: none */
    int64_t rows, columns, slivers, blocks, sliver_bytes, block_parts;
    bool is_float16; /* of rows and result */
    char *out;
    const float *a;        /* the rows in float32 */
    narrow_rows quantized; /* the rows as integers, if there are few and weights are integers */
    float *slots;
    int64_t slot_floats;
} narrow_product;

static void lay_out(narrow_product *job, const vme_model *model, const model_step *step)
{
    const model_value *in = &model->value[step->operand[0]], *out = &model->value[step->out];
    job->rows = in->shape[0], job->columns = out->shape[1];
    job->sliver.kind = (narrow_kind)step->p[NARROW_KIND];
    job->sliver.k = in->shape[1];
    job->sliver.block = step->p[NARROW_BLOCK];
    job->is_float16 = in->dtype == VME_FLOAT16;
    job->slivers = ceil_div(job->columns, NARROW_COLUMNS);
    job->sliver.zero = (float)step->p[NARROW_ZERO];
    job->blocks = job->sliver.kind == NARROW_HALF ? 0 : job->sliver.k / job->sliver.block;
    job->block_parts = ceil_div(job->sliver.block, NARROW_PART);
    job->quantized.row = 4 * job->sliver.k;
    job->quantized.parts = job->blocks * job->block_parts;
    job->sliver_bytes = job->sliver.kind == NARROW_HALF    ? 2 * job->sliver.k * NARROW_COLUMNS
                        : job->sliver.kind == NARROW_BYTES ? job->sliver.k * NARROW_COLUMNS
                                                           : job->sliver.k / 2 * NARROW_COLUMNS;
    job->slot_floats = (job->rows + SUM_PART) * NARROW_COLUMNS;
}

/* ---- a sliver of columns */
/* Sums of all rows, [rows][32], by tiles; `weights` holds one converted part. */
static void multiply_tiles(const narrow_product *job, const narrow_sliver *sliver, float *weights, float *sums)
{
    const vme_gemm_kernel *kernel = &job->kernels->gemm.of[VME_FLOAT32];
    const int64_t k = sliver->k, panel = ceil_div(job->rows, ceil_div(job->rows, kernel->rows));
    for (int64_t k0 = 0, count; k0 < k; k0 += count) {
        count = min(SUM_PART, k - k0);
        job->kernels->narrow->unpack(sliver, k0, count, kernel->columns, weights);
        for (int64_t column = 0; column < NARROW_COLUMNS; column += kernel->columns)
            for (int64_t row = 0; row < job->rows; row += panel) {
                if (vme_stopping(job->context))
                    return;
                const vme_gemm_tile tile = {.k = count,
                                            .a = (const char *)(job->a + row * k + k0),
                                            .a_row = k * 4,
                                            .b = (const char *)(weights + column * count),
                                            .c = (char *)(sums + row * NARROW_COLUMNS + column),
                                            .c_row = NARROW_COLUMNS * 4,
                                            .rows = (int)min(panel, job->rows - row),
                                            .columns = kernel->columns,
                                            .accumulate = k0 > 0};
                const vme_gemm_layer layer = {.runs = 1, .coming = (const char *)weights};
                kernel->layer_tile(&tile, &layer);
            }
    }
}

static void compute_sliver(const narrow_product *job, int64_t number, float *slot)
{
    narrow_sliver sliver = job->sliver;
    const int64_t columns = min(NARROW_COLUMNS, job->columns - number * NARROW_COLUMNS),
                  block_offset = number * job->blocks * NARROW_COLUMNS;
    float *sums = slot, *weights = slot + job->rows * NARROW_COLUMNS;
    sliver.weights = job->weights + number * job->sliver_bytes;
    if (sliver.kind != NARROW_HALF) {
        sliver.scales = job->scales + block_offset;
        sliver.zeros = job->zeros == NULL ? NULL : job->zeros + block_offset;
    }
    if (job->rows > FEW_ROWS_MAX)
        multiply_tiles(job, &sliver, weights, sums);
    for (int64_t row = 0; row < job->rows && job->rows <= FEW_ROWS_MAX && !vme_stopping(job->context);
         row += NARROW_ROWS) {
        const int count = (int)min(NARROW_ROWS, job->rows - row);
        if (sliver.kind == NARROW_HALF) {
            job->kernels->narrow->half_rows(count, &sliver, job->a + row * sliver.k, sliver.k,
                                            sums + row * NARROW_COLUMNS);
            continue;
        }
        narrow_rows quantized = job->quantized;
        quantized.numbers += row * quantized.row;
        quantized.scales += row * quantized.parts;
        quantized.sums += row * quantized.parts;
        job->kernels->narrow->rows(count, &sliver, &quantized, sums + row * NARROW_COLUMNS);
    }
    vme_loop1 *to_half = job->kernels->elementwise.cast[VME_FLOAT32][VME_FLOAT16];
    for (int64_t row = 0; row < job->rows && !vme_stopping(job->context); row++) {
        float *from = sums + row * NARROW_COLUMNS;
        const int64_t position = row * job->columns + number * NARROW_COLUMNS;
        for (int64_t c = 0; job->bias != NULL && c < columns; c++)
            from[c] += job->bias[number * NARROW_COLUMNS + c];
        if (job->is_float16)
            to_half(columns, (const char *)from, 4, job->out + position * 2, 2);
        else
            memcpy(job->out + position * 4, from, (size_t)columns * 4);
    }
}

static void compute_slivers(void *argument, int64_t slot, vme_items *items)
{
    const narrow_product *job = argument;
    for (int64_t number; vme_item_next(items, &number);)
        compute_sliver(job, number, job->slots + slot * job->slot_floats);
}

/* ---- the step */
/* The number of rows that are converted to integers: none if there are many rows or if weights are float16. */
static int64_t quantized_row_count(const narrow_product *job)
{
    return job->rows <= FEW_ROWS_MAX && job->sliver.kind != NARROW_HALF ? job->rows : 0;
}

static int64_t scratch_floats(const narrow_product *job)
{
    return (job->is_float16 ? job->rows * job->sliver.k : 0)
           + quantized_row_count(job) * (job->sliver.k + 2 * job->quantized.parts);
}

/* Converts the rows to integers in `scratch` and sets job->quantized. */
static void quantize_rows(narrow_product *job, float *scratch)
{
    const int64_t rows = quantized_row_count(job), block = job->sliver.block;
    uint8_t *numbers = (uint8_t *)(void *)scratch;
    float *scales = scratch + rows * job->sliver.k, *sums = scales + rows * job->quantized.parts;
    job->quantized.numbers = numbers, job->quantized.scales = scales, job->quantized.sums = sums;
    for (int64_t row = 0, part = 0; row < rows; row++) {
        const float *from = job->a + row * job->sliver.k;
        uint8_t *to = numbers + row * job->quantized.row;
        for (int64_t k = 0; k < job->sliver.k && !vme_stopping(job->context); k += block)
            for (int64_t offset = 0, count; offset < block; offset += count, part++) {
                count = min(NARROW_PART, block - offset);
                job->kernels->narrow->split(count, from + k + offset, to, scales + part, sums + part);
                to += 4 * count;
            }
    }
}

static vme_status narrow_product_run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    const vme_tensor in = model_tensor(model, step->operand[0], arena);
    narrow_product job = {
        .context = context,
        .kernels = model->kernels,
        .weights = (const uint8_t *)model_tensor(model, step->operand[1], arena).data,
        .out = model_tensor(model, step->out, arena).data,
    };
    const float **optional[] = {&job.scales, &job.zeros, &job.bias};
    for (int i = 0; i < 3; i++)
        if (step->operand[2 + i] >= 0)
            *optional[i] = (const float *)(const void *)model_tensor(model, step->operand[2 + i], arena).data;
    lay_out(&job, model, step);
    const int64_t elements = job.rows * job.sliver.k;
    float *scratch = (float *)(void *)(arena + model->value[step->scratch].offset);
    job.a = (const float *)(const void *)in.data;
    if (job.is_float16) {
        job.a = scratch;
        vme_loop1 *widen = model->kernels->elementwise.cast[VME_FLOAT16][VME_FLOAT32];
        for (int64_t offset = 0; offset < elements && !vme_stopping(context); offset += PIECE)
            widen(min(PIECE, elements - offset), (const char *)in.data + 2 * offset, 2, (char *)(scratch + offset), 4);
        scratch += elements;
    }
    quantize_rows(&job, scratch);
    job.slots = (float *)(void *)(arena + model->value[step->scratch].offset)
                + ceil_div(scratch_floats(&job), VME_ALIGNMENT) * VME_ALIGNMENT;
    return vme_parallel_slots(context, step->slots, job.slivers, compute_slivers, &job);
}

bool model_is_narrow_product(const model_step *step) { return step->run == narrow_product_run; }

int64_t narrow_product_scratch(const vme_model *model, model_step *step)
{
    narrow_product job = {.rows = 0};
    lay_out(&job, model, step);
    step->slots = (int)min(job.slivers, min(vme_threads(), VME_SLOTS_MAX));
    return (ceil_div(scratch_floats(&job), VME_ALIGNMENT) * VME_ALIGNMENT + step->slots * job.slot_floats) * 4;
}

int64_t narrow_product_terms(const vme_model *model, const model_step *step)
{
    return model->value[step->operand[0]].shape[1];
}

/* ---- checks */
static bool is_dense(model_preparation *preparation, int tensor, int dtype, int rank, const int64_t *shape)
{
    if (tensor < 0)
        return true;
    model_value *value = &preparation->model->value[tensor];
    bool fits = value->dtype == dtype && value->rank == rank && !value->channels_last;
    int64_t stride = vme_dtype_size((vme_dtype)value->dtype);
    for (int d = rank - 1; fits && d >= 0; d--) {
        fits = value->shape[d] == shape[d] && (value->shape[d] == 1 || value->strides[d] == stride);
        stride *= value->shape[d];
    }
    value->plain = true;
    return fits;
}

vme_status model_make_narrow_product(model_preparation *preparation, uint32_t number, const model_node_record *node,
                                     const uint32_t *operands, model_step *step, int step_number)
{
    (void)operands, (void)step_number;
    const vme_model *model = preparation->model;
    const model_value *in = &model->value[step->operand[0]], *out = &model->value[step->out];
    const int32_t kind = step->p[NARROW_KIND], block = step->p[NARROW_BLOCK];
    step->run = narrow_product_run;
    const bool integers = kind != NARROW_HALF;
    const int64_t group = kind == NARROW_NIBBLES ? 8 : 4; /* elements packed together */
    if (kind == 1 || kind == 2)
        return MODEL_WRONG(number, "has narrow weights in the layout of an older compiler: compile the model again");
    if (node->inputs > 5 || step->operand[1] < 0 || (integers && kind != NARROW_BYTES && kind != NARROW_NIBBLES)
        || integers != (step->operand[2] >= 0) || (!integers && step->operand[3] >= 0))
        return MODEL_WRONG(number, "has no narrow weights with what they need");
    if (in->rank != 2 || out->rank != 2 || in->shape[0] != out->shape[0] || in->dtype != out->dtype
        || (in->dtype != VME_FLOAT32 && in->dtype != VME_FLOAT16)
        || (integers && (block < group || block % group != 0 || in->shape[1] % block != 0)))
        return MODEL_WRONG(number, "does not multiply rows by blocks of weights");
    const int64_t k = in->shape[1], slivers = ceil_div(out->shape[1], NARROW_COLUMNS);
    const int64_t weights[] = {slivers, integers ? k / group : k, (integers ? 4 : 1) * NARROW_COLUMNS},
                  scales[] = {slivers, integers ? k / block : 0, NARROW_COLUMNS};
    if (!is_dense(preparation, step->operand[0], in->dtype, 2, in->shape)
        || !is_dense(preparation, step->operand[1], integers ? VME_UINT8 : VME_FLOAT16, 3, weights)
        || !is_dense(preparation, step->operand[2], VME_FLOAT32, 3, scales)
        || !is_dense(preparation, step->operand[3], VME_FLOAT32, 3, scales)
        || !is_dense(preparation, step->operand[4], VME_FLOAT32, 1, &out->shape[1])
        || !is_dense(preparation, step->out, out->dtype, 2, out->shape))
        return MODEL_WRONG(number, "has operands whose shapes or dtypes do not match");
    for (int i = 0; i < 5; i++)
        if (step->operand[i] >= 0 && model_root(model, step->operand[i]) == model_root(model, step->out))
            return MODEL_WRONG(number, "has a result that overlaps an operand");
    return VME_OK;
}
