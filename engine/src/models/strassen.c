/* 1x1 convolutions by Strassen's algorithm, in Winograd's form (Higham, Accuracy and Stability of Numerical Algorithms,
 * chapter 23): pixels A and weights B are each divided into quarters; 7 products of quarters and 15 sums replace 8
 * products.
 *
 *     S1 = A21 + A22   T1 = B12 - B11     P1 = A11 B11   P5 = S1 T1     C11 = P1 + P2
 *     S2 = S1 - A11    T2 = B22 - T1      P2 = A12 B21   P6 = S2 T2     C12 = P1 + P6 + P5 + P3
 *     S3 = A11 - A21   T3 = B22 - B12     P3 = S4 B22    P7 = S3 T3     C21 = P1 + P6 + P7 - P4
 *     S4 = A12 - S2    T4 = T2 - B21      P4 = A22 T4                   C22 = P1 + P6 + P7 + P5
 *
 * The sums of the weights are packed, which takes 7/4 of the memory. The sum over channels goes by blocks, each halved.
 * The pixels' sums of one block are computed in scratch memory for all its products. The columns of a pair of slivers
 * are the two halves of B, so that a tile of each quarter of the result is computed from products in L1 and written
 * once.
 *
 * If the number of rows is odd, the missing row of the lower half counts as zeros, as does the missing channel of an
 * odd block. A sliver without a partner is computed by the direct algorithm.
 *
 * Packed weights: for each block and pair B11, B21, T2, T1, B22, T3, -T4, in order of use, each with as many rows as
 * the first half of the longest block; for an unpaired last sliver as many rows as there are channels. */
#include "models/convolution.h"
#include "models/file.h"
#include "models/model.h"
#include "models/rates.h"
#include "models/step.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/machine.h"
#include "runtime/numbers.h"

#include "vme_search.h"

#include <string.h>

enum {
    LINE_FLOATS = 16, /* floats of a cache line */
    PIECES_MIN = 4,   /* pieces of work for each thread, at least */
    ROWS_MAX = 14,
    COLUMNS_MAX = 32,
    PRODUCTS = 7,
    SUMS = 4,
};
enum { B11, B21, T2, T1, B22, T3, MINUS_T4 };
enum { S1, S2, S3, S4 };

static const vme_gemm_kernel *kernel_of(const vme_kernels *kernels) { return &kernels->gemm.of[VME_FLOAT32]; }

typedef struct block_division {
    int64_t channels, blocks, max_half; /* max_half: length of the first half of the longest block */
    int64_t columns, pairs;
    bool unpaired; /* the last sliver has no partner */
} block_division;

static block_division division_of(const vme_kernels *kernels, int64_t outputs, int64_t channels)
{
    block_division division = {.channels = channels, .columns = kernel_of(kernels)->columns};
    int64_t slivers = ceil_div(outputs, division.columns);
    division.pairs = slivers / 2;
    division.unpaired = slivers % 2 == 1;
    division.blocks = ceil_div(channels, 2 * STRASSEN_HALF_MAX);
    division.max_half = ceil_div(ceil_div(channels, division.blocks), 2);
    return division;
}

static int64_t block_begin(const block_division *division, int64_t block)
{
    return division->channels * block / division->blocks;
}
static int64_t block_length(const block_division *division, int64_t block)
{
    return block_begin(division, block + 1) - block_begin(division, block);
}
static int64_t part_floats(const block_division *division) { return division->max_half * division->columns; }
/* Offset in floats of a pair's weights. Those of the unpaired sliver follow the pairs of all blocks. */
static int64_t pair_offset(const block_division *division, int64_t block, int64_t pair)
{
    return (block * division->pairs + pair) * PRODUCTS * part_floats(division);
}
static int64_t unpaired_offset(const block_division *division) { return pair_offset(division, division->blocks, 0); }

static bool possible(const vme_kernels *kernels, const model_value *in, const model_value *addend,
                     const model_value *out, const model_step *step)
{
    return step->p[GROUPS] == 1 && convolution_is_product(in, addend, out, step) && in->c >= 2
           && out->c > kernel_of(kernels)->columns;
}

/* ---- packing */
static int64_t packed_floats(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels)
{
    (void)step;
    const block_division division = division_of(kernels, outputs, channels);
    return unpaired_offset(&division) + (division.unpaired ? channels * division.columns : 0);
}

static float weight(const char *weights, const block_division *division, int64_t outputs, int64_t output,
                    int64_t channel)
{
    float found = 0;
    if (output < outputs)
        memcpy(&found, weights + (output * division->channels + channel) * 4, 4);
    return found;
}

static void pack(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels,
                 const char *weights, float *packed)
{
    (void)step;
    const block_division division = division_of(kernels, outputs, channels);
    for (int64_t block = 0; block < division.blocks; block++) {
        const int64_t begin = block_begin(&division, block), length = block_length(&division, block),
                      first = ceil_div(length, 2);
        for (int64_t pair = 0; pair < division.pairs; pair++)
            for (int64_t column = 0; column < division.columns; column++) {
                const int64_t left = 2 * pair * division.columns + column, right = left + division.columns;
                float *to = packed + pair_offset(&division, block, pair) + column;
                for (int64_t k = 0; k < first; k++, to += division.columns) {
                    const bool lower = first + k < length;
                    const float b11 = weight(weights, &division, outputs, left, begin + k),
                                b12 = weight(weights, &division, outputs, right, begin + k);
                    const float b21 = lower ? weight(weights, &division, outputs, left, begin + first + k) : 0;
                    const float b22 = lower ? weight(weights, &division, outputs, right, begin + first + k) : 0;
                    const float t1 = b12 - b11, t2 = b22 - t1,
                                matrices[PRODUCTS] = {b11, b21, t2, t1, b22, b22 - b12, b21 - t2};
                    for (int i = 0; i < PRODUCTS; i++)
                        to[i * part_floats(&division)] = matrices[i];
                }
            }
    }
    for (int64_t k = 0; division.unpaired && k < channels; k++)
        for (int64_t column = 0; column < division.columns; column++)
            packed[unpaired_offset(&division) + k * division.columns + column] =
                weight(weights, &division, outputs, 2 * division.pairs * division.columns + column, k);
}

/* ---- a block */
typedef struct strassen {
    vme_context *context;
    const model_step *step;
    const vme_gemm_kernel *kernel;
    block_division division;
    const float *in, *addend; /* at the block's first channel; addend may be NULL */
    float *out, *sums;
    int64_t in_row, out_row, addend_row, sums_row, sum_stride; /* in floats; sum_stride: from one sum to the next */
    int64_t rows, upper, panel, panels, outputs;               /* upper: rows of the upper half */
    int64_t block, length, first_half; /* the current block, its channels, and those of its first half */
    int64_t first_panel, group_panels; /* the panels whose sums are present: the first one, and their maximum number */
    int64_t piece_panels, pieces;      /* panels of a piece of work, and pieces of each pair */
} strassen;

static int64_t padded_half(const block_division *division)
{
    return ceil_div(division->max_half, LINE_FLOATS) * LINE_FLOATS + LINE_FLOATS;
}

static void divide_rows(strassen *job, int64_t rows)
{
    const int64_t pair_rows = 2 * job->kernel->rows, leftover = rows % pair_rows;
    job->rows = rows;
    job->upper = leftover <= STRASSEN_WITHOUT_MAX ? rows / pair_rows * job->kernel->rows + leftover : ceil_div(rows, 2);
    job->panel = leftover <= STRASSEN_WITHOUT_MAX ? job->kernel->rows
                                                  : ceil_div(job->upper, ceil_div(job->upper, job->kernel->rows));
    job->panels = ceil_div(job->upper, job->panel);
    job->group_panels = ceil_div(job->panels, ceil_div(job->panels, STRASSEN_PANELS_MAX));
    job->sums_row = padded_half(&job->division);
    job->sum_stride = job->group_panels * job->panel * job->sums_row;
}

int64_t strassen_extra_bytes(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels)
{
    const int64_t columns = kernel_of(kernels)->columns;
    return (packed_floats(kernels, step, outputs, channels) - ceil_div(outputs, columns) * columns * channels)
           * (int64_t)sizeof(float);
}

/* Each element of a sum counts as a Winograd point: sums of pixels, and the additions of each block to the result. */
static rates_work work(const vme_kernels *kernels, const model_value *in, const model_value *out,
                       const model_step *step)
{
    strassen job = {.kernel = kernel_of(kernels), .division = division_of(kernels, out->c, in->c)};
    const int64_t rows = out->n * out->h * out->w;
    divide_rows(&job, rows);
    const int64_t whole_panels = job.upper / job.panel, last_rows = job.upper % job.panel;
    const double tile_rows = (double)whole_panels * rates_tile_rows(job.kernel, job.panel)
                             + (last_rows > 0 ? rates_tile_rows(job.kernel, last_rows) : 0);
    return (rates_work){{
        [VME_RATE_PRODUCTS] = tile_rows * (double)(step->k * job.division.columns)
                              * ((double)PRODUCTS / 2 * (double)job.division.pairs + (job.division.unpaired ? 2 : 0)),
        [VME_RATE_WEIGHTS] = (double)packed_floats(kernels, step, out->c, in->c) * sizeof(float),
        [VME_RATE_POINTS_4] = (double)rows * (double)(in->c + out->c * job.division.blocks),
        [VME_RATE_BYTES] = (double)strassen_extra_bytes(kernels, step, out->c, in->c),
    }};
}

static int64_t scratch(const vme_model *model, model_step *step)
{
    const model_value *in = &model->value[step->in], *out = &model->value[step->out];
    strassen job = {.kernel = kernel_of(model->kernels), .division = division_of(model->kernels, out->c, in->c)};
    divide_rows(&job, out->n * out->h * out->w);
    step->slots = 1;
    return SUMS * job.sum_stride * (int64_t)sizeof(float);
}

/* Computes the sums of `k` channels of a row. `restrict` lets the compiler vectorize. */
static void add_quarters(int64_t k, const float *restrict a11, const float *restrict a12, const float *restrict a21,
                         const float *restrict a22, float *restrict s1, float *restrict s2, float *restrict s3,
                         float *restrict s4)
{
    for (int64_t i = 0; i < k; i++) {
        const float sum1 = a21[i] + a22[i], sum2 = sum1 - a11[i];
        s1[i] = sum1;
        s2[i] = sum2;
        s3[i] = a11[i] - a21[i];
        s4[i] = a12[i] - sum2;
    }
}

static vme_status add_rows(void *argument, int64_t begin, int64_t end)
{
    const strassen *job = argument;
    const int64_t first = job->first_half, second = job->length - first,
                  pair_floats = PRODUCTS * part_floats(&job->division);
    const float *next_weights = job->step->weights + pair_offset(&job->division, job->block, 0);
    for (int64_t i = begin; i < end && !vme_stopping(job->context); i++) {
        const int64_t row = job->first_panel * job->panel + i;
        const float *a11 = job->in + row * job->in_row, *a12 = a11 + first;
        const bool lower = job->upper + row < job->rows;
        const float *a21 = lower ? job->in + (job->upper + row) * job->in_row : NULL;
        for (int64_t at = pair_floats * i / job->upper;
             job->first_panel == 0 && at < pair_floats * (i + 1) / job->upper; at += LINE_FLOATS)
            __builtin_prefetch(next_weights + at, 0, 2);
        float *s1 = job->sums + i * job->sums_row, *s2 = s1 + job->sum_stride, *s3 = s2 + job->sum_stride,
              *s4 = s3 + job->sum_stride;
        if (lower)
            add_quarters(second, a11, a12, a21, a21 + first, s1, s2, s3, s4);
        for (int64_t k = lower ? second : 0; k < first; k++) {
            s1[k] = lower ? a21[k] : 0;
            s2[k] = s1[k] - a11[k];
            s3[k] = -s2[k];
            s4[k] = (k < second ? a12[k] : 0) - s2[k];
        }
    }
    return VME_OK;
}

/* A tile of a quarter of the result. */
typedef struct quarter {
    float *c;
    const float *addend, *bias;
    int64_t rows, columns;
} quarter;

static quarter quarter_of(const strassen *job, int64_t row, int64_t rows, int64_t sliver)
{
    const int64_t column = sliver * job->division.columns;
    return (quarter){
        .c = job->out + row * job->out_row + column,
        .addend = job->addend == NULL ? NULL : job->addend + row * job->addend_row + column,
        .bias = job->step->bias + column,
        .rows = min(rows, job->rows - row),
        .columns = min(job->division.columns, job->outputs - column),
    };
}

/* State shared by the products of a tile. */
typedef struct pair_tiles {
    const strassen *job;
    const float *b; /* of the pair, in this block */
    vme_gemm_layer layer;
} pair_tiles;

static const float zero_bias[COLUMNS_MAX];
static const vme_bounds unbounded = {-__builtin_inff(), __builtin_inff()};

static vme_gemm_tile tile_of(const strassen *job, const quarter *to, int64_t k)
{
    return (vme_gemm_tile){.k = k,
                           .c = (char *)to->c,
                           .c_row = job->out_row * 4,
                           .rows = (int)to->rows,
                           .columns = (int)to->columns,
                           .accumulate = job->block > 0,
                           .far = true};
}

/* Sets bias, addend and bounds of the last addition of the last block. */
static void set_epilogue(const strassen *job, const quarter *to, vme_gemm_layer *layer)
{
    if (job->block + 1 < job->division.blocks)
        return;
    layer->bias = to->bias;
    layer->addend = (const char *)to->addend;
    layer->addend_row = job->addend_row * 4;
    layer->bounds = job->step->bounds;
}

/* x += by, or x = by if x is not initialized: a tile without products, on data in L1. */
static void add_tile(const strassen *job, float *x, int64_t x_row, int64_t rows, int64_t columns, const float *addend,
                     bool initialized)
{
    const vme_gemm_tile tile = {
        .c = (char *)x, .c_row = x_row * 4, .rows = (int)rows, .columns = (int)columns, .accumulate = initialized};
    const vme_gemm_layer layer = {.runs = 1,
                                  .bias = zero_bias,
                                  .addend = (const char *)addend,
                                  .addend_row = job->division.columns * 4,
                                  .bounds = unbounded};
    job->kernel->layer_tile(&tile, &layer);
}

static void multiply(pair_tiles *tiles, const float *a, int64_t a_row, const float *b, vme_gemm_tile *tile,
                     const vme_gemm_layer *layer)
{
    tile->a = (const char *)a;
    tile->a_row = a_row * 4;
    tile->b = (const char *)b;
    tiles->job->kernel->layer_tile(tile, layer);
    tiles->layer.coming += tiles->layer.coming_step * tile->k;
}

/* x = (or, if x is initialized, x +=) a sum of the pixels times matrix `b` of the packed weights. */
static void product(pair_tiles *tiles, const float *a, int64_t a_row, int b, int64_t rows, float *x, bool initialized)
{
    const block_division *division = &tiles->job->division;
    vme_gemm_tile tile = {.k = tiles->job->first_half,
                          .c = (char *)x,
                          .c_row = division->columns * 4,
                          .rows = (int)rows,
                          .columns = (int)division->columns,
                          .accumulate = initialized};
    multiply(tiles, a, a_row, tiles->b + b * part_floats(division), &tile, &tiles->layer);
}

/* Writes x plus this product to the quarter's tile; with k = 0 there is no product. */
static void last_product(pair_tiles *tiles, const float *a, int64_t a_row, int b, int64_t k, const quarter *to,
                         const float *x)
{
    const strassen *job = tiles->job;
    vme_gemm_tile tile = tile_of(job, to, k);
    vme_gemm_layer layer = tiles->layer;
    layer.bias = zero_bias;
    layer.bounds = unbounded;
    set_epilogue(job, to, &layer);
    if (layer.addend != NULL) { /* a tile has room for one addend */
        add_tile(job, to->c, job->out_row, to->rows, to->columns, x, tile.accumulate);
        tile.accumulate = true;
    } else {
        layer.addend = (const char *)x;
        layer.addend_row = job->division.columns * 4;
    }
    multiply(tiles, a, a_row, tiles->b + b * part_floats(&job->division), &tile, &layer);
}

/* The tiles of all four quarters for the rows of one panel and the columns of one pair. */
static void compute_quarters(pair_tiles *tiles, int64_t pair, int64_t panel)
{
    const strassen *job = tiles->job;
    const int64_t top = panel * job->panel, rows = min(job->panel, job->upper - top), down = job->upper + top,
                  second = job->length - job->first_half;
    const int64_t columns = job->division.columns;
    const quarter c11 = quarter_of(job, top, rows, 2 * pair), c12 = quarter_of(job, top, rows, 2 * pair + 1);
    const quarter c21 = quarter_of(job, down, rows, 2 * pair), c22 = quarter_of(job, down, rows, 2 * pair + 1);
    const float *a11 = job->in + top * job->in_row, *a12 = a11 + job->first_half,
                *sums = job->sums + (panel - job->first_panel) * job->panel * job->sums_row;
    enum { FLOATS_MAX = ROWS_MAX * COLUMNS_MAX };
    float x[FLOATS_MAX] __attribute__((aligned(VME_ALIGNMENT))), y[FLOATS_MAX] __attribute__((aligned(VME_ALIGNMENT)));
    float sum[FLOATS_MAX] __attribute__((aligned(VME_ALIGNMENT)));
    product(tiles, a11, job->in_row, B11, rows, x, false);
    last_product(tiles, a12, job->in_row, B21, second, &c11, x);
    product(tiles, sums + S2 * job->sum_stride, job->sums_row, T2, rows, x, true);
    product(tiles, sums + S1 * job->sum_stride, job->sums_row, T1, rows, y, false);
    add_tile(job, sum, columns, rows, columns, x, false);
    add_tile(job, sum, columns, rows, columns, y, true);
    last_product(tiles, sums + S4 * job->sum_stride, job->sums_row, B22, job->first_half, &c12, sum);
    if (c21.rows <= 0)
        return;
    product(tiles, sums + S3 * job->sum_stride, job->sums_row, T3, rows, x, true);
    last_product(tiles, job->in + down * job->in_row + job->first_half, job->in_row, MINUS_T4, second, &c21, x);
    add_tile(job, y, columns, c22.rows, columns, x, true);
    last_product(tiles, a11, job->in_row, B11, 0, &c22, y);
}

/* The tiles of the unpaired sliver, in the upper and the lower half, for the rows of one panel. */
static void compute_unpaired(pair_tiles *tiles, int64_t panel)
{
    const strassen *job = tiles->job;
    const float *b = job->step->weights + unpaired_offset(&job->division)
                     + block_begin(&job->division, job->block) * job->division.columns;
    for (int half = 0; half < 2; half++) {
        const int64_t row = panel * job->panel, rows = min(job->panel, job->upper - row), at = half * job->upper + row;
        const quarter to = quarter_of(job, at, rows, 2 * job->division.pairs);
        vme_gemm_tile tile = tile_of(job, &to, job->length);
        vme_gemm_layer layer = tiles->layer;
        if (to.rows <= 0)
            continue;
        set_epilogue(job, &to, &layer);
        multiply(tiles, job->in + at * job->in_row, job->in_row, b, &tile, &layer);
    }
}

static vme_status compute_pieces(void *argument, int64_t begin, int64_t end)
{
    const strassen *job = argument;
    for (int64_t i = begin; i < end; i++) {
        const int64_t pair = i / job->pieces, first = job->first_panel + i % job->pieces * job->piece_panels;
        const int64_t last = min(min(job->panels, job->first_panel + job->group_panels), first + job->piece_panels);
        pair_tiles tiles = {
            .job = job, .b = job->step->weights + pair_offset(&job->division, job->block, pair), .layer = {.runs = 1}};
        tiles.layer.coming = (const char *)(tiles.b + PRODUCTS * part_floats(&job->division));
        tiles.layer.coming_step = min(VME_ALIGNMENT, ceil_div(job->division.columns * 4, max(1, last - first)));
        for (int64_t panel = first; panel < last && !vme_stopping(job->context); panel++)
            if (pair < job->division.pairs)
                compute_quarters(&tiles, pair, panel);
            else
                compute_unpaired(&tiles, panel);
    }
    return VME_OK;
}

static vme_status run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    const model_value *in = &model->value[step->in], *out = &model->value[step->out];
    const model_value *addend = step->addend < 0 ? NULL : &model->value[step->addend];
    strassen job = {
        .context = context,
        .step = step,
        .kernel = kernel_of(model->kernels),
        .division = division_of(model->kernels, out->c, in->c),
        .in_row = in->pixel_stride,
        .out = model_pixel(out, arena, 0, 0, 0),
        .out_row = out->pixel_stride,
        .addend = addend == NULL ? NULL : model_pixel(addend, arena, 0, 0, 0),
        .addend_row = addend == NULL ? 0 : addend->pixel_stride,
        .sums = (float *)(arena + model->value[step->scratch].offset),
        .outputs = out->c,
    };
    divide_rows(&job, out->n * out->h * out->w);
    const int64_t slivers = job.division.pairs + job.division.unpaired, threads = vme_parallel_threads(),
                  min_pieces = threads == 1 ? 1 : PIECES_MIN * threads;
    job.pieces = min(job.group_panels, ceil_div(min_pieces, slivers));
    job.piece_panels = ceil_div(job.group_panels, job.pieces);
    job.pieces = ceil_div(job.group_panels, job.piece_panels);
    vme_status status = VME_OK;
    for (; job.block < job.division.blocks; job.block++) {
        job.in = model_pixel(in, arena, 0, 0, 0) + block_begin(&job.division, job.block);
        job.length = block_length(&job.division, job.block);
        job.first_half = ceil_div(job.length, 2);
        for (job.first_panel = 0; status == VME_OK && job.first_panel < job.panels;
             job.first_panel += job.group_panels) {
            const int64_t rows = min(job.upper - job.first_panel * job.panel, job.group_panels * job.panel);
            status = vme_parallel_apart(context, rows, job.kernel->work / 64 / job.length + 1, add_rows, &job);
            if (status == VME_OK)
                status = vme_parallel_apart(context, slivers * job.pieces, 1, compute_pieces, &job);
        }
    }
    return status;
}

const convolution_algorithm convolution_strassen = {"strassen", possible, work, scratch, packed_floats, pack, run};
