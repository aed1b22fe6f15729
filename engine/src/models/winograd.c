/* Convolutions of 3x3 windows at stride 1 by Winograd's algorithm (Lavin and Gray, CVPR '16): a square of m x m outputs
 * takes (m + 2)^2 products for each pair of channels instead of 9 m^2. Pixels are transformed to points
 * (kernels/winograd.h); each point is one matrix product, of squares by channels with channels by outputs, on the tiles
 * of matrix products; the products are transformed back to pixels, with bias, addend and activation.
 *
 * Squares are processed in blocks whose points stay in L2. If there are enough blocks, each thread processes whole
 * blocks in scratch memory of its own. Otherwise all threads share each block, so that the weights, which exceed the
 * cache if there are few squares, are read once. Results are the same in both cases.
 *
 * Packed weights: for each point slivers of the tile's columns, each with as many rows as there are channels. */
#include "models/winograd.h"
#include "models/convolution.h"
#include "models/file.h"
#include "models/model.h"
#include "models/rates.h"
#include "models/step.h"
#include "models/steps.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/machine.h"
#include "runtime/numbers.h"
#include "runtime/pool.h"

#include "vme_search.h"

#include <string.h>

enum {
    WINDOW = 3,
    SIDE_MAX = 6,
};

static int64_t padded_channels(int64_t channels) { return ceil_div(channels, WINOGRAD_GAP) * WINOGRAD_GAP; }
static const vme_gemm_kernel *gemm_of(const vme_kernels *kernels) { return &kernels->gemm.of[VME_FLOAT32]; }
static int square_of(const model_step *step) { return step->algorithm == CONVOLUTION_WINOGRAD_2 ? 2 : 4; }

/* The kernels support no bounds but those of ReLU. */
static bool possible(const vme_kernels *kernels, const model_value *in, const model_value *addend,
                     const model_value *out, const model_step *step)
{
    (void)kernels, (void)in, (void)addend, (void)out;
    const int32_t *p = step->p;
    return p[GROUPS] == 1 && p[ACTIVATION] != ACTIVATION_CLIP && p[KERNEL_H] == WINDOW && p[KERNEL_W] == WINDOW
           && p[STRIDE_H] == 1 && p[STRIDE_W] == 1 && p[DILATION_H] == 1 && p[DILATION_W] == 1;
}

static rates_work work_of(const vme_kernels *kernels, const model_value *in, const model_value *out, int m)
{
    const vme_gemm_kernel *kernel = gemm_of(kernels);
    const double points = (m + 2) * (m + 2),
                 weights = points * (double)(ceil_div(out->c, kernel->columns) * kernel->columns) * (double)in->c;
    const int64_t squares = out->n * ceil_div(out->h, m) * ceil_div(out->w, m);
    rates_work work = {{[VME_RATE_PRODUCTS] = rates_tile_rows(kernel, squares) * weights,
                        [VME_RATE_WEIGHTS] = weights * sizeof(float)}};
    work.of[m == 2 ? VME_RATE_POINTS_2 : VME_RATE_POINTS_4] = (double)squares * points * (double)(in->c + out->c);
    return work;
}

static rates_work work_2(const vme_kernels *kernels, const model_value *in, const model_value *out,
                         const model_step *step)
{
    (void)step;
    return work_of(kernels, in, out, 2);
}

static rates_work work_4(const vme_kernels *kernels, const model_value *in, const model_value *out,
                         const model_step *step)
{
    (void)step;
    return work_of(kernels, in, out, 4);
}

typedef struct winograd {
    vme_context *context;
    const vme_model *model;
    const model_step *step;
    const vme_gemm_kernel *gemm;
    const struct vme_winograd_kernel *transform;
    const model_value *in, *out, *addend; /* addend may be NULL */
    char *arena, *scratch;
    int64_t m, points;             /* side of a square in pixels, and points of a square */
    int64_t down, across, slivers; /* down, across: squares of an image in both directions */
    int64_t first;                 /* number of the first square that is processed, of down * across * images */
    int64_t squares;               /* number of squares that are processed */
    int64_t block_squares, blocks, slot_floats;
    int64_t max_squares; /* upper bound of a block's squares */
    /* in floats, from a square to the next and from a point to the next */
    int64_t in_square_stride, out_square_stride, in_point_stride, out_point_stride;
    int64_t shared_block; /* the one that all threads compute together */
} winograd;

static void set_point_strides(winograd *job)
{
    job->in_point_stride = job->block_squares * job->in_square_stride + WINOGRAD_GAP;
    job->out_point_stride = job->block_squares * job->out_square_stride + WINOGRAD_GAP;
    job->slot_floats = job->points * (job->in_point_stride + job->out_point_stride);
}

/* Divides `rows` rows of squares into blocks of `block_bytes` bytes of points. */
static void lay_out(winograd *job, const model_value *in, const model_value *out, const model_step *step, int64_t rows,
                    int64_t block_bytes)
{
    job->m = square_of(step);
    job->points = (job->m + 2) * (job->m + 2);
    job->down = ceil_div(out->h, job->m);
    job->across = ceil_div(out->w, job->m);
    job->squares = rows * job->across;
    job->in_square_stride = padded_channels(in->c);
    job->out_square_stride = padded_channels(out->c);
    const int64_t square_bytes =
                      job->points * (job->in_square_stride + job->out_square_stride) * (int64_t)sizeof(float),
                  block_capacity = max(job->gemm->rows, block_bytes / square_bytes);
    job->max_squares = min(job->squares, ceil_div(block_capacity, job->gemm->rows) * job->gemm->rows);
    job->blocks = ceil_div(job->squares, block_capacity);
    job->block_squares = ceil_div(job->squares, job->blocks);
    /* whole tiles in each block */
    job->block_squares = min(job->squares, ceil_div(job->block_squares, job->gemm->rows) * job->gemm->rows);
    job->blocks = ceil_div(job->squares, job->block_squares);
    set_point_strides(job);
}

static int64_t scratch(const vme_model *model, model_step *step)
{
    winograd job = {.gemm = gemm_of(model->kernels)};
    const model_value *out = &model->value[step->out];
    lay_out(&job, &model->value[step->in], out, step, out->n * ceil_div(out->h, square_of(step)), WINOGRAD_BLOCK_BYTES);
    step->slots = (int)min(min(job.blocks, vme_threads()), VME_SLOTS_MAX);
    return step->slots * job.slot_floats * (int64_t)sizeof(float);
}

int64_t winograd_unit(const model_step *step) { return square_of(step); }

int64_t winograd_band_scratch(const vme_model *model, const model_step *step, int64_t rows)
{
    winograd job = {.gemm = gemm_of(model->kernels)};
    lay_out(&job, &model->value[step->in], &model->value[step->out], step, ceil_div(rows, square_of(step)),
            WINOGRAD_BAND_BYTES);
    job.block_squares = job.max_squares;
    set_point_strides(&job);
    return job.slot_floats * (int64_t)sizeof(float);
}

int64_t winograd_padded(const vme_model *model, const model_step *step, int64_t rows)
{
    winograd job = {.gemm = gemm_of(model->kernels)};
    lay_out(&job, &model->value[step->in], &model->value[step->out], step, rows, WINOGRAD_BAND_BYTES);
    const int64_t last = job.squares - (job.blocks - 1) * job.block_squares, tile = job.gemm->rows;
    return ((job.blocks - 1) * ceil_div(job.block_squares, tile) + ceil_div(last, tile)) * tile;
}

static int64_t packed_floats(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels)
{
    int64_t columns = gemm_of(kernels)->columns, side = square_of(step) + 2;
    return ceil_div(outputs, columns) * columns * channels * side * side;
}

/* ---- weights: a window's polynomial at the points of kernels/winograd.h, divided by the factor that the pixels'
 * polynomials omit there */
static int window_points(int m, double rows[SIDE_MAX][WINDOW])
{
    const double four[] = {0, VME_WINOGRAD_A, -VME_WINOGRAD_A, VME_WINOGRAD_B, -VME_WINOGRAD_B}, two[] = {0, 1, -1};
    const double *at = m == 2 ? two : four;
    for (int i = 0; i <= m; i++) {
        double omitted_factor = 1;
        for (int j = 0; j <= m; j++)
            omitted_factor *= i == j ? 1 : at[i] - at[j];
        rows[i][0] = 1 / omitted_factor;
        rows[i][1] = at[i] / omitted_factor;
        rows[i][2] = at[i] * at[i] / omitted_factor;
    }
    rows[m + 1][0] = rows[m + 1][1] = 0;
    rows[m + 1][2] = 1;
    return m + 2;
}

static void pack(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels,
                 const char *weights, float *packed)
{
    enum { COLUMNS_MAX = 32 };
    const int64_t columns = gemm_of(kernels)->columns, slivers = ceil_div(outputs, columns);
    double rows[SIDE_MAX][WINDOW];
    const int side = window_points(square_of(step), rows);
    const int64_t point = slivers * channels * columns;
    for (int64_t first = 0; first < outputs; first += COLUMNS_MAX)
        for (int64_t channel = 0; channel < channels; channel++) {
            float window[WINDOW * WINDOW];
            double half[SIDE_MAX][WINDOW][COLUMNS_MAX], w[WINDOW][WINDOW][COLUMNS_MAX] = {0};
            int64_t count = min(COLUMNS_MAX, outputs - first);
            for (int64_t o = 0; o < count; o++) {
                memcpy(window, weights + ((first + o) * channels + channel) * (int64_t)sizeof window, sizeof window);
                for (int i = 0; i < WINDOW * WINDOW; i++)
                    w[i / WINDOW][i % WINDOW][o] = window[i];
            }
            for (int y = 0; y < side; y++)
                for (int x = 0; x < WINDOW; x++)
                    for (int o = 0; o < COLUMNS_MAX; o++)
                        half[y][x][o] = rows[y][0] * w[0][x][o] + rows[y][1] * w[1][x][o] + rows[y][2] * w[2][x][o];
            for (int y = 0; y < side; y++)
                for (int x = 0; x < side; x++)
                    for (int64_t o = 0; o < ceil_div(count, columns) * columns; o++)
                        packed[(y * side + x) * point + ((first + o) / columns * channels + channel) * columns
                               + (first + o) % columns] =
                            (float)(rows[x][0] * half[y][0][o] + rows[x][1] * half[y][1][o]
                                    + rows[x][2] * half[y][2][o]);
        }
}

/* ---- the three parts of a block */
static int64_t block_begin(const winograd *job, int64_t block) { return block * job->block_squares; }
static int64_t block_count(const winograd *job, int64_t block)
{
    return min(job->block_squares, job->squares - block_begin(job, block));
}
static float *in_points(const winograd *job, int64_t slot) { return (float *)job->scratch + slot * job->slot_floats; }
static float *out_points(const winograd *job, int64_t slot)
{
    return in_points(job, slot) + job->points * job->in_point_stride;
}

/* Transforms squares `begin` to `end` of a block, to points (`inward`) or back. */
static void transform(const winograd *job, int64_t slot, int64_t block, int64_t begin, int64_t end, bool inward)
{
    const int32_t *p = job->step->p;
    const model_value *value = inward ? job->in : job->out, *addend = job->addend;
    vme_winograd_square square = {
        .relu = job->step->bounds.low == 0,
        .channels = value->c,
        .image_row = value->row_stride,
        .image_pixel = value->pixel_stride,
        .point = inward ? job->in_point_stride : job->out_point_stride,
        .bias = job->step->bias,
        .addend_row = addend == NULL ? 0 : addend->row_stride,
        .addend_pixel = addend == NULL ? 0 : addend->pixel_stride,
    };
    for (int64_t s = begin; s < end && !vme_stopping(job->context); s++) {
        int64_t number = job->first + block_begin(job, block) + s, x = number % job->across * job->m,
                y = number / job->across % job->down * job->m, n = number / job->across / job->down;
        if (inward) {
            y -= p[PAD_TOP];
            x -= p[PAD_LEFT];
            square.rows = (int)min(job->m + 2, value->h + value->bottom - y);
            square.columns = (int)min(job->m + 2, value->w + value->right - x);
            square.image = model_pixel(value, job->arena, n, y, x);
            square.points = in_points(job, slot) + s * job->in_square_stride;
            job->transform->in(&square);
        } else {
            square.rows = (int)min(job->m, value->h - y);
            square.columns = (int)min(job->m, value->w - x);
            square.image = model_pixel(value, job->arena, n, y, x);
            square.addend = addend == NULL ? NULL : model_pixel(addend, job->arena, n, y, x);
            square.points = out_points(job, slot) + s * job->out_square_stride;
            job->transform->out(&square);
        }
    }
}

/* Products `begin` to `end` of a block, each of one point with one sliver. */
static void multiply(const winograd *job, int64_t slot, int64_t block, int64_t begin, int64_t end)
{
    const int64_t columns = job->gemm->columns, channels = job->in->c, count = block_count(job, block);
    const int64_t panel = ceil_div(count, ceil_div(count, job->gemm->rows));
    const int64_t part = ceil_div(channels, ceil_div(channels, CONVOLUTION_SUM));
    for (int64_t i = begin; i < end; i++) {
        const int64_t point = i / job->slivers, column = i % job->slivers * columns;
        const float *from = in_points(job, slot) + point * job->in_point_stride;
        float *to = out_points(job, slot) + point * job->out_point_stride + column;
        vme_gemm_tile tile = {
            .a_row = job->in_square_stride * 4,
            .c_row = job->out_square_stride * 4,
            .columns = (int)min(columns, job->out->c - column),
            .far = true,
        };
        vme_gemm_layer layer = {.runs = 1};
        for (int64_t k0 = 0; k0 < channels; k0 += part) {
            tile.k = min(part, channels - k0);
            tile.b = (const char *)(job->step->weights + (i * channels + k0) * columns);
            layer.coming = tile.b + tile.k * columns * 4;
            layer.coming_step = min(VME_ALIGNMENT, ceil_div(columns * 4, ceil_div(count, panel)));
            for (int64_t s = 0; s < count; s += panel, layer.coming += layer.coming_step * tile.k) {
                if (vme_stopping(job->context))
                    return;
                tile.a = (const char *)(from + s * job->in_square_stride + k0);
                tile.c = (char *)(to + s * job->out_square_stride);
                tile.rows = (int)min(panel, count - s);
                job->gemm->layer_tile(&tile, &layer);
            }
            tile.accumulate = true;
        }
    }
}

/* ---- scheduling */
/* One block, by one thread. */
static void compute_block(const winograd *job, int64_t slot, int64_t block)
{
    transform(job, slot, block, 0, block_count(job, block), true);
    multiply(job, slot, block, 0, job->points * job->slivers);
    transform(job, slot, block, 0, block_count(job, block), false);
}

static void compute_blocks(void *argument, int64_t slot, vme_items *blocks)
{
    const winograd *job = argument;
    for (int64_t block; vme_item_next(blocks, &block);)
        compute_block(job, slot, block);
}

static vme_status transform_in_part(void *argument, int64_t begin, int64_t end)
{
    const winograd *job = argument;
    transform(job, 0, job->shared_block, begin, end, true);
    return VME_OK;
}

static vme_status multiply_part(void *argument, int64_t begin, int64_t end)
{
    const winograd *job = argument;
    multiply(job, 0, job->shared_block, begin, end);
    return VME_OK;
}

static vme_status transform_out_part(void *argument, int64_t begin, int64_t end)
{
    const winograd *job = argument;
    transform(job, 0, job->shared_block, begin, end, false);
    return VME_OK;
}

static winograd job_of_band(vme_context *context, const vme_model *model, const model_step *step,
                            const model_band *band, char *slots)
{
    return (winograd){
        .context = context,
        .model = model,
        .step = step,
        .gemm = gemm_of(model->kernels),
        .transform =
            &model->kernels->winograd.of[step->algorithm == CONVOLUTION_WINOGRAD_2 ? VME_WINOGRAD_2 : VME_WINOGRAD_4],
        .in = band->in,
        .out = band->out,
        .addend = band->addend,
        .arena = band->arena,
        .scratch = slots,
        .slivers = ceil_div(band->out->c, gemm_of(model->kernels)->columns),
    };
}

void winograd_band(vme_context *context, const vme_model *model, const model_step *step, const model_band *band)
{
    winograd job = job_of_band(context, model, step, band, band->scratch);
    const int64_t m = square_of(step), begin = band->begin / m;
    lay_out(&job, band->in, band->out, step, ceil_div(band->end, m) - begin, WINOGRAD_BAND_BYTES);
    job.first = (band->n * job.down + begin) * job.across;
    for (int64_t block = 0; block < job.blocks && !vme_stopping(context); block++)
        compute_block(&job, 0, block);
}

static vme_status run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    const model_band whole = model_whole_band(model, step, arena);
    const model_value *in = whole.in, *out = whole.out;
    winograd job = job_of_band(context, model, step, &whole, arena + model->value[step->scratch].offset);
    lay_out(&job, in, out, step, out->n * ceil_div(out->h, square_of(step)), WINOGRAD_BLOCK_BYTES);
    if (step->slots > 1)
        return vme_parallel_slots(context, step->slots, job.blocks, compute_blocks, &job);
    vme_status status = VME_OK;
    for (; status == VME_OK && job.shared_block < job.blocks; job.shared_block++) {
        int64_t count = block_count(&job, job.shared_block), work = job.gemm->work / 8;
        status = vme_parallel_apart(context, count, work / 64 / (job.points * job.in_square_stride) + 1,
                                    transform_in_part, &job);
        if (status == VME_OK)
            status = vme_parallel_apart(context, job.points * job.slivers,
                                        work / (count * in->c * job.gemm->columns) + 1, multiply_part, &job);
        if (status == VME_OK)
            status = vme_parallel_apart(context, count, work / 64 / (job.points * job.out_square_stride) + 1,
                                        transform_out_part, &job);
    }
    return status;
}

const convolution_algorithm convolution_winograd_2 = {"winograd2", possible, work_2, scratch, packed_floats, pack, run};
const convolution_algorithm convolution_winograd_4 = {"winograd4", possible, work_4, scratch, packed_floats, pack, run};
