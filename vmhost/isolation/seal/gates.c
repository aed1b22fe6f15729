/* Applies the policy table: when a native module is loaded, each of its names is kept, gated, refused or deleted. */
#include "seal/gates.h"
#include "policy_table.h"

#include <string.h>

enum { MODULES = sizeof vmh_policy / sizeof *vmh_policy };

/* Parallel to the filings of each module; created once per process. */
static struct {
    vmh_gate **gates;
    PyMethodDef *refusals;
} bound[MODULES];
static bool bound_all;
static pthread_mutex_t bind_lock = PTHREAD_MUTEX_INITIALIZER;

/* --- calling */

PyObject *vmh_def_call(PyMethodDef *def, PyObject *self, PyTypeObject *owner, PyObject *const *args, Py_ssize_t nargs,
                       PyObject *kwnames)
{
    Py_ssize_t keywords = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    int flags = def->ml_flags & (METH_VARARGS | METH_FASTCALL | METH_NOARGS | METH_O | METH_KEYWORDS | METH_METHOD);
    if (keywords != 0 && !(flags & METH_KEYWORDS))
        return PyErr_Format(PyExc_TypeError, "%s() takes no keyword arguments", def->ml_name);
    if (((flags & METH_NOARGS) && nargs != 0) || ((flags & METH_O) && nargs != 1))
        return PyErr_Format(PyExc_TypeError, "%s() takes %s (%zd given)", def->ml_name,
                            flags & METH_O ? "exactly one argument" : "no arguments", nargs);
    switch (flags) {
    case METH_NOARGS: return def->ml_meth(self, NULL);
    case METH_O: return def->ml_meth(self, args[0]);
    case METH_FASTCALL: return ((PyCFunctionFast)(void (*)(void))def->ml_meth)(self, args, nargs);
    case METH_FASTCALL | METH_KEYWORDS:
        return ((PyCFunctionFastWithKeywords)(void (*)(void))def->ml_meth)(self, args, nargs, kwnames);
    case METH_METHOD | METH_FASTCALL | METH_KEYWORDS:
        return ((PyCMethod)(void (*)(void))def->ml_meth)(self, owner, args, nargs, kwnames);
    case METH_VARARGS:
    case METH_VARARGS | METH_KEYWORDS: {
        PyObject *result = NULL, *dict = NULL, *tuple = PyTuple_New(nargs);
        if (tuple == NULL)
            return NULL;
        for (Py_ssize_t i = 0; i < nargs; i++)
            PyTuple_SET_ITEM(tuple, i, Py_NewRef(args[i]));
        if (keywords != 0) {
            if ((dict = PyDict_New()) == NULL)
                goto done;
            for (Py_ssize_t i = 0; i < keywords; i++)
                if (PyDict_SetItem(dict, PyTuple_GET_ITEM(kwnames, i), args[nargs + i]) < 0)
                    goto done;
        }
        result = flags & METH_KEYWORDS ? ((PyCFunctionWithKeywords)(void (*)(void))def->ml_meth)(self, tuple, dict)
                                       : def->ml_meth(self, tuple);
done:
        Py_DECREF(tuple);
        Py_XDECREF(dict);
        return result;
    }
    default:
        return PyErr_Format(PyExc_SystemError, "%s: a calling convention (0x%x) that the gates do not know",
                            def->ml_name, flags);
    }
}

PyObject *vmh_gated_original(vmh_gated *call)
{
    PyMethodDef *original = atomic_load(&call->gate->original);
    if (original == NULL)
        return PyErr_Format(PyExc_SystemError, "%s.%s is not bound", call->gate->module, call->gate->name);
    const char *before = vmh_pass_event(call->passes ? call->gate->event : NULL);
    PyObject *result = vmh_def_call(original, call->self, call->owner, call->args, call->nargs, call->kwnames);
    vmh_pass_event(before);
    return result;
}

/* Names of keyword arguments may be instances of a guest's subclass of str, whose methods decide what a dict finds by
 * them: a check and an original would see different arguments. So both get exact strings. Leaves NULL if they are that
 * already; -1: error set. */
static int names_exact(PyObject *kwnames, const char *function, PyObject **exact)
{
    *exact = NULL;
    Py_ssize_t count = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames), odd = 0;
    while (odd < count && PyUnicode_CheckExact(PyTuple_GET_ITEM(kwnames, odd)))
        odd++;
    if (odd == count)
        return 0;
    if ((*exact = PyTuple_New(count)) == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = PyUnicode_FromObject(PyTuple_GET_ITEM(kwnames, i));
        if (name == NULL)
            goto failed;
        PyTuple_SET_ITEM(*exact, i, name);
        for (Py_ssize_t k = 0; k < i; k++)
            if (PyUnicode_Compare(PyTuple_GET_ITEM(*exact, k), name) == 0) {
                PyErr_Format(PyExc_TypeError, "%s() got multiple values for keyword argument '%U'", function, name);
                goto failed;
            }
    }
    return 0;
failed:
    Py_CLEAR(*exact);
    return -1;
}

PyObject *vmh_gate_call(vmh_gate *gate, PyObject *self, PyTypeObject *owner, PyObject *const *args, Py_ssize_t nargs,
                        PyObject *kwnames)
{
    vmh_gated call; /* its arrays are not cleared: that would be half of a gate's cost */
    call.gate = gate;
    call.seal = vmh_seal_here();
    call.self = self;
    call.owner = owner;
    call.nargs = nargs;
    call.kwnames = kwnames;
    call.owned_count = call.held_count = 0;
    call.passes = false;
    call.result = NULL;
    Py_ssize_t count = nargs + (kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames));
    if (count > VMH_GATED_ARGS_MAX)
        return PyErr_Format(PyExc_TypeError, "%s(): at most %d arguments, got %zd", gate->name, VMH_GATED_ARGS_MAX,
                            count);
    if (count > 0)
        memcpy(call.args, args, (size_t)count * sizeof *args);
    PyObject *result = NULL, *names;
    if (call.seal == NULL)
        return vmh_deny("this thread is not one of the task's", "%s.%s", gate->module, gate->name);
    if (names_exact(kwnames, gate->name, &names) < 0)
        return NULL;
    if (names != NULL)
        call.kwnames = names;
    int rc = gate->check(&call);
    if (rc == 0)
        result = vmh_gated_original(&call);
    else if (rc > 0)
        result = call.result;
    for (int i = 0; i < call.held_count; i++)
        vmh_fd_drop(call.held[i]);
    for (int i = 0; i < call.owned_count; i++)
        Py_DECREF(call.owned[i]);
    Py_XDECREF(names);
    return result;
}

PyObject **vmh_gated_argument(vmh_gated *call, Py_ssize_t position, const char *keyword)
{
    if (position < call->nargs)
        return &call->args[position];
    if (call->kwnames != NULL && keyword != NULL)
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(call->kwnames); i++)
            if (PyUnicode_EqualToUTF8(PyTuple_GET_ITEM(call->kwnames, i), keyword))
                return &call->args[call->nargs + i];
    return NULL;
}

int vmh_gated_replace(vmh_gated *call, PyObject **argument, PyObject *value)
{
    if (value == NULL)
        return -1;
    if (call->owned_count == VMH_GATED_OWNED_MAX) {
        Py_DECREF(value);
        PyErr_SetString(PyExc_SystemError, "a gate replaces too many arguments");
        return -1;
    }
    call->owned[call->owned_count++] = value;
    *argument = value;
    return 0;
}

static int hold(vmh_gated *call, int fd)
{
    if (call->held_count == VMH_GATED_HELD_MAX) {
        PyErr_SetString(PyExc_SystemError, "a gate uses too many descriptors");
        return -1;
    }
    if (vmh_fd_hold(fd, call->gate->name) < 0)
        return -1;
    call->held[call->held_count++] = fd;
    return 0;
}

int vmh_fd_of(PyObject *argument)
{
    PyObject *number = PyNumber_Index(argument);
    int fd = number == NULL ? -1 : PyLong_AsInt(number);
    Py_XDECREF(number);
    return fd;
}

static int use_fd(vmh_gated *call, PyObject **argument, int fd)
{
    if (PyErr_Occurred() || vmh_fd_check(fd, call->gate->name) < 0 || hold(call, fd) < 0)
        return -1;
    return vmh_gated_replace(call, argument, PyLong_FromLong(fd)) < 0 ? -1 : fd;
}

int vmh_gated_fd(vmh_gated *call, PyObject **argument) { return use_fd(call, argument, vmh_fd_of(*argument)); }

int vmh_gated_fildes(vmh_gated *call, PyObject **argument)
{
    return use_fd(call, argument, PyObject_AsFileDescriptor(*argument));
}

int vmh_gated_self_fd(vmh_gated *call)
{
    int fd = *vmh_compat_fd(call->self);
    return fd < 0 ? -1 : hold(call, fd) < 0 ? -2 : fd;
}

int vmh_gate_refuse(vmh_gated *call)
{
    vmh_deny("no task can have this", "%s.%s%s%s", call->gate->module, call->gate->type, call->gate->type[0] ? "." : "",
             call->gate->name);
    return -1;
}

static PyObject *refused_call(PyObject *name, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(nargs),
                              PyObject *Py_UNUSED(kwnames))
{
    return vmh_deny("no task can have this", "%s", PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : "?");
}

/* --- the table */

static int policy_index(const char *module)
{
    int low = 0, high = MODULES;
    while (low < high) {
        int middle = (low + high) / 2, order = strcmp(module, vmh_policy[middle].module);
        if (order == 0)
            return middle;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

static ptrdiff_t filing_index(const vmh_module_policy *policy, const char *name)
{
    size_t low = 0, high = policy->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = strcmp(name, policy->filings[middle].name);
        if (order == 0)
            return (ptrdiff_t)middle;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

bool vmh_policy_knows(const char *module) { return policy_index(module) >= 0; }

bool vmh_policy_gates(const char *module)
{
    int m = policy_index(module);
    for (size_t i = 0; m >= 0 && i < vmh_policy[m].count; i++)
        if (vmh_policy[m].filings[i].verdict == 'g' || strchr(vmh_policy[m].filings[i].name, '.') != NULL)
            return true;
    return false;
}

/* The gates of a module besides its filings. A module with a gated filing must have a row, or it is not loaded. */
static const struct gating {
    const char *module;
    vmh_gate *const *gates[2]; /* lists that contain its gates; NULL: none, or end */
    vmh_gate_finish *finish;   /* NULL: nothing else to do */
} gatings[] = {
    {"_asyncio", {NULL}, vmh_asyncio_finish},
    {"_datetime", {NULL}, vmh_datetime_finish},
    {"_hashlib", {vmh_gates_hashlib}, NULL},
    {"_io", {vmh_gates_io}, vmh_io_finish},
    {"_locale", {vmh_gates_process}, NULL},
    {"_pickle", {NULL}, vmh_pickle_finish},
    {"_random", {vmh_gates_recording}, NULL},
    {"_signal", {vmh_gates_process}, NULL},
    {"_socket", {vmh_gates_socket}, vmh_socket_finish},
    {"_sqlite3", {vmh_gates_sqlite, vmh_gates_sqlite_use}, vmh_sqlite_finish},
    {"_ssl", {vmh_gates_ssl, vmh_gates_certificates}, vmh_ssl_finish},
    {"_thread", {NULL}, vmh_thread_finish},
    {"_uuid", {vmh_gates_recording}, NULL},
    {"builtins", {vmh_gates_builtins}, vmh_builtins_finish},
    {"mmap", {vmh_gates_mmap}, vmh_mmap_finish},
    {"posix", {vmh_gates_posix, vmh_gates_recording}, vmh_posix_finish},
    {"select", {vmh_gates_socket}, vmh_select_finish},
    {"time", {vmh_gates_recording}, vmh_time_finish},
};

static const struct gating *gating_of(const char *module)
{
    for (size_t i = 0; i < sizeof gatings / sizeof *gatings; i++)
        if (strcmp(gatings[i].module, module) == 0)
            return &gatings[i];
    return NULL;
}

static vmh_gate *gate_find(const char *module, const char *name)
{
    const struct gating *row = gating_of(module);
    const char *dot = strchr(name, '.');
    size_t type_size = dot == NULL ? 0 : (size_t)(dot - name);
    for (size_t i = 0; row != NULL && i < sizeof row->gates / sizeof *row->gates && row->gates[i] != NULL; i++)
        for (vmh_gate *const *gate = row->gates[i]; *gate != NULL; gate++)
            if (strcmp((*gate)->module, module) == 0 && strlen((*gate)->type) == type_size
                && strncmp((*gate)->type, name, type_size) == 0
                && strcmp((*gate)->name, dot == NULL ? name : dot + 1) == 0)
                return *gate;
    return NULL;
}

static void bind_all(void)
{
    for (int m = 0; m < MODULES; m++) {
        const vmh_module_policy *policy = &vmh_policy[m];
        if (bound[m].gates == NULL)
            bound[m].gates = calloc(policy->count + 1, sizeof *bound[m].gates);
        if (bound[m].refusals == NULL)
            bound[m].refusals = calloc(policy->count + 1, sizeof *bound[m].refusals);
        if (bound[m].gates == NULL || bound[m].refusals == NULL)
            return;
        for (size_t i = 0; i < policy->count; i++) {
            const vmh_filing *filing = &policy->filings[i];
            if (filing->verdict == 'g' || strchr(filing->name, '.') != NULL)
                bound[m].gates[i] = gate_find(policy->module, filing->name);
            bound[m].refusals[i] = (PyMethodDef){filing->name, (PyCFunction)(void (*)(void))refused_call,
                                                 METH_FASTCALL | METH_KEYWORDS, NULL};
        }
    }
    bound_all = true;
}

/* The audit events of originals that call->passes allows. A function that is not listed raises none, or one that every
 * guest may raise (audit.c). */
static const char *event_of(const vmh_gate *gate)
{
    static const struct {
        const char *module, *name, *event;
    } events[] = {
        {"_socket", "bind", "socket.bind"},
        {"_socket", "connect", "socket.connect"},
        {"_socket", "connect_ex", "socket.connect"},
        {"_socket", "getaddrinfo", "socket.getaddrinfo"},
        {"_socket", "gethostbyname", "socket.gethostbyname"},
        {"_socket", "gethostbyname_ex", "socket.gethostbyname"},
        {"_socket", "sendmsg", "socket.sendmsg"},
        {"_socket", "sendto", "socket.sendto"},
        {"_ssl", "load_dh_params", "open"},
        {"posix", "chmod", "os.chmod"},
        {"posix", "ftruncate", "os.truncate"},
        {"posix", "listdir", "os.listdir"},
        {"posix", "mkdir", "os.mkdir"},
        {"posix", "remove", "os.remove"},
        {"posix", "rename", "os.rename"},
        {"posix", "replace", "os.rename"},
        {"posix", "rmdir", "os.rmdir"},
        {"posix", "truncate", "os.truncate"},
        {"posix", "unlink", "os.remove"},
        {"posix", "utime", "os.utime"},
    };
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (strcmp(events[i].module, gate->module) == 0 && strcmp(events[i].name, gate->name) == 0)
            return events[i].event;
    return NULL;
}

/* The documentation of a replacement. CPython derives the signature of an undocumented function from its METH_NOARGS or
 * METH_O flag. A replacement has other flags, so its signature is written into `room`. */
static const char *gate_doc(const PyMethodDef *original, char *room, size_t size)
{
    const char *signature = original->ml_flags & METH_NOARGS ? "($self, /)"
                            : original->ml_flags & METH_O    ? "($self, object, /)"
                                                             : NULL;
    if (original->ml_doc != NULL || signature == NULL)
        return original->ml_doc;
    snprintf(room, size, "%s%s\n--\n\n", original->ml_name, signature);
    return room;
}

/* The first caller fills the replacement's def; all would write the same. */
static PyMethodDef *gate_def(vmh_gate *gate, PyMethodDef *original, bool method)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    vmh_mutex_lock(&lock);
    if (gate->def.ml_name == NULL) {
        gate->def.ml_doc = gate_doc(original, gate->doc, sizeof gate->doc);
        gate->def.ml_flags = METH_FASTCALL | METH_KEYWORDS | (method ? METH_METHOD : 0);
        gate->def.ml_meth =
            method ? (PyCFunction)(void (*)(void))gate->run_method : (PyCFunction)(void (*)(void))gate->run;
        gate->def.ml_name = original->ml_name;
        gate->event = event_of(gate);
        atomic_store(&gate->original, original);
    }
    vmh_mutex_unlock(&lock);
    return &gate->def;
}

/* A refused function keeps the signature of the original, which inspect reads from the start of its documentation. */
static PyMethodDef *refusal_def(PyMethodDef *def, PyObject *original)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    vmh_mutex_lock(&lock);
    if (def->ml_doc == NULL && PyCFunction_CheckExact(original)) {
        def->ml_name = ((PyCFunctionObject *)original)->m_ml->ml_name;
        def->ml_doc = ((PyCFunctionObject *)original)->m_ml->ml_doc;
    }
    vmh_mutex_unlock(&lock);
    return def;
}

static bool is_plain(PyObject *value)
{
    return value == Py_None || PyLong_Check(value) || PyFloat_CheckExact(value) || PyUnicode_CheckExact(value)
           || PyBytes_CheckExact(value) || PyTuple_Check(value) || PyFrozenSet_CheckExact(value)
           || PyComplex_CheckExact(value);
}

static int file_name(const vmh_module_policy *policy, int m, PyObject *dict, PyObject *module, PyObject *key,
                     PyObject *value)
{
    const char *name = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : NULL;
    if (name == NULL)
        return PyErr_Occurred() ? -1 : PyDict_DelItem(dict, key);
    if (is_plain(value) || strcmp(name, "__loader__") == 0 || strcmp(name, "__spec__") == 0)
        return 0;
    ptrdiff_t at = filing_index(policy, name);
    char verdict = at < 0 ? 'x' : policy->filings[at].verdict;
    if (verdict == 'a')
        return 0;
    PyMethodDef *def = NULL;
    PyObject *self = module, *new = NULL;
    if (verdict == 'g') {
        vmh_gate *gate = bound[m].gates[at];
        if (!PyCFunction_CheckExact(value)) { /* a type or object: the module's finish handles it, else it is deleted */
            const struct gating *row = gating_of(policy->module);
            return row != NULL && row->finish != NULL ? 0 : PyDict_DelItem(dict, key);
        }
        if (gate == NULL)
            return PyDict_DelItem(dict, key); /* the module's finish adds one, or there is none */
        if (((PyCFunctionObject *)value)->m_ml == &gate->def)
            return 0;
        def = gate_def(gate, ((PyCFunctionObject *)value)->m_ml, false);
    } else if (verdict == 'r') {
        def = refusal_def(&bound[m].refusals[at], value);
        if ((self = PyUnicode_FromFormat("%s.%s", policy->module, name)) == NULL)
            return -1;
    } else
        return PyDict_DelItem(dict, key);
    PyObject *module_name = PyUnicode_FromString(policy->module);
    if (module_name != NULL)
        new = PyCFunction_NewEx(def, self, module_name);
    Py_XDECREF(module_name);
    if (self != module)
        Py_DECREF(self);
    int rc = new == NULL ? -1 : PyDict_SetItem(dict, key, new);
    Py_XDECREF(new);
    return rc;
}

static int file_method(PyObject *dict, const vmh_filing *filing, vmh_gate *gate)
{
    const char *dot = strchr(filing->name, '.');
    PyObject *type_name = PyUnicode_FromStringAndSize(filing->name, dot - filing->name);
    if (type_name == NULL)
        return -1;
    PyObject *type = PyDict_GetItemWithError(dict, type_name);
    Py_DECREF(type_name);
    if (type == NULL || !PyType_Check(type))
        return PyErr_Occurred() ? -1 : 0;
    PyObject *methods = ((PyTypeObject *)type)->tp_dict, *method = vmh_dict_get(methods, dot + 1);
    if (method == NULL)
        return PyErr_Occurred() ? -1 : 0;
    if (gate == NULL)
        return PyDict_DelItemString(methods, dot + 1);
    PyMethodDef *original;
    bool class_method = Py_IS_TYPE(method, &PyClassMethodDescr_Type);
    if (!class_method && !Py_IS_TYPE(method, &PyMethodDescr_Type)) {
        PyErr_Format(PyExc_SystemError, "%s.%s is not a method", gate->module, filing->name);
        return -1;
    }
    original = ((PyMethodDescrObject *)method)->d_method;
    if (original == &gate->def)
        return 0;
    PyMethodDef *def = gate_def(gate, original, !class_method);
    PyObject *new;
    if (class_method) {
        def->ml_flags = METH_FASTCALL | METH_KEYWORDS | METH_CLASS;
        new = PyDescr_NewClassMethod((PyTypeObject *)type, def);
    } else
        new = PyDescr_NewMethod((PyTypeObject *)type, def);
    int rc = new == NULL ? -1 : PyDict_SetItemString(methods, dot + 1, new);
    Py_XDECREF(new);
    PyType_Modified((PyTypeObject *)type);
    return rc;
}

/* Deletes the unfiled methods of a type that has filed ones. `name` begins with the type's name. */
static int drop_unfiled(const vmh_module_policy *policy, PyObject *dict, const char *name, size_t size)
{
    char filing[256];
    snprintf(filing, sizeof filing, "%.*s", (int)size, name);
    PyObject *type = vmh_dict_get(dict, filing);
    if (type == NULL || !PyType_Check(type))
        return PyErr_Occurred() ? -1 : 0;
    PyObject *methods = ((PyTypeObject *)type)->tp_dict, *items = PyDict_Items(methods);
    int rc = items == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; rc == 0 && i < PyList_GET_SIZE(items); i++) {
        PyObject *key = PyTuple_GET_ITEM(PyList_GET_ITEM(items, i), 0),
                 *value = PyTuple_GET_ITEM(PyList_GET_ITEM(items, i), 1);
        const char *method = PyUnicode_AsUTF8(key);
        if (method == NULL)
            rc = -1;
        else if (strncmp(method, "__", 2) != 0
                 && (Py_IS_TYPE(value, &PyMethodDescr_Type) || Py_IS_TYPE(value, &PyClassMethodDescr_Type))) {
            snprintf(filing, sizeof filing, "%.*s.%s", (int)size, name, method);
            if (filing_index(policy, filing) < 0) {
                rc = PyDict_DelItem(methods, key);
                PyType_Modified((PyTypeObject *)type);
            }
        }
    }
    Py_XDECREF(items);
    return rc;
}

int vmh_gate_module(PyObject *module, const char *name)
{
    vmh_mutex_lock(&bind_lock);
    if (!bound_all)
        bind_all(); /* once more if memory ran out before */
    bool ready = bound_all;
    vmh_mutex_unlock(&bind_lock);
    if (!ready) {
        PyErr_NoMemory();
        return -1;
    }
    int m = policy_index(name);
    if (m < 0) {
        PyErr_Format(PyExc_ImportError, "native module '%s' is not available in a VM", name);
        return -1;
    }
    const struct gating *row = gating_of(name);
    if (row == NULL && vmh_policy_gates(name)) {
        PyErr_Format(PyExc_ImportError, "native module '%s' is filed as gated, and gates.c has no row for it", name);
        return -1;
    }
    const vmh_module_policy *policy = &vmh_policy[m];
    PyObject *dict = PyModule_GetDict(module);
    if (dict == NULL)
        return -1;
    int rc = -1;
    PyObject *items = PyDict_Items(dict);
    if (items == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        if (file_name(policy, m, dict, module, PyTuple_GET_ITEM(item, 0), PyTuple_GET_ITEM(item, 1)) < 0)
            goto done;
    }
    const char *type_name = "";
    for (size_t i = 0; i < policy->count; i++) {
        const char *method = policy->filings[i].name, *dot = strchr(method, '.');
        if (dot == NULL)
            continue;
        if (policy->filings[i].verdict != 'a' && file_method(dict, &policy->filings[i], bound[m].gates[i]) < 0)
            goto done;
        if (strncmp(type_name, method, (size_t)(dot - method) + 1) != 0
            && drop_unfiled(policy, dict, method, (size_t)(dot - method)) < 0)
            goto done;
        type_name = method;
    }
    rc = row == NULL || row->finish == NULL ? 0 : row->finish(dict, module);
done:
    Py_DECREF(items);
    return rc;
}

/* --- slots and methods of native types */

int vmh_slot_replace(PyTypeObject *type, const char *dunder, void **slot, void *function)
{
    PyObject *wrapper = vmh_dict_get(type->tp_dict, dunder);
    if (wrapper == NULL && PyErr_Occurred())
        return -1;
    if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE) || (wrapper == NULL && strcmp(dunder, "__new__") != 0)) {
        PyErr_Format(PyExc_SystemError, "%s.%s cannot be gated in this Python", type->tp_name, dunder);
        return -1;
    }
    if (wrapper != NULL && Py_IS_TYPE(wrapper, &PyWrapperDescr_Type))
        ((PyWrapperDescrObject *)wrapper)->d_wrapped = function;
    *slot = function;
    PyType_Modified(type);
    return 0;
}

PyMethodDef *vmh_method_def(PyTypeObject *type, const char *name)
{
    PyObject *method = vmh_dict_get(type->tp_dict, name);
    if (method == NULL && PyErr_Occurred())
        return NULL;
    if (method == NULL || !Py_IS_TYPE(method, &PyMethodDescr_Type)) {
        PyErr_Format(PyExc_SystemError, "%s.%s is not a method in this Python", type->tp_name, name);
        return NULL;
    }
    return ((PyMethodDescrObject *)method)->d_method;
}

int vmh_fd_field_check(PyObject *object, PyMethodDef *fileno_def)
{
    enum { PROBE = 1 << 20 };
    int *field = vmh_compat_fd(object), before = *field;
    *field = PROBE;
    PyObject *number = vmh_def_call(fileno_def, object, Py_TYPE(object), NULL, 0, NULL);
    *field = before;
    bool agrees = number != NULL && PyLong_Check(number) && PyLong_AsInt(number) == PROBE;
    Py_XDECREF(number);
    if (!agrees && !PyErr_Occurred())
        PyErr_Format(PyExc_SystemError, "%s cannot be gated in this Python: its descriptor is not where it was",
                     Py_TYPE(object)->tp_name);
    return agrees ? 0 : -1;
}
