/* `vmhost.engine._array`: the array type and its functions, the same in the host and in every VM.
 *
 * Each interpreter has its own module, types, free lists and context: only code is shared. The interpreter's owner
 * provides the context (see vme_python.h); otherwise the module makes one that charges nobody. */
#include "methods.h"
#include "vme_writes.h"
#include "signatures.h"

static struct PyModuleDef definition;

array_state *array_state_of(PyObject *module) { return PyModule_GetState(module); }

/* ---- for other native modules */
static bool api_check(PyObject *object) { return is_array(object); }
static void api_view(PyObject *object, vme_tensor *view) { *view = ((array *)object)->t; }
static bool api_writable(PyObject *object) { return array_writable((array *)object); }

static bool api_must_be_copied(PyObject *object)
{
    const array *self = (array *)object;
    return self->flags & ARRAY_LENT || self->state->writing != 0 || vme_buffer_has_window(self->t.buffer);
}

static PyObject *api_copied(PyObject *object)
{
    array *self = (array *)object;
    const size_t size = vme_buffer_size(self->t.buffer);
    if ((size_t)self->size <= size / (size_t)vme_dtype_size((vme_dtype)self->t.dtype))
        return (PyObject *)array_cast(self, self->t.dtype);
    vme_buffer *whole;
    if (array_check_status(self->state, vme_buffer_new(self->state->context, size, false, &whole)) < 0)
        return NULL;
    const char *from = vme_buffer_data(self->t.buffer);
    char *to = vme_buffer_data(whole);
    memcpy(to, from, size);
    return (PyObject *)array_on_buffer(self->state, whole, self->t.dtype, self->t.rank, self->t.shape, self->t.strides,
                                       to + (self->t.data - from), 0);
}

static vme_context *api_context(PyObject *module) { return array_state_of(module)->context; }

static PyObject *api_from_buffer(PyObject *module, vme_buffer *buffer, int dtype, int rank, const int64_t *shape,
                                 const int64_t *strides, size_t offset)
{
    array_state *state = array_state_of(module);
    int64_t own_strides[VME_RANK_MAX];
    size_t bytes;
    if (dtype < 0 || dtype >= VME_DTYPE_COUNT)
        return PyErr_Format(PyExc_TypeError, "dtype number %d is unknown", dtype);
    if (array_check_status(state, vme_shape_bytes((vme_dtype)dtype, rank, shape, own_strides, &bytes)) < 0)
        return NULL;
    vme_tensor view = {
        buffer, (char *)vme_buffer_data(buffer) + offset, shape, strides != NULL ? strides : own_strides, rank, dtype};
    if (array_check_status(state, vme_tensor_check(&view)) < 0)
        return NULL;
    return (PyObject *)array_on_buffer(state, vme_buffer_ref(buffer), dtype, rank, shape, strides, view.data, 0);
}

static bool api_scalar(PyObject *object, int *dtype, char *element)
{
    const array *self = (array *)object;
    if (!(self->flags & ARRAY_SCALAR))
        return false;
    *dtype = self->t.dtype;
    memcpy(element, self->t.data, (size_t)vme_dtype_size((vme_dtype)self->t.dtype));
    return true;
}

static PyObject *api_scalar_new(PyObject *module, int dtype, const char *element)
{
    if (dtype < 0 || dtype >= VME_DTYPE_COUNT)
        return PyErr_Format(PyExc_TypeError, "dtype number %d is unknown", dtype);
    array *result = array_new_scalar(array_state_of(module), dtype);
    if (result != NULL)
        memcpy(result->t.data, element, (size_t)vme_dtype_size((vme_dtype)dtype));
    return array_as_scalar(result);
}

static void api_free(PyObject *capsule) { PyMem_Free(PyCapsule_GetPointer(capsule, VME_PYTHON_CAPSULE)); }

static int api_init(PyObject *module)
{
    struct vme_python_api *api = PyMem_Malloc(sizeof *api);
    if (api == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    *api = (struct vme_python_api){
        .abi = VME_PYTHON_ABI,
        .size = sizeof *api,
        .module = module,
        .array_check = api_check,
        .array_view = api_view,
        .array_writable = api_writable,
        .array_must_be_copied = api_must_be_copied,
        .array_copied = api_copied,
        .array_from_buffer = api_from_buffer,
        .context = api_context,
        .array_scalar = api_scalar,
        .scalar_new = api_scalar_new,
    };
    PyObject *capsule = PyCapsule_New(api, VME_PYTHON_CAPSULE, api_free);
    if (capsule == NULL) {
        PyMem_Free(api);
        return -1;
    }
    /* not in the module: programs could remove it there, or drop the module while others hold the table */
    PyObject *owned = PyInterpreterState_GetDict(PyInterpreterState_Get()); /* borrowed */
    int rc = owned == NULL || PyDict_SetItemString(owned, "vmhost.engine._array", module) < 0
                     || PyDict_SetItemString(owned, VME_PYTHON_CAPSULE, capsule) < 0
                 ? -1
                 : 0;
    Py_DECREF(capsule);
    return rc;
}

/* ---- functions that belong to no other file */
/* The context's counts, after objects kept for reuse were freed. */
PyObject *array_function__statistics(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    vme_statistics counts;
    array_free_lists_clear(state);
    vme_context_statistics(state->context, &counts);
    return Py_BuildValue("{sLsLsLsLsLsLsK}", "live_bytes", (long long)counts.live_bytes, "peak_bytes",
                         (long long)counts.peak_bytes, "buffers", (long long)counts.buffers, "operators",
                         (long long)counts.operators, "stopped", (long long)counts.stopped, "refused",
                         (long long)counts.refused, "helper_cpu_ns", (unsigned long long)counts.helper_cpu_ns);
}

/* _address(a): the address of the first element, to compare with another array's. */
PyObject *array_function__address(PyObject *module, ARRAY_VECTORCALL)
{
    return PyLong_FromVoidPtr(((array *)args[0])->t.data);
}

/* _alone(a): whether the array may be written, and no other one has its memory. */
PyObject *array_function__alone(PyObject *module, ARRAY_VECTORCALL)
{
    const array *self = (array *)args[0];
    return PyBool_FromLong(array_writable(self) && vme_buffer_references(self->t.buffer) == 1);
}

/* _writes(): how many writes into arrays this interpreter has made. _writes(a): how many, when the memory of `a` was
 * last written. */
PyObject *array_function__writes(PyObject *module, ARRAY_VECTORCALL)
{
    return PyLong_FromUnsignedLongLong(array_given(args[0]) ? vme_buffer_last_write(((array *)args[0])->t.buffer)
                                                            : array_state_of(module)->writes);
}

/* _shortest(a): for each element of a float array, in a list, the shortest digits that parse to the same value: "1.5",
 * "1e-05". */
PyObject *array_function__shortest(PyObject *module, ARRAY_VECTORCALL)
{
    if (!dtype_is_float(((array *)args[0])->t.dtype))
        return PyErr_Format(PyExc_TypeError, "_shortest() takes one array of floats");
    array *self = array_contiguous((array *)args[0], -1);
    if (self == NULL)
        return NULL;
    PyObject *texts = PyList_New(self->size);
    for (int64_t i = 0, walked = 0; texts != NULL && i < self->size; i++) {
        char *text = NULL;
        if (array_walk(self->state, &walked) < 0) {
            Py_CLEAR(texts);
            break;
        }
        if (self->t.dtype == VME_FLOAT64) {
            double value;
            memcpy(&value, self->t.data + 8 * i, 8);
            text = PyOS_double_to_string(value, 'r', 0, 0, NULL);
        } else {
            bool half = self->t.dtype == VME_FLOAT16;
            float value;
            uint16_t bits = 0;
            if (half) {
                memcpy(&bits, self->t.data + 2 * i, 2);
                value = element_half_to_float(bits);
            } else
                memcpy(&value, self->t.data + 4 * i, 4);
            for (int digits = 1; digits <= 9; digits++) {
                PyMem_Free(text);
                text = PyOS_double_to_string((double)value, 'e', digits - 1, 0, NULL);
                if (text == NULL || value != value)
                    break;
                double back = PyOS_string_to_double(text, NULL, NULL);
                if (half ? element_half_from_float(back) == bits : (float)back == value)
                    break;
            }
        }
        PyObject *item = text == NULL ? PyErr_NoMemory() : PyUnicode_FromString(text);
        PyMem_Free(text);
        if (item == NULL)
            Py_CLEAR(texts);
        else
            PyList_SET_ITEM(texts, i, item);
    }
    Py_DECREF(self);
    return texts;
}

/* The entry point for Python: calls the function, or the tracer if an argument is traced. */
#define ENTRANCE(name) \
    static PyObject *enter_##name(PyObject *module, ARRAY_VECTORCALL) \
    { \
        array_state *state = array_state_of(module); \
        if (ARRAY_TRACED(state, args, count, keywords)) \
            return array_call_traced(state, #name, args, count, keywords); \
        return array_function_##name(module, args, count, keywords); \
    }
ARRAY_FUNCTIONS(ENTRANCE)

#define PARAMETER(name_, absent_, kind_, ...) \
    {.name = #name_, .absent = #absent_, .kind = (kind_), .bounds = {__VA_ARGS__}},
#define IS_REQUIRED(name_, absent_, ...) +(sizeof #absent_ == 1)
#define PRIVATE(name_) \
    static const array_parameter parameters_##name_[] = {PARAMETERS_##name_(PARAMETER){.name = NULL}}; \
    static const array_private private_##name_ = { \
        .name = #name_, \
        .parameters = parameters_##name_, \
        .count = sizeof parameters_##name_ / sizeof *parameters_##name_ - 1, \
        .required = 0 PARAMETERS_##name_(IS_REQUIRED), \
        .function = array_function_##name_, \
    }; \
    static PyObject *enter_##name_(PyObject *module, ARRAY_VECTORCALL) \
    { \
        array_state *state = array_state_of(module); \
        if (ARRAY_TRACED(state, args, count, keywords)) \
            return array_call_traced(state, #name_, args, count, keywords); \
        return array_call_checked(module, &private_##name_, args, count, keywords); \
    }
ARRAY_PRIVATE_FUNCTIONS(PRIVATE)

#define FUNCTION(name, signature) \
    {#name, (PyCFunction)(void (*)(void))enter_##name, METH_FASTCALL | METH_KEYWORDS, #name signature "\n--\n\n"},
#define PUBLIC_FUNCTION(name)             FUNCTION(name, SIGNATURE_##name)
#define IN_SIGNATURE(name_, absent_, ...) #name_ #absent_ ", "
#define PRIVATE_FUNCTION(name)            FUNCTION(name, "(" PARAMETERS_##name(IN_SIGNATURE) ")")
static PyMethodDef functions[] = {
    ARRAY_FUNCTIONS(PUBLIC_FUNCTION) ARRAY_PRIVATE_FUNCTIONS(PRIVATE_FUNCTION){NULL, NULL, 0, NULL},
};

/* _kinds(): the parameters of each private function, as array_parameters() describes them */
PyObject *array_function__kinds(PyObject *module, ARRAY_VECTORCALL)
{
#define PRIVATE_ADDRESS(name) &private_##name,
    static const array_private *const all[] = {ARRAY_PRIVATE_FUNCTIONS(PRIVATE_ADDRESS)};
    PyObject *result = PyDict_New();
    for (size_t i = 0; result != NULL && i < sizeof all / sizeof *all; i++) {
        PyObject *parameters = array_parameters(all[i]);
        if (parameters == NULL || PyDict_SetItemString(result, all[i]->name, parameters) < 0)
            Py_CLEAR(result);
        Py_XDECREF(parameters);
    }
    return result;
}

/* ---- module creation and destruction */
static int context_init(array_state *state)
{
    PyObject *owned = PyInterpreterState_GetDict(PyInterpreterState_Get()); /* borrowed */
    PyObject *capsule = NULL;
    if (owned != NULL && PyDict_GetItemStringRef(owned, VME_CONTEXT_CAPSULE, &capsule) < 0)
        return -1;
    if (capsule == NULL)
        return array_check_status(state, vme_context_new(NULL, 0, &state->context));
    vme_context *context = PyCapsule_GetPointer(capsule, VME_CONTEXT_CAPSULE);
    Py_DECREF(capsule);
    if (context == NULL)
        return -1;
    state->context = vme_context_ref(context);
    return 0;
}

static int execute(PyObject *module)
{
    array_state *state = array_state_of(module);
    state->module = module;
    state->free_max = ARRAY_FREE_MAX;
    if (context_init(state) < 0 || array_errors_init(state, module) < 0 || array_dtypes_init(state, module) < 0)
        return -1;
    state->array_type = array_type_new(state, module);
    if (state->array_type == NULL || PyModule_AddObjectRef(module, "ndarray", (PyObject *)state->array_type) < 0)
        return -1;
    return array_ufuncs_init(state, module) < 0 || api_init(module) < 0 ? -1 : 0;
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    array_state *state = array_state_of(module);
    Py_VISIT(state->array_type);
    Py_VISIT(state->dtype_type);
    Py_VISIT(state->ufunc_type);
    Py_VISIT(state->iterator_type);
    Py_VISIT(state->axis_error);
    Py_VISIT(state->traced_type);
    Py_VISIT(state->tracer);
    for (int i = 0; i < VME_DTYPE_COUNT; i++)
        Py_VISIT(state->dtypes[i]);
    return 0;
}

static int clear(PyObject *module)
{
    array_state *state = array_state_of(module);
    state->free_max = 0;
    array_free_lists_clear(state);
    Py_CLEAR(state->array_type);
    Py_CLEAR(state->dtype_type);
    Py_CLEAR(state->ufunc_type);
    Py_CLEAR(state->iterator_type);
    Py_CLEAR(state->axis_error);
    Py_CLEAR(state->traced_type);
    Py_CLEAR(state->tracer);
    for (int i = 0; i < VME_DTYPE_COUNT; i++)
        Py_CLEAR(state->dtypes[i]);
    return 0;
}

static void free_module(void *module)
{
    array_state *state = array_state_of(module);
    if (state == NULL)
        return;
    clear(module);
    if (state->context != NULL)
        vme_context_unref(state->context);
    state->context = NULL;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "vmhost.engine._array",
    .m_size = sizeof(array_state),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = free_module,
};

PyMODINIT_FUNC PyInit__array(void);
PyMODINIT_FUNC PyInit__array(void) { return PyModuleDef_Init(&definition); }
