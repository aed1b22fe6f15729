/* Runs steps of each kind: whole, or some rows of one image for a chain (bands.c). Steps with a file of their own are
 * called from here; this file implements those that move data, add and clip, and clears the margins that convolutions
 * read. */
#include "models/steps.h"
#include "models/convolution.h"
#include "models/depthwise.h"
#include "models/file.h"
#include "models/model.h"
#include "models/pooling.h"
#include "models/step.h"
#include "models/tensors.h"
#include "models/value.h"
#include "runtime/internal.h"

#include <string.h>
#include <time.h>

enum {
    PIECE = 1 << 16,         /* elements moved or added between two checks of the stop flag */
    CLEARED_PIECE = 1 << 20, /* bytes cleared between two checks; memory may be touched for the first time */
};

model_band model_whole_band(const vme_model *model, const model_step *step, char *arena)
{
    const model_value *out = step->out < 0 ? NULL : &model->value[step->out];
    return (model_band){
        .in = step->in < 0 ? NULL : &model->value[step->in],
        .addend = step->addend < 0 ? NULL : &model->value[step->addend],
        .out = out,
        .arena = arena,
        .end = out == NULL ? 0 : out->h,
    };
}

uint64_t model_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A step over rows of pixels. */
typedef struct rows {
    vme_context *context;
    const vme_model *model;
    const model_step *step;
    const model_value *in, *addend, *out;
    char *arena, *caller_data; /* caller_data: the caller's array of an import or export */
} rows;

/* Transposes one row of pixels from channels last to channels first, or back. */
static void transpose_row(const rows *job, const model_value *value, int64_t n, int64_t y, char *caller_data,
                          bool inward)
{
    int64_t plane_bytes = value->h * value->w * 4, pixel_bytes = value->pixel_stride * 4,
            at_once = PIECE / value->c + 1;
    vme_move2 *transpose = job->model->kernels->move.transpose[2];
    for (int64_t x = 0; x < value->w && !vme_stopping(job->context); x += at_once) {
        char *row = (char *)model_pixel(value, job->arena, n, y, x),
             *planes = caller_data + ((n * value->c * value->h + y) * value->w + x) * 4;
        int64_t pixels = value->w - x < at_once ? value->w - x : at_once;
        if (inward)
            transpose(pixels, value->c, planes, 4, plane_bytes, row, pixel_bytes, 4);
        else
            transpose(value->c, pixels, row, 4, pixel_bytes, planes, plane_bytes, 4);
    }
}

/* Processes contiguous runs of a row: of PIECE elements if all pixels are contiguous in every value, otherwise of one
 * pixel. */
static void process_runs(const rows *job, int64_t n, int64_t y)
{
    const vme_model_kernels *kernels = &job->model->kernels->model;
    const model_value *in = job->in, *addend = job->addend, *out = job->out;
    bool joined = in->pixel_stride == in->c && out->pixel_stride == out->c
                  && (addend == NULL || addend->pixel_stride == addend->c);
    int64_t at_once = joined ? PIECE / out->c + 1 : 1;
    for (int64_t x = 0; x < out->w && !vme_stopping(job->context); x += at_once) {
        int64_t count = joined ? (out->w - x < at_once ? out->w - x : at_once) * out->c : in->c;
        const float *from = model_pixel(in, job->arena, n, y, x),
                    *addends = addend == NULL ? NULL : model_pixel(addend, job->arena, n, y, x);
        float *to = model_pixel(out, job->arena, n, y, x);
        switch (job->step->kind) {
        case STEP_ADD: kernels->add(count, from, addends, to, job->step->bounds); break;
        case STEP_CLIP: kernels->clip(count, from, to, job->step->bounds); break;
        case STEP_COPY: memcpy(to, from, (size_t)count * 4); break;
        default: break;
        }
    }
}

static void shuffle(const rows *job, int64_t n, int64_t y)
{
    int64_t groups = job->step->p[GROUPS], members = job->out->c / groups;
    for (int64_t x = 0; x < job->out->w && !vme_stopping(job->context); x++) {
        const float *from = model_pixel(job->in, job->arena, n, y, x);
        float *to = model_pixel(job->out, job->arena, n, y, x);
        if (groups == 2)
            job->model->kernels->model.interleave(
                members, from, job->addend == NULL ? from + members : model_pixel(job->addend, job->arena, n, y, x),
                to);
        else
            for (int64_t group = 0; group < groups; group++)
                for (int64_t member = 0; member < members; member++)
                    to[member * groups + group] = from[group * members + member];
    }
}

/* Processes one row of the step's output, or of its input for exports and flattening. Rows are numbered across all
 * images. */
static void process_row(const rows *job, int64_t number)
{
    const model_value *walked = job->step->kind == STEP_EXPORT || job->step->kind == STEP_FLATTEN ? job->in : job->out;
    int64_t n = number / walked->h, y = number % walked->h;
    switch (job->step->kind) {
    case STEP_IMPORT: transpose_row(job, job->out, n, y, job->caller_data, true); break;
    case STEP_EXPORT: transpose_row(job, job->in, n, y, job->caller_data, false); break;
    case STEP_FLATTEN:
        transpose_row(job, job->in, n, y, (char *)model_pixel(job->out, job->arena, 0, 0, 0), false);
        break;
    case STEP_ADD:
    case STEP_CLIP:
    case STEP_COPY: process_runs(job, n, y); break;
    case STEP_SHUFFLE: shuffle(job, n, y); break;
    case STEP_CONV:
    case STEP_DEPTHWISE:
    case STEP_MAX_POOL:
    case STEP_AVERAGE_POOL:
    case STEP_GLOBAL_AVERAGE_POOL:
    case STEP_TENSOR:
    case STEP_MARGIN:
    case STEP_NOTHING: break;
    }
}

static vme_status process_rows(void *argument, int64_t begin, int64_t end)
{
    const rows *job = argument;
    for (int64_t i = begin; i < end && !vme_stopping(job->context); i++)
        process_row(job, i);
    return VME_OK;
}

void model_clear(vme_context *context, void *from, size_t bytes)
{
    for (size_t at = 0; at < bytes && !vme_stopping(context); at += CLEARED_PIECE)
        memset((char *)from + at, 0, bytes - at < CLEARED_PIECE ? bytes - at : CLEARED_PIECE);
}

static void clear_pixels(vme_context *context, const model_value *value, float *from, int64_t count)
{
    for (; count > 0 && !vme_stopping(context); count--, from += value->pixel_stride)
        memset(from, 0, (size_t)value->c * 4);
}

/* For a value whose pixels have other values' channels between them. */
static void clear_margin_by_pixels(vme_context *context, const model_value *value, char *arena)
{
    int64_t padded_width = value->left + value->w + value->right;
    for (int64_t n = 0; n < value->n; n++)
        for (int64_t y = -value->top; y < value->h + value->bottom; y++) {
            bool in_image = y >= 0 && y < value->h;
            clear_pixels(context, value, model_pixel(value, arena, n, y, -value->left),
                         in_image ? value->left : padded_width);
            if (in_image)
                clear_pixels(context, value, model_pixel(value, arena, n, y, value->w), value->right);
        }
}

void model_clear_margin(vme_context *context, const model_value *value, char *arena)
{
    if (value->top + value->left + value->bottom + value->right == 0)
        return;
    int64_t gap = (value->left + value->right) * value->pixel_stride;
    if (value->pixel_stride != value->c) { /* another value's channels are beside its own in each pixel */
        clear_margin_by_pixels(context, value, arena);
        return;
    }
    for (int64_t n = 0; n < value->n; n++) {
        float *image = (float *)(arena + value->offset) + n * value->image_stride;
        model_clear(context, image, (size_t)(value->top * value->row_stride + value->left * value->pixel_stride) * 4);
        for (int64_t y = 0; y + 1 < value->h; y++) /* the end of a row and the start of the next */
            model_clear(context,
                        image + (value->top + y) * value->row_stride + (value->left + value->w) * value->pixel_stride,
                        (size_t)gap * 4);
        model_clear(context,
                    image + (value->top + value->h - 1) * value->row_stride
                        + (value->left + value->w) * value->pixel_stride,
                    (size_t)(value->right * value->pixel_stride + value->bottom * value->row_stride) * 4);
    }
}

void step_band(vme_context *context, const vme_model *model, const model_step *step, const model_band *band)
{
    rows job = {
        .context = context,
        .model = model,
        .step = step,
        .in = band->in,
        .addend = band->addend,
        .out = band->out,
        .arena = band->arena,
        .caller_data = band->caller_data,
    };
    switch (step->kind) {
    case STEP_CONV: convolution_band(context, model, step, band); break;
    case STEP_DEPTHWISE: depthwise_band(context, model, step, band); break;
    case STEP_MAX_POOL:
    case STEP_AVERAGE_POOL: pooling_band(context, model, step, band); break;
    default: process_rows(&job, band->n * band->out->h + band->begin, band->n * band->out->h + band->end); break;
    }
}

vme_status step_run(vme_context *context, const vme_model *model, const model_step *step, char *arena,
                    const vme_tensor *caller_tensor)
{
    const model_value *in = step->in < 0 ? NULL : &model->value[step->in],
                      *out = step->out < 0 ? NULL : &model->value[step->out];
    if (step->kind == STEP_NOTHING)
        return VME_OK;
    if (out != NULL)
        model_clear_margin(context, out, arena);
    if (step->kind == STEP_MARGIN)
        return VME_OK;
    if (step->kind == STEP_TENSOR)
        return step->run(context, model, step, arena);
    switch (step->kind) {
    case STEP_CONV: return convolution_run(context, model, step, arena);
    case STEP_DEPTHWISE: return depthwise_run(context, model, step, arena);
    case STEP_MAX_POOL:
    case STEP_AVERAGE_POOL:
    case STEP_GLOBAL_AVERAGE_POOL: return pooling_run(context, model, step, arena);
    default: break;
    }
    if (caller_tensor != NULL && model->value[in == NULL ? step->out : step->in].outside > 0)
        return VME_OK; /* it is already there */
    if (caller_tensor != NULL && !model->value[in == NULL ? step->out : step->in].channels_last) {
        vme_tensor own_tensor = model_tensor(model, in == NULL ? step->out : step->in, arena);
        return in == NULL ? vme_copy(context, caller_tensor, &own_tensor)
                          : vme_copy(context, &own_tensor, caller_tensor);
    }
    rows job = {
        .context = context,
        .model = model,
        .step = step,
        .in = in,
        .out = out,
        .arena = arena,
        .caller_data = caller_tensor == NULL ? NULL : caller_tensor->data,
        .addend = step->addend < 0 ? NULL : &model->value[step->addend],
    };
    const model_value *walked = step->kind == STEP_EXPORT || step->kind == STEP_FLATTEN ? in : out;
    int64_t work = (in != NULL && step->kind != STEP_EXPORT ? in->n * in->h * in->w * in->c : 0)
                   + walked->n * walked->h * walked->w * walked->c;
    int64_t count = walked->n * walked->h, grain = PIECE / (work / count + 1) + 1;
    return vme_parallel_apart(context, count, grain, process_rows, &job);
}
