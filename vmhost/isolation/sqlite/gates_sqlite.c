/* Gates of connections of `_sqlite3`: databases in memory, or in files that the task may read and write. Nothing can be
 * attached, and pragmas that change process-wide state are refused. A connection's configuration and authorizer are
 * ours; the authorizer asks the task's own about what the rules allow (sqlite_rules.c). sqlite_use.c keeps a connection
 * open while it is in use. */
#include "seal/gates.h"

#include "seal/paths.h"
#include "sqlite/sqlite_rules.h"
#include "sqlite/sqlite_use.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Atomic(initproc) connection_init;
static _Atomic(PyMethodDef *) connection_execute;
static vmh_gate *connection_gate(const char *name);

/* The rules as a Python authorizer, where SQLite hides its functions: (action, first, second, database, trigger) ->
 * SQLITE_OK or SQLITE_DENY */
static PyObject *authorize(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t nargs)
{
    int action = nargs >= 3 ? PyLong_AsInt(args[0]) : -1;
    if (action == -1 && PyErr_Occurred())
        return NULL;
    const char *texts[2] = {NULL, NULL};
    for (int i = 0; nargs >= 3 && i < 2; i++)
        if (PyUnicode_Check(args[i + 1]) && (texts[i] = PyUnicode_AsUTF8(args[i + 1])) == NULL)
            return NULL;
    return PyLong_FromLong(vmh_sqlite_refuses(action, texts[0], texts[1]));
}

/* The same with the task's own authorizer, which is asked about what the rules allow: (own, action, first, second,
 * database, trigger). `address` is the connection's; it lives during the call. */
static PyObject *authorize_own(PyObject *address, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *refused = nargs < 1 ? NULL : authorize(NULL, args + 1, nargs - 1), *answer = refused;
    if (refused != NULL && PyLong_IsZero(refused)) {
        vmh_sqlite_asking asking;
        vmh_sqlite_asking_begin(&asking, PyLong_AsVoidPtr(address));
        answer = PyObject_Vectorcall(args[0], args + 1, (size_t)(nargs - 1), NULL);
        vmh_sqlite_asking_end(&asking);
        Py_DECREF(refused);
    }
    return answer;
}

/* Called every few thousand steps of a query, so that a stop can end it. `handler`: the task's own, or NULL. */
static PyObject *progress(PyObject *handler, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(nargs))
{
    bool stopping = vmh_sqlite_stopping();
    return stopping || handler == NULL ? PyLong_FromLong(stopping) : PyObject_CallNoArgs(handler);
}

static PyMethodDef authorize_def = {"authorize", (PyCFunction)(void (*)(void))authorize, METH_FASTCALL, NULL};
static PyMethodDef authorize_own_def = {"authorize", (PyCFunction)(void (*)(void))authorize_own, METH_FASTCALL, NULL};
static PyMethodDef progress_def = {"progress", (PyCFunction)(void (*)(void))progress, METH_FASTCALL, NULL};

/* Calls `def` and releases the arguments (NULL: an error is set). */
static int settle(PyMethodDef *def, PyObject *self, PyTypeObject *owner, PyObject *first, PyObject *second)
{
    PyObject *args[2] = {first, second}, *result = NULL;
    if (first != NULL && (second != NULL || def == NULL || !PyErr_Occurred()))
        result = def == NULL ? NULL : vmh_def_call(def, self, owner, args, second == NULL ? 1 : 2, NULL);
    Py_XDECREF(first);
    Py_XDECREF(second);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static int connection_settle(PyObject *self)
{
    PyTypeObject *owner = Py_TYPE(self);
    while (owner->tp_base != &PyBaseObject_Type)
        owner = owner->tp_base;
    PyMethodDef *setconfig = atomic_load(&connection_gate("setconfig")->original);
    for (int i = 0; i < VMH_SQLITE_DEPTHS; i++)
        if (settle(atomic_load(&connection_gate("setlimit")->original), self, owner,
                   PyLong_FromLong(vmh_sqlite_depths[i].category), PyLong_FromLong(vmh_sqlite_depths[i].max))
            < 0)
            return -1;
    if (settle(atomic_load(&connection_execute), self, owner, PyUnicode_FromString(VMH_SQLITE_TEMPORARY), NULL) < 0
        || settle(atomic_load(&connection_gate("setlimit")->original), self, owner,
                  PyLong_FromLong(VMH_SQLITE_LIMIT_ATTACHED), PyLong_FromLong(0))
               < 0
        || settle(setconfig, self, owner, PyLong_FromLong(VMH_SQLITE_CONFIG_FTS3_TOKENIZER), Py_NewRef(Py_False)) < 0
        || settle(setconfig, self, owner, PyLong_FromLong(VMH_SQLITE_CONFIG_DEFENSIVE), Py_NewRef(Py_True)) < 0
        || settle(atomic_load(&connection_gate("set_progress_handler")->original), self, owner,
                  PyCFunction_New(&progress_def, NULL), PyLong_FromLong(VMH_SQLITE_PROGRESS_STEPS))
               < 0)
        return -1;
    return settle(atomic_load(&connection_gate("set_authorizer")->original), self, owner,
                  PyCFunction_New(&authorize_def, NULL), NULL);
}

/* Opens a connection whose arguments were checked, and makes sure that it has its rules. */
static int connection_open(PyObject *self, PyObject *args, PyObject *kwargs)
{
    bool native = vmh_sqlite_rules_native();
    vmh_sqlite_opening opening;
    vmh_used(VMH_USED_SQLITE);
    if (native && !vmh_sqlite_opening_begin(&opening)) {
        PyErr_NoMemory();
        return -1;
    }
    const char *before = vmh_pass_event("sqlite3.connect");
    int rc = atomic_load(&connection_init)(self, args, kwargs);
    vmh_pass_event(before);
    if (native)
        vmh_sqlite_opening_end(&opening);
    if (rc < 0 || (native && opening.ruled))
        return rc;
    return connection_settle(self); /* not native, or the host has removed SQLite's automatic extensions meanwhile */
}

/* Whether the file has a write-ahead log. SQLite would map its index, which cannot be prevented where it hides its
 * functions. */
static bool has_log(const char *path)
{
    vmh_path_handle handle;
    unsigned char versions[2] = {0, 0}; /* of the file format, to write and to read: 2 with a write-ahead log */
    int fd = vmh_path_handle_open(&handle, path, O_RDONLY | O_NONBLOCK, 0, VMH_PATH_OBJECT, VMH_READ, true);
    bool found = fd >= 0 && pread(fd, versions, sizeof versions, 18) == sizeof versions
                 && (versions[0] == 2 || versions[1] == 2);
    if (fd >= 0)
        close(fd);
    return found;
}

/* The real path of the database, existing or to be created. SQLite opens it by this path, which sqlite_files.c checks
 * again. */
static PyObject *database_path(PyObject *database)
{
    PyObject *given, *text, *target = NULL;
    vmh_path_handle handle;
    if (vmh_path_convert(database, &given, &text) < 0)
        return NULL;
    if (vmh_path_absolute(text, "sqlite3.connect") == 0) {
        char *real = vmh_path_handle_real(&handle, PyBytes_AS_STRING(text), VMH_READ | VMH_WRITE);
        if (real != NULL && !vmh_sqlite_rules_native() && has_log(real))
            vmh_deny(
                "its write-ahead log can't be kept from being mapped, as this Python hides its SQLite; leave that mode "
                "outside (PRAGMA journal_mode=DELETE)",
                "sqlite3.connect('%s')", real);
        else if (real != NULL)
            target = PyUnicode_DecodeFSDefault(real);
        else
            vmh_path_handle_raise(&handle, given, text, "sqlite3.connect");
        free(real);
    }
    Py_DECREF(given);
    Py_DECREF(text);
    return target;
}

/* A copy of keyword arguments with exact str as names: a check and the original must find the same by them. */
static PyObject *exact_names(PyObject *kwargs)
{
    PyObject *copy = PyDict_New(), *key, *value;
    Py_ssize_t at = 0;
    while (copy != NULL && kwargs != NULL && PyDict_Next(kwargs, &at, &key, &value)) {
        PyObject *name = PyUnicode_FromObject(key);
        if (name == NULL || PyDict_SetItem(copy, name, value) < 0)
            Py_CLEAR(copy);
        Py_XDECREF(name);
    }
    return copy;
}

static int connection_init_gate(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *copy = NULL, *named = NULL, *target = NULL;
    int rc = -1;
    if (vmh_sqlite_room() < 0 || vmh_sqlite_unused(self) < 0)
        return -1; /* a second __init__ would close it first */
    Py_ssize_t count = PyTuple_GET_SIZE(args);
    if ((named = exact_names(kwargs)) == NULL)
        return -1;
    PyObject *database = count > 0 ? PyTuple_GET_ITEM(args, 0) : vmh_dict_get(named, "database");
    PyObject *uri = count > 7 ? PyTuple_GET_ITEM(args, 7) : vmh_dict_get(named, "uri");
    if (PyErr_Occurred())
        goto done;
    if (database == NULL) {
        rc = atomic_load(&connection_init)(self, args, named); /* its own TypeError */
        goto done;
    }
    int by_uri = uri == NULL ? 0 : PyObject_IsTrue(uri);
    if (by_uri != 0) {
        if (by_uri > 0)
            vmh_deny("database URIs cannot be granted; pass a path or ':memory:'", "sqlite3.connect");
        goto done;
    }
    if (PyUnicode_CheckExact(database) && PyUnicode_EqualToUTF8(database, ":memory:"))
        target = Py_NewRef(database);
    else if ((target = database_path(database)) == NULL)
        goto done;
    copy = PyTuple_New(count > 0 ? count : 1);
    if (copy == NULL)
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
    rc = connection_open(self, copy, named);
    if (rc < 0)
        vmh_sqlite_unopened(self);
done:
    Py_XDECREF(copy);
    Py_XDECREF(named);
    Py_XDECREF(target);
    return rc;
}

/* A limit above the maximum is lowered to it, as SQLite does with its own; so is 0, which disables some counters. */
static int bound_limit(vmh_gated *call, int max)
{
    int overflow;
    PyObject *given = PyNumber_Index(call->args[1]);
    if (vmh_gated_replace(call, &call->args[1], given) < 0)
        return -1;
    long limit = PyLong_AsLongAndOverflow(given, &overflow);
    if (overflow != 0 || limit < 0 || (limit > 0 && limit <= max))
        return 0;
    return vmh_gated_replace(call, &call->args[1], PyLong_FromLong(max));
}

static int check_setlimit(vmh_gated *call)
{
    if (call->nargs > 0 && PyIndex_Check(call->args[0])) {
        PyObject *category = PyNumber_Index(call->args[0]);
        if (vmh_gated_replace(call, &call->args[0], category) < 0)
            return -1;
        long number = PyLong_AsLong(category);
        if (number == VMH_SQLITE_LIMIT_ATTACHED) {
            vmh_deny("a task attaches no databases", "setlimit(SQLITE_LIMIT_ATTACHED)");
            return -1;
        }
        int max = number < 0 || number > INT_MAX ? -1 : vmh_sqlite_depth_max((int)number);
        if (max >= 0 && call->nargs > 1 && PyIndex_Check(call->args[1]))
            return bound_limit(call, max);
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* The task's authorizer is called through ours; without one the rules remain. CPython names the callable in its error
 * messages: a method object of the task's function shows that name. */
static int check_authorizer(vmh_gated *call)
{
    PyObject **own = vmh_gated_argument(call, 0, "authorizer_callback");
    if (own == NULL)
        return 0; /* its own TypeError */
    if (*own == Py_None)
        return vmh_gated_replace(call, own, PyCFunction_New(&authorize_def, NULL));
    PyObject *address = PyLong_FromVoidPtr(call->self),
             *function = address == NULL ? NULL : PyCFunction_New(&authorize_own_def, address);
    PyObject *method = function == NULL ? NULL : PyMethod_New(function, *own);
    Py_XDECREF(address);
    Py_XDECREF(function);
    return vmh_gated_replace(call, own, method);
}

/* Where the rules go through Python, the progress handler is the only way to stop a query: the task's own is called
 * through ours, at least every VMH_SQLITE_PROGRESS_STEPS. */
static int check_progress(vmh_gated *call)
{
    PyObject **handler = vmh_gated_argument(call, 0, "progress_handler"), **steps = vmh_gated_argument(call, 1, "n");
    if (vmh_sqlite_rules_native() || handler == NULL || steps == NULL || !PyIndex_Check(*steps))
        return 0; /* unchanged, or its own TypeError */
    PyObject *number = PyNumber_Index(*steps);
    int asked = number == NULL ? -1 : PyLong_AsInt(number);
    if (vmh_gated_replace(call, steps, number) < 0 || (asked == -1 && PyErr_Occurred()))
        return -1;
    PyObject *own = *handler == Py_None || asked < 1 ? NULL : *handler;
    if (vmh_gated_replace(call, handler, PyCFunction_New(&progress_def, own)) < 0)
        return -1;
    return own != NULL && asked < VMH_SQLITE_PROGRESS_STEPS
               ? 0
               : vmh_gated_replace(call, steps, PyLong_FromLong(VMH_SQLITE_PROGRESS_STEPS));
}

#define GATES(G) \
    G(_sqlite3, Connection, setlimit, check_setlimit, 0, NULL) \
    G(_sqlite3, Connection, set_progress_handler, check_progress, 0, NULL) \
    G(_sqlite3, Connection, setconfig, vmh_gate_refuse, 0, NULL) \
    G(_sqlite3, Connection, set_authorizer, check_authorizer, 0, NULL) \
    G(_sqlite3, Connection, load_extension, vmh_gate_refuse, 0, NULL) \
    G(_sqlite3, Connection, enable_load_extension, vmh_gate_refuse, 0, NULL)

GATES(VMH_GATE_DEFINE)
vmh_gate *const vmh_gates_sqlite[] = {GATES(VMH_GATE_ADDRESS) NULL};

static vmh_gate *connection_gate(const char *name)
{
    for (vmh_gate *const *gate = vmh_gates_sqlite; *gate != NULL; gate++)
        if (strcmp((*gate)->type, "Connection") == 0 && strcmp((*gate)->name, name) == 0)
            return *gate;
    return NULL;
}

int vmh_sqlite_finish(PyObject *dict, PyObject *Py_UNUSED(module))
{
    PyTypeObject *type = (PyTypeObject *)vmh_dict_get(dict, "Connection");
    if (vmh_sqlite_use_finish(dict) < 0)
        return -1;
    if (type == NULL || type->tp_init == connection_init_gate)
        return PyErr_Occurred() ? -1 : 0;
    PyMethodDef *execute = vmh_method_def(type, "execute");
    if (execute == NULL)
        return -1;
    if (vmh_sqlite_types_finish(dict, type) < 0)
        return -1;
    atomic_store(&connection_execute, execute);
    atomic_store(&connection_init, type->tp_init);
    return vmh_slot_replace(type, "__init__", (void **)&type->tp_init, (void *)connection_init_gate);
}
