/* Buffer: the object, in every interpreter, over storage that crosses walls: a read-only memoryview with shape and
 * format. */
#ifndef VMH_BUFFER_H
#define VMH_BUFFER_H

#include "cpython/compat.h"
#include "lanes/storage.h"
#include "lanes/vm.h"

enum { VMH_DIMENSIONS_MAX = 16 };

/* A C-contiguous view on the whole of a storage. */
typedef struct vmh_view {
    char format[8]; /* struct module's, native, one item: "B", "f", "d", "q", "?", … */
    int32_t dimensions;
    int32_t item_size; /* bytes */
    bool is_array;     /* of an array (NumPy's, say), not of plain memory: where the engine is loaded it arrives as its
                          array */
    int64_t shape[VMH_DIMENSIONS_MAX];
} vmh_view;

/* This interpreter's type; a new reference. Its instances are made from Python by Buffer(shape, format="B"), zeroed and
 * writable until they cross. */
PyTypeObject *vmh_buffer_type_new(void);
PyObject *vmh_buffer_new(PyTypeObject *type, vmh_storage *storage, const vmh_view *view);
vmh_storage *vmh_buffer_storage(PyObject *buffer); /* borrowed */
const vmh_view *vmh_buffer_view(PyObject *buffer);

/* Storage for any object with a C-contiguous buffer: lent on the host (vm NULL), copied in a VM. -1: an error is set.
 */
int vmh_buffer_from_object(PyObject *object, vmh_vm *vm, vmh_storage **storage, vmh_view *view);

/* `data` of `owner`, which the storage keeps alive. Host only; NULL: an error is set. */
vmh_storage *vmh_buffer_lend(PyObject *owner, void *data, Py_ssize_t size);

/* Main interpreter: release the host's buffers whose last reference is gone. */
void vmh_buffer_release_lent(void);

#endif
