/* Gates of `_ssl`: certificates come only from files that the task may read.
 *
 * OpenSSL opens files itself, so it gets the path of a held descriptor. It would search folders of certificates at each
 * verification; instead, their contents are loaded at once, file by file.
 */
#include "seal/gates.h"
#include "seal/paths.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static PyMethodDef *load_locations(void);

/* Loads the certificates and revocation lists of one file, if it has any. -1: error set. */
static int load_file(vmh_gated *call, const char *text)
{
    vmh_path_handle handle;
    if (text[0] != '/' || !vmh_path_handle_find(&handle, text, VMH_PATH_OBJECT, VMH_READ))
        return 0;
    PyObject *held = PyBytes_FromString(handle.text), *done = NULL;
    if (held != NULL)
        done = vmh_def_call(load_locations(), call->self, call->owner, &held, 1, NULL);
    vmh_path_handle_close(&handle);
    Py_XDECREF(held);
    if (done == NULL && PyErr_ExceptionMatches(PyExc_OSError)) /* SSLError is one */
        PyErr_Clear();
    Py_XDECREF(done);
    return PyErr_Occurred() ? -1 : 0;
}

/* Whether OpenSSL looks for this name in a folder: 8 hex digits of a hash, a dot, r for a revocation list, a number. */
static bool is_hash_name(const char *name)
{
    for (int i = 0; i < 8; i++)
        if (!isxdigit((unsigned char)name[i]))
            return false;
    if (name[8] != '.')
        return false;
    name += name[9] == 'r' ? 10 : 9;
    return *name != 0 && name[strspn(name, "0123456789")] == 0;
}

/* Loads a folder's certificates; does nothing if it does not exist or is not granted. -1: error set. */
static int load_folder(vmh_gated *call, const char *text, vmh_path_handle *handle)
{
    *handle = (vmh_path_handle){.fd = -1};
    int fd = text[0] != '/'
                 ? -1
                 : vmh_path_handle_open(handle, text, O_RDONLY | O_DIRECTORY, 0, VMH_PATH_OBJECT, VMH_READ, true),
        rc = 0;
    DIR *listed = fd < 0 ? NULL : fdopendir(fd);
    if (listed == NULL) {
        if (fd >= 0)
            close(fd);
        return 0;
    }
    for (struct dirent *found; rc == 0 && (found = readdir(listed)) != NULL;)
        if (is_hash_name(found->d_name)) {
            char file[64];
            snprintf(file, sizeof file, "/proc/self/fd/%d/%.24s", fd, found->d_name);
            rc = load_file(call, file);
        }
    closedir(listed);
    return rc;
}

/* Several folders may be given, separated by colons. One that is not granted is skipped, or raises PermissionDenied. */
static int load_folders(vmh_gated *call, PyObject *text, bool pass_over)
{
    const char *next = PyBytes_AS_STRING(text);
    int rc = 0;
    while (rc == 0 && *next != 0) {
        size_t size = strcspn(next, ":");
        PyObject *folder = PyBytes_FromStringAndSize(next, (Py_ssize_t)size);
        vmh_path_handle handle;
        if (folder == NULL)
            return -1;
        if (size != 0 && !pass_over)
            rc = vmh_path_absolute(folder, call->gate->name);
        if (rc == 0)
            rc = load_folder(call, PyBytes_AS_STRING(folder), &handle);
        if (rc == 0 && !pass_over && handle.denied != 0) {
            vmh_path_handle_raise(&handle, folder, folder, call->gate->name);
            rc = -1;
        }
        Py_DECREF(folder);
        next += size + (next[size] == ':');
    }
    return rc;
}

/* Holds the file given as an argument, if any, and replaces the argument by the path to the held descriptor. */
static int hold_argument(vmh_gated *call, PyObject **argument, vmh_path_handle *handle, PyObject **given)
{
    PyObject *text;
    *handle = (vmh_path_handle){.fd = -1};
    *given = NULL;
    if (argument == NULL || *argument == Py_None)
        return 0;
    if (vmh_path_convert(*argument, given, &text) < 0)
        return -1;
    int rc = vmh_gated_replace(call, argument, *given);
    if (rc == 0)
        rc = vmh_path_handle_get(handle, *given, text, VMH_PATH_OBJECT, VMH_READ, call->gate->name);
    Py_DECREF(text);
    return rc < 0 ? -1 : vmh_gated_replace(call, argument, PyBytes_FromString(handle->text));
}

static int finish(vmh_gated *call, PyObject *given)
{
    call->result = vmh_gated_original(call);
    if (call->result == NULL && given != NULL)
        vmh_path_restore(given, NULL);
    return call->result == NULL ? -1 : 1;
}

static int check_load_cert_chain(vmh_gated *call)
{
    PyObject **certificate = vmh_gated_argument(call, 0, "certfile"), **key = vmh_gated_argument(call, 1, "keyfile");
    PyObject *given[2] = {NULL, NULL};
    vmh_path_handle handles[2] = {{.fd = -1}, {.fd = -1}};
    int rc = hold_argument(call, certificate, &handles[0], &given[0]);
    if (rc == 0)
        rc = hold_argument(call, key, &handles[1], &given[1]);
    if (rc == 0)
        rc = finish(call, NULL); /* without a pass: it calls the task's own password function */
    vmh_path_handle_close(&handles[0]);
    vmh_path_handle_close(&handles[1]);
    return rc;
}

static int check_load_dh_params(vmh_gated *call)
{
    vmh_path_handle handle;
    PyObject *given;
    int rc = hold_argument(call, vmh_gated_argument(call, 0, "path"), &handle, &given);
    call->passes = true;
    if (rc == 0)
        rc = finish(call, given);
    vmh_path_handle_close(&handle);
    return rc;
}

static int check_load_verify_locations(vmh_gated *call)
{
    PyObject **file = vmh_gated_argument(call, 0, "cafile"), **folder = vmh_gated_argument(call, 1, "capath"),
             **data = vmh_gated_argument(call, 2, "cadata"), *given, *folders = NULL, *text = NULL;
    vmh_path_handle handle = {.fd = -1};
    int rc = -1;
    if (folder != NULL && *folder != Py_None) {
        if (vmh_path_convert(*folder, &folders, &text) < 0 || vmh_gated_replace(call, folder, Py_NewRef(Py_None)) < 0)
            goto done;
    }
    if (hold_argument(call, file, &handle, &given) < 0)
        goto done;
    if (text == NULL || (file != NULL && *file != Py_None) || (data != NULL && *data != Py_None))
        rc = finish(call, given);
    else {
        call->result = Py_NewRef(Py_None);
        rc = 1;
    }
    if (rc == 1 && text != NULL && load_folders(call, text, false) < 0) {
        Py_CLEAR(call->result);
        rc = -1;
    }
done:
    vmh_path_handle_close(&handle);
    Py_XDECREF(folders);
    Py_XDECREF(text);
    return rc;
}

/* A path of ssl.get_default_verify_paths: from the environment variable `name`, if set, else `otherwise`. */
static PyObject *default_path(PyObject *name, PyObject *otherwise)
{
    PyObject *os = PyImport_ImportModule("os"), *environ = os == NULL ? NULL : PyObject_GetAttrString(os, "environ");
    PyObject *value = environ == NULL ? NULL : PyObject_CallMethod(environ, "get", "OO", name, otherwise), *text = NULL;
    if (value != NULL && !PyUnicode_FSConverter(value, &text))
        text = NULL;
    Py_XDECREF(os);
    Py_XDECREF(environ);
    Py_XDECREF(value);
    return text;
}

/* Loads OpenSSL's default files if they exist and are granted: CPython does not require them either. */
static int check_default_paths(vmh_gated *call)
{
    PyObject *module = call->owner == NULL ? NULL : PyType_GetModule(call->owner), *found = NULL;
    PyObject *file = NULL, *folders = NULL;
    int rc = -1;
    if (call->nargs != 0 || call->kwnames != NULL)
        return 0; /* its own TypeError */
    if (module != NULL)
        found = PyObject_CallMethod(module, "get_default_verify_paths", NULL);
    if (found == NULL || !PyTuple_CheckExact(found) || PyTuple_GET_SIZE(found) != 4) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_SystemError, "_ssl.get_default_verify_paths() is not as CPython has it");
        goto done;
    }
    if ((file = default_path(PyTuple_GET_ITEM(found, 0), PyTuple_GET_ITEM(found, 1))) == NULL
        || (folders = default_path(PyTuple_GET_ITEM(found, 2), PyTuple_GET_ITEM(found, 3))) == NULL
        || load_file(call, PyBytes_AS_STRING(file)) < 0 || load_folders(call, folders, true) < 0)
        goto done;
    call->result = Py_NewRef(Py_None);
    rc = 1;
done:
    Py_XDECREF(found);
    Py_XDECREF(file);
    Py_XDECREF(folders);
    return rc;
}

#define GATES(G) \
    G(_ssl, _SSLContext, load_verify_locations, check_load_verify_locations, 0, NULL) \
    G(_ssl, _SSLContext, load_cert_chain, check_load_cert_chain, 0, NULL) \
    G(_ssl, _SSLContext, load_dh_params, check_load_dh_params, 0, NULL) \
    G(_ssl, _SSLContext, set_default_verify_paths, check_default_paths, 0, NULL)

GATES(VMH_GATE_DEFINE)
vmh_gate *const vmh_gates_certificates[] = {GATES(VMH_GATE_ADDRESS) NULL};

static PyMethodDef *load_locations(void) { return atomic_load(&gate__ssl__SSLContext_load_verify_locations.original); }
