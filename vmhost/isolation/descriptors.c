/* The descriptors that the guest made itself: it uses these and no others. */
#include "sealing.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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
