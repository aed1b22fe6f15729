/* Depthwise convolution: as many groups as channels, each channel is made of its own. Rows of outputs go to the backend's kernel; margins of
 * zeros stand for the padding.
 *
 * Weights are packed as [kh][kw][channels], the bias behind them. */
#include "model.h"

#include <string.h>

enum { PIECE = 1 << 16 };       /* products between two looks at the stop flag, or one output's */

int64_t depthwise_packed(const model_step *step, int64_t channels) { return channels * (step->k + 1); }

void depthwise_pack(model_step *step, int64_t channels, const char *weights, const char *bias)
{
    for (int64_t place = 0; place < step->k; place++)
        for (int64_t channel = 0; channel < channels; channel++)
            memcpy(step->weights + place * channels + channel, weights + (channel * step->k + place) * 4, 4);
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
    const model_value *in, *addend, *out;
    char *arena;
    int64_t at_once;            /* outputs */
    model_curve_kernel *curve;  /* or NULL */
} depthwise;

static vme_status body(void *argument, int64_t begin, int64_t end)
{
    const depthwise *it = argument;
    const int32_t *p = it->step->p;
    for (int64_t i = begin; i < end; i++) {
        int64_t n = i / it->out->h, y = i % it->out->h;
        vme_depthwise row = {
            .channels = it->out->c, .kernel_h = p[KERNEL_H], .kernel_w = p[KERNEL_W],
            .in = model_pixel(it->in, it->arena, n, y * p[STRIDE_H] - p[PAD_TOP], -p[PAD_LEFT]),
            .in_row = p[DILATION_H] * it->in->row, .in_column = p[DILATION_W] * it->in->pixel, .in_stride = p[STRIDE_W] * it->in->pixel,
            .weights = it->step->weights, .bias = it->step->bias, .bounds = it->step->bounds,
            .addend = it->addend == NULL ? NULL : model_pixel(it->addend, it->arena, n, y, 0),
            .addend_pixel = it->addend == NULL ? 0 : it->addend->pixel,
            .out = model_pixel(it->out, it->arena, n, y, 0), .out_pixel = it->out->pixel,
        };
        for (int64_t left = it->out->w; left > 0; left -= row.outputs) {
            if (vme_stopping(it->context))
                return VME_OK;
            row.outputs = left < it->at_once ? left : it->at_once;
            it->model->kernels->model.depthwise(&row);
            for (int64_t x = 0; x < row.outputs && it->curve != NULL; x++)
                it->curve(p[ACTIVATION] - ACTIVATION_CURVES, it->out->c, row.out + x * row.out_pixel, row.out + x * row.out_pixel);
            row.in += row.outputs * row.in_stride;
            row.out += row.outputs * row.out_pixel;
            row.addend = row.addend == NULL ? NULL : row.addend + row.outputs * row.addend_pixel;
        }
    }
    return VME_OK;
}

vme_status depthwise_run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    const model_value *out = &model->value[step->out];
    depthwise it = {
        .context = context, .model = model, .step = step, .in = &model->value[step->in], .out = out, .arena = arena, .curve = model_curve_of(step),
        .addend = step->addend < 0 ? NULL : &model->value[step->addend], .at_once = PIECE / (out->c * step->k) / 28 * 28 + 28,
    };
    return vme_parallel_apart(context, out->n * out->h, PIECE / (out->w * out->c * step->k) + 1, body, &it);
}
