/* Fourier transforms for vmhost.engine.numpy.fft, which moves the axis to the end and makes the output. */
#include "methods.h"

#include "vme_fft.h"

/* _fft(kind, n, factor, rows, out): as vme_fft, both arrays C-contiguous. */
PyObject *array_function__fft(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    int64_t kind, n;
    if (array_argument_int(args[0], 0, &kind) < 0 || array_argument_int(args[1], 0, &n) < 0)
        return NULL;
    const double factor = PyFloat_AS_DOUBLE(args[2]);
    array *in = (array *)args[3], *out = (array *)args[4];
    vme_status status =
        WRITING(state, OPERATOR(state->context, "fft", out->size * 16,
                                vme_fft(state->context, (vme_fft_kind)kind, n, factor, &in->t, &out->t)));
    return status == VME_OK ? Py_NewRef(Py_None) : array_fail(state, status);
}
