/* Keeps a sqlite3 connection open while one of its methods, or of its cursors or blobs, is running; likewise a blob.
 *
 * CPython 3.14 crashes otherwise, or waits for ever for the mutex of a freed database: its methods call the task's
 * functions (trace callbacks, SQL functions, collations, adapters, the iterator of executemany) and let other threads
 * run. Each method that can do so, and each setter that runs SQL, registers its connection (and blob) while it runs;
 * close() and a second __init__() check this.
 *
 * A connection also runs no SQL while it calls its authorizer: SQLite is compiling a statement then, and a second one
 * could drop its tables.
 */
#include "seal/gates.h"
#include "memory/overflow.h"
#include "sqlite/sqlite_rules.h"
#include "sqlite/sqlite_use.h"
#include "seal/waits.h"

#include "lanes/clock.h"

#include <stddef.h>

typedef struct vmh_sqlite_use {
    struct vmh_sqlite_use *next, **link;
    PyObject *object; /* a connection or a blob; borrowed: the running call holds it */
} use;

static _Atomic(ptrdiff_t) cursor_connection; /* offset of a cursor's connection; 0: not yet known */
static _Atomic(iternextfunc) cursor_next;
static _Atomic(ternaryfunc) connection_call;
static _Atomic(binaryfunc) blob_get;
static _Atomic(objobjargproc) blob_set;
/* The original setters that begin or commit a transaction. */
enum { ISOLATION_LEVEL, AUTOCOMMIT, SETTERS };
static _Atomic(PyGetSetDef *) setters[SETTERS];

static _Thread_local vmh_sqlite_asking *asking_here;

void vmh_sqlite_asking_begin(vmh_sqlite_asking *asking, const void *connection)
{
    *asking = (vmh_sqlite_asking){asking_here, connection};
    asking_here = asking;
}

void vmh_sqlite_asking_end(vmh_sqlite_asking *asking) { asking_here = asking->outer; }

static void complain(PyObject *connection, const char *what, const char *problem)
{
    PyObject *error = connection == NULL ? NULL : PyObject_GetAttrString(connection, "ProgrammingError");
    PyErr_Format(error != NULL && PyExceptionClass_Check(error) ? error : PyExc_RuntimeError, "the %s %s", what,
                 problem);
    Py_XDECREF(error);
}

int vmh_sqlite_room(void)
{
    size_t left = vmh_overflow_left();
    if (left >= VMH_SQLITE_STACK)
        return 0;
    PyErr_Format(
        PyExc_RecursionError,
        "sqlite3 wants %d KiB of the thread's stack, which has %zu left; call it less deep, or give the task more "
        "(limits: stack; threading.stack_size)",
        VMH_SQLITE_STACK >> 10, left >> 10);
    return -1;
}

/* Like all that follows, under the VM's GIL. `object` may be NULL. -1 with an error set: it may not run SQL now. */
static int use_begin(vmh_seal *seal, use *this_use, PyObject *object)
{
    for (vmh_sqlite_asking *asking = asking_here; asking != NULL; asking = asking->outer)
        if (asking->connection == object) {
            complain(object, "connection", "asks its authorizer: it cannot be used by that meanwhile");
            return -1;
        }
    if (vmh_sqlite_room() < 0)
        return -1;
    *this_use = (use){seal->sqlite_uses, &seal->sqlite_uses, object};
    if (this_use->next != NULL)
        this_use->next->link = &this_use->next;
    seal->sqlite_uses = this_use;
    return 0;
}

static void use_end(use *this_use)
{
    *this_use->link = this_use->next;
    if (this_use->next != NULL)
        this_use->next->link = this_use->link;
}

typedef struct {
    use first, second;
} pair;

static int pair_begin(vmh_seal *seal, pair *both, PyObject *connection, PyObject *other)
{
    if (use_begin(seal, &both->first, connection) < 0)
        return -1;
    if (use_begin(seal, &both->second, other) == 0)
        return 0;
    use_end(&both->first);
    return -1;
}

static void pair_end(pair *both)
{
    use_end(&both->second);
    use_end(&both->first);
}

/* 0, or -1 with the connection's error: `object`, a `what`, is in use. */
static int unused(PyObject *object, const char *what, PyObject *connection)
{
    vmh_seal *seal = vmh_seal_here();
    for (use *one = seal == NULL ? NULL : seal->sqlite_uses; one != NULL; one = one->next)
        if (one->object == object) {
            complain(connection, what,
                     "is in use: it cannot be closed by what it calls, nor by another thread meanwhile");
            return -1;
        }
    return 0;
}

int vmh_sqlite_unused(PyObject *connection) { return unused(connection, "connection", connection); }

static PyObject *connection_of(PyObject *cursor)
{
    ptrdiff_t offset = atomic_load(&cursor_connection);
    return offset == 0 ? NULL : *(PyObject **)((char *)cursor + offset);
}

static int visit(PyObject *object, void *found)
{
    if (!PyType_Check(object))
        *(PyObject **)found = object;
    return 0;
}

/* A blob does not expose its connection, but its tp_traverse does: that is all it refers to besides its type. */
static PyObject *connection_of_blob(PyObject *blob)
{
    PyObject *found = NULL;
    Py_TYPE(blob)->tp_traverse(blob, visit, &found);
    return found;
}

static int run(vmh_gated *call, PyObject *connection, PyObject *other)
{
    pair both;
    Py_XINCREF(connection);
    if (pair_begin(call->seal, &both, connection, other) == 0) {
        call->result = vmh_gated_original(call);
        pair_end(&both);
    }
    Py_XDECREF(connection);
    return call->result == NULL ? -1 : 1;
}

static int in_connection(vmh_gated *call) { return run(call, call->self, NULL); }
static int in_cursor(vmh_gated *call) { return run(call, connection_of(call->self), NULL); }

/* ---- executemany: sqlite3_interrupt may miss a row's statement because it is too short, so a stop is also checked as
 * each row is fetched. */
static PyObject *row_taken(PyObject *Py_UNUSED(self), PyObject *row)
{
    return vmh_sqlite_stopping() && vmh_breathe() < 0 ? NULL : Py_NewRef(row);
}

static PyMethodDef row_taken_def = {"row", row_taken, METH_O, NULL};

static int take_rows(vmh_gated *call)
{
    if (call->nargs != 2)
        return 0; /* its own TypeError */
    PyObject *taken = PyCFunction_New(&row_taken_def, NULL);
    PyObject *rows =
        taken == NULL ? NULL : PyObject_CallFunctionObjArgs((PyObject *)&PyMap_Type, taken, call->args[1], NULL);
    Py_XDECREF(taken);
    return vmh_gated_replace(call, &call->args[1], rows);
}

static int in_connection_many(vmh_gated *call) { return take_rows(call) < 0 ? -1 : in_connection(call); }
static int in_cursor_many(vmh_gated *call) { return take_rows(call) < 0 ? -1 : in_cursor(call); }

/* ---- backups: CPython retries as long as a database is locked, for ever if by its own connection, and sleeps in
 * between; only a progress function can end that. So each backup has one, which also does the sleeping. */
enum { SQLITE_BUSY_ = 5, SQLITE_LOCKED_ = 6 };
static const double BACKUP_SLEEP_S = 0.25,
                    BACKUP_SLEEP_MAX_S = 1e9; /* the default of Connection.backup; longer than any task runs */

/* Called after each step of a backup: (status, remaining, pages). `own`: the task's function or None, and the seconds
 * to sleep. */
static PyObject *backup_step(PyObject *own, PyObject *const *args, Py_ssize_t nargs)
{
    vmh_seal *seal = vmh_seal_here();
    PyObject *function = PyTuple_GET_ITEM(own, 0),
             *result =
                 function == Py_None ? Py_NewRef(Py_None) : PyObject_Vectorcall(function, args, (size_t)nargs, NULL);
    if (result == NULL)
        return NULL;
    Py_DECREF(result);
    if (seal == NULL)
        return vmh_deny("this thread is not one of the task's", "sqlite3.Connection.backup");
    long status = nargs < 1 ? 0 : PyLong_AsLong(args[0]);
    if (status == -1 && PyErr_Occurred())
        return NULL;
    double seconds = PyFloat_AS_DOUBLE(PyTuple_GET_ITEM(own, 1));
    vmh_waiter waiter = {0};
    const bool waits = (status == SQLITE_BUSY_ || status == SQLITE_LOCKED_) && seconds > 0;
    if (waits ? vmh_wait(seal, &waiter, vmh_now_ns() + (int64_t)(seconds * 1e9)) < 0
              : vmh_vm_stopping(seal->vm) && vmh_breathe() < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef backup_step_def = {"progress", (PyCFunction)(void (*)(void))backup_step, METH_FASTCALL, NULL};

/* Sets an argument of the call by name, present or not. Takes over `value`; -1 with an error set. */
static int put(vmh_gated *call, const char *name, PyObject *value)
{
    PyObject **there = vmh_gated_argument(call, 1, name);
    if (there != NULL || value == NULL)
        return vmh_gated_replace(call, there, value);
    const Py_ssize_t named = call->kwnames == NULL ? 0 : PyTuple_GET_SIZE(call->kwnames);
    PyObject *names = PyTuple_New(named + 1), *held = NULL;
    for (Py_ssize_t i = 0; names != NULL && i < named; i++)
        PyTuple_SET_ITEM(names, i, Py_NewRef(PyTuple_GET_ITEM(call->kwnames, i)));
    PyObject *text = names == NULL ? NULL : PyUnicode_InternFromString(name);
    if (text == NULL) {
        Py_XDECREF(names);
        Py_DECREF(value);
        return -1;
    }
    PyTuple_SET_ITEM(names, named, text);
    if (vmh_gated_replace(call, &held, names) < 0) {
        Py_DECREF(value);
        return -1;
    }
    call->kwnames = names;
    return vmh_gated_replace(call, &call->args[call->nargs + named], value);
}

static int in_backup(vmh_gated *call)
{
    PyObject **target = vmh_gated_argument(call, 0, "target");
    PyObject **own = vmh_gated_argument(call, 1, "progress"), **sleep = vmh_gated_argument(call, 1, "sleep");
    PyObject *connection = target == NULL ? NULL : *target;
    const Py_ssize_t count = call->nargs + (call->kwnames == NULL ? 0 : PyTuple_GET_SIZE(call->kwnames));
    /* Otherwise CPython raises its own TypeError, also for more arguments than it accepts. */
    if (call->nargs <= 1 && count + 2 <= VMH_GATED_ARGS_MAX
        && (own == NULL || *own == Py_None || PyCallable_Check(*own))) {
        double seconds = sleep == NULL ? BACKUP_SLEEP_S : PyFloat_AsDouble(*sleep);
        if (seconds == -1 && PyErr_Occurred())
            return -1;
        seconds = !(seconds > 0) ? 0 : seconds < BACKUP_SLEEP_MAX_S ? seconds : BACKUP_SLEEP_MAX_S;
        PyObject *with = Py_BuildValue("(Od)", own == NULL ? Py_None : *own, seconds);
        int rc = with == NULL ? -1 : put(call, "progress", PyCFunction_New(&backup_step_def, with));
        Py_XDECREF(with);
        if (rc < 0 || put(call, "sleep", PyFloat_FromDouble(0)) < 0)
            return -1;
    }
    return run(call, call->self, connection);
}

static int check_close(vmh_gated *call) { return vmh_sqlite_unused(call->self) < 0 ? -1 : run(call, call->self, NULL); }

static int in_blob(vmh_gated *call) { return run(call, connection_of_blob(call->self), call->self); }

static int check_blob_close(vmh_gated *call)
{
    return unused(call->self, "blob", connection_of_blob(call->self)) < 0 ? -1 : in_blob(call);
}

static PyObject *blob_get_gate(PyObject *blob, PyObject *key)
{
    vmh_seal *seal = vmh_seal_here();
    if (seal == NULL)
        return vmh_deny("this thread is not one of the task's", "sqlite3.Blob");
    pair both;
    if (pair_begin(seal, &both, connection_of_blob(blob), blob) < 0)
        return NULL;
    PyObject *value = atomic_load(&blob_get)(blob, key);
    pair_end(&both);
    return value;
}

static int blob_set_gate(PyObject *blob, PyObject *key, PyObject *value)
{
    vmh_seal *seal = vmh_seal_here();
    if (seal == NULL) {
        vmh_deny("this thread is not one of the task's", "sqlite3.Blob");
        return -1;
    }
    pair both;
    if (pair_begin(seal, &both, connection_of_blob(blob), blob) < 0)
        return -1;
    int rc = atomic_load(&blob_set)(blob, key, value);
    pair_end(&both);
    return rc;
}

static PyObject *setting_get(PyObject *connection, void *which)
{
    PyGetSetDef *original = atomic_load(&setters[(intptr_t)which]);
    return original->get(connection, original->closure);
}

static int setting_set(PyObject *connection, PyObject *value, void *which)
{
    PyGetSetDef *original = atomic_load(&setters[(intptr_t)which]);
    vmh_seal *seal = vmh_seal_here();
    if (seal == NULL) {
        vmh_deny("this thread is not one of the task's", "sqlite3.Connection");
        return -1;
    }
    use this_use;
    if (use_begin(seal, &this_use, connection) < 0)
        return -1;
    int rc = original->set(connection, value, original->closure);
    use_end(&this_use);
    return rc;
}

static PyGetSetDef settings[SETTERS] = {
    [ISOLATION_LEVEL] = {"isolation_level", setting_get, setting_set, NULL, (void *)(intptr_t)ISOLATION_LEVEL},
    [AUTOCOMMIT] = {"autocommit", setting_get, setting_set, NULL, (void *)(intptr_t)AUTOCOMMIT},
};

static PyObject *cursor_next_gate(PyObject *cursor)
{
    vmh_seal *seal = vmh_seal_here();
    if (seal == NULL)
        return vmh_deny("this thread is not one of the task's", "sqlite3.Cursor");
    PyObject *connection = Py_XNewRef(connection_of(cursor));
    use this_use;
    PyObject *row = NULL;
    if (use_begin(seal, &this_use, connection) == 0) {
        row = atomic_load(&cursor_next)(cursor);
        use_end(&this_use);
    }
    Py_XDECREF(connection);
    return row;
}

static PyObject *connection_call_gate(PyObject *connection, PyObject *args, PyObject *kwargs)
{
    vmh_seal *seal = vmh_seal_here();
    if (seal == NULL)
        return vmh_deny("this thread is not one of the task's", "sqlite3.Connection");
    use this_use;
    if (use_begin(seal, &this_use, connection) < 0)
        return NULL;
    PyObject *statement = atomic_load(&connection_call)(connection, args, kwargs);
    use_end(&this_use);
    return statement;
}

#define GATES(G) \
    G(_sqlite3, Blob, __exit__, check_blob_close, 0, NULL) \
    G(_sqlite3, Blob, close, check_blob_close, 0, NULL) \
    G(_sqlite3, Blob, read, in_blob, 0, NULL) \
    G(_sqlite3, Blob, write, in_blob, 0, NULL) \
    G(_sqlite3, Connection, __exit__, in_connection, 0, NULL) \
    G(_sqlite3, Connection, backup, in_backup, 0, NULL) \
    G(_sqlite3, Connection, blobopen, in_connection, 0, NULL) \
    G(_sqlite3, Connection, close, check_close, 0, NULL) \
    G(_sqlite3, Connection, commit, in_connection, 0, NULL) \
    G(_sqlite3, Connection, execute, in_connection, 0, NULL) \
    G(_sqlite3, Connection, executemany, in_connection_many, 0, NULL) \
    G(_sqlite3, Connection, executescript, in_connection, 0, NULL) \
    G(_sqlite3, Connection, rollback, in_connection, 0, NULL) \
    G(_sqlite3, Connection, serialize, in_connection, 0, NULL) \
    G(_sqlite3, Connection, deserialize, in_connection, 0, NULL) \
    G(_sqlite3, Cursor, execute, in_cursor, 0, NULL) \
    G(_sqlite3, Cursor, executemany, in_cursor_many, 0, NULL) \
    G(_sqlite3, Cursor, executescript, in_cursor, 0, NULL) \
    G(_sqlite3, Cursor, fetchall, in_cursor, 0, NULL) \
    G(_sqlite3, Cursor, fetchmany, in_cursor, 0, NULL) \
    G(_sqlite3, Cursor, fetchone, in_cursor, 0, NULL)

GATES(VMH_GATE_DEFINE)
vmh_gate *const vmh_gates_sqlite_use[] = {GATES(VMH_GATE_ADDRESS) NULL};

static int gate_settings(PyTypeObject *connection)
{
    for (int i = 0; i < SETTERS; i++) {
        PyObject *descriptor = vmh_dict_get(connection->tp_dict, settings[i].name);
        if (descriptor == NULL || !Py_IS_TYPE(descriptor, &PyGetSetDescr_Type)) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_SystemError, "sqlite3.Connection.%s is not a getset", settings[i].name);
            return -1;
        }
        PyGetSetDef *original = ((PyGetSetDescrObject *)descriptor)->d_getset;
        if (original == &settings[i])
            continue;
        atomic_store(&setters[i], original);
        PyObject *ours = PyDescr_NewGetSet(connection, &settings[i]);
        int rc = ours == NULL ? -1 : PyDict_SetItemString(connection->tp_dict, settings[i].name, ours);
        Py_XDECREF(ours);
        if (rc < 0)
            return -1;
        PyType_Modified(connection);
    }
    return 0;
}

static int gate_blob(PyTypeObject *blob)
{
    PyMappingMethods *mapping = blob->tp_as_mapping;
    if (mapping->mp_subscript == blob_get_gate)
        return 0;
    atomic_store(&blob_get, mapping->mp_subscript);
    atomic_store(&blob_set, mapping->mp_ass_subscript);
    return vmh_slot_replace(blob, "__getitem__", (void **)&mapping->mp_subscript, (void *)blob_get_gate) < 0
                   || vmh_slot_replace(blob, "__setitem__", (void **)&mapping->mp_ass_subscript, (void *)blob_set_gate)
                          < 0
                   || vmh_slot_replace(blob, "__delitem__", (void **)&mapping->mp_ass_subscript, (void *)blob_set_gate)
                          < 0
               ? -1
               : 0;
}

int vmh_sqlite_use_finish(PyObject *dict)
{
    PyTypeObject *blob = (PyTypeObject *)vmh_dict_get(dict, "Blob");
    PyTypeObject *cursor = (PyTypeObject *)vmh_dict_get(dict, "Cursor");
    PyTypeObject *connection = cursor == NULL ? NULL : (PyTypeObject *)vmh_dict_get(dict, "Connection");
    if (connection == NULL)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *member = vmh_dict_get(cursor->tp_dict, "connection");
    if (member == NULL || !Py_IS_TYPE(member, &PyMemberDescr_Type)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_SystemError, "sqlite3.Cursor.connection is not a member");
        return -1;
    }
    atomic_store(&cursor_connection, ((PyMemberDescrObject *)member)->d_member->offset);
    if (cursor->tp_iternext != cursor_next_gate) {
        atomic_store(&cursor_next, cursor->tp_iternext);
        if (vmh_slot_replace(cursor, "__next__", (void **)&cursor->tp_iternext, (void *)cursor_next_gate) < 0)
            return -1;
    }
    if (connection->tp_call != connection_call_gate) {
        atomic_store(&connection_call, connection->tp_call);
        if (vmh_slot_replace(connection, "__call__", (void **)&connection->tp_call, (void *)connection_call_gate) < 0)
            return -1;
    }
    return gate_settings(connection) < 0 || (blob != NULL && gate_blob(blob) < 0) || PyErr_Occurred() ? -1 : 0;
}
