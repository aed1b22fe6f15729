/* Drawing random numbers for vmhost.engine.numpy.random, which owns the state and checks parameters. */
#include "methods.h"

#include "vme_random.h"

/* _random(state, kind, parameters, out): fills `out`; `state` is a uint64 array of 13, struct vme_random_state,
 * advanced in place. */
PyObject *array_function__random(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    int64_t kind;
    const vme_tensor *parameters[3] = {NULL, NULL, NULL};
    if (PyTuple_GET_SIZE(args[2]) > 3)
        return PyErr_Format(PyExc_ValueError, "_random(): there are at most three parameters");
    array *own = (array *)args[0], *out = (array *)args[3];
    if (own->t.dtype != VME_UINT64 || own->size * 8 != (int64_t)sizeof(vme_random_state)
        || !(own->flags & ARRAY_CONTIGUOUS))
        return PyErr_Format(PyExc_ValueError, "_random(): the state is 13 words");
    if (array_argument_int(args[1], 0, &kind) < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[2]); i++) {
        PyObject *parameter = PyTuple_GET_ITEM(args[2], i);
        if (parameter == Py_None)
            return PyErr_Format(PyExc_TypeError, "_random(): parameters are arrays");
        parameters[i] = &((array *)parameter)->t;
    }
    vme_random_state moving; /* a copy: another thread of this interpreter may draw in the meantime */
    memcpy(&moving, own->t.data, sizeof moving);
    vme_status status =
        WRITING(state, OPERATOR(state->context, "random", out->size * 8,
                                vme_random(state->context, &moving, (vme_random_kind)kind, parameters, &out->t)));
    if (status != VME_OK)
        return array_fail(state, status);
    if (array_require_writable(own, "the generator's state is read-only") < 0) /* it may have been passed to another VM
                                                                                * in the meantime */
        return NULL;
    memcpy(own->t.data, &moving, sizeof moving);
    return Py_NewRef(Py_None);
}
