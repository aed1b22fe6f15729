/* Max pooling of images of uint8 or int8, [n, height, width, channels], as integer products (integer_products.c) make
 * and read them. Padding is skipped. */
#include "models/file.h"
#include "models/integer_products.h"
#include "models/makers.h"
#include "models/model.h"
#include "models/preparation.h"
#include "models/quantized_kernels.h"
#include "models/step.h"
#include "models/tensors.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/numbers.h"

#include <string.h>

enum {
    TAPS_MAX = 1 << 10,
    FLIP = 0x80,                /* XORed with int8 to read it as uint8 (quantized_kernels.h) */
    CHANNELS_AT_ONCE = 1 << 13, /* between two checks of the stop flag */
    PIECE = 1 << 16,            /* bytes read by the rows that a thread takes at once */
};

typedef struct byte_pooling {
    vme_context *context;
    const model_quantized_kernels *kernels;
    const int32_t *p;
    const uint8_t *in;
    uint8_t *out;
    uint8_t flip;
    int64_t height, width, channels, out_height, out_width;
} byte_pooling;

/* Pools rows `begin` to `end` of the result, numbered across all images. */
static vme_status pool_rows(void *argument, int64_t begin, int64_t end)
{
    const byte_pooling *job = argument;
    const int32_t *p = job->p;
    const int64_t row = job->width * job->channels;
    const uint8_t *taps[TAPS_MAX];
    for (int64_t number = begin; number < end; number++) {
        const int64_t image = number / job->out_height, top = number % job->out_height * p[STRIDE_H] - p[PAD_TOP];
        const uint8_t *from = job->in + image * job->height * row;
        uint8_t *to = job->out + number * job->out_width * job->channels;
        for (int64_t column = 0; column < job->out_width; column++, to += job->channels) {
            const int64_t left = column * p[STRIDE_W] - p[PAD_LEFT];
            int count = 0;
            for (int64_t h = 0, y = top; h < p[KERNEL_H]; h++, y += p[DILATION_H])
                for (int64_t w = 0, x = left; y >= 0 && y < job->height && w < p[KERNEL_W]; w++, x += p[DILATION_W])
                    if (x >= 0 && x < job->width)
                        taps[count++] = from + y * row + x * job->channels;
            for (int64_t c = 0; c < job->channels && !vme_stopping(job->context); c += CHANNELS_AT_ONCE) {
                const int64_t c_end = min(job->channels, c + CHANNELS_AT_ONCE);
                if (count > 0)
                    job->kernels->largest(c, c_end, count, taps, job->flip, to);
                else
                    memset(to + c, job->flip, (size_t)(c_end - c)); /* the dtype's minimum */
            }
        }
    }
    return VME_OK;
}

static vme_status byte_pooling_run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    const model_value *in = &model->value[step->operand[0]], *out = &model->value[step->out];
    byte_pooling job = {
        .context = context,
        .kernels = model->kernels->quantized,
        .p = step->p,
        .in = (const uint8_t *)model_tensor(model, step->operand[0], arena).data,
        .out = (uint8_t *)model_tensor(model, step->out, arena).data,
        .flip = in->dtype == VME_INT8 ? FLIP : 0,
        .height = in->shape[1],
        .width = in->shape[2],
        .channels = in->shape[3],
        .out_height = out->shape[1],
        .out_width = out->shape[2],
    };
    const int64_t work = job.out_width * job.channels * step->p[KERNEL_H] * step->p[KERNEL_W];
    return vme_parallel_apart(context, out->shape[0] * job.out_height, PIECE / (work + 1) + 1, pool_rows, &job);
}

vme_status model_make_byte_pooling(model_preparation *preparation, uint32_t number, const model_node_record *node,
                                   const uint32_t *operands, model_step *step, int step_number)
{
    (void)operands, (void)step_number;
    const model_value *in = &preparation->model->value[step->operand[0]], *out = &preparation->model->value[step->out];
    const int32_t *p = step->p;
    step->run = byte_pooling_run;
    if (node->inputs != 1)
        return MODEL_WRONG(number, "has %u operands, expected 1", node->inputs);
    if ((in->dtype != VME_UINT8 && in->dtype != VME_INT8) || in->rank != 4 || out->rank != 4
        || !byte_window_fits(in, out, p) || (int64_t)p[KERNEL_H] * p[KERNEL_W] > TAPS_MAX
        || in->shape[3] != out->shape[3])
        return MODEL_WRONG(number, "has an operand that is no image of bytes, or a window that does not fit it");
    if (!byte_tensor_is_dense(preparation, step->operand[0], in->dtype, 4, in->shape)
        || !byte_tensor_is_dense(preparation, step->out, in->dtype, 4, out->shape))
        return MODEL_WRONG(number, "has operands of incompatible shapes");
    if (model_root(preparation->model, step->operand[0]) == model_root(preparation->model, step->out))
        return MODEL_WRONG(number, "has a result that overlaps what it reads");
    return VME_OK;
}
