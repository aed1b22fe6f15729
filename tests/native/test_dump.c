/* The dump of a crashing process (crash/dump.c), without CPython: complete if writes are split or interrupted;
 * if one of them fails, all others are there. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>

#include "check.h"
#include "cpython/stack.h"
#include "crash/dump.h"

enum { MINE = 3, OTHER = 700, FRAMES = 3 };
enum failing { NOTHING, FAILS, INTERRUPTED, IN_PIECES };

static vmh_crash_slot slots[VMH_CRASH_SLOTS];
static PyThreadState states[3]; /* of the slot MINE: the calling thread's behind another's; of OTHER */
static PyInterpreterState *main_interpreter = (PyInterpreterState *)(void *)&states[1];
static char path[] = "/tmp/test_dump.XXXXXX";
static int target = -1, opens; /* opens: errno of what fails; 0: nothing */
static enum failing failing;
static long writes, failing_at; /* the number of the failing write */

int __real_open(const char *name, int flags, ...);
int __wrap_open(const char *name, int flags, ...);
ssize_t __real_write(int file, const void *from, size_t bytes);
ssize_t __wrap_write(int file, const void *from, size_t bytes);

int __wrap_open(const char *name, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    const int mode = va_arg(more, int);
    va_end(more);
    errno = opens;
    return opens != 0 ? -1 : __real_open(name, flags, mode);
}

ssize_t __wrap_write(int file, const void *from, size_t bytes)
{
    if (failing == NOTHING || (failing != IN_PIECES && writes++ != failing_at))
        return __real_write(file, from, bytes);
    if (failing == IN_PIECES)
        return __real_write(file, from, bytes > 3 ? 3 : bytes);
    errno = failing == INTERRUPTED ? EINTR : EIO;
    return -1;
}

/* ---- CPython and its stacks */

void _Py_InitDumpStack(void);
void _Py_DumpStack(int fd);
void _Py_InitDumpStack(void) {}
void _Py_DumpStack(int fd) { CHECK(__real_write(fd, "  Binary file\n", 14) == 14); }

PyThreadState *PyThreadState_GetUnchecked(void) { return NULL; }
PyInterpreterState *PyInterpreterState_Main(void) { return main_interpreter; }
PyThreadState *PyInterpreterState_ThreadHead(PyInterpreterState *interpreter) { return (void *)interpreter; }
PyThreadState *PyThreadState_Next(PyThreadState *ts) { return ts->next; }

int vmh_stack_read(PyThreadState *ts, vmh_stack_frame *frames, int max, bool *cut)
{
    CHECK(max > FRAMES);
    *cut = ts == &states[1];
    if (ts == &states[2])
        return -1;
    for (int i = 0; i < FRAMES; i++)
        frames[i] = (vmh_stack_frame){.code = (uintptr_t)i, .offset = i};
    return FRAMES;
}

/* The second one has ended. */
bool vmh_stack_name_into(const vmh_stack_frame *frame, vmh_stack_code *code, unsigned char *room)
{
    *code = (vmh_stack_code){.first_line = 10, .lines = room};
    memset(code->name, 'n', VMH_STACK_NAME_BYTES - 1); /* as long as a name may be */
    snprintf(code->file, sizeof code->file, "task@1/main.py");
    return frame->code != 1;
}

int vmh_stack_line(const unsigned char *lines, size_t size, int first_line, int offset)
{
    CHECK(lines != NULL && size == 0);
    return first_line + offset;
}

/* ---- the test */

static size_t written(char *to, size_t room)
{
    ssize_t size = pread(target, to, room - 1, 0);
    CHECK(size > 0 && (size_t)size < room - 1);
    to[size] = 0;
    return (size_t)size;
}

/* One process that crashes; it writes once in its life. `to`: what it wrote. Gives whether it came to the write that
 * was to fail. */
static bool crash(enum failing how, long at, int mine, char *to, size_t room)
{
    CHECK(ftruncate(target, 0) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        failing = how;
        failing_at = at;
        errno = ENOENT;
        if (vmh_dump_open(path) != 0)
            _exit(1);
        errno = ENOENT;
        vmh_dump_write(SIGSEGV, mine, slots);
        bool fine = errno == ENOENT && alarm(0) == 0 && vmh_dump_open(path) == EEXIST;
        vmh_dump_write(SIGBUS, mine, slots); /* the second thread that crashes */
        vmh_dump_forked();
        _exit(!fine ? 1 : writes > failing_at ? 0 : 2);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) != 1);
    written(to, room);
    return WEXITSTATUS(status) == 0;
}

static void fill(void)
{
    const char *tasks[] = {"shop", "line\nbreak"};
    for (int i = 0; i < 2; i++) {
        vmh_crash_slot *slot = &slots[i == 0 ? MINE : OTHER];
        atomic_store(&slot->used, 1);
        atomic_store(&slot->phase, 3);
        slot->vm_id = (uint64_t)i + 41;
        snprintf(slot->task, sizeof slot->task, "%s", tasks[i]);
        snprintf(slot->version, sizeof slot->version, "1.0");
        vmh_dump_interpreter(i == 0 ? MINE : OTHER, &states[i == 0 ? 0 : 2]);
    }
    static char entry[VMH_STACK_NAME_BYTES + 100] = "main:";
    memset(entry + 5, 'r', sizeof entry - 6); /* longer than a line has room for */
    vmh_dump_call(MINE, entry, 9000, -5);
    vmh_dump_note(0, "a log", 100); /* up to its zero byte */
    vmh_dump_note(1, "some tasks and more", 10);
    states[0] = (PyThreadState){.thread_id = 1, .next = &states[1]};
    states[1] = (PyThreadState){.thread_id = (unsigned long)pthread_self()};
    states[2] = (PyThreadState){.thread_id = 2};
}

/* The number of lines of `whole`, except for those with times, that are not among those of `found`. */
static int lines_lost(const char *whole, const char *found)
{
    int lost = 0;
    for (const char *line = whole, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        char text[2 * VMH_STACK_NAME_BYTES];
        size_t size = (size_t)(end - line);
        CHECK(size < sizeof text);
        memcpy(text, line, size);
        text[size] = 0;
        lost += strstr(found, text) == NULL && strncmp(text, "running_us", 10) != 0 && strncmp(text, "pid", 3) != 0
                && strncmp(text, "time", 4) != 0;
    }
    return lost;
}

int main(void)
{
    static char whole[65536], found[65536];
    target = mkstemp(path);
    CHECK(target >= 0);
    opens = EACCES;
    CHECK(vmh_dump_open(path) == EACCES);
    opens = 0;
    vmh_dump_write(SIGSEGV, -1, slots); /* no file: nothing */
    vmh_dump_forked();
    fill();

    crash(NOTHING, 0, MINE, whole, sizeof whole);
    for (const char *const *part =
             (const char *const[]){"VMHCRASH 1\nsignal 11\n", "vm 41\ntask shop\n", "entry main:rrr", "r\nbytes 9000\n",
                                   "== tasks\nsome tasks\n== log\na log\n== python\n  File", "line 12, in nn",
                                   "  ...\n== native\n", "task line?break\n", "(could not be read)\n", "== end\n",
                                   NULL};
         *part != NULL; part++)
        CHECK(strstr(whole, *part) != NULL);
    CHECK(strstr(whole, "line 11") == NULL && strstr(whole, "signal 7") == NULL);
    crash(IN_PIECES, 0, MINE, found, sizeof found);
    CHECK(lines_lost(whole, found) == 0 && lines_lost(found, whole) == 0);
    crash(NOTHING, 0, -1, found, sizeof found); /* a thread of the host's */
    CHECK(strncmp(strstr(found, "== python"), "== python\n  File", 16) == 0);

    long at = 0;
    for (; crash(FAILS, at, MINE, found, sizeof found); at++) {
        CHECK(lines_lost(whole, found) <= 2 && lines_lost(found, whole) <= 1);
        crash(INTERRUPTED, at, MINE, found, sizeof found);
        CHECK(lines_lost(whole, found) == 0);
    }
    CHECK(at > 60);
    unlink(path);
    close(target);
    vmh_dump_forget(MINE);
    printf("test_dump: passed, %ld writes failed once each\n", at);
    return 0;
}
