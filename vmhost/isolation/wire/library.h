/* Values of datetime and decimal, read and made without Python code. Their kinds and parts are those of
 * vmhost/guest/kinds.py, which makes what is not made here, and says what is wrong with what is refused. */
#ifndef VMH_LIBRARY_H
#define VMH_LIBRARY_H

#include <stdbool.h>

#include "cpython/compat.h"

enum { VMH_LIBRARY_PARTS_MAX = 8, VMH_LIBRARY_TIMEZONE = 8, VMH_LIBRARY_ZONE_INFO = 9 /* the kinds */ };

/* What one message needs of these modules, found when its first value comes. Zeroed to begin with. */
typedef struct vmh_library {
    void *times; /* PyDateTime_CAPI; NULL: not looked up */
    bool no_times;
    PyObject *decimal; /* owned: the class; NULL: not looked up, or not imported */
} vmh_library;

typedef struct vmh_library_value {
    int kind;
    int count; /* of `parts` */
    long parts[VMH_LIBRARY_PARTS_MAX];
    bool in_utc;    /* of a time: its zone is UTC */
    PyObject *zone; /* borrowed: of a time, another tzinfo; NULL: none, or UTC */
    PyObject *text; /* owned: of a Decimal, instead of parts; NULL */
} vmh_library_value;

/* Reads `value`. 1, or 0: it is not of these classes, or not for here; -1 with an exception. */
int vmh_library_read(vmh_library *library, PyObject *value, vmh_library_value *read);

/* The value of a kind; NULL without an exception: it is not made here. `is_zone`: the detail is a tzinfo that came as
 * one, of a kind above. */
PyObject *vmh_library_make(vmh_library *library, int kind, PyObject *detail, bool is_zone, PyObject *payload);

void vmh_library_clear(vmh_library *library);

#endif
