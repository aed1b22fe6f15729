/* Gates of builtins, `_locale`, `_signal`, `_hashlib`, `mmap` and `_sqlite3`. */
#include "gates.h"

#include "library_memory.h"
#include "meter.h"
#include "sqlite_rules.h"
#include "sqlite_use.h"

#include <limits.h>
#include <locale.h>
#include <stdlib.h>
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

/* Programs ask for the locale, change it and set it back: what it is anyway may be set. */
static int check_setlocale(vmh_gated *call)
{
    PyObject **locale = vmh_gated_argument(call, 1, "locale");
    if (locale == NULL || *locale == Py_None)
        return 0;
    int category = call->nargs > 0 && PyLong_CheckExact(call->args[0]) ? PyLong_AsInt(call->args[0]) : -1;
    const char *now = PyErr_Occurred() ? NULL : setlocale(category, NULL);
    PyErr_Clear();
    if (now != NULL && PyUnicode_CheckExact(*locale) && PyUnicode_EqualToUTF8(*locale, now)) {
        call->result = Py_NewRef(*locale);
        return 1;
    }
    vmh_deny("the locale belongs to the whole process", "setlocale");
    return -1;
}

static int check_getsignal(vmh_gated *call)
{
    call->result = Py_NewRef(Py_None);      /* as CPython says for a handler that Python did not set */
    return 1;
}

/* --- _hashlib: what scrypt asks for is known beforehand, so too much is refused as anywhere else, with MemoryError. Where OpenSSL's memory
 * is not charged as it takes it (library_memory.c), it is charged here while it works. */

/* An argument as a size, made an int for good; 0 where it is none: the original says what is wrong with it. -1: error set. */
static int size_argument(vmh_gated *call, const char *keyword, size_t *size)
{
    PyObject **argument = vmh_gated_argument(call, call->nargs, keyword);
    *size = 0;
    if (argument == NULL || !PyIndex_Check(*argument))
        return 0;
    if (vmh_gated_replace(call, argument, PyNumber_Index(*argument)) < 0)
        return -1;
    *size = PyLong_AsSize_t(*argument);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        *size = 0;
    }
    return 0;
}

static int charge_scrypt(vmh_gated *call)
{
    vmh_meter *meter = vmh_vm_meter(call->seal->vm);
    size_t n, r, p, blocks, bytes;
    if (size_argument(call, "n", &n) < 0 || size_argument(call, "r", &r) < 0 || size_argument(call, "p", &p) < 0)
        return -1;
    /* RFC 7914: a table of n blocks, one block for each of p, and two to work with; a block is 128 * r bytes */
    if (__builtin_add_overflow(n, p, &blocks) || __builtin_add_overflow(blocks, (size_t)2, &blocks)
        || __builtin_mul_overflow(blocks, (size_t)128, &bytes) || __builtin_mul_overflow(bytes, r, &bytes))
        return 0;       /* OpenSSL refuses it */
    if (!vmh_meter_charge(meter, bytes)) {
        PyErr_NoMemory();
        return -1;
    }
    bool counted = vmh_library_memory_counted("_hashlib");
    if (counted)
        vmh_meter_release(meter, bytes);
    call->result = vmh_gated_original(call);
    if (!counted)
        vmh_meter_release(meter, bytes);
    return call->result == NULL ? -1 : 1;
}

/* --- mmap: anonymous maps only. A file that shrinks under its map would kill every VM of the process. */

static _Atomic(newfunc) mmap_new;
static _Atomic(destructor) mmap_dealloc;

static PyObject *mmap_new_gate(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    vmh_seal *seal = vmh_seal_here();
    PyObject *fileno = PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0)
                       : kwargs == NULL           ? NULL
                                                  : vmh_dict_get(kwargs, "fileno");
    PyObject *length = PyTuple_GET_SIZE(args) > 1 ? PyTuple_GET_ITEM(args, 1)
                       : kwargs == NULL           ? NULL
                                                  : vmh_dict_get(kwargs, "length");
    if (PyErr_Occurred())
        return NULL;
    if (seal == NULL || fileno == NULL || !PyLong_CheckExact(fileno) || PyLong_AsInt(fileno) != -1 || length == NULL
        || !PyLong_CheckExact(length)) {
        PyErr_Clear();
        return vmh_deny("a task maps anonymous memory only (fileno -1, an int as length)", "mmap");
    }
    size_t bytes = PyLong_AsSize_t(length);
    if (PyErr_Occurred())
        return NULL;
    vmh_map *charge = malloc(sizeof *charge);
    if (charge == NULL || !vmh_meter_charge(vmh_vm_meter(seal->vm), bytes)) {
        free(charge);
        return PyErr_NoMemory();
    }
    unsigned before = vmh_pass_set(vmh_pass_get() | VMH_PASS_GATE);
    PyObject *result = atomic_load(&mmap_new)(type, args, kwargs);
    vmh_pass_set(before);
    if (result == NULL) {
        vmh_meter_release(vmh_vm_meter(seal->vm), bytes);
        free(charge);
        return NULL;
    }
    *charge = (vmh_map){ .next = seal->maps, .object = result, .bytes = bytes };
    seal->maps = charge;
    return result;
}

/* The charge lasts as long as the object, though it may be closed before. */
static void mmap_dealloc_gate(PyObject *self)
{
    vmh_seal *seal = vmh_seal_here();
    vmh_map **link = seal == NULL ? NULL : &seal->maps;
    while (link != NULL && *link != NULL && (*link)->object != self)
        link = &(*link)->next;
    if (link != NULL && *link != NULL) {
        vmh_map *charge = *link;
        *link = charge->next;
        vmh_meter_release(vmh_vm_meter(seal->vm), charge->bytes);
        free(charge);
    }
    atomic_load(&mmap_dealloc)(self);
}

/* --- sqlite: databases in memory, or in files that may be read and written; nothing attached to them, and none of the
 * pragmas that change the whole process. The configuration of a connection is ours, and its authorizer, which asks the task's
 * own where the rules have nothing to say (sqlite_rules.c). */

static _Atomic(initproc) connection_init;
static _Atomic(PyMethodDef *) connection_execute;
static vmh_gate *connection_gate(const char *name);

/* Where SQLite hides its functions, the rules go through Python: (action, first, second, database, trigger) -> SQLITE_OK or SQLITE_DENY */
static PyObject *authorize(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t nargs)
{
    int action = nargs >= 3 ? PyLong_AsInt(args[0]) : -1;
    if (action == -1 && PyErr_Occurred())
        return NULL;
    const char *texts[2] = { NULL, NULL };
    for (int i = 0; nargs >= 3 && i < 2; i++)
        if (PyUnicode_Check(args[i + 1]) && (texts[i] = PyUnicode_AsUTF8(args[i + 1])) == NULL)
            return NULL;
    return PyLong_FromLong(vmh_sqlite_refuses(action, texts[0], texts[1]));
}

/* The same with the task's own authorizer, which is asked about the rest: (own, action, first, second, database, trigger). `address` is the
 * connection's, which lives while it asks. */
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

/* Called every few thousand steps of a query: a stop ends it. `handler` is the task's own, or NULL. */
static PyObject *progress(PyObject *handler, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(nargs))
{
    bool stopping = vmh_sqlite_stopping();
    return stopping || handler == NULL ? PyLong_FromLong(stopping) : PyObject_CallNoArgs(handler);
}

static PyMethodDef authorize_def = {"authorize", (PyCFunction)(void (*)(void))authorize, METH_FASTCALL, NULL};
static PyMethodDef authorize_own_def = {"authorize", (PyCFunction)(void (*)(void))authorize_own, METH_FASTCALL, NULL};
static PyMethodDef progress_def = {"progress", (PyCFunction)(void (*)(void))progress, METH_FASTCALL, NULL};

/* Calls `def` and releases the arguments, which may be NULL. */
static int settle(PyMethodDef *def, PyObject *self, PyTypeObject *owner, PyObject *first, PyObject *second)
{
    PyObject *args[2] = { first, second }, *result = NULL;
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
        if (settle(atomic_load(&connection_gate("setlimit")->original), self, owner, PyLong_FromLong(vmh_sqlite_depths[i].category),
                   PyLong_FromLong(vmh_sqlite_depths[i].most))
            < 0)
            return -1;
    if (settle(atomic_load(&connection_execute), self, owner, PyUnicode_FromString(VMH_SQLITE_TEMPORARY), NULL)
            < 0
        || settle(atomic_load(&connection_gate("setlimit")->original), self, owner,
                  PyLong_FromLong(VMH_SQLITE_LIMIT_ATTACHED), PyLong_FromLong(0))
               < 0
        || settle(setconfig, self, owner, PyLong_FromLong(VMH_SQLITE_CONFIG_FTS3_TOKENIZER), Py_NewRef(Py_False)) < 0
        || settle(setconfig, self, owner, PyLong_FromLong(VMH_SQLITE_CONFIG_DEFENSIVE), Py_NewRef(Py_True)) < 0
        || settle(atomic_load(&connection_gate("set_progress_handler")->original), self, owner, PyCFunction_New(&progress_def, NULL),
                  PyLong_FromLong(VMH_SQLITE_PROGRESS_STEPS))
               < 0)
        return -1;
    return settle(atomic_load(&connection_gate("set_authorizer")->original), self, owner,
                  PyCFunction_New(&authorize_def, NULL), NULL);
}

/* Opens a connection that has been checked, and sees that it has its rules. */
static int connection_open(PyObject *self, PyObject *args, PyObject *kwargs)
{
    bool native = vmh_sqlite_rules_native();
    vmh_sqlite_opening opening;
    if (native && !vmh_sqlite_opening_begin(&opening)) {
        PyErr_NoMemory();
        return -1;
    }
    unsigned before = vmh_pass_set(vmh_pass_get() | VMH_PASS_GATE);
    int rc = atomic_load(&connection_init)(self, args, kwargs);
    vmh_pass_set(before);
    if (native)
        vmh_sqlite_opening_end(&opening);
    if (rc < 0 || (native && opening.ruled))
        return rc;
    return connection_settle(self);     /* or the host has taken SQLite's automatic extensions away meanwhile */
}

static int connection_init_gate(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *copy = NULL, *named = NULL, *target = NULL;
    int rc = -1;
    if (vmh_sqlite_room() < 0 || vmh_sqlite_unused(self) < 0)
        return -1;      /* it would be closed first */
    Py_ssize_t count = PyTuple_GET_SIZE(args);
    PyObject *database = count > 0        ? PyTuple_GET_ITEM(args, 0)
                         : kwargs == NULL ? NULL
                                          : vmh_dict_get(kwargs, "database");
    PyObject *uri = count > 7 ? PyTuple_GET_ITEM(args, 7) : kwargs == NULL ? NULL : vmh_dict_get(kwargs, "uri");
    if (PyErr_Occurred())
        return -1;
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
    rc = connection_open(self, copy, named);
done:
    Py_XDECREF(copy);
    Py_XDECREF(named);
    Py_DECREF(target);
    return rc;
}

/* A limit above its most becomes that, as SQLite's own do; so does 0, which ends the counting of some. */
static int bound_limit(vmh_gated *call, int most)
{
    int overflow;
    PyObject *given = PyNumber_Index(call->args[1]);
    if (vmh_gated_replace(call, &call->args[1], given) < 0)
        return -1;
    long limit = PyLong_AsLongAndOverflow(given, &overflow);
    if (overflow != 0 || limit < 0 || (limit > 0 && limit <= most))
        return 0;
    return vmh_gated_replace(call, &call->args[1], PyLong_FromLong(most));
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
        int most = number < 0 || number > INT_MAX ? -1 : vmh_sqlite_depth_most((int)number);
        if (most >= 0 && call->nargs > 1 && PyIndex_Check(call->args[1]))
            return bound_limit(call, most);
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* The task's authorizer is called through ours; without one the rules stay. CPython names the callable in what it says about its errors: a
 * method of the task's own names that. */
static int check_authorizer(vmh_gated *call)
{
    PyObject **own = vmh_gated_argument(call, 0, "authorizer_callback");
    if (own == NULL)
        return 0;       /* its own TypeError */
    if (*own == Py_None)
        return vmh_gated_replace(call, own, PyCFunction_New(&authorize_def, NULL));
    PyObject *address = PyLong_FromVoidPtr(call->self), *function = address == NULL ? NULL : PyCFunction_New(&authorize_own_def, address);
    PyObject *method = function == NULL ? NULL : PyMethod_New(function, *own);
    Py_XDECREF(address);
    Py_XDECREF(function);
    return vmh_gated_replace(call, own, method);
}

/* Where the rules go through Python, the progress handler is the one way to stop a query: the task's own is called through ours, every
 * VMH_SQLITE_PROGRESS_STEPS at least. */
static int check_progress(vmh_gated *call)
{
    PyObject **handler = vmh_gated_argument(call, 0, "progress_handler"), **steps = vmh_gated_argument(call, 1, "n");
    if (vmh_sqlite_rules_native() || handler == NULL || steps == NULL || !PyIndex_Check(*steps))
        return 0;       /* as it is, or with its own TypeError */
    PyObject *number = PyNumber_Index(*steps);
    int asked = number == NULL ? -1 : PyLong_AsInt(number);
    if (vmh_gated_replace(call, steps, number) < 0 || (asked == -1 && PyErr_Occurred()))
        return -1;
    PyObject *own = *handler == Py_None || asked < 1 ? NULL : *handler;
    if (vmh_gated_replace(call, handler, PyCFunction_New(&progress_def, own)) < 0)
        return -1;
    return own != NULL && asked < VMH_SQLITE_PROGRESS_STEPS ? 0
        : vmh_gated_replace(call, steps, PyLong_FromLong(VMH_SQLITE_PROGRESS_STEPS));
}

#define GATES(G)                                                    \
    G(builtins, , exec, check_run, 0, NULL)                         \
    G(builtins, , eval, check_run, 0, NULL)                         \
    G(_locale, , setlocale, check_setlocale, 0, NULL)               \
    G(_signal, , getsignal, check_getsignal, 0, NULL)               \
    G(_hashlib, , scrypt, charge_scrypt, 0, NULL)                   \
    G(mmap, mmap, resize, vmh_gate_refuse, 0, NULL)                 \
    G(_sqlite3, Connection, setlimit, check_setlimit, 0, NULL)      \
    G(_sqlite3, Connection, set_progress_handler, check_progress, 0, NULL)      \
    G(_sqlite3, Connection, setconfig, vmh_gate_refuse, 0, NULL)    \
    G(_sqlite3, Connection, set_authorizer, check_authorizer, 0, NULL)          \
    G(_sqlite3, Connection, load_extension, vmh_gate_refuse, 0, NULL)           \
    G(_sqlite3, Connection, enable_load_extension, vmh_gate_refuse, 0, NULL)

GATES(VMH_GATE_DEFINE)
vmh_gate *const vmh_gates_other[] = { GATES(VMH_GATE_ADDRESS) NULL };

static vmh_gate *connection_gate(const char *name)
{
    for (vmh_gate *const *gate = vmh_gates_other; *gate != NULL; gate++)
        if (strcmp((*gate)->type, "Connection") == 0 && strcmp((*gate)->name, name) == 0)
            return *gate;
    return NULL;
}

static int mmap_finish(PyObject *dict)
{
    PyTypeObject *type = (PyTypeObject *)vmh_dict_get(dict, "mmap");
    if (type == NULL || type->tp_new == mmap_new_gate)
        return PyErr_Occurred() ? -1 : 0;
    atomic_store(&mmap_new, type->tp_new);
    atomic_store(&mmap_dealloc, type->tp_dealloc);
    type->tp_dealloc = mmap_dealloc_gate;
    return vmh_slot_replace(type, "__new__", (void **)&type->tp_new, (void *)mmap_new_gate);
}

static int sqlite_finish(PyObject *dict)
{
    PyTypeObject *type = (PyTypeObject *)vmh_dict_get(dict, "Connection");
    if (vmh_sqlite_use_finish(dict) < 0)
        return -1;
    if (type == NULL || type->tp_init == connection_init_gate)
        return PyErr_Occurred() ? -1 : 0;
    PyMethodDef *execute = vmh_method_def(type, "execute");
    if (execute == NULL)
        return -1;
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
