/* Gates of `_io`: FileIO is the only type that opens files; io and builtins.open use it. */
#include "seal/gates.h"

#include "seal/paths.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

/* The originals; the same in every VM. */
static _Atomic(initproc) file_init;
static _Atomic(destructor) file_dealloc;
static _Atomic(PyMethodDef *) base_close, file_dealloc_warn;
static _Atomic(PyGetSetDef *) file_closefd;
static _Atomic(PyMemberDef *) file_finalizing;

static bool closes_fd(PyObject *file)
{
    PyGetSetDef *def = atomic_load(&file_closefd);
    PyObject *value = def->get(file, def->closure);
    bool closes = value == NULL || PyObject_IsTrue(value) != 0;
    Py_XDECREF(value);
    PyErr_Clear();
    return closes;
}

/* Closes the object's descriptor, if it has one, ourselves instead of by the original. -1: error set. */
static int let_go_of(PyObject *file)
{
    while (*vmh_compat_fd(file) >= 0) { /* other threads run during the close, and may set another */
        int error = vmh_fd_release(file, closes_fd(file));
        if (error != 0) {
            errno = error;
            PyErr_SetFromErrno(PyExc_OSError);
            return -1;
        }
    }
    return 0;
}

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

/* The flags that FileIO passes to open(2); -1 with FileIO's errors set. */
static int flags_of(const char *mode)
{
    int kinds = 0, pluses = 0, flags = 0, access = access_of(mode);
    for (const char *letter = mode; *letter != 0; letter++) {
        if (strchr("rwxab+", *letter) == NULL) {
            PyErr_Format(PyExc_ValueError, "invalid mode: %.200s", mode);
            return -1;
        }
        kinds += strchr("rwxa", *letter) != NULL;
        pluses += *letter == '+';
        flags |= *letter == 'x'   ? O_EXCL | O_CREAT
                 : *letter == 'w' ? O_CREAT | O_TRUNC
                 : *letter == 'a' ? O_APPEND | O_CREAT
                                  : 0;
    }
    if (kinds != 1 || pluses > 1) {
        PyErr_SetString(PyExc_ValueError,
                        "Must have exactly one of create/read/write/append mode and at most one plus");
        return -1;
    }
    return flags | O_CLOEXEC | (access == (VMH_READ | VMH_WRITE) ? O_RDWR : access == VMH_READ ? O_RDONLY : O_WRONLY);
}

/* Opens a path, which errors call `name`; the descriptor becomes the guest's. -1: error set. */
static int open_path(PyObject *name, const char *mode, int flags)
{
    PyObject *given, *text;
    if (vmh_path_convert(name, &given, &text) < 0)
        return -1;
    int fd = vmh_path_open(name, text, mode, flags, 0666, access_of(mode), "open");
    Py_DECREF(given);
    Py_DECREF(text);
    return fd < 0 || vmh_fd_own(fd) < 0 ? -1 : fd;
}

/* Calls a guest's opener, whose descriptor must be the guest's own. -1: error set. */
static int open_with(PyObject *opener, PyObject *name, int flags)
{
    PyObject *bytes = NULL;
    if (!PyUnicode_FSConverter(name, &bytes))
        return -1;
    Py_DECREF(bytes);
    const char *before = vmh_pass_event(NULL); /* the task's own code runs */
    PyObject *number = PyObject_CallFunction(opener, "Oi", name, flags);
    vmh_pass_event(before);
    if (number != NULL && !PyLong_Check(number))
        PyErr_SetString(PyExc_TypeError, "expected integer from opener");
    int fd = number == NULL || PyErr_Occurred() ? -1 : PyLong_AsInt(number);
    if (fd < 0 && !PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "opener returned %d", fd);
    Py_XDECREF(number);
    if (fd < 0 || vmh_fd_check(fd, "opener") < 0)
        return -1;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
}

/* The guest's descriptor for FileIO. *opened: the file closes it even with closefd=False. -1: error set. */
static int descriptor_of(PyObject *name, const char *mode, bool close_fd, PyObject *opener, bool *opened)
{
    int flags = flags_of(mode), fd = -1;
    *opened = false;
    if (flags < 0)
        return -1;
    if (PyIndex_Check(name)) {
        PyObject *number = PyNumber_Index(name);
        if (number != NULL && PyBool_Check(name)
            && PyErr_WarnEx(PyExc_RuntimeWarning, "bool is used as a file descriptor", 1) < 0)
            Py_CLEAR(number);
        fd = number == NULL ? -1 : PyLong_AsInt(number);
        Py_XDECREF(number);
        if (fd < 0 && !PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "negative file descriptor");
        return fd < 0 || vmh_fd_check(fd, "open") < 0 ? -1 : fd;
    }
    if (!close_fd) {
        PyErr_SetString(PyExc_ValueError, "Cannot use closefd=False with file name");
        return -1;
    }
    fd = opener == Py_None ? open_path(name, mode, flags) : open_with(opener, name, flags);
    const vmh_owned_fd *entry = fd < 0 ? NULL : vmh_fd_entry(fd);
    if (entry != NULL && entry->folder) {
        vmh_fd_close(fd);
        errno = EISDIR;
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, name);
        return -1;
    }
    *opened = fd >= 0;
    return fd;
}

/* The original always gets a descriptor: one that it opened itself, it would close itself on failure. */
static int file_init_gate(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"file", "mode", "closefd", "opener", NULL};
    PyObject *name, *opener = Py_None;
    const char *mode = "r";
    int close_fd = 1;
    bool opened;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|spO:FileIO", names, &name, &mode, &close_fd, &opener))
        return -1;
    vmh_seal *seal = vmh_seal_here();
    if (seal == NULL) {
        vmh_deny("this thread is not one of the task's", "FileIO");
        return -1;
    }
    if (let_go_of(self) < 0) /* an object that is initialised again: close first, as CPython does */
        return -1;
    int fd = descriptor_of(name, mode, close_fd, opener, &opened);
    if (fd < 0 || vmh_fd_hold(fd, "open") < 0)
        return -1;
    vmh_fd_hold(fd, "open"); /* one use for the object, one for this call */
    PyObject *checked = Py_BuildValue("(isOO)", fd, mode, close_fd ? Py_True : Py_False, Py_None);
    vmh_fd_init init;
    int rc = -1;
    /* Once more: guest code ran for the arguments, and may have initialised the object meanwhile. */
    if (checked != NULL && let_go_of(self) == 0) {
        vmh_fd_init_begin(seal, &init, self);
        const char *before = vmh_pass_event("open");
        rc = atomic_load(&file_init)(self, checked, NULL);
        vmh_pass_event(before);
        vmh_fd_init_end(seal, &init);
    } else
        init.released = false;
    Py_XDECREF(checked);
    PyObject *raised = rc < 0 ? PyErr_GetRaisedException() : NULL;
    if (rc < 0 && !init.released) { /* else the original has released it */
        vmh_fd_drop(fd);
        if (opened)
            vmh_fd_close(fd);
    }
    if (rc == 0 && opened && PyObject_SetAttrString(self, "name", name) < 0) {
        rc = -1;
        raised = PyErr_GetRaisedException();
        vmh_fd_release(self, true);
    }
    vmh_fd_drop(fd);
    if (raised != NULL)
        PyErr_SetRaisedException(raised);
    return rc;
}

/* --- methods: the descriptor is in use until they return */

static int check_file(vmh_gated *call) { return vmh_gated_self_fd(call) == -2 ? -1 : 0; }

/* Queries such as seekable(): false if the descriptor is closed. */
static int check_file_ability(vmh_gated *call)
{
    if (vmh_gated_self_fd(call) != -2)
        return 0;
    if (!PyErr_ExceptionMatches(PyExc_OSError))
        return -1;
    PyErr_Clear();
    call->result = Py_NewRef(Py_False);
    return 1;
}

/* A pipe or the like may block the thread, and a stop must end the wait. gate->access is the poll event. */
static int check_file_wait(vmh_gated *call)
{
    int fd = vmh_gated_self_fd(call);
    const vmh_owned_fd *entry = fd < 0 ? NULL : vmh_fd_entry(fd);
    int flags = entry == NULL || !entry->blocks ? -1 : fcntl(fd, F_GETFL);
    if (flags < 0 || (flags & (O_NONBLOCK | O_PATH)))
        return fd == -2 ? -1 : 0;
    int access = flags & O_ACCMODE;
    if (access == (call->gate->access == POLLIN ? O_WRONLY : O_RDONLY))
        return 0; /* the original fails at once */
    struct pollfd fds[2] = {{.fd = fd, .events = (short)call->gate->access}};
    return vmh_wait_fds(fds, 1, INT64_MAX) < 0 ? -1 : 0;
}

/* Does what the original does, except that it closes the descriptor itself: flushing and warning run guest code, which
 * may close and open files. */
static int check_close(vmh_gated *call)
{
    PyObject *self = call->self;
    if (call->nargs != 0 || call->kwnames != NULL)
        return 0; /* its own TypeError */
    call->result = vmh_def_call(atomic_load(&base_close), self, NULL, NULL, 0, NULL);
    PyObject *raised = PyErr_GetRaisedException();
    bool closes = closes_fd(self);
    PyObject *finalizing = PyMember_GetOne((const char *)self, atomic_load(&file_finalizing));
    if (closes && finalizing == Py_True) {
        PyObject *warned = vmh_def_call(atomic_load(&file_dealloc_warn), self, NULL, &self, 1, NULL);
        Py_XDECREF(warned);
    }
    Py_XDECREF(finalizing);
    PyErr_Clear();
    int error = vmh_fd_release(self, closes);
    if (error != 0 && closes) {
        Py_CLEAR(call->result);
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        PyObject *closing = PyErr_GetRaisedException();
        if (raised != NULL)
            PyException_SetContext(closing, raised);
        raised = closing;
    }
    if (raised != NULL)
        PyErr_SetRaisedException(raised);
    return call->result == NULL ? -1 : 1;
}

static void file_dealloc_gate(PyObject *self) { vmh_fd_dealloc(self, atomic_load(&file_dealloc), false); }

/* importlib and others open code files with it. It calls io.open, which is gated; it accepts no relative paths. */
static int check_open_code(vmh_gated *call)
{
    PyObject **argument = vmh_gated_argument(call, 0, "path"), *given, *text;
    if (argument == NULL)
        return 0;
    if (vmh_path_convert(*argument, &given, &text) < 0 || vmh_gated_replace(call, argument, given) < 0)
        return -1;
    int rc = vmh_path_absolute(text, "open_code");
    Py_DECREF(text);
    return rc;
}

/* Whether `path`, which is absolute, names a file of the bundle, opened to read, that is not granted. -1: error set. */
static int names_bundled(vmh_gated *call, PyObject *path)
{
    PyObject **mode = vmh_gated_argument(call, 1, "mode"), *bytes = NULL;
    const char *text = mode == NULL || !PyUnicode_Check(*mode) ? "r" : PyUnicode_AsUTF8(*mode);
    vmh_bundle_entry entry = {0};
    if (text == NULL)
        return -1;
    if (access_of(text) != VMH_READ)
        return 0;
    int rc = PyUnicode_FSConverter(path, &bytes) ? vmh_bundle_find(PyBytes_AS_STRING(bytes), &entry) : -1;
    if (rc == 0 && entry.kind != 0) {
        vmh_path_handle handle;
        bool granted = vmh_path_handle_find(&handle, PyBytes_AS_STRING(bytes), VMH_PATH_OBJECT, VMH_READ);
        rc = !granted && handle.denied != 0;
        vmh_path_handle_close(&handle);
    }
    vmh_bundle_entry_clear(&entry);
    Py_XDECREF(bytes);
    return rc;
}

/* A relative path names a file of the bundle: vmhost.guest.files answers. FileIO handles everything else. */
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

#define GATES(G) \
    G(_io, , open, check_open, 0, "file") \
    G(_io, , open_code, check_open_code, 0, "path") \
    G(_io, FileIO, close, check_close, 0, NULL) \
    G(_io, FileIO, read, check_file_wait, POLLIN, NULL) \
    G(_io, FileIO, readall, check_file_wait, POLLIN, NULL) \
    G(_io, FileIO, readinto, check_file_wait, POLLIN, NULL) \
    G(_io, FileIO, write, check_file_wait, POLLOUT, NULL) \
    G(_io, FileIO, seek, check_file, 0, NULL) \
    G(_io, FileIO, seekable, check_file_ability, 0, NULL) \
    G(_io, FileIO, tell, check_file, 0, NULL) \
    G(_io, FileIO, truncate, check_file, 0, NULL) \
    G(_io, FileIO, isatty, check_file_ability, 0, NULL) \
    G(_io, FileIO, _isatty_open_only, check_file_ability, 0, NULL)

GATES(VMH_GATE_DEFINE)
vmh_gate *const vmh_gates_io[] = {GATES(VMH_GATE_ADDRESS) NULL};

int vmh_io_finish(PyObject *dict, PyObject *Py_UNUSED(module))
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
    PyTypeObject *base = type->tp_base == NULL ? NULL : type->tp_base->tp_base;
    PyMethodDef *fileno_def = vmh_method_def(type, "fileno"), *warn_def = vmh_method_def(type, "_dealloc_warn");
    PyMethodDef *close_def = base == NULL ? NULL : vmh_method_def(base, "close");
    PyObject *closefd = vmh_dict_get(type->tp_dict, "closefd"),
             *finalizing = vmh_dict_get(type->tp_dict, "_finalizing"), *probe = NULL;
    if (fileno_def == NULL || warn_def == NULL || close_def == NULL)
        return -1;
    if (closefd == NULL || !Py_IS_TYPE(closefd, &PyGetSetDescr_Type) || finalizing == NULL
        || !Py_IS_TYPE(finalizing, &PyMemberDescr_Type)) {
        PyErr_SetString(PyExc_SystemError, "_io.FileIO cannot be gated in this Python");
        return -1;
    }
    atomic_store(&base_close, close_def);
    atomic_store(&file_dealloc_warn, warn_def);
    atomic_store(&file_closefd, ((PyGetSetDescrObject *)closefd)->d_getset);
    atomic_store(&file_finalizing, ((PyMemberDescrObject *)finalizing)->d_member);
    atomic_store(&file_init, type->tp_init);
    atomic_store(&file_dealloc, type->tp_dealloc);
    type->tp_dealloc = file_dealloc_gate;
    PyObject *none = PyTuple_New(0);
    probe = none == NULL ? NULL : type->tp_new(type, none, NULL);
    int rc = probe == NULL ? -1 : vmh_fd_field_check(probe, fileno_def);
    Py_XDECREF(probe);
    Py_XDECREF(none);
    if (rc < 0)
        return -1;
    return vmh_slot_replace(type, "__init__", (void **)&type->tp_init, (void *)file_init_gate);
}
