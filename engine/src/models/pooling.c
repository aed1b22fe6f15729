/* Pooling: each pixel is computed from those under its window. Padding is skipped, and may count in an average. */
#include "models/pooling.h"
#include "models/file.h"
#include "models/model.h"
#include "models/step.h"
#include "models/steps.h"
#include "models/value.h"
#include "runtime/internal.h"

typedef struct pooling {
    vme_context *context;
    const vme_model *model;
    const model_step *step;
    const model_band *band;
} pooling;

/* Counts the positions at + i * dilation, i < kernel, that are in [begin, end), and sets `first` to the first one. */
static int64_t count_taps(int64_t at, int64_t kernel, int64_t dilation, int64_t begin, int64_t end, int64_t *first)
{
    int64_t skipped = at < begin ? (begin - at + dilation - 1) / dilation : 0;
    *first = at + skipped * dilation;
    int64_t fitting = *first >= end   ? 0
                      : dilation == 1 ? end - *first
                                      : (end - *first - 1) / dilation + 1,
            remaining = kernel - skipped;
    return fitting < remaining ? fitting : remaining > 0 ? remaining : 0;
}

/* Few channels do not fill a vector: then the whole rows under the windows are first pooled into one line. */
enum { FEW_CHANNELS = 8, LINE_MAX = 2048 }; /* LINE_MAX: elements of a line, which is on the stack */

static bool uses_line(const model_value *in)
{
    return in->c < FEW_CHANNELS && in->pixel_stride == in->c && in->w * in->c <= LINE_MAX;
}

static void pool_line(const model_value *in, const vme_pooling *rows, bool is_max, float *restrict line)
{
    const int64_t count = in->w * in->c;
    const float *restrict from = rows->in;
    for (int64_t i = 0; i < count; i++)
        line[i] = from[i];
    for (int64_t h = 1; h < rows->rows; h++) {
        from += rows->row_step;
        if (is_max)
            for (int64_t i = 0; i < count; i++)
                line[i] = line[i] > from[i] ? line[i] : from[i];
        else
            for (int64_t i = 0; i < count; i++)
                line[i] += from[i];
    }
}

/* Pools one window: the pixels of the line from `first` on. */
static void pool_columns(const model_value *in, const vme_pooling *window, bool is_max, const float *line,
                         int64_t first)
{
    for (int64_t channel = 0; channel < in->c; channel++) {
        const float *from = line + first * in->c + channel;
        float value = *from;
        for (int64_t w = 1; w < window->columns; w++) {
            from += window->column_step;
            value = !is_max ? value + *from : value > *from ? value : *from;
        }
        window->out[channel] = is_max ? value : value * window->factor;
    }
}

static void pool_row(const pooling *job, int64_t n, int64_t y)
{
    const int32_t *p = job->step->p;
    const model_value *in = job->band->in, *out = job->band->out;
    char *arena = job->band->arena;
    bool is_max = job->step->kind == STEP_MAX_POOL;
    int64_t from_y, from_x, top = y * p[STRIDE_H] - p[PAD_TOP], unused;
    vme_pooling window = {
        .channels = in->c,
        .rows = count_taps(top, p[KERNEL_H], p[DILATION_H], 0, in->h, &from_y),
        .row_step = p[DILATION_H] * in->row_stride,
        .column_step = p[DILATION_W] * in->pixel_stride,
    };
    int64_t counted_rows = p[COUNT_PADDING] == 0 ? window.rows
                                                 : count_taps(top, p[KERNEL_H], p[DILATION_H], -p[PAD_TOP],
                                                              in->h + p[PAD_BOTTOM] - p[UNCOUNTED_BOTTOM], &unused);
    float line[LINE_MAX];
    const bool with_line = window.rows > 0 && uses_line(in);
    if (with_line) {
        window.in = model_pixel(in, arena, n, from_y, 0);
        pool_line(in, &window, is_max, line);
    }
    for (int64_t x = 0; x < out->w && !vme_stopping(job->context); x++) {
        int64_t left = x * p[STRIDE_W] - p[PAD_LEFT];
        window.columns = count_taps(left, p[KERNEL_W], p[DILATION_W], 0, in->w, &from_x);
        window.out = model_pixel(out, arena, n, y, x);
        if (window.rows == 0 || window.columns == 0) { /* a dilated window may see padding only */
            for (int64_t i = 0; i < out->c; i++)
                window.out[i] = is_max ? -__builtin_inff() : 0;
            continue;
        }
        window.in = model_pixel(in, arena, n, from_y, from_x);
        if (is_max && !with_line)
            job->model->kernels->model.largest(&window);
        else if (!is_max) {
            int64_t counted = p[COUNT_PADDING] == 0 ? window.columns
                                                    : count_taps(left, p[KERNEL_W], p[DILATION_W], -p[PAD_LEFT],
                                                                 in->w + p[PAD_RIGHT] - p[UNCOUNTED_RIGHT], &unused);
            window.factor = 1 / (float)(counted_rows * counted);
            if (!with_line)
                job->model->kernels->model.sum(&window);
        }
        if (with_line)
            pool_columns(in, &window, is_max, line, from_x);
    }
}

static void average_image(const pooling *job, int64_t n)
{
    const model_value *in = job->band->in;
    char *arena = job->band->arena;
    vme_pooling window = {
        .channels = in->c,
        .rows = 1,
        .columns = in->w,
        .column_step = in->pixel_stride,
        .out = model_pixel(job->band->out, arena, n, 0, 0),
        .factor = 1,
    };
    for (int64_t y = 0; y < in->h && !vme_stopping(job->context); y++, window.more = true) {
        window.in = model_pixel(in, arena, n, y, 0);
        if (y == in->h - 1)
            window.factor = 1 / (float)(in->h * in->w);
        job->model->kernels->model.sum(&window);
    }
}

static vme_status pool_rows(void *argument, int64_t begin, int64_t end)
{
    const pooling *job = argument;
    for (int64_t i = begin; i < end && !vme_stopping(job->context); i++)
        if (job->step->kind == STEP_GLOBAL_AVERAGE_POOL)
            average_image(job, i);
        else
            pool_row(job, i / job->band->out->h, i % job->band->out->h);
    return VME_OK;
}

vme_status pooling_run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    enum { PIECE = 1 << 16 }; /* elements read between two checks of the stop flag, or those of one row */
    const model_band band = model_whole_band(model, step, arena);
    pooling job = {.context = context, .model = model, .step = step, .band = &band};
    const model_value *in = band.in, *out = band.out;
    bool is_global = step->kind == STEP_GLOBAL_AVERAGE_POOL;
    int64_t window = is_global ? in->h * in->w : (int64_t)step->p[KERNEL_H] * step->p[KERNEL_W];
    return vme_parallel_apart(context, is_global ? out->n : out->n * out->h, PIECE / (out->w * out->c * window + 1) + 1,
                              pool_rows, &job);
}

void pooling_band(vme_context *context, const vme_model *model, const model_step *step, const model_band *band)
{
    pooling job = {.context = context, .model = model, .step = step, .band = band};
    pool_rows(&job, band->n * band->out->h + band->begin, band->n * band->out->h + band->end);
}
