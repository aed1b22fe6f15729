/* Weighted sums of a few elements along one axis, as interpolation needs them: out[.., j, ..] = sum over taps of
 * weights[t][j] * x[.., indices[t][j], ..].
 *
 * Operands: 0 x, float32, dense; 1 indices, int32 [taps, new]; 2 weights, float32 [taps, new]. The result is dense and
 * differs from x in the axis only. */
#include "models/file.h"
#include "models/makers.h"
#include "models/model.h"
#include "models/preparation.h"
#include "models/step.h"
#include "models/tensors.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/numbers.h"

enum {
    TAPS_MAX = 64,
    PIECE = 1 << 14, /* elements computed between two checks of the stop flag */
};

typedef struct blending {
    vme_context *context;
    const vme_model_kernels *kernels;
    const float *in, *weights;
    const int32_t *indices;
    float *out;
    int taps;
    int64_t outer, axis_size, out_size, inner; /* out_size: of the result along the axis */
} blending;

/* Blends outer indices `begin` to `end`, if elements along the axis are contiguous (inner is 1). */
static vme_status blend_contiguous(void *argument, int64_t begin, int64_t end)
{
    const blending *job = argument;
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < job->out_size && !vme_stopping(job->context); j += PIECE)
            job->kernels->blend_places(job->taps, min(PIECE, job->out_size - j), job->in + i * job->axis_size,
                                       job->indices + j, job->weights + j, job->out_size,
                                       job->out + i * job->out_size + j);
    return VME_OK;
}

/* Blends rows `begin` to `end` of `inner` elements of the result, numbered across the outer dimensions. */
static vme_status blend_rows(void *argument, int64_t begin, int64_t end)
{
    const blending *job = argument;
    const float *rows[TAPS_MAX];
    float weights[TAPS_MAX];
    for (int64_t i = begin; i < end; i++) {
        const int64_t outer = i / job->out_size, j = i % job->out_size;
        for (int t = 0; t < job->taps; t++) {
            rows[t] = job->in + (outer * job->axis_size + job->indices[t * job->out_size + j]) * job->inner;
            weights[t] = job->weights[t * job->out_size + j];
        }
        for (int64_t k = 0; k < job->inner && !vme_stopping(job->context); k += PIECE) {
            job->kernels->blend_rows(job->taps, min(PIECE, job->inner - k), rows, weights,
                                     job->out + i * job->inner + k);
            for (int t = 0; t < job->taps; t++)
                rows[t] += min(PIECE, job->inner - k);
        }
    }
    return VME_OK;
}

static vme_status blending_run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    const model_value *in = &model->value[step->operand[0]], *indices = &model->value[step->operand[1]];
    const int axis = step->p[BLEND_AXIS];
    blending job = {
        .context = context,
        .kernels = &model->kernels->model,
        .in = (const float *)(const void *)model_tensor(model, step->operand[0], arena).data,
        .indices = (const int32_t *)(const void *)model_tensor(model, step->operand[1], arena).data,
        .weights = (const float *)(const void *)model_tensor(model, step->operand[2], arena).data,
        .out = (float *)(void *)model_tensor(model, step->out, arena).data,
        .taps = (int)indices->shape[0],
        .outer = 1,
        .axis_size = in->shape[axis],
        .out_size = indices->shape[1],
        .inner = 1,
    };
    for (int d = 0; d < in->rank; d++)
        *(d < axis ? &job.outer : &job.inner) *= d == axis ? 1 : in->shape[d];
    for (int64_t i = 0; i < job.taps * job.out_size; i++)
        if (job.indices[i] < 0 || job.indices[i] >= job.axis_size)
            return vme_fail(VME_BAD_VALUE, "an interpolation reads index %d of %lld elements", job.indices[i],
                            (long long)job.axis_size);
    if (job.inner == 1)
        return vme_parallel_apart(context, job.outer, PIECE / (job.out_size * job.taps + 1) + 1, blend_contiguous,
                                  &job);
    return vme_parallel_apart(context, job.outer * job.out_size, PIECE / (job.inner * job.taps + 1) + 1, blend_rows,
                              &job);
}

vme_status model_make_blending(model_preparation *preparation, uint32_t number, const model_node_record *node,
                               const uint32_t *operands, model_step *step, int step_number)
{
    (void)operands, (void)step_number;
    const vme_model *model = preparation->model;
    step->run = blending_run;
    if (node->inputs != 3 || step->operand[1] < 0 || step->operand[2] < 0)
        return MODEL_WRONG(number, "has %u operands, expected x, indices and weights", node->inputs);
    const model_value *in = &model->value[step->operand[0]], *indices = &model->value[step->operand[1]],
                      *weights = &model->value[step->operand[2]], *out = &model->value[step->out];
    const int axis = step->p[BLEND_AXIS];
    bool fits = axis >= 0 && axis < in->rank && in->rank == out->rank && indices->rank == 2
                && model_same_shape(indices, weights) && indices->shape[0] >= 1 && indices->shape[0] <= TAPS_MAX;
    for (int d = 0; fits && d < in->rank; d++)
        fits = out->shape[d] == (d == axis ? indices->shape[1] : in->shape[d]);
    fits = fits && model_require_dense(preparation, step->operand[0], VME_FLOAT32)
           && model_require_dense(preparation, step->operand[1], VME_INT32)
           && model_require_dense(preparation, step->operand[2], VME_FLOAT32)
           && model_require_dense(preparation, step->out, VME_FLOAT32);
    if (!fits)
        return MODEL_WRONG(number, "has operands whose shapes or dtypes do not match");
    return model_check_no_overlap(preparation, number, step);
}
