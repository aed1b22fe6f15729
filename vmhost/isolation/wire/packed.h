/* Packed: a value that the host has as msgpack bytes and does not decode. It is decoded where it arrives: under the
 * VM's GIL, in the VM's memory. */
#ifndef VMH_PACKED_H
#define VMH_PACKED_H

#include "cpython/compat.h"

/* The main interpreter's type; a new reference. Python creates instances by Packed(data). */
PyTypeObject *vmh_packed_type_new(void);
PyObject *vmh_packed_bytes(PyObject *packed); /* borrowed: exact bytes */

/* Decodes all of `data`, a new reference. Maps become dicts; str may contain lone surrogates, encoded as by
 * "surrogatepass". NULL: ValueError for data that is not msgpack, is nested deeper than 200 levels, has an extension
 * type, or an unhashable key; or MemoryError. */
PyObject *vmh_packed_value(const uint8_t *data, size_t size);

#endif
