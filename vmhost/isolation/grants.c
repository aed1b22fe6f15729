/* What a task's permissions name: paths, addresses, environment names; and the descriptors that the guest made itself.
 *
 * Paths are compared after realpath(3). Guests cannot make links (os.link and os.symlink are refused), so that none can
 * move a path between the check and its use; a process outside that rearranges granted folders meanwhile can.
 */
#include "sealing.h"

#include "meter.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

static _Thread_local vmh_seal *seal_here;
static _Thread_local unsigned passes;

vmh_seal *vmh_seal_here(void)
{
    return seal_here;
}

void vmh_seal_bind(vmh_seal *seal)
{
    seal_here = seal;
}

unsigned vmh_pass_set(unsigned pass)
{
    unsigned before = passes;
    passes = pass;
    return before;
}

unsigned vmh_pass_get(void)
{
    return passes;
}

PyObject *vmh_deny(const char *why, const char *format, ...)
{
    char what[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    PyObject *interp_dict = PyInterpreterState_GetDict(PyInterpreterState_Get());
    PyObject *type = interp_dict == NULL ? NULL : vmh_dict_get(interp_dict, "vmhost.denied");
    PyObject *text = PyUnicode_FromFormat("%s: %s", what, why);
    PyObject *args = text == NULL ? NULL : Py_BuildValue("(iN)", EACCES, text);
    if (args != NULL)
        PyErr_SetObject(type == NULL ? PyExc_PermissionError : type, args);
    Py_XDECREF(args);
    return NULL;
}

/* --- paths */

static bool path_in(const char *path, const vmh_list *roots)
{
    for (size_t i = 0; i < roots->count; i++) {
        size_t size = strlen(roots->items[i]);
        if (strncmp(path, roots->items[i], size) == 0
                && (path[size] == 0 || path[size] == '/' || (size > 0 && roots->items[i][size - 1] == '/')))
            return true;
    }
    return false;
}

/* Is `path` a folder above one of `roots`? */
static bool path_above(const char *path, const vmh_list *roots)
{
    size_t size = strcmp(path, "/") == 0 ? 0 : strlen(path);
    for (size_t i = 0; i < roots->count && *path != 0; i++)
        if (strncmp(path, roots->items[i], size) == 0 && roots->items[i][size] == '/')
            return true;
    return false;
}

/* `path` with its folder resolved and its last part as it is; malloc'ed, NULL with errno. */
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

int vmh_grant_path(PyObject *path, int access, bool keep_last, const char *what, PyObject **resolved)
{
    PyObject *bytes = NULL;
    char *real = NULL;
    int rc = -1;
    if (!PyUnicode_FSConverter(path, &bytes))
        return -1;
    const char *text = PyBytes_AS_STRING(bytes);
    vmh_seal *seal = vmh_seal_here();
    if (seal == NULL || text[0] != '/') {
        vmh_deny("relative paths name files of the bundle, which are read through open() and vmhost.guest.resources",
                 "%s('%s')", what, text);
        goto done;
    }
    if (!keep_last)
        real = realpath(text, NULL);
    if (real == NULL && (keep_last || errno == ENOENT))
        real = resolve_folder(text);
    int error = real == NULL ? errno : 0;
    /* what is not there is told apart from what is not granted by its text alone */
    const char *seen = real != NULL ? real : strstr(text, "/..") != NULL ? "" : text;
    struct stat status;
    if (real != NULL && !keep_last && lstat(real, &status) == 0 && S_ISLNK(status.st_mode))
        seen = "";      /* a link to nothing: made through it, a file would be anywhere */
    if ((access & VMH_WRITE) && !path_in(seen, &seal->write)) {
        vmh_deny("not granted; a task that may write there names it in task.yaml, permissions: {write: [...]}",
                 "%s('%s')", what, text);
        goto done;
    }
    /* lstat of the folders above a granted one: realpath() walks down to it, and what it learns is that they are folders */
    if ((access & VMH_READ) && !path_in(seen, &seal->read) && !(keep_last && path_above(seen, &seal->read))) {
        vmh_deny("not granted; a task that may read there names it in task.yaml, permissions: {read: [...]}",
                 "%s('%s')", what, text);
        goto done;
    }
    if (real == NULL) {
        errno = error;
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path);
        goto done;
    }
    *resolved = PyBytes_FromString(real);
    rc = *resolved == NULL ? -1 : 0;
done:
    free(real);
    Py_DECREF(bytes);
    return rc;
}

/* --- addresses: patterns "host:port", where host is a name, "*.name" or "*", and port a number or "*" */

static bool host_matches(const char *pattern, size_t size, const char *host)
{
    if (size == 1 && pattern[0] == '*')
        return true;
    if (size > 2 && pattern[0] == '*' && pattern[1] == '.') {
        size_t length = strlen(host);
        return length > size - 1 && strncasecmp(host + length - (size - 1), pattern + 1, size - 1) == 0;
    }
    return strlen(host) == size && strncasecmp(host, pattern, size) == 0;
}

static const char *port_of(const char *pattern)
{
    const char *colon = strrchr(pattern, ':');
    return colon == NULL ? "*" : colon + 1;
}

static size_t host_size(const char *pattern)
{
    const char *colon = strrchr(pattern, ':');
    return colon == NULL ? strlen(pattern) : (size_t)(colon - pattern);
}

static bool port_matches(const char *pattern, long port)
{
    const char *text = port_of(pattern);
    return strcmp(text, "*") == 0 || strtol(text, NULL, 10) == port;
}

int vmh_grant_host(const char *host, const char *what, const char **pattern)
{
    vmh_seal *seal = vmh_seal_here();
    for (size_t i = 0; seal != NULL && i < seal->net.count; i++)
        if (host_matches(seal->net.items[i], host_size(seal->net.items[i]), host)) {
            *pattern = seal->net.items[i];
            return 0;
        }
    vmh_deny("not granted; a task that may use it names it in task.yaml, permissions: {net: [\"host:port\"]}",
             "%s('%s')", what, host);
    return -1;
}

int vmh_grant_resolved(const char *address, const char *pattern)
{
    vmh_seal *seal = vmh_seal_here();
    for (vmh_resolved *known = seal->resolved; known != NULL; known = known->next)
        if (known->pattern == pattern && strcmp(known->address, address) == 0)
            return 0;
    vmh_resolved *resolved = malloc(sizeof *resolved);
    if (resolved == NULL || (resolved->address = strdup(address)) == NULL) {
        free(resolved);
        PyErr_NoMemory();
        return -1;
    }
    resolved->pattern = pattern;
    resolved->next = seal->resolved;
    seal->resolved = resolved;
    return 0;
}

int vmh_grant_address(PyObject *address, int family, const char *what)
{
    vmh_seal *seal = vmh_seal_here();
    if (family != AF_INET && family != AF_INET6) {
        vmh_deny("only internet addresses can be granted", "%s", what);
        return -1;
    }
    if (!PyTuple_Check(address) || PyTuple_GET_SIZE(address) < 2)
        return 0;       /* the socket raises its own TypeError */
    PyObject *host = PyTuple_GET_ITEM(address, 0), *number = PyTuple_GET_ITEM(address, 1);
    const char *name = PyUnicode_CheckExact(host) ? PyUnicode_AsUTF8(host)
                       : PyBytes_CheckExact(host) ? PyBytes_AS_STRING(host)
                                                  : NULL;
    if (name == NULL || !PyLong_CheckExact(number)) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "%s: expected an address (str, int), got %R", what, address);
        return -1;
    }
    long port = PyLong_AsLong(number);
    if (port == -1 && PyErr_Occurred())
        return -1;
    for (size_t i = 0; seal != NULL && i < seal->net.count; i++)
        if (host_matches(seal->net.items[i], host_size(seal->net.items[i]), name)
            && port_matches(seal->net.items[i], port))
            return 0;
    for (vmh_resolved *known = seal == NULL ? NULL : seal->resolved; known != NULL; known = known->next)
        if (strcmp(known->address, name) == 0 && port_matches(known->pattern, port))
            return 0;
    vmh_deny("not granted; a task that may use it names it in task.yaml, permissions: {net: [\"host:port\"]}",
             "%s('%s:%ld')", what, name, port);
    return -1;
}

bool vmh_grant_environ(const char *name)
{
    vmh_seal *seal = vmh_seal_here();
    for (size_t i = 0; seal != NULL && i < seal->env.count; i++)
        if (strcmp(seal->env.items[i], name) == 0 || strcmp(seal->env.items[i], "*") == 0)
            return true;
    return false;
}

/* --- descriptors */

int vmh_fd_own(int fd)
{
    vmh_seal *seal = vmh_seal_here();
    struct stat status;
    if (seal == NULL || fd < 0 || fstat(fd, &status) != 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    if ((size_t)fd >= seal->fd_room) {
        size_t room = (size_t)fd * 2 + 16;
        vmh_owned_fd *fds = realloc(seal->fds, room * sizeof *fds);
        if (fds == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        memset(fds + seal->fd_room, 0, (room - seal->fd_room) * sizeof *fds);
        seal->fds = fds;
        seal->fd_room = room;
    }
    seal->fds[fd] = (vmh_owned_fd){ true, status.st_dev, status.st_ino };
    return 0;
}

bool vmh_fd_owned(int fd)
{
    vmh_seal *seal = vmh_seal_here();
    struct stat status;
    return seal != NULL && fd >= 0 && (size_t)fd < seal->fd_room && seal->fds[fd].used && fstat(fd, &status) == 0
        && status.st_dev == seal->fds[fd].device && status.st_ino == seal->fds[fd].inode;
}

void vmh_fd_closed(int fd)
{
    vmh_seal *seal = vmh_seal_here();
    if (seal != NULL && fd >= 0 && (size_t)fd < seal->fd_room && !vmh_fd_owned(fd))
        seal->fds[fd].used = false;
}

int vmh_fd_check(int fd, const char *what)
{
    if (vmh_fd_owned(fd))
        return 0;
    if (fcntl(fd, F_GETFD) < 0) {       /* nobody's: what CPython says of a closed one, which programs expect */
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    vmh_deny("a task uses descriptors that it made itself; this one is the host's", "%s(%d)", what, fd);
    return -1;
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
    *list = (vmh_list){ NULL, 0 };
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
    list_clear(&seal->env);
    resolved_clear(seal);
    free(seal->fds);
    while (seal->maps != NULL) {    /* of objects that outlived their interpreter */
        vmh_map *next = seal->maps->next;
        vmh_meter_release(vmh_vm_meter(vm), seal->maps->bytes);
        free(seal->maps);
        seal->maps = next;
    }
    if (seal->task != NULL)
        vmh_image_unref(seal->task);
    pthread_mutex_destroy(&seal->waits_mutex);
    free(seal);
}

/* A path of permissions, as the file system has it now; two stars at its end are for the folder before them, which stands
 * for all below it anyway. malloc'ed, NULL: no memory. */
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

/* The strings of permissions[key]; of `paths` those of granted_path. */
static int list_fill(vmh_list *list, PyObject *permissions, const char *key, bool paths)
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
        const char *text = PyUnicode_AsUTF8(PySequence_Fast_GET_ITEM(sequence, i));
        if (text == NULL)
            goto failed;
        if (paths && text[0] != '/') {
            PyErr_Format(PyExc_ValueError, "permissions.%s: expected an absolute path, got '%s'", key, text);
            goto failed;
        }
        char *item = paths ? granted_path(text) : strdup(text);
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
    if (list_fill(&seal->read, permissions, "read", true) < 0 || list_fill(&seal->write, permissions, "write", true) < 0
        || list_fill(&seal->net, permissions, "net", false) < 0 || list_fill(&seal->env, permissions, "env", false) < 0)
        return -1;
    return vmh_environ_fill(seal);
}

void vmh_seal_task(vmh_vm *vm, vmh_image *task)
{
    vmh_seal *seal = vmh_seal_of(vm);
    vmh_image *before = seal->task;
    seal->task = vmh_image_ref(task);
    if (before != NULL)
        vmh_image_unref(before);
}

int vmh_seal_grant(vmh_vm *vm, PyObject *permissions)
{
    if (PyDict_Check(permissions))
        return vmh_seal_permit(vmh_seal_of(vm), permissions);
    PyErr_Format(PyExc_TypeError, "permissions: expected a dict, got %T", permissions);
    return -1;
}
