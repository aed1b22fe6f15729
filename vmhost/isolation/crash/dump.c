#include "crash/dump.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cpython/stack.h"

/* The functions of faulthandler: CPython 3.14 exports them but declares them in no public header. */
PyAPI_FUNC(void) _Py_InitDumpStack(void);
PyAPI_FUNC(void) _Py_DumpStack(int fd);

enum { FRAMES = 64, THREADS = 16, VMS = 64 };

static atomic_int file = -1;
static struct {
    const char *data;
    size_t size;
} notes[VMH_DUMP_NOTES];
static struct {
    _Atomic(PyInterpreterState *) interpreter;
    _Atomic(const char *) entry;
    atomic_llong started_ns;
    atomic_size_t bytes;
} about[VMH_CRASH_SLOTS];
static unsigned char lines[VMH_STACK_LINES_BYTES]; /* scratch of the one thread that writes the dump */

int vmh_dump_open(const char *path)
{
    if (atomic_load(&file) >= 0)
        return EEXIST;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return errno;
    _Py_InitDumpStack();
    atomic_store(&file, fd);
    return 0;
}

void vmh_dump_forked(void)
{
    int fd = atomic_exchange(&file, -1);
    if (fd >= 0)
        close(fd);
}

void vmh_dump_note(int which, const char *data, size_t size)
{
    notes[which].size = size;
    notes[which].data = data;
}

void vmh_dump_interpreter(int slot, void *interpreter) { atomic_store(&about[slot].interpreter, interpreter); }

void vmh_dump_call(int slot, const char *entry, size_t bytes, int64_t started_ns)
{
    atomic_store_explicit(&about[slot].started_ns, started_ns, memory_order_relaxed);
    atomic_store_explicit(&about[slot].bytes, bytes, memory_order_relaxed);
    atomic_store_explicit(&about[slot].entry, entry, memory_order_release);
}

void vmh_dump_forget(int slot)
{
    vmh_dump_interpreter(slot, NULL);
    vmh_dump_call(slot, NULL, 0, 0);
}

/* ---- in the handler */

static void put(int fd, const char *text, size_t size)
{
    while (size > 0) {
        ssize_t done = write(fd, text, size);
        if (done <= 0 && errno != EINTR)
            return;
        text += done > 0 ? done : 0;
        size -= done > 0 ? (size_t)done : 0;
    }
}

static void put_text(int fd, const char *text) { put(fd, text, strlen(text)); }

/* Writes a field on a line of its own. Control characters become '?', since the task's author chooses the name. */
static void put_field(int fd, const char *name, const char *value)
{
    char line[VMH_STACK_NAME_BYTES + 32];
    size_t size = 0;
    for (const char *part = name; *part != 0 && size < 30; part++)
        line[size++] = *part;
    line[size++] = ' ';
    for (; *value != 0 && size < sizeof line - 1; value++)
        line[size++] = (unsigned char)*value < ' ' ? '?' : *value;
    line[size++] = '\n';
    put(fd, line, size);
}

static char *decimal(char room[24], int64_t number)
{
    char *at = room + 23;
    uint64_t rest = number < 0 ? -(uint64_t)number : (uint64_t)number;
    *at = 0;
    do
        *--at = (char)('0' + rest % 10);
    while ((rest /= 10) != 0);
    if (number < 0)
        *--at = '-';
    return at;
}

static void put_number(int fd, const char *name, int64_t number)
{
    char room[24];
    put_field(fd, name, decimal(room, number));
}

static void put_stack(int fd, PyThreadState *ts)
{
    static vmh_stack_frame frames[FRAMES];
    static vmh_stack_code code;
    char room[24];
    bool cut;
    int count = vmh_stack_read(ts, frames, FRAMES, &cut);
    for (int i = 0; i < count; i++) {
        if (!vmh_stack_name_into(&frames[i], &code, lines))
            continue;
        put_text(fd, "  File \"");
        put_text(fd, code.file);
        put_text(fd, "\", line ");
        put_text(fd, decimal(room, vmh_stack_line(code.lines, code.lines_size, code.first_line, frames[i].offset)));
        put_text(fd, ", in ");
        put_field(fd, code.name, "");
    }
    if (count < 0)
        put_text(fd, "  (could not be read)\n");
    else if (cut)
        put_text(fd, "  ...\n");
}

static void put_vm(int fd, const vmh_crash_slot *slot, int index, int64_t now_ns)
{
    const char *entry = atomic_load(&about[index].entry);
    put_number(fd, "vm", (int64_t)slot->vm_id);
    put_field(fd, "task", slot->task);
    put_field(fd, "version", slot->version);
    put_number(fd, "phase", atomic_load(&slot->phase));
    if (entry != NULL) {
        put_field(fd, "entry", entry);
        put_number(fd, "bytes", (int64_t)atomic_load(&about[index].bytes));
        put_number(fd, "running_us", (now_ns - atomic_load(&about[index].started_ns)) / 1000);
    }
}

/* The calling thread's state, attached or (by thread id) detached; NULL: the thread runs no Python. */
static PyThreadState *own_state(PyInterpreterState *interpreter)
{
    PyThreadState *ts = PyThreadState_GetUnchecked();
    if (ts != NULL || interpreter == NULL)
        return ts;
    ts = PyInterpreterState_ThreadHead(interpreter);
    for (int thread = 0; ts != NULL && ts->thread_id != (unsigned long)pthread_self(); ts = PyThreadState_Next(ts))
        if (++thread == 1024)
            return NULL;
    return ts;
}

void vmh_dump_write(int number, int mine, const vmh_crash_slot *slots)
{
    static atomic_int begun;
    int fd = atomic_load(&file), error = errno;
    struct timespec wall, now = {0};
    if (fd < 0 || atomic_exchange(&begun, 1) != 0)
        return;
    signal(SIGALRM, SIG_DFL);
    alarm(VMH_DUMP_WAIT_S); /* ends the process if the dump hangs */
    clock_gettime(CLOCK_REALTIME, &wall);
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t now_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    put_text(fd, "VMHCRASH 1\n");
    put_number(fd, "signal", number);
    put_number(fd, "pid", getpid());
    put_number(fd, "time", wall.tv_sec);
    if (mine >= 0)
        put_vm(fd, &slots[mine], mine, now_ns);
    put_text(fd, "== tasks\n");
    for (int i = VMH_DUMP_NOTES - 1; i >= 0; i--) {
        if (notes[i].data != NULL)
            put(fd, notes[i].data, strnlen(notes[i].data, notes[i].size));
        put_text(fd, i == 0 ? "\n" : "\n== log\n");
    }
    PyThreadState *current = own_state(mine < 0 ? PyInterpreterState_Main() : atomic_load(&about[mine].interpreter));
    put_text(fd, "== python\n");
    if (current != NULL)
        put_stack(fd, current);
    put_text(fd, "== native\n");
    _Py_DumpStack(fd);
    put_text(fd, "== vms\n");
    for (int i = 0, written = 0; i < VMH_CRASH_SLOTS && written < VMS; i++) {
        PyInterpreterState *interpreter = atomic_load(&about[i].interpreter);
        if (!atomic_load(&slots[i].used) || interpreter == NULL)
            continue;
        written++;
        put_text(fd, "-- ");
        put_vm(fd, &slots[i], i, now_ns);
        PyThreadState *ts = PyInterpreterState_ThreadHead(interpreter);
        for (int thread = 0; ts != NULL && thread < THREADS; thread++, ts = PyThreadState_Next(ts)) {
            put_text(fd, "thread\n");
            put_stack(fd, ts);
        }
    }
    put_text(fd, "== end\n");
    alarm(0);
    errno = error;
}
