/* A connection of sqlite3 is not closed while a method of it, or of a cursor of it, is under way.
 *
 * CPython 3.14 crashes over that: its methods call the task's functions (trace callbacks, SQL functions, collations, adapters, the
 * iterator of executemany) and let other threads run, and go on with a database that is gone. Each method that can do so
 * notes its connection while it runs; close() and a second __init__() look there.
 */
#include "gates.h"
#include "sqlite_use.h"

#include <stddef.h>

typedef struct vmh_sqlite_use {
    struct vmh_sqlite_use *next, **link;
    PyObject *connection;       /* borrowed: the call that this is about holds it */
} use;

static _Atomic(ptrdiff_t) cursor_connection;    /* where a cursor holds its connection; 0: not known yet */
static _Atomic(iternextfunc) cursor_next;
static _Atomic(ternaryfunc) connection_call;

/* Under the VM's GIL, as all that follows. `connection` may be NULL. */
static void use_begin(vmh_seal *seal, use *this_use, PyObject *connection)
{
    *this_use = (use){ seal->sqlite_uses, &seal->sqlite_uses, connection };
    if (this_use->next != NULL)
        this_use->next->link = &this_use->next;
    seal->sqlite_uses = this_use;
}

static void use_end(use *this_use)
{
    *this_use->link = this_use->next;
    if (this_use->next != NULL)
        this_use->next->link = this_use->link;
}

int vmh_sqlite_unused(PyObject *connection)
{
    vmh_seal *seal = vmh_seal_here();
    for (use *one = seal == NULL ? NULL : seal->sqlite_uses; one != NULL; one = one->next)
        if (one->connection == connection) {
            PyObject *error = PyObject_GetAttrString(connection, "ProgrammingError");
            PyErr_SetString(error != NULL && PyExceptionClass_Check(error) ? error : PyExc_RuntimeError,
                            "the connection is in use: it cannot be closed by what it calls, nor by another thread meanwhile");
            Py_XDECREF(error);
            return -1;
        }
    return 0;
}

static PyObject *connection_of(PyObject *cursor)
{
    ptrdiff_t offset = atomic_load(&cursor_connection);
    return offset == 0 ? NULL : *(PyObject **)((char *)cursor + offset);
}

static int run(vmh_gated *call, PyObject *connection, PyObject *other)
{
    use first, second;
    Py_XINCREF(connection);
    use_begin(call->seal, &first, connection);
    use_begin(call->seal, &second, other);
    call->result = vmh_gated_original(call);
    use_end(&second);
    use_end(&first);
    Py_XDECREF(connection);
    return call->result == NULL ? -1 : 1;
}

static int in_connection(vmh_gated *call) { return run(call, call->self, NULL); }
static int in_cursor(vmh_gated *call) { return run(call, connection_of(call->self), NULL); }

static int in_backup(vmh_gated *call)
{
    PyObject **target = vmh_gated_argument(call, 0, "target");
    return run(call, call->self, target == NULL ? NULL : *target);
}

static int check_close(vmh_gated *call)
{
    return vmh_sqlite_unused(call->self) < 0 ? -1 : run(call, call->self, NULL);
}

static PyObject *cursor_next_gate(PyObject *cursor)
{
    vmh_seal *seal = vmh_seal_here();
    if (seal == NULL)
        return vmh_deny("this thread is not one of the task's", "sqlite3.Cursor");
    PyObject *connection = Py_XNewRef(connection_of(cursor));
    use this_use;
    use_begin(seal, &this_use, connection);
    PyObject *row = atomic_load(&cursor_next)(cursor);
    use_end(&this_use);
    Py_XDECREF(connection);
    return row;
}

static PyObject *connection_call_gate(PyObject *connection, PyObject *args, PyObject *kwargs)
{
    vmh_seal *seal = vmh_seal_here();
    if (seal == NULL)
        return vmh_deny("this thread is not one of the task's", "sqlite3.Connection");
    use this_use;
    use_begin(seal, &this_use, connection);
    PyObject *statement = atomic_load(&connection_call)(connection, args, kwargs);
    use_end(&this_use);
    return statement;
}

#define GATES(G)                                                    \
    G(_sqlite3, Connection, backup, in_backup, 0, NULL)             \
    G(_sqlite3, Connection, blobopen, in_connection, 0, NULL)       \
    G(_sqlite3, Connection, close, check_close, 0, NULL)            \
    G(_sqlite3, Connection, commit, in_connection, 0, NULL)         \
    G(_sqlite3, Connection, execute, in_connection, 0, NULL)        \
    G(_sqlite3, Connection, executemany, in_connection, 0, NULL)    \
    G(_sqlite3, Connection, executescript, in_connection, 0, NULL)  \
    G(_sqlite3, Connection, rollback, in_connection, 0, NULL)       \
    G(_sqlite3, Connection, serialize, in_connection, 0, NULL)      \
    G(_sqlite3, Connection, deserialize, in_connection, 0, NULL)    \
    G(_sqlite3, Cursor, execute, in_cursor, 0, NULL)                \
    G(_sqlite3, Cursor, executemany, in_cursor, 0, NULL)            \
    G(_sqlite3, Cursor, executescript, in_cursor, 0, NULL)          \
    G(_sqlite3, Cursor, fetchall, in_cursor, 0, NULL)               \
    G(_sqlite3, Cursor, fetchmany, in_cursor, 0, NULL)              \
    G(_sqlite3, Cursor, fetchone, in_cursor, 0, NULL)

GATES(VMH_GATE_DEFINE)
vmh_gate *const vmh_gates_sqlite[] = { GATES(VMH_GATE_ADDRESS) NULL };

int vmh_sqlite_use_finish(PyObject *dict)
{
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
    return 0;
}
