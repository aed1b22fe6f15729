/* Shared declarations of `_passes`: reading attributes of `vmhost.pipeline.events.Event` and StoredEvent. */
#ifndef VMP_PASSES_H
#define VMP_PASSES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

enum { NAME, TIME_MS, PAGE, VISIT, KEY, ID, COLUMNS };

/* An attribute. In objects of exactly `type` it is at `offset`, if that is above 0. */
typedef struct {
    PyObject *name;     /* interned; owned */
    PyTypeObject *type; /* owned */
    Py_ssize_t offset;
} attribute;

/* A new reference; NULL with an error set. */
static inline PyObject *passes_get(const attribute *a, PyObject *object)
{
    PyObject *value;
    if (Py_TYPE(object) == a->type && a->offset > 0 && (value = *(PyObject **)((char *)object + a->offset)) != NULL)
        return Py_NewRef(value);
    return PyObject_GetAttr(object, a->name);
}

typedef struct {
    attribute fields[COLUMNS];
    attribute contents;
    attribute event, packed, position; /* attributes of StoredEvent */
    attribute last_ms;                 /* attribute of an open visit of the intake */
} module_state;

const module_state *passes_state_of(PyTypeObject *type);

/* contents.c. pack_contents(events); see module.c. */
PyObject *passes_pack_contents(PyObject *module, PyObject *events);

extern PyType_Spec passes_event_list_spec; /* event_list.c */

#endif
