/* The phases of a VM, and the stops that the warden sends it.
 *
 * A stop is for one generation of the VM: one boot, load, call or ending. The warden adds a pending call. It runs on
 * some thread of that interpreter, under its GIL, checks whether the generation is still current, and only then injects
 * the exception into the interpreter's threads. A phase ends by incrementing the generation under the same GIL. So an
 * exception is never injected into a phase that is over, and one that was injected but not raised is withdrawn.
 */
#include "vm/vm_private.h"

#include <signal.h>
#include <string.h>

#include "lanes/clock.h"
#include "crash/crash.h"
#include "wire/engine.h"
#include "vm/fork.h"
#include "seal/seal.h"
#include "sqlite/sqlite_rules.h"
#include "lanes/warden.h"
#include "lanes/warden_vm.h"
#include "wire/wire.h"

/* A VM is given up only if it had a core for at least a quarter of its grace: a stop normally unwinds within
 * milliseconds. */
static bool had_its_grace(int64_t grace_ns, int64_t starved_ns) { return starved_ns < grace_ns - grace_ns / 4; }

static atomic_bool ending_all;

const char *vmh_phase_name(enum vmh_phase phase)
{
    static const char *const names[] = {"idle", "boot", "load", "call", "end"};
    return names[phase];
}

void vmh_vm_park(void)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (;;)
        pause();
}

void vmh_vm_give_up(vmh_vm *vm, const char *where)
{
    vm->stop.quarantined_in = where;
    atomic_store(&vm->state, VMH_VM_QUARANTINED);
}

/* Nobody needs what the VM is loading: it was retired, or its lane stops. */
static bool loads_in_vain(vmh_vm *vm)
{
    vmh_lane *lane = atomic_load(&vm->work.lane);
    return vm->phase.which == VMH_PHASE_LOAD
           && (atomic_load(&vm->work.retire) || (lane != NULL && atomic_load(&lane->stop)));
}

void vmh_phase_begin(vmh_vm *vm, enum vmh_phase phase, vmh_call *call, int64_t deadline_ns, int64_t cpu_limit_ns)
{
    int64_t now = vmh_now_ns();
    int64_t end_starved_ns = phase == VMH_PHASE_END ? vmh_starved_so_far_ns(vm->threads.tid) : 0;
    if (call != NULL)
        call->started_ns = now; /* before the warden can find the call here, and end it itself */
    vmh_mutex_lock(&vm->life);
    vm->phase.generation++;
    vm->phase.which = phase;
    vm->phase.end_starved_ns = end_starved_ns;
    if (vm->threads.crash_slot != NULL)
        atomic_store_explicit(&vm->threads.crash_slot->phase, phase, memory_order_relaxed);
    vm->phase.call = call;
    vm->phase.start_ns = now;
    vm->phase.deadline_ns = deadline_ns;
    vm->phase.cpu_limit_ns = cpu_limit_ns;
    vm->phase.cpu_start_ns = cpu_limit_ns == VMH_FOREVER ? 0 : vmh_threads_cpu_ns(vm);
    vm->stop.delivered = false;
    if (loads_in_vain(vm))
        deadline_ns = 0;
    vmh_mutex_unlock(&vm->life);
    if (call != NULL && (atomic_load(&call->stop) || atomic_load(&call->lane->stop)))
        deadline_ns = 0; /* a stop was requested before it began: check at once */
    int64_t cpu = vmh_after_ns(now, cpu_limit_ns);
    int64_t when = deadline_ns < cpu ? deadline_ns : cpu;
    if (when != VMH_FOREVER)
        vmh_warden_arm(when);
}

bool vmh_phase_end(vmh_vm *vm, enum vmh_kind *kind)
{
    vmh_mutex_lock(&vm->life);
    bool asked = vm->stop.generation == vm->phase.generation;
    bool delivered = asked && vm->stop.delivered;
    vm->phase.generation++;
    vm->phase.which = VMH_PHASE_IDLE;
    if (vm->threads.crash_slot != NULL)
        atomic_store_explicit(&vm->threads.crash_slot->phase, VMH_PHASE_IDLE, memory_order_relaxed);
    vm->phase.call = NULL;
    *kind = delivered ? vm->stop.kind : VMH_OK;
    if (asked) {
        atomic_store(&vm->stop.under_way, false);
        vmh_engine_stop(atomic_load(&vm->engine), false);
        uint64_t count;
        while (read(vm->stop.fd, &count, sizeof count) > 0) {}
    }
    bool let_go = vm->stop.quarantined_in != NULL || vm->stop.answered_for;
    vmh_mutex_unlock(&vm->life);
    if (let_go)
        vm->work.doomed = true; /* its lane or its pool no longer uses it */
    if (delivered) {
        /* Withdraw an exception that was injected but not raised. */
        PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), NULL);
        atomic_fetch_add(&vm->counters.stops, 1);
        vm->work.doomed = true;
    }
    return delivered;
}

/* Runs on a thread of the VM, under its GIL, like vmh_phase_end: so no phase ends between the decision, which takes the
 * life lock, and the injection, which takes CPython's mutex of thread states. */
static int stop_pending(void *argument)
{
    vmh_vm *vm = argument;
    atomic_store(&vm->stop.pending_out, 0);
    bool spared[VMH_GUEST_THREADS_MAX] = {false};
    int count = 0, spared_count = 0;
    PyThreadState *first = PyInterpreterState_ThreadHead(vm->interpreter.interp);
    for (PyThreadState *ts = first; ts != NULL; ts = PyThreadState_Next(ts), count++)
        if (count < VMH_GUEST_THREADS_MAX)
            spared_count += (spared[count] = vmh_compat_locks_import(ts));
    vmh_mutex_lock(&vm->life);
    /* One thread alone leaves no lock locked that another one needs. And the import system's code leaves its locks
     * within microseconds, unless a task runs it with objects or globals of its own: after half of the grace it is
     * stopped like any other code. */
    if (count == 1 || (spared_count > 0 && vmh_now_ns() - vm->stop.since_ns > vm->limits.grace_ns / 2)) {
        memset(spared, 0, sizeof spared);
        spared_count = 0;
    }
    bool now =
        vm->phase.which != VMH_PHASE_IDLE && vm->stop.generation == vm->phase.generation && vm->interpreter.stoppable;
    bool give_up = vm->interpreter.hidden || (now && vm->stop.quarantined_in != NULL && vm->stop.parked_after-- <= 0);
    bool deliver = now && !give_up;
    vm->stop.parked = give_up;
    if (deliver && spared_count > 0)
        vm->stop.inject_gap_ns = 250000; /* retry often, to find a thread outside of its long import */
    if (deliver && count > spared_count)
        vm->stop.delivered = true;
    PyObject *error = vm->stop.error;
    vmh_mutex_unlock(&vm->life);
    if (give_up)
        vmh_vm_park();
    count = 0;
    for (PyThreadState *ts = first; deliver && ts != NULL; ts = PyThreadState_Next(ts), count++)
        if (count >= VMH_GUEST_THREADS_MAX || !spared[count])
            PyThreadState_SetAsyncExc(ts->thread_id, error);
    return 0;
}

/* Life lock held. */
static void inject(vmh_vm *vm, int64_t now)
{
    if (vm->interpreter.stoppable && vm->stop.error != NULL && atomic_exchange(&vm->stop.pending_out, 1) == 0
        && _PyEval_AddPendingCall(vm->interpreter.interp, stop_pending, vm, 0) != VMH_PENDING_ADDED)
        atomic_store(&vm->stop.pending_out, 0);
    vmh_engine_stop(atomic_load(&vm->engine), true);
    vm->stop.next_inject_ns = now + vm->stop.inject_gap_ns;
    if (vm->stop.inject_gap_ns < 20000000)
        vm->stop.inject_gap_ns *= 2;
    vmh_waits_interrupt(vm);
    vmh_sqlite_interrupt(vm);
    if (vm->host_call != NULL) {
        unsigned waiting = 0;
        atomic_compare_exchange_strong(&vm->host_call->word, &waiting, 2);
        vmh_futex_wake(&vm->host_call->word, INT_MAX);
    }
}

/* Life lock held. Returns the reason to stop now; or VMH_OK, with the time of the next check in *next. */
static enum vmh_kind reason(vmh_vm *vm, int64_t now, int64_t *next)
{
    if (atomic_load(&ending_all) && vm->phase.which != VMH_PHASE_END)
        return VMH_CLOSED;
    if (vm->phase.call != NULL && atomic_load(&vm->phase.call->stop))
        return VMH_CANCELLED;
    if (vm->phase.call != NULL && atomic_load(&vm->phase.call->lane->stop))
        return VMH_CLOSED;
    if (loads_in_vain(vm))
        return VMH_CLOSED;
    if (vm->phase.which != VMH_PHASE_END && atomic_load(&vm->memory.meter->over))
        return VMH_MEMORY_LIMIT;
    int64_t deadline_ns = vm->phase.deadline_ns;
    if (now >= deadline_ns && vm->phase.which == VMH_PHASE_END) {
        int64_t starved = vmh_starved_so_far_ns(vm->threads.tid) - vm->phase.end_starved_ns;
        deadline_ns = vmh_after_ns(deadline_ns, starved < VMH_STARVED_MAX_NS ? starved : VMH_STARVED_MAX_NS);
    }
    if (now >= deadline_ns)
        return VMH_TIME_LIMIT;
    *next = deadline_ns;
    if (vm->phase.cpu_limit_ns != VMH_FOREVER) {
        int64_t left = vm->phase.cpu_limit_ns - (vmh_threads_cpu_ns(vm) - vm->phase.cpu_start_ns);
        if (left <= 0)
            return VMH_CPU_LIMIT;
        /* Several threads may use CPU at once, among them the engine's: check again after a fraction of what is left,
         * or for the last 2 ms after all of it. */
        int others = vm->threads.count + (atomic_load(&vm->engine) != NULL);
        int64_t look = now + (others > 0 && left > 2000000 ? left / (1 + others) : left) + 50000;
        if (look < *next)
            *next = look;
    }
    return VMH_OK;
}

/* Life lock held, phase IDLE. A VM that was asked to end, or was handed a call, begins at once, unless a thread that
 * the guest left behind holds the GIL inside C code. Then no phase begins, so no phase's deadline applies. True: it did
 * not begin within the time for an ending, and is given up. */
static bool does_not_begin(vmh_vm *vm, int64_t now, int64_t handed_ns, int64_t *next)
{
    bool asked = handed_ns != 0 || atomic_load(&vm->work.retire);
    if (!asked || !vm->interpreter.stoppable || vm->stop.quarantined_in != NULL) {
        vm->asked.seen_ns = 0;
        return false;
    }
    if (vm->asked.seen_ns == 0 || vm->asked.generation != vm->phase.generation || vm->asked.handed_ns != handed_ns) {
        vm->asked.seen_ns = now;
        vm->asked.generation = vm->phase.generation;
        vm->asked.handed_ns = handed_ns;
    }
    /* Rarely reached: from half of that time on, it also checks how long the threads waited for cores. */
    int64_t over = vmh_after_ns(vm->asked.seen_ns, vm->limits.end_ns / 2);
    if (now >= over)
        over = vmh_after_ns(vmh_after_ns(vm->asked.seen_ns, vm->limits.end_ns),
                            vmh_threads_starved_ns(vm, vm->asked.seen_ns, now));
    if (now >= over) {
        vmh_vm_give_up(vm, "threads left behind");
        return true;
    }
    if (over < *next)
        *next = over;
    return false;
}

/* Life lock held, by the warden. A thread of `vm` is suspended for good, and blocks all other threads that need its
 * GIL. Returns its call, to be ended. If it was loading, a queued call is taken instead, because the next VM would fail
 * to load in the same way. */
static vmh_call *give_up_lost(vmh_vm *vm)
{
    vmh_vm_give_up(vm, vm->phase.which == VMH_PHASE_LOAD  ? "stack overflow in load"
                       : vm->phase.which == VMH_PHASE_END ? "stack overflow in end"
                                                          : "stack overflow in call");
    vm->interpreter.stoppable = false;
    /* Neither Py_Finalize nor a fork may wait for it. */
    vmh_compat_hide_interpreter(vm->interpreter.interp);
    vm->interpreter.interp = NULL;
    if (vm->interpreter.in_transit)
        vmh_fork_transit_end();
    vm->interpreter.in_transit = false;
    vmh_call *call = atomic_load(&vm->work.call);
    vmh_lane *lane = atomic_load(&vm->work.lane);
    if (call != NULL) {
        vmh_hot_leave();
        return vmh_call_claim(call, VMH_RUNNING) ? vmh_call_ref(call) : NULL;
    }
    if (vm->phase.which == VMH_PHASE_LOAD && lane != NULL && (call = vmh_lane_take(lane, &vm->work.worker)) != NULL
        && !vmh_call_claim(call, VMH_RUNNING)) {
        vmh_call_unref(call);
        call = NULL;
    }
    return call;
}

int64_t vmh_vm_check(vmh_vm *vm, int64_t now)
{
    int64_t next = VMH_FOREVER;
    vmh_call *stolen = NULL;
    enum vmh_kind stolen_kind = VMH_VM_LOST;
    vmh_lane *lane = atomic_load(&vm->work.lane);
    bool quarantined = false;
    const char *why = NULL;
    int64_t handed_ns = 0;
    if (lane != NULL)
        next = vmh_lane_expire_slot(lane, &vm->work.worker, now, &handed_ns);
    vmh_mutex_lock(&vm->life);
    if (atomic_load(&vm->memory.lost)) {
        if (vm->stop.quarantined_in == NULL) {
            quarantined = true;
            stolen = give_up_lost(vm);
            why = "its C stack overflowed, in a recursion that Python does not count (nested iterators, partials, "
                  "generic aliases)";
        }
        goto done;
    }
    if (vm->phase.which == VMH_PHASE_IDLE) {
        quarantined = does_not_begin(vm, now, handed_ns, &next);
        goto done;
    }
    if (vm->stop.generation != vm->phase.generation) {
        enum vmh_kind kind = reason(vm, now, &next);
        if (kind == VMH_OK)
            goto done;
        vm->stop.generation = vm->phase.generation;
        vm->stop.kind = kind;
        vm->stop.since_ns = now;
        vm->stop.inject_gap_ns = 1000000;
        vm->stop.parked_after = 50;
        atomic_store(&vm->stop.under_way, true);
        uint64_t one = 1;
        if (write(vm->stop.fd, &one, sizeof one) < 0) {
            /* already full, and so readable, which is enough */
        }
        inject(vm, now);
        vmh_threads_starved_ns(vm, vm->phase.generation,
                               now); /* the first check, which sets the base for the next ones */
    } else if (now >= vm->stop.next_inject_ns) {
        inject(vm, now);
        vmh_threads_starved_ns(vm, vm->phase.generation, now);
    }
    next = vm->stop.next_inject_ns;
    if (vm->stop.quarantined_in == NULL) {
        int64_t over = vmh_after_ns(vm->stop.since_ns, vm->limits.grace_ns);
        if (now >= over) {
            /* The caller is answered now in any case. The VM may get more time if it had no core to unwind on. */
            int64_t starved = vmh_threads_starved_ns(vm, vm->phase.generation, now);
            if (!had_its_grace(vm->limits.grace_ns, starved))
                over = vmh_after_ns(over, starved);
            if (vm->phase.call != NULL && vmh_call_claim(vm->phase.call, VMH_RUNNING)) {
                stolen = vmh_call_ref(vm->phase.call);
                vm->stop.answered_for = true;
                if (now < over)
                    stolen_kind = vm->stop.kind;
            }
        }
        if (now >= over) {
            vmh_vm_give_up(vm, vmh_phase_name(vm->phase.which));
            quarantined = true;
        } else if (over < next) {
            next = over;
        }
    } else if (vm->stop.parked_after < 0) {
        next = VMH_FOREVER;
    }
done:
    vmh_mutex_unlock(&vm->life);
    if (stolen
        != NULL) { /* end the call before posting: its caller and the service thread both need the main GIL next */
        atomic_fetch_add(&vm->counters.errors, 1);
        if (why != NULL && !vmh_wire_text(&stolen->reply, why))
            vmh_blob_clear(&stolen->reply); /* without memory the error has no message */
        if (stolen_kind == VMH_MEMORY_LIMIT)
            vmh_call_hold(stolen, vmh_holders_report(vm->memory.meter));
        vmh_call_finish(stolen, stolen_kind);
        vmh_call_unref(stolen);
    }
    if (quarantined) {
        if (lane != NULL)
            vmh_lane_detach(lane, &vm->work.worker);
        vmh_worker_poke(&vm->work.worker); /* if it ever waits for work again, it finds that it was given up */
        vmh_vm_post(vm, &vm->events.quarantined);
    } else if (stolen != NULL) {
        vmh_vm_post(vm, &vm->events.stopped); /* it accepts no more calls: another VM can be started */
    }
    return next;
}

static void end_one(vmh_vm *vm, void *unused)
{
    (void)unused;
    vmh_vm_retire(vm);
}

void vmh_vm_end_all(void)
{
    atomic_store(&ending_all, true);
    vmh_warden_visit_vms(end_one, NULL);
    vmh_warden_arm(0);
}
