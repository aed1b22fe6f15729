/* `vmhost.isolation._core`: the module, its process-wide hooks, and helpers shared by its types (core.h). Main
 * interpreter only. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "wire/buffer.h"
#include "lanes/clock.h"
#include "python/core.h"
#include "cpython/creation.h"
#include "wire/engine.h"
#include "crash/dump.h"
#include "vm/fork.h"
#include "seal/function_code.h"
#include "wire/handover.h"
#include "wire/packed.h"
#include "memory/library_memory.h"
#include "memory/overflow.h"
#include "seal/sealing.h"
#include "sqlite/sqlite_memory.h"
#include "sqlite/sqlite_rules.h"

PyTypeObject *vmh_code_store_type, *vmh_events_type, *vmh_lane_type, *vmh_call_type, *vmh_vm_type, *vmh_host_call_type,
    *vmh_buffer_type, *vmh_packed_type, *vmh_profile_type;
static PyObject *error_factory;

int vmh_core_deadline(PyObject *timeout_s, int64_t *deadline_ns)
{
    if (timeout_s == NULL || timeout_s == Py_None) {
        *deadline_ns = VMH_FOREVER;
        return 0;
    }
    double seconds = PyFloat_AsDouble(timeout_s);
    if (seconds == -1.0 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "timeout_s: expected a number of seconds or None, got `%T`", timeout_s);
        else if (PyErr_ExceptionMatches(PyExc_OverflowError))
            PyErr_SetString(PyExc_ValueError,
                            "timeout_s: expected a number of seconds, got one that no float can hold");
        return -1;
    }
    if (!(seconds >= 0)) {
        PyErr_Format(PyExc_ValueError, "timeout_s: expected a number of seconds from 0 on, got %R", timeout_s);
        return -1;
    }
    *deadline_ns = seconds > 1e9 ? VMH_FOREVER : vmh_after_ns(vmh_now_ns(), (int64_t)(seconds * 1e9));
    return 0;
}

int64_t vmh_core_span_ns(double seconds)
{
    return seconds < 0 || seconds > 1e9 ? VMH_FOREVER : (int64_t)(seconds * 1e9);
}

PyObject *vmh_core_error(vmh_lane *lane, int kind, PyObject *payload)
{
    if (error_factory == NULL) {
        PyErr_Format(PyExc_RuntimeError, "%s@%s: call ended with kind %d: %R", lane->name, lane->version, kind,
                     payload);
        return PyErr_GetRaisedException();
    }
    PyObject *error = PyObject_CallFunction(error_factory, "iOss", kind, payload, lane->name, lane->version);
    if (error != NULL && !PyExceptionInstance_Check(error)) {
        PyErr_Format(PyExc_TypeError, "the error factory gave a `%s`", Py_TYPE(error)->tp_name);
        Py_CLEAR(error);
    }
    return error;
}

PyObject *vmh_core_raise(vmh_lane *lane, int kind, PyObject *payload)
{
    PyObject *error = vmh_core_error(lane, kind, payload);
    if (error != NULL)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return NULL;
}

static PyObject *set_error_factory(PyObject *Py_UNUSED(module), PyObject *factory)
{
    Py_XSETREF(error_factory, Py_NewRef(factory));
    Py_RETURN_NONE;
}

static PyObject *check_value(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *value, *pack;
    const char *what;
    if (!PyArg_ParseTuple(args, "OsO:check_value", &value, &what, &pack))
        return NULL;
    const vmh_codec codec = {.buffer_type = vmh_buffer_type, .packed_type = vmh_packed_type, .pack = pack};
    vmh_blob blob;
    vmh_blob_init(&blob);
    int rc = vmh_wire_encode(&blob, value, what, &codec, NULL);
    vmh_blob_clear(&blob);
    vmh_buffer_release_lent();
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *crash_open(PyObject *Py_UNUSED(module), PyObject *path)
{
    PyObject *encoded = NULL, *list = NULL;
    if (!PyUnicode_FSConverter(path, &encoded))
        return NULL;
    vmh_crash_map *before = malloc(sizeof *before);
    if (before == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    int error = vmh_crash_open(PyBytes_AS_STRING(encoded), before);
    list = PyList_New(0);
    for (int i = 0; list != NULL && i < VMH_CRASH_SLOTS; i++) {
        vmh_crash_slot *slot = &before->slots[i];
        int number = atomic_load(&slot->signal), phase = atomic_load(&slot->phase);
        if (number == 0)
            continue;
        slot->task[VMH_CRASH_TEXT - 1] = slot->version[VMH_CRASH_TEXT - 1] = 0;
        PyObject *item =
            Py_BuildValue("{s:N,s:N,s:s,s:i,s:i,s:K}", "task",
                          PyUnicode_DecodeUTF8(slot->task, (Py_ssize_t)strlen(slot->task), "replace"), "version",
                          PyUnicode_DecodeUTF8(slot->version, (Py_ssize_t)strlen(slot->version), "replace"), "phase",
                          vmh_phase_name(phase >= VMH_PHASE_IDLE && phase <= VMH_PHASE_END ? phase : VMH_PHASE_IDLE),
                          "signal", number, "pid", (int)before->pid, "vm", (unsigned long long)slot->vm_id);
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    if (list != NULL)
        list = Py_BuildValue("(Ni)", list, error);
done:
    free(before);
    Py_XDECREF(encoded);
    return list;
}

/* Held until the process ends: a signal handler reads them. */
static Py_buffer notes[VMH_DUMP_NOTES];

static PyObject *crash_note(PyObject *Py_UNUSED(module), PyObject *args)
{
    int which;
    PyObject *buffer;
    if (!PyArg_ParseTuple(args, "iO:crash_note", &which, &buffer))
        return NULL;
    if (which < 0 || which >= VMH_DUMP_NOTES || notes[which].obj != NULL)
        return PyErr_Format(PyExc_ValueError, "note %d does not exist or is already set", which);
    if (PyObject_GetBuffer(buffer, &notes[which], PyBUF_SIMPLE) < 0)
        return NULL;
    vmh_dump_note(which, notes[which].buf, (size_t)notes[which].len);
    Py_RETURN_NONE;
}

static PyObject *crash_dump_to(PyObject *Py_UNUSED(module), PyObject *path)
{
    PyObject *encoded = NULL;
    if (!PyUnicode_FSConverter(path, &encoded))
        return NULL;
    int error = vmh_dump_open(PyBytes_AS_STRING(encoded));
    Py_DECREF(encoded);
    return PyLong_FromLong(error);
}

static bool sqlite_absent; /* this Python has no sqlite3, so nothing is uncounted */
static bool sqlite_linked; /* its functions are part of the executable */

static PyObject *sqlite_counted(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(sqlite_absent || vmh_sqlite_memory_counted());
}

/* The origin of the native module `name`: its file or "built-in". None: there is none. NULL with an error set. */
static PyObject *origin_of(const char *name)
{
    PyObject *util = PyImport_ImportModule("importlib.util");
    PyObject *spec = util == NULL ? NULL : PyObject_CallMethod(util, "find_spec", "s", name);
    PyObject *origin = spec == NULL      ? NULL
                       : spec == Py_None ? Py_NewRef(Py_None)
                                         : PyObject_GetAttrString(spec, "origin");
    Py_XDECREF(util);
    Py_XDECREF(spec);
    return origin;
}

static PyObject *libraries_uncounted(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    PyObject *list = PyList_New(0);
    for (const char *const *name = vmh_library_memory_modules; list != NULL && *name != NULL; name++) {
        PyObject *origin = origin_of(*name), *text = PyUnicode_FromString(*name);
        const char *path = origin == NULL || !PyUnicode_Check(origin) ? NULL : PyUnicode_AsUTF8(origin);
        if (path != NULL)
            vmh_library_memory_loaded(*name, strcmp(path, "built-in") == 0 ? NULL : path);
        if (PyErr_Occurred() || text == NULL
            || (path != NULL && !vmh_library_memory_counted(*name) && PyList_Append(list, text) < 0))
            Py_CLEAR(list);
        Py_XDECREF(origin);
        Py_XDECREF(text);
    }
    return list;
}

static PyObject *engine_attach(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long table;
    const char *path;
    if (!PyArg_ParseTuple(args, "Ks:engine_attach", &table, &path) || vmh_engine_attach((uintptr_t)table, path) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *trace_engine(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    vmh_engine_trace();
    Py_RETURN_NONE;
}

static PyObject *memory_refusal(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    const char *reason = vmh_memory_refusal();
    return reason == NULL ? Py_NewRef(Py_None) : PyUnicode_FromString(reason);
}

static PyMethodDef core_methods[] = {
    {"memory_refusal", memory_refusal, METH_NOARGS,
     PyDoc_STR("Why memory limits cannot be held in this process, so that no VM boots; None: they can.")},
    {"engine_attach", engine_attach, METH_VARARGS,
     PyDoc_STR("engine_attach(table, path): the address of the engine's `struct vme_api`, and the file of "
               "vmhost.engine._array.")},
    {"sqlite_counted", sqlite_counted, METH_NOARGS,
     PyDoc_STR("Whether SQLite's allocations are charged to the VM that makes them. Not if the host used SQLite before "
               "the core was loaded.")},
    {"libraries_uncounted", libraries_uncounted, METH_NOARGS,
     PyDoc_STR("The native modules of OpenSSL and libzstd in this Python whose library's memory is not charged to the "
               "VM that uses it. Loads them.")},
    {"crash_open", crash_open, METH_O,
     PyDoc_STR("crash_open(path) -> (list of dicts, errno): records running VMs in the file from now on, and returns "
               "those that ran on the crashing thread of the process that owned it before. errno 0: recording; EBUSY: "
               "another process owns the file; EEXIST: this process records in the file that it opened first.")},
    {"trace_engine", trace_engine, METH_NOARGS, PyDoc_STR("From now on, calls record when they ran models.")},
    {"coverage", vmh_core_coverage, METH_NOARGS,
     PyDoc_STR("coverage() -> functions: (file, name, first line); points: (function, kind, from, to), kind 0: a line, "
               "1: a branch between byte offsets, 2: a return; full.")},
    {"fill", vmh_core_fill, METH_VARARGS,
     PyDoc_STR("fill(template, texts, rows) -> str: the template once for each text, which replaces each \\0 in it; "
               "each \\1 becomes the next int or float of the row.")},
    {"reached", vmh_core_reached, METH_VARARGS,
     PyDoc_STR("reached(counts, first, step, steps) -> list: cumulative counts of a histogram, then the total.")},
    {"crash_dump_to", crash_dump_to, METH_O,
     PyDoc_STR("crash_dump_to(path) -> errno: if the process crashes, it writes stacks and notes to this file.")},
    {"crash_note", crash_note, METH_VARARGS,
     PyDoc_STR("crash_note(0 or 1, buffer): bytes to write to that file, read at the crash. Once for each number.")},
    {"fork_prepare", vmh_fork_prepare, METH_NOARGS, PyDoc_STR("os.register_at_fork: before")},
    {"fork_parent", vmh_fork_parent, METH_NOARGS, PyDoc_STR("os.register_at_fork: after_in_parent")},
    {"fork_child", vmh_fork_child, METH_NOARGS, PyDoc_STR("os.register_at_fork: after_in_child")},
    {"end_all", vmh_exit, METH_NOARGS,
     PyDoc_STR("At exit: stops every call and ends every VM; makes sure that the process can exit without VMs that do "
               "not end.")},
    {"check_value", check_value, METH_VARARGS,
     PyDoc_STR("check_value(value, what, pack): raises the ValueError or TypeError of a value that cannot cross.")},
    {"set_error_factory", set_error_factory, METH_O,
     PyDoc_STR(
         "set_error_factory(f): f(kind, payload, lane name, lane version) -> exception that a failed call raises.")},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, PyTypeObject **type, PyType_Spec *spec)
{
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type == NULL ? -1 : PyModule_AddType(module, *type);
}

/* The interpreter must not be finalised while VMs live: their threads would run in freed memory. A forked child must
 * not see them either. */
static int register_hooks(PyObject *module)
{
    int rc = -1;
    PyObject *atexit = PyImport_ImportModule("atexit"), *os = PyImport_ImportModule("os"), *done = NULL;
    PyObject *end_all = PyObject_GetAttrString(module, "end_all"), *nothing = PyTuple_New(0);
    PyObject *hooks = Py_BuildValue("{s:N,s:N,s:N}", "before", PyObject_GetAttrString(module, "fork_prepare"),
                                    "after_in_parent", PyObject_GetAttrString(module, "fork_parent"), "after_in_child",
                                    PyObject_GetAttrString(module, "fork_child"));
    PyObject *at_fork = os == NULL ? NULL : PyObject_GetAttrString(os, "register_at_fork");
    if (atexit == NULL || end_all == NULL || nothing == NULL || hooks == NULL || at_fork == NULL)
        goto finish;
    done = PyObject_CallMethod(atexit, "register", "O", end_all);
    if (done == NULL)
        goto finish;
    Py_SETREF(done, PyObject_Call(at_fork, nothing, hooks));
    rc = done == NULL ? -1 : 0;
finish:
    Py_XDECREF(atexit);
    Py_XDECREF(os);
    Py_XDECREF(end_all);
    Py_XDECREF(nothing);
    Py_XDECREF(hooks);
    Py_XDECREF(at_fork);
    Py_XDECREF(done);
    return rc;
}

void vmh_core_sqlite_linked(const char *module, const void *begin, const void *end)
{
    sqlite_linked = true;
    vmh_importer_lend("_sqlite3", module);
    vmh_overflow_leave_out(begin, end);
}

/* SQLite takes an allocator only before its first use, which may be the host's: so set it as early as possible. */
static int install_sqlite(void)
{
    if (sqlite_linked) {
        vmh_sqlite_memory_install(NULL);
        vmh_sqlite_rules_install(NULL);
        return 0;
    }
    PyObject *origin = origin_of("_sqlite3");
    sqlite_absent = origin == Py_None;
    if (origin != NULL && PyUnicode_Check(origin)) {
        const char *path = PyUnicode_AsUTF8(origin);
        const char *file = path == NULL || strcmp(path, "built-in") == 0 ? NULL : path;
        if (path != NULL) {
            vmh_sqlite_memory_install(file);
            vmh_sqlite_rules_install(file);
        }
    }
    Py_XDECREF(origin);
    return PyErr_Occurred() ? -1 : 0;
}

static void leave_out_interposition(void)
{
    const void *begin, *end;
    vmh_library_memory_code(&begin, &end);
    vmh_overflow_leave_out(begin, end);
}

static int core_exec(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "vmhost.isolation._core is for the main interpreter only");
        return -1;
    }
    if (vmh_code_store_type != NULL) {
        PyErr_SetString(PyExc_ImportError, "vmhost.isolation._core cannot be loaded twice in one process");
        return -1;
    }
    if (vmh_memory_install() < 0 || vmh_audit_install() < 0 || vmh_creation_install() < 0 || install_sqlite() < 0)
        return -1;
    leave_out_interposition();
    vmh_handover_try();
    vmh_buffer_type = vmh_buffer_type_new();
    vmh_packed_type = vmh_packed_type_new();
    if (vmh_buffer_type == NULL || PyModule_AddType(module, vmh_buffer_type) < 0 || vmh_packed_type == NULL
        || PyModule_AddType(module, vmh_packed_type) < 0 || add_type(module, &vmh_events_type, &vmh_events_spec) < 0
        || add_type(module, &vmh_lane_type, &vmh_lane_spec) < 0 || add_type(module, &vmh_call_type, &vmh_call_spec) < 0
        || add_type(module, &vmh_vm_type, &vmh_vm_spec) < 0
        || add_type(module, &vmh_host_call_type, &vmh_host_call_spec) < 0
        || add_type(module, &vmh_profile_type, &vmh_profile_spec) < 0)
        return -1;
    if (add_type(module, &vmh_code_store_type, &vmh_code_store_spec) < 0
        || PyModule_AddFunctions(module, vmh_function_code_methods) < 0)
        return -1;
    return register_hooks(module);
}

static PyModuleDef_Slot core_slots[] = {
    {Py_mod_exec, core_exec},
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
    {0, NULL},
};

static PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "vmhost.isolation._core",
    .m_doc = PyDoc_STR("The native core: VMs, lanes, calls, events."),
    .m_size = 0,
    .m_methods = core_methods,
    .m_slots = core_slots,
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&core_module); }
