/* Gates of `_io`: FileIO is the one type that opens files; all of io and builtins.open go through it. */
#include "gates.h"

#include <string.h>

/* The originals, the same in every VM. */
static _Atomic(initproc) file_init;
static _Atomic(PyMethodDef *) file_fileno;

/* -1 without an error: closed. */
static int file_fd(PyObject *file)
{
    PyObject *number = vmh_def_call(atomic_load(&file_fileno), file, NULL, NULL, 0, NULL);
    int fd = number == NULL ? -1 : PyLong_AsInt(number);
    Py_XDECREF(number);
    PyErr_Clear();
    return fd;
}

/* What stands in for a guest's opener: its descriptor must be the guest's own. */
static PyObject *opener_call(PyObject *opener, PyObject *args)
{
    unsigned before = vmh_pass_set(0);      /* the task's own code runs */
    PyObject *number = PyObject_Call(opener, args, NULL);
    vmh_pass_set(before);
    if (number == NULL || !PyLong_Check(number))
        return number;
    int fd = PyLong_AsInt(number);
    if (fd >= 0 && vmh_fd_check(fd, "opener") < 0)
        Py_CLEAR(number);
    return number;
}

static PyMethodDef opener_def = {"opener", opener_call, METH_VARARGS, NULL};

static int access_of(const char *mode)
{
    int access = 0;
    for (; *mode != 0; mode++)
        access |= *mode == 'r'                   ? VMH_READ
                  : *mode == '+'                 ? VMH_READ | VMH_WRITE
                  : strchr("wax", *mode) != NULL ? VMH_WRITE
                                                 : 0;
    return access;
}

static int file_init_gate(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"file", "mode", "closefd", "opener", NULL};
    PyObject *name, *opener = Py_None, *target = NULL, *wrapped = NULL, *checked = NULL;
    const char *mode = "r";
    int close_fd = 1, rc = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|spO:FileIO", names, &name, &mode, &close_fd, &opener))
        return -1;
    if (vmh_seal_here() == NULL) {
        vmh_deny("this thread is not one of the task's", "FileIO");
        return -1;
    }
    if (PyIndex_Check(name)) {
        target = PyNumber_Index(name);
        int fd = target == NULL ? -1 : PyLong_AsInt(target);
        if (PyErr_Occurred() || (fd >= 0 && vmh_fd_check(fd, "open") < 0))
            goto done;
    } else if (opener != Py_None) {
        target = PyOS_FSPath(name);     /* the opener decides; what it returns is checked */
        wrapped = PyCFunction_New(&opener_def, opener);
        if (target == NULL || wrapped == NULL)
            goto done;
    } else {
        PyObject *path = NULL;
        if (vmh_grant_path(name, access_of(mode), false, "open", &path) < 0)
            goto done;
        target = PyUnicode_DecodeFSDefaultAndSize(PyBytes_AS_STRING(path), PyBytes_GET_SIZE(path));
        Py_DECREF(path);
        if (target == NULL)
            goto done;
    }
    checked = Py_BuildValue("(OsOO)", target, mode, close_fd ? Py_True : Py_False, wrapped == NULL ? Py_None : wrapped);
    if (checked == NULL)
        goto done;
    unsigned before = vmh_pass_set(vmh_pass_get() | VMH_PASS_GATE);
    rc = atomic_load(&file_init)(self, checked, NULL);
    vmh_pass_set(before);
    if (rc == 0 && !PyLong_Check(target)) {
        rc = vmh_fd_own(file_fd(self));
        if (rc == 0)
            rc = PyObject_SetAttrString(self, "name", name);
    }
done:
    Py_XDECREF(target);
    Py_XDECREF(wrapped);
    Py_XDECREF(checked);
    return rc;
}

static int check_close(vmh_gated *call)
{
    int fd = file_fd(call->self);
    call->result = vmh_gated_original(call);
    vmh_fd_closed(fd);
    return call->result == NULL ? -1 : 1;
}

/* importlib and others open code files with it: to read, binary, by path. */
static int check_open_code(vmh_gated *call)
{
    PyObject **argument = vmh_gated_argument(call, 0, "path"), *path = NULL;
    if (argument == NULL)
        return 0;
    if (vmh_grant_path(*argument, VMH_READ, false, "open_code", &path) < 0)
        return -1;
    PyObject *text = PyUnicode_DecodeFSDefaultAndSize(PyBytes_AS_STRING(path), PyBytes_GET_SIZE(path));
    Py_DECREF(path);
    call->pass = VMH_PASS_GATE;
    return vmh_gated_replace(call, argument, text);
}

/* An absolute path that names a file of the bundle, to read, and that nothing grants. -1: error set. */
static int names_bundled(vmh_gated *call, PyObject *path)
{
    PyObject **mode = vmh_gated_argument(call, 1, "mode"), *bytes = NULL, *granted = NULL;
    const char *text = mode == NULL || !PyUnicode_Check(*mode) ? "r" : PyUnicode_AsUTF8(*mode);
    vmh_bundle_entry entry = { 0 };
    int rc = -1;
    if (text == NULL)
        return -1;
    if (access_of(text) != VMH_READ)
        return 0;
    if (!PyUnicode_FSConverter(path, &bytes) || vmh_bundle_find(PyBytes_AS_STRING(bytes), &entry) < 0)
        goto done;
    rc = 0;
    if (entry.kind != 0 && vmh_grant_path(path, VMH_READ, false, "open", &granted) < 0) {
        rc = PyErr_ExceptionMatches(PyExc_PermissionError) ? 1 : -1;
        if (rc == 1)
            PyErr_Clear();
    }
done:
    vmh_bundle_entry_clear(&entry);
    Py_XDECREF(bytes);
    Py_XDECREF(granted);
    return rc;
}

/* A relative path names a file of the bundle: vmhost.guest.files answers. Everything else is FileIO's business. */
static int check_open(vmh_gated *call)
{
    PyObject **file = vmh_gated_argument(call, 0, "file");
    if (file == NULL || PyLong_Check(*file))
        return 0;
    PyObject *path = PyOS_FSPath(*file);
    if (path == NULL) {
        PyErr_Clear();
        return 0;
    }
    bool absolute = PyBytes_Check(path) ? PyBytes_AS_STRING(path)[0] == '/'
                                        : PyUnicode_GET_LENGTH(path) > 0 && PyUnicode_READ_CHAR(path, 0) == '/';
    int rc = vmh_gated_replace(call, file, path);
    PyObject **opener = vmh_gated_argument(call, 7, "opener");
    if (rc < 0 || (opener != NULL && *opener != Py_None))
        return rc;
    if (absolute && (rc = names_bundled(call, path)) <= 0)
        return rc;
    PyObject *files = PyImport_ImportModule("vmhost.guest.files");
    PyObject *function = files == NULL ? NULL : PyObject_GetAttrString(files, "open_file");
    if (function != NULL)
        call->result = PyObject_Vectorcall(function, call->args, (size_t)call->nargs, call->kwnames);
    Py_XDECREF(files);
    Py_XDECREF(function);
    return call->result == NULL ? -1 : 1;
}

#define GATES(G)                                    \
    G(_io, , open, check_open, 0, "file")           \
    G(_io, , open_code, check_open_code, 0, "path") \
    G(_io, FileIO, close, check_close, 0, NULL)

GATES(VMH_GATE_DEFINE)
vmh_gate *const vmh_gates_io[] = { GATES(VMH_GATE_ADDRESS) NULL };

int vmh_io_finish(PyObject *dict)
{
    PyTypeObject *type = (PyTypeObject *)vmh_dict_get(dict, "FileIO");
    if (type == NULL && PyErr_Occurred())
        return -1;
    if (type == NULL || !PyType_Check((PyObject *)type)) {
        PyErr_SetString(PyExc_SystemError, "_io.FileIO is missing in this Python");
        return -1;
    }
    if (type->tp_init == file_init_gate)
        return 0;
    PyMethodDef *fileno_def = vmh_method_def(type, "fileno");
    if (fileno_def == NULL)
        return -1;
    atomic_store(&file_fileno, fileno_def);
    atomic_store(&file_init, type->tp_init);
    return vmh_slot_replace(type, "__init__", (void **)&type->tp_init, (void *)file_init_gate);
}
