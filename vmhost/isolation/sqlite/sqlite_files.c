#include "sqlite/sqlite_files.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lanes/critical.h"
#include "lanes/meter.h"
#include "seal/paths.h"

/* As in sqlite3.h, which is not needed to build. */
enum { SQLITE_OK_ = 0, SQLITE_NOMEM_ = 7, SQLITE_CANTOPEN_ = 14, SQLITE_FCNTL_FILE_POINTER_ = 7 };

typedef void (*system_call)(void);

typedef struct sqlite3_vfs {
    int version, file_bytes, path_bytes;
    struct sqlite3_vfs *next;
    const char *name;
    void *data;
    void (*others[13])(void); /* xOpen to xCurrentTimeInt64 */
    int (*set_system_call)(struct sqlite3_vfs *, const char *, system_call);
    system_call (*get_system_call)(struct sqlite3_vfs *, const char *);
} sqlite3_vfs;

/* The methods of version 1. Later versions map files. */
typedef struct io_methods {
    int version;
    void (*methods[12])(void); /* xClose to xDeviceCharacteristics */
} io_methods;

typedef struct sqlite3_file {
    const io_methods *methods;
} sqlite3_file;

typedef struct unmapped { /* the methods of one kind of file, and a copy without mapping; never freed */
    struct unmapped *next;
    const io_methods *full;
    io_methods plain;
} unmapped;

static sqlite3_vfs *(*vfs_find)(const char *);
static int (*file_control)(void *, const char *, int, void *);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unmapped *kinds; /* under the lock */

/* --- system calls made by SQLite. On threads of VMs, without the GIL. */

static int (*plain_open)(const char *, int, int);
static int (*plain_close)(int);
static int (*plain_access)(const char *, int);
static int (*plain_stat)(const char *, struct stat *);
static int (*plain_unlink)(const char *);
static int (*plain_mkdir)(const char *, mode_t);
static int (*plain_rmdir)(const char *);
static int (*plain_open_folder)(const char *, int *);
static void *(*plain_mmap)(void *, size_t, int, int, int, off_t);

/* Holds the path of a call on a VM's thread, until `leave`. False with errno. SQLite may hold its own locks: this is a
 * critical section, so that a thread that overflows its stack is not parked with them (overflow.c). */
static bool find(vmh_path_handle *handle, const char *path, unsigned of, int access)
{
    bool found = false;
    vmh_critical_enter();
    if (path[0] == '/')
        found = vmh_path_handle_find(handle, path, of | VMH_PATH_DATABASE, access);
    else
        errno = EACCES;
    if (!found)
        vmh_critical_leave();
    return found;
}

static int leave(vmh_path_handle *handle, int rc)
{
    vmh_path_handle_close(handle);
    vmh_critical_leave();
    return rc;
}

/* The meters that pay for SQLite's descriptors, by number; under the lock. SQLite may close a file on a thread of
 * another VM, or of the host: it keeps files open as long as one of its connections in the process locks them. */
static vmh_meter **payers;
static size_t payers_room;

/* The new descriptor counts as one of this VM's. False: it is closed, with errno. */
static bool pay(int fd)
{
    vmh_meter *meter = vmh_vm_meter(vmh_seal_here()->vm);
    bool paid = !vmh_fd_is_last(fd) && vmh_meter_open(meter);
    int error = EMFILE;
    vmh_mutex_lock(&lock);
    if (paid && (size_t)fd >= payers_room) {
        size_t room = (size_t)fd * 2 + 16;
        vmh_meter **more = realloc(payers, room * sizeof *more);
        if (more == NULL) {
            vmh_meter_close(meter);
            paid = false;
            error = ENOMEM;
        } else {
            memset(more + payers_room, 0, (room - payers_room) * sizeof *more);
            payers = more;
            payers_room = room;
        }
    }
    if (paid)
        payers[fd] = vmh_meter_ref(meter);
    vmh_mutex_unlock(&lock);
    if (!paid) {
        close(fd);
        errno = error;
    }
    return paid;
}

static int our_close(int fd)
{
    vmh_meter *meter = NULL;
    vmh_mutex_lock(&lock);
    if (fd >= 0 && (size_t)fd < payers_room) {
        meter = payers[fd];
        payers[fd] = NULL;
    }
    vmh_mutex_unlock(&lock);
    if (meter != NULL) {
        vmh_meter_close(meter);
        vmh_meter_unref(meter);
    }
    return plain_close(fd);
}

static int our_open(const char *path, int flags, int mode)
{
    vmh_path_handle handle;
    if (vmh_seal_here() == NULL)
        return plain_open(path, flags, mode);
    int to = flags & O_ACCMODE;
    int access = to == O_RDONLY ? VMH_READ : to == O_WRONLY ? VMH_WRITE : VMH_READ | VMH_WRITE;
    if (flags & (O_CREAT | O_TRUNC))
        access |= VMH_WRITE;
    errno = EACCES;
    if (path[0] != '/')
        return -1;
    vmh_critical_enter();
    int fd =
        vmh_path_handle_open(&handle, path, flags, (mode_t)mode, VMH_PATH_OBJECT | VMH_PATH_DATABASE, access, false);
    if (fd >= 0 && !pay(fd))
        fd = -1;
    vmh_critical_leave();
    return fd;
}

static int our_access(const char *path, int mode)
{
    vmh_path_handle handle;
    if (vmh_seal_here() == NULL)
        return plain_access(path, mode);
    return !find(&handle, path, VMH_PATH_OBJECT, VMH_READ) ? -1 : leave(&handle, access(handle.text, mode));
}

static int our_stat(const char *path, struct stat *status)
{
    vmh_path_handle handle;
    if (vmh_seal_here() == NULL)
        return plain_stat(path, status);
    return !find(&handle, path, VMH_PATH_OBJECT, VMH_READ) ? -1 : leave(&handle, fstat(handle.fd, status));
}

static int our_unlink(const char *path)
{
    vmh_path_handle handle;
    if (vmh_seal_here() == NULL)
        return plain_unlink(path);
    return !find(&handle, path, VMH_PATH_NAME, VMH_WRITE) ? -1 : leave(&handle, unlink(handle.text));
}

static int our_mkdir(const char *path, mode_t mode)
{
    vmh_path_handle handle;
    if (vmh_seal_here() == NULL)
        return plain_mkdir(path, mode);
    return !find(&handle, path, VMH_PATH_NAME, VMH_WRITE) ? -1 : leave(&handle, mkdir(handle.text, mode));
}

static int our_rmdir(const char *path)
{
    vmh_path_handle handle;
    if (vmh_seal_here() == NULL)
        return plain_rmdir(path);
    return !find(&handle, path, VMH_PATH_NAME, VMH_WRITE) ? -1 : leave(&handle, rmdir(handle.text));
}

/* Opens the folder of the file `path`, for fsync; granted with the file. */
static int our_open_folder(const char *path, int *fd)
{
    vmh_path_handle handle;
    if (vmh_seal_here() == NULL)
        return plain_open_folder(path, fd);
    *fd = -1;
    if (find(&handle, path, VMH_PATH_NAME, VMH_WRITE)) {
        *fd = handle.named ? openat(handle.fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
        leave(&handle, 0);
    }
    return *fd < 0 ? SQLITE_CANTOPEN_ : SQLITE_OK_;
}

static void *our_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    if (vmh_seal_here() == NULL)
        return plain_mmap(at, size, protection, flags, fd, offset);
    errno = EACCES;
    return MAP_FAILED;
}

static const struct {
    const char *name;
    system_call ours, *plain;
} calls[] = {
#define CALL(NAME, FUNCTION) {NAME, (system_call)our_##FUNCTION, (system_call *)&plain_##FUNCTION}
    CALL("access", access), CALL("stat", stat),   CALL("unlink", unlink),
    CALL("mkdir", mkdir),   CALL("rmdir", rmdir), CALL("openDirectory", open_folder),
    CALL("mmap", mmap),     CALL("close", close), CALL("open", open), /* last: shows that all are installed */
};
/* lstat and readlink stay: SQLite only builds a path from their results, which is checked when it is used. */
enum { CALLS = sizeof calls / sizeof *calls };

/* --- installation */

bool vmh_sqlite_files_find(void *handle)
{
    *(void **)&vfs_find = dlsym(handle, "sqlite3_vfs_find");
    *(void **)&file_control = dlsym(handle, "sqlite3_file_control");
    return vfs_find != NULL && file_control != NULL;
}

/* The host may remove our functions; they are then installed again. Functions that it put over ours call them, and
 * stay. */
static bool put(sqlite3_vfs *vfs, int i)
{
    system_call now = vfs->get_system_call(vfs, calls[i].name), plain;
    memcpy(&plain, calls[i].plain, sizeof plain);
    if (now == NULL || now == calls[i].ours || (plain != NULL && now != plain))
        return true;                          /* NULL: this SQLite does not call it */
    memcpy(calls[i].plain, &now, sizeof now); /* first: another thread may call ours at once */
    return vfs->set_system_call(vfs, calls[i].name, calls[i].ours) == SQLITE_OK_;
}

bool vmh_sqlite_files_install(void)
{
    sqlite3_vfs *vfs = vfs_find("unix"); /* takes a mutex of SQLite's */
    vmh_mutex_lock(&lock);
    bool ok = vfs != NULL && vfs->version >= 3;
    if (ok && vfs->get_system_call(vfs, "open") != (system_call)our_open)
        for (int i = 0; ok && i < CALLS; i++)
            ok = put(vfs, i);
    vmh_mutex_unlock(&lock);
    return ok;
}

int vmh_sqlite_files_unmapped(void *connection)
{
    sqlite3_file *file = NULL;
    if (file_control(connection, "main", SQLITE_FCNTL_FILE_POINTER_, &file) != SQLITE_OK_ || file == NULL
        || file->methods == NULL || file->methods->version < 2)
        return SQLITE_OK_; /* no file */
    vmh_mutex_lock(&lock);
    unmapped *kind = kinds;
    while (kind != NULL && kind->full != file->methods)
        kind = kind->next;
    if (kind == NULL && (kind = malloc(sizeof *kind)) != NULL) {
        *kind = (unmapped){.next = kinds, .full = file->methods, .plain = *file->methods};
        kind->plain.version = 1;
        kinds = kind;
    }
    vmh_mutex_unlock(&lock);
    if (kind == NULL)
        return SQLITE_NOMEM_;
    file->methods = &kind->plain;
    return SQLITE_OK_;
}
