/* Values on the wire between two interpreters: encode under one GIL, decode under another. Nothing decoded can run
 * code.
 *
 * None, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset (exact types), and Buffer by reference
 * to its storage. The host's Packed arrives as the value that is in it (packed.h). Values of other classes cross as a
 * kind's number, a detail and a payload, which the interpreter's codec makes and reads: vmhost/guest/kinds.py knows the
 * standard library's. The host's objects with a buffer (NumPy arrays, memoryview, bytearray, array.array) are lent; a
 * guest's are copied. Large bytes and ASCII str are copied once on their way in and not at all on their way out
 * (handover.h).
 */
#ifndef VMH_WIRE_H
#define VMH_WIRE_H

#include "cpython/compat.h"
#include "lanes/blob.h"
#include "lanes/vm.h"

/* What an interpreter has for values beyond the builtin ones. `pack(value)` gives None, or (kind from 0 to 255, detail,
 * payload), both of them values that cross; `unpack(kind, detail, payload, in_key, entry)` gives the value. A
 * ValueError of theirs says why not. */
typedef struct vmh_codec {
    PyTypeObject *buffer_type; /* the interpreter's Buffer */
    PyTypeObject *packed_type; /* the host's Packed, where arguments are written; NULL */
    PyObject *pack, *unpack;   /* NULL: no value of such a class crosses */
    const char *entry;         /* of the call whose argument is read; NULL */
    bool lenient;              /* what cannot be made is None */
} vmh_codec;

/* What one VM keeps for values on their way. */
typedef struct vmh_values {
    vmh_blob permissions; /* a dict on the wire; settled when the VM is attached */
    vmh_blob scratch;     /* the reply that is being made; of the VM's own thread */
    vmh_codec codec;      /* one reference on each, from the VM's boot to its end */
} vmh_values;

/* Appends `value` to `blob`. `what` begins the error message ("argument", "result"). Returns 0, or -1 with ValueError,
 * TypeError or MemoryError set: its text names the place, ``argument: $.image[3]: a `Decimal` cannot cross …``. On
 * failure the blob's content is undefined; clear it. `codec`: this interpreter's. `vm`: NULL on the host.
 */
int vmh_wire_encode(vmh_blob *blob, PyObject *value, const char *what, const vmh_codec *codec, vmh_vm *vm);

/* Appends a text, which must be ASCII. Needs no GIL. False: no memory. */
bool vmh_wire_text(vmh_blob *blob, const char *text);

/* As vmh_wire_encode, of what is given up: takes over the reference to `value`, and the memory of what is large in it
 * and nobody else's. To be decoded on the main interpreter. */
int vmh_wire_encode_away(vmh_blob *blob, PyObject *value, const char *what, const vmh_codec *codec, vmh_vm *vm);

/* A new reference, or NULL: with ValueError where the codec refuses what the other side made up, whose text begins with
 * `what` and the place; with MemoryError; with what is no `Exception` and came up in the codec; with SystemError for a
 * damaged blob, which is a bug of ours. */
PyObject *vmh_wire_decode(const vmh_blob *blob, const char *what, const vmh_codec *codec);

#endif
