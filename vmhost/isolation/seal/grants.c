/* A task's permissions: environment names, and the lists of paths (paths.c) and addresses (addresses.c); and the seal
 * that holds them. The paths are resolved once, when a VM gets its permissions.
 */
#include "seal/sealing.h"

#include "lanes/meter.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static _Thread_local vmh_seal *seal_here;
static _Thread_local unsigned passes;
static _Thread_local const char *event_passed;

vmh_seal *vmh_seal_here(void) { return seal_here; }

void vmh_seal_bind(vmh_seal *seal) { seal_here = seal; }

unsigned vmh_pass_set(unsigned pass)
{
    unsigned before = passes;
    passes = pass;
    return before;
}

unsigned vmh_pass_get(void) { return passes; }

const char *vmh_pass_event(const char *event)
{
    const char *before = event_passed;
    event_passed = event;
    return before;
}

bool vmh_pass_take(const char *event)
{
    if (event_passed == NULL || strcmp(event_passed, event) != 0)
        return false;
    event_passed = NULL;
    return true;
}

PyObject *vmh_deny(const char *why, const char *format, ...)
{
    char what[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (vmh_seal_here() != NULL)
        vmh_vm_denied(vmh_seal_here()->vm);
    PyObject *interp_dict = PyInterpreterState_GetDict(PyInterpreterState_Get());
    PyObject *type = interp_dict == NULL ? NULL : vmh_dict_get(interp_dict, "vmhost.denied");
    PyObject *text = PyUnicode_FromFormat("%s: %s", what, why);
    PyObject *args = text == NULL ? NULL : Py_BuildValue("(iN)", EACCES, text);
    if (args != NULL)
        PyErr_SetObject(type == NULL ? PyExc_PermissionError : type, args);
    Py_XDECREF(args);
    return NULL;
}

bool vmh_grant_environ(const char *name)
{
    vmh_seal *seal = vmh_seal_here();
    for (size_t i = 0; seal != NULL && i < seal->env.count; i++)
        if (strcmp(seal->env.items[i], name) == 0 || strcmp(seal->env.items[i], "*") == 0)
            return true;
    return false;
}

/* --- the seal itself */

static pthread_mutex_t seals_lock = PTHREAD_MUTEX_INITIALIZER;
static vmh_seal *seals;

vmh_seal *vmh_seal_of(vmh_vm *vm)
{
    vmh_mutex_lock(&seals_lock);
    vmh_seal *seal = seals;
    while (seal != NULL && seal->vm != vm)
        seal = seal->next;
    vmh_mutex_unlock(&seals_lock);
    return seal;
}

void vmh_seal_visit(vmh_vm *vm, void (*visit)(vmh_seal *))
{
    vmh_mutex_lock(&seals_lock);
    for (vmh_seal *seal = seals; seal != NULL; seal = seal->next)
        if (seal->vm == vm)
            visit(seal);
    vmh_mutex_unlock(&seals_lock);
}

vmh_seal *vmh_seal_new(vmh_vm *vm)
{
    vmh_seal *seal = calloc(1, sizeof *seal);
    if (seal == NULL || pthread_mutex_init(&seal->waits_mutex, NULL) != 0) {
        free(seal);
        return NULL;
    }
    seal->vm = vm;
    seal->idle.tail = &seal->idle.first;
    vmh_mutex_lock(&seals_lock);
    seal->next = seals;
    seals = seal;
    vmh_mutex_unlock(&seals_lock);
    return seal;
}

static void list_clear(vmh_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
    *list = (vmh_list){NULL, 0};
}

static void resolved_clear(vmh_seal *seal)
{
    while (seal->resolved != NULL) {
        vmh_resolved *next = seal->resolved->next;
        free(seal->resolved->address);
        free(seal->resolved);
        seal->resolved = next;
    }
}

void vmh_seal_free(vmh_vm *vm)
{
    vmh_mutex_lock(&seals_lock);
    vmh_seal **link = &seals;
    while (*link != NULL && (*link)->vm != vm)
        link = &(*link)->next;
    vmh_seal *seal = *link;
    if (seal != NULL)
        *link = seal->next;
    vmh_mutex_unlock(&seals_lock);
    if (seal == NULL)
        return;
    if (vmh_seal_here() == seal)
        vmh_seal_bind(NULL);
    list_clear(&seal->read);
    list_clear(&seal->write);
    list_clear(&seal->net);
    list_clear(&seal->listen);
    list_clear(&seal->env);
    list_clear(&seal->environ);
    resolved_clear(seal);
    vmh_fds_end(seal);
    while (seal->maps != NULL) { /* of objects that outlive their interpreter */
        vmh_map *next = seal->maps->next;
        vmh_meter_release(vmh_vm_meter(vm), seal->maps->bytes);
        free(seal->maps);
        seal->maps = next;
    }
    if (seal->task != NULL)
        vmh_code_store_unref(seal->task);
    pthread_mutex_destroy(&seal->waits_mutex);
    free(seal);
}

/* `path` with its folder resolved and its last part unchanged; malloc'ed; NULL with errno. */
static char *resolve_folder(const char *path)
{
    size_t size = strlen(path);
    while (size > 1 && path[size - 1] == '/')
        size--;
    char *folder = strndup(path, size), *result = NULL, *real = NULL;
    if (folder == NULL)
        return NULL;
    char *slash = strrchr(folder, '/');
    const char *last = slash + 1;
    if (strcmp(last, "..") == 0 || strcmp(last, ".") == 0 || *last == 0) {
        result = realpath(folder, NULL);
        goto done;
    }
    if (slash == folder)
        real = strdup("/");
    else {
        *slash = 0;
        real = realpath(folder, NULL);
    }
    if (real == NULL)
        goto done;
    result = malloc(strlen(real) + strlen(last) + 2);
    if (result != NULL)
        sprintf(result, "%s%s%s", real, strcmp(real, "/") == 0 ? "" : "/", last);
done:
    free(folder);
    free(real);
    return result;
}

/* A path of the permissions, resolved in the file system. A trailing slash with two stars is cut off: the folder grants
 * everything below it anyway. malloc'ed; NULL: no memory. */
static char *granted_path(const char *text)
{
    size_t size = strlen(text);
    if (size >= 3 && strcmp(text + size - 3, "/**") == 0)
        size = size == 3 ? 1 : size - 3;
    char *plain = strndup(text, size);
    if (plain == NULL)
        return NULL;
    char *real = realpath(plain, NULL);
    if (real == NULL)
        real = resolve_folder(plain);
    if (real == NULL)
        return plain;
    free(plain);
    return real;
}

/* How the entries of a list are read: NAMES as they are, PATHS resolved here, SETTLED paths already resolved by the
 * host when it checked the task's permissions: a link created since then has no effect. */
enum entries { NAMES, PATHS, SETTLED };

/* Fills `list` with the strings of permissions[key]; PATHS pass through granted_path. */
static int list_fill(vmh_seal *seal, vmh_list *list, PyObject *permissions, const char *key, enum entries entries)
{
    list_clear(list);
    PyObject *values = permissions == NULL ? NULL : vmh_dict_get(permissions, key);
    if (values == NULL)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *sequence = PySequence_Fast(values, "permissions: expected lists of str");
    if (sequence == NULL)
        return -1;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(sequence);
    list->items = calloc((size_t)count + 1, sizeof *list->items);
    if (list->items == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; list->items != NULL && i < count; i++) {
        PyObject *value = PySequence_Fast_GET_ITEM(sequence, i);
        const char *text = PyBytes_Check(value) ? PyBytes_AS_STRING(value) : PyUnicode_AsUTF8(value);
        if (text == NULL)
            goto failed;
        /* The host encodes names (vmhost/grants.py): codecs of this interpreter may be the task's own by now. */
        if ((list == &seal->net || list == &seal->listen) && PyUnicode_Check(value) && !PyUnicode_IS_ASCII(value)) {
            PyErr_Format(PyExc_ValueError, "permissions.%s: expected a host name in ASCII (xn--...), got '%s'", key,
                         text);
            goto failed;
        }
        if (entries != NAMES && text[0] != '/') {
            PyErr_Format(PyExc_ValueError, "permissions.%s: expected an absolute path, got '%s'", key, text);
            goto failed;
        }
        char *item = entries == PATHS ? granted_path(text) : strdup(text);
        if (item == NULL) {
            PyErr_NoMemory();
            goto failed;
        }
        list->items[list->count++] = item;
    }
    Py_DECREF(sequence);
    return list->items == NULL ? -1 : 0;
failed:
    Py_DECREF(sequence);
    return -1;
}

int vmh_seal_permit(vmh_seal *seal, PyObject *permissions)
{
    resolved_clear(seal);
    bool settled = permissions != NULL && vmh_dict_get(permissions, "settled") != NULL;
    enum entries paths = settled ? SETTLED : PATHS;
    if (PyErr_Occurred() || list_fill(seal, &seal->read, permissions, "read", paths) < 0
        || list_fill(seal, &seal->write, permissions, "write", paths) < 0
        || list_fill(seal, &seal->net, permissions, "net", NAMES) < 0
        || list_fill(seal, &seal->listen, permissions, "listen", NAMES) < 0
        || list_fill(seal, &seal->env, permissions, "env", NAMES) < 0
        || list_fill(seal, &seal->environ, permissions, "environ", NAMES) < 0)
        return -1;
    return vmh_environ_fill(seal);
}

void vmh_seal_task(vmh_vm *vm, vmh_code_store *task)
{
    vmh_seal *seal = vmh_seal_of(vm);
    vmh_code_store *before = seal->task;
    seal->task = vmh_code_store_ref(task);
    if (before != NULL)
        vmh_code_store_unref(before);
}

int vmh_seal_grant(vmh_vm *vm, PyObject *permissions)
{
    if (PyDict_Check(permissions))
        return vmh_seal_permit(vmh_seal_of(vm), permissions);
    PyErr_Format(PyExc_TypeError, "permissions: expected a dict, got %T", permissions);
    return -1;
}
