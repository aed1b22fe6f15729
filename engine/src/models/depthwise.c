/* Depthwise convolution: as many groups as channels, so each output channel depends on one input channel. Rows of
 * outputs go to the backend's kernel; margins of zeros implement the padding.
 *
 * Weights are packed as [kh][kw][channels], followed by the bias. */
#include "models/depthwise.h"
#include "models/file.h"
#include "models/model.h"
#include "models/row_kernels.h"
#include "models/rows.h"
#include "models/step.h"
#include "models/steps.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/machine.h"

#include <string.h>

int64_t depthwise_packed(const model_step *step, int64_t channels) { return channels * (step->k + 1); }

void depthwise_pack(model_step *step, int64_t channels, const char *weights, const char *bias)
{
    for (int64_t index = 0; index < step->k; index++)
        for (int64_t channel = 0; channel < channels; channel++)
            memcpy(step->weights + index * channels + channel, weights + (channel * step->k + index) * 4, 4);
    step->bias = step->weights + step->k * channels;
    if (bias != NULL)
        memcpy(step->bias, bias, (size_t)channels * 4);
    else
        memset(step->bias, 0, (size_t)channels * 4);
}

typedef struct depthwise {
    vme_context *context;
    const vme_model *model;
    const model_step *step;
    const model_band *band;
    int64_t call_outputs;      /* of one kernel call, at most */
    model_curve_kernel *curve; /* the activation, or NULL */
} depthwise;

static void convolve_row(const depthwise *job, int64_t n, int64_t y)
{
    const model_value *in = job->band->in, *addend = job->band->addend, *out = job->band->out;
    const int32_t *p = job->step->p;
    char *arena = job->band->arena;
    vme_depthwise call = {
        .channels = out->c,
        .kernel_h = p[KERNEL_H],
        .kernel_w = p[KERNEL_W],
        .in = model_pixel(in, arena, n, y * p[STRIDE_H] - p[PAD_TOP], -p[PAD_LEFT]),
        .in_row = p[DILATION_H] * in->row_stride,
        .in_column = p[DILATION_W] * in->pixel_stride,
        .in_stride = p[STRIDE_W] * in->pixel_stride,
        .weights = job->step->weights,
        .bias = job->step->bias,
        .bounds = job->step->bounds,
        .addend = addend == NULL ? NULL : model_pixel(addend, arena, n, y, 0),
        .addend_pixel = addend == NULL ? 0 : addend->pixel_stride,
        .out = model_pixel(out, arena, n, y, 0),
        .out_pixel = out->pixel_stride,
    };
    for (int64_t left = out->w; left > 0 && !vme_stopping(job->context); left -= call.outputs) {
        call.outputs = left < job->call_outputs ? left : job->call_outputs;
        job->model->kernels->model.depthwise(&call);
        for (int64_t x = 0; x < call.outputs && job->curve != NULL; x++)
            job->curve(p[ACTIVATION] - ACTIVATION_CURVES, out->c, call.out + x * call.out_pixel,
                       call.out + x * call.out_pixel);
        call.in += call.outputs * call.in_stride;
        call.out += call.outputs * call.out_pixel;
        call.addend = call.addend == NULL ? NULL : call.addend + call.outputs * call.addend_pixel;
    }
}

static vme_status convolve_rows(void *argument, int64_t begin, int64_t end)
{
    const depthwise *job = argument;
    const int64_t h = job->band->out->h;
    for (int64_t i = begin; i < end && !vme_stopping(job->context); i++)
        convolve_row(job, i / h, i % h);
    return VME_OK;
}

static depthwise job_of_band(vme_context *context, const vme_model *model, const model_step *step,
                             const model_band *band)
{
    return (depthwise){
        .context = context,
        .model = model,
        .step = step,
        .band = band,
        .call_outputs = DEPTHWISE_PIECE / (band->out->c * step->k) / 28 * 28 + 28,
        .curve = model_curve_of(model, step),
    };
}

vme_status depthwise_run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    const model_band whole = model_whole_band(model, step, arena);
    const model_value *out = whole.out;
    depthwise job = job_of_band(context, model, step, &whole);
    return vme_parallel_apart(context, out->n * out->h, DEPTHWISE_PIECE / (out->w * out->c * step->k) + 1,
                              convolve_rows, &job);
}

void depthwise_band(vme_context *context, const vme_model *model, const model_step *step, const model_band *band)
{
    depthwise job = job_of_band(context, model, step, band);
    convolve_rows(&job, band->n * band->out->h + band->begin, band->n * band->out->h + band->end);
}
