/* Convolutions and products of bytes with constant weights: exact 32-bit sums, written as bytes, int32 or float32.
 *
 * Images are [n, height, width, channels], of uint8 or int8; a matrix is one row of pixels. A tile multiplies some
 * pixels, each a contiguous row of bytes, with 32 outputs. Rows are the bytes under a window, copied to scratch memory
 * (zero points for padding, int8 as uint8), or the pixels themselves if those are the same. Depthwise windows have a
 * kernel of their own.
 *
 * Operands: 0 the image; 1 weights, int8 [groups, slivers, quads, 32, 4]: for each four elements of a window
 * [height][width][channels of the group] 32 outputs, zero-padded; depthwise: [1, 1, parts * taps, channels, 1], where
 * each weight is the sum of its parts; 2 sums of the weights of each output, int32; 3 bias, int32, or absent; 4
 * factors, float32: one for each output, absent if the result is the sums; 5 zero points of weights, int32, or absent;
 * if present, each group has one more output, of ones; 6 the zero point of the image, one number of its dtype, or
 * absent.
 *
 * With zero points z of x and v of w, the sum of (x - z) * (w - v) over k elements is sum(x * w) - z * sum(w) - v *
 * sum(x) + k * z * v. */
#include "models/integer_products.h"
#include "models/file.h"
#include "models/makers.h"
#include "models/model.h"
#include "models/preparation.h"
#include "models/quantized_kernels.h"
#include "models/step.h"
#include "models/tensors.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/numbers.h"
#include "runtime/pool.h"

#include <string.h>

enum {
    BLOCK_PIXELS_MAX = 4 * QUANTIZED_ROWS, /* pixels whose rows are copied at once */
    PIECES_MIN = 4,                        /* pieces of work for each thread, at least */
    /* offset in bytes of the rows in a slot, after the sums of a tile and those of a block's rows */
    ROWS_OFFSET = (QUANTIZED_ROWS * QUANTIZED_COLUMNS + BLOCK_PIXELS_MAX + 15) / 16 * 64,
    WINDOW_MAX = 1 << 12,  /* taps of a depthwise window */
    DEPTHWISE_PIXELS = 16, /* depthwise outputs summed at once */
    PARTS_MAX = 3,         /* parts of a depthwise weight */
    FLIP = 0x80,           /* XORed with int8 to read it as uint8 (quantized_kernels.h) */
    SPILL = QUANTIZED_SPILL,
};

typedef struct integer_product {
    vme_context *context;
    const model_quantized_kernels *kernels;
    const int32_t *p;
    const uint8_t *in;
    const int8_t *weights;
    uint8_t *out;
    const float *factors; /* one for each output; NULL: the result is the sums */
    const int32_t *zeros; /* of weights, NULL: 0 */
    int32_t *addends;     /* added to the sum of each output */
    uint8_t flip, zero;   /* flip: XORed with the image's bytes; zero: the zero point after that */
    int out_dtype;
    quantized_result to;
    int64_t images, height, width, channels;           /* of the image */
    int64_t out_height, out_width, outputs, out_pixel; /* of the result; out_pixel: elements between pixels */
    int64_t groups, group_channels, group_outputs;     /* group_outputs includes the output of ones */
    int64_t k, quads, slivers;                         /* of a group */
    int64_t pixels, block, blocks;                     /* block: pixels of a block */
    int64_t sliver_groups, group_slivers;              /* group_slivers: slivers of a piece of work */
    bool depthwise;
    bool direct;    /* rows are the pixels themselves */
    bool uses_row3; /* depthwise 3x3 windows with results in bytes */
    bool bytes;     /* tiles are written as bytes (tile_bytes) */
    int64_t slot_bytes, row_bytes;
    char *slots;
} integer_product;

/* ---- rows */
/* Copies bytes. The next SPILL bytes after `to` may be overwritten: they are written later or never read. */
static inline void copy_bytes(const integer_product *job, const uint8_t *from, int64_t count, const uint8_t *from_end,
                              uint8_t *to)
{
    if (count > from_end - from - SPILL)
        memcpy(to, from, (size_t)count);
    else
        job->kernels->copy(count, from, to);
}

/* Copies the bytes under the window at [image, top, left] of group `group`. */
static void copy_window(const integer_product *job, int64_t image, int64_t top, int64_t left, int64_t group,
                        uint8_t *to)
{
    const int32_t *p = job->p;
    const int64_t group_channels = job->group_channels, across = (int64_t)p[DILATION_W] * (p[KERNEL_W] - 1);
    const uint8_t *const end = job->in + job->images * job->height * job->width * job->channels;
    /* contiguous taps of a window row are copied at once */
    const bool contiguous = job->groups == 1 && p[DILATION_W] == 1 && left >= 0 && left + across < job->width;
    const int64_t taps = contiguous ? 1 : p[KERNEL_W],
                  bytes = contiguous ? group_channels * p[KERNEL_W] : group_channels;
    for (int64_t h = 0; h < p[KERNEL_H]; h++) {
        const int64_t y = top + h * p[DILATION_H];
        const bool in_image = y >= 0 && y < job->height;
        const uint8_t *line =
            job->in + group * group_channels + (in_image ? (image * job->height + y) * job->width * job->channels : 0);
        for (int64_t w = 0; w < taps; w++, to += bytes) {
            const int64_t x = left + w * p[DILATION_W];
            if (!in_image || x < 0 || x >= job->width)
                memset(to, job->zero, (size_t)bytes);
            else if (job->flip)
                job->kernels->flip(bytes, line + x * job->channels, to);
            else
                copy_bytes(job, line + x * job->channels, bytes, end, to);
        }
    }
}

/* The number of pixels of a row, from [image, top, left] on, whose windows are inside the image, and whose window lines
 * are contiguous and can be read up to SPILL bytes too far. */
static int64_t count_inner_windows(const integer_product *job, int64_t image, int64_t top, int64_t left)
{
    const int32_t *p = job->p;
    const int64_t bottom = top + (int64_t)p[DILATION_H] * (p[KERNEL_H] - 1), max_left = job->width - p[KERNEL_W];
    if (job->groups != 1 || p[DILATION_W] != 1 || top < 0 || bottom >= job->height || left < 0 || left > max_left)
        return 0;
    const int64_t read_end = ((image * job->height + bottom) * job->width + left + p[KERNEL_W]) * job->channels + SPILL,
                  spare_bytes = job->images * job->height * job->width * job->channels - read_end;
    return spare_bytes < 0 ? 0 : 1 + min((max_left - left) / p[STRIDE_W], spare_bytes / (p[STRIDE_W] * job->channels));
}

/* Copies the bytes under the windows of `count` pixels from `first` on, for group `group`. */
static void copy_rows(const integer_product *job, int64_t first, int64_t count, int64_t group, uint8_t *rows)
{
    const int32_t *p = job->p;
    int64_t image = first / (job->out_height * job->out_width), row = first / job->out_width % job->out_height,
            column = first % job->out_width;
    for (int64_t r = 0, pixels; r < count && !vme_stopping(job->context);
         r += pixels, rows += pixels * job->row_bytes) {
        const int64_t top = row * p[STRIDE_H] - p[PAD_TOP], left = column * p[STRIDE_W] - p[PAD_LEFT];
        pixels = min(count_inner_windows(job, image, top, left), min(count - r, job->out_width - column));
        if (pixels == 0) {
            copy_window(job, image, top, left, group, rows);
            pixels = 1;
        } else
            job->kernels->copy_windows(
                &(quantized_windows){.in = job->in + ((image * job->height + top) * job->width + left) * job->channels,
                                     .lines = p[KERNEL_H],
                                     .line_step = p[DILATION_H] * job->width * job->channels,
                                     .line_bytes = p[KERNEL_W] * job->channels,
                                     .pixel_step = p[STRIDE_W] * job->channels,
                                     .flip = job->flip},
                pixels, rows, job->row_bytes);
        if ((column += pixels) == job->out_width) {
            column = 0;
            if (++row == job->out_height)
                row = 0, image++;
        }
    }
}

/* ---- results */
/* Writes the sums of `count` outputs of one pixel to the result. */
static void write(const integer_product *job, int64_t pixel, int64_t output, int64_t count, const int32_t *sums,
                  const int32_t *addends)
{
    const int64_t position = pixel * job->out_pixel + output;
    const float *factors = job->factors == NULL ? NULL : job->factors + output;
    switch (job->out_dtype) {
    case VME_INT32:
        for (int64_t i = 0; i < count; i++)
            ((int32_t *)job->out)[position + i] = (int32_t)((uint32_t)sums[i] + (uint32_t)addends[i]);
        break;
    case VME_FLOAT32:
        for (int64_t i = 0; i < count; i++)
            ((float *)job->out)[position + i] = (float)(sums[i] + addends[i]) * factors[i];
        break;
    default: job->kernels->finish(count, sums, addends, factors, job->to, job->out + position); break;
    }
}

/* Writes the sums of one sliver of outputs for some pixels. */
static void write_tile(const integer_product *job, int64_t first, int64_t rows, int64_t group, int64_t sliver,
                       const int32_t *sums, const int32_t *ones)
{
    const int64_t group_outputs = job->group_outputs - (job->zeros != NULL), begin = sliver * QUANTIZED_COLUMNS;
    const int64_t count = min(QUANTIZED_COLUMNS, group_outputs - begin), output = group * group_outputs + begin;
    for (int64_t r = 0; r < rows && count > 0; r++) {
        if (job->zeros == NULL) {
            write(job, first + r, output, count, sums + r * QUANTIZED_COLUMNS, job->addends + output);
            continue;
        }
        int32_t addends[QUANTIZED_COLUMNS];
        for (int64_t i = 0; i < count; i++)
            addends[i] =
                (int32_t)((uint32_t)job->addends[output + i] - (uint32_t)job->zeros[output + i] * (uint32_t)ones[r]);
        write(job, first + r, output, count, sums + r * QUANTIZED_COLUMNS, addends);
    }
}

/* Computes bytes of some slivers for `count` pixels whose rows are `a`. */
static void compute_bytes(const integer_product *job, int64_t first, int64_t count, int64_t group, int64_t begin,
                          int64_t end, const uint8_t *a, int64_t a_row)
{
    const int64_t group_outputs = job->group_outputs, sliver_bytes = job->quads * QUANTIZED_COLUMNS * QUANTIZED_QUAD;
    const int64_t tile_rows = ceil_div(count, ceil_div(count, QUANTIZED_ROWS)); /* equal numbers of rows in all tiles */
    const int8_t *weights = job->weights + group * job->slivers * sliver_bytes;
    for (int64_t s = begin; s < end; s++) {
        const int64_t output = group * group_outputs + s * QUANTIZED_COLUMNS;
        const int columns = (int)min(QUANTIZED_COLUMNS, group_outputs - s * QUANTIZED_COLUMNS);
        for (int64_t r = 0; r < count && !vme_stopping(job->context); r += tile_rows)
            job->kernels->tile_bytes((int)min(tile_rows, count - r), columns, job->quads, a + r * a_row, a_row,
                                     weights + s * sliver_bytes, job->addends + output, job->factors + output, job->to,
                                     job->out + (first + r) * job->out_pixel + output, job->out_pixel);
    }
}

static void compute_block(const integer_product *job, int64_t first, int64_t group, int64_t begin, int64_t end,
                          char *slot)
{
    const int64_t count = min(job->block, job->pixels - first),
                  sliver_bytes = job->quads * QUANTIZED_COLUMNS * QUANTIZED_QUAD;
    const int8_t *weights = job->weights + group * job->slivers * sliver_bytes;
    int32_t *sums = (int32_t *)slot, *ones = sums + QUANTIZED_ROWS * QUANTIZED_COLUMNS;
    uint8_t *rows = (uint8_t *)slot + ROWS_OFFSET;
    const uint8_t *a = job->direct ? job->in + first * job->channels : rows;
    const int64_t a_row = job->direct ? job->channels : job->row_bytes;
    if (!job->direct)
        copy_rows(job, first, count, group, rows);
    if (job->bytes) {
        compute_bytes(job, first, count, group, begin, end, a, a_row);
        return;
    }
    const int64_t last = job->slivers - 1, ones_column = (job->group_outputs - 1) % QUANTIZED_COLUMNS;
    for (int64_t r = 0; r < count && job->zeros != NULL; r += QUANTIZED_ROWS) {
        const int64_t tile_rows = min(QUANTIZED_ROWS, count - r);
        if (vme_stopping(job->context))
            return;
        job->kernels->tile((int)tile_rows, job->quads, a + r * a_row, a_row, weights + last * sliver_bytes, sums);
        for (int64_t i = 0; i < tile_rows; i++)
            ones[r + i] = sums[i * QUANTIZED_COLUMNS + ones_column];
    }
    for (int64_t s = begin; s < end; s++)
        for (int64_t r = 0; r < count; r += QUANTIZED_ROWS) {
            const int64_t tile_rows = min(QUANTIZED_ROWS, count - r);
            if (vme_stopping(job->context))
                return;
            job->kernels->tile((int)tile_rows, job->quads, a + r * a_row, a_row, weights + s * sliver_bytes, sums);
            write_tile(job, first + r, tile_rows, group, s, sums, ones + r);
        }
}

static void compute_blocks(void *argument, int64_t slot, vme_items *items)
{
    const integer_product *job = argument;
    for (int64_t item; vme_item_next(items, &item);) {
        const int64_t block = item / (job->groups * job->sliver_groups),
                      rest = item % (job->groups * job->sliver_groups);
        const int64_t group = rest / job->sliver_groups, begin = rest % job->sliver_groups * job->group_slivers;
        compute_block(job, block * job->block, group, begin, min(job->slivers, begin + job->group_slivers),
                      job->slots + slot * job->slot_bytes);
    }
}

/* ---- depthwise windows */
/* Addresses of the taps of one pixel's window, repeated for each part of the weights. */
static void find_taps(const integer_product *job, int64_t top, int64_t column, const uint8_t *in, int64_t in_row,
                      bool from_top, const uint8_t *padding, const uint8_t **taps)
{
    const int32_t *p = job->p;
    const int64_t left = column * p[STRIDE_W] - p[PAD_LEFT], count = (int64_t)p[KERNEL_H] * p[KERNEL_W];
    for (int64_t h = 0, tap = 0; h < p[KERNEL_H]; h++)
        for (int64_t w = 0; w < p[KERNEL_W]; w++, tap++) {
            const int64_t y = top + h * p[DILATION_H], x = left + w * p[DILATION_W];
            taps[tap] = y < 0 || y >= job->height || x < 0 || x >= job->width
                            ? padding
                            : in + (from_top ? h : y) * in_row + x * job->channels;
        }
    for (int64_t part = 1; part < p[INTEGER_DEPTHWISE]; part++)
        memcpy(taps + part * count, taps, (size_t)count * sizeof *taps);
}

/* A slot holds addresses of taps, sums, a pixel of zero points, and, for int8, the converted rows under the window. */
static void depthwise_row(const integer_product *job, int64_t number, char *slot)
{
    const int32_t *p = job->p;
    const int64_t image = number / job->out_height, top = number % job->out_height * p[STRIDE_H] - p[PAD_TOP],
                  channels = job->channels, row = job->width * channels, taps = job->k * p[INTEGER_DEPTHWISE];
    const uint8_t **addresses = (const uint8_t **)(void *)slot, *in = job->in + image * job->height * row;
    int32_t *sums = (int32_t *)(void *)(addresses + DEPTHWISE_PIXELS * taps);
    uint8_t *padding = (uint8_t *)(sums + DEPTHWISE_PIXELS * channels), *flipped = padding + channels;
    memset(padding, job->zero, (size_t)channels);
    for (int64_t h = 0; job->flip && h < p[KERNEL_H]; h++) {
        const int64_t y = top + h * p[DILATION_H];
        for (int64_t x = 0; y >= 0 && y < job->height && x < job->width && !vme_stopping(job->context); x++)
            job->kernels->flip(channels, in + y * row + x * channels, flipped + h * row + x * channels);
    }
    if (job->uses_row3) {
        quantized_row row3 = {.width = job->width,
                              .out_width = job->out_width,
                              .channels = channels,
                              .stride = p[STRIDE_W],
                              .pad = p[PAD_LEFT],
                              .weights = job->weights,
                              .more = job->addends,
                              .factors = job->factors,
                              .to = job->to,
                              .zero = job->zero};
        for (int64_t h = 0; h < 3; h++) {
            const int64_t y = top + h * p[DILATION_H];
            const bool in_image = y >= 0 && y < job->height;
            row3.in[h] = !in_image ? padding : job->flip ? flipped + h * row : in + y * row;
            row3.in_step[h] = in_image ? channels : 0;
        }
        if (job->kernels->row3(&row3, job->out + number * job->out_width * channels))
            return;
    }
    for (int64_t column = 0, count; column < job->out_width && !vme_stopping(job->context); column += count) {
        count = min(DEPTHWISE_PIXELS, job->out_width - column);
        for (int64_t i = 0; i < count; i++)
            find_taps(job, top, column + i, job->flip ? flipped : in, row, job->flip != 0, padding,
                      addresses + i * taps);
        job->kernels->windows(count, channels, (int)taps, addresses, job->weights, sums);
        for (int64_t i = 0; i < count; i++)
            write(job, number * job->out_width + column + i, 0, channels, sums + i * channels, job->addends);
    }
}

static void depthwise_rows(void *argument, int64_t slot, vme_items *items)
{
    const integer_product *job = argument;
    for (int64_t row; vme_item_next(items, &row);)
        depthwise_row(job, row, job->slots + slot * job->slot_bytes);
}

/* ---- the step */
/* Elements from a pixel of the result to the next one. */
static int64_t pixel_stride(const model_value *out)
{
    for (int d = 2; d >= 0; d--)
        if (out->shape[d] > 1)
            return out->strides[d] / vme_dtype_size((vme_dtype)out->dtype);
    return out->shape[3];
}

static void lay_out(integer_product *job, const vme_model *model, const model_step *step, int threads)
{
    const model_value *in = &model->value[step->operand[0]], *out = &model->value[step->out];
    const int32_t *p = job->p = step->p;
    job->images = in->shape[0], job->height = in->shape[1], job->width = in->shape[2], job->channels = in->shape[3];
    job->out_height = out->shape[1], job->out_width = out->shape[2], job->outputs = out->shape[3];
    job->out_pixel = pixel_stride(out);
    job->groups = p[GROUPS];
    job->group_channels = job->channels / job->groups;
    job->group_outputs = job->outputs / job->groups + (step->operand[5] >= 0);
    job->depthwise = p[INTEGER_DEPTHWISE] != 0;
    job->k = (int64_t)p[KERNEL_H] * p[KERNEL_W] * job->group_channels;
    job->quads = ceil_div(job->k, QUANTIZED_QUAD);
    job->row_bytes = job->quads * QUANTIZED_QUAD;
    job->slivers = ceil_div(job->group_outputs, QUANTIZED_COLUMNS);
    job->pixels = job->images * job->out_height * job->out_width;
    job->block = ceil_div(max(1, job->pixels), ceil_div(max(1, job->pixels), BLOCK_PIXELS_MAX));
    job->blocks = ceil_div(job->pixels, job->block);
    const int64_t min_pieces = threads == 1 ? 1 : PIECES_MIN * threads,
                  min_groups = ceil_div(min_pieces, job->blocks * job->groups);
    job->group_slivers = ceil_div(job->slivers, min(min_groups, job->slivers));
    job->sliver_groups = ceil_div(job->slivers, job->group_slivers);
    job->flip = in->dtype == VME_INT8 ? FLIP : 0;
    job->direct = !job->flip && job->groups == 1 && job->channels % QUANTIZED_QUAD == 0 && windows_are_pixels(p)
                  && (p[PAD_TOP] | p[PAD_LEFT] | p[PAD_BOTTOM] | p[PAD_RIGHT]) == 0;
    job->uses_row3 = p[INTEGER_DEPTHWISE] == 1 && p[KERNEL_H] == 3 && p[KERNEL_W] == 3 && p[DILATION_W] == 1
                     && (out->dtype == VME_UINT8 || out->dtype == VME_INT8);
    if (job->depthwise)
        job->slot_bytes = DEPTHWISE_PIXELS * job->k * p[INTEGER_DEPTHWISE] * (int64_t)sizeof(char *)
                          + DEPTHWISE_PIXELS * job->channels * (int64_t)sizeof(int32_t) + job->channels
                          + (job->flip ? p[KERNEL_H] * job->width * job->channels : 0);
    else
        job->slot_bytes = ROWS_OFFSET + (job->direct ? 0 : BLOCK_PIXELS_MAX * job->row_bytes + SPILL);
    job->slot_bytes = ceil_div(job->slot_bytes, VME_ALIGNMENT) * VME_ALIGNMENT;
}

static const void *data_of(const vme_model *model, const model_step *step, int operand, char *arena)
{
    return step->operand[operand] < 0 ? NULL : model_tensor(model, step->operand[operand], arena).data;
}

/* Sets what is added to each output's sum: its bias, and the zero point's correction by the sum of its weights. */
static void set_addends(const integer_product *job, const int32_t *sums, const int32_t *bias)
{
    const int32_t zero = job->zero;
    for (int64_t i = 0; i < job->outputs; i++) {
        uint32_t addend = (bias == NULL ? 0 : (uint32_t)bias[i]) - (uint32_t)zero * (uint32_t)sums[i];
        if (job->zeros != NULL)
            addend += (uint32_t)job->k * (uint32_t)zero * (uint32_t)job->zeros[i];
        job->addends[i] = (int32_t)addend;
    }
}

static vme_status integer_product_run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    integer_product job = {
        .context = context,
        .kernels = model->kernels->quantized,
        .in = data_of(model, step, 0, arena),
        .weights = data_of(model, step, 1, arena),
        .factors = data_of(model, step, 4, arena),
        .zeros = data_of(model, step, 5, arena),
        .out = (uint8_t *)model_tensor(model, step->out, arena).data,
        .out_dtype = model->value[step->out].dtype,
    };
    lay_out(&job, model, step, step->slots);
    const uint8_t *zero = data_of(model, step, 6, arena);
    job.zero = (zero == NULL ? 0 : *zero) ^ job.flip;
    const int32_t sign_offset = job.out_dtype == VME_INT8 ? FLIP : 0;
    job.to = (quantized_result){.zero = step->p[INTEGER_ZERO] + sign_offset,
                                .low = step->p[INTEGER_LOW] + sign_offset,
                                .high = step->p[INTEGER_HIGH] + sign_offset,
                                .flip = (uint8_t)sign_offset};
    char *scratch = arena + model->value[step->scratch].offset;
    job.addends = (int32_t *)scratch;
    job.slots = scratch + ceil_div(job.outputs * (int64_t)sizeof(int32_t), VME_ALIGNMENT) * VME_ALIGNMENT;
    set_addends(&job, data_of(model, step, 2, arena), data_of(model, step, 3, arena));
    job.bytes = job.zeros == NULL && (job.out_dtype == VME_UINT8 || job.out_dtype == VME_INT8);
    for (int64_t i = 0; i < job.outputs && job.bytes; i++)
        job.bytes = job.factors[i] > -1 && job.factors[i] < 1;
    return job.depthwise ? vme_parallel_slots(context, step->slots, job.images * job.out_height, depthwise_rows, &job)
                         : vme_parallel_slots(context, step->slots, job.blocks * job.groups * job.sliver_groups,
                                              compute_blocks, &job);
}

bool model_is_integer_product(const model_step *step) { return step->run == integer_product_run; }

int64_t integer_product_scratch(const vme_model *model, model_step *step)
{
    integer_product job;
    const int threads = (int)min(vme_threads(), VME_SLOTS_MAX);
    lay_out(&job, model, step, threads);
    const int64_t items = job.depthwise ? job.images * job.out_height : job.blocks * job.groups * job.sliver_groups;
    step->slots = (int)min(items, threads);
    lay_out(&job, model, step, step->slots);
    return ceil_div(job.outputs * (int64_t)sizeof(int32_t), VME_ALIGNMENT) * VME_ALIGNMENT
           + job.slot_bytes * step->slots;
}

int64_t integer_product_terms(const vme_model *model, const model_step *step)
{
    integer_product job;
    lay_out(&job, model, step, 1);
    return job.depthwise ? job.k * step->p[INTEGER_DEPTHWISE] : job.quads * QUANTIZED_QUAD;
}

/* ---- checks */
bool byte_tensor_is_dense(model_preparation *preparation, int tensor, int dtype, int rank, const int64_t *shape)
{
    if (tensor < 0)
        return true;
    model_value *value = &preparation->model->value[tensor];
    int64_t stride = vme_dtype_size((vme_dtype)value->dtype);
    bool fits = value->dtype == dtype && value->rank == rank && !value->channels_last;
    for (int d = rank - 1; fits && d >= 0; d--) {
        fits = value->shape[d] == shape[d] && (value->shape[d] == 1 || value->strides[d] == stride);
        stride *= value->shape[d];
    }
    value->plain = true;
    return fits;
}

/* Whether the elements of each pixel are contiguous, and the pixels at equal distances without overlap. */
static bool has_even_pixels(const model_value *out)
{
    const int64_t size = vme_dtype_size((vme_dtype)out->dtype), stride = pixel_stride(out) * size;
    int64_t next = stride;
    bool fits = (out->shape[3] == 1 || out->strides[3] == size) && stride >= out->shape[3] * size;
    for (int d = 2; fits && d >= 0; d--) {
        fits = out->shape[d] == 1 || out->strides[d] == next;
        next *= out->shape[d];
    }
    return fits;
}

bool byte_window_fits(const model_value *in, const model_value *out, const int32_t *p)
{
    for (int d = 0; d < 2; d++) {
        if (p[KERNEL_H + d] < 1 || p[STRIDE_H + d] < 1 || p[DILATION_H + d] < 1 || p[PAD_TOP + d] < 0
            || p[PAD_BOTTOM + d] < 0)
            return false;
        const int64_t room = in->shape[1 + d] + p[PAD_TOP + d] + p[PAD_BOTTOM + d]
                             - ((int64_t)p[DILATION_H + d] * (p[KERNEL_H + d] - 1) + 1);
        if (room < 0 || out->shape[1 + d] != room / p[STRIDE_H + d] + 1)
            return false;
    }
    return out->shape[0] == in->shape[0];
}

vme_status model_make_integer_product(model_preparation *preparation, uint32_t number, const model_node_record *node,
                                      const uint32_t *operands, model_step *step, int step_number)
{
    (void)operands, (void)step_number;
    const model_value *in = &preparation->model->value[step->operand[0]], *out = &preparation->model->value[step->out];
    const int32_t *p = step->p;
    step->run = integer_product_run;
    if (node->inputs > 7 || step->operand[1] < 0 || step->operand[2] < 0)
        return MODEL_WRONG(number, "has %u operands, expected weights, their sums and at most 7", node->inputs);
    if ((in->dtype != VME_UINT8 && in->dtype != VME_INT8) || in->rank != 4 || out->rank != 4
        || !byte_window_fits(in, out, p))
        return MODEL_WRONG(number, "has an operand that is no image of bytes, or a window that does not fit it");
    const int64_t groups = p[GROUPS], channels = in->shape[3], outputs = out->shape[3];
    if (groups < 1 || channels % groups != 0 || outputs % groups != 0 || p[INTEGER_DEPTHWISE] < 0
        || p[INTEGER_DEPTHWISE] > PARTS_MAX)
        return MODEL_WRONG(number, "has %d groups of %lld channels and %lld outputs", p[GROUPS], (long long)channels,
                           (long long)outputs);
    const bool bytes = out->dtype == VME_UINT8 || out->dtype == VME_INT8, depthwise = p[INTEGER_DEPTHWISE] != 0;
    const int32_t lowest = out->dtype == VME_INT8 ? -FLIP : 0;
    if (!(bytes || out->dtype == VME_INT32 || out->dtype == VME_FLOAT32)
        || (step->operand[4] < 0) != (out->dtype == VME_INT32)
        || (bytes
            && (p[INTEGER_LOW] < lowest || p[INTEGER_LOW] > p[INTEGER_HIGH] || p[INTEGER_HIGH] > lowest + 255
                || p[INTEGER_ZERO] < lowest || p[INTEGER_ZERO] > lowest + 255)))
        return MODEL_WRONG(number, "has a result that is neither bytes, sums, nor float32 with factors");
    int64_t taps, k;
    if (__builtin_mul_overflow((int64_t)p[KERNEL_H], (int64_t)p[KERNEL_W], &taps)
        || __builtin_mul_overflow(taps, channels / groups, &k) || k > INT32_MAX / 255 / 128)
        return MODEL_WRONG(number, "has sums that may exceed 32 bits");
    const int64_t group_outputs = outputs / groups + (step->operand[5] >= 0), one_element = 1;
    const int64_t packed[] = {groups, ceil_div(group_outputs, QUANTIZED_COLUMNS), ceil_div(k, QUANTIZED_QUAD),
                              QUANTIZED_COLUMNS, QUANTIZED_QUAD},
                  depthwise_packed[] = {1, 1, taps * max(1, p[INTEGER_DEPTHWISE]), channels, 1};
    if (depthwise && (groups != channels || outputs != channels || step->operand[5] >= 0 || taps > WINDOW_MAX))
        return MODEL_WRONG(number, "is not depthwise");
    const bool fits =
        byte_tensor_is_dense(preparation, step->operand[0], in->dtype, 4, in->shape)
        && byte_tensor_is_dense(preparation, step->operand[1], VME_INT8, 5, depthwise ? depthwise_packed : packed)
        && byte_tensor_is_dense(preparation, step->operand[2], VME_INT32, 1, &outputs)
        && byte_tensor_is_dense(preparation, step->operand[3], VME_INT32, 1, &outputs)
        && byte_tensor_is_dense(preparation, step->operand[4], VME_FLOAT32, 1, &outputs)
        && byte_tensor_is_dense(preparation, step->operand[5], VME_INT32, 1, &outputs)
        && byte_tensor_is_dense(preparation, step->operand[6], in->dtype, 1, &one_element)
        && (depthwise ? byte_tensor_is_dense(preparation, step->out, out->dtype, 4, out->shape)
                      : !out->channels_last && has_even_pixels(out));
    preparation->model->value[step->out].plain = true;
    if (!fits)
        return MODEL_WRONG(number, "has operands whose shapes or dtypes do not match");
    for (int i = 0; i < 7; i++)
        if (step->operand[i] >= 0
            && model_root(preparation->model, step->operand[i]) == model_root(preparation->model, step->out))
            return MODEL_WRONG(number, "has a result that overlaps an operand");
    return VME_OK;
}
