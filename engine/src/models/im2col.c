/* Convolutions as one matrix product: the elements under a pixel's window are copied side by side (im2col), so that a
 * tile's rows are pixels of any image rows and its sum is one run. That pays if image rows are far shorter than a tile
 * is high, or if runs are short.
 *
 * Pixels are processed in blocks whose copies stay in L2 beside a sliver of weights. If there are enough blocks, each
 * thread processes whole blocks in scratch memory of its own; otherwise all threads share each block. Results are the
 * same in both cases.
 *
 * Packed weights are those of the direct algorithm. */
#include "models/convolution.h"
#include "models/file.h"
#include "models/model.h"
#include "models/rates.h"
#include "models/step.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/machine.h"
#include "runtime/numbers.h"
#include "runtime/pool.h"

#include "vme_search.h"

#include <string.h>

enum {
    LINE_FLOATS = 16, /* one cache line */
    ROWS_MAX = 14,
    COLUMNS_MAX = 32,
};

static const vme_gemm_kernel *kernel_of(const vme_kernels *kernels) { return &kernels->gemm.of[VME_FLOAT32]; }

typedef struct im2col {
    vme_context *context;
    const model_step *step;
    const vme_gemm_kernel *kernel;
    const model_value *in, *out, *addend; /* addend may be NULL */
    char *arena;
    float *scratch;
    bool evenly_spaced;  /* all pixels of the result, and of the addend, are evenly spaced */
    int64_t pixels;      /* of all images of the result */
    int64_t copy_stride; /* floats from one pixel's copy to the next */
    int64_t panel;       /* pixels of a tile */
    int64_t part;        /* elements of a sum between two checks of the stop flag */
    int64_t block_pixels, blocks, slivers;
    int64_t shared_block; /* the one that all threads compute together */
} im2col;

static void lay_out(im2col *job, const model_value *out, const model_step *step)
{
    job->pixels = out->n * out->h * out->w;
    /* with a line of padding: otherwise equal offsets of all rows map to one set of L1 */
    job->copy_stride = ceil_div(step->k, LINE_FLOATS) * LINE_FLOATS + LINE_FLOATS;
    job->panel = ceil_div(job->pixels, ceil_div(job->pixels, job->kernel->rows));
    const int64_t panels = ceil_div(job->pixels, job->panel),
                  block_panels = max(1, IM2COL_BLOCK_BYTES / (job->panel * job->copy_stride * (int64_t)sizeof(float)));
    job->block_pixels = ceil_div(panels, ceil_div(panels, block_panels)) * job->panel;
    job->blocks = ceil_div(job->pixels, job->block_pixels);
    job->slivers = ceil_div(out->c, job->kernel->columns);
    job->part = max(1, job->kernel->work / (job->panel * job->kernel->columns));
}

/* Runs of contiguous elements in one line of the window, and their length. */
static int64_t runs_of(const im2col *job, const model_step *step, int64_t *run)
{
    const bool joined = step->p[DILATION_W] == 1 && job->in->pixel_stride == job->in->c;
    *run = job->in->c * (joined ? step->p[KERNEL_W] : 1);
    return joined ? 1 : step->p[KERNEL_W];
}

static bool possible(const vme_kernels *kernels, const model_value *in, const model_value *addend,
                     const model_value *out, const model_step *step)
{
    (void)kernels;
    return step->p[GROUPS] == 1 && !convolution_is_product(in, addend, out, step);
}

static rates_work work(const vme_kernels *kernels, const model_value *in, const model_value *out,
                       const model_step *step)
{
    im2col job = {.kernel = kernel_of(kernels), .in = in};
    int64_t run;
    lay_out(&job, out, step);
    const int64_t runs = step->p[KERNEL_H] * runs_of(&job, step, &run);
    const double weights = (double)(job.slivers * job.kernel->columns) * (double)step->k;
    return (rates_work){{
        [VME_RATE_PRODUCTS] = rates_tile_rows(job.kernel, job.pixels) * weights,
        [VME_RATE_WEIGHTS] = weights * sizeof(float),
        [VME_RATE_POINTS_4] = (double)(job.pixels * runs) * IM2COL_RUN,
        [VME_RATE_BYTES] = (double)job.pixels * (double)step->k * sizeof(float),
    }};
}

static int64_t scratch(const vme_model *model, model_step *step)
{
    im2col job = {.kernel = kernel_of(model->kernels)};
    lay_out(&job, &model->value[step->out], step);
    step->slots = (int)min(min(job.blocks, vme_threads()), VME_SLOTS_MAX);
    return step->slots * job.block_pixels * job.copy_stride * (int64_t)sizeof(float);
}

/* ---- the parts of a block */
static int64_t block_count(const im2col *job, int64_t block)
{
    return min(job->block_pixels, job->pixels - block * job->block_pixels);
}
static float *copies(const im2col *job, int64_t slot)
{
    return job->scratch + slot * job->block_pixels * job->copy_stride;
}

/* Position of a result pixel. */
typedef struct pixel_index {
    int64_t n, y, x;
} pixel_index;
static pixel_index pixel_index_of(const im2col *job, int64_t pixel)
{
    return (pixel_index){pixel / job->out->w / job->out->h, pixel / job->out->w % job->out->h, pixel % job->out->w};
}

static void copy_windows(const im2col *job, int64_t slot, int64_t block, int64_t begin, int64_t end)
{
    const int32_t *p = job->step->p;
    int64_t run;
    const int64_t runs = runs_of(job, job->step, &run);
    for (int64_t i = begin; i < end && !vme_stopping(job->context); i++) {
        const pixel_index at = pixel_index_of(job, block * job->block_pixels + i);
        float *to = copies(job, slot) + i * job->copy_stride;
        for (int64_t y = 0; y < p[KERNEL_H]; y++) {
            const float *from =
                model_pixel(job->in, job->arena, at.n, at.y * p[STRIDE_H] - p[PAD_TOP] + y * p[DILATION_H],
                            at.x * p[STRIDE_W] - p[PAD_LEFT]);
            for (int64_t r = 0; r < runs; r++, from += p[DILATION_W] * job->in->pixel_stride, to += run)
                memcpy(to, from, (size_t)run * sizeof(float));
        }
    }
}

/* Takes a tile's results from `sums`, applies bias, addend and bounds, and writes them row by row of the image. */
static void write_out(const im2col *job, int64_t pixel, int64_t rows, int64_t sliver, float *sums)
{
    static const float zero_bias[COLUMNS_MAX];
    const int64_t columns = job->kernel->columns, column = sliver * columns;
    for (int64_t row = 0, count; row < rows; row += count) {
        const pixel_index at = pixel_index_of(job, pixel + row);
        count = min(rows - row, job->out->w - at.x);
        vme_gemm_tile tile = {.c = (char *)(sums + row * columns),
                              .c_row = columns * 4,
                              .rows = (int)count,
                              .columns = (int)min(columns, job->out->c - column)};
        vme_gemm_layer layer = {.runs = 1, .bias = zero_bias, .bounds = {-__builtin_inff(), __builtin_inff()}};
        if (job->addend != NULL) {
            layer.addend = (const char *)(model_pixel(job->addend, job->arena, at.n, at.y, at.x) + column);
            layer.addend_row = job->addend->pixel_stride * 4;
            tile.accumulate = true;
            job->kernel->layer_tile(&tile, &layer);
            tile.accumulate = false;
        }
        layer.addend = tile.c;
        layer.addend_row = columns * 4;
        layer.bias = job->step->bias + column;
        layer.bounds = job->step->bounds;
        tile.c = (char *)(model_pixel(job->out, job->arena, at.n, at.y, at.x) + column);
        tile.c_row = job->out->pixel_stride * 4;
        job->kernel->layer_tile(&tile, &layer);
    }
}

/* Multiplies slivers `begin` to `end` with a block. */
static void multiply(const im2col *job, int64_t slot, int64_t block, int64_t begin, int64_t end)
{
    const int64_t columns = job->kernel->columns, count = block_count(job, block), k = job->step->k;
    float sums[ROWS_MAX * COLUMNS_MAX] __attribute__((aligned(VME_ALIGNMENT)));
    for (int64_t sliver = begin; sliver < end; sliver++) {
        const float *b = job->step->weights + sliver * k * columns;
        const int64_t column = sliver * columns;
        vme_gemm_layer layer = {.coming = (const char *)(b + k * columns),
                                .coming_step = min(VME_ALIGNMENT, ceil_div(columns * 4, ceil_div(count, job->panel)))};
        for (int64_t first = 0; first < count; first += job->panel) {
            const int64_t pixel = block * job->block_pixels + first, rows = min(job->panel, count - first);
            const pixel_index at = pixel_index_of(job, pixel);
            vme_gemm_tile tile = {.a_row = job->copy_stride * 4,
                                  .rows = (int)rows,
                                  .columns = (int)min(columns, job->out->c - column),
                                  .far = job->evenly_spaced,
                                  .c = (char *)sums,
                                  .c_row = columns * 4};
            if (job->evenly_spaced) {
                tile.c = (char *)(model_pixel(job->out, job->arena, at.n, at.y, at.x) + column);
                tile.c_row = job->out->pixel_stride * 4;
            }
            for (int64_t k0 = 0; k0 < k; k0 += job->part) {
                if (vme_stopping(job->context))
                    return;
                tile.k = min(job->part, k - k0);
                tile.a = (const char *)(copies(job, slot) + first * job->copy_stride + k0);
                tile.b = (const char *)(b + k0 * columns);
                layer.runs = 1;
                if (job->evenly_spaced && k0 + tile.k == k) {
                    layer.bias = job->step->bias + column;
                    layer.bounds = job->step->bounds;
                    layer.addend =
                        job->addend == NULL
                            ? NULL
                            : (const char *)(model_pixel(job->addend, job->arena, at.n, at.y, at.x) + column);
                    layer.addend_row = job->addend == NULL ? 0 : job->addend->pixel_stride * 4;
                }
                job->kernel->layer_tile(&tile, &layer);
                layer.coming += layer.coming_step * tile.k;
                layer.bias = NULL;
                tile.accumulate = true;
            }
            if (!job->evenly_spaced)
                write_out(job, pixel, rows, sliver, sums);
        }
    }
}

/* ---- scheduling */
static void compute_blocks(void *argument, int64_t slot, vme_items *blocks)
{
    const im2col *job = argument;
    for (int64_t block; vme_item_next(blocks, &block);) {
        copy_windows(job, slot, block, 0, block_count(job, block));
        multiply(job, slot, block, 0, job->slivers);
    }
}

static vme_status copy_block_part(void *argument, int64_t begin, int64_t end)
{
    const im2col *job = argument;
    copy_windows(job, 0, job->shared_block, begin, end);
    return VME_OK;
}

static vme_status multiply_block_part(void *argument, int64_t begin, int64_t end)
{
    const im2col *job = argument;
    multiply(job, 0, job->shared_block, begin, end);
    return VME_OK;
}

static bool evenly_spaced(const model_value *value)
{
    return value->top + value->left + value->bottom + value->right == 0 && value->interleave_h == 0;
}

static vme_status run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    im2col job = {
        .context = context,
        .step = step,
        .kernel = kernel_of(model->kernels),
        .in = &model->value[step->in],
        .out = &model->value[step->out],
        .addend = step->addend < 0 ? NULL : &model->value[step->addend],
        .arena = arena,
        .scratch = (float *)(arena + model->value[step->scratch].offset),
    };
    job.evenly_spaced = evenly_spaced(job.out) && (job.addend == NULL || evenly_spaced(job.addend));
    lay_out(&job, job.out, step);
    if (step->slots > 1)
        return vme_parallel_slots(context, step->slots, job.blocks, compute_blocks, &job);
    vme_status status = VME_OK;
    for (; status == VME_OK && job.shared_block < job.blocks; job.shared_block++) {
        status = vme_parallel_apart(context, block_count(&job, job.shared_block), job.kernel->work / 64 / step->k + 1,
                                    copy_block_part, &job);
        if (status == VME_OK)
            status = vme_parallel_apart(context, job.slivers, 1, multiply_block_part, &job);
    }
    return status;
}

const convolution_algorithm convolution_im2col = {"im2col", possible, work, scratch, direct_packed, direct_pack, run};
