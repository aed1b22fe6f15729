/* Fused steps on rows of float32: softmax, normalization and activations, each of which would otherwise be several
 * operators over the whole tensor. A row stays in L1 until it is done. */
#include "models/rows.h"
#include "models/file.h"
#include "models/makers.h"
#include "models/model.h"
#include "models/preparation.h"
#include "models/row_kernels.h"
#include "models/step.h"
#include "models/tensors.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/numbers.h"

#include <math.h>
#include <string.h>

enum { PIECE = 1 << 13 }; /* elements between two checks of the stop flag, at most 12 ns each */
enum { CHUNK = 512 };     /* exponentials buffered on the stack at a time */

typedef struct rows {
    vme_context *context;
    const model_row_kernels *row_kernels;
    const model_step *step;
    vme_tensor in, addend, scale, bias, out; /* absent: data NULL */
    int64_t length;
    int curve;
} rows;

static float float_of_bits(int32_t bits)
{
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static const float *row_of(const vme_tensor *tensor, int64_t number)
{
    const char *at = tensor->data;
    for (int d = tensor->rank - 2; d >= 0; d--) {
        at += number % tensor->shape[d] * tensor->strides[d];
        number /= tensor->shape[d];
    }
    return (const float *)at;
}

static int64_t rows_in(const vme_tensor *tensor)
{
    int64_t count = 1;
    for (int d = 0; d < tensor->rank - 1; d++)
        count *= tensor->shape[d];
    return count;
}

/* ---- checks */
static bool has_contiguous_rows(const model_value *value)
{
    return value->dtype == VME_FLOAT32 && value->rank >= 1 && value->shape[value->rank - 1] <= MODEL_ROW_MAX
           && (value->shape[value->rank - 1] == 1 || value->strides[value->rank - 1] == 4) && !value->channels_last;
}

/* The operand or result with this number, or NULL. Its rows are accessed in place, so it never gets an image's layout.
 */
static model_value *row_operand(model_preparation *preparation, int value)
{
    if (value >= 0)
        preparation->model->value[value].plain = true;
    return value < 0 ? NULL : &preparation->model->value[value];
}

static bool same_shape(const model_value *a, const model_value *b)
{
    return a->rank == b->rank && memcmp(a->shape, b->shape, sizeof(int64_t) * (size_t)a->rank) == 0;
}

static bool is_row(const model_value *value, int64_t length)
{
    return has_contiguous_rows(value) && value->rank == 1 && value->shape[0] == length;
}

/* ---- softmax(x * factor + addend) along the last dimension, or its logarithm */
static void softmax_row(const rows *job, const float *in, const float *addend, float *out)
{
    const int64_t n = job->length;
    const model_row_kernels *kernels = job->row_kernels;
    float largest = kernels->weigh(n, in, float_of_bits(job->step->p[1]), addend, out);
    if (job->step->p[0]) {
        float chunk[CHUNK], sum = 0;
        kernels->shift(n, -largest, out);
        for (int64_t i = 0; i < n; i += CHUNK) {
            int64_t count = n - i < CHUNK ? n - i : CHUNK;
            memcpy(chunk, out + i, (size_t)count * sizeof *chunk);
            sum += kernels->exponentials(count, 0, chunk);
        }
        kernels->shift(n, -logf(sum), out);
    } else
        kernels->scale(n, 1 / kernels->exponentials(n, -largest, out), out);
}

static vme_status softmax_body(void *argument, int64_t begin, int64_t end)
{
    const rows *job = argument;
    for (int64_t i = begin; i < end && !vme_stopping(job->context); i++)
        softmax_row(job, row_of(&job->in, i), job->addend.data == NULL ? NULL : row_of(&job->addend, i),
                    (float *)row_of(&job->out, i));
    return VME_OK;
}

static vme_status run_rows(rows *job, vme_body *body)
{
    job->length = job->out.shape[job->out.rank - 1];
    return vme_parallel_apart(job->context, rows_in(&job->out), PIECE / job->length + 1, body, job);
}

static vme_status run_softmax(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    rows job = {
        .context = context,
        .row_kernels = model->kernels->rows,
        .step = step,
        .in = model_tensor(model, step->operand[0], arena),
        .out = model_tensor(model, step->out, arena),
    };
    int64_t strides[VME_RANK_MAX];
    if (step->operand[1] >= 0) {
        job.addend = model_tensor(model, step->operand[1], arena);
        vme_status status = vme_broadcast_strides(&job.addend, &job.out, strides);
        if (status != VME_OK)
            return status;
        job.addend.rank = job.out.rank;
        job.addend.shape = job.out.shape;
        job.addend.strides = strides;
    }
    return run_rows(&job, softmax_body);
}

vme_status model_make_softmax(model_preparation *preparation, uint32_t number, const model_node_record *node,
                              const uint32_t *operands, model_step *step, int step_number)
{
    (void)node, (void)operands, (void)step_number;
    const model_value *in = row_operand(preparation, step->operand[0]),
                      *addend = row_operand(preparation, step->operand[1]), *out = row_operand(preparation, step->out);
    step->run = run_softmax;
    if (step->operand[2] >= 0 || !has_contiguous_rows(in) || !has_contiguous_rows(out) || !same_shape(in, out))
        return MODEL_WRONG(number, "does not read and write rows of float32");
    if (addend != NULL) {
        vme_tensor added = model_tensor(preparation->model, step->operand[1], NULL),
                   result = model_tensor(preparation->model, step->out, NULL);
        int64_t strides[VME_RANK_MAX];
        if (!has_contiguous_rows(addend) || addend->shape[addend->rank - 1] != out->shape[out->rank - 1]
            || vme_broadcast_strides(&added, &result, strides) != VME_OK)
            return MODEL_WRONG(number, "has an addend of another shape or dtype");
    }
    return VME_OK;
}

/* ---- (x - mean) / sqrt(variance + epsilon) * scale + bias along the last dimension; RMS norm: the mean counts as 0 */
static vme_status normalize_body(void *argument, int64_t begin, int64_t end)
{
    const rows *job = argument;
    const model_row_kernels *kernels = job->row_kernels;
    const int64_t n = job->length;
    for (int64_t i = begin; i < end && !vme_stopping(job->context); i++) {
        const float *in = row_of(&job->in, i);
        float *out = (float *)row_of(&job->out, i);
        float mean = job->step->p[1] ? 0 : kernels->sum(n, in) / (float)n;
        float variance = kernels->centre(n, in, -mean, out) / (float)n;
        kernels->normalize(n, 1 / sqrtf(variance + float_of_bits(job->step->p[0])), (const float *)job->scale.data,
                           (const float *)job->bias.data, out);
    }
    return VME_OK;
}

static vme_status run_normalize(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    rows job = {
        .context = context,
        .row_kernels = model->kernels->rows,
        .step = step,
        .in = model_tensor(model, step->operand[0], arena),
        .scale = model_tensor(model, step->operand[1], arena),
        .out = model_tensor(model, step->out, arena),
    };
    if (step->operand[2] >= 0)
        job.bias = model_tensor(model, step->operand[2], arena);
    return run_rows(&job, normalize_body);
}

vme_status model_make_normalize(model_preparation *preparation, uint32_t number, const model_node_record *node,
                                const uint32_t *operands, model_step *step, int step_number)
{
    (void)node, (void)operands, (void)step_number;
    const model_value *in = row_operand(preparation, step->operand[0]),
                      *scale = row_operand(preparation, step->operand[1]);
    const model_value *bias = row_operand(preparation, step->operand[2]), *out = row_operand(preparation, step->out);
    step->run = run_normalize;
    if (scale == NULL || step->operand[3] >= 0 || (step->p[1] != 0 && step->p[1] != 1) || !has_contiguous_rows(in)
        || !has_contiguous_rows(out) || !same_shape(in, out) || !is_row(scale, in->shape[in->rank - 1])
        || (bias != NULL && !is_row(bias, in->shape[in->rank - 1])))
        return MODEL_WRONG(number, "does not normalize rows of float32");
    return VME_OK;
}

/* ---- activations, element by element, for any layout */
static void activate(const rows *job, int64_t n, const float *in, float *out)
{
    job->row_kernels->curve(job->curve, n, in, out);
}

static vme_status activate_flat(void *argument, int64_t begin, int64_t end)
{
    const rows *job = argument;
    activate(job, end - begin, (const float *)job->in.data + begin, (float *)job->out.data + begin);
    return VME_OK;
}

/* Rows of any two tensors of one shape; rows of an image are its rows of pixels, or its pixels. */
static vme_status activate_body(void *argument, int64_t begin, int64_t end)
{
    const rows *job = argument;
    for (int64_t i = begin; i < end && !vme_stopping(job->context); i++)
        activate(job, job->length, row_of(&job->in, i), (float *)row_of(&job->out, i));
    return VME_OK;
}

static vme_status activate_value(vme_context *context, const vme_model *model, int curve, int from, int to, char *arena)
{
    rows job = {
        .context = context,
        .row_kernels = model->kernels->rows,
        .curve = curve,
        .in = model_tensor(model, from, arena),
        .out = model_tensor(model, to, arena),
    };
    const model_value *in = &model->value[from], *out = &model->value[to];
    const int64_t count = vme_elements(&job.out);
    int64_t image_shape[4], in_strides[4], out_strides[4];
    if (vme_is_contiguous(&job.in) && vme_is_contiguous(&job.out))
        return vme_parallel_apart(context, count, PIECE, activate_flat, &job);
    bool both_images = in->channels_last && out->channels_last;
    if (!both_images
        && (in->channels_last || out->channels_last || !has_contiguous_rows(in) || !has_contiguous_rows(out))) {
        vme_status status = vme_copy(context, &job.in, &job.out);
        if (status != VME_OK)
            return status;
        job.in = job.out;
        in = out;
    }
    if (out->channels_last) {
        /* otherwise other channels are between the pixels, and rows are single pixels */
        const bool pixels_joined = in->pixel_stride == in->c && out->pixel_stride == out->c;
        memcpy(image_shape, (int64_t[4]){out->n, out->h, pixels_joined ? out->w * out->c : out->w, out->c},
               sizeof image_shape);
        memcpy(in_strides,
               (int64_t[4]){in->image_stride * 4, in->row_stride * 4, pixels_joined ? 4 : in->pixel_stride * 4, 4},
               sizeof in_strides);
        memcpy(out_strides,
               (int64_t[4]){out->image_stride * 4, out->row_stride * 4, pixels_joined ? 4 : out->pixel_stride * 4, 4},
               sizeof out_strides);
        job.in.shape = job.out.shape = image_shape;
        job.in.strides = in_strides;
        job.out.strides = out_strides;
        job.in.rank = job.out.rank = pixels_joined ? 3 : 4;
    }
    return run_rows(&job, activate_body);
}

static vme_status run_activate(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    return activate_value(context, model, step->p[0], step->operand[0], step->out, arena);
}

vme_status model_activate(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    const int curve = step->p[ACTIVATION] - ACTIVATION_CURVES;
    return curve < 0 ? VME_OK : activate_value(context, model, curve, step->out, step->out, arena);
}

model_curve_kernel *model_curve_of(const vme_model *model, const model_step *step)
{
    return step->p[ACTIVATION] < ACTIVATION_CURVES ? NULL : model->kernels->rows->curve;
}

vme_status model_make_activate(model_preparation *preparation, uint32_t number, const model_node_record *node,
                               const uint32_t *operands, model_step *step, int step_number)
{
    (void)node, (void)operands, (void)step_number;
    const model_value *in = &preparation->model->value[step->operand[0]], *out = &preparation->model->value[step->out];
    step->run = run_activate;
    if (step->operand[1] >= 0 || in->dtype != VME_FLOAT32 || out->dtype != VME_FLOAT32 || !same_shape(in, out))
        return MODEL_WRONG(number, "does not read and write float32 of one shape");
    if (out->kind == MODEL_VIEW && !has_contiguous_rows(out))
        return MODEL_WRONG(number, "writes to a view whose rows are not contiguous");
    if (step->p[0] < 0 || step->p[0] >= CURVES)
        return MODEL_WRONG(number, "has the unknown activation %d", step->p[0]);
    return VME_OK;
}

bool model_is_activation(const model_step *step) { return step->run == run_activate; }
