#include "crash/crash.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "crash/dump.h"
#include "memory/overflow.h"

static const char magic[8] = "VMHCRSH1";

/* Large enough for a chained handler such as faulthandler's. */
enum { STACK_BYTES = 64 * 1024 };
static const int fatal[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
enum { FATAL_COUNT = sizeof fatal / sizeof *fatal };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static vmh_crash_map map;
static atomic_int file = -1; /* the file with the same contents as `map`; -1: none. Open, and locked, until exit */
static char *open_path;      /* guarded by lock */
static struct sigaction before_us[FATAL_COUNT];

static _Thread_local vmh_crash_slot *mine __attribute__((tls_model("initial-exec")));
static _Thread_local void *stack;

static void on_fatal(int number, siginfo_t *info, void *context)
{
    if (number == SIGSEGV && vmh_overflow_fault(info, context))
        return;
    if (mine != NULL) {
        atomic_store(&mine->signal, number);
        int fd = atomic_load(&file), error = errno;
        if (fd >= 0 && pwrite(fd, mine, sizeof *mine, (char *)mine - (char *)&map) < 0) {
            /* nothing more can be done */
        }
        errno = error;
    }
    vmh_dump_write(number, mine == NULL ? -1 : (int)(mine - map.slots), map.slots);
    /* Restore the previous handler: a fault recurs when we return, an abort is raised again. */
    for (int i = 0; i < FATAL_COUNT; i++)
        if (fatal[i] == number)
            sigaction(number, &before_us[i], NULL);
    raise(number);
}

/* Lock held. */
static void install(void)
{
    static bool installed;
    if (installed)
        return;
    installed = true;
    vmh_overflow_install();
    for (int i = 0; i < FATAL_COUNT; i++) {
        struct sigaction ours = {.sa_sigaction = on_fatal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        sigemptyset(&ours.sa_mask);
        sigaction(fatal[i], &ours, &before_us[i]);
    }
}

void vmh_crash_install(void)
{
    pthread_mutex_lock(&lock);
    install();
    pthread_mutex_unlock(&lock);
}

int vmh_crash_open(const char *path, vmh_crash_map *before)
{
    int rc = 0, fd = -1;
    memset(before, 0, sizeof *before);
    pthread_mutex_lock(&lock);
    if (open_path != NULL && strcmp(open_path, path) == 0)
        goto done;
    struct stat found;
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0 || fstat(fd, &found) < 0) {
        rc = errno == EWOULDBLOCK ? EBUSY : errno;
        goto done;
    }
    if (!S_ISREG(found.st_mode)) {
        rc = EINVAL;
        goto done;
    }
    ssize_t got = pread(fd, before, sizeof *before, 0);
    if (got != (ssize_t)sizeof *before || memcmp(before->magic, magic, sizeof magic) != 0)
        memset(before, 0, sizeof *before);
    if (ftruncate(fd, 0) < 0) { /* a crash is reported once, whether or not the rest succeeds */
        rc = errno;
        goto done;
    }
    if (open_path != NULL) {
        rc = EEXIST;
        goto done;
    }
    memcpy(map.magic, magic, sizeof magic);
    map.pid = (int32_t)getpid();
    if ((rc = posix_fallocate(fd, 0, sizeof map)) != 0) {
        (void)!ftruncate(fd, 0);
        goto done;
    }
    if (pwrite(fd, &map, offsetof(vmh_crash_map, slots), 0) < 0 || (open_path = strdup(path)) == NULL) {
        rc = errno;
        goto done;
    }
    atomic_store(&file, fd);
    install();
    fd = -1;
done:
    pthread_mutex_unlock(&lock);
    if (fd >= 0)
        close(fd);
    return rc;
}

void vmh_crash_forked(void)
{
    vmh_dump_forked();
    int fd = atomic_exchange(&file, -1);
    if (fd >= 0)
        close(fd);
}

vmh_crash_slot *vmh_crash_thread_enter(uint64_t vm_id)
{
    vmh_crash_slot *slot = NULL;
    for (int i = 0; i < VMH_CRASH_SLOTS && slot == NULL; i++)
        if (atomic_exchange(&map.slots[i].used, 1) == 0)
            slot = &map.slots[i];
    if (slot != NULL) {
        atomic_store(&slot->signal, 0);
        slot->vm_id = vm_id;
        slot->task[0] = slot->version[0] = 0;
        vmh_dump_forget((int)(slot - map.slots));
    }
    vmh_crash_thread_join(slot);
    return slot;
}

void vmh_crash_thread_join(vmh_crash_slot *slot)
{
    mine = slot;
    stack = malloc(STACK_BYTES);
    if (stack != NULL)
        sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = STACK_BYTES}, NULL);
}

void vmh_crash_thread_leave(vmh_crash_slot *slot)
{
    mine = NULL;
    sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL);
    free(stack);
    stack = NULL;
    if (slot != NULL) {
        vmh_dump_forget((int)(slot - map.slots));
        atomic_store(&slot->used, 0);
    }
}

void vmh_crash_interpreter(vmh_crash_slot *slot, void *interpreter)
{
    if (slot != NULL)
        vmh_dump_interpreter((int)(slot - map.slots), interpreter);
}

void vmh_crash_call(vmh_crash_slot *slot, const char *entry, size_t bytes, int64_t started_ns)
{
    if (slot != NULL)
        vmh_dump_call((int)(slot - map.slots), entry, bytes, started_ns);
}

void vmh_crash_name(vmh_crash_slot *slot, const char *task, const char *version)
{
    if (slot == NULL)
        return;
    snprintf(slot->task, sizeof slot->task, "%s", task);
    snprintf(slot->version, sizeof slot->version, "%s", version);
}
