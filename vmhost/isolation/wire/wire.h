/* Values on the wire between two interpreters: encode under one GIL, decode under another. Nothing decoded can run
 * code.
 *
 * None, bool, int, float, complex, str, bytes, list, tuple, dict, set (exact types), and Buffer by reference to its
 * storage. The host's objects with a buffer (NumPy arrays, memoryview, bytearray, array.array) are lent; a guest's are
 * copied. Large bytes and ASCII str are copied once on their way in and not at all on their way out (handover.h).
 */
#ifndef VMH_WIRE_H
#define VMH_WIRE_H

#include "cpython/compat.h"
#include "lanes/blob.h"
#include "lanes/vm.h"

/* What one VM keeps for values on their way. */
typedef struct vmh_values {
    vmh_blob permissions;      /* a dict on the wire; settled when the VM is attached */
    vmh_blob scratch;          /* the reply that is being made; of the VM's own thread */
    PyTypeObject *buffer_type; /* the interpreter's Buffer; one reference, from its boot to its end */
} vmh_values;

/* Appends `value` to `blob`. `what` begins the error message ("argument", "result"). Returns 0, or -1 with ValueError,
 * TypeError or MemoryError set: its text names the place, ``argument: $.image[3]: a `Decimal` cannot cross …``. On
 * failure the blob's content is undefined; clear it. `buffer_type`: this interpreter's Buffer. `vm`: NULL on the host.
 */
int vmh_wire_encode(vmh_blob *blob, PyObject *value, const char *what, PyTypeObject *buffer_type, vmh_vm *vm);

/* Appends a text, which must be ASCII. Needs no GIL. False: no memory. */
bool vmh_wire_text(vmh_blob *blob, const char *text);

/* As vmh_wire_encode, of what is given up: takes over the reference to `value`, and the memory of what is large in it
 * and nobody else's. To be decoded on the main interpreter. */
int vmh_wire_encode_away(vmh_blob *blob, PyObject *value, const char *what, PyTypeObject *buffer_type, vmh_vm *vm);

/* A new reference, or NULL with MemoryError (or SystemError for a damaged blob, which is a bug of ours). */
PyObject *vmh_wire_decode(const vmh_blob *blob, PyTypeObject *buffer_type);

#endif
