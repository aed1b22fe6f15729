#include "wire/handover.h"

#include <malloc.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"

static bool works;

/* Offset of the content in an object's block. */
static size_t head(bool text) { return text ? sizeof(PyASCIIObject) : offsetof(PyBytesObject, ob_sval); }

static bool is_large_text(PyObject *value)
{
    return PyUnicode_CheckExact(value) && PyUnicode_IS_COMPACT_ASCII(value) && !PyUnicode_CHECK_INTERNED(value)
           && PyUnicode_GET_LENGTH(value) >= VMH_LARGE_BYTES;
}

bool vmh_handover_fits(PyObject *value)
{
    return works && Py_REFCNT(value) == 1
           && ((PyBytes_CheckExact(value) && PyBytes_GET_SIZE(value) >= VMH_LARGE_BYTES) || is_large_text(value))
           && vmh_memory_is_default();
}

void *vmh_handover_take(PyObject *value)
{
    vmh_memory_keep(value);
    Py_DECREF(value);
    if (vmh_memory_kept())
        return value; /* now only an address */
    PyErr_SetString(PyExc_SystemError, "vmhost: memory of a large value was freed past the allocator hooks");
    return NULL;
}

PyObject *vmh_handover_give(void *block, size_t size, bool text)
{
    size_t whole = head(text) + size + 1;
    bool offered = malloc_usable_size(block) >= whole;
    if (offered)
        vmh_memory_offer(block, whole);
    PyObject *value = text ? PyUnicode_New((Py_ssize_t)size, 127) : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if ((offered && vmh_memory_taken()) || value == NULL)
        return value;
    memcpy((char *)value + head(text), (char *)block + head(text), size);
    free(block);
    return value;
}

static bool try_one(PyObject *value, size_t size, bool text)
{
    if (value == NULL)
        return false;
    memset((char *)value + head(text), 'v', size);
    vmh_memory_keep(value);
    Py_DECREF(value);
    if (!vmh_memory_kept())
        return false;
    PyObject *again = vmh_handover_give(value, size, text);
    bool same = again == value;
    for (size_t i = 0; same && i < size; i++)
        same = ((char *)again)[head(text) + i] == 'v';
    Py_XDECREF(again);
    return same;
}

void vmh_handover_try(void)
{
    if (!works && vmh_memory_is_default())
        works = try_one(PyBytes_FromStringAndSize(NULL, VMH_LARGE_BYTES), VMH_LARGE_BYTES, false)
                && try_one(PyUnicode_New(VMH_LARGE_BYTES, 127), VMH_LARGE_BYTES, true);
    PyErr_Clear();
}
