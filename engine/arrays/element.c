/* Conversion of one element to a Python number and back. */
#include "arrays.h"

#include <math.h>

float element_half_to_float(uint16_t half)
{
    char bytes[2];
    memcpy(bytes, &half, 2);
    return (float)PyFloat_Unpack2(bytes, __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
}

uint16_t element_half_from_float(double value)
{
    uint16_t half;
    char bytes[2];
    if (PyFloat_Pack2(value, bytes, __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) < 0) {
        PyErr_Clear(); /* too large: infinity, as in casts */
        return value < 0 ? 0xfc00 : 0x7c00;
    }
    memcpy(&half, bytes, 2);
    return half;
}

#define LOAD(type) \
    ({ \
        type loaded; \
        memcpy(&loaded, data, sizeof loaded); \
        loaded; \
    })
#define STORE(type, value) \
    do { \
        type stored = (type)(value); \
        memcpy(data, &stored, sizeof stored); \
    } while (0)

PyObject *element_to_python(int dtype, const char *data)
{
    switch (dtype) {
    case VME_BOOL: return PyBool_FromLong(LOAD(uint8_t));
    case VME_INT8: return PyLong_FromLong(LOAD(int8_t));
    case VME_INT16: return PyLong_FromLong(LOAD(int16_t));
    case VME_INT32: return PyLong_FromLong(LOAD(int32_t));
    case VME_INT64: return PyLong_FromLongLong(LOAD(int64_t));
    case VME_UINT8: return PyLong_FromLong(LOAD(uint8_t));
    case VME_UINT16: return PyLong_FromLong(LOAD(uint16_t));
    case VME_UINT32: return PyLong_FromLongLong(LOAD(uint32_t));
    case VME_UINT64: return PyLong_FromUnsignedLongLong(LOAD(uint64_t));
    case VME_FLOAT16: return PyFloat_FromDouble(element_half_to_float(LOAD(uint16_t)));
    case VME_FLOAT32: return PyFloat_FromDouble(LOAD(float));
    case VME_FLOAT64: return PyFloat_FromDouble(LOAD(double));
    case VME_COMPLEX64: {
        float parts[2];
        memcpy(parts, data, sizeof parts);
        return PyComplex_FromDoubles(parts[0], parts[1]);
    }
    default: {
        double parts[2];
        memcpy(parts, data, sizeof parts);
        return PyComplex_FromDoubles(parts[0], parts[1]);
    }
    }
}

int element_weak(PyObject *object)
{
    if (PyFloat_Check(object))
        return WEAK_FLOAT;
    if (PyLong_Check(object))
        return PyBool_Check(object) ? WEAK_BOOL : WEAK_INT;
    return PyComplex_Check(object) ? WEAK_COMPLEX : WEAK_NONE;
}

static int integer_from_python(int dtype, PyObject *object, char *data)
{
    static const int64_t min[] = {
        [VME_INT8] = INT8_MIN, [VME_INT16] = INT16_MIN, [VME_INT32] = INT32_MIN, [VME_INT64] = INT64_MIN};
    static const uint64_t max[] = {
        [VME_INT8] = INT8_MAX,   [VME_INT16] = INT16_MAX,   [VME_INT32] = INT32_MAX,   [VME_INT64] = INT64_MAX,
        [VME_UINT8] = UINT8_MAX, [VME_UINT16] = UINT16_MAX, [VME_UINT32] = UINT32_MAX, [VME_UINT64] = UINT64_MAX,
    };
    PyObject *number;
    if (PyIndex_Check(object) && !(is_array(object) && !dtype_is_integer(((array *)object)->t.dtype)))
        number = PyNumber_Index(object);
    else
        number = PyNumber_Long(object); /* floats are truncated; NaN and infinity raise */
    if (number == NULL)
        return -1;
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    uint64_t wide = (uint64_t)value;
    bool fits = overflow == 0;
    if (overflow > 0 && dtype == VME_UINT64) {
        wide = PyLong_AsUnsignedLongLong(number);
        fits = !(wide == UINT64_MAX && PyErr_Occurred());
        PyErr_Clear();
    } else if (fits) {
        fits = value < 0 ? dtype <= VME_INT64 && value >= min[dtype] : (uint64_t)value <= max[dtype];
    }
    if (!fits)
        PyErr_Format(PyExc_OverflowError, "Python integer %R out of bounds for %s", number,
                     vme_dtype_name((vme_dtype)dtype));
    else
        memcpy(data, &wide, (size_t)vme_dtype_size((vme_dtype)dtype)); /* little-endian: the low bytes come first */
    Py_DECREF(number);
    return fits ? 0 : -1;
}
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "integers are stored by their low bytes");

int element_from_python(int dtype, PyObject *object, char *data)
{
    if (PyFloat_CheckExact(object) && (dtype == VME_FLOAT64 || dtype == VME_FLOAT32)) { /* the common case, at once */
        if (dtype == VME_FLOAT64)
            STORE(double, PyFloat_AS_DOUBLE(object));
        else
            STORE(float, PyFloat_AS_DOUBLE(object));
        return 0;
    }
    if (dtype_is_integer(dtype))
        return integer_from_python(dtype, object, data);
    if (dtype == VME_BOOL) {
        int truth = PyObject_IsTrue(object);
        STORE(uint8_t, truth > 0);
        return truth < 0 ? -1 : 0;
    }
    if (dtype_is_complex(dtype)) {
        Py_complex value = object == Py_None ? (Py_complex){Py_NAN, Py_NAN} : PyComplex_AsCComplex(object);
        if (value.real == -1.0 && PyErr_Occurred())
            return -1;
        if (dtype == VME_COMPLEX64) {
            float parts[2] = {(float)value.real, (float)value.imag};
            memcpy(data, parts, sizeof parts);
        } else {
            double parts[2] = {value.real, value.imag};
            memcpy(data, parts, sizeof parts);
        }
        return 0;
    }
    double value = object == Py_None           ? Py_NAN
                   : PyLong_CheckExact(object) ? PyLong_AsDouble(object) /* PyFloat_AsDouble makes an object of it */
                                               : PyFloat_AsDouble(object);
    if (value == -1.0 && PyErr_Occurred()) {
        if (PyComplex_Check(object)) {
            PyErr_Clear();
            PyErr_SetString(PyExc_TypeError, "float() argument must be a string or a real number, not 'complex'");
        }
        return -1;
    }
    if (dtype == VME_FLOAT64)
        STORE(double, value);
    else if (dtype == VME_FLOAT32)
        STORE(float, value);
    else
        STORE(uint16_t, element_half_from_float(value));
    return 0;
}
