/* os.scandir and os.DirEntry of VMs. CPython's own query the file system by the entry's path, bypassing the gates, and
 * follow links wherever they lead. These check paths like os.stat and os.lstat; what the folder's listing says about an
 * entry is used without another query, as in CPython.
 */
#include "seal/gates.h"
#include "seal/paths.h"

#include "lanes/meter.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

#define TYPES "vmhost.scandir" /* key in the interpreter's dict, which no guest reaches: (iterators, entries) */

typedef struct entry {
    PyObject_HEAD
    PyObject *name, *path; /* str, or both bytes */
    PyObject *status[2];   /* stat_result of the entry itself, and of its target; NULL until needed */
    ino_t inode;
    unsigned char kind; /* DT_... */
} entry;

typedef struct scan {
    PyObject_HEAD
    vmh_listing *listed; /* NULL: exhausted, or closed */
    PyObject *given;     /* str or bytes */
    PyTypeObject *entries;
} scan;

/* --- entries */

static void entry_dealloc(entry *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->name);
    Py_XDECREF(self->path);
    Py_XDECREF(self->status[0]);
    Py_XDECREF(self->status[1]);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* os.stat or os.lstat of the entry; a new reference. */
static PyObject *ask(entry *self, bool follow)
{
    PyObject *text, *result = NULL, *module = PyType_GetModule(Py_TYPE(self));
    vmh_path_handle handle;
    if (module == NULL)
        return NULL;
    if (vmh_seal_here() == NULL)
        return vmh_deny("this thread is not one of the task's", "DirEntry.stat");
    if (!PyUnicode_FSConverter(self->path, &text))
        return NULL;
    unsigned of = follow ? VMH_PATH_OBJECT : VMH_PATH_LINK;
    if (vmh_path_handle_get(&handle, self->path, text, of, VMH_READ, "DirEntry.stat") == 0)
        result = vmh_posix_status(module, handle.fd);
    Py_DECREF(text);
    vmh_path_handle_close(&handle);
    return result;
}

static mode_t mode_of(PyObject *status)
{
    PyObject *mode = PyTuple_Check(status) && PyTuple_GET_SIZE(status) > 0 ? PyTuple_GET_ITEM(status, 0) : NULL;
    return mode != NULL && PyLong_Check(mode) ? (mode_t)PyLong_AsUnsignedLongMask(mode) : 0;
}

/* The stat_result, queried once; borrowed. */
static PyObject *status_of(entry *self, bool follow)
{
    if (self->status[follow] != NULL)
        return self->status[follow];
    PyObject *status = NULL;
    if (follow && self->kind != DT_LNK) {
        PyObject *itself = status_of(self, false);
        if (itself == NULL)
            return NULL;
        if (!S_ISLNK(mode_of(itself)))
            status = Py_NewRef(itself);
    }
    if (status == NULL && (status = ask(self, follow)) == NULL)
        return NULL;
    Py_XSETREF(self->status[follow], status);
    return status;
}

/* Whether the entry, or its target, is of the kind `wanted`. A missing one is of no kind. */
static PyObject *is_of_kind(entry *self, bool follow, unsigned char wanted)
{
    if (self->kind != DT_UNKNOWN && (self->kind != DT_LNK || !follow))
        return PyBool_FromLong(self->kind == wanted);
    PyObject *status = status_of(self, follow);
    if (status == NULL && !PyErr_ExceptionMatches(PyExc_FileNotFoundError))
        return NULL;
    PyErr_Clear();
    return PyBool_FromLong(status != NULL && IFTODT(mode_of(status)) == wanted);
}

/* Parses follow_symlinks, which is keyword-only. */
static int follow_argument(const char *name, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (nargs != 0 || named > 1) {
        PyErr_Format(PyExc_TypeError, "%s() takes no positional arguments and one keyword argument", name);
        return -1;
    }
    if (named == 0)
        return 1;
    if (!PyUnicode_EqualToUTF8(PyTuple_GET_ITEM(names, 0), "follow_symlinks")) {
        PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%S'", name, PyTuple_GET_ITEM(names, 0));
        return -1;
    }
    return PyObject_IsTrue(args[0]);
}

static PyObject *entry_stat(entry *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    int follow = follow_argument("stat", args, nargs, names);
    return follow < 0 ? NULL : Py_XNewRef(status_of(self, follow));
}

static PyObject *entry_is_dir(entry *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    int follow = follow_argument("is_dir", args, nargs, names);
    return follow < 0 ? NULL : is_of_kind(self, follow, DT_DIR);
}

static PyObject *entry_is_file(entry *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    int follow = follow_argument("is_file", args, nargs, names);
    return follow < 0 ? NULL : is_of_kind(self, follow, DT_REG);
}

static PyObject *entry_is_symlink(entry *self, PyObject *Py_UNUSED(none)) { return is_of_kind(self, false, DT_LNK); }

static PyObject *entry_is_junction(entry *Py_UNUSED(self), PyObject *Py_UNUSED(none)) { Py_RETURN_FALSE; }

static PyObject *entry_inode(entry *self, PyObject *Py_UNUSED(none))
{
    return PyLong_FromUnsignedLongLong(self->inode);
}

static PyObject *entry_path(entry *self, PyObject *Py_UNUSED(none)) { return Py_NewRef(self->path); }

static PyObject *entry_repr(entry *self) { return PyUnicode_FromFormat("<DirEntry %R>", self->name); }

#define WITH_KEYWORDS(FUNCTION) (PyCFunction)(void (*)(void)) FUNCTION, METH_FASTCALL | METH_KEYWORDS
#define WITHOUT(FUNCTION)       (PyCFunction)(void (*)(void)) FUNCTION, METH_NOARGS
#define FOLLOWS                 "($self, /, *, follow_symlinks=True)\n--\n\n"
#define PLAIN                   "($self, /)\n--\n\n"

static PyMethodDef entry_methods[] = {
    {"is_dir", WITH_KEYWORDS(entry_is_dir), PyDoc_STR("is_dir" FOLLOWS "Return True if the entry is a directory.")},
    {"is_file", WITH_KEYWORDS(entry_is_file), PyDoc_STR("is_file" FOLLOWS "Return True if the entry is a file.")},
    {"is_symlink", WITHOUT(entry_is_symlink),
     PyDoc_STR("is_symlink" PLAIN "Return True if the entry is a symbolic link.")},
    {"is_junction", WITHOUT(entry_is_junction),
     PyDoc_STR("is_junction" PLAIN "Return False: only Windows has junctions.")},
    {"stat", WITH_KEYWORDS(entry_stat),
     PyDoc_STR("stat" FOLLOWS "Return the stat_result of the entry; it is asked for once.")},
    {"inode", WITHOUT(entry_inode), PyDoc_STR("inode" PLAIN "Return the inode number of the entry.")},
    {"__fspath__", WITHOUT(entry_path), PyDoc_STR("__fspath__" PLAIN "Return the path of the entry.")},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, PyDoc_STR("See PEP 585")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef entry_members[] = {
    {"name", Py_T_OBJECT_EX, offsetof(entry, name), Py_READONLY,
     PyDoc_STR("the entry's name, relative to the listed folder")},
    {"path", Py_T_OBJECT_EX, offsetof(entry, path), Py_READONLY, PyDoc_STR("the listed folder's path with the name")},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot entry_slots[] = {
    {Py_tp_dealloc, entry_dealloc},
    {Py_tp_repr, entry_repr},
    {Py_tp_methods, entry_methods},
    {Py_tp_members, entry_members},
    {0, NULL},
};

static PyType_Spec entry_spec = {
    .name = "posix.DirEntry",
    .basicsize = sizeof(entry),
    .slots = entry_slots,
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};

/* --- the iterator */

static void scan_end(scan *self)
{
    vmh_listing *listed = self->listed;
    self->listed = NULL;
    if (listed == NULL)
        return;
    *listed->link = listed->next;
    if (listed->next != NULL)
        listed->next->link = listed->link;
    closedir(listed->folder);
    free(listed);
    if (vmh_seal_here() != NULL)
        vmh_meter_close(vmh_vm_meter(vmh_seal_here()->vm));
}

static void scan_finalize(scan *self)
{
    if (self->listed == NULL)
        return;
    PyObject *raised = PyErr_GetRaisedException();
    if (PyErr_ResourceWarning((PyObject *)self, 1, "unclosed scandir iterator %R", self) < 0
        && PyErr_ExceptionMatches(PyExc_Warning))
        PyErr_WriteUnraisable((PyObject *)self);
    PyErr_Clear();
    scan_end(self);
    PyErr_SetRaisedException(raised);
}

static void scan_dealloc(scan *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (PyObject_CallFinalizerFromDealloc((PyObject *)self) < 0)
        return;
    scan_end(self);
    Py_XDECREF(self->given);
    Py_XDECREF(self->entries);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *decoded(bool bytes, const char *text)
{
    return bytes ? PyBytes_FromString(text) : PyUnicode_DecodeFSDefault(text);
}

/* The path of `name` in the folder `given`. */
static PyObject *joined(PyObject *given, const char *name)
{
    PyObject *folder = NULL, *whole = NULL, *path = NULL;
    if (!PyUnicode_FSConverter(given, &folder))
        return NULL;
    const char *text = PyBytes_AS_STRING(folder);
    Py_ssize_t size = PyBytes_GET_SIZE(folder);
    whole = PyBytes_FromFormat("%s%s%s", text, size > 0 && text[size - 1] == '/' ? "" : "/", name);
    if (whole != NULL)
        path = decoded(PyBytes_Check(given), PyBytes_AS_STRING(whole));
    Py_DECREF(folder);
    Py_XDECREF(whole);
    return path;
}

static PyObject *scan_next(scan *self)
{
    struct dirent *found;
    if (self->listed == NULL)
        return NULL;
    do {
        errno = 0;
        found = readdir(self->listed->folder); /* under the GIL: another thread may close it */
    } while (found != NULL && (strcmp(found->d_name, ".") == 0 || strcmp(found->d_name, "..") == 0));
    if (found == NULL) {
        if (errno != 0)
            PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, self->given);
        scan_end(self);
        return NULL;
    }
    entry *next = PyObject_New(entry, self->entries);
    if (next == NULL)
        return NULL;
    next->status[0] = next->status[1] = NULL;
    next->inode = found->d_ino;
    next->kind = found->d_type;
    next->name = decoded(PyBytes_Check(self->given), found->d_name);
    next->path = next->name == NULL ? NULL : joined(self->given, found->d_name);
    if (next->path == NULL)
        Py_CLEAR(next);
    return (PyObject *)next;
}

static PyObject *scan_close(scan *self, PyObject *Py_UNUSED(none))
{
    scan_end(self);
    Py_RETURN_NONE;
}

static PyObject *scan_enter(PyObject *self, PyObject *Py_UNUSED(none)) { return Py_NewRef(self); }

static PyObject *scan_exit(scan *self, PyObject *Py_UNUSED(error)) { return scan_close(self, NULL); }

static PyMethodDef scan_methods[] = {
    {"__enter__", WITHOUT(scan_enter), NULL},
    {"__exit__", (PyCFunction)(void (*)(void))scan_exit, METH_VARARGS, NULL},
    {"close", WITHOUT(scan_close), NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot scan_slots[] = {
    {Py_tp_dealloc, scan_dealloc}, {Py_tp_finalize, scan_finalize}, {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, scan_next},   {Py_tp_methods, scan_methods},   {0, NULL},
};

static PyType_Spec scan_spec = {
    .name = "posix.ScandirIterator",
    .basicsize = sizeof(scan),
    .slots = scan_slots,
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};

/* --- os.scandir */

/* Opens the folder to list; -1: error set. */
static int open_folder(PyObject *given, PyObject *text)
{
    vmh_path_handle handle;
    int fd = vmh_path_handle_open(&handle, PyBytes_AS_STRING(text), O_RDONLY | O_DIRECTORY | O_NONBLOCK, 0,
                                  VMH_PATH_OBJECT, VMH_READ, true);
    if (fd < 0)
        vmh_path_handle_raise(&handle, given, text, "scandir");
    return fd;
}

int vmh_scandir(vmh_gated *call, PyObject *given, PyObject *text)
{
    vmh_seal *seal = vmh_seal_here();
    if (seal == NULL) {
        vmh_deny("this thread is not one of the task's", "os.scandir");
        return -1;
    }
    const char *before = vmh_pass_event("os.scandir");
    int rc = PySys_Audit("os.scandir", "O", given);
    vmh_pass_event(before);
    int fd = rc < 0 ? -1 : open_folder(given, text);
    if (fd < 0)
        return -1;
    if (vmh_fd_open(fd) < 0) {
        close(fd);
        return -1;
    }
    vmh_listing *listed = malloc(sizeof *listed);
    DIR *folder = listed == NULL ? NULL : fdopendir(fd);
    if (folder == NULL) {
        int error = errno;
        close(fd);
        errno = error;
        if (listed == NULL)
            PyErr_NoMemory();
        else
            PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, given);
        free(listed);
        vmh_meter_close(vmh_vm_meter(seal->vm));
        return -1;
    }
    PyObject *interp_dict = PyInterpreterState_GetDict(PyInterpreterState_Get());
    PyObject *types = interp_dict == NULL ? NULL : vmh_dict_get(interp_dict, TYPES);
    scan *iterator = types == NULL ? NULL : PyObject_New(scan, (PyTypeObject *)PyTuple_GET_ITEM(types, 0));
    if (iterator == NULL) {
        closedir(folder);
        free(listed);
        vmh_meter_close(vmh_vm_meter(seal->vm));
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_SystemError, "os.scandir has no types in this interpreter");
        return -1;
    }
    *listed = (vmh_listing){.next = seal->listings, .link = &seal->listings, .folder = folder};
    if (listed->next != NULL)
        listed->next->link = &listed->next;
    iterator->listed = seal->listings = listed;
    iterator->given = Py_NewRef(given);
    iterator->entries = (PyTypeObject *)Py_NewRef(PyTuple_GET_ITEM(types, 1));
    call->result = (PyObject *)iterator;
    return 1;
}

int vmh_scandir_finish(PyObject *dict, PyObject *module)
{
    PyObject *interp_dict = PyInterpreterState_GetDict(PyInterpreterState_Get()), *types = NULL;
    PyObject *scans = PyType_FromModuleAndSpec(module, &scan_spec, NULL);
    PyObject *entries = scans == NULL ? NULL : PyType_FromModuleAndSpec(module, &entry_spec, NULL);
    if (entries != NULL && interp_dict != NULL)
        types = PyTuple_Pack(2, scans, entries);
    int rc = types == NULL || PyDict_SetItemString(interp_dict, TYPES, types) < 0
                 ? -1
                 : PyDict_SetItemString(dict, "DirEntry", entries);
    Py_XDECREF(types);
    Py_XDECREF(scans);
    Py_XDECREF(entries);
    return rc;
}
