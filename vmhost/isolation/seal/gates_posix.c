/* Gates of `posix`: paths need the task's permissions, descriptors must be the guest's own, and other state that a
 * process shares is refused or virtual. */
#include "seal/gates.h"

#include "seal/paths.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Flags of a path gate, besides VMH_READ and VMH_WRITE. NAME, LOOK: see enum vmh_path_meaning; without them: the
 * object. BY_FD: the original also accepts O_PATH descriptors. LISTS: the path is optional. ENTRIES: yields DirEntry
 * objects. LEADS: answers for folders of vmh_path_leads. */
enum { OR_FD = 16, OF_BUNDLE = 32, NAME = 64, LOOK = 128, BY_FD = 256, LISTS = 512, ENTRIES = 1024, LEADS = 2048 };

/* A keyword argument such as dir_fd or src_dir_fd must be None. */
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

/* 1: `value` is a path. 0: it is not, and CPython's TypeError is set. -1: another error is set. */
static int is_path(vmh_gated *call, PyObject *value, const char *name)
{
    if (PyUnicode_Check(value) || PyBytes_Check(value))
        return 1;
    PyObject *method;
    if (PyObject_GetOptionalAttrString((PyObject *)Py_TYPE(value), "__fspath__", &method) < 0)
        return -1;
    bool stands = method != NULL && method != Py_None;
    Py_XDECREF(method);
    if (stands)
        return 1;
    int access = call->gate->access;
    PyObject *type = PyType_GetName(Py_TYPE(value));
    if (type == NULL)
        return -1;
    PyErr_Format(PyExc_TypeError, "%s: %s should be string, bytes%s, not %.200U", call->gate->name, name,
                 access & LISTS   ? ", os.PathLike, integer or None"
                 : access & OR_FD ? ", os.PathLike or integer"
                                  : " or os.PathLike",
                 type);
    Py_DECREF(type);
    return 0;
}

/* Converts the argument called `name` to a path once, and replaces it by the result. *given is borrowed from the call.
 */
static int convert_argument(vmh_gated *call, PyObject **argument, const char *name, PyObject **given, PyObject **text)
{
    if (is_path(call, *argument, name) <= 0)
        return -1;
    if (vmh_path_convert(*argument, given, text) < 0)
        return -1;
    int rc = vmh_gated_replace(call, argument, *given);
    if (rc < 0)
        Py_CLEAR(*text);
    return rc;
}

/* Calls the original; its errors name `first` and `second`, as the guest passed them. */
static int call_original(vmh_gated *call, PyObject *first, PyObject *second)
{
    call->passes = true;
    call->result = vmh_gated_original(call);
    if (call->result != NULL)
        return 1;
    vmh_path_restore(first, second);
    return -1;
}

/* Answers for a file or folder of the bundle: 1, answered; 0, not in the bundle; -1, error set. An absolute path counts
 * only if it is not granted. */
static int bundle_answer(vmh_gated *call, PyObject *given, const vmh_bundle_entry *entry)
{
    PyObject **mode = vmh_gated_argument(call, 1, "mode");
    if (entry->kind == 0)
        return 0;
    call->result = vmh_bundle_answer(entry, call->gate->name, given, mode == NULL ? Py_None : *mode);
    return call->result == NULL ? -1 : 1;
}

/* Answers for a folder of vmh_path_leads that is not granted: it exists, and is a folder. -1: error set. */
static int folder_answer(vmh_gated *call, PyObject *given)
{
    if (call->gate->access & NAME) { /* mkdir */
        errno = EEXIST;
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, given);
        return -1;
    }
    PyObject *type = PyObject_GetAttrString(call->self, "stat_result");
    if (type != NULL)
        call->result =
            PyObject_CallFunction(type, "(iiiiiiiiii){sdsdsdsisisisisisi}", S_IFDIR, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                  "st_atime", 0.0, "st_mtime", 0.0, "st_ctime", 0.0, "st_atime_ns", 0, "st_mtime_ns", 0,
                                  "st_ctime_ns", 0, "st_blksize", 0, "st_blocks", 0, "st_rdev", 0);
    Py_XDECREF(type);
    return call->result == NULL ? -1 : 1;
}

/* Finds the path argument of listdir, scandir, stat and the like. 1: *handle is held for the original; 2: the bundle
 * has answered; -1: error set. */
static int find_argument(vmh_gated *call, vmh_path_handle *handle, PyObject *given, PyObject *text, unsigned of,
                         int access)
{
    const char *path = PyBytes_AS_STRING(text);
    vmh_bundle_entry entry = {0};
    int rc = -1;
    *handle = (vmh_path_handle){.fd = -1};
    if ((access & OF_BUNDLE) && vmh_bundle_find(path, &entry) < 0)
        return -1;
    if (path[0] != '/' && !(access & OF_BUNDLE))
        vmh_path_absolute(text, call->gate->name);
    else if (path[0] != '/') {
        if ((rc = bundle_answer(call, given, &entry)) == 0) {
            errno = ENOENT;
            PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, given);
            rc = -1;
        }
    } else if (vmh_path_handle_find(handle, path, of, access & (VMH_READ | VMH_WRITE)))
        rc = 0;
    else if (handle->denied != 0 && entry.kind == 0 && (access & LEADS) && vmh_path_leads(path))
        rc = folder_answer(call, given);
    else if (handle->denied == 0 || entry.kind == 0)
        vmh_path_handle_raise(handle, given, text, call->gate->name);
    else
        rc = bundle_answer(call, given, &entry);
    vmh_bundle_entry_clear(&entry);
    return rc < 0 ? -1 : rc == 0 ? 1 : 2;
}

/* The call's follow_symlinks: 1 or 0; -1 with an error set. */
static int follows_links(vmh_gated *call)
{
    for (Py_ssize_t i = 0; call->kwnames != NULL && i < PyTuple_GET_SIZE(call->kwnames); i++)
        if (PyUnicode_EqualToUTF8(PyTuple_GET_ITEM(call->kwnames, i), "follow_symlinks")) {
            int follow = PyObject_IsTrue(call->args[call->nargs + i]);
            /* The original of stat gets a held descriptor, which already is the intended object. */
            call->args[call->nargs + i] = follow || (call->gate->access & BY_FD) ? Py_True : Py_False;
            return follow;
        }
    return 1;
}

static int descriptor_argument(vmh_gated *call, PyObject **argument)
{
    if (PyBool_Check(*argument) && PyErr_WarnEx(PyExc_RuntimeWarning, "bool is used as a file descriptor", 1) < 0)
        return -1;
    if (vmh_gated_replace(call, argument, PyNumber_Index(*argument)) < 0)
        return -1;
    return vmh_gated_fd(call, argument) < 0 ? -1 : 0;
}

static int check_path(vmh_gated *call)
{
    PyObject **argument = vmh_gated_argument(call, 0, call->gate->keyword), *given, *text;
    int access = call->gate->access;
    vmh_path_handle handle;
    if (no_folder_fd(call) < 0)
        return -1;
    if (argument == NULL && !(access & LISTS))
        return 0; /* CPython raises its own TypeError */
    PyObject *here;
    if (argument == NULL || ((access & LISTS) && *argument == Py_None)) {
        argument = &here; /* the bundle answers; the original is not called */
        if (vmh_gated_replace(call, argument, PyUnicode_FromString(".")) < 0)
            return -1;
    }
    if ((access & OR_FD) && PyIndex_Check(*argument)) {
        call->passes = true;
        return descriptor_argument(call, argument);
    }
    int follow = follows_links(call);
    if (follow < 0 || convert_argument(call, argument, call->gate->keyword, &given, &text) < 0)
        return -1;
    bool alone = call->nargs == 1 && call->kwnames == NULL;
    bool by_fd = (access & BY_FD) && (alone || !(access & LOOK));
    unsigned of = access & NAME                ? VMH_PATH_NAME
                  : follow && !(access & LOOK) ? VMH_PATH_OBJECT
                  : by_fd                      ? VMH_PATH_LINK
                                               : VMH_PATH_READLINK;
    int rc = find_argument(call, &handle, given, text, of, access);
    if (rc != 1) {
        rc = rc < 0 ? -1 : 1;
        goto done;
    }
    if (access & ENTRIES)
        rc = vmh_scandir(call, given, text);
    else {
        PyObject *held = by_fd ? PyLong_FromLong(handle.fd) : vmh_path_handle_object(&handle, given);
        rc = vmh_gated_replace(call, argument, held);
        if (rc == 0 && by_fd && (access & LOOK))
            rc = (call->result = vmh_posix_status(call->self, handle.fd)) == NULL ? -1 : 1;
        else if (rc == 0)
            rc = call_original(call, given, NULL);
    }
    vmh_path_handle_close(&handle);
done:
    Py_DECREF(text);
    return rc;
}

/* os.access returns a bool and never raises: what is not granted is not accessible. */
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
    PyObject **arguments[2] = {vmh_gated_argument(call, 0, "src"), vmh_gated_argument(call, 1, "dst")};
    PyObject *given[2], *texts[2] = {NULL, NULL};
    vmh_path_handle handles[2] = {{.fd = -1}, {.fd = -1}};
    int rc = -1;
    if (no_folder_fd(call) < 0)
        return -1;
    if (arguments[0] == NULL || arguments[1] == NULL)
        return 0; /* CPython raises its own TypeError */
    for (int i = 0; i < 2; i++)
        if (convert_argument(call, arguments[i], i == 0 ? "src" : "dst", &given[i], &texts[i]) < 0)
            goto done;
    for (int i = 0; i < 2; i++) {
        if (vmh_path_absolute(texts[i], call->gate->name) < 0)
            goto done;
        if (!vmh_path_handle_find(&handles[i], PyBytes_AS_STRING(texts[i]), VMH_PATH_NAME, VMH_WRITE)) {
            if (handles[i].denied == 0)
                PyErr_SetFromErrnoWithFilenameObjects(PyExc_OSError, given[0], given[1]);
            else
                vmh_path_handle_raise(&handles[i], given[i], texts[i], call->gate->name);
            goto done;
        }
        if (vmh_gated_replace(call, arguments[i], vmh_path_handle_object(&handles[i], given[i])) < 0)
            goto done;
    }
    if (vmh_path_handle_opens(&handles[0], &handles[1])) {
        handles[0].denied = VMH_READ;
        vmh_path_handle_raise(&handles[0], given[0], texts[0], call->gate->name);
        goto done;
    }
    rc = call_original(call, given[0], given[1]);
done:
    for (int i = 0; i < 2; i++) {
        Py_XDECREF(texts[i]);
        vmh_path_handle_close(&handles[i]);
    }
    return rc;
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
    PyObject **path = vmh_gated_argument(call, 0, "path"), **flags = vmh_gated_argument(call, 1, "flags"),
             **mode = vmh_gated_argument(call, 2, "mode"), *given, *text;
    int bits[2] = {0, 0777};
    if (no_folder_fd(call) < 0)
        return -1;
    Py_ssize_t count = call->nargs + (call->kwnames == NULL ? 0 : PyTuple_GET_SIZE(call->kwnames));
    bool by_folder = vmh_gated_argument(call, VMH_GATED_ARGS_MAX, "dir_fd") != NULL;
    if (path == NULL || flags == NULL || call->nargs > 3 || count != 2 + (mode != NULL) + by_folder)
        return 0; /* CPython raises its own TypeError; without a pass it cannot open anything */
    if (convert_argument(call, path, "path", &given, &text) < 0)
        return -1;
    PyObject **numbers[2] = {flags, mode};
    for (int i = 0; i < 2 && numbers[i] != NULL; i++) {
        bits[i] = PyLong_AsInt(*numbers[i]);
        if (bits[i] == -1 && PyErr_Occurred()) {
            Py_DECREF(text);
            return -1;
        }
    }
    int opened, to = bits[0] & O_ACCMODE;
    int access = to == O_RDONLY ? VMH_READ : to == O_WRONLY ? VMH_WRITE : VMH_READ | VMH_WRITE;
    if (bits[0] & (O_CREAT | O_TRUNC | O_APPEND | (O_TMPFILE & ~O_DIRECTORY)))
        access |= VMH_WRITE;
    opened = vmh_path_open(given, text, NULL, bits[0], (mode_t)bits[1], access, "open");
    Py_DECREF(text);
    if (opened < 0)
        return -1;
    if (vmh_fd_own(opened) < 0)
        return -1;
    call->result = PyLong_FromLong(opened);
    return call->result == NULL ? -1 : 1;
}

static int check_fd(vmh_gated *call)
{
    PyObject **argument = vmh_gated_argument(call, 0, call->gate->keyword);
    if (argument == NULL)
        return 0;
    call->passes = true;
    return vmh_gated_fd(call, argument) < 0 ? -1 : 0;
}

/* For functions that also accept an object with fileno(). */
static int check_fildes(vmh_gated *call)
{
    PyObject **argument = vmh_gated_argument(call, 0, call->gate->keyword);
    if (argument == NULL)
        return 0;
    return vmh_gated_fildes(call, argument) < 0 ? -1 : 0;
}

static int check_two_fds(vmh_gated *call)
{
    PyObject **first = vmh_gated_argument(call, 0, call->gate->keyword);
    PyObject **second = vmh_gated_argument(call, 1, strcmp(call->gate->name, "sendfile") == 0 ? "in_fd" : "dst");
    if (first == NULL || second == NULL)
        return 0;
    return vmh_gated_fd(call, first) < 0 || vmh_gated_fd(call, second) < 0 ? -1 : 0;
}

/* Reading and writing can block, and a stop must end the wait. gate->access is the poll event. */
static int check_fd_wait(vmh_gated *call)
{
    PyObject **argument = vmh_gated_argument(call, 0, call->gate->keyword);
    int rc = check_fd(call);
    if (rc != 0 || argument == NULL)
        return rc;
    int fd = PyLong_AsInt(*argument), flags = fcntl(fd, F_GETFL);
    int never = call->gate->access == POLLIN ? O_WRONLY : O_RDONLY;
    if (flags < 0 || (flags & (O_NONBLOCK | O_PATH)) || (flags & O_ACCMODE) == never)
        return 0; /* it does not block */
    struct pollfd fds[2] = {{.fd = fd, .events = (short)call->gate->access}};
    return vmh_wait_fds(fds, 1, INT64_MAX) < 0 ? -1 : 0;
}

/* Writes to descriptors 1 and 2 go to the task's log, like print. */
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
        return 0; /* its own TypeError */
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

static int check_dup(vmh_gated *call) { return check_fd(call) < 0 ? -1 : finish_new_fd(call); }

static int check_isatty(vmh_gated *call)
{
    PyObject **argument = vmh_gated_argument(call, 0, "fd");
    if (argument == NULL)
        return 0;
    vmh_fd_of(*argument);
    if (PyErr_Occurred())
        return -1;
    call->result = Py_NewRef(Py_False); /* a guest has no terminal */
    return 1;
}

static int check_pipe(vmh_gated *call)
{
    call->result = vmh_gated_original(call);
    if (call->result == NULL)
        return -1;
    int ends[2] = {PyLong_AsInt(PyTuple_GET_ITEM(call->result, 0)), PyLong_AsInt(PyTuple_GET_ITEM(call->result, 1))};
    if (vmh_fd_own(ends[0]) == 0) {
        if (vmh_fd_own(ends[1]) == 0)
            return 1;
        vmh_fd_close(ends[0]);
    } else
        close(ends[1]);
    Py_CLEAR(call->result);
    return -1;
}

/* putenv: os.environ is the VM's own dict, and the process's is unchanged. register_at_fork: a VM cannot fork. */
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

#define GATES(G) \
    G(posix, , stat, check_path, VMH_READ | OR_FD | OF_BUNDLE | BY_FD | LEADS, "path") \
    G(posix, , lstat, check_path, VMH_READ | LOOK | OF_BUNDLE | BY_FD | LEADS, "path") \
    G(posix, , access, check_access, VMH_READ | OF_BUNDLE, "path") \
    G(posix, , listdir, check_path, VMH_READ | OR_FD | OF_BUNDLE | LISTS, "path") \
    G(posix, , scandir, check_path, VMH_READ | OF_BUNDLE | LISTS | ENTRIES, "path") \
    G(posix, , readlink, check_path, VMH_READ | LOOK | OF_BUNDLE, "path") \
    G(posix, , statvfs, check_path, VMH_READ | OR_FD | BY_FD, "path") \
    G(posix, , chmod, check_path, VMH_WRITE | OR_FD, "path") \
    G(posix, , mkdir, check_path, VMH_WRITE | NAME | LEADS, "path") \
    G(posix, , rmdir, check_path, VMH_WRITE | NAME, "path") \
    G(posix, , unlink, check_path, VMH_WRITE | NAME, "path") \
    G(posix, , remove, check_path, VMH_WRITE | NAME, "path") \
    G(posix, , utime, check_path, VMH_WRITE | OR_FD, "path") \
    G(posix, , truncate, check_path, VMH_WRITE | OR_FD, "path") \
    G(posix, , rename, check_two_paths, 0, "src") \
    G(posix, , replace, check_two_paths, 0, "src") \
    G(posix, , open, check_open, 0, "path") \
    G(posix, , close, check_close, 0, "fd") \
    G(posix, , read, check_fd_wait, POLLIN, "fd") \
    G(posix, , readinto, check_fd_wait, POLLIN, "fd") \
    G(posix, , readv, check_fd_wait, POLLIN, "fd") \
    G(posix, , write, check_write, POLLOUT, "fd") \
    G(posix, , writev, check_fd_wait, POLLOUT, "fd") \
    G(posix, , pread, check_fd, 0, "fd") \
    G(posix, , preadv, check_fd, 0, "fd") \
    G(posix, , pwrite, check_fd, 0, "fd") \
    G(posix, , pwritev, check_fd, 0, "fd") \
    G(posix, , lseek, check_fd, 0, "fd") \
    G(posix, , fstat, check_fd, 0, "fd") \
    G(posix, , fstatvfs, check_fd, 0, "fd") \
    G(posix, , ftruncate, check_fd, 0, "fd") \
    G(posix, , fsync, check_fildes, 0, "fd") \
    G(posix, , fdatasync, check_fildes, 0, "fd") \
    G(posix, , posix_fallocate, check_fd, 0, "fd") \
    G(posix, , get_inheritable, check_fd, 0, "fd") \
    G(posix, , set_inheritable, check_fd, 0, "fd") \
    G(posix, , get_blocking, check_fd, 0, "fd") \
    G(posix, , set_blocking, check_fd, 0, "fd") \
    G(posix, , sendfile, check_two_fds, 0, "out_fd") \
    G(posix, , copy_file_range, check_two_fds, 0, "src") \
    G(posix, , dup, check_dup, 0, "fd") \
    G(posix, , isatty, check_isatty, 0, "fd") \
    G(posix, , pipe, check_pipe, 0, NULL) \
    G(posix, , pipe2, check_pipe, 0, NULL) \
    G(posix, , putenv, check_nothing, 0, NULL) \
    G(posix, , unsetenv, check_nothing, 0, NULL) \
    G(posix, , register_at_fork, check_nothing, 0, NULL) \
    G(posix, , getcwd, check_getcwd, 0, NULL) \
    G(posix, , getcwdb, check_getcwdb, 0, NULL) \
    G(posix, , device_encoding, check_device_encoding, 0, NULL) \
    G(posix, , get_terminal_size, check_terminal_size, 0, NULL)

GATES(VMH_GATE_DEFINE)
vmh_gate *const vmh_gates_posix[] = {GATES(VMH_GATE_ADDRESS) NULL};

PyObject *vmh_posix_status(PyObject *module, int fd)
{
    PyObject *number = PyLong_FromLong(fd), *status = NULL;
    PyMethodDef *original = atomic_load(&gate_posix__stat.original);
    if (original == NULL)
        PyErr_SetString(PyExc_SystemError, "posix.stat is not bound");
    else if (number != NULL)
        status = vmh_def_call(original, module, NULL, &number, 1, NULL);
    Py_XDECREF(number);
    return status;
}

/* --- the environment */

/* Adds the granted variables; those that the task set itself stay. A host passes their values along (core_vm.c), since
 * its own environment may change while a VM's thread reads it. If none did, this is the process's only interpreter. */
static int environ_add(PyObject *dict)
{
    vmh_seal *seal = vmh_seal_here();
    if (seal == NULL || seal->env.count == 0)
        return 0;
    for (char **entry = seal->environ.items != NULL ? seal->environ.items : environ; entry != NULL && *entry != NULL;
         entry++) {
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

/* No function accepts dir_fd here. The standard library reads this list and uses paths instead. */
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

int vmh_posix_finish(PyObject *dict, PyObject *module)
{
    if (drop_folder_functions(dict) < 0 || vmh_scandir_finish(dict, module) < 0)
        return -1;
    PyObject *held = vmh_dict_get(dict, "environ");
    if (held == NULL || !PyDict_Check(held))
        return PyErr_Occurred() ? -1 : 0;
    PyDict_Clear(held);
    return environ_add(held);
}

/* Called when the permissions arrive. If `posix` is not yet imported, vmh_posix_finish will do this. Otherwise `os` may
 * already have its own mapping made from posix.environ. */
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
