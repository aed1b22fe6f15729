#include "seal/paths.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NO_PROC = 4 };    /* value of `denied`: /proc/self/fd cannot be read */
enum { LINKS_MAX = 40 }; /* as in the kernel */

/* --- grants */

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

/* Whether `path` is a folder above one of `roots`. */
static bool path_above(const char *path, const vmh_list *roots)
{
    size_t size = strcmp(path, "/") == 0 ? 0 : strlen(path);
    for (size_t i = 0; i < roots->count && *path != 0; i++)
        if (strncmp(path, roots->items[i], size) == 0 && roots->items[i][size] == '/')
            return true;
    return false;
}

/* The part of `access` that is not granted for `real`, a path without links; 0: all is granted. */
static int lacking(const vmh_seal *seal, const char *real, unsigned of, int access)
{
    unsigned kind = of & ~(unsigned)VMH_PATH_DATABASE;
    bool look = kind == VMH_PATH_READLINK || kind == VMH_PATH_LINK;
    int lack = (access & VMH_WRITE) && !path_in(real, &seal->write) ? VMH_WRITE
               : (access & VMH_READ) && !path_in(real, &seal->read) && !(look && path_above(real, &seal->read))
                   ? VMH_READ
                   : 0;
    static const char *const beside[] = {"-journal", "-wal", "-shm"};
    size_t size = strlen(real);
    for (size_t i = 0; lack != 0 && (of & VMH_PATH_DATABASE) && i < sizeof beside / sizeof *beside; i++) {
        size_t end = strlen(beside[i]);
        if (size <= end || strcmp(real + size - end, beside[i]) != 0)
            continue;
        char *database = strndup(real, size - end);
        if (database != NULL)
            lack = lacking(seal, database, of & ~(unsigned)VMH_PATH_DATABASE, access);
        free(database);
    }
    return lack;
}

/* --- held files */

static int hold(int folder, const char *path, int flags)
{
    int fd;
    do
        fd = openat(folder, path, O_PATH | O_CLOEXEC | flags);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* close(2) that preserves errno. */
static void let_go(int fd)
{
    int error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
}

typedef char real_path[PATH_MAX + 1];

/* The kernel's path of the file that `fd` holds. False: errno; ENOSYS if /proc cannot be read. */
static bool real_of(int fd, real_path real)
{
    static const char deleted[] = " (deleted)";
    char link[32];
    struct stat held, found;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, real, sizeof(real_path));
    if (size < 0) {
        if (errno == ENOENT || errno == ENOTDIR || errno == EACCES)
            errno = ENOSYS;
        return false;
    }
    if ((size_t)size >= sizeof(real_path)) {
        errno = ENAMETOOLONG;
        return false;
    }
    real[size] = 0;
    /* A file that was removed since counts at its old path. A file may also really have such a name. */
    size_t mark = sizeof deleted - 1;
    if ((size_t)size > mark && strcmp(real + size - mark, deleted) == 0 && fstat(fd, &held) == 0
        && (lstat(real, &found) != 0 || found.st_dev != held.st_dev || found.st_ino != held.st_ino))
        real[(size_t)size - mark] = 0;
    return true;
}

/* A walk component by component, to find out what the kernel does not report: where a path stops existing. */
typedef struct walk {
    int fd;                  /* the folder reached so far; if everything was found, the object */
    char name[NAME_MAX + 1]; /* the component that is missing or cannot be entered */
    const char *rest;        /* the path after `name`, within `pending` */
    char pending[2 * PATH_MAX];
    char target[PATH_MAX];
    real_path real; /* path of `fd` */
} walk;

/* Walks `text`, shorter than PATH_MAX. 0: everything was found; else an errno. The caller closes at->fd (or it is -1).
 */
static int walk_to(walk *at, const char *text, bool follow_last)
{
    char *next = strcpy(at->pending, text);
    int links = 0;
    at->rest = "";
    at->name[0] = 0;
    at->fd = hold(AT_FDCWD, "/", O_DIRECTORY);
    for (; at->fd >= 0;) {
        struct stat status;
        next += strspn(next, "/");
        if (*next == 0)
            return 0;
        size_t size = strcspn(next, "/"), kept = size > NAME_MAX ? NAME_MAX : size;
        memcpy(at->name, next, kept);
        at->name[kept] = 0;
        at->rest = next + size;
        if (size > NAME_MAX)
            return ENAMETOOLONG;
        bool folder = *at->rest == '/', last = at->rest[strspn(at->rest, "/")] == 0;
        int fd = hold(at->fd, at->name, O_NOFOLLOW);
        if (fd < 0)
            return errno;
        if (fstat(fd, &status) != 0) {
            let_go(fd);
            return errno;
        }
        if (S_ISLNK(status.st_mode) && (folder || !last || follow_last)) {
            ssize_t length = readlinkat(fd, "", at->target, sizeof at->target);
            let_go(fd);
            if (length <= 0 || ++links > LINKS_MAX)
                return length < 0 ? errno : length == 0 ? ENOENT : ELOOP;
            size_t left = strlen(at->rest);
            if ((size_t)length + left >= sizeof at->pending)
                return ENAMETOOLONG;
            memmove(at->pending + length, at->rest, left + 1);
            memcpy(at->pending, at->target, (size_t)length);
            next = at->pending;
            if (*next == '/') {
                let_go(at->fd);
                at->fd = hold(AT_FDCWD, "/", O_DIRECTORY);
            }
            continue;
        }
        if (folder && !S_ISDIR(status.st_mode)) {
            let_go(fd);
            return ENOTDIR;
        }
        let_go(at->fd);
        at->fd = fd;
        next += size;
    }
    return errno;
}

static bool ends_the_same(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOSYS;
}

/* Decides what to report of a path that led nowhere, with `error`: the error, if the place is granted, else a denial.
 * Returns where the walk ended, so that a caller can create a file there, to be closed and freed; NULL: errno or
 * `denied`. */
static walk *explain(vmh_path_handle *handle, const char *text, unsigned of, int access, int error)
{
    const vmh_seal *seal = vmh_seal_here();
    char *seen = NULL;
    handle->denied = 0;
    if (ends_the_same(error) || strlen(text) >= PATH_MAX) {
        errno = error;
        return NULL;
    }
    walk *at = malloc(sizeof *at);
    if (at == NULL) {
        errno = ENOMEM;
        return NULL;
    }
    int found = walk_to(at, text, (of & ~(unsigned)VMH_PATH_DATABASE) == VMH_PATH_OBJECT);
    if (at->fd < 0 || ends_the_same(found)) {
        error = found;
        goto failed;
    }
    if (!real_of(at->fd, at->real)) {
        error = errno;
        handle->denied = error == ENOSYS ? NO_PROC : 0;
        goto failed;
    }
    if (found == 0) { /* it was created meanwhile, or the kernel had another reason: keep its error */
        handle->denied = lacking(seal, at->real, of, access);
        goto failed;
    }
    error = found;
    bool dots = strcmp(at->name, ".") == 0 || strcmp(at->name, "..") == 0;
    const char *folder = strcmp(at->real, "/") == 0 && !dots ? "" : at->real;
    if (asprintf(&seen, "%s%s%s", folder, dots ? "" : "/", dots ? "" : at->name) < 0) {
        seen = NULL;
        error = ENOMEM;
        goto failed;
    }
    handle->denied = lacking(seal, seen, of, access);
    if (handle->denied != 0 && strstr(at->rest, "..") == NULL) { /* perhaps below a granted folder that is missing */
        char *whole;
        if (asprintf(&whole, "%s%s", seen, at->rest) >= 0) {
            if (lacking(seal, whole, of, access) == 0)
                handle->denied = 0;
            free(whole);
        }
    }
    free(seen);
    if (handle->denied == 0) {
        errno = error;
        return at;
    }
failed:
    let_go(at->fd);
    free(at);
    errno = handle->denied != 0 ? EACCES : error;
    return NULL;
}

static bool explain_only(vmh_path_handle *handle, const char *text, unsigned of, int access, int error)
{
    walk *at = explain(handle, text, of, access, error);
    if (at != NULL) {
        let_go(at->fd);
        int saved_errno = errno;
        free(at);
        errno = saved_errno;
    }
    return false;
}

/* The last component of `text` ("" for "/"), and its length without trailing slashes. */
static const char *last_part(const char *text, size_t *size)
{
    size_t end = strlen(text), start;
    while (end > 0 && text[end - 1] == '/')
        end--;
    for (start = end; start > 0 && text[start - 1] != '/';)
        start--;
    *size = end - start;
    return text + start;
}

static bool is_dots(const char *part, size_t size)
{
    return size == 0 || (size == 1 && part[0] == '.') || (size == 2 && part[0] == '.' && part[1] == '.');
}

/* Checks that the held `fd`, or `name` in it, is granted. If not, closes it. */
static bool settle(vmh_path_handle *handle, int fd, const char *name, size_t size, unsigned of, int access)
{
    char *seen = malloc(sizeof(real_path) + NAME_MAX + 2);
    bool ok = false;
    if (seen == NULL)
        errno = ENOMEM;
    else if (!real_of(fd, seen))
        handle->denied = errno == ENOSYS ? NO_PROC : 0;
    else {
        if (name != NULL) {
            size_t length = strcmp(seen, "/") == 0 ? 0 : strlen(seen);
            sprintf(seen + length, "/%.*s", (int)(size > NAME_MAX ? NAME_MAX : size), name);
        }
        handle->denied = lacking(vmh_seal_here(), seen, of, access);
        ok = handle->denied == 0 && (name == NULL || size <= NAME_MAX);
        errno = handle->denied != 0 ? EACCES : ENAMETOOLONG;
    }
    int error = errno;
    free(seen);
    errno = error;
    if (!ok)
        let_go(fd);
    handle->fd = ok ? fd : -1;
    handle->named = name != NULL;
    return ok;
}

/* Whether `text` is missing in an existing folder and would be granted. A fast path for a frequent case; links need the
 * walk, which finds where they lead. */
static bool plainly_missing(vmh_path_handle *handle, const char *text, unsigned of, int access)
{
    size_t size, length;
    const char *last = last_part(text, &size);
    length = (size_t)(last - text);
    if (is_dots(last, size) || length + size >= PATH_MAX || size > NAME_MAX)
        return false;
    char *folder = strndup(text, length + size);
    if (folder == NULL)
        return false;
    char *name = folder + length, first = *name;
    *name = 0;
    int fd = hold(AT_FDCWD, folder, O_DIRECTORY), there = -1;
    *name = first;
    bool missing = fd >= 0 && settle(handle, fd, last, size, of, access);
    if (missing) {
        there = hold(fd, name, O_NOFOLLOW);
        missing = there < 0 && errno == ENOENT;
        let_go(there);
        vmh_path_handle_close(handle);
    }
    free(folder);
    handle->denied = 0;
    return missing;
}

static bool find_object(vmh_path_handle *handle, const char *text, unsigned of, int access)
{
    int fd = hold(AT_FDCWD, text, (of & ~(unsigned)VMH_PATH_DATABASE) == VMH_PATH_LINK ? O_NOFOLLOW : 0);
    if (fd < 0) {
        int error = errno;
        if (error == ENOENT && plainly_missing(handle, text, of, access)) {
            errno = error;
            return false;
        }
        return explain_only(handle, text, of, access, error);
    }
    if (!settle(handle, fd, NULL, 0, of, access))
        return false;
    snprintf(handle->text, sizeof handle->text, "/proc/self/fd/%d", fd);
    return true;
}

/* Holds the folder of `text`; `last` is the name in it, and not "." or "..". */
static bool find_name(vmh_path_handle *handle, const char *text, const char *last, size_t size, unsigned of, int access)
{
    size_t length = (size_t)(last - text);
    int fd = -1;
    if (length + size >= PATH_MAX)
        errno = ENAMETOOLONG;
    else {
        char *folder = strndup(text, length);
        if (folder == NULL)
            errno = ENOMEM;
        else
            fd = hold(AT_FDCWD, folder, O_DIRECTORY);
        int error = errno;
        free(folder);
        errno = error;
    }
    if (fd < 0)
        return explain_only(handle, text, of, access, errno);
    if (!settle(handle, fd, last, size, of, access))
        return false;
    snprintf(handle->text, sizeof handle->text, "/proc/self/fd/%d/%.*s%s", fd, (int)size, last,
             last[size] == '/' ? "/" : "");
    return true;
}

bool vmh_path_leads(const char *text)
{
    const vmh_seal *seal = vmh_seal_here();
    int fd = seal == NULL ? -1 : hold(AT_FDCWD, text, O_DIRECTORY);
    char *real = fd < 0 ? NULL : malloc(sizeof(real_path));
    bool leads = real != NULL && real_of(fd, real)
                 && (path_above(real, &seal->read) || path_above(real, &seal->write) || path_in(real, &seal->write));
    free(real);
    let_go(fd);
    return leads;
}

/* Records that files of the machine were used, for recordings. */
static bool note_use(bool found)
{
    if (found)
        vmh_used(VMH_USED_FILES);
    return found;
}

bool vmh_path_handle_find(vmh_path_handle *handle, const char *text, unsigned of, int access)
{
    size_t size;
    const char *last = last_part(text, &size);
    unsigned kind = of & ~(unsigned)VMH_PATH_DATABASE;
    *handle = (vmh_path_handle){.fd = -1};
    if (vmh_seal_here() == NULL) {
        handle->denied = access;
        errno = EACCES;
        return false;
    }
    if (kind == VMH_PATH_OBJECT || kind == VMH_PATH_LINK)
        return note_use(find_object(handle, text, of, access));
    if (!is_dots(last, size) && (kind == VMH_PATH_NAME || last[size] == 0))
        return note_use(find_name(handle, text, last, size, of, access));
    /* A trailing slash follows links, and "." or ".." is a folder; nothing can be created or removed there. */
    if (!note_use(find_object(handle, text, of, access)))
        return false;
    snprintf(handle->text, sizeof handle->text, "/proc/self/fd/%d/%.*s", handle->fd,
             kind == VMH_PATH_NAME ? (int)size : 0, last);
    if (kind == VMH_PATH_NAME && size == 0)
        strcpy(handle->text, "/");
    return true;
}

void vmh_path_handle_close(vmh_path_handle *handle)
{
    let_go(handle->fd);
    handle->fd = -1;
}

/* --- opening */

/* openat(2), which may block: a FIFO waits for its other end. */
static int open_held(int folder, const char *path, int flags, mode_t mode, bool gil)
{
    PyThreadState *state = gil ? PyEval_SaveThread() : NULL;
    int fd;
    do
        fd = openat(folder, path, flags | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    int error = errno;
    if (state != NULL)
        PyEval_RestoreThread(state);
    errno = error;
    return fd;
}

static int open_object(vmh_path_handle *handle, const char *text, int flags, mode_t mode, unsigned of, int access,
                       bool gil)
{
    int fd = hold(AT_FDCWD, text, 0), opened = -1;
    if (fd >= 0) {
        if (!settle(handle, fd, NULL, 0, of, access))
            return -1;
        snprintf(handle->text, sizeof handle->text, "/proc/self/fd/%d", fd);
        opened = open_held(AT_FDCWD, handle->text, flags & ~O_NOFOLLOW, mode, gil);
        vmh_path_handle_close(handle);
        return opened;
    }
    int error = errno;
    walk *at = explain(handle, text, VMH_PATH_OBJECT | (of & VMH_PATH_DATABASE), access, error);
    if (at == NULL)
        return -1;
    /* A link to a missing file: O_CREAT creates it where the link leads. */
    if (errno == ENOENT && error == ENOENT && (flags & O_CREAT) && *at->rest == 0 && at->name[0] != 0)
        opened = open_held(at->fd, at->name, flags | O_NOFOLLOW, mode, gil);
    error = errno;
    let_go(at->fd);
    free(at);
    errno = error;
    return opened;
}

static int open_path(vmh_path_handle *handle, const char *text, int flags, mode_t mode, unsigned of, int access,
                     bool gil)
{
    size_t size;
    const char *last = last_part(text, &size);
    bool exclusive = (flags & O_CREAT) && (flags & O_EXCL), slashes = last[size] == '/';
    bool follows = !(flags & O_NOFOLLOW) && !exclusive;
    *handle = (vmh_path_handle){.fd = -1};
    if (vmh_seal_here() == NULL) {
        handle->denied = access;
        errno = EACCES;
        return -1;
    }
    if (is_dots(last, size) || (slashes && !(flags & O_CREAT)))
        return open_object(handle, text, flags, mode, of, access, gil);
    if ((flags & O_PATH) && follows)
        return open_object(handle, text, flags, mode, of, access, gil);
    if (!find_name(handle, text, last, size, of, access))
        return handle->denied != 0 && follows && !slashes
                   ? open_object(handle, text, flags, mode, of, access, gil) /* perhaps a link to a granted file */
                   : -1;
    /* With O_CREAT a trailing slash is kept: the kernel reports the error. */
    const char *name = strchr(handle->text + sizeof "/proc/self/fd/" - 1, '/') + 1;
    int opened = open_held(handle->fd, name, flags | O_NOFOLLOW, mode, gil);
    vmh_path_handle_close(handle);
    if (opened < 0 && follows && !slashes && (errno == ELOOP || errno == ENOTDIR))
        return open_object(handle, text, flags, mode, of, access, gil);
    return opened;
}

int vmh_path_handle_open(vmh_path_handle *handle, const char *text, int flags, mode_t mode, unsigned of, int access,
                         bool gil)
{
    int fd = open_path(handle, text, flags, mode, of, access, gil);
    note_use(fd >= 0);
    return fd;
}

char *vmh_path_handle_real(vmh_path_handle *handle, const char *text, int access)
{
    char *real = malloc(sizeof(real_path) + NAME_MAX + 2);
    walk *at = NULL;
    if (real == NULL) {
        *handle = (vmh_path_handle){.fd = -1};
        errno = ENOMEM;
        return NULL;
    }
    if (vmh_path_handle_find(handle, text, VMH_PATH_OBJECT, access)) {
        if (!real_of(handle->fd, real))
            goto failed;
        vmh_path_handle_close(handle);
        return real;
    }
    if (handle->denied != 0 || errno != ENOENT || (at = explain(handle, text, VMH_PATH_OBJECT, access, ENOENT)) == NULL)
        goto failed;
    if (errno != ENOENT || at->rest[0] != 0 || at->name[0] == 0)
        goto failed;
    snprintf(real, sizeof(real_path) + NAME_MAX + 2, "%s/%s", strcmp(at->real, "/") == 0 ? "" : at->real, at->name);
    let_go(at->fd);
    free(at);
    return real;
failed:;
    int error = errno;
    if (at != NULL)
        close(at->fd);
    free(at);
    free(real);
    vmh_path_handle_close(handle);
    errno = error;
    return NULL;
}

/* The path of what `handle` holds or names, malloc'ed; NULL: errno. */
static char *seen_of(const vmh_path_handle *handle)
{
    char *seen = malloc(sizeof(real_path) + NAME_MAX + 2);
    if (seen == NULL || !real_of(handle->fd, seen)) {
        free(seen);
        return NULL;
    }
    if (handle->named) {
        const char *name = strchr(handle->text + sizeof "/proc/self/fd/" - 1, '/');
        size_t length = strcmp(seen, "/") == 0 ? 0 : strlen(seen), size = strlen(name);
        while (size > 1 && name[size - 1] == '/')
            size--;
        sprintf(seen + length, "%.*s", (int)size, name);
    }
    return seen;
}

bool vmh_path_handle_opens(const vmh_path_handle *from, const vmh_path_handle *to)
{
    const vmh_list *read = &vmh_seal_here()->read;
    char *before = seen_of(from), *after = seen_of(to);
    bool opens = before == NULL || after == NULL
                 || (!path_in(before, read) && (path_in(after, read) || path_above(after, read)));
    free(before);
    free(after);
    return opens;
}

/* --- for gates */

int vmh_path_convert(PyObject *path, PyObject **given, PyObject **text)
{
    *text = NULL;
    *given = PyOS_FSPath(path);
    if (*given != NULL && PyUnicode_FSConverter(*given, text))
        return 0;
    Py_CLEAR(*given);
    return -1;
}

PyObject *vmh_path_handle_raise(const vmh_path_handle *handle, PyObject *given, PyObject *text, const char *what)
{
    if (handle->denied == 0)
        return PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, given);
    return vmh_deny(handle->denied == NO_PROC
                        ? "paths are checked through /proc/self/fd, which can't be read here: mount /proc"
                    : handle->denied == VMH_WRITE
                        ? "not granted; a task that may write there names it in task.yaml, permissions: {write: [...]}"
                        : "not granted; a task that may read there names it in task.yaml, permissions: {read: [...]}",
                    "%s('%s')", what, PyBytes_AS_STRING(text));
}

int vmh_path_absolute(PyObject *text, const char *what)
{
    if (PyBytes_AS_STRING(text)[0] == '/')
        return 0;
    vmh_deny("relative paths name files of the bundle, which are read through open() and vmhost.guest.resources",
             "%s('%s')", what, PyBytes_AS_STRING(text));
    return -1;
}

int vmh_path_handle_get(vmh_path_handle *handle, PyObject *given, PyObject *text, unsigned of, int access,
                        const char *what)
{
    *handle = (vmh_path_handle){.fd = -1};
    if (vmh_path_absolute(text, what) < 0)
        return -1;
    if (vmh_path_handle_find(handle, PyBytes_AS_STRING(text), of, access))
        return 0;
    vmh_path_handle_raise(handle, given, text, what);
    return -1;
}

int vmh_path_open(PyObject *given, PyObject *text, const char *mode_text, int flags, mode_t mode, int access,
                  const char *what)
{
    vmh_path_handle handle;
    if (vmh_path_absolute(text, what) < 0)
        return -1;
    if (vmh_fd_room() < 0)
        return -1;
    const char *before = vmh_pass_event("open");
    int rc = PySys_Audit("open", "Ozi", given, mode_text, flags);
    vmh_pass_event(before);
    if (rc < 0)
        return -1;
    int opened = vmh_path_handle_open(&handle, PyBytes_AS_STRING(text), flags, mode, VMH_PATH_OBJECT, access, true);
    if (opened < 0)
        vmh_path_handle_raise(&handle, given, text, what);
    return opened;
}

PyObject *vmh_path_handle_object(const vmh_path_handle *handle, PyObject *given)
{
    return PyBytes_Check(given) ? PyBytes_FromString(handle->text) : PyUnicode_DecodeFSDefault(handle->text);
}

void vmh_path_restore(PyObject *first, PyObject *second)
{
    PyObject *raised = PyErr_GetRaisedException();
    if (raised != NULL && PyObject_TypeCheck(raised, (PyTypeObject *)PyExc_OSError)) {
        PyOSErrorObject *error = (PyOSErrorObject *)raised;
        if (error->filename != NULL && error->filename != Py_None)
            Py_XSETREF(error->filename, Py_NewRef(first));
        if (second != NULL && error->filename2 != NULL && error->filename2 != Py_None)
            Py_XSETREF(error->filename2, Py_NewRef(second));
    }
    PyErr_SetRaisedException(raised);
}
