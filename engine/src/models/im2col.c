/* Convolutions as one matrix product each: what the window sees of a pixel is copied side by side (im2col), so that a
 * tile's rows are pixels of any rows of the image, and its sum is one run. That pays where rows of the image are far
 * shorter than a tile is high, or runs are short.
 *
 * Pixels are done in blocks, whose copies stay in the second cache beside a sliver of weights. Where there are blocks
 * for all threads, each thread does whole blocks in scratch memory of its own; else all do one part of a block after
 * the other. What is computed is the same in both.
 *
 * Packed weights are the direct algorithm's. */
#include "models/convolution.h"
#include "models/file.h"
#include "models/model.h"
#include "models/rates.h"
#include "models/step.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/numbers.h"
#include "runtime/pool.h"

#include "vme_search.h"

#include <string.h>

enum {
    BLOCK_BYTES = 1 << 20, /* of copies */
    FLOATS = 16,           /* a line of a cache */
    ROWS_MAX = 14,
    COLUMNS_MAX = 32,
    RUN = 48, /* what beginning to copy a run costs, in Winograd's points */
};

static const vme_gemm_kernel *kernel_of(const vme_kernels *kernels) { return &kernels->gemm.of[VME_FLOAT32]; }

typedef struct im2col {
    vme_context *context;
    const model_step *step;
    const vme_gemm_kernel *kernel;
    const model_value *in, *out, *addend; /* addend may be NULL */
    char *arena;
    float *scratch;
    bool joined; /* all pixels of the result, and of the addend, lie at one distance from the next */
    int64_t pixels, row, panel,
        part; /* row: floats from a pixel's copy to the next one's; part: of a sum, between two looks at the flag */
    int64_t block_pixels, blocks, slivers;
    int64_t block; /* that all threads do together */
} im2col;

static void lay_out(im2col *it, const model_value *out, const model_step *step)
{
    it->pixels = out->n * out->h * out->w;
    it->row =
        ceil_div(step->k, FLOATS) * FLOATS + FLOATS; /* equal places of all would share a set of the nearest cache */
    it->panel = ceil_div(it->pixels, ceil_div(it->pixels, it->kernel->rows));
    const int64_t panels = ceil_div(it->pixels, it->panel),
                  each = max(1, BLOCK_BYTES / (it->panel * it->row * (int64_t)sizeof(float)));
    it->block_pixels = ceil_div(panels, ceil_div(panels, each)) * it->panel;
    it->blocks = ceil_div(it->pixels, it->block_pixels);
    it->slivers = ceil_div(out->c, it->kernel->columns);
    it->part = max(1, it->kernel->work / (it->panel * it->kernel->columns));
}

/* Of a line of the window: runs of numbers that lie together, and how long each is. */
static int64_t runs_of(const im2col *it, const model_step *step, int64_t *run)
{
    const bool join = step->p[DILATION_W] == 1 && it->in->pixel == it->in->c;
    *run = it->in->c * (join ? step->p[KERNEL_W] : 1);
    return join ? 1 : step->p[KERNEL_W];
}

static bool possible(const vme_kernels *kernels, const model_value *in, const model_value *addend,
                     const model_value *out, const model_step *step)
{
    (void)kernels;
    return step->p[GROUPS] == 1 && !convolution_is_product(in, addend, out, step);
}

static rates_counted work(const vme_kernels *kernels, const model_value *in, const model_value *out,
                          const model_step *step)
{
    im2col it = {.kernel = kernel_of(kernels), .in = in};
    int64_t run;
    lay_out(&it, out, step);
    const int64_t runs = step->p[KERNEL_H] * runs_of(&it, step, &run);
    const double numbers = (double)(it.slivers * it.kernel->columns) * (double)step->k;
    return (rates_counted){{
        [VME_RATE_PRODUCTS] = rates_tile_rows(it.kernel, it.pixels) * numbers,
        [VME_RATE_WEIGHTS] = numbers * sizeof(float),
        [VME_RATE_POINTS_4] = (double)(it.pixels * runs) * RUN,
        [VME_RATE_BYTES] = (double)it.pixels * (double)step->k * sizeof(float),
    }};
}

static int64_t scratch(const vme_model *model, model_step *step)
{
    im2col it = {.kernel = kernel_of(model->kernels)};
    lay_out(&it, &model->value[step->out], step);
    step->slots = (int)min(min(it.blocks, vme_threads()), VME_SLOTS_MAX);
    return step->slots * it.block_pixels * it.row * (int64_t)sizeof(float);
}

/* ---- the parts of a block */
static int64_t block_count(const im2col *it, int64_t block)
{
    return min(it->block_pixels, it->pixels - block * it->block_pixels);
}
static float *copies(const im2col *it, int64_t slot) { return it->scratch + slot * it->block_pixels * it->row; }

/* Where a pixel of the result is: in its image's row, of which so many follow. */
typedef struct place {
    int64_t n, y, x;
} place;
static place place_of(const im2col *it, int64_t pixel)
{
    return (place){pixel / it->out->w / it->out->h, pixel / it->out->w % it->out->h, pixel % it->out->w};
}

static void copy(const im2col *it, int64_t slot, int64_t block, int64_t begin, int64_t end)
{
    const int32_t *p = it->step->p;
    int64_t run;
    const int64_t runs = runs_of(it, it->step, &run);
    for (int64_t i = begin; i < end && !vme_stopping(it->context); i++) {
        const place at = place_of(it, block * it->block_pixels + i);
        float *to = copies(it, slot) + i * it->row;
        for (int64_t y = 0; y < p[KERNEL_H]; y++) {
            const float *from =
                model_pixel(it->in, it->arena, at.n, at.y * p[STRIDE_H] - p[PAD_TOP] + y * p[DILATION_H],
                            at.x * p[STRIDE_W] - p[PAD_LEFT]);
            for (int64_t r = 0; r < runs; r++, from += p[DILATION_W] * it->in->pixel, to += run)
                memcpy(to, from, (size_t)run * sizeof(float));
        }
    }
}

/* What a tile makes lies in `made`: it gets bias, addend and bounds, and goes where it belongs, row of the image by
 * row. */
static void write_out(const im2col *it, int64_t pixel, int64_t rows, int64_t sliver, float *made)
{
    static const float nothing[COLUMNS_MAX];
    const int64_t columns = it->kernel->columns, column = sliver * columns;
    for (int64_t row = 0, count; row < rows; row += count) {
        const place at = place_of(it, pixel + row);
        count = min(rows - row, it->out->w - at.x);
        vme_gemm_tile tile = {.c = (char *)(made + row * columns),
                              .c_row = columns * 4,
                              .rows = (int)count,
                              .columns = (int)min(columns, it->out->c - column)};
        vme_gemm_layer layer = {.runs = 1, .bias = nothing, .bounds = {-__builtin_inff(), __builtin_inff()}};
        if (it->addend != NULL) {
            layer.addend = (const char *)(model_pixel(it->addend, it->arena, at.n, at.y, at.x) + column);
            layer.addend_row = it->addend->pixel * 4;
            tile.accumulate = true;
            it->kernel->layer_tile(&tile, &layer);
            tile.accumulate = false;
        }
        layer.addend = tile.c;
        layer.addend_row = columns * 4;
        layer.bias = it->step->bias + column;
        layer.bounds = it->step->bounds;
        tile.c = (char *)(model_pixel(it->out, it->arena, at.n, at.y, at.x) + column);
        tile.c_row = it->out->pixel * 4;
        it->kernel->layer_tile(&tile, &layer);
    }
}

/* Slivers `begin` to `end` of a block. */
static void multiply(const im2col *it, int64_t slot, int64_t block, int64_t begin, int64_t end)
{
    const int64_t columns = it->kernel->columns, count = block_count(it, block), k = it->step->k;
    float made[ROWS_MAX * COLUMNS_MAX] __attribute__((aligned(VME_ALIGNMENT)));
    for (int64_t sliver = begin; sliver < end; sliver++) {
        const float *b = it->step->weights + sliver * k * columns;
        const int64_t column = sliver * columns;
        vme_gemm_layer layer = {.coming = (const char *)(b + k * columns),
                                .coming_step = min(VME_ALIGNMENT, ceil_div(columns * 4, ceil_div(count, it->panel)))};
        for (int64_t first = 0; first < count; first += it->panel) {
            const int64_t pixel = block * it->block_pixels + first, rows = min(it->panel, count - first);
            const place at = place_of(it, pixel);
            vme_gemm_tile tile = {.a_row = it->row * 4,
                                  .rows = (int)rows,
                                  .columns = (int)min(columns, it->out->c - column),
                                  .far = it->joined,
                                  .c = (char *)made,
                                  .c_row = columns * 4};
            if (it->joined) {
                tile.c = (char *)(model_pixel(it->out, it->arena, at.n, at.y, at.x) + column);
                tile.c_row = it->out->pixel * 4;
            }
            for (int64_t k0 = 0; k0 < k; k0 += it->part) {
                if (vme_stopping(it->context))
                    return;
                tile.k = min(it->part, k - k0);
                tile.a = (const char *)(copies(it, slot) + first * it->row + k0);
                tile.b = (const char *)(b + k0 * columns);
                layer.runs = 1;
                if (it->joined && k0 + tile.k == k) {
                    layer.bias = it->step->bias + column;
                    layer.bounds = it->step->bounds;
                    layer.addend = it->addend == NULL
                                       ? NULL
                                       : (const char *)(model_pixel(it->addend, it->arena, at.n, at.y, at.x) + column);
                    layer.addend_row = it->addend == NULL ? 0 : it->addend->pixel * 4;
                }
                it->kernel->layer_tile(&tile, &layer);
                layer.coming += layer.coming_step * tile.k;
                layer.bias = NULL;
                tile.accumulate = true;
            }
            if (!it->joined)
                write_out(it, pixel, rows, sliver, made);
        }
    }
}

/* ----  ---- */
static void whole_blocks(void *argument, int64_t slot, vme_items *blocks)
{
    const im2col *it = argument;
    for (int64_t block; vme_item_next(blocks, &block);) {
        copy(it, slot, block, 0, block_count(it, block));
        multiply(it, slot, block, 0, it->slivers);
    }
}

static vme_status part_copies(void *argument, int64_t begin, int64_t end)
{
    const im2col *it = argument;
    copy(it, 0, it->block, begin, end);
    return VME_OK;
}

static vme_status part_products(void *argument, int64_t begin, int64_t end)
{
    const im2col *it = argument;
    multiply(it, 0, it->block, begin, end);
    return VME_OK;
}

static bool without_margin(const model_value *value)
{
    return value->top + value->left + value->bottom + value->right == 0;
}

static vme_status run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    im2col it = {
        .context = context,
        .step = step,
        .kernel = kernel_of(model->kernels),
        .in = &model->value[step->in],
        .out = &model->value[step->out],
        .addend = step->addend < 0 ? NULL : &model->value[step->addend],
        .arena = arena,
        .scratch = (float *)(arena + model->value[step->scratch].offset),
    };
    it.joined = without_margin(it.out) && (it.addend == NULL || without_margin(it.addend));
    lay_out(&it, it.out, step);
    if (step->slots > 1)
        return vme_parallel_slots(context, step->slots, it.blocks, whole_blocks, &it);
    vme_status status = VME_OK;
    for (; status == VME_OK && it.block < it.blocks; it.block++) {
        status = vme_parallel_apart(context, block_count(&it, it.block), it.kernel->work / 64 / step->k + 1,
                                    part_copies, &it);
        if (status == VME_OK)
            status = vme_parallel_apart(context, it.slivers, 1, part_products, &it);
    }
    return status;
}

const convolution_way convolution_im2col = {"im2col", possible, work, scratch, direct_packed, direct_pack, run};
