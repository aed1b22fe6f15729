/* Fourier transforms of rows (vme_fft.h). A complex number is two adjacent elements.
 *
 * Operand: x [any …, n, 1 or 2], float32 or float64, dense. The result is [any …, m, 1 or 2], dense. Complex
 * transforms, forward and inverse: m = n; real to complex: m = n / 2 + 1; complex to real: n = m / 2 + 1. */
#include "vme_fft.h"
#include "models/file.h"
#include "models/makers.h"
#include "models/model.h"
#include "models/preparation.h"
#include "models/step.h"
#include "models/tensors.h"
#include "models/value.h"
#include "runtime/internal.h"

/* The rows as vme_fft takes them, with complex dtype where pairs are complex numbers. */
static vme_tensor rows_of(const vme_tensor *tensor, int64_t shape[2], int64_t strides[2])
{
    const int64_t parts = tensor->shape[tensor->rank - 1];
    const int dtype = parts == 1 ? tensor->dtype : tensor->dtype == VME_FLOAT32 ? VME_COMPLEX64 : VME_COMPLEX128;
    shape[0] = 1;
    for (int d = 0; d < tensor->rank - 2; d++)
        shape[0] *= tensor->shape[d];
    shape[1] = tensor->shape[tensor->rank - 2];
    strides[1] = vme_dtype_size((vme_dtype)dtype);
    strides[0] = shape[1] * strides[1];
    return (vme_tensor){.data = tensor->data, .shape = shape, .strides = strides, .rank = 2, .dtype = dtype};
}

static vme_status fourier_run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    const vme_tensor in = model_tensor(model, step->operand[0], arena), out = model_tensor(model, step->out, arena);
    int64_t shapes[4], strides[4];
    const vme_tensor from = rows_of(&in, shapes, strides), to = rows_of(&out, shapes + 2, strides + 2);
    const vme_fft_kind kind = (vme_fft_kind)step->p[FOURIER_KIND];
    const int64_t n = kind == VME_FFT_REAL_FORWARD ? from.shape[1] : to.shape[1];
    const bool inverse = kind == VME_FFT_BACKWARD || kind == VME_FFT_REAL_BACKWARD;
    return vme_fft(context, kind, n, inverse ? 1.0 / (double)n : 1.0, &from, &to);
}

vme_status model_make_fourier(model_preparation *preparation, uint32_t number, const model_node_record *node,
                              const uint32_t *operands, model_step *step, int step_number)
{
    (void)operands, (void)step_number;
    const vme_model *model = preparation->model;
    step->run = fourier_run;
    const model_value *in = &model->value[step->operand[0]], *out = &model->value[step->out];
    const int rank = in->rank, kind = step->p[FOURIER_KIND];
    bool fits = node->inputs == 1 && rank >= 2 && out->rank == rank && kind >= VME_FFT_FORWARD
                && kind <= VME_FFT_REAL_BACKWARD && (in->dtype == VME_FLOAT32 || in->dtype == VME_FLOAT64);
    for (int d = 0; fits && d < rank - 2; d++)
        fits = in->shape[d] == out->shape[d];
    if (fits) {
        const int64_t n = in->shape[rank - 2], m = out->shape[rank - 2];
        fits = in->shape[rank - 1] == (kind == VME_FFT_REAL_FORWARD ? 1 : 2)
               && out->shape[rank - 1] == (kind == VME_FFT_REAL_BACKWARD ? 1 : 2)
               && (kind == VME_FFT_REAL_FORWARD    ? m == n / 2 + 1
                   : kind == VME_FFT_REAL_BACKWARD ? n == m / 2 + 1
                                                   : n == m);
    }
    fits = fits && model_require_dense(preparation, step->operand[0], in->dtype)
           && model_require_dense(preparation, step->out, in->dtype);
    if (!fits)
        return MODEL_WRONG(number, "does not transform its operand's rows to its result's");
    return model_check_no_overlap(preparation, number, step);
}
