#include "wire/library.h"

#include <limits.h>
#include <string.h>

#include <datetime.h>

enum {
    KIND_DATE = 4,
    KIND_TIME,
    KIND_DATETIME,
    KIND_TIMEDELTA,
    KIND_TIMEZONE = VMH_LIBRARY_TIMEZONE,
    KIND_DECIMAL = 10
};
enum { DECIMAL_CHARS_MAX = 100000 }; /* vmhost/guest/kinds.py */

/* Clears the current exception if it is an `Exception`: 0, or -1. */
static int none_of_it(void)
{
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Clear();
    return 0;
}

/* The interface of this interpreter's datetime; NULL: there is none here, or an exception. */
static PyDateTime_CAPI *times_of(vmh_library *library)
{
    (void)PyDateTimeAPI; /* the header's own pointer, which is of one interpreter */
    if (library->times == NULL && !library->no_times) {
        library->times = PyCapsule_Import(PyDateTime_CAPSULE_NAME, 0);
        library->no_times = library->times == NULL && none_of_it() == 0;
    }
    return library->times;
}

/* This interpreter's class Decimal, borrowed; NULL: it is not imported, or an exception. */
static PyObject *decimal_of(vmh_library *library)
{
    if (library->decimal == NULL) {
        PyObject *name = PyUnicode_FromString("decimal"), *module = name == NULL ? NULL : PyImport_GetModule(name);
        Py_XDECREF(name);
        if (module != NULL && PyObject_GetOptionalAttrString(module, "Decimal", &library->decimal) < 0)
            none_of_it();
        Py_XDECREF(module);
        if (library->decimal != NULL && !PyType_Check(library->decimal))
            Py_CLEAR(library->decimal);
    }
    return library->decimal;
}

static int read_decimal(vmh_library *library, PyObject *value, vmh_library_value *read)
{
    if ((PyObject *)Py_TYPE(value) != decimal_of(library))
        return PyErr_Occurred() ? -1 : 0;
    PyObject *text = PyObject_Str(value);
    if (text == NULL)
        return none_of_it();
    if (!PyUnicode_CheckExact(text) || PyUnicode_GET_LENGTH(text) > DECIMAL_CHARS_MAX) {
        Py_DECREF(text);
        return 0;
    }
    read->kind = KIND_DECIMAL;
    read->text = text;
    return 1;
}

static void read_zone(const PyDateTime_CAPI *times, PyObject *zone, vmh_library_value *read)
{
    read->in_utc = zone == times->TimeZone_UTC;
    read->zone = read->in_utc || zone == Py_None ? NULL : zone;
}

int vmh_library_read(vmh_library *library, PyObject *value, vmh_library_value *read)
{
    *read = (vmh_library_value){0};
    const char *name = Py_TYPE(value)->tp_name;
    if (strcmp(name, "decimal.Decimal") == 0)
        return read_decimal(library, value, read);
    if (strncmp(name, "datetime.", 9) != 0)
        return 0;
    const PyDateTime_CAPI *times = times_of(library);
    if (times == NULL)
        return PyErr_Occurred() ? -1 : 0;
    long *parts = read->parts;
    if (Py_IS_TYPE(value, times->DateTimeType)) {
        read->kind = KIND_DATETIME;
        parts[read->count++] = PyDateTime_GET_YEAR(value);
        parts[read->count++] = PyDateTime_GET_MONTH(value);
        parts[read->count++] = PyDateTime_GET_DAY(value);
        parts[read->count++] = PyDateTime_DATE_GET_HOUR(value);
        parts[read->count++] = PyDateTime_DATE_GET_MINUTE(value);
        parts[read->count++] = PyDateTime_DATE_GET_SECOND(value);
        parts[read->count++] = PyDateTime_DATE_GET_MICROSECOND(value);
        parts[read->count++] = PyDateTime_DATE_GET_FOLD(value);
        read_zone(times, PyDateTime_DATE_GET_TZINFO(value), read);
        return 1;
    }
    if (Py_IS_TYPE(value, times->TimeType)) {
        read->kind = KIND_TIME;
        parts[read->count++] = PyDateTime_TIME_GET_HOUR(value);
        parts[read->count++] = PyDateTime_TIME_GET_MINUTE(value);
        parts[read->count++] = PyDateTime_TIME_GET_SECOND(value);
        parts[read->count++] = PyDateTime_TIME_GET_MICROSECOND(value);
        parts[read->count++] = PyDateTime_TIME_GET_FOLD(value);
        read_zone(times, PyDateTime_TIME_GET_TZINFO(value), read);
        return 1;
    }
    if (Py_IS_TYPE(value, times->DateType)) {
        read->kind = KIND_DATE;
        parts[read->count++] = PyDateTime_GET_YEAR(value);
        parts[read->count++] = PyDateTime_GET_MONTH(value);
        parts[read->count++] = PyDateTime_GET_DAY(value);
        return 1;
    }
    if (Py_IS_TYPE(value, times->DeltaType)) {
        read->kind = KIND_TIMEDELTA;
        parts[read->count++] = PyDateTime_DELTA_GET_DAYS(value);
        parts[read->count++] = PyDateTime_DELTA_GET_SECONDS(value);
        parts[read->count++] = PyDateTime_DELTA_GET_MICROSECONDS(value);
        return 1;
    }
    read->kind = KIND_TIMEZONE; /* UTC: days, seconds and microseconds are zero */
    read->count = 3;
    return value == times->TimeZone_UTC;
}

/* The ints of the tuple `payload` in `parts`, if these are `count` exact ones that fit; false without an exception. */
static bool are_parts(PyObject *payload, int *parts, Py_ssize_t count)
{
    if (!PyTuple_CheckExact(payload) || PyTuple_GET_SIZE(payload) != count)
        return false;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *part = PyTuple_GET_ITEM(payload, i);
        int overflow = 0;
        long number = PyLong_CheckExact(part) ? PyLong_AsLongAndOverflow(part, &overflow) : LONG_MAX;
        if (overflow != 0 || number < INT_MIN || number > INT_MAX)
            return false;
        parts[i] = (int)number;
    }
    return true;
}

static PyObject *make_delta(const PyDateTime_CAPI *times, PyObject *payload)
{
    int p[3];
    bool fits = are_parts(payload, p, 3) && 0 <= p[1] && p[1] < 86400 && 0 <= p[2] && p[2] < 1000000;
    return fits ? times->Delta_FromDelta(p[0], p[1], p[2], 0, times->DeltaType) : NULL;
}

static PyObject *make_time(vmh_library *library, int kind, PyObject *detail, bool is_zone, PyObject *payload)
{
    const PyDateTime_CAPI *times = times_of(library);
    int p[VMH_LIBRARY_PARTS_MAX];
    if (times == NULL)
        return NULL;
    PyObject *utc = times->TimeZone_UTC, *value = NULL, *offset;
    bool is_plain = detail == Py_None, has_zone = is_plain || is_zone || Py_IS_TYPE(detail, Py_TYPE(utc));
    switch (kind) {
    case KIND_DATE:
        return is_plain && are_parts(payload, p, 3) ? times->Date_FromDate(p[0], p[1], p[2], times->DateType) : NULL;
    case KIND_TIME:
        return has_zone && are_parts(payload, p, 5)
                   ? times->Time_FromTimeAndFold(p[0], p[1], p[2], p[3], detail, p[4], times->TimeType)
                   : NULL;
    case KIND_DATETIME:
        return has_zone && are_parts(payload, p, 8)
                   ? times->DateTime_FromDateAndTimeAndFold(p[0], p[1], p[2], p[3], p[4], p[5], p[6], detail, p[7],
                                                            times->DateTimeType)
                   : NULL;
    case KIND_TIMEDELTA: return is_plain ? make_delta(times, payload) : NULL;
    default: /* KIND_TIMEZONE */
        offset = is_plain || PyUnicode_CheckExact(detail) ? make_delta(times, payload) : NULL;
        value = offset == NULL ? NULL : times->TimeZone_FromTimeZone(offset, is_plain ? NULL : detail);
        Py_XDECREF(offset);
        return value;
    }
}

static PyObject *make_decimal(vmh_library *library, PyObject *detail, PyObject *payload)
{
    PyObject *cls = detail == Py_None && PyUnicode_CheckExact(payload) && PyUnicode_IS_ASCII(payload)
                            && PyUnicode_GET_LENGTH(payload) <= DECIMAL_CHARS_MAX
                        ? decimal_of(library)
                        : NULL;
    PyObject *value = cls == NULL ? NULL : PyObject_CallOneArg(cls, payload);
    PyObject *text = value == NULL ? NULL : PyObject_Str(value);
    if (text == NULL || !PyUnicode_Check(text) || PyUnicode_Compare(text, payload) != 0)
        Py_CLEAR(value);
    Py_XDECREF(text);
    return value;
}

PyObject *vmh_library_make(vmh_library *library, int kind, PyObject *detail, bool is_zone, PyObject *payload)
{
    PyObject *value = NULL;
    if (kind == KIND_DECIMAL)
        value = make_decimal(library, detail, payload);
    else if (KIND_DATE <= kind && kind <= KIND_TIMEZONE)
        value = make_time(library, kind, detail, is_zone, payload);
    if (value == NULL && PyErr_Occurred())
        none_of_it();
    return value;
}

void vmh_library_clear(vmh_library *library)
{
    if (library->decimal == NULL)
        return;
    PyObject *error = PyErr_GetRaisedException();
    Py_CLEAR(library->decimal);
    if (error != NULL)
        PyErr_SetRaisedException(error);
}
