/* Preloaded into a Python whose allocations are to fail: the n-th that the native core or the engine asks of libc, the
 * n-th that CPython makes on a VM's thread, or what an account of the engine is asked for. Driven through ctypes by
 * boots.py and array_allocations.py; nothing of it is in the core. Also the control: CPython makes and ends an
 * interpreter on a thread, without the core. */
#define _GNU_SOURCE   1
#define Py_BUILD_CORE 1
#include <Python.h>
#include "internal/pycore_interp_structs.h"
#include "internal/pycore_tstate.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static atomic_long countdown = -1;               /* < 0: none is to fail */
static atomic_long counted;                      /* since failing_arm */
static long armed;                               /* which of them fails; 0: none */
static uintptr_t core_base, core_low, core_high; /* 0: those of CPython count */
#pragma weak PyThreadState_GetUnchecked
#pragma weak PyInterpreterState_Main /* preloaded into programs that are no Python, too */
static pthread_t main_thread;
static bool making; /* those of CPython while it makes an interpreter, else all others */
static char
    where[512]; /* files of the Python functions that the thread was in when one of CPython's failed, innermost first */
static PyMemAllocatorEx before[3];
static _Thread_local int inside; /* CPython's allocators: what they ask of libc is not the core's, who hooks them */

/* The `after`-th from now on fails, one alone; 0: none. */
void failing_arm(long after)
{
    armed = after;
    counted = 0;
    countdown = after > 0 ? after : -1;
}

/* How many were counted since; negative: and one of them failed, or is about to, on a thread that has no core just now.
 */
long failing_disarm(void)
{
    countdown = -1;
    long count = counted;
    return armed > 0 && count >= armed ? -count : count;
}

static void note_where(void)
{
    PyThreadState *ts = PyThreadState_GetUnchecked();
    PyFrameObject *frame = ts == NULL ? NULL : PyThreadState_GetFrame(ts), *back;
    size_t size = 0;
    where[0] = '\0';
    for (; frame != NULL; frame = back) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        if (size < sizeof where)
            size += (size_t)snprintf(where + size, sizeof where - size, "%s ", PyUnicode_AsUTF8(code->co_filename));
        back = PyFrame_GetBack(frame);
        Py_DECREF(code);
        Py_DECREF(frame);
    }
}

const char *failing_where(void) { return where; }

static bool fails(uintptr_t caller)
{
    if (atomic_load_explicit(&countdown, memory_order_relaxed) < 0)
        return false;
    counted++;
    if (atomic_fetch_sub(&countdown, 1) != 1)
        return false;
    countdown = -1;
    /* the first words of what a crash says: addr2line -f -e CORE knows the place */
    char text[64];
    int size = snprintf(text, sizeof text, "failed: core+0x%zx\n", core_low == 0 ? 0 : (size_t)(caller - core_base));
    if (core_low == 0)
        note_where();
    return write(2, text, (size_t)size) > 0 || true;
}

/* ---- those of the core: calls of libc from its code ---- */

void failing_core(uintptr_t base, uintptr_t low, uintptr_t high)
{
    core_base = base;
    core_low = low;
    core_high = high;
}

#define FROM_CORE (inside == 0 && (uintptr_t)__builtin_return_address(0) - core_low < core_high - core_low)

void *malloc(size_t size)
{
    return FROM_CORE && fails((uintptr_t)__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}
void *calloc(size_t count, size_t size)
{
    return FROM_CORE && fails((uintptr_t)__builtin_return_address(0)) ? NULL : __libc_calloc(count, size);
}
void *realloc(void *memory, size_t size)
{
    return FROM_CORE && fails((uintptr_t)__builtin_return_address(0)) ? NULL : __libc_realloc(memory, size);
}
void *aligned_alloc(size_t alignment, size_t size)
{
    return FROM_CORE && fails((uintptr_t)__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, size);
}

char *strdup(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = FROM_CORE && fails((uintptr_t)__builtin_return_address(0)) ? NULL : __libc_malloc(size);
    return copy == NULL ? NULL : memcpy(copy, text, size);
}

/* ---- those of CPython, on any thread but the main one ---- */

/* The guest's boot begins by putting something into the interpreter's dict, which is made when it is first asked for.
 */
static bool is_made(void)
{
    PyThreadState *ts = PyThreadState_GetUnchecked();
    return ts != NULL && (ts->interp == PyInterpreterState_Main() || ts->interp->dict != NULL);
}

static bool python_fails(void)
{
    return core_low == 0 && !pthread_equal(pthread_self(), main_thread) && making != is_made() && fails(0);
}

static void *python_malloc(void *context, size_t size)
{
    PyMemAllocatorEx *real = context;
    if (python_fails())
        return NULL;
    inside++;
    void *made = real->malloc(real->ctx, size);
    inside--;
    return made;
}

static void *python_calloc(void *context, size_t count, size_t size)
{
    PyMemAllocatorEx *real = context;
    if (python_fails())
        return NULL;
    inside++;
    void *made = real->calloc(real->ctx, count, size);
    inside--;
    return made;
}

static void *python_realloc(void *context, void *memory, size_t size)
{
    PyMemAllocatorEx *real = context;
    if (python_fails())
        return NULL;
    inside++;
    void *made = real->realloc(real->ctx, memory, size);
    inside--;
    return made;
}

static void python_free(void *context, void *memory)
{
    PyMemAllocatorEx *real = context;
    real->free(real->ctx, memory);
}

/* Before the core is loaded, whose hook then calls these. */
void failing_making(bool yes) { making = yes; }

void failing_python(void)
{
    main_thread = pthread_self();
    for (int domain = PYMEM_DOMAIN_RAW; domain <= PYMEM_DOMAIN_OBJ; domain++) {
        PyMem_GetAllocator((PyMemAllocatorDomain)domain, &before[domain]);
        PyMem_SetAllocator(
            (PyMemAllocatorDomain)domain,
            &(PyMemAllocatorEx){&before[domain], python_malloc, python_calloc, python_realloc, python_free});
    }
}

/* ---- the control: CPython alone ---- */

static PyObjectArenaAllocator arenas_before;
static atomic_long arenas; /* that live, of those made since failing_alone began */

static void *arena_alloc(void *context, size_t size)
{
    void *made = arenas_before.alloc(arenas_before.ctx, size);
    arenas += made != NULL;
    (void)context;
    return made;
}

static void arena_free(void *context, void *memory, size_t size)
{
    (void)context;
    arenas -= memory != NULL; /* CPython frees the unused entries of its table, too */
    arenas_before.free(arenas_before.ctx, memory, size);
}

typedef struct {
    long after;
    bool posix; /* not while it is made: while its module posix is made again */
    PyStatus status;
} try_alone;

static void import_posix_again(long after)
{
    PyObject *modules = PyImport_GetModuleDict(), *name = PyUnicode_FromString("posix");
    if (name != NULL && PyDict_DelItem(modules, name) == 0) {
        failing_arm(after);
        Py_XDECREF(PyImport_Import(name));
        failing_disarm();
    }
    Py_XDECREF(name);
    PyErr_Clear();
}

static void *make_and_end(void *argument)
{
    try_alone *one = argument;
    const PyInterpreterConfig config = {
        .allow_threads = 1, .check_multi_interp_extensions = 1, .gil = PyInterpreterConfig_OWN_GIL};
    PyThreadState *made = NULL;
    if (!one->posix)
        failing_arm(one->after);
    one->status = Py_NewInterpreterFromConfig(&made, &config);
    failing_disarm();
    if (made != NULL && one->posix && PyInterpreterState_GetDict(made->interp) != NULL)
        import_posix_again(one->after);
    if (made != NULL)
        Py_EndInterpreter(made);
    return NULL;
}

/* How many arenas an interpreter leaves behind whose `after`-th allocation fails, while it is made, or while its module
 * posix is made again; *reason: why it was not made, or NULL. */
long failing_alone(long after, bool posix, const char **reason)
{
    pthread_t thread;
    try_alone one = {after, posix, PyStatus_NoMemory()};
    if (arenas_before.alloc == NULL) {
        PyObject_GetArenaAllocator(&arenas_before);
        PyObject_SetArenaAllocator(&(PyObjectArenaAllocator){NULL, arena_alloc, arena_free});
    }
    arenas = 0;
    Py_BEGIN_ALLOW_THREADS if (pthread_create(&thread, NULL, make_and_end, &one) == 0) pthread_join(thread, NULL);
    Py_END_ALLOW_THREADS *reason = PyStatus_Exception(one.status) ? one.status.err_msg : NULL;
    return arenas;
}

/* ---- an account of the engine (vme_account) that refuses: in C, as it is called while exceptions are set ---- */

static atomic_llong charged;
static atomic_long requests, refuse_from,
    refuse_to; /* numbers of requests, from 0; those from the first to before the last are refused */
static atomic_bool refused;

void failing_refuse(long from, long to)
{
    requests = 0;
    refuse_from = from;
    refuse_to = to;
    refused = false;
}

bool failing_refused(void) { return refused; }
long long failing_charged(void) { return charged; }

bool failing_charge(void *owner, size_t bytes)
{
    (void)owner;
    long number = atomic_fetch_add(&requests, 1);
    if (number >= refuse_from && number < refuse_to) {
        refused = true;
        return false;
    }
    charged += (long long)bytes;
    return true;
}

void failing_release(void *owner, size_t bytes)
{
    (void)owner;
    charged -= (long long)bytes;
}
