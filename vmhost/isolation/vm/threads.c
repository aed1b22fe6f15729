/* The threads of a VM. Its own thread boots the interpreter, serves calls from its lane and ends it; guest threads are
 * counted while they run. */
#include "vm/vm_private.h"

#include <stdio.h>

#include "lanes/clock.h"
#include "crash/crash.h"
#include "cpython/creation.h"
#include "wire/engine.h"
#include "vm/fork.h"
#include "vm/inherited.h"
#include "memory/overflow.h"
#include "seal/seal.h"
#include "lanes/urgency.h"
#include "lanes/warden.h"
#include "lanes/warden_vm.h"

static _Thread_local vmh_vm *current_vm __attribute__((tls_model("initial-exec")));
static atomic_int thread_total; /* VM threads that exist */

vmh_vm *vmh_current(void) { return current_vm; }

static int64_t clock_ns(clockid_t clock)
{
    struct timespec ts;
    return clock_gettime(clock, &ts) == 0 ? (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec : 0;
}

int64_t vmh_threads_cpu_ns(vmh_vm *vm)
{
    if (!atomic_load(&vm->threads.cpu_clock_valid))
        return atomic_load(&vm->threads.cpu_ns_final);
    int64_t sum =
        clock_ns(vm->threads.cpu_clock) + vm->threads.ended_cpu_ns + atomic_load(&vm->memory.meter->helper_cpu_ns);
    for (int i = 0; vm->threads.count > 0 && i < VMH_GUEST_THREADS_MAX; i++)
        if (vm->threads.guests[i].used)
            sum += clock_ns(vm->threads.guests[i].clock);
    return sum;
}

int64_t vmh_vm_cpu_ns(vmh_vm *vm)
{
    vmh_mutex_lock(&vm->life);
    int64_t sum = vmh_threads_cpu_ns(vm);
    vmh_mutex_unlock(&vm->life);
    return sum;
}

int64_t vmh_threads_starved_ns(vmh_vm *vm, int64_t round, int64_t now)
{
    int64_t longest = 0;
    if (atomic_load(&vm->threads.cpu_clock_valid))
        longest = vmh_starved_ns(&vm->threads.starvation, round, vm->threads.tid, now);
    for (int i = 0; vm->threads.count > 0 && i < VMH_GUEST_THREADS_MAX; i++) {
        int64_t starved = !vm->threads.guests[i].used ? 0
                                                      : vmh_starved_ns(&vm->threads.guests[i].starvation, round,
                                                                       vm->threads.guests[i].tid, now);
        longest = starved > longest ? starved : longest;
    }
    return longest < VMH_STARVED_MAX_NS ? longest : VMH_STARVED_MAX_NS;
}

void vmh_thread_enter(vmh_vm *vm)
{
    vmh_inherited_undo();
    current_vm = vm;
    vmh_memory_bind(vm->memory.meter);
    vmh_crash_thread_join(vm->threads.crash_slot);
    vmh_mutex_lock(&vm->life);
    vm->threads.count++;
    for (int i = 0; i < VMH_GUEST_THREADS_MAX; i++)
        if (!vm->threads.guests[i].used) {
            vm->threads.guests[i].tid = gettid();
            vm->threads.guests[i].state = NULL;
            vm->threads.guests[i].counted_cpu_ns = 0;
            vm->threads.guests[i].used = pthread_getcpuclockid(pthread_self(), &vm->threads.guests[i].clock) == 0;
            break;
        }
    vmh_mutex_unlock(&vm->life);
}

void vmh_thread_state(vmh_vm *vm, void *state)
{
    pid_t tid = gettid();
    vmh_mutex_lock(&vm->life);
    for (int i = 0; i < VMH_GUEST_THREADS_MAX; i++)
        if (vm->threads.guests[i].used && vm->threads.guests[i].tid == tid)
            vm->threads.guests[i].state = state;
    vmh_mutex_unlock(&vm->life);
}

void vmh_thread_leave(vmh_vm *vm)
{
    clockid_t clock;
    vmh_crash_thread_leave(NULL);
    bool known = pthread_getcpuclockid(pthread_self(), &clock) == 0;
    vmh_mutex_lock(&vm->life);
    vm->threads.count--;
    vm->threads.ended_cpu_ns += clock_ns(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; known && i < VMH_GUEST_THREADS_MAX; i++)
        if (vm->threads.guests[i].used && vm->threads.guests[i].clock == clock)
            vm->threads.guests[i].used = false;
    vmh_mutex_unlock(&vm->life);
}

int vmh_thread_count(vmh_vm *vm)
{
    vmh_mutex_lock(&vm->life);
    int count = vm->threads.count;
    vmh_mutex_unlock(&vm->life);
    return count;
}

static void count_quarantined(vmh_vm *vm, void *count)
{
    *(int *)count += atomic_load(&vm->state) == VMH_VM_QUARANTINED;
}

int vmh_vm_threads(bool only_lively)
{
    int count = atomic_load(&thread_total), quarantined = 0;
    if (only_lively)
        vmh_warden_visit_vms(count_quarantined, &quarantined);
    return count - quarantined;
}

/* ---- its own thread ---- */

static bool boot(vmh_vm *vm)
{
    int64_t began = vmh_now_ns();
    if (vmh_memory_refusal() != NULL || !vmh_memory_check()) {
        snprintf(vm->failure, sizeof vm->failure, "%s",
                 vmh_memory_refusal() != NULL ? vmh_memory_refusal()
                                              : "memory limits cannot be held: another library has replaced the "
                                                "allocator hooks of vmhost (PyMem_SetAllocator)");
        return false;
    }
    vmh_fork_transit_begin();
    vmh_memory_wait(true); /* an allocation that fails there may crash CPython */
    PyStatus status = vmh_creation_make(&vm->interpreter.tstate);
    vmh_memory_wait(false);
    vmh_mutex_lock(&vm->life);
    if (!PyStatus_Exception(status)) {
        vm->interpreter.interp = PyThreadState_GetInterpreter(vm->interpreter.tstate);
        vm->interpreter.stoppable = true;
    }
    vmh_mutex_unlock(&vm->life);
    vmh_fork_transit_end();
    if (PyStatus_Exception(status)) {
        snprintf(vm->failure, sizeof vm->failure, "the interpreter could not be made: %s",
                 status.err_msg == NULL ? "no reason given" : status.err_msg);
        return false;
    }
    vmh_crash_interpreter(vm->threads.crash_slot, vm->interpreter.interp);
    vmh_overflow_guard(vm);
    enum vmh_kind kind;
    vmh_phase_begin(vm, VMH_PHASE_BOOT, NULL, vmh_after_ns(began, vm->limits.boot_ns), VMH_FOREVER);
    int rc = vmh_guest_boot(vm);
    vmh_creation_settle();
    bool stopped = vmh_phase_end(vm, &kind);
    if (rc < 0)
        vmh_error_describe(vm->failure, sizeof vm->failure);
    else if (stopped)
        snprintf(vm->failure, sizeof vm->failure, "booting took longer than %.1f s", (double)vm->limits.boot_ns / 1e9);
    atomic_store(&vm->counters.boot_ns_taken, vmh_now_ns() - began);
    return rc == 0 && !stopped;
}

/* The number of thread states of the interpreter. Ending it with others than our own would abort the process. */
static int thread_states(vmh_vm *vm)
{
    int count = 0;
    PyThreadState *first = PyInterpreterState_ThreadHead(vm->interpreter.interp);
    for (PyThreadState *ts = first; ts != NULL; ts = PyThreadState_Next(ts))
        count++;
    return count;
}

static bool alone(vmh_vm *vm)
{
    vmh_mutex_lock(&vm->life);
    bool yes = vm->threads.count == 0;
    vmh_mutex_unlock(&vm->life);
    return yes && thread_states(vm) <= 1;
}

static bool given_up(vmh_vm *vm)
{
    vmh_mutex_lock(&vm->life);
    bool yes = vm->stop.quarantined_in != NULL;
    vmh_mutex_unlock(&vm->life);
    return yes;
}

/* Waits for the threads to stop, until none is left or the VM is quarantined. The phase END continues, so the stop is
 * repeated. A thread that vmhost no longer counts may still be leaving CPython. */
static bool wait_for_threads(vmh_vm *vm)
{
    bool gone;
    while (!(gone = alone(vm)) && !given_up(vm)) {
        PyThreadState *ts = PyEval_SaveThread();
        usleep(1000);
        PyEval_RestoreThread(ts);
    }
    return gone;
}

/* Runs inside Py_EndInterpreter, after the modules and almost all finalisers: from now on the interpreter's own
 * structures are freed, and no stop may use them. */
static void beyond_stopping(PyObject *capsule)
{
    vmh_vm *vm = PyCapsule_GetPointer(capsule, NULL);
    vmh_mutex_lock(&vm->life);
    PyObject *stop_error = vm->stop.error;
    vm->interpreter.stoppable = false;
    vm->stop.error = NULL;
    bool hidden = vm->interpreter.hidden;
    vmh_mutex_unlock(&vm->life);
    Py_XDECREF(stop_error);
    if (hidden)
        vmh_vm_park();
}

/* False: threads are left, so the VM must not be ended. The whole ending is one phase with a deadline: exit handlers,
 * threads and finalisers are stopped like a call, and a VM that hangs is quarantined. */
static bool end(vmh_vm *vm)
{
    vmh_mutex_lock(&vm->life);
    bool process_exits = vm->interpreter.hidden;
    vmh_mutex_unlock(&vm->life);
    if (process_exits)
        vmh_vm_park(); /* it returned from a long C call during CPython's own finalisation */
    /* The ending has no memory limit, so that finalisers of a full VM can run. */
    atomic_store(&vm->memory.meter->soft, LLONG_MAX);
    atomic_store(&vm->memory.meter->hard, LLONG_MAX);
    vmh_meter_rearm(vm->memory.meter);
    vmh_phase_begin(vm, VMH_PHASE_END, NULL, vmh_after_ns(vmh_now_ns(), vm->limits.end_ns), VMH_FOREVER);
    vmh_creation_unsettle();
    vmh_guest_finish(vm);
    if (!wait_for_threads(vm))
        return false;
    vmh_guest_clear(vm);
    /* Borrowed. It is cleared late, and a guest cannot reach it. */
    PyObject *inner = PyInterpreterState_GetDict(vm->interpreter.interp);
    PyObject *capsule = PyCapsule_New(vm, NULL, beyond_stopping);
    if (inner == NULL || capsule == NULL || PyDict_SetItemString(inner, "vmhost", capsule) < 0) {
        PyErr_Clear();
        if (capsule == NULL) {
            vmh_mutex_lock(&vm->life);
            vm->interpreter.stoppable = false;
            vmh_mutex_unlock(&vm->life);
        }
    }
    Py_XDECREF(capsule);
    vmh_fork_transit_begin();
    vmh_mutex_lock(&vm->life);
    vm->interpreter.in_transit = true;
    bool hidden = vm->interpreter.hidden;
    vmh_mutex_unlock(&vm->life);
    if (hidden)
        vmh_vm_park();
    vmh_crash_interpreter(vm->threads.crash_slot, NULL);
    Py_EndInterpreter(vm->interpreter.tstate);
    vmh_engine_end(atomic_load(&vm->engine));
    vmh_mutex_lock(&vm->life);
    vm->interpreter.in_transit = false;
    vm->interpreter.interp = NULL;
    vm->phase.generation++;
    vm->phase.which = VMH_PHASE_IDLE;
    vmh_mutex_unlock(&vm->life);
    vmh_fork_transit_end();
    return true;
}

static void serve(vmh_vm *vm)
{
    vmh_lane *lane = NULL;
    int served = 0;
    while (!vm->work.doomed && !atomic_load(&vm->work.retire) && atomic_load(&vm->state) != VMH_VM_QUARANTINED) {
        if (lane == NULL && (lane = atomic_load(&vm->work.lane)) != NULL) {
            int ready = VMH_VM_READY;
            atomic_compare_exchange_strong(&vm->state, &ready, VMH_VM_SERVING);
            vmh_crash_name(vm->threads.crash_slot, lane->name, lane->version);
            vmh_lane_attach(lane, &vm->work.worker);
            vmh_guest_load(vm, lane);
            continue;
        }
        vmh_call *call = lane == NULL ? NULL : vmh_lane_take(lane, &vm->work.worker);
        if (call != NULL) {
            atomic_store(&vm->work.call, call);
            vmh_guest_serve(vm, call);
            atomic_store(&vm->work.call, NULL);
            vmh_overflow_renew();
            atomic_store_explicit(&vm->counters.idle_since_ns, call->ended_ns, memory_order_relaxed);
            vmh_call_unref(call);
            if (lane->calls_per_vm > 0 && ++served >= lane->calls_per_vm)
                break;
            continue;
        }
        if (lane != NULL && vmh_lane_over(lane))
            break;
        PyThreadState *ts = PyEval_SaveThread();
        vmh_worker_wait(&vm->work.worker);
        PyEval_RestoreThread(ts);
    }
    if (lane != NULL)
        vmh_lane_detach(lane, &vm->work.worker);
    else if (atomic_load(&vm->work.lane) != NULL) { /* attached and retired at once: count it in and out */
        vmh_lane_attach(atomic_load(&vm->work.lane), &vm->work.worker);
        vmh_lane_detach(atomic_load(&vm->work.lane), &vm->work.worker);
    }
}

static void *run(void *argument)
{
    vmh_vm *vm = argument;
    vmh_inherited_undo();
    current_vm = vm;
    vmh_memory_bind(vm->memory.meter);
    vm->threads.crash_slot = vmh_crash_thread_enter(vm->id);
    vmh_mutex_lock(&vm->life);
    vm->threads.tid = gettid();
    atomic_store(&vm->threads.cpu_clock_valid, pthread_getcpuclockid(pthread_self(), &vm->threads.cpu_clock) == 0);
    vmh_mutex_unlock(&vm->life);
    vmh_urgency_set(VMH_PATIENT);
    bool booted = boot(vm);
    vmh_urgency_set(VMH_USUAL);
    if (booted) {
        atomic_store(&vm->memory.meter->soft, atomic_load(&vm->memory.soft_bytes));
        atomic_store(&vm->memory.meter->hard, atomic_load(&vm->memory.hard_bytes));
        atomic_store(&vm->counters.idle_since_ns, vmh_now_ns());
        int booting_state = VMH_VM_BOOTING;
        atomic_compare_exchange_strong(&vm->state, &booting_state, VMH_VM_READY);
        vmh_vm_post(vm, &vm->events.ready);
        serve(vm);
        if (vm->work.doomed)
            vmh_vm_post(vm, &vm->events.stopped);
    } else if (vm->interpreter.tstate == NULL) {
        goto gone;
    }
    if (atomic_load(&vm->state) != VMH_VM_QUARANTINED)
        atomic_store(&vm->state, VMH_VM_ENDING);
    vmh_urgency_set(VMH_PATIENT); /* all calls are answered: their callers run first */
    if (!end(vm)) {
        vmh_mutex_lock(&vm->life);
        bool first = vm->stop.quarantined_in == NULL;
        if (first)
            vmh_vm_give_up(vm, "threads left behind");
        vmh_mutex_unlock(&vm->life);
        if (first)
            vmh_vm_post(vm, &vm->events.quarantined);
        PyEval_SaveThread(); /* the guest's threads continue; this one is suspended for good */
        vmh_vm_park();
    }
gone:
    vmh_overflow_unguard();
    vmh_memory_bind(NULL);
    vmh_seal_free(vm);
    atomic_store(&vm->memory.meter->ended, true);
    vmh_mutex_lock(&vm->life);
    atomic_store(&vm->threads.cpu_ns_final, vmh_threads_cpu_ns(vm));
    atomic_store(&vm->threads.cpu_clock_valid, false);
    vmh_mutex_unlock(&vm->life);
    vmh_crash_thread_leave(vm->threads.crash_slot);
    atomic_store(&vm->state, booted ? VMH_VM_ENDED : VMH_VM_FAILED);
    vm->events.end.type = booted ? VMH_EVENT_ENDED : VMH_EVENT_FAILED;
    vmh_vm_post(vm, &vm->events.end);
    current_vm = NULL;
    vmh_vm_unref(vm);
    atomic_fetch_sub(&thread_total, 1);
    return NULL;
}

int vmh_vm_start(vmh_vm *vm)
{
    pthread_attr_t attributes;
    vmh_crash_install();
    int rc = vmh_warden_start();
    if (rc != 0 || (rc = pthread_attr_init(&attributes)) != 0)
        return rc;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    rc = pthread_attr_setstacksize(&attributes, vm->limits.stack_bytes);
    if (rc == 0) {
        vmh_vm_ref(vm);
        atomic_fetch_add(&thread_total, 1);
        rc = pthread_create(&vm->threads.own, &attributes, run, vm);
        if (rc != 0) {
            atomic_fetch_sub(&thread_total, 1);
            vmh_vm_unref(vm);
        }
    }
    pthread_attr_destroy(&attributes);
    return rc;
}
