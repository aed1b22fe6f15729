/* Packed: the host's bytes of a value in msgpack, which is made where they arrive: under the GIL of the VM, of its
 * memory. The host does not look into them. */
#ifndef VMH_PACKED_H
#define VMH_PACKED_H

#include "cpython/compat.h"

/* The main interpreter's type; a new reference. Its instances are made from Python by Packed(data). */
PyTypeObject *vmh_packed_type_new(void);
PyObject *vmh_packed_bytes(PyObject *packed); /* borrowed: exact bytes */

/* The value that msgpack's `data` says, all of it, a new reference. Maps become dicts, str may hold lone surrogates as
 * "surrogatepass" writes them. NULL: ValueError where it is no msgpack, is nested deeper than 200 levels, has an
 * extension type, or a key that cannot be one; MemoryError. */
PyObject *vmh_packed_value(const uint8_t *data, size_t size);

#endif
