/* Convolutions: packing of weights, and the direct algorithm. (tuning.c chooses the algorithm.)
 *
 * The direct algorithm multiplies matrices without copying the image: a tile (kernels/gemm_tile.h) has neighbouring
 * pixels of one output row as rows and output channels as columns. With channels last, the elements of one window row
 * at one pixel are contiguous, so a tile sums over kh runs of kw * channels elements (kh * kw runs of channels if the
 * window is dilated); its rows are `stride` pixels apart. Margins of zeros implement the padding.
 *
 * A fully connected layer (ONNX's Gemm) is a convolution of one pixel. A 1x1 convolution treats all images as one row.
 *
 * Groups of channels are independent convolutions. Groups whose outputs fit into one vector together are joined: they
 * are one convolution with a block diagonal as weights. That takes as many instructions, in fewer and longer sums. (As
 * in other algorithms, an input that is not finite may make other outputs NaN: those of the joined groups.)
 *
 * Packed weights are slivers as wide as a tile for each block of joined groups, each with kh * kw * channels rows in
 * the order of summation; missing columns are 0. The bias follows the weights of every algorithm and has an element for
 * each column of all slivers. */
#include "models/convolution.h"
#include "models/file.h"
#include "models/model.h"
#include "models/rates.h"
#include "models/row_kernels.h"
#include "models/rows.h"
#include "models/step.h"
#include "models/steps.h"
#include "models/value.h"
#include "models/winograd.h"
#include "runtime/internal.h"
#include "runtime/machine.h"
#include "runtime/numbers.h"

#include "vme_search.h"

#include <string.h>

enum {
    PIECES_MIN = 4, /* pieces of work for each thread, at least */
    SPARSE = 4,     /* if padding is more than 1 / SPARSE of an image, it is left out of sums */
};

static const vme_gemm_kernel *kernel_of(const vme_kernels *kernels) { return &kernels->gemm.of[VME_FLOAT32]; }

/* ---- the algorithms */
static const convolution_algorithm direct;
static const convolution_algorithm *const algorithms[CONVOLUTION_ALGORITHMS] = {
    [CONVOLUTION_DIRECT] = &direct,
    [CONVOLUTION_WINOGRAD_2] = &convolution_winograd_2,
    [CONVOLUTION_WINOGRAD_4] = &convolution_winograd_4,
    [CONVOLUTION_STRASSEN] = &convolution_strassen,
    [CONVOLUTION_IM2COL] = &convolution_im2col,
};

const convolution_algorithm *convolution_algorithm_of(model_algorithm algorithm) { return algorithms[algorithm]; }

/* The number of consecutive groups that are joined. */
static int64_t groups_joined(const vme_kernels *kernels, const model_step *step, int64_t outputs)
{
    const int64_t groups = step->p[GROUPS], lanes = kernel_of(kernels)->columns / 2;
    int64_t joined = max(1, min(groups, lanes * groups / outputs));
    while (groups % joined != 0)
        joined--;
    return joined;
}

int64_t convolution_packed(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels,
                           bool bias)
{
    const int64_t columns = kernel_of(kernels)->columns,
                  blocks = step->p[GROUPS] / groups_joined(kernels, step, outputs),
                  padded_outputs = blocks * ceil_div(outputs / blocks, columns) * columns;
    return algorithms[step->algorithm]->packed(kernels, step, outputs, channels) + (bias ? padded_outputs : 0);
}

void convolution_pack(const vme_kernels *kernels, model_step *step, int64_t outputs, int64_t channels,
                      const char *weights, const char *bias)
{
    const int64_t columns = kernel_of(kernels)->columns,
                  block_outputs = outputs / step->p[GROUPS] * groups_joined(kernels, step, outputs),
                  slivers = ceil_div(block_outputs, columns);
    memset(step->weights, 0, (size_t)convolution_packed(kernels, step, outputs, channels, true) * sizeof(float));
    step->bias = step->weights + convolution_packed(kernels, step, outputs, channels, false);
    for (int64_t o = 0; bias != NULL && o < outputs; o++)
        memcpy(step->bias + o / block_outputs * slivers * columns + o % block_outputs, bias + o * 4, 4);
    algorithms[step->algorithm]->pack(kernels, step, outputs, channels, weights, step->weights);
}

int64_t convolution_scratch(const vme_model *model, model_step *step)
{
    return algorithms[step->algorithm]->scratch == NULL ? 0 : algorithms[step->algorithm]->scratch(model, step);
}

vme_status convolution_run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    vme_status status = algorithms[step->algorithm]->run(context, model, step, arena);
    return status == VME_OK && step->algorithm != CONVOLUTION_DIRECT ? model_activate(context, model, step, arena)
                                                                     : status;
}

static bool evenly_spaced(const model_value *value)
{
    return value->top + value->left + value->bottom + value->right == 0 && value->interleave_h == 0;
}

bool convolution_is_product(const model_value *in, const model_value *addend, const model_value *out,
                            const model_step *step)
{
    const int32_t *p = step->p;
    return windows_are_pixels(p) && evenly_spaced(in) && evenly_spaced(out)
           && (addend == NULL || evenly_spaced(addend));
}

/* ---- direct: weights */
static bool direct_possible(const vme_kernels *kernels, const model_value *in, const model_value *addend,
                            const model_value *out, const model_step *step)
{
    (void)kernels, (void)in, (void)addend, (void)out, (void)step;
    return true;
}

int64_t direct_packed(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels)
{
    (void)channels;
    const int64_t columns = kernel_of(kernels)->columns, joined = groups_joined(kernels, step, outputs),
                  blocks = step->p[GROUPS] / joined;
    return blocks * ceil_div(outputs / blocks, columns) * columns * step->k * joined;
}

static rates_work direct_work(const vme_kernels *kernels, const model_value *in, const model_value *out,
                              const model_step *step)
{
    const vme_gemm_kernel *kernel = kernel_of(kernels);
    const int32_t *p = step->p;
    const double weights = (double)direct_packed(kernels, step, out->c, in->c / p[GROUPS]);
    const bool images_joined = windows_are_pixels(p);
    const double rows = images_joined ? rates_tile_rows(kernel, out->n * out->h * out->w)
                                      : (double)(out->n * out->h) * rates_tile_rows(kernel, out->w);
    return (rates_work){{[VME_RATE_PRODUCTS] = rows * weights, [VME_RATE_WEIGHTS] = weights * sizeof(float)}};
}

void direct_pack(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels,
                 const char *weights, float *packed)
{
    const int64_t columns = kernel_of(kernels)->columns, joined = groups_joined(kernels, step, outputs),
                  group_outputs = outputs / step->p[GROUPS], block_outputs = group_outputs * joined,
                  slivers = ceil_div(block_outputs, columns);
    const int64_t window = (int64_t)step->p[KERNEL_H] * step->p[KERNEL_W], other_channels = channels * (joined - 1);
    for (int64_t o = 0; o < outputs; o++) {
        const int64_t sliver = o / block_outputs * slivers + o % block_outputs / columns,
                      column = o % block_outputs % columns,
                      group = o % block_outputs / group_outputs; /* of the joined groups */
        float *to = packed + (sliver * step->k * joined + group * channels) * columns + column;
        for (int64_t index = 0; index < window; index++, to += other_channels * columns)
            for (int64_t channel = 0; channel < channels; channel++, to += columns)
                memcpy(to, weights + ((o * channels + channel) * window + index) * 4, 4);
    }
}

/* ---- direct: tiles */
typedef struct convolution {
    vme_context *context;
    const vme_model *model;
    const model_step *step;
    const vme_gemm_kernel *kernel;
    const float *in;     /* the element under the window's first tap at the first output */
    const float *addend; /* the first pixel, or NULL */
    float *out;
    /* strides in elements */
    int64_t in_pixel, in_row, in_image, out_pixel, out_row, out_image, addend_pixel, addend_row, addend_image;
    int64_t blocks;                  /* of joined groups */
    int64_t channels, outputs, k;    /* of one block; k: elements of a sum */
    int64_t images, height, width;   /* of the output */
    int64_t lines, runs, run;        /* of the window: lines of runs, and elements of a run */
    int64_t line_stride, run_stride; /* in elements */
    int64_t part_runs, part_terms;   /* one partial sum: a number of whole runs, or of elements of one run */
    int64_t panel;                   /* rows of a tile, at most */
    int64_t row_tiles, tiles;        /* of a row of the output, and of an image */
    int64_t piece_tiles, pieces;     /* tiles of a piece of work, and pieces of an image */
    int64_t block_slivers, slivers;  /* of one block, and of all */
    int64_t piece_slivers;           /* 1; or all if they stay in L2; or many, if sums go by blocks of the input */
    model_curve_kernel *curve;       /* the activation, if bounds cannot express it */
    bool product;                    /* product of one image, computed tile by tile */
    bool skips_padding;              /* tiles skip taps that see padding only; each run is a partial sum then */
    int64_t first_row;               /* of the result */
    int64_t in_height, in_width;     /* of the image */
    bool by_rows;      /* a thread computes all slivers of its rows, which stay in its cache from layer to layer */
    int64_t run_block; /* elements of a run that are summed for all of a piece's slivers before the next block */
} convolution;

typedef struct tap_range {
    int64_t first, last;
} tap_range;
/* The taps that see any of the `size` elements, of `count` taps `step` apart whose first one covers `span` elements
 * from `at` on. The other taps see padding only. */
static tap_range taps_in_image(int64_t at, int64_t span, int64_t step, int64_t count, int64_t size)
{
    const tap_range range = {at + span > 0 ? 0 : ceil_div(1 - at - span, step),
                             at >= size ? -1 : min(count - 1, (size - 1 - at) / step)};
    /* at least one tap, because the result must be written */
    return range.first > range.last ? (tap_range){0, 0} : range;
}

/* Applies the activation, if bounds cannot express it, to the finished results of a tile. */
static void activate_tile(const convolution *job, const vme_gemm_tile *tile)
{
    if (job->curve == NULL)
        return;
    const bool contiguous = tile->c_row == tile->columns * 4; /* pixels have no other channels between them */
    const int64_t count = contiguous ? (int64_t)tile->rows * tile->columns : tile->columns;
    for (int row = 0; row < (contiguous ? 1 : tile->rows); row++) {
        float *result = (float *)(tile->c + row * tile->c_row);
        job->curve(job->step->p[ACTIVATION] - ACTIVATION_CURVES, count, result, result);
    }
}

/* Computes one sliver of tiles `first` to `end`: adds the products of one block of each run, from element k_first on.
 * `next_weights`: those that are read next, to be prefetched. */
static void compute_tiles(const convolution *job, int64_t image, int64_t sliver, int64_t first, int64_t end,
                          int64_t k_first, const float *next_weights)
{
    const model_step *step = job->step;
    const int64_t columns = job->kernel->columns, block = sliver / job->block_slivers,
                  first_output = sliver % job->block_slivers * columns;
    const int64_t width = min(columns, job->outputs - first_output), column = block * job->outputs + first_output;
    const int64_t k_end = min(job->run, k_first + job->run_block);
    const float *weights = step->weights + (sliver * job->k + k_first) * columns, *bias = step->bias + sliver * columns;
    const float *in = job->in + image * job->in_image + block * job->channels;
    float *out = job->out + image * job->out_image + column;
    vme_gemm_tile tile = {
        .a_row = step->p[STRIDE_W] * job->in_pixel * 4,
        .c_row = job->out_pixel * 4,
        .columns = (int)width,
        .accumulate = k_first > 0,
        .far = true,
    };
    vme_gemm_layer layer = {.a_run = job->run_stride * 4, .addend_row = job->addend_pixel * 4, .bounds = step->bounds};
    for (int64_t line = 0; line < job->lines; line++)
        for (int64_t r = 0; r < job->runs; r += job->part_runs)
            for (int64_t k0 = k_first; k0 < k_end; k0 += job->part_terms) {
                const float *from = in + line * job->line_stride + r * job->run_stride + k0;
                tile.k = min(job->part_terms, k_end - k0);
                tile.b = (const char *)weights;
                layer.runs = min(job->part_runs, job->runs - r);
                weights += layer.runs * tile.k * columns;
                const bool done = line == job->lines - 1 && r + layer.runs == job->runs && k0 + tile.k == k_end;
                layer.coming = (const char *)(done ? next_weights : weights);
                layer.coming_step = min(VME_ALIGNMENT, ceil_div(columns * 4, end - first));
                const bool end_of_run = k0 + tile.k == k_end && k_end == job->run;
                layer.bias = done && k_end == job->run ? bias : NULL;
                int64_t y = first / job->row_tiles, row_tile = first % job->row_tiles,
                        x = row_tile * job->width / job->row_tiles, x_end;
                for (int64_t t = first; t < end;
                     t++, x = x_end, layer.coming += layer.coming_step * layer.runs * tile.k) {
                    if (vme_stopping(job->context))
                        return;
                    x_end = ++row_tile * job->width / job->row_tiles;
                    tile.a = (const char *)(from + y * step->p[STRIDE_H] * job->in_row
                                            + x * step->p[STRIDE_W] * job->in_pixel);
                    tile.c = (char *)(out + y * job->out_row + x * job->out_pixel);
                    tile.rows = (int)(x_end - x);
                    if (job->skips_padding) {
                        const int32_t *p = step->p;
                        const tap_range down = taps_in_image((job->first_row + y) * p[STRIDE_H] - p[PAD_TOP], 1,
                                                             p[DILATION_H], job->lines, job->in_height),
                                        across = taps_in_image(x * p[STRIDE_W] - p[PAD_LEFT],
                                                               (x_end - x - 1) * p[STRIDE_W] + 1, p[DILATION_W],
                                                               job->runs, job->in_width);
                        const bool has_taps =
                            line >= down.first && line <= down.last && r >= across.first && r <= across.last;
                        tile.accumulate = k0 > 0 || line > down.first || r > across.first;
                        layer.bias = end_of_run && line == down.last && r == across.last ? bias : NULL;
                        if (!has_taps) {
                            if (row_tile == job->row_tiles)
                                row_tile = x_end = 0, y++;
                            continue;
                        }
                    }
                    if (job->addend != NULL)
                        layer.addend = (const char *)(job->addend + image * job->addend_image + y * job->addend_row
                                                      + x * job->addend_pixel + column);
                    job->kernel->layer_tile(&tile, &layer);
                    if (layer.bias != NULL)
                        activate_tile(job, &tile);
                    if (row_tile == job->row_tiles) {
                        row_tile = x_end = 0;
                        y++;
                    }
                }
                tile.accumulate = true;
            }
}

/* The same for a product, tile by tile: the output stays in L1 between two partial sums, so that sums can be divided
 * into more parts, which is more exact. */
static void compute_product(const convolution *job, int64_t sliver, int64_t first, int64_t end, int64_t k_first,
                            const float *next_weights)
{
    const model_step *step = job->step;
    const int64_t columns = job->kernel->columns, column = sliver * columns,
                  k_end = min(job->run, k_first + job->run_block);
    const float *weights = step->weights + (sliver * job->k + k_first) * columns, *bias = step->bias + column;
    vme_gemm_tile tile = {.a_row = job->in_pixel * 4,
                          .c_row = job->out_pixel * 4,
                          .columns = (int)min(columns, job->outputs - column),
                          .far = true};
    vme_gemm_layer layer = {.apart = true,
                            .addend_row = job->addend_pixel * 4,
                            .bounds = step->bounds,
                            .coming = (const char *)next_weights,
                            .coming_step = min(VME_ALIGNMENT, ceil_div(columns * 4, end - first))};
    for (int64_t t = first; t < end; t++) {
        const int64_t x = t * job->width / job->tiles;
        tile.c = (char *)(job->out + x * job->out_pixel + column);
        tile.rows = (int)((t + 1) * job->width / job->tiles - x);
        if (job->addend != NULL)
            layer.addend = (const char *)(job->addend + x * job->addend_pixel + column);
        for (int64_t k = k_first, count; k < k_end; k += count, layer.coming += layer.coming_step * count) {
            if (vme_stopping(job->context))
                return;
            layer.runs = max(1, (k_end - k) / job->part_terms);
            tile.k = min(job->part_terms, k_end - k);
            layer.a_run = tile.k * 4;
            count = layer.runs * tile.k;
            tile.a = (const char *)(job->in + x * job->in_pixel + k);
            tile.b = (const char *)(weights + (k - k_first) * columns);
            tile.accumulate = k > 0;
            tile.far = k == k_first;
            layer.bias = k + count == job->run ? bias : NULL;
            job->kernel->layer_tile(&tile, &layer);
        }
        if (layer.bias != NULL)
            activate_tile(job, &tile);
    }
}

/* The number of groups of slivers; a piece of work computes one group. */
static int64_t sliver_groups(const convolution *job) { return ceil_div(job->slivers, job->piece_slivers); }

static vme_status compute_pieces(void *argument, int64_t begin, int64_t end)
{
    const convolution *job = argument;
    const int64_t columns = job->kernel->columns, sliver_floats = job->k * columns, groups = sliver_groups(job);
    for (int64_t i = begin; i < end; i++) {
        const int64_t piece = job->by_rows ? i / groups : i % job->pieces,
                      rest = job->by_rows ? i % groups : i / job->pieces;
        const int64_t image = rest / groups, sliver = rest % groups * job->piece_slivers;
        const int64_t first = piece * job->piece_tiles, slivers = min(job->piece_slivers, job->slivers - sliver);
        const float *weights = job->step->weights + sliver * sliver_floats;
        for (int64_t k = 0; k < job->run; k += job->run_block)
            for (int64_t s = 0; s < slivers && !vme_stopping(job->context); s++) {
                const float *next_weights = s + 1 < slivers ? weights + (s + 1) * sliver_floats + k * columns
                                            : k + job->run_block < job->run ? weights + (k + job->run_block) * columns
                                                                            : weights + slivers * sliver_floats;
                if (job->product)
                    compute_product(job, sliver + s, first, min(job->tiles, first + job->piece_tiles), k, next_weights);
                else
                    compute_tiles(job, image, sliver + s, first, min(job->tiles, first + job->piece_tiles), k,
                                  next_weights);
            }
    }
    return VME_OK;
}

/* Sets the lengths of partial sums. They depend on the whole output, not on the rows that are requested. `weights_fit`:
 * all weights stay in L2; `all_slivers`: each piece computes all slivers. */
static void divide_sums(convolution *job, int64_t whole_tiles, int64_t whole_panel, bool product, bool weights_fit,
                        bool all_slivers)
{
    const int64_t blocks = weights_fit || job->lines * job->runs > 1
                               ? 1
                               : min(ceil_div(min(CONVOLUTION_TILES_MAX, whole_tiles) * whole_panel * job->run * 4,
                                              CONVOLUTION_INPUT_NEAR),
                                     ceil_div(job->run, CONVOLUTION_BLOCK_MIN));
    job->run_block = ceil_div(job->run, blocks);
    job->product = product && job->blocks == 1 && whole_tiles >= CONVOLUTION_MANY_TILES && !all_slivers;
    const int64_t part = job->product                                      ? CONVOLUTION_SUM_APART
                         : product || whole_tiles < CONVOLUTION_MANY_TILES ? CONVOLUTION_SUM
                                                                           : CONVOLUTION_SUM_OF_MANY;
    job->part_terms = ceil_div(job->run_block, ceil_div(job->run_block, part));
    job->part_runs = job->part_terms < job->run ? 1 : ceil_div(job->runs, ceil_div(job->runs * job->run, part));
}

/* Divides the work into pieces of tiles and slivers, which threads take. */
static void divide_work(convolution *job, int64_t whole_tiles, bool all_slivers, int64_t threads, int64_t min_pieces)
{
    const bool in_blocks = job->run_block < job->run;
    job->piece_tiles =
        all_slivers ? CONVOLUTION_NEAR_TILES
        : in_blocks
            ? min(min(CONVOLUTION_TILES_MAX, whole_tiles), job->tiles)
            : max(1, min(CONVOLUTION_TILES_MAX, job->kernel->work / (job->k * job->kernel->columns * job->panel)));
    int64_t groups = all_slivers ? 1 : job->slivers; /* groups of slivers */
    if (in_blocks)
        groups = min(groups, ceil_div(min_pieces, job->images * ceil_div(job->tiles, job->piece_tiles)));
    job->piece_slivers = ceil_div(job->slivers, groups);
    job->pieces = min(job->tiles, max(ceil_div(job->tiles, job->piece_tiles),
                                      ceil_div(min_pieces, job->images * sliver_groups(job))));
    job->piece_tiles = ceil_div(job->tiles, job->pieces);
    job->pieces = ceil_div(job->tiles, job->piece_tiles);
    if (job->product && threads > 1 && job->tiles >= threads * CONVOLUTION_MANY_TILES) {
        job->by_rows = true;
        job->tiles = ceil_div(job->tiles, threads) * threads;
        job->piece_tiles = job->tiles / threads;
        job->pieces = threads;
    }
}

/* Describes the work on rows of one image (`band`), or on all rows of all images, for `threads` threads. */
static convolution lay_out(vme_context *context, const vme_model *model, const model_step *step, const model_band *band,
                           int64_t images, int64_t threads)
{
    const model_value *in = band->in, *out = band->out, *addend = band->addend;
    const int32_t *p = step->p;
    char *arena = band->arena;
    const int64_t joined = groups_joined(model->kernels, step, out->c), blocks = p[GROUPS] / joined,
                  channels = in->c / blocks;
    const bool runs_join = p[DILATION_W] == 1 && blocks == 1 && in->pixel_stride == in->c;
    convolution job = {
        .context = context,
        .model = model,
        .step = step,
        .curve = model_curve_of(model, step),
        .kernel = kernel_of(model->kernels),
        .in = model_pixel(in, arena, band->n, band->begin * p[STRIDE_H] - p[PAD_TOP], -p[PAD_LEFT]),
        .in_pixel = in->pixel_stride,
        .in_row = in->row_stride,
        .in_image = in->image_stride,
        .out = model_pixel(out, arena, band->n, band->begin, 0),
        .out_pixel = out->pixel_stride,
        .out_row = out->row_stride,
        .out_image = out->image_stride,
        .blocks = blocks,
        .channels = channels,
        .outputs = out->c / blocks,
        .k = step->k * joined,
        .images = images,
        .height = band->end - band->begin,
        .width = out->w,
        .lines = runs_join ? 1 : p[KERNEL_H],
        .line_stride = p[DILATION_H] * in->row_stride,
        .runs = runs_join ? p[KERNEL_H] : p[KERNEL_W],
        .first_row = band->begin,
        .in_height = in->h,
        .in_width = in->w,
        .run_stride = runs_join ? p[DILATION_H] * in->row_stride : p[DILATION_W] * in->pixel_stride,
        .run = channels * (runs_join ? p[KERNEL_W] : 1),
    };
    if (addend != NULL) {
        job.addend = model_pixel(addend, arena, band->n, band->begin, 0);
        job.addend_pixel = addend->pixel_stride;
        job.addend_row = addend->row_stride;
        job.addend_image = addend->image_stride;
    }
    int64_t width = out->w, height = out->h; /* of the step's whole output */
    const bool product = convolution_is_product(in, addend, out, step);
    if (product) {
        width *= height * out->n;
        height = 1;
        job.width *= job.height * job.images;
        job.height = job.images = 1;
    }
    const int64_t whole_panel = ceil_div(width, ceil_div(width, job.kernel->rows)),
                  whole_tiles = height * ceil_div(width, whole_panel);
    job.panel = ceil_div(job.width, ceil_div(job.width, job.kernel->rows));
    job.row_tiles = ceil_div(job.width, job.panel);
    job.tiles = job.height * job.row_tiles;
    job.block_slivers = ceil_div(job.outputs, job.kernel->columns);
    job.slivers = job.block_slivers * blocks;
    const int64_t min_pieces = threads == 1 ? 1 : PIECES_MIN * threads, sliver_bytes = job.k * job.kernel->columns * 4;
    const bool weights_fit = job.slivers * sliver_bytes <= CONVOLUTION_NEAR,
               all_slivers = weights_fit && job.images * job.tiles >= min_pieces;
    divide_sums(&job, whole_tiles, whole_panel, product, weights_fit, all_slivers);
    job.skips_padding = !runs_join && (p[PAD_TOP] * SPARSE > in->h || p[PAD_LEFT] * SPARSE > in->w);
    if (job.skips_padding)
        job.part_runs = 1;
    divide_work(&job, whole_tiles, all_slivers, threads, min_pieces);
    return job;
}

static vme_status direct_run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    const model_band whole = model_whole_band(model, step, arena);
    convolution job = lay_out(context, model, step, &whole, whole.out->n, vme_parallel_threads());
    return vme_parallel_apart(context, job.images * sliver_groups(&job) * job.pieces, 1, compute_pieces, &job);
}

void convolution_band(vme_context *context, const vme_model *model, const model_step *step, const model_band *band)
{
    if (step->algorithm != CONVOLUTION_DIRECT) {
        winograd_band(context, model, step, band);
        return;
    }
    convolution job = lay_out(context, model, step, band, 1, 1);
    compute_pieces(&job, 0, sliver_groups(&job) * job.pieces);
}

static const convolution_algorithm direct = {"direct",      direct_possible, direct_work, NULL,
                                             direct_packed, direct_pack,     direct_run};
