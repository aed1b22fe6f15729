#include "memory/overflow.h"

#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "lanes/critical.h"
#include "cpython/compat.h"

/* A fault further from the stack pointer than this is a wild pointer, not a large frame. */
enum { FRAME_MAX = 64 * 1024, PAGE = 4096, RED_ZONE = 256 };

typedef struct {
    uintptr_t low, high;
} span;

/* Executable segments of the object that holds CPython and of our own. Written once, before the first VM. */
static span code[16];
static int code_count;
static span left_out[3]; /* parts of `code` that are excluded: see overflow.h */
static int left_out_count;

/* State of the calling thread, read only by its own handler. */
static _Thread_local struct {
    vmh_vm *vm; /* NULL: not guarded */
    PyInterpreterState *interp;
    span closed;   /* the part of the yellow zone that is protected now */
    uintptr_t top; /* the end of the whole zone */
} guard __attribute__((tls_model("initial-exec")));

_Thread_local volatile bool vmh_overflow_seen __attribute__((tls_model("initial-exec")));

static int learn(struct dl_phdr_info *object, size_t size, void *unused)
{
    const uintptr_t wanted[] = {(uintptr_t)PyObject_Call, (uintptr_t)vmh_overflow_fault};
    bool ours = false;
    (void)size;
    (void)unused;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        uintptr_t low = object->dlpi_addr + object->dlpi_phdr[i].p_vaddr, high = low + object->dlpi_phdr[i].p_memsz;
        for (int w = 0; w < 2; w++)
            ours |= object->dlpi_phdr[i].p_type == PT_LOAD && wanted[w] >= low && wanted[w] < high;
    }
    for (int i = 0; ours && i < object->dlpi_phnum && code_count < (int)(sizeof code / sizeof *code); i++)
        if (object->dlpi_phdr[i].p_type == PT_LOAD && (object->dlpi_phdr[i].p_flags & PF_X)) {
            uintptr_t low = object->dlpi_addr + object->dlpi_phdr[i].p_vaddr;
            code[code_count++] = (span){low, low + object->dlpi_phdr[i].p_memsz};
        }
    return 0;
}

void vmh_overflow_install(void)
{
    if (code_count == 0)
        dl_iterate_phdr(learn, NULL);
}

void vmh_overflow_leave_out(const void *begin, const void *end)
{
    if (left_out_count < (int)(sizeof left_out / sizeof *left_out))
        left_out[left_out_count++] = (span){(uintptr_t)begin, (uintptr_t)end};
}

/* The stack of the calling thread. */
static bool own_stack(uintptr_t *bottom, size_t *size)
{
    pthread_attr_t attributes;
    void *address;
    if (sysconf(_SC_PAGESIZE) != PAGE || pthread_getattr_np(pthread_self(), &attributes) != 0)
        return false;
    int rc = pthread_attr_getstack(&attributes, &address, size);
    pthread_attr_destroy(&attributes);
    *bottom = (uintptr_t)address;
    return rc == 0;
}

void vmh_overflow_fresh(void)
{
    uintptr_t bottom, here = (uintptr_t)__builtin_frame_address(0);
    size_t size;
    if (!own_stack(&bottom, &size) || here < bottom || here - bottom > size)
        return;
    uintptr_t low = (bottom + PAGE - 1) & ~(uintptr_t)(PAGE - 1), high = (here & ~(uintptr_t)(PAGE - 1)) - PAGE;
    if (high > low)
        madvise((void *)low, high - low, MADV_DONTNEED);
}

void vmh_overflow_guard(vmh_vm *vm)
{
    uintptr_t bottom;
    size_t size;
    if (!own_stack(&bottom, &size))
        return;
    uintptr_t limit = vmh_compat_stack_limit(PyThreadState_Get());
    span zone = {(bottom + PAGE - 1) & ~(uintptr_t)(PAGE - 1), (limit + PAGE - 1) & ~(uintptr_t)(PAGE - 1)};
    /* A limit outside this stack was not computed for it. */
    if (zone.high <= zone.low || zone.high - zone.low > size / 2
        || mprotect((void *)zone.low, zone.high - zone.low, PROT_NONE) != 0)
        return;
    vmh_compat_stack_unlimit(PyThreadState_Get()); /* code of CPython may run in pages that a library made us open */
    guard.closed = zone;
    guard.top = zone.high;
    guard.interp = PyInterpreterState_Get();
    atomic_signal_fence(memory_order_seq_cst);
    guard.vm = vm;
}

void vmh_overflow_renew(void)
{
    if (guard.vm == NULL || guard.closed.high == guard.top)
        return;
    if (mprotect((void *)guard.closed.low, guard.top - guard.closed.low, PROT_NONE) == 0) {
        guard.closed.high = guard.top;
        vmh_overflow_seen = false;
    }
}

void vmh_overflow_unguard(void)
{
    if (guard.vm == NULL)
        return;
    guard.vm = NULL;
    vmh_overflow_seen = false;
    atomic_signal_fence(memory_order_seq_cst);
    mprotect((void *)guard.closed.low, guard.top - guard.closed.low, PROT_READ | PROT_WRITE);
}

size_t vmh_overflow_left(void)
{
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    return guard.vm == NULL ? SIZE_MAX : here > guard.top ? here - guard.top : 0;
}

static bool in_code(uintptr_t address)
{
    for (int i = 0; i < left_out_count; i++)
        if (address >= left_out[i].low && address < left_out[i].high)
            return false;
    for (int i = 0; i < code_count; i++)
        if (address >= code[i].low && address < code[i].high)
            return true;
    return false;
}

/* A mutex that is seen free while this thread is suspended is not held by it. One that stays locked may be. */
static bool runtime_let_go(void)
{
    for (int i = 0; i < VMH_COMPAT_MUTEXES; i++)
        for (int tries = 0; vmh_compat_mutex_locked(guard.interp, i); tries++) {
            if (tries == 100)
                return false;
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
    return true;
}

/* Suspends the thread for good. It holds only its own VM's GIL. */
static void park_lost(void)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    vmh_vm_lose(guard.vm);
    for (;;)
        pause();
}

void vmh_overflow_land(void)
{
    if (guard.vm != NULL && (uintptr_t)__builtin_frame_address(0) < guard.top && vmh_critical_depth == 0
        && runtime_let_go())
        park_lost();
}

bool vmh_overflow_fault(const siginfo_t *info, const void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr, pc, sp;
    const ucontext_t *where = context;
#if defined(__x86_64__)
    pc = (uintptr_t)where->uc_mcontext.gregs[REG_RIP];
    sp = (uintptr_t)where->uc_mcontext.gregs[REG_RSP];
#elif defined(__aarch64__)
    pc = (uintptr_t)where->uc_mcontext.pc;
    sp = (uintptr_t)where->uc_mcontext.sp;
#else
    return false;
#endif
    if (guard.vm == NULL || info->si_code <= 0 || at < guard.closed.low || at >= guard.closed.high)
        return false;
    if (at + RED_ZONE < sp || at > sp + FRAME_MAX)
        return false;
    int error = errno;
    if (vmh_critical_depth == 0 && in_code(pc) && runtime_let_go())
        park_lost();
    /* In a library, which may hold a lock (malloc's), or in a critical section: open a page and continue. */
    uintptr_t page = at & ~(uintptr_t)(PAGE - 1);
    bool opened = mprotect((void *)page, guard.closed.high - page, PROT_READ | PROT_WRITE) == 0;
    if (opened) {
        guard.closed.high = page;
        vmh_overflow_seen = true;
    }
    errno = error;
    return opened;
}
