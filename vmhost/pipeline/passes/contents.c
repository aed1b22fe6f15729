/* Contents of events as msgpack, where all types are msgpack's own: exactly None, bool, int of 64 bits, float, str,
 * bytes, list and dict. */
#include "passes.h"

#include <string.h>

enum { DEPTH_MAX = 100 };
typedef enum { DONE, UNUSUAL, FAILED } outcome; /* UNUSUAL: another type; FAILED: an error is set */

typedef struct {
    uint8_t *data; /* owned */
    size_t size, capacity;
    int depth;
} writer;

static uint8_t *room(writer *w, size_t more)
{
    if (more > w->capacity - w->size) {
        size_t capacity = (w->size + more) * 2;
        uint8_t *data = PyMem_Realloc(w->data, capacity);
        if (data == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        w->data = data;
        w->capacity = capacity;
    }
    uint8_t *at = w->data + w->size;
    w->size += more;
    return at;
}

/* `first`, then `number` in `bytes` bytes, big-endian. */
static outcome put_number(writer *w, uint8_t first, int bytes, uint64_t number)
{
    uint8_t *at = room(w, 1 + (size_t)bytes);
    if (at == NULL)
        return FAILED;
    *at++ = first;
    while (bytes-- > 0)
        *at++ = (uint8_t)(number >> 8 * bytes);
    return DONE;
}

/* The head of a count; `one`, `two`, `four`: the first byte for a count of so many bytes; 0: no such form. */
static outcome put_count(writer *w, size_t count, uint8_t one, uint8_t two, uint8_t four)
{
    if (count <= UINT8_MAX && one != 0)
        return put_number(w, one, 1, count);
    if (count <= UINT16_MAX)
        return put_number(w, two, 2, count);
    return count <= UINT32_MAX ? put_number(w, four, 4, count) : UNUSUAL;
}

static outcome put_raw(writer *w, const void *data, size_t size)
{
    uint8_t *at = room(w, size);
    if (at == NULL)
        return FAILED;
    memcpy(at, data, size);
    return DONE;
}

static outcome put_int(writer *w, PyObject *value)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0)
        return UNUSUAL;
    if (number >= 0)
        return number < 0x80          ? put_number(w, (uint8_t)number, 0, 0)
               : number <= UINT8_MAX  ? put_number(w, 0xCC, 1, (uint64_t)number)
               : number <= UINT16_MAX ? put_number(w, 0xCD, 2, (uint64_t)number)
               : number <= UINT32_MAX ? put_number(w, 0xCE, 4, (uint64_t)number)
                                      : put_number(w, 0xCF, 8, (uint64_t)number);
    return number >= -32         ? put_number(w, (uint8_t)number, 0, 0)
           : number >= INT8_MIN  ? put_number(w, 0xD0, 1, (uint64_t)number)
           : number >= INT16_MIN ? put_number(w, 0xD1, 2, (uint64_t)number)
           : number >= INT32_MIN ? put_number(w, 0xD2, 4, (uint64_t)number)
                                 : put_number(w, 0xD3, 8, (uint64_t)number);
}

static outcome put_text(writer *w, PyObject *text)
{
    Py_ssize_t size;
    const char *data = PyUnicode_AsUTF8AndSize(text, &size);
    if (data == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeError))
            return FAILED;
        PyErr_Clear();
        return UNUSUAL; /* lone surrogates */
    }
    outcome done =
        size < 32 ? put_number(w, (uint8_t)(0xA0 | size), 0, 0) : put_count(w, (size_t)size, 0xD9, 0xDA, 0xDB);
    return done == DONE ? put_raw(w, data, (size_t)size) : done;
}

static outcome put(writer *w, PyObject *value);

static outcome put_list(writer *w, PyObject *list)
{
    Py_ssize_t count = PyList_GET_SIZE(list);
    outcome done =
        count < 16 ? put_number(w, (uint8_t)(0x90 | count), 0, 0) : put_count(w, (size_t)count, 0, 0xDC, 0xDD);
    for (Py_ssize_t i = 0; done == DONE && i < count; i++)
        done = put(w, PyList_GET_ITEM(list, i));
    return done;
}

static outcome put_dict(writer *w, PyObject *dict)
{
    Py_ssize_t count = PyDict_GET_SIZE(dict), position = 0;
    PyObject *key, *item;
    outcome done =
        count < 16 ? put_number(w, (uint8_t)(0x80 | count), 0, 0) : put_count(w, (size_t)count, 0, 0xDE, 0xDF);
    while (done == DONE && PyDict_Next(dict, &position, &key, &item))
        if ((done = put(w, key)) == DONE)
            done = put(w, item);
    return done;
}

/* No Python code of a value runs here, so the values do not change meanwhile. */
static outcome put(writer *w, PyObject *value)
{
    const PyTypeObject *type = Py_TYPE(value);
    if (type == &PyUnicode_Type)
        return put_text(w, value);
    if (type == &PyLong_Type)
        return put_int(w, value);
    if (value == Py_None)
        return put_number(w, 0xC0, 0, 0);
    if (type == &PyBool_Type)
        return put_number(w, value == Py_True ? 0xC3 : 0xC2, 0, 0);
    if (type == &PyFloat_Type) {
        uint64_t bits;
        double number = PyFloat_AS_DOUBLE(value);
        memcpy(&bits, &number, sizeof bits);
        return put_number(w, 0xCB, 8, bits);
    }
    if (type == &PyBytes_Type) {
        outcome done = put_count(w, (size_t)PyBytes_GET_SIZE(value), 0xC4, 0xC5, 0xC6);
        return done == DONE ? put_raw(w, PyBytes_AS_STRING(value), (size_t)PyBytes_GET_SIZE(value)) : done;
    }
    if ((type != &PyList_Type && type != &PyDict_Type) || w->depth == DEPTH_MAX)
        return UNUSUAL;
    w->depth++;
    outcome done = type == &PyList_Type ? put_list(w, value) : put_dict(w, value);
    w->depth--;
    return done;
}

PyObject *passes_pack_contents(PyObject *module, PyObject *events)
{
    const module_state *state = PyModule_GetState(module);
    if (!PyList_CheckExact(events) && !PyTuple_CheckExact(events))
        return PyErr_Format(PyExc_TypeError, "pack_contents() takes a list or a tuple, got `%T`", events);
    Py_ssize_t count = PySequence_Fast_GET_SIZE(events);
    PyObject *list = PyList_New(count);
    writer w = {NULL, 0, 0, 0};
    outcome done = list == NULL ? FAILED : DONE;
    for (Py_ssize_t i = 0; done == DONE && i < count && i < PySequence_Fast_GET_SIZE(events); i++) {
        PyObject *event = Py_NewRef(PySequence_Fast_GET_ITEM(events, i)); /* reading an attribute may run code */
        PyObject *contents = passes_get(&state->contents, event), *bytes;
        w.size = 0;
        done = contents == NULL ? FAILED : put(&w, contents);
        if (done == DONE) {
            bytes = PyBytes_FromStringAndSize((const char *)w.data, (Py_ssize_t)w.size);
            if (bytes == NULL)
                done = FAILED;
            else
                PyList_SET_ITEM(list, i, bytes);
        }
        Py_XDECREF(contents);
        Py_DECREF(event);
    }
    PyMem_Free(w.data);
    if (done == DONE)
        return list;
    Py_XDECREF(list);
    return done == UNUSUAL ? Py_NewRef(Py_None) : NULL;
}
