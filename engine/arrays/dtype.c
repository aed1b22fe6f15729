/* The dtype objects: one of each per interpreter, serving as both NumPy's dtype instance and its scalar class.
 * `float32` names a dtype, `float32(3)` makes a scalar of it, `isinstance(x, float32)` checks for one. */
#include "arrays.h"

#include <stddef.h>

#define SELF ((dtype_object *)self)

/* NumPy's one-letter codes; int64 is "l" on Linux. */
static const char letters[VME_DTYPE_COUNT + 1] = "?bhilBHILefdFD";

static char kind_of(int dtype)
{
    return dtype == VME_BOOL      ? 'b'
           : dtype <= VME_INT64   ? 'i'
           : dtype <= VME_UINT64  ? 'u'
           : dtype <= VME_FLOAT64 ? 'f'
                                  : 'c';
}

/* Further names of dtypes, beside those of vme_dtype_name and kinds with sizes. */
static const struct {
    const char *name;
    int dtype;
} aliases[] = {
    {"bool_", VME_BOOL},
    {"byte", VME_INT8},
    {"short", VME_INT16},
    {"intc", VME_INT32},
    {"int", VME_INT64},
    {"int_", VME_INT64},
    {"intp", VME_INT64},
    {"long", VME_INT64},
    {"longlong", VME_INT64},
    {"ubyte", VME_UINT8},
    {"ushort", VME_UINT16},
    {"uintc", VME_UINT32},
    {"uint", VME_UINT64},
    {"uintp", VME_UINT64},
    {"ulong", VME_UINT64},
    {"ulonglong", VME_UINT64},
    {"half", VME_FLOAT16},
    {"single", VME_FLOAT32},
    {"float", VME_FLOAT64},
    {"double", VME_FLOAT64},
    {"csingle", VME_COMPLEX64},
    {"complex", VME_COMPLEX128},
    {"cdouble", VME_COMPLEX128},
    {"q", VME_INT64},
    {"p", VME_INT64},
    {"n", VME_INT64},
    {"Q", VME_UINT64},
    {"P", VME_UINT64},
    {"N", VME_UINT64},
};

static int from_text(const char *text)
{
    for (int i = 0; i < VME_DTYPE_COUNT; i++) {
        const char *name = vme_dtype_name((vme_dtype)i);
        if (name[0] == text[0] && strcmp(text, name) == 0)
            return i;
    }
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(text, aliases[i].name) == 0)
            return aliases[i].dtype;
    if (text[0] == '=' || text[0] == '|' || text[0] == (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? '<' : '>'))
        text++;
    const char *letter = strchr(letters, text[0]);
    if (text[0] != 0 && text[1] == 0 && letter != NULL)
        return (int)(letter - letters);
    if (text[0] != 0 && text[1] >= '0' && text[1] <= '9')
        for (int i = 0; i < VME_DTYPE_COUNT; i++) {
            char code[8];
            PyOS_snprintf(code, sizeof code, "%c%d", kind_of(i), vme_dtype_size((vme_dtype)i));
            if (strcmp(text, code) == 0)
                return i;
        }
    return -1;
}

int array_dtype_from(array_state *state, PyObject *object)
{
    if (is_dtype(object))
        return ((dtype_object *)object)->number;
    if (object == Py_None || object == (PyObject *)&PyFloat_Type)
        return VME_FLOAT64;
    if (object == (PyObject *)&PyLong_Type)
        return VME_INT64;
    if (object == (PyObject *)&PyBool_Type)
        return VME_BOOL;
    if (object == (PyObject *)&PyComplex_Type)
        return VME_COMPLEX128;
    PyObject *text = NULL, *own = NULL;
    if (PyUnicode_Check(object))
        text = Py_NewRef(object);
    else if (PyBytes_Check(object))
        text = PyUnicode_DecodeLatin1(PyBytes_AS_STRING(object), PyBytes_GET_SIZE(object), NULL);
    else if (PyObject_GetOptionalAttrString(object, "dtype", &own) < 0) /* whatever has a dtype names it */
        return -1;
    else if (own != NULL && is_dtype(own)) {
        int dtype = ((dtype_object *)own)->number;
        Py_DECREF(own);
        return dtype;
    } else if (!PyType_Check(object)
               && PyObject_GetOptionalAttrString(object, "str", &text) < 0) /* another library's dtype */
        text = NULL;
    else if (PyType_Check(object) && own != NULL) /* another library's scalar class */
        text = PyObject_GetAttrString(object, "__name__");
    Py_XDECREF(own);
    if (PyErr_Occurred())
        return -1;
    if (text != NULL && PyUnicode_Check(text)) {
        const char *utf8 = PyUnicode_AsUTF8(text);
        int dtype = utf8 == NULL ? -1 : from_text(utf8);
        if (utf8 != NULL && dtype < 0)
            PyErr_Format(PyExc_TypeError, "data type %R not understood", text);
        Py_DECREF(text);
        return dtype;
    }
    Py_XDECREF(text);
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "Cannot interpret '%R' as a data type", object);
    return -1;
}

int array_argument_dtype(array_state *state, PyObject *value, int absent)
{
    return array_given(value) ? array_dtype_from(state, value) : absent;
}

int dtype_promote_all(uint32_t dtypes)
{
    int result = -1;
    while (dtypes != 0) { /* from complex to bool: floats meet each integer alone */
        const int dtype = 31 - __builtin_clz(dtypes);
        result = result < 0 ? dtype : (int)vme_dtype_promote((vme_dtype)result, (vme_dtype)dtype);
        dtypes ^= UINT32_C(1) << dtype;
    }
    return result;
}

int dtype_for_weak(int dtype, int weak)
{
    switch (weak) {
    case WEAK_BOOL: return vme_dtype_promote((vme_dtype)dtype, VME_BOOL);
    case WEAK_INT: return dtype == VME_BOOL ? VME_INT64 : dtype;
    case WEAK_FLOAT: return dtype < VME_FLOAT16 ? VME_FLOAT64 : dtype;
    case WEAK_COMPLEX:
        if (dtype_is_complex(dtype))
            return dtype;
        return dtype == VME_FLOAT32 || dtype == VME_FLOAT16 ? VME_COMPLEX64 : VME_COMPLEX128;
    }
    return dtype;
}

int dtype_casting(PyObject *value, int absent)
{
    static const char *const names[] = {"no", "equiv", "safe", "same_kind", "unsafe"};
    if (!array_given(value))
        return absent;
    if (PyUnicode_Check(value))
        for (int i = 0; i < 5; i++)
            if (PyUnicode_EqualToUTF8(value, names[i]))
                return i;
    PyErr_Format(PyExc_ValueError, "casting must be one of 'no', 'equiv', 'safe', 'same_kind', 'unsafe' (got %R)",
                 value);
    return -1;
}

bool dtype_can_cast(int from, int to, int casting)
{
    if (from == to || casting == CAST_UNSAFE)
        return true;
    if (casting < CAST_SAFE)
        return false;
    if ((int)vme_dtype_promote((vme_dtype)from, (vme_dtype)to) == to)
        return true;
    /* the same kind, or one later in: bool, unsigned, signed, float, complex */
    static const char order[] = "buifc";
    return casting == CAST_SAME_KIND && strchr(order, kind_of(from)) <= strchr(order, kind_of(to));
}

/* ---- the type */
void dtype_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static PyObject *get_name(PyObject *self, void *closure)
{
    return PyUnicode_FromString(vme_dtype_name((vme_dtype)SELF->number));
}
static PyObject *get_itemsize(PyObject *self, void *closure)
{
    return PyLong_FromLong(vme_dtype_size((vme_dtype)SELF->number));
}
static PyObject *get_kind(PyObject *self, void *closure) { return PyUnicode_FromOrdinal(kind_of(SELF->number)); }
static PyObject *get_char(PyObject *self, void *closure) { return PyUnicode_FromOrdinal(letters[SELF->number]); }
static PyObject *get_self(PyObject *self, void *closure) { return Py_NewRef(self); }
static PyObject *get_true(PyObject *self, void *closure) { Py_RETURN_TRUE; }
static PyObject *get_none(PyObject *self, void *closure) { Py_RETURN_NONE; }
static PyObject *get_empty(PyObject *self, void *closure) { return PyTuple_New(0); }
static PyObject *get_zero(PyObject *self, void *closure) { return PyLong_FromLong(0); }

static PyObject *get_alignment(PyObject *self, void *closure)
{
    return PyLong_FromLong(vme_dtype_size((vme_dtype)SELF->number) >> dtype_is_complex(SELF->number));
}

static PyObject *get_num(PyObject *self, void *closure)
{
    static const char numbers[VME_DTYPE_COUNT] = {0, 1,  3,  5,  7,  2, 4, 6,
                                                  8, 23, 11, 12, 14, 15}; /* NumPy's type
                                                                           * numbers */
    return PyLong_FromLong(numbers[SELF->number]);
}

static PyObject *get_byteorder(PyObject *self, void *closure)
{
    return PyUnicode_FromString(vme_dtype_size((vme_dtype)SELF->number) == 1 ? "|" : "=");
}

static PyObject *get_str(PyObject *self, void *closure)
{
    int size = vme_dtype_size((vme_dtype)SELF->number);
    char order = size == 1 ? '|' : __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? '<' : '>';
    return PyUnicode_FromFormat("%c%c%d", order, kind_of(SELF->number), size);
}

static PyGetSetDef attributes[] = {
    {"name", get_name, NULL, "\"float32\".", NULL},
    {"__name__", get_name, NULL, NULL, NULL},
    {"itemsize", get_itemsize, NULL, "Bytes of an element.", NULL},
    {"alignment", get_alignment, NULL, "What addresses of elements are multiples of.", NULL},
    {"kind", get_kind, NULL, "\"b\", \"i\", \"u\", \"f\" or \"c\".", NULL},
    {"char", get_char, NULL, "NumPy's one-letter code.", NULL},
    {"num", get_num, NULL, "NumPy's number.", NULL},
    {"str", get_str, NULL, "\"<f4\".", NULL},
    {"type", get_self, NULL, "Itself: a dtype is its own scalar type.", NULL},
    {"dtype", get_self, NULL, "Itself.", NULL},
    {"base", get_self, NULL, "Itself.", NULL},
    {"byteorder", get_byteorder, NULL, "\"=\", or \"|\" for single bytes.", NULL},
    {"isnative", get_true, NULL, "True.", NULL},
    {"names", get_none, NULL, "None: there are no structured dtypes.", NULL},
    {"fields", get_none, NULL, "None: there are no structured dtypes.", NULL},
    {"subdtype", get_none, NULL, "None.", NULL},
    {"shape", get_empty, NULL, "().", NULL},
    {"ndim", get_zero, NULL, "0.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyObject *representation(PyObject *self)
{
    return PyUnicode_FromFormat("dtype('%s')", vme_dtype_name((vme_dtype)SELF->number));
}

/* Equal to anything that names the same dtype; unequal to everything else. */
static PyObject *compare(PyObject *self, PyObject *other, int comparison)
{
    if (!is_dtype(self))
        Py_RETURN_NOTIMPLEMENTED;
    if (comparison != Py_EQ && comparison != Py_NE) {
        int to = array_dtype_from(SELF->state, other), from = SELF->number;
        if (to < 0)
            return NULL;
        bool less = dtype_can_cast(from, to, CAST_SAFE), greater = dtype_can_cast(to, from, CAST_SAFE);
        return PyBool_FromLong(comparison == Py_LE   ? less
                               : comparison == Py_GE ? greater
                               : comparison == Py_LT ? less && from != to
                                                     : greater && from != to);
    }
    bool same = self == other;
    if (!same && other != Py_None) {
        int number = array_dtype_from(SELF->state, other);
        if (number < 0) {
            if (!PyErr_ExceptionMatches(PyExc_TypeError))
                return NULL;
            PyErr_Clear();
        }
        same = number == SELF->number;
    }
    return PyBool_FromLong(same == (comparison == Py_EQ));
}

static Py_hash_t hash(PyObject *self) { return 0x5eed + SELF->number * 7919; }

/* dtype("f4"), dtype(np.float32), dtype(float) */
static PyObject *construct(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"dtype", "align", "copy", NULL};
    PyObject *object;
    int ignored;
    array_state *state = PyType_GetModuleState(type);
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|pp:dtype", names, &object, &ignored, &ignored))
        return NULL;
    int dtype = array_dtype_from(state, object);
    return dtype < 0 ? NULL : Py_NewRef(state->dtypes[dtype]);
}

/* float32(3), float32([1, 2]): a scalar, or an array */
static PyObject *convert(PyObject *self, PyObject *const *args, size_t flags, PyObject *keywords)
{
    static const char *const names[] = {"value", NULL}, *const part_names[] = {"real", "imag", NULL};
    PyObject *values[2], *value;
    array_state *state = SELF->state;
    bool parts = dtype_is_complex(SELF->number);
    if (array_arguments(vme_dtype_name((vme_dtype)SELF->number), args, PyVectorcall_NARGS(flags), keywords,
                        parts ? part_names : names, 1 + parts, 0, values)
        < 0)
        return NULL;
    value = values[0];
    if (parts && values[1] != NULL) { /* complex128(1, 2) */
        double real = value == NULL ? 0 : PyFloat_AsDouble(value), imaginary = PyFloat_AsDouble(values[1]);
        if (PyErr_Occurred())
            return NULL;
        PyObject *number = PyComplex_FromDoubles(real, imaginary);
        PyObject *result = number == NULL ? NULL : array_as_scalar(array_scalar_from(state, SELF->number, number));
        Py_XDECREF(number);
        return result;
    }
    if (value == NULL) {
        array *zero = array_new_scalar(state, SELF->number);
        if (zero != NULL)
            memset(zero->t.data, 0, ARRAY_ELEMENT_BYTES);
        return array_as_scalar(zero);
    }
    if (PyUnicode_Check(value) && SELF->number >= VME_FLOAT16) {
        PyObject *parsed = dtype_is_complex(SELF->number) ? PyObject_CallOneArg((PyObject *)&PyComplex_Type, value)
                                                          : PyFloat_FromString(value);
        if (parsed == NULL)
            return NULL;
        PyObject *result = array_as_scalar(array_scalar_from(state, SELF->number, parsed));
        Py_DECREF(parsed);
        return result;
    }
    return array_as_scalar(array_copy_of_any(state, value, SELF->number));
}

static PyObject *check_instance(PyObject *self, PyObject *object)
{
    return PyBool_FromLong(is_array(object) && ((array *)object)->flags & ARRAY_SCALAR
                           && ((array *)object)->t.dtype == SELF->number);
}

static PyObject *string(PyObject *self) { return get_name(self, NULL); }
static PyObject *new_byteorder(PyObject *self, PyObject *order) { return Py_NewRef(self); }

static PyMethodDef methods[] = {
    {"__instancecheck__", check_instance, METH_O, "Whether the object is a scalar of this dtype."},
    {"newbyteorder", new_byteorder, METH_O, "Itself: there is the native order only."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(dtype_object, call), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, dtype_dealloc},  {Py_tp_traverse, traverse},   {Py_tp_new, construct},
    {Py_tp_call, PyVectorcall_Call}, {Py_tp_getset, attributes},   {Py_tp_members, members},
    {Py_tp_methods, methods},        {Py_tp_repr, representation}, {Py_tp_str, string},
    {Py_tp_richcompare, compare},    {Py_tp_hash, hash},           {0, NULL},
};

int array_dtypes_init(array_state *state, PyObject *module)
{
    PyType_Spec spec = {
        "vmhost.engine.numpy.dtype",
        sizeof(dtype_object),
        0,
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_VECTORCALL,
        slots,
    };
    state->dtype_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    if (state->dtype_type == NULL || PyModule_AddObjectRef(module, "dtype", (PyObject *)state->dtype_type) < 0)
        return -1;
    for (int i = 0; i < VME_DTYPE_COUNT; i++) {
        dtype_object *self = (dtype_object *)state->dtype_type->tp_alloc(state->dtype_type, 0);
        if (self == NULL)
            return -1;
        self->number = i;
        self->state = state;
        self->call = convert;
        state->dtypes[i] = (PyObject *)self;
        if (PyModule_AddObjectRef(module, vme_dtype_name((vme_dtype)i), (PyObject *)self) < 0)
            return -1;
    }
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (aliases[i].name[1] != 0 && strcmp(aliases[i].name, "int") != 0 && strcmp(aliases[i].name, "float") != 0
            && strcmp(aliases[i].name, "complex") != 0
            && PyModule_AddObjectRef(module, aliases[i].name, state->dtypes[aliases[i].dtype]) < 0)
            return -1;
    return 0;
}
