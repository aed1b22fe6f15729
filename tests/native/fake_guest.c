/* What the files of vm/ need of other rooms, without CPython: a guest written in C that waits in every way that waits.c
 * has, beside threads of its own; and nothing of the engine, SQLite, crash reports, forks and the C stack. */
#include "fake_guest.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <poll.h>

#include "check.h"
#include "cpython/creation.h"
#include "lanes/clock.h"
#include "memory/overflow.h"
#include "seal/waits.h"
#include "sqlite/sqlite_rules.h"
#include "vm/fork.h"
#include "vm/inherited.h"
#include "vm/vm_private.h"
#include "wire/engine.h"

atomic_long guest_locked, guest_stopped;
atomic_int guest_seals;

/* ---- one VM's guest */

typedef struct {
    vmh_seal seal;
    PyObject sleep;    /* the gate of time.sleep */
    bool locked;       /* GIL, like all that follows */
    vmh_queue waiting; /* for the lock */
    vmh_queue never;   /* for one that is never given back */
    long value;
    int pipe;
    bool finishing;
    int threads;
    atomic_uint entered; /* futex: guest threads that are counted */
} fake_guest;

struct vme_context {
    atomic_bool stopped;
};

static pthread_mutex_t seals_lock = PTHREAD_MUTEX_INITIALIZER;
static vmh_seal *seals; /* guarded by seals_lock */
static _Thread_local fake_guest *guest;
static PyObject stopped_error;

vmh_seal *vmh_seal_here(void) { return guest == NULL ? NULL : &guest->seal; }

void vmh_seal_visit(vmh_vm *vm, void (*visit)(vmh_seal *))
{
    vmh_mutex_lock(&seals_lock);
    for (vmh_seal *seal = seals; seal != NULL; seal = seal->next)
        if (seal->vm == vm)
            visit(seal);
    vmh_mutex_unlock(&seals_lock);
}

void vmh_seal_free(vmh_vm *vm)
{
    vmh_mutex_lock(&seals_lock);
    vmh_seal **link = &seals;
    while (*link != &guest->seal)
        link = &(*link)->next;
    *link = (*link)->next;
    vmh_mutex_unlock(&seals_lock);
    CHECK(guest->seal.vm == vm && guest->seal.waiters == NULL && guest->waiting.first == NULL);
    pthread_mutex_destroy(&guest->seal.waits_mutex);
    close(guest->pipe);
    free(guest);
    guest = NULL;
    atomic_fetch_sub(&guest_seals, 1);
}

static int nap(int64_t ns)
{
    PyObject seconds = {.number = (double)ns / 1e9};
    PyMethodDef *def = guest->sleep.pointer;
    return def->ml_meth(NULL, &seconds) == NULL ? -1 : 0;
}

/* One with no time to boot in waits until it is stopped. */
int vmh_guest_boot(vmh_vm *vm)
{
    PyObject dict;
    guest = calloc(1, sizeof *guest);
    CHECK(guest != NULL && (guest->pipe = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) >= 0);
    CHECK(vmh_time_finish(&dict, &guest->sleep) == 0);
    pthread_mutex_init(&guest->seal.waits_mutex, NULL);
    guest->seal.vm = vm;
    vmh_mutex_lock(&seals_lock);
    guest->seal.next = seals;
    seals = &guest->seal;
    vmh_mutex_unlock(&seals_lock);
    atomic_fetch_add(&guest_seals, 1);
    const bool late = vm->limits.boot_ns == GUEST_BOOT_NS;
    while (late && !vmh_vm_stopping(vm))
        usleep(100);
    vmh_mutex_lock(&vm->life);
    vm->stop.error = &stopped_error;
    vmh_mutex_unlock(&vm->life);
    return late ? nap(INT64_C(3600000000000)) : 0;
}

/* Waits as locks.c does. -1: stopped. */
static int lock(int64_t deadline_ns)
{
    vmh_waiter waiter = {0};
    while (guest->locked) {
        vmh_queue_push(&guest->waiting, &waiter);
        int rc = vmh_wait(&guest->seal, &waiter, deadline_ns);
        vmh_queue_remove(&guest->waiting, &waiter);
        if (rc < 0) {
            if (!guest->locked)
                vmh_queue_wake(&guest->waiting);
            return -1;
        }
        if (guest->locked && rc == 0)
            return 0;
        atomic_store(&waiter.word, VMH_WAITING);
    }
    guest->locked = true;
    return 1;
}

/* Takes the lock, waits with it, releases it. -1: stopped, and the lock is released all the same. */
static int use_lock(void)
{
    int rc = lock(VMH_FOREVER);
    if (rc < 0)
        return -1;
    long value = ++guest->value;
    rc = value % 8 == 0 ? nap(20000) : 0;
    CHECK(guest->locked && guest->value == value);
    guest->locked = false;
    vmh_queue_wake(&guest->waiting);
    atomic_fetch_add(&guest_locked, 1);
    return rc;
}

static void *guest_thread(void *argument)
{
    fake_guest *mine = argument;
    vmh_vm *vm = mine->seal.vm;
    vmh_thread_enter(vm);
    atomic_fetch_add(&mine->entered, 1);
    vmh_futex_wake(&mine->entered, 1);
    guest = mine;
    vmh_thread_state(vm, python_thread(vm->interpreter.interp));
    while (!guest->finishing)
        if (use_lock() < 0 || nap(50000) < 0 || python_breathe() == NULL) {
            PyErr_Clear(); /* it catches the stop, and goes on */
            atomic_fetch_add(&guest_stopped, 1);
        }
    guest->threads--;
    vmh_thread_state(vm, NULL);
    python_thread_end();
    guest = NULL;
    vmh_thread_leave(vm);
    vmh_vm_unref(vm);
    return NULL;
}

void vmh_guest_load(vmh_vm *vm, vmh_lane *lane)
{
    enum vmh_kind kind;
    CHECK(lane == atomic_load(&vm->work.lane));
    vmh_phase_begin(vm, VMH_PHASE_LOAD, NULL, vmh_after_ns(vmh_now_ns(), vm->limits.load_ns), VMH_FOREVER);
    for (int i = 0; i < GUEST_THREADS; i++) {
        pthread_t thread;
        vmh_vm_ref(vm);
        guest->threads++;
        CHECK(pthread_create(&thread, NULL, guest_thread, guest) == 0);
        pthread_detach(thread);
    }
    for (unsigned entered; (entered = atomic_load(&guest->entered)) < GUEST_THREADS;)
        vmh_futex_wait(&guest->entered, entered, VMH_FOREVER);
    vmh_phase_end(vm, &kind);
    PyErr_Clear();
}

static void load_engine(vmh_vm *vm)
{
    if (vmh_vm_engine(vm) != NULL)
        return;
    struct vme_context *context = calloc(1, sizeof *context);
    CHECK(context != NULL);
    vmh_vm_engine_keep(vm, context);
}

static int blocked(void)
{
    vmh_waiter waiter = {0};
    vmh_queue_push(&guest->never, &waiter);
    int rc = vmh_wait(&guest->seal, &waiter, VMH_FOREVER);
    vmh_queue_remove(&guest->never, &waiter);
    return rc;
}

static int work(vmh_vm *vm, enum work which)
{
    struct pollfd fds[2] = {{.fd = guest->pipe, .events = POLLIN}};
    switch (which) {
    case WORK_LOCK: return use_lock();
    case WORK_NAP: return nap(100000);
    case WORK_ENGINE: load_engine(vm); return 0;
    case WORK_POST:
        vmh_vm_denied(vm);
        vmh_vm_post(vm, &vm->events.log);
        return 0;
    case WORK_SLEEP: return nap(INT64_C(3600000000000));
    case WORK_READ: return vmh_wait_fds(fds, 1, VMH_FOREVER);
    case WORK_BLOCKED: return blocked();
    case WORK_MEMORY: vmh_meter_force(vmh_vm_meter(vm), 2 * GUEST_SOFT_BYTES); break;
    case WORK_SPIN: break;
    default: return 0;
    }
    while (python_breathe() != NULL)
        if (vmh_vm_stopping(vm) && vm->id % 2 == 0) { /* as a gate does that saw it first */
            vmh_vm_raise_stop(vm);
            return -1;
        } else {
            PyEval_RestoreThread(PyEval_SaveThread());
        }
    return -1;
}

void vmh_guest_serve(vmh_vm *vm, vmh_call *call)
{
    enum vmh_kind kind;
    atomic_fetch_add_explicit(&call->lane->running, 1, memory_order_relaxed);
    vmh_hot_enter();
    if (atomic_load(&vm->memory.meter->over))
        vmh_meter_rearm(vm->memory.meter);
    vmh_phase_begin(vm, VMH_PHASE_CALL, call, call->deadline_ns, call->lane->cpu_ns);
    const enum work which = (enum work)call->request.data[0];
    int rc = work(vm, which);
    if (which == WORK_MEMORY)
        vmh_meter_release(vmh_vm_meter(vm), 2 * GUEST_SOFT_BYTES);
    CHECK(rc >= 0 || PyErr_Occurred() == &stopped_error);
    CHECK(rc < 0 || which < WORK_SLEEP);
    bool stopped = vmh_phase_end(vm, &kind);
    CHECK(rc == 0 || rc == 1 || stopped);
    CHECK(vmh_vm_engine(vm) == NULL || !atomic_load(&vmh_vm_engine(vm)->stopped));
    PyErr_Clear();
    if (vmh_call_claim(call, VMH_RUNNING))
        vmh_call_finish(call, stopped ? kind : VMH_OK);
    vmh_hot_leave();
}

void vmh_guest_finish(vmh_vm *vm)
{
    (void)vm;
    guest->finishing = true;
    PyErr_Clear();
}

void vmh_guest_clear(vmh_vm *vm)
{
    (void)vm;
    CHECK(guest->threads == 0);
}

/* ---- other rooms */

PyStatus vmh_creation_make(PyThreadState **ts)
{
    *ts = python_interpreter();
    return (PyStatus){NULL};
}

void vmh_creation_settle(void) {}
void vmh_creation_unsettle(void) {}
void vmh_error_describe(char *to, size_t size) { snprintf(to, size, "an error"); }

void vmh_engine_stop(struct vme_context *context, bool stop)
{
    if (context != NULL)
        atomic_store(&context->stopped, stop);
}

void vmh_engine_end(struct vme_context *context) { (void)context; }
void vmh_engine_leave(struct vme_context *context) { free(context); }

void vmh_sqlite_interrupt(vmh_vm *vm) { (void)vm; }
bool vmh_wire_text(vmh_blob *blob, const char *text) { return blob != NULL && text != NULL; }
char *vmh_holders_report(vmh_meter *meter) { return meter->holdings == NULL ? NULL : strdup("held"); }
void vmh_memory_bind(vmh_meter *meter) { (void)meter; }
void vmh_memory_wait(bool wait) { (void)wait; }
void vmh_overflow_guard(vmh_vm *vm) { (void)vm; }
void vmh_overflow_renew(void) {}
void vmh_overflow_unguard(void) {}
void vmh_inherited_undo(void) {}
const char *vmh_memory_refusal(void) { return NULL; }
bool vmh_memory_check(void) { return true; }
void vmh_fork_transit_begin(void) {}
void vmh_fork_transit_end(void) {}
void vmh_compat_hide_interpreter(PyInterpreterState *interpreter) { (void)interpreter; }
bool vmh_compat_locks_import(PyThreadState *ts) { return ts == NULL; }

void vmh_crash_install(void) {}
vmh_crash_slot *vmh_crash_thread_enter(uint64_t vm_id)
{
    CHECK(vm_id > 0);
    return NULL;
}
void vmh_crash_thread_join(vmh_crash_slot *slot) { (void)slot; }
void vmh_crash_thread_leave(vmh_crash_slot *slot) { (void)slot; }
void vmh_crash_name(vmh_crash_slot *slot, const char *task, const char *version)
{
    (void)slot, (void)task, (void)version;
}
void vmh_crash_interpreter(vmh_crash_slot *slot, void *interpreter) { (void)slot, (void)interpreter; }

PyObject *vmh_deny(const char *why, const char *format, ...)
{
    fprintf(stderr, "denied: %s: %s\n", why, format);
    exit(1);
}
