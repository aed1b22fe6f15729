/* Buffer: each interpreter's object over storage that crosses between interpreters: a memoryview with shape and format,
 * read-only once it has crossed. */
#ifndef VMH_BUFFER_H
#define VMH_BUFFER_H

#include "cpython/compat.h"
#include "lanes/storage.h"
#include "lanes/vm.h"

enum { VMH_DIMENSIONS_MAX = 16 };

/* A C-contiguous view of a whole storage. */
typedef struct vmh_view {
    char format[8]; /* of the struct module, native, one item: "B", "f", "d", "q", "?", … */
    int32_t dimensions;
    int32_t item_size; /* bytes */
    bool is_array;     /* of an array (such as NumPy's), not of plain memory: if the engine is loaded, it arrives as an
                          array of the engine */
    int64_t shape[VMH_DIMENSIONS_MAX];
} vmh_view;

/* This interpreter's type; a new reference. Python creates instances by Buffer(shape, format="B"): zeroed, and writable
 * until they cross. */
PyTypeObject *vmh_buffer_type_new(void);
PyObject *vmh_buffer_new(PyTypeObject *type, vmh_storage *storage, const vmh_view *view);
vmh_storage *vmh_buffer_storage(PyObject *buffer); /* borrowed */
const vmh_view *vmh_buffer_view(PyObject *buffer);

/* Storage for any object with a C-contiguous buffer: lent on the host (vm NULL), copied in a VM. -1: an error is set.
 */
int vmh_buffer_from_object(PyObject *object, vmh_vm *vm, vmh_storage **storage, vmh_view *view);

/* Storage for `data` of `owner`, which it keeps alive. Host only; NULL: an error is set. */
vmh_storage *vmh_buffer_lend(PyObject *owner, void *data, Py_ssize_t size);

/* Main interpreter: releases the host's buffers that have no references left. */
void vmh_buffer_release_lent(void);

#endif
