/* Gates of `posix`: paths go by the task's permissions, descriptors must be the guest's own, the rest of what a process
 * shares is refused or virtual. */
#include "gates.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum { KEEP_LAST = 8, OR_FD = 16, OF_BUNDLE = 32 };     /* beside VMH_READ, VMH_WRITE */

/* A keyword argument such as dir_fd or src_dir_fd: only None. */
static int no_folder_fd(vmh_gated *call)
{
    for (Py_ssize_t i = 0; call->kwnames != NULL && i < PyTuple_GET_SIZE(call->kwnames); i++) {
        const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(call->kwnames, i));
        if (name == NULL)
            return -1;
        if (strstr(name, "dir_fd") != NULL && call->args[call->nargs + i] != Py_None) {
            vmh_deny("paths relative to a descriptor cannot be granted; pass an absolute path", "%s(%s=...)",
                     call->gate->name, name);
            return -1;
        }
    }
    return 0;
}

static int path_argument(vmh_gated *call, PyObject **argument, int access)
{
    PyObject *path = NULL, *value = *argument;
    if ((access & OR_FD) && PyIndex_Check(value)) {
        if (PyBool_Check(value) && PyErr_WarnEx(PyExc_RuntimeWarning, "bool is used as a file descriptor", 1) < 0)
            return -1;
        if (vmh_gated_replace(call, argument, PyNumber_Index(value)) < 0)
            return -1;
        return vmh_gated_fd(call, argument) < 0 ? -1 : 0;
    }
    if (vmh_grant_path(value, access & (VMH_READ | VMH_WRITE), access & KEEP_LAST, call->gate->name, &path) < 0)
        return -1;
    if (PyBytes_Check(value))
        return vmh_gated_replace(call, argument, path);
    PyObject *text = PyUnicode_DecodeFSDefaultAndSize(PyBytes_AS_STRING(path), PyBytes_GET_SIZE(path));
    Py_DECREF(path);
    return vmh_gated_replace(call, argument, text);
}

/* Paths of the bundle's files and folders: 1, answered; 0, not of the bundle, or granted; -1, error set. */
static int bundle_answer(vmh_gated *call, PyObject *value, int access)
{
    PyObject *path = PyOS_FSPath(value), *bytes = NULL, *granted = NULL;
    PyObject **mode = vmh_gated_argument(call, 1, "mode");
    vmh_bundle_entry entry = { 0 };
    int rc = -1;
    if (path == NULL || !PyUnicode_FSConverter(path, &bytes) || vmh_bundle_find(PyBytes_AS_STRING(bytes), &entry) < 0)
        goto done;
    bool absolute = PyBytes_AS_STRING(bytes)[0] == '/';
    rc = 0;
    if (entry.kind == 0) {
        if (!absolute) {
            errno = ENOENT;
            PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path);
            rc = -1;
        }
        goto done;
    }
    if (absolute) {
        if (vmh_grant_path(path, access & VMH_READ, access & KEEP_LAST, call->gate->name, &granted) == 0)
            goto done;
        if (!PyErr_ExceptionMatches(PyExc_PermissionError)) {
            rc = -1;
            goto done;
        }
        PyErr_Clear();
    }
    call->result = vmh_bundle_answer(&entry, call->gate->name, path, mode == NULL ? Py_None : *mode);
    rc = call->result == NULL ? -1 : 1;
done:
    vmh_bundle_entry_clear(&entry);
    Py_XDECREF(path);
    Py_XDECREF(bytes);
    Py_XDECREF(granted);
    return rc;
}

static int check_path(vmh_gated *call)
{
    PyObject **argument = vmh_gated_argument(call, 0, call->gate->keyword);
    int access = call->gate->access;
    if (no_folder_fd(call) < 0)
        return -1;
    bool lists = strcmp(call->gate->name, "listdir") == 0 || strcmp(call->gate->name, "scandir") == 0;
    if (lists && (argument == NULL || *argument == Py_None)) {
        PyObject *here = PyUnicode_FromString(".");
        int rc = here == NULL ? -1 : bundle_answer(call, here, access);
        Py_XDECREF(here);
        return rc;
    }
    if (argument == NULL)
        return 0;       /* CPython raises its own TypeError */
    /* lstat through stat(follow_symlinks=False) and its like */
    for (Py_ssize_t i = 0; call->kwnames != NULL && i < PyTuple_GET_SIZE(call->kwnames); i++)
        if (PyUnicode_EqualToUTF8(PyTuple_GET_ITEM(call->kwnames, i), "follow_symlinks")) {
            int follow = PyObject_IsTrue(call->args[call->nargs + i]);
            if (follow < 0)
                return -1;
            if (!follow)
                access |= KEEP_LAST;
            call->args[call->nargs + i] = follow ? Py_True : Py_False;
        }
    if ((access & OF_BUNDLE) && !((access & OR_FD) && PyIndex_Check(*argument))) {
        int rc = bundle_answer(call, *argument, access);
        if (rc != 0)
            return rc;
    }
    call->pass = VMH_PASS_GATE;
    return path_argument(call, argument, access);
}

/* os.access answers whether, and raises for nothing: what is not granted is not accessible. */
static int check_access(vmh_gated *call)
{
    int rc = check_path(call);
    if (rc >= 0 || !PyErr_ExceptionMatches(PyExc_OSError))
        return rc;
    PyErr_Clear();
    call->result = Py_NewRef(Py_False);
    return 1;
}

static int check_two_paths(vmh_gated *call)
{
    PyObject **from = vmh_gated_argument(call, 0, "src"), **to = vmh_gated_argument(call, 1, "dst");
    call->pass = VMH_PASS_GATE;
    if (no_folder_fd(call) < 0)
        return -1;
    if (from == NULL || to == NULL)
        return 0;       /* CPython raises its own TypeError */
    return path_argument(call, from, VMH_WRITE | KEEP_LAST) < 0 || path_argument(call, to, VMH_WRITE | KEEP_LAST) < 0
               ? -1
               : 0;
}

/* The new descriptor that the original returns becomes the guest's. */
static int finish_new_fd(vmh_gated *call)
{
    call->result = vmh_gated_original(call);
    if (call->result == NULL)
        return -1;
    if (vmh_fd_own(PyLong_AsInt(call->result)) < 0) {
        Py_CLEAR(call->result);
        return -1;
    }
    return 1;
}

static int check_open(vmh_gated *call)
{
    PyObject **path = vmh_gated_argument(call, 0, "path"), **flags = vmh_gated_argument(call, 1, "flags");
    if (no_folder_fd(call) < 0)
        return -1;
    if (path == NULL || flags == NULL)
        return 0;
    PyObject *number = PyNumber_Index(*flags);
    if (vmh_gated_replace(call, flags, number) < 0)
        return -1;
    long bits = PyLong_AsLong(number);
    if (bits == -1 && PyErr_Occurred())
        return -1;
    int mode = (int)bits & O_ACCMODE;
    int access = mode == O_RDONLY ? VMH_READ : mode == O_WRONLY ? VMH_WRITE : VMH_READ | VMH_WRITE;
    if (bits & (O_CREAT | O_TRUNC | O_APPEND | (O_TMPFILE & ~O_DIRECTORY)))
        access |= VMH_WRITE;
    if (path_argument(call, path, access) < 0)
        return -1;
    call->pass = VMH_PASS_GATE;
    return finish_new_fd(call);
}

static int check_fd(vmh_gated *call)
{
    PyObject **argument = vmh_gated_argument(call, 0, call->gate->keyword);
    if (argument == NULL)
        return 0;
    call->pass = VMH_PASS_GATE;
    return vmh_gated_fd(call, argument) < 0 ? -1 : 0;
}

static int check_two_fds(vmh_gated *call)
{
    PyObject **first = vmh_gated_argument(call, 0, call->gate->keyword);
    PyObject **second = vmh_gated_argument(call, 1, strcmp(call->gate->name, "sendfile") == 0 ? "in_fd" : "dst");
    if (first == NULL || second == NULL)
        return 0;
    call->pass = VMH_PASS_GATE;
    return vmh_gated_fd(call, first) < 0 || vmh_gated_fd(call, second) < 0 ? -1 : 0;
}

/* Reading and writing can block: a stop must end it. gate->access is the poll event. */
static int check_fd_wait(vmh_gated *call)
{
    PyObject **argument = vmh_gated_argument(call, 0, call->gate->keyword);
    int rc = check_fd(call);
    if (rc != 0 || argument == NULL)
        return rc;
    int fd = PyLong_AsInt(*argument), flags = fcntl(fd, F_GETFL);
    if (flags < 0 || (flags & O_NONBLOCK))
        return 0;
    struct pollfd fds[2] = {{ .fd = fd, .events = (short)call->gate->access }};
    return vmh_wait_fds(fds, 1, INT64_MAX) < 0 ? -1 : 0;
}

/* Descriptors 1 and 2 are the task's log, as print is. */
static int check_write(vmh_gated *call)
{
    PyObject **argument = vmh_gated_argument(call, 0, call->gate->keyword),
             **data = vmh_gated_argument(call, 1, "data");
    if (argument != NULL && data != NULL && PyLong_CheckExact(*argument)) {
        long fd = PyLong_AsLong(*argument);
        PyObject *stream = fd != 1 && fd != 2 ? NULL : Py_XNewRef(PySys_GetObject(fd == 1 ? "stdout" : "stderr"));
        if (stream != NULL && stream != Py_None && !vmh_fd_owned((int)fd)) {
            PyObject *bytes = PyBytes_FromObject(*data), *text = NULL, *count = NULL;
            if (bytes != NULL)
                text = PyUnicode_DecodeUTF8(PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes), "backslashreplace");
            if (text != NULL)
                count = PyObject_CallMethod(stream, "write", "O", text);
            if (count != NULL)
                call->result = PyLong_FromSsize_t(PyBytes_GET_SIZE(bytes));
            Py_XDECREF(bytes);
            Py_XDECREF(text);
            Py_XDECREF(count);
            Py_DECREF(stream);
            return call->result == NULL ? -1 : 1;
        }
        Py_XDECREF(stream);
        PyErr_Clear();
    }
    return check_fd_wait(call);
}

static int check_close(vmh_gated *call)
{
    PyObject **argument = vmh_gated_argument(call, 0, "fd");
    if (argument == NULL || call->nargs > 1)
        return 0;       /* its own TypeError */
    int fd = vmh_fd_of(*argument);
    if (PyErr_Occurred() || vmh_fd_check(fd, "close") < 0)
        return -1;
    int error = vmh_fd_close(fd);
    if (error != 0) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    call->result = Py_NewRef(Py_None);
    return 1;
}

static int check_dup(vmh_gated *call)
{
    return check_fd(call) < 0 ? -1 : finish_new_fd(call);
}

static int check_isatty(vmh_gated *call)
{
    PyObject **argument = vmh_gated_argument(call, 0, "fd");
    if (argument == NULL)
        return 0;
    int fd = PyObject_AsFileDescriptor(*argument);
    if (fd < 0)
        return -1;
    call->result = Py_NewRef(Py_False);     /* a guest has no terminal */
    return 1;
}

static int check_pipe(vmh_gated *call)
{
    call->pass = VMH_PASS_GATE;
    call->result = vmh_gated_original(call);
    if (call->result == NULL)
        return -1;
    int ends[2] = { PyLong_AsInt(PyTuple_GET_ITEM(call->result, 0)), PyLong_AsInt(PyTuple_GET_ITEM(call->result, 1)) };
    if (vmh_fd_own(ends[0]) == 0) {
        if (vmh_fd_own(ends[1]) == 0)
            return 1;
        vmh_fd_close(ends[0]);
    } else
        close(ends[1]);
    Py_CLEAR(call->result);
    return -1;
}

/* putenv: os.environ is the VM's own dict, the process's stays as it is. register_at_fork: nothing forks. */
static int check_nothing(vmh_gated *call)
{
    call->result = Py_NewRef(Py_None);
    return 1;
}

static int check_getcwd(vmh_gated *call)
{
    call->result = PyUnicode_FromString("/");
    return call->result == NULL ? -1 : 1;
}

static int check_getcwdb(vmh_gated *call)
{
    call->result = PyBytes_FromString("/");
    return call->result == NULL ? -1 : 1;
}

static int check_terminal_size(vmh_gated *call)
{
    vmh_deny("a task has no terminal", "%s", call->gate->name);
    return -1;
}

static int check_device_encoding(vmh_gated *call)
{
    call->result = Py_NewRef(Py_None);
    return 1;
}

#define GATES(G)                                                        \
    G(posix, , stat, check_path, VMH_READ | OR_FD | OF_BUNDLE, "path")  \
    G(posix, , lstat, check_path, VMH_READ | KEEP_LAST | OF_BUNDLE, "path") \
    G(posix, , access, check_access, VMH_READ | OF_BUNDLE, "path")      \
    G(posix, , listdir, check_path, VMH_READ | OR_FD | OF_BUNDLE, "path") \
    G(posix, , scandir, check_path, VMH_READ | OF_BUNDLE, "path")       \
    G(posix, , readlink, check_path, VMH_READ | KEEP_LAST | OF_BUNDLE, "path") \
    G(posix, , statvfs, check_path, VMH_READ | OR_FD, "path")           \
    G(posix, , chmod, check_path, VMH_WRITE | OR_FD, "path")            \
    G(posix, , mkdir, check_path, VMH_WRITE | KEEP_LAST, "path")        \
    G(posix, , rmdir, check_path, VMH_WRITE | KEEP_LAST, "path")        \
    G(posix, , unlink, check_path, VMH_WRITE | KEEP_LAST, "path")       \
    G(posix, , remove, check_path, VMH_WRITE | KEEP_LAST, "path")       \
    G(posix, , utime, check_path, VMH_WRITE | OR_FD, "path")            \
    G(posix, , truncate, check_path, VMH_WRITE | OR_FD, "path")         \
    G(posix, , rename, check_two_paths, 0, "src")                       \
    G(posix, , replace, check_two_paths, 0, "src")                      \
    G(posix, , open, check_open, 0, "path")                             \
    G(posix, , close, check_close, 0, "fd")                             \
    G(posix, , read, check_fd_wait, POLLIN, "fd")                       \
    G(posix, , readinto, check_fd_wait, POLLIN, "fd")                   \
    G(posix, , readv, check_fd_wait, POLLIN, "fd")                      \
    G(posix, , write, check_write, POLLOUT, "fd")                       \
    G(posix, , writev, check_fd_wait, POLLOUT, "fd")                    \
    G(posix, , pread, check_fd, 0, "fd")                                \
    G(posix, , preadv, check_fd, 0, "fd")                               \
    G(posix, , pwrite, check_fd, 0, "fd")                               \
    G(posix, , pwritev, check_fd, 0, "fd")                              \
    G(posix, , lseek, check_fd, 0, "fd")                                \
    G(posix, , fstat, check_fd, 0, "fd")                                \
    G(posix, , fstatvfs, check_fd, 0, "fd")                             \
    G(posix, , ftruncate, check_fd, 0, "fd")                            \
    G(posix, , fsync, check_fd, 0, "fd")                                \
    G(posix, , fdatasync, check_fd, 0, "fd")                            \
    G(posix, , posix_fallocate, check_fd, 0, "fd")                      \
    G(posix, , get_inheritable, check_fd, 0, "fd")                      \
    G(posix, , set_inheritable, check_fd, 0, "fd")                      \
    G(posix, , get_blocking, check_fd, 0, "fd")                         \
    G(posix, , set_blocking, check_fd, 0, "fd")                         \
    G(posix, , sendfile, check_two_fds, 0, "out_fd")                    \
    G(posix, , copy_file_range, check_two_fds, 0, "src")                \
    G(posix, , dup, check_dup, 0, "fd")                                 \
    G(posix, , isatty, check_isatty, 0, "fd")                           \
    G(posix, , pipe, check_pipe, 0, NULL)                               \
    G(posix, , pipe2, check_pipe, 0, NULL)                              \
    G(posix, , putenv, check_nothing, 0, NULL)                          \
    G(posix, , unsetenv, check_nothing, 0, NULL)                        \
    G(posix, , register_at_fork, check_nothing, 0, NULL)                \
    G(posix, , getcwd, check_getcwd, 0, NULL)                           \
    G(posix, , getcwdb, check_getcwdb, 0, NULL)                         \
    G(posix, , device_encoding, check_device_encoding, 0, NULL)         \
    G(posix, , get_terminal_size, check_terminal_size, 0, NULL)

GATES(VMH_GATE_DEFINE)
vmh_gate *const vmh_gates_posix[] = { GATES(VMH_GATE_ADDRESS) NULL };

/* --- the environment */

extern char **environ;

/* Adds what is granted; what the task set itself stays. */
static int environ_add(PyObject *dict)
{
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        const char *equals = strchr(*entry, '=');
        char name[256];
        if (equals == NULL || (size_t)(equals - *entry) >= sizeof name)
            continue;
        memcpy(name, *entry, (size_t)(equals - *entry));
        name[equals - *entry] = 0;
        if (!vmh_grant_environ(name))
            continue;
        PyObject *key = PyBytes_FromString(name), *value = PyBytes_FromString(equals + 1);
        int rc = key == NULL || value == NULL ? -1 : PyDict_SetItem(dict, key, value);
        Py_XDECREF(key);
        Py_XDECREF(value);
        if (rc < 0)
            return -1;
    }
    return 0;
}

/* Which functions take dir_fd: none here. The standard library looks at this list and goes by paths instead. */
static int drop_folder_functions(PyObject *dict)
{
    PyObject *names = vmh_dict_get(dict, "_have_functions");
    if (names == NULL || !PyList_Check(names))
        return PyErr_Occurred() ? -1 : 0;
    for (Py_ssize_t i = PyList_GET_SIZE(names) - 1; i >= 0; i--) {
        const char *name = PyUnicode_AsUTF8(PyList_GET_ITEM(names, i));
        size_t size = name == NULL ? 0 : strlen(name);
        if (name == NULL)
            return -1;
        if (size > 2 && strcmp(name + size - 2, "AT") == 0 && strcmp(name, "HAVE_LSTAT") != 0
            && PyList_SetSlice(names, i, i + 1, NULL) < 0)
            return -1;
    }
    return 0;
}

int vmh_posix_finish(PyObject *dict)
{
    if (drop_folder_functions(dict) < 0)
        return -1;
    PyObject *held = vmh_dict_get(dict, "environ");
    if (held == NULL || !PyDict_Check(held))
        return PyErr_Occurred() ? -1 : 0;
    PyDict_Clear(held);
    return environ_add(held);
}

/* When the permissions come, `posix` is there already or not, in which case vmh_posix_finish does this, and `os` may have made its own
 * mapping from posix.environ. */
int vmh_environ_fill(vmh_seal *seal)
{
    PyObject *modules = PyImport_GetModuleDict(), *os = NULL, *mapping = NULL;
    if (seal->env.count == 0 || modules == NULL || !PyDict_Check(modules))
        return 0;
    PyObject *posix = vmh_dict_get(modules, "posix");
    if (posix == NULL || !PyModule_Check(posix))
        return PyErr_Occurred() ? -1 : 0;
    PyObject *dict = vmh_dict_get(PyModule_GetDict(posix), "environ");
    int rc = dict == NULL || !PyDict_Check(dict) ? -1 : environ_add(dict);
    if (rc == 0 && (os = vmh_dict_get(modules, "os")) != NULL
            && (mapping = PyObject_GetAttrString(os, "environ")) != NULL) {
        PyObject *data = PyObject_GetAttrString(mapping, "_data");
        rc = data == NULL || !PyDict_Check(data) ? -1 : environ_add(data);
        Py_XDECREF(data);
    }
    if (PyErr_Occurred())
        rc = -1;
    Py_XDECREF(mapping);
    if (rc < 0 && !PyErr_Occurred())
        PyErr_SetString(PyExc_SystemError, "os.environ is not as CPython makes it");
    return rc;
}
