/* The encoding of values that cross between two interpreters: encoded under one GIL, decoded under another. Decoding
 * cannot run code that comes with a value.
 *
 * None, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset (exact types), and Buffer by reference
 * to its storage. The host's Packed arrives as its decoded value (packed.h). Values of other classes cross as a kind, a
 * detail and a payload, which the interpreter's codec writes and reads: vmhost/guest/kinds.py has those of the standard
 * library. The host's objects with a buffer (NumPy arrays, memoryview, bytearray, array.array) are lent; a guest's are
 * copied. Large bytes and ASCII str are copied once on their way into a VM, and not at all on their way out
 * (handover.h).
 */
#ifndef VMH_WIRE_H
#define VMH_WIRE_H

#include "cpython/compat.h"
#include "lanes/blob.h"
#include "lanes/vm.h"

/* An interpreter's functions for values beyond the builtin ones. `pack(value)` returns None, or (kind from 0 to 255,
 * detail, payload), of values that cross; `unpack(kind, detail, payload, in_key, entry)` returns the value. They raise
 * ValueError with the reason for a value that cannot cross. */
typedef struct vmh_codec {
    PyTypeObject *buffer_type; /* the interpreter's Buffer */
    PyTypeObject *packed_type; /* the host's Packed, when arguments are encoded; NULL */
    PyObject *pack, *unpack;   /* NULL: no value of another class crosses */
    const char *entry;         /* entry point of the call whose argument is decoded; NULL */
    bool lenient;              /* decode values that cannot be created as None */
} vmh_codec;

/* The state of one VM for its values. */
typedef struct vmh_values {
    vmh_blob permissions; /* an encoded dict; fixed when the VM is attached */
    vmh_blob scratch;     /* the reply under construction; of the VM's own thread */
    vmh_codec codec;      /* one reference each, from the VM's boot to its end */
} vmh_values;

/* Appends `value` to `blob`. `what` begins the error message ("argument", "result"). Returns 0, or -1 with ValueError,
 * TypeError or MemoryError set: its text names the place, ``argument: $.image[3]: a `Decimal` cannot cross …``. On
 * failure the blob's content is undefined; clear it. `codec`: this interpreter's. `vm`: NULL on the host.
 */
int vmh_wire_encode(vmh_blob *blob, PyObject *value, const char *what, const vmh_codec *codec, vmh_vm *vm);

/* Likewise, into an empty `blob` that may take `max_bytes`; MemoryError beyond, as soon as they are reached. */
int vmh_wire_encode_within(vmh_blob *blob, size_t max_bytes, PyObject *value, const char *what, const vmh_codec *codec,
                           vmh_vm *vm);

/* Appends a text, which must be ASCII. Needs no GIL. False: no memory. */
bool vmh_wire_text(vmh_blob *blob, const char *text);

/* Like vmh_wire_encode, for a value that the caller gives up: takes over the reference to `value`, and the memory of
 * its large parts that no one else refers to. To be decoded on the main interpreter. */
int vmh_wire_encode_away(vmh_blob *blob, PyObject *value, const char *what, const vmh_codec *codec, vmh_vm *vm);

/* A new reference, or NULL with: ValueError, if the codec refuses a value of the other side, with text that begins with
 * `what` and the place; MemoryError; an exception of the codec that is no `Exception`; SystemError for a damaged blob,
 * which is our bug. */
PyObject *vmh_wire_decode(const vmh_blob *blob, const char *what, const vmh_codec *codec);

#endif
