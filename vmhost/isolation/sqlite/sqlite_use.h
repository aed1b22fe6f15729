/* Tracks which sqlite3 connections of a VM are in use: sqlite_use.c. GIL held. */
#ifndef VMH_SQLITE_USE_H
#define VMH_SQLITE_USE_H

#include "cpython/compat.h"

/* 0, or -1 with ProgrammingError: a method of `connection` or of one of its cursors is running. */
int vmh_sqlite_unused(PyObject *connection);
/* 0, or -1 with RecursionError: this thread has too little of its stack left for SQLite (sqlite_rules.h). */
int vmh_sqlite_room(void);
/* For the time in which this thread runs the authorizer of `connection` (only its address is used), which must not use
 * the connection. */
typedef struct vmh_sqlite_asking {
    struct vmh_sqlite_asking *outer;
    const void *connection;
} vmh_sqlite_asking;
void vmh_sqlite_asking_begin(vmh_sqlite_asking *asking, const void *connection);
void vmh_sqlite_asking_end(vmh_sqlite_asking *asking);
/* Finishes the module's dict after its methods are filed: replaces slots. -1: error set. */
int vmh_sqlite_use_finish(PyObject *dict);
/* sqlite_types.c: the same for the creation of cursors and connections. */
int vmh_sqlite_types_finish(PyObject *dict, PyTypeObject *connection);
/* Call after a failed __init__ of `connection`, which may have cleared attributes; the exception stays set. */
void vmh_sqlite_unopened(PyObject *connection);

#endif
