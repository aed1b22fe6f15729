/* Which connections of sqlite3 are in use in a VM: sqlite_use.c. GIL held. */
#ifndef VMH_SQLITE_USE_H
#define VMH_SQLITE_USE_H

#include "cpython/compat.h"

/* 0, or -1 with ProgrammingError: a method of `connection` or of a cursor of it is under way. */
int vmh_sqlite_unused(PyObject *connection);
/* 0, or -1 with RecursionError: this thread has too little of its stack left for SQLite (sqlite_rules.h). */
int vmh_sqlite_room(void);
/* While this thread runs the authorizer of `connection` (its address is enough), which may not use it. */
typedef struct vmh_sqlite_asking {
    struct vmh_sqlite_asking *outer;
    const void *connection;
} vmh_sqlite_asking;
void vmh_sqlite_asking_begin(vmh_sqlite_asking *asking, const void *connection);
void vmh_sqlite_asking_end(vmh_sqlite_asking *asking);
/* Of the module's dict, when its methods are filed: what is left, the slots. -1: error set. */
int vmh_sqlite_use_finish(PyObject *dict);
/* sqlite_types.c: the same for how cursors and connections are made. */
int vmh_sqlite_types_finish(PyObject *dict, PyTypeObject *connection);
/* An __init__ of `connection` failed, with an exception that stays set: it may have taken what its attributes need. */
void vmh_sqlite_unopened(PyObject *connection);

#endif
