/* Element-wise steps on bytes: quantization of float32 and back, sums and products of quantized numbers, tables.
 *
 * A byte q of a tensor with scale s and zero point z stands for (q - z) * s. All operands are dense and have the shape
 * of the result. The result consists of dense runs at equal distances, as part of the channels of an image does; int8
 * is converted to uint8 by adding 128 (quantized_kernels.h). */
#include "models/quantized_kernels.h"
#include "models/file.h"
#include "models/makers.h"
#include "models/model.h"
#include "models/preparation.h"
#include "models/step.h"
#include "models/tensors.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/numbers.h"

#include <math.h>
#include <string.h>

enum {
    PIECE = 1 << 14, /* elements between two checks of the stop flag */
    FLIP = 0x80,     /* XORed with int8 to read it as uint8 (quantized_kernels.h) */
};

typedef struct quantized_job {
    const model_quantized_kernels *kernels;
    const model_step *step;
    const char *a, *b; /* b: the second operand, or the table */
    char *out;
    int64_t run, run_step; /* length and distance of the result's dense runs, in elements */
    uint8_t a_flip, b_flip;
    int32_t zeros[2]; /* zero points of the converted bytes */
    quantized_result to;
} quantized_job;

static float float_of_bits(int32_t bits)
{
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static uint8_t flip_of(const vme_model *model, int value)
{
    return value >= 0 && model->value[value].dtype == VME_INT8 ? FLIP : 0;
}

/* Computes `n` contiguous elements: from element `begin` of the operands, to element `position` of the result. */
static void compute_run(const quantized_job *job, int64_t begin, int64_t n, int64_t position)
{
    const int32_t *p = job->step->p;
    const uint8_t *a = (const uint8_t *)job->a + begin, *b = (const uint8_t *)job->b + begin;
    uint8_t *out = (uint8_t *)job->out + position;
    switch (job->step->op) {
    case MODEL_QUANTIZE:
        job->kernels->quantize(n, (const float *)job->a + begin, float_of_bits(p[QUANTIZED_SCALE_A]), job->to, out);
        break;
    case MODEL_DEQUANTIZE:
        job->kernels->dequantize(n, a, job->a_flip, job->zeros[0], float_of_bits(p[QUANTIZED_SCALE_A]),
                                 (float *)job->out + position);
        break;
    case MODEL_QUANTIZED_ADD: {
        const float scale_a = float_of_bits(p[QUANTIZED_SCALE_A]), scale_b = float_of_bits(p[QUANTIZED_SCALE_B]);
        const float factors[] = {scale_a, scale_b, -((float)job->zeros[0] * scale_a + (float)job->zeros[1] * scale_b)};
        job->kernels->add(n, a, job->a_flip, b, job->b_flip, factors, job->to, out);
        break;
    }
    case MODEL_QUANTIZED_MULTIPLY:
        job->kernels->multiply(n, a, job->a_flip, b, job->b_flip, job->zeros, float_of_bits(p[QUANTIZED_SCALE_A]),
                               job->to, out);
        break;
    default: job->kernels->look_up(n, a, (const uint8_t *)job->b, out); break;
    }
}

static vme_status compute_piece(void *argument, int64_t begin, int64_t end)
{
    const quantized_job *job = argument;
    for (int64_t at = begin, count; at < end; at += count) {
        const int64_t run = at / job->run, offset = at - run * job->run;
        count = min(job->run - offset, end - at);
        compute_run(job, at, count, run * job->run_step + offset);
    }
    return VME_OK;
}

/* Whether the elements form dense runs at equal distances; if so, sets the runs' length and distance, in elements. */
static bool find_runs(const vme_tensor *tensor, int64_t *run, int64_t *run_step)
{
    const int64_t size = vme_dtype_size((vme_dtype)tensor->dtype);
    int d = tensor->rank - 1;
    *run = 1;
    for (; d >= 0 && (tensor->shape[d] == 1 || tensor->strides[d] == *run * size); d--)
        *run *= tensor->shape[d];
    *run_step = *run;
    int64_t next = 0;
    for (; d >= 0; d--) {
        if (tensor->shape[d] == 1)
            continue;
        if (next == 0)
            *run_step = (next = tensor->strides[d]) / size;
        if (tensor->strides[d] != next || next < *run * size)
            return false;
        next *= tensor->shape[d];
    }
    return true;
}

static vme_status quantized_run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    const vme_tensor a = model_tensor(model, step->operand[0], arena), out = model_tensor(model, step->out, arena);
    const int32_t sign_offset = flip_of(model, step->out);
    quantized_job job = {
        .kernels = model->kernels->quantized,
        .step = step,
        .a = a.data,
        .out = out.data,
        .a_flip = flip_of(model, step->operand[0]),
        .b_flip = flip_of(model, step->operand[1]),
        .to = {.zero = step->p[QUANTIZED_ZERO] + sign_offset,
               .low = step->p[QUANTIZED_LOW] + sign_offset,
               .high = step->p[QUANTIZED_HIGH] + sign_offset,
               .flip = (uint8_t)sign_offset},
    };
    find_runs(&out, &job.run, &job.run_step);
    if (step->operand[1] >= 0)
        job.b = model_tensor(model, step->operand[1], arena).data;
    job.zeros[0] = step->p[QUANTIZED_ZERO_A] + job.a_flip;
    job.zeros[1] = step->p[QUANTIZED_ZERO_B] + job.b_flip;
    return vme_parallel_apart(context, vme_elements(&a), PIECE, compute_piece, &job);
}

/* ---- checks */
static bool is_dense(model_preparation *preparation, int tensor)
{
    model_value *value = &preparation->model->value[tensor];
    const vme_tensor view = model_tensor(preparation->model, tensor, NULL);
    value->plain = true;
    return !value->channels_last && vme_is_contiguous(&view);
}

static bool has_runs(model_preparation *preparation, int tensor)
{
    model_value *value = &preparation->model->value[tensor];
    const vme_tensor view = model_tensor(preparation->model, tensor, NULL);
    int64_t run, step;
    value->plain = true;
    return !value->channels_last && find_runs(&view, &run, &step);
}

static bool is_byte(const model_value *value) { return value->dtype == VME_UINT8 || value->dtype == VME_INT8; }

/* Whether a byte of the value's dtype can be this number. */
static bool is_in_range(int32_t number, const model_value *value)
{
    const int32_t lowest = value->dtype == VME_INT8 ? -FLIP : 0;
    return number >= lowest && number <= lowest + 255;
}

vme_status model_make_quantized(model_preparation *preparation, uint32_t number, const model_node_record *node,
                                const uint32_t *operands, model_step *step, int step_number)
{
    (void)operands, (void)step_number;
    const vme_model *model = preparation->model;
    const uint32_t op = node->op, inputs = op == MODEL_QUANTIZE || op == MODEL_DEQUANTIZE ? 1 : 2;
    const int32_t *p = step->p;
    step->run = quantized_run;
    if (node->inputs != inputs || (inputs == 2 && step->operand[1] < 0))
        return MODEL_WRONG(number, "has %u operands, expected %u", node->inputs, inputs);
    const model_value *a = &model->value[step->operand[0]], *out = &model->value[step->out],
                      *b = inputs == 2 ? &model->value[step->operand[1]] : NULL;
    bool fits = model_same_shape(a, out) && is_dense(preparation, step->operand[0]) && has_runs(preparation, step->out);
    if (op == MODEL_LOOK_UP)
        fits = fits && is_byte(a) && is_byte(out) && b->dtype == VME_UINT8 && b->rank == 1 && b->shape[0] == 256
               && is_dense(preparation, step->operand[1]);
    else {
        fits = fits
               && (op == MODEL_QUANTIZE ? a->dtype == VME_FLOAT32 : is_byte(a) && is_in_range(p[QUANTIZED_ZERO_A], a));
        if (b != NULL)
            fits = fits && is_byte(b) && is_in_range(p[QUANTIZED_ZERO_B], b) && model_same_shape(b, out)
                   && is_dense(preparation, step->operand[1]);
        if (op == MODEL_DEQUANTIZE)
            fits = fits && out->dtype == VME_FLOAT32;
        else
            fits = fits && is_byte(out) && is_in_range(p[QUANTIZED_ZERO], out) && is_in_range(p[QUANTIZED_LOW], out)
                   && is_in_range(p[QUANTIZED_HIGH], out) && p[QUANTIZED_LOW] <= p[QUANTIZED_HIGH];
    }
    if (!fits)
        return MODEL_WRONG(number, "has operands whose shapes, dtypes or zero points do not match");
    for (uint32_t i = 0; i < inputs; i++)
        if (model_root(model, step->operand[i]) == model_root(model, step->out))
            return MODEL_WRONG(number, "has a result that overlaps an operand");
    return VME_OK;
}
