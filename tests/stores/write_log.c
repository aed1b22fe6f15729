/* Preloaded into a process, this writes down what the process does to the files in the folder $WRITE_LOG_FOLDER:
   writes, truncations, syncs, removals and renames, in their order, into the file $WRITE_LOG.
   tests/stores/power_cuts.py makes of it what a power cut would have left. Records: kind (u8), length of the name
   (u32), of the data (u32), offset (u64), name, data; a rename has the new name as data.

   $WRITE_LOG_LAST: the process kills itself after that many records, as kill -9 would. $WRITE_LOG_FAILS: the number of
   the write or sync, from 1, that fails, as on a full disk; with $WRITE_LOG_FAILURES, so many from there on.
   $WRITE_LOG_READ_ONLY: instead, from that write or sync on, nothing can be changed, as on a disk that the kernel has
   made read-only after an error. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_FILES 4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *names[MAX_FILES]; /* by open descriptor; NULL: not in the folder. The texts are never freed. */
static int log_file = -1;

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (real == NULL) \
    real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static void record(uint8_t kind, const char *name, const void *data, size_t length, uint64_t offset)
{
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    uint32_t name_length = (uint32_t)strlen(name), data_length = (uint32_t)length;
    struct iovec parts[] = {{&kind, 1},
                            {&name_length, 4},
                            {&data_length, 4},
                            {&offset, 8},
                            {(void *)(uintptr_t)name, name_length},
                            {(void *)(uintptr_t)data, length}};
    pthread_mutex_lock(&lock);
    if (log_file < 0 && getenv("WRITE_LOG") != NULL)
        log_file = (int)openat(AT_FDCWD, getenv("WRITE_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log_file < 0 || real(log_file, parts, 6) != (ssize_t)(17 + name_length + length))
        abort();
    static long count = 0;
    const char *last = getenv("WRITE_LOG_LAST");
    if (last != NULL && ++count >= atol(last))
        kill(getpid(), SIGKILL);
    pthread_mutex_unlock(&lock);
}

static long number_in(const char *variable, long otherwise)
{
    const char *value = getenv(variable);
    return value != NULL ? atol(value) : otherwise;
}

static int is_read_only; /* guarded by `lock` */

/* Whether this write or sync is to fail; errno says why. `name`: of its file; NULL: not in the folder. */
static int fails(const char *name)
{
    static long count = 0;
    if (name == NULL)
        return 0;
    long full = number_in("WRITE_LOG_FAILS", 0), failures = number_in("WRITE_LOG_FAILURES", 1);
    long read_only = number_in("WRITE_LOG_READ_ONLY", 0);
    pthread_mutex_lock(&lock);
    count++;
    int is_full = full > 0 && count >= full && count < full + failures;
    is_read_only |= read_only > 0 && count >= read_only;
    int error = is_read_only ? EROFS : is_full ? ENOSPC : 0;
    pthread_mutex_unlock(&lock);
    if (error)
        errno = error;
    return error != 0;
}

/* As `fails`, for what a full disk does not keep anybody from. */
static int is_refused(const char *path)
{
    const char *folder = getenv("WRITE_LOG_FOLDER");
    if (folder == NULL || path == NULL || strncmp(path, folder, strlen(folder)) != 0)
        return 0;
    pthread_mutex_lock(&lock);
    int refused = is_read_only;
    pthread_mutex_unlock(&lock);
    if (refused)
        errno = EROFS;
    return refused;
}

static const char *name_of(int file) { return file >= 0 && file < MAX_FILES ? names[file] : NULL; }

static int opened(int file, const char *path)
{
    const char *folder = getenv("WRITE_LOG_FOLDER");
    if (file >= 0 && file < MAX_FILES)
        names[file] = folder != NULL && strncmp(path, folder, strlen(folder)) == 0 ? strdup(path) : NULL;
    return file;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...); \
    int name(const char *path, int flags, ...) \
    { \
        REAL(int, #name, const char *, int, ...); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        if ((flags & O_ACCMODE) != O_RDONLY && is_refused(path)) \
            return -1; \
        return opened(real(path, flags, mode), path); \
    }
OPEN(open)
OPEN(open64)

int close(int file)
{
    REAL(int, "close", int);
    if (file >= 0 && file < MAX_FILES)
        names[file] = NULL; /* before its number is another file's, or a socket's */
    return real(file);
}

#define PWRITE(name) \
    ssize_t name(int file, const void *data, size_t length, off64_t offset); \
    ssize_t name(int file, const void *data, size_t length, off64_t offset) \
    { \
        REAL(ssize_t, #name, int, const void *, size_t, off64_t); \
        if (fails(name_of(file))) \
            return -1; \
        ssize_t done = real(file, data, length, offset); \
        if (done > 0 && name_of(file) != NULL) \
            record('w', name_of(file), data, (size_t)done, (uint64_t)offset); \
        return done; \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t write(int file, const void *data, size_t length)
{
    REAL(ssize_t, "write", int, const void *, size_t);
    if (fails(name_of(file)))
        return -1;
    ssize_t done = real(file, data, length);
    if (done > 0 && name_of(file) != NULL)
        record('w', name_of(file), data, (size_t)done, (uint64_t)(lseek64(file, 0, SEEK_CUR) - done));
    return done;
}

#define TRUNCATE(name) \
    int name(int file, off64_t length); \
    int name(int file, off64_t length) \
    { \
        REAL(int, #name, int, off64_t); \
        int failed = is_refused(name_of(file)) ? -1 : real(file, length); \
        if (!failed && name_of(file) != NULL) \
            record('t', name_of(file), NULL, 0, (uint64_t)length); \
        return failed; \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

#define SYNC(name) \
    int name(int file) \
    { \
        REAL(int, #name, int); \
        int failed = fails(name_of(file)) ? -1 : real(file); \
        if (!failed && name_of(file) != NULL) \
            record('s', name_of(file), NULL, 0, 0); \
        return failed; \
    }
SYNC(fsync)
SYNC(fdatasync)

int unlink(const char *path)
{
    REAL(int, "unlink", const char *);
    const char *folder = getenv("WRITE_LOG_FOLDER");
    int failed = is_refused(path) ? -1 : real(path);
    if (!failed && folder != NULL && strncmp(path, folder, strlen(folder)) == 0)
        record('u', path, NULL, 0, 0);
    return failed;
}

int rename(const char *from, const char *to)
{
    REAL(int, "rename", const char *, const char *);
    const char *folder = getenv("WRITE_LOG_FOLDER");
    int failed = is_refused(to) ? -1 : real(from, to);
    if (!failed && folder != NULL && strncmp(to, folder, strlen(folder)) == 0)
        record('r', from, to, strlen(to), 0);
    return failed;
}
