/* A guest may use only descriptors that it created itself.
 *
 * A number belongs to the guest from the call that created it until the guest closes it. It stays reserved while the
 * guest may still use it: through an object that holds it (FileIO, socket, epoll, a TLS connection) or a call in
 * progress on another thread. Each of these counts as a use. Closing a number that is in use replaces it with a dead
 * descriptor (O_PATH: the kernel returns EBADF), which is closed after the last use. So the host cannot be given the
 * number meanwhile, and stale holders reach nothing. Under the VM's GIL.
 *
 * A VM has a limited number of descriptors, and none of the process's last ones, so that others still get some.
 */
#include "seal/sealing.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lanes/meter.h"

enum {
    LAST_MAX = 64
}; /* of the descriptors that the process may have, these are the host's alone; of few, an eighth */

/* NULL: not created by the guest, and not held by it. */
static vmh_owned_fd *entry_of(vmh_seal *seal, int fd)
{
    if (seal == NULL || fd < 0 || (size_t)fd >= seal->fd_room)
        return NULL;
    vmh_owned_fd *entry = &seal->fds[fd];
    return entry->state == VMH_FD_NONE ? NULL : entry;
}

static bool is_same(int fd, const vmh_owned_fd *entry)
{
    struct stat status;
    return fstat(fd, &status) == 0 && status.st_dev == entry->device && status.st_ino == entry->inode;
}

/* Raises OSError(EMFILE). -1. */
static int raise_full(vmh_meter *meter)
{
    PyObject *text =
        PyUnicode_FromFormat("%s: this VM has %d of %d descriptors open; a task that needs more says so in "
                             "task.yaml, limits: {descriptors: ...}",
                             strerror(EMFILE), atomic_load(&meter->descriptors), atomic_load(&meter->descriptors_max));
    PyObject *arguments = text == NULL ? NULL : Py_BuildValue("(iN)", EMFILE, text);
    if (arguments != NULL)
        PyErr_SetObject(PyExc_OSError, arguments);
    Py_XDECREF(arguments);
    return -1;
}

bool vmh_fd_is_last(int fd)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return false;
    rlim_t last = limit.rlim_cur / 8 < LAST_MAX ? limit.rlim_cur / 8 : LAST_MAX;
    return (rlim_t)fd >= limit.rlim_cur - last;
}

int vmh_fd_room(void)
{
    vmh_seal *seal = vmh_seal_here();
    vmh_meter *meter = seal == NULL ? NULL : vmh_vm_meter(seal->vm);
    if (meter == NULL || atomic_load(&meter->descriptors) < atomic_load(&meter->descriptors_max))
        return 0;
    return raise_full(meter);
}

int vmh_fd_open(int fd)
{
    vmh_meter *meter = vmh_vm_meter(vmh_seal_here()->vm);
    if (vmh_fd_is_last(fd)) {
        errno = EMFILE;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    return vmh_meter_open(meter) ? 0 : raise_full(meter);
}

/* The guest's number `fd` is free again. */
static void forget(vmh_seal *seal, vmh_owned_fd *entry)
{
    entry->state = VMH_FD_NONE;
    vmh_meter_close(vmh_vm_meter(seal->vm));
}

int vmh_fd_own(int fd)
{
    vmh_seal *seal = vmh_seal_here();
    struct stat status;
    if (fd < 0 || seal == NULL || fstat(fd, &status) != 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        goto failed;
    }
    if ((size_t)fd >= seal->fd_room) {
        size_t room = (size_t)fd * 2 + 16;
        vmh_owned_fd *fds = realloc(seal->fds, room * sizeof *fds);
        if (fds == NULL) {
            PyErr_NoMemory();
            goto failed;
        }
        memset(fds + seal->fd_room, 0, (room - seal->fd_room) * sizeof *fds);
        seal->fds = fds;
        seal->fd_room = room;
    }
    if (seal->fds[fd].state == VMH_FD_NONE && vmh_fd_open(fd) < 0)
        goto failed;
    vmh_owned_fd *entry = &seal->fds[fd]; /* `uses` may be nonzero if someone else closed the number */
    *entry = (vmh_owned_fd){.state = VMH_FD_OPEN,
                            .uses = entry->uses,
                            .blocks = !S_ISREG(status.st_mode),
                            .folder = S_ISDIR(status.st_mode),
                            .device = status.st_dev,
                            .inode = status.st_ino};
    return 0;
failed:
    if (fd >= 0)
        close(fd);
    return -1;
}

bool vmh_fd_owned(int fd)
{
    vmh_owned_fd *entry = entry_of(vmh_seal_here(), fd);
    return entry != NULL && entry->state == VMH_FD_OPEN && is_same(fd, entry);
}

const vmh_owned_fd *vmh_fd_entry(int fd) { return entry_of(vmh_seal_here(), fd); }

/* Sets the error for a descriptor that is not the guest's. Always -1. */
static int refuse(int fd, const char *what)
{
    if (entry_of(vmh_seal_here(), fd) != NULL
        || fcntl(fd, F_GETFD) < 0) { /* closed by the guest, or not open: CPython's own error */
        errno = EBADF;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    vmh_deny("a task uses descriptors that it made itself; this one is the host's", "%s(%d)", what, fd);
    return -1;
}

int vmh_fd_check(int fd, const char *what) { return vmh_fd_owned(fd) ? 0 : refuse(fd, what); }

int vmh_fd_hold(int fd, const char *what)
{
    vmh_owned_fd *entry = entry_of(vmh_seal_here(), fd);
    if (entry == NULL || entry->state != VMH_FD_OPEN)
        return refuse(fd, what);
    entry->uses++;
    return 0;
}

void vmh_fd_drop(int fd)
{
    vmh_owned_fd *entry = entry_of(vmh_seal_here(), fd);
    if (entry == NULL || entry->uses == 0 || --entry->uses > 0 || entry->state != VMH_FD_CLOSED)
        return;
    forget(vmh_seal_here(), entry);
    close(fd);
}

/* Replaces `fd` with a dead descriptor. If none can be opened, the file stays open until the last use. */
static void put_dead(int fd)
{
    int dead = open("/", O_PATH | O_CLOEXEC);
    while (dead >= 0 && dup3(dead, fd, O_CLOEXEC) < 0 && (errno == EINTR || errno == EBUSY))
        ;
    if (dead >= 0)
        close(dead);
}

int vmh_fd_close(int fd)
{
    vmh_owned_fd *entry = entry_of(vmh_seal_here(), fd);
    int error = 0;
    if (entry == NULL || entry->state != VMH_FD_OPEN)
        return EBADF;
    if (entry->uses == 0) {
        forget(vmh_seal_here(), entry); /* before close: afterwards the number may be reused */
        Py_BEGIN_ALLOW_THREADS error = close(fd) == 0 ? 0 : errno;
        Py_END_ALLOW_THREADS return error;
    }
    entry->state = VMH_FD_CLOSED;
    entry->uses++; /* our own: other threads run meanwhile, and the table may move */
    Py_BEGIN_ALLOW_THREADS put_dead(fd);
    Py_END_ALLOW_THREADS vmh_fd_drop(fd);
    return 0;
}

int vmh_fd_release(PyObject *object, bool closes)
{
    int *field = vmh_compat_fd(object), fd = *field;
    if (fd < 0)
        return 0;
    *field = -1;
    vmh_seal *seal = vmh_seal_here();
    for (vmh_fd_init *init = seal == NULL ? NULL : seal->fd_inits; init != NULL; init = init->next)
        if (init->object == object)
            init->released = true;
    vmh_owned_fd *entry = entry_of(seal, fd);
    if (entry == NULL)
        return EBADF;
    if (!closes || entry->state != VMH_FD_OPEN) {
        vmh_fd_drop(fd);
        return closes ? EBADF : 0;
    }
    if (entry->uses > 0)
        entry->uses--;
    return vmh_fd_close(fd);
}

void vmh_fd_init_begin(vmh_seal *seal, vmh_fd_init *init, PyObject *object)
{
    *init = (vmh_fd_init){.next = seal->fd_inits, .object = object};
    seal->fd_inits = init;
}

void vmh_fd_init_end(vmh_seal *seal, vmh_fd_init *init)
{
    for (vmh_fd_init **link = &seal->fd_inits; *link != NULL; link = &(*link)->next)
        if (*link == init) {
            *link = init->next;
            break;
        }
}

void vmh_fd_dealloc(PyObject *object, destructor original, bool closes)
{
    if (vmh_seal_here() != NULL) {
        if (Py_TYPE(object)->tp_finalize != NULL && PyObject_CallFinalizerFromDealloc(object) < 0)
            return; /* it was resurrected */
        PyObject *raised = PyErr_GetRaisedException();
        vmh_fd_release(object, closes);
        PyErr_SetRaisedException(raised);
    }
    original(object);
}

void vmh_fds_end(vmh_seal *seal)
{
    for (size_t fd = 0; fd < seal->fd_room; fd++)
        if (seal->fds[fd].state == VMH_FD_CLOSED
            || (seal->fds[fd].state == VMH_FD_OPEN && is_same((int)fd, &seal->fds[fd])))
            close((int)fd);
    free(seal->fds);
    while (seal->fd_uses != NULL) { /* of objects that outlive their interpreter */
        vmh_fd_use *next = seal->fd_uses->next;
        free(seal->fd_uses);
        seal->fd_uses = next;
    }
    while (seal->listings != NULL) { /* likewise */
        vmh_listing *next = seal->listings->next;
        closedir(seal->listings->folder);
        free(seal->listings);
        seal->listings = next;
    }
    seal->fds = NULL;
    seal->fd_room = 0;
}
