/* Where the instances of a class store their fields, so that many of them are read and made without Python code: for
 * dataclasses, namedtuples and plain exceptions, whose Shape (vmhost/guest/classes.py) has read, or made and checked,
 * the first one. A record is of one message and one interpreter. */
#ifndef VMH_RECORDS_H
#define VMH_RECORDS_H

#include <stdbool.h>

#include "cpython/compat.h"

enum { VMH_RECORD_FIELDS_MAX = 64 };

typedef struct vmh_record {
    PyTypeObject *type;                        /* owned; NULL: not known */
    unsigned version;                          /* of the type: another one means that the class has changed */
    PyObject *names;                           /* owned: a tuple of str; NULL: the fields are the items of a tuple */
    PyMemberDef *slots[VMH_RECORD_FIELDS_MAX]; /* the type's, one a name; NULL: the field is in the instance's dict */
} vmh_record;

/* Describes `type` in `record`, which must be zeroed. 1, or 0: its instances cannot be read and made here, or -1 with
 * an exception. */
int vmh_record_describe(vmh_record *record, PyTypeObject *type, PyObject *names);

/* Whether the record describes the class as it is now. */
bool vmh_record_is_current(const vmh_record *record);

/* New references to the fields of `value`, an instance, in `fields`. 1, or 0: one is not set; -1 with an exception. */
int vmh_record_read(const vmh_record *record, PyObject *value, PyObject **fields);

/* An instance with these fields, which stay the caller's; no code of the class runs. NULL with an exception. */
PyObject *vmh_record_make(const vmh_record *record, PyObject *const *fields);

/* Whether the fields of `value` are the very values of `dict`, and these all. */
bool vmh_record_holds(const vmh_record *record, PyObject *value, PyObject *dict);

/* Whether the exceptions of this class are one of Python's own classes that keep nothing but their arguments. */
bool vmh_record_is_error(const PyTypeObject *type);

/* Describes such a class in `record`, which must be zeroed. */
void vmh_record_describe_error(vmh_record *record, PyTypeObject *type);

/* The arguments of a value of such a class, a new reference. NULL without an exception: it has attributes or notes of
 * its own, or an argument of a class that may derive from a plain one. */
PyObject *vmh_record_error_args(PyObject *value);

void vmh_record_clear(vmh_record *record);

#endif
