/* What the files of `_passes` share. They read attributes of `vmhost.pipeline.events.Event` and StoredEvent by name. */
#ifndef VMP_PASSES_H
#define VMP_PASSES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

enum { NAME, TIME_MS, PAGE, VISIT, KEY, ID, COLUMNS };

/* Interned names of attributes; owned. */
typedef struct {
    PyObject *fields[COLUMNS];
    PyObject *event, *packed, *position; /* of StoredEvent */
} module_state;

const module_state *passes_state_of(PyTypeObject *type);

extern PyType_Spec passes_event_list_spec; /* event_list.c */

#endif
