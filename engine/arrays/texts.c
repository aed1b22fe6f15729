/* Texts and labels at the edges of models (engine/model_texts.py): texts to the numbers of a vocabulary, rows to dicts.
 */
#include "arrays.h"
#include "methods.h"

/* Item `at` of a list or tuple that may have fewer, by now; NULL: it has. Borrowed. */
static inline PyObject *item_of(PyObject *plain, int64_t at)
{
    if (PyTuple_CheckExact(plain))
        return at < PyTuple_GET_SIZE(plain) ? PyTuple_GET_ITEM(plain, at) : NULL;
    return at < PyList_GET_SIZE(plain) ? PyList_GET_ITEM(plain, at) : NULL;
}

static bool is_plain_list(PyObject *object) { return PyList_CheckExact(object) || PyTuple_CheckExact(object); }

/* Writes the number of each of `count` texts of a list or tuple, -1 where the dict has none. 1; 0: there are not that
 * many, or some item is no str; -1: an error is set. Keys of the dict may be of any type, and compare by code that
 * changes the list: each item is read anew. No code runs from the look-up to the number's last use: it is borrowed. */
static int numbers_of(PyObject *numbers, PyObject *texts, int64_t count, int64_t *to)
{
    for (int64_t i = 0; i < count; i++) {
        PyObject *text = item_of(texts, i);
        if (text == NULL || !PyUnicode_CheckExact(text))
            return 0;
        Py_INCREF(text);
        PyObject *number = PyDict_GetItemWithError(numbers, text);
        Py_DECREF(text);
        if (number != NULL && !PyLong_Check(number)) {
            PyErr_Format(PyExc_TypeError, "_text_numbers: expected int for each text, got %s",
                         Py_TYPE(number)->tp_name);
            return -1;
        }
        if (number != NULL && PyUnstable_Long_IsCompact((PyLongObject *)number)) {
            to[i] = PyUnstable_Long_CompactValue((PyLongObject *)number);
            continue;
        }
        to[i] = number == NULL ? -1 : PyLong_AsLongLong(number);
        if (to[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return PySequence_Fast_GET_SIZE(texts) == count;
}

/* _text_numbers(numbers, texts): an array of int64 of texts' numbers in the dict `numbers`, -1 where they have none.
 * `texts` is a list or tuple of str, or of such rows of one length; None: it has another form */
PyObject *array_function__text_numbers(PyObject *module, ARRAY_VECTORCALL)
{
    PyObject *numbers = args[0], *texts = args[1];
    if (!PyDict_CheckExact(numbers))
        return PyErr_Format(PyExc_TypeError, "_text_numbers: expected a dict, got %s", Py_TYPE(numbers)->tp_name);
    if (!is_plain_list(texts) || PySequence_Fast_GET_SIZE(texts) == 0)
        Py_RETURN_NONE;
    PyObject *const *items = PySequence_Fast_ITEMS(texts);
    const bool rows = is_plain_list(items[0]);
    int64_t shape[2] = {PySequence_Fast_GET_SIZE(texts), rows ? PySequence_Fast_GET_SIZE(items[0]) : 1};
    for (int64_t i = 0; rows && i < shape[0]; i++)
        if (!is_plain_list(items[i]) || PySequence_Fast_GET_SIZE(items[i]) != shape[1] || shape[1] == 0)
            Py_RETURN_NONE;
    array *result = array_new(array_state_of(module), VME_INT64, rows ? 2 : 1, shape, false);
    if (result == NULL)
        return NULL;
    int64_t *to = (int64_t *)(void *)result->t.data;
    const int64_t each = rows ? shape[1] : shape[0];
    int found = 1;
    for (int64_t i = 0; found == 1 && i < (rows ? shape[0] : 1); i++, to += each) {
        PyObject *row = rows ? item_of(texts, i) : texts;
        if (row == NULL || !is_plain_list(row))
            found = 0;
        else {
            Py_INCREF(row);
            found = numbers_of(numbers, row, each, to);
            Py_DECREF(row);
        }
    }
    if (found == 1)
        return (PyObject *)result;
    Py_DECREF(result);
    if (found < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* A dict of the labels to a row's numbers, from `like`, another row's, or NULL; NULL: an error is set. */
static PyObject *labelled(PyObject *labels, PyObject *row, PyObject *like)
{
    const Py_ssize_t count = PyTuple_GET_SIZE(labels);
    if (!PyList_CheckExact(row) || PyList_GET_SIZE(row) != count)
        return PyErr_Format(PyExc_ValueError, "_labelled_rows: expected rows of %zd numbers", count);
    PyObject *row_dict = like == NULL ? PyDict_New() : PyDict_Copy(like);
    for (Py_ssize_t i = 0; row_dict != NULL && i < count; i++)
        if (PyDict_SetItem(row_dict, PyTuple_GET_ITEM(labels, i), PyList_GET_ITEM(row, i)) < 0)
            Py_CLEAR(row_dict);
    return row_dict;
}

/* _labelled_rows(labels, rows): a list with a dict of each of `rows`, a list of lists of as many numbers as the tuple
 * `labels` has labels, str or int */
PyObject *array_function__labelled_rows(PyObject *module, ARRAY_VECTORCALL)
{
    (void)module;
    PyObject *labels = args[0], *rows = args[1];
    bool fits = PyTuple_CheckExact(labels) && PyList_CheckExact(rows);
    for (Py_ssize_t i = 0; fits && i < PyTuple_GET_SIZE(labels); i++) {
        PyObject *label = PyTuple_GET_ITEM(labels, i);
        fits = PyUnicode_CheckExact(label) || PyLong_CheckExact(label); /* whose hashes run no Python code */
    }
    if (!fits) {
        PyErr_SetString(PyExc_TypeError, "_labelled_rows: expected a tuple of str or int, and a list of rows");
        return NULL;
    }
    const Py_ssize_t size = PyList_GET_SIZE(rows);
    PyObject *result = PyList_New(size);
    for (Py_ssize_t i = 0; result != NULL && i < size; i++) {
        PyObject *row_dict = labelled(labels, PyList_GET_ITEM(rows, i), i == 0 ? NULL : PyList_GET_ITEM(result, i - 1));
        if (row_dict == NULL)
            Py_CLEAR(result);
        else
            PyList_SET_ITEM(result, i, row_dict);
    }
    return result;
}
