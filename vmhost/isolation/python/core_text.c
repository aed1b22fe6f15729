/* Text with many numbers, such as the metrics page of many tasks: a template that is filled repeatedly. */
#include "python/core.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* `data` is malloc'ed, NULL while empty; the writer's owner frees it. */
typedef struct {
    char *data;
    size_t size, room;
} text_writer;

static int write_bytes(text_writer *to, const char *from, size_t size)
{
    if (size > to->room - to->size) {
        size_t room = to->room < 4096 ? 4096 : to->room;
        while (room - to->size < size) {
            if (room > SIZE_MAX / 2) {
                PyErr_NoMemory();
                return -1;
            }
            room *= 2;
        }
        char *data = realloc(to->data, room);
        if (data == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        to->data = data;
        to->room = room;
    }
    memcpy(to->data + to->size, from, size);
    to->size += size;
    return 0;
}

static int write_integer(text_writer *to, long long number)
{
    char digits[24], *at = digits + sizeof digits;
    unsigned long long rest = number < 0 ? 0 - (unsigned long long)number : (unsigned long long)number;
    do {
        *--at = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest != 0);
    if (number < 0)
        *--at = '-';
    return write_bytes(to, at, (size_t)(digits + sizeof digits - at));
}

/* Writes an int or a float in the form of repr(). */
static int write_number(text_writer *to, PyObject *number)
{
    if (PyFloat_Check(number)) {
        char *text = PyOS_double_to_string(PyFloat_AS_DOUBLE(number), 'r', 0, Py_DTSF_ADD_DOT_0, NULL);
        int rc = text == NULL ? -1 : write_bytes(to, text, strlen(text));
        PyMem_Free(text);
        return rc;
    }
    if (!PyLong_Check(number)) {
        PyErr_Format(PyExc_TypeError, "fill: expected an int or a float, got %T", number);
        return -1;
    }
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow != 0) {
        PyErr_SetString(PyExc_OverflowError, "fill: expected ints of 64 bits");
        return -1;
    }
    return value == -1 && PyErr_Occurred() ? -1 : write_integer(to, value);
}

/* The literal text up to the next placeholder; `place`: 0 for the text, 1 for a number, -1 at the end. */
typedef struct {
    const char *begin;
    size_t size;
    int place;
} text_piece;

/* The pieces of a template, malloc'ed; NULL with an error set. */
static text_piece *pieces_of(const char *template, size_t size, Py_ssize_t *numbers)
{
    size_t count = 1;
    for (size_t i = 0; i < size; i++)
        count += (unsigned char)template[i] <= 1;
    text_piece *pieces = malloc(count * sizeof *pieces);
    if (pieces == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    const char *begin = template, *end = template + size;
    *numbers = 0;
    for (size_t i = 0; i < count; i++) {
        const char *stop = begin;
        while (stop < end && (unsigned char)*stop > 1)
            stop++;
        pieces[i] = (text_piece){begin, (size_t)(stop - begin), stop < end ? *stop : -1};
        *numbers += pieces[i].place == 1;
        begin = stop + 1;
    }
    return pieces;
}

static int fill_one(text_writer *to, const text_piece *pieces, PyObject *text, PyObject *row)
{
    bool numbers_are_many = PyList_Check(row) || PyTuple_Check(row);
    Py_ssize_t text_size, used = 0;
    const char *text_data = PyUnicode_AsUTF8AndSize(text, &text_size);
    if (text_data == NULL)
        return -1;
    for (const text_piece *piece = pieces;; piece++) {
        int rc = write_bytes(to, piece->begin, piece->size);
        if (rc == 0 && piece->place == 0)
            rc = write_bytes(to, text_data, (size_t)text_size);
        else if (rc == 0 && piece->place == 1)
            rc = write_number(to, numbers_are_many ? PySequence_Fast_GET_ITEM(row, used++) : row);
        if (rc < 0 || piece->place < 0)
            return rc;
    }
}

PyObject *vmh_core_fill(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *template;
    Py_ssize_t size, numbers;
    PyObject *texts, *rows, *result = NULL;
    text_writer to = {NULL, 0, 0};
    if (!PyArg_ParseTuple(args, "s#O!O!:fill", &template, &size, &PyList_Type, &texts, &PyList_Type, &rows))
        return NULL;
    if (PyList_GET_SIZE(texts) != PyList_GET_SIZE(rows)) {
        PyErr_SetString(PyExc_ValueError, "fill: expected as many rows as texts");
        return NULL;
    }
    text_piece *pieces = pieces_of(template, (size_t)size, &numbers);
    if (pieces == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(texts); i++) {
        PyObject *row = PyList_GET_ITEM(rows, i), *text = PyList_GET_ITEM(texts, i);
        Py_ssize_t count = PyList_Check(row) || PyTuple_Check(row) ? PySequence_Fast_GET_SIZE(row) : 1;
        if (!PyUnicode_Check(text)) {
            PyErr_Format(PyExc_TypeError, "fill: expected a text, got %T", text);
            goto cleanup;
        }
        if (count != numbers) {
            PyErr_Format(PyExc_ValueError, "fill: the template has %zd numbers, a row has %zd", numbers, count);
            goto cleanup;
        }
        if (fill_one(&to, pieces, text, row) < 0)
            goto cleanup;
    }
    result = PyUnicode_DecodeUTF8(to.size == 0 ? "" : to.data, (Py_ssize_t)to.size, "strict");
cleanup:
    free(pieces);
    free(to.data);
    return result;
}

/* Cumulative counts of a histogram (lanes/histogram.h, as bytes): of the first `first` buckets, then of `step` more,
 * and so on, `steps` numbers; then the total. */
PyObject *vmh_core_reached(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *counts;
    Py_ssize_t size;
    int first, step, steps;
    if (!PyArg_ParseTuple(args, "y#iii:reached", &counts, &size, &first, &step, &steps))
        return NULL;
    Py_ssize_t buckets = size / (Py_ssize_t)sizeof(uint64_t);
    if (first < 0 || step < 1 || steps < 1 || first + (Py_ssize_t)step * (steps - 1) > buckets) {
        PyErr_SetString(PyExc_ValueError, "reached: expected buckets that the histogram has");
        return NULL;
    }
    PyObject *row = PyList_New(steps + 1);
    uint64_t sum = 0;
    Py_ssize_t at = 0;
    for (int i = 0; row != NULL && i <= steps; i++) {
        Py_ssize_t end = i == steps ? buckets : first + (Py_ssize_t)step * i;
        for (; at < end; at++) {
            uint64_t count;
            memcpy(&count, counts + (size_t)at * sizeof count, sizeof count);
            sum += count;
        }
        PyObject *number = PyLong_FromUnsignedLongLong(sum);
        if (number == NULL)
            Py_CLEAR(row);
        else
            PyList_SET_ITEM(row, i, number);
    }
    return row;
}
