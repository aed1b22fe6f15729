/* Gates of builtins, `_locale`, `_signal`, `mmap` and `_sqlite3`. */
#include "gates.h"

#include <string.h>

/* --- builtins */

/* exec and eval run code that exists; text would have to be compiled. */
static int check_run(vmh_gated *call)
{
    if (call->nargs > 0 && !PyCode_Check(call->args[0])) {
        vmh_deny("a VM has no compiler; exec and eval take code objects only", "%s", call->gate->name);
        return -1;
    }
    return 0;
}

/* --- _locale, _signal: the process has one locale and one set of handlers */

static int check_setlocale(vmh_gated *call)
{
    PyObject **locale = vmh_gated_argument(call, 1, "locale");
    if (locale == NULL || *locale == Py_None)
        return 0;
    vmh_deny("the locale belongs to the whole process", "setlocale");
    return -1;
}

static int check_getsignal(vmh_gated *call)
{
    call->result = Py_NewRef(Py_None);      /* as CPython says for a handler that Python did not set */
    return 1;
}

/* --- mmap: anonymous maps only. A file that shrinks under its map would kill every VM of the process. */

static _Atomic(newfunc) mmap_new;

static PyObject *mmap_new_gate(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *fileno = PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0) : kwargs == NULL ? NULL : PyDict_GetItemString(kwargs, "fileno");
    if (fileno == NULL || !PyLong_CheckExact(fileno) || PyLong_AsInt(fileno) != -1) {
        PyErr_Clear();
        return vmh_deny("a task maps anonymous memory only (fileno -1)", "mmap");
    }
    unsigned before = vmh_pass_set(vmh_pass_get() | VMH_PASS_GATE);
    PyObject *result = atomic_load(&mmap_new)(type, args, kwargs);
    vmh_pass_set(before);
    return result;
}

/* --- sqlite: databases in memory, or in files that may be read and written; nothing attached to them */

static _Atomic(initproc) connection_init;
static _Atomic(PyMethodDef *) connection_setlimit, connection_execute;
enum { SQLITE_LIMIT_ATTACHED_ = 7 };

static int connection_settle(PyObject *self, PyTypeObject *owner)
{
    PyObject *limit[2] = { PyLong_FromLong(SQLITE_LIMIT_ATTACHED_), PyLong_FromLong(0) };
    PyObject *text[1] = { PyUnicode_FromString("PRAGMA temp_store=MEMORY") }, *was = NULL, *cursor = NULL;
    if (limit[0] != NULL && limit[1] != NULL && text[0] != NULL)
        was = vmh_def_call(atomic_load(&connection_setlimit), self, owner, limit, 2, NULL);
    if (was != NULL)
        cursor = vmh_def_call(atomic_load(&connection_execute), self, owner, text, 1, NULL);
    int rc = cursor == NULL ? -1 : 0;
    Py_XDECREF(limit[0]);
    Py_XDECREF(limit[1]);
    Py_XDECREF(text[0]);
    Py_XDECREF(was);
    Py_XDECREF(cursor);
    return rc;
}

static int connection_init_gate(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *copy = NULL, *named = NULL, *target = NULL;
    int rc = -1;
    Py_ssize_t count = PyTuple_GET_SIZE(args);
    PyObject *database = count > 0 ? PyTuple_GET_ITEM(args, 0) : kwargs == NULL ? NULL : PyDict_GetItemString(kwargs, "database");
    PyObject *uri = count > 7 ? PyTuple_GET_ITEM(args, 7) : kwargs == NULL ? NULL : PyDict_GetItemString(kwargs, "uri");
    if (database == NULL)
        return atomic_load(&connection_init)(self, args, kwargs);       /* its own TypeError */
    int by_uri = uri == NULL ? 0 : PyObject_IsTrue(uri);
    if (by_uri != 0) {
        if (by_uri > 0)
            vmh_deny("database URIs cannot be granted; pass a path or ':memory:'", "sqlite3.connect");
        return -1;
    }
    if (PyUnicode_CheckExact(database) && PyUnicode_EqualToUTF8(database, ":memory:"))
        target = Py_NewRef(database);
    else {
        PyObject *path = NULL;
        if (vmh_grant_path(database, VMH_READ | VMH_WRITE, false, "sqlite3.connect", &path) < 0)
            return -1;
        target = PyUnicode_DecodeFSDefaultAndSize(PyBytes_AS_STRING(path), PyBytes_GET_SIZE(path));
        Py_DECREF(path);
        if (target == NULL)
            return -1;
    }
    copy = PyTuple_New(count > 0 ? count : 1);
    named = kwargs == NULL ? PyDict_New() : PyDict_Copy(kwargs);
    if (copy == NULL || named == NULL)
        goto done;
    PyTuple_SET_ITEM(copy, 0, Py_NewRef(target));
    for (Py_ssize_t i = 1; i < count; i++)
        PyTuple_SET_ITEM(copy, i, Py_NewRef(PyTuple_GET_ITEM(args, i)));
    if (count == 0 && PyDict_DelItemString(named, "database") < 0)
        goto done;
    if (count > 7)
        PyTuple_SetItem(copy, 7, Py_NewRef(Py_False));
    else if (PyDict_SetItemString(named, "uri", Py_False) < 0)
        goto done;
    unsigned before = vmh_pass_set(vmh_pass_get() | VMH_PASS_GATE);
    rc = atomic_load(&connection_init)(self, copy, named);
    vmh_pass_set(before);
    if (rc == 0)
        rc = connection_settle(self, NULL);
done:
    Py_XDECREF(copy);
    Py_XDECREF(named);
    Py_DECREF(target);
    return rc;
}

static int check_setlimit(vmh_gated *call)
{
    if (call->nargs > 0 && PyIndex_Check(call->args[0])) {
        PyObject *category = PyNumber_Index(call->args[0]);
        if (vmh_gated_replace(call, &call->args[0], category) < 0)
            return -1;
        if (PyLong_AsLong(category) == SQLITE_LIMIT_ATTACHED_) {
            vmh_deny("a task attaches no databases", "setlimit(SQLITE_LIMIT_ATTACHED)");
            return -1;
        }
    }
    return PyErr_Occurred() ? -1 : 0;
}

#define GATES(G)                                                    \
    G(builtins, , exec, check_run, 0, NULL)                         \
    G(builtins, , eval, check_run, 0, NULL)                         \
    G(_locale, , setlocale, check_setlocale, 0, NULL)               \
    G(_signal, , getsignal, check_getsignal, 0, NULL)               \
    G(_sqlite3, Connection, setlimit, check_setlimit, 0, NULL)      \
    G(_sqlite3, Connection, load_extension, vmh_gate_refuse, 0, NULL)           \
    G(_sqlite3, Connection, enable_load_extension, vmh_gate_refuse, 0, NULL)

GATES(VMH_GATE_DEFINE)
vmh_gate *const vmh_gates_other[] = { GATES(VMH_GATE_ADDRESS) NULL };

static int mmap_finish(PyObject *dict)
{
    PyTypeObject *type = (PyTypeObject *)PyDict_GetItemString(dict, "mmap");
    if (type == NULL || type->tp_new == mmap_new_gate)
        return 0;
    atomic_store(&mmap_new, type->tp_new);
    return vmh_slot_replace(type, "__new__", (void **)&type->tp_new, (void *)mmap_new_gate);
}

static int sqlite_finish(PyObject *dict)
{
    PyTypeObject *type = (PyTypeObject *)PyDict_GetItemString(dict, "Connection");
    if (type == NULL || type->tp_init == connection_init_gate)
        return 0;
    PyMethodDef *execute = vmh_method_def(type, "execute");
    if (execute == NULL)
        return -1;
    for (vmh_gate *const *gate = vmh_gates_other; *gate != NULL; gate++)
        if (strcmp((*gate)->name, "setlimit") == 0)
            atomic_store(&connection_setlimit, atomic_load(&(*gate)->original));
    atomic_store(&connection_execute, execute);
    atomic_store(&connection_init, type->tp_init);
    return vmh_slot_replace(type, "__init__", (void **)&type->tp_init, (void *)connection_init_gate);
}

/* builtins.open is the same function as _io.open, by another reference. */
static int builtins_finish(PyObject *dict)
{
    PyObject *io = PyImport_ImportModule("_io"), *open_gate = io == NULL ? NULL : PyObject_GetAttrString(io, "open");
    int rc = open_gate == NULL ? -1 : PyDict_SetItemString(dict, "open", open_gate);
    Py_XDECREF(open_gate);
    Py_XDECREF(io);
    return rc;
}

int vmh_other_finish(const char *module, PyObject *dict)
{
    if (strcmp(module, "mmap") == 0)
        return mmap_finish(dict);
    if (strcmp(module, "_sqlite3") == 0)
        return sqlite_finish(dict);
    if (strcmp(module, "builtins") == 0)
        return builtins_finish(dict);
    return 0;
}
