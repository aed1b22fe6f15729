/* The thread of a VM: boots the interpreter, serves calls from its lane, ends it; and the stops that the warden sends
 * it.
 *
 * Stopping. A stop is meant for one generation of the VM: one boot, load, call or ending. The warden adds a pending
 * call; it runs on some thread of that interpreter, under its GIL, finds out whether the generation still lasts, and
 * only then injects the exception into the interpreter's threads. A phase ends by raising the generation under the same
 * GIL, so an exception is never injected for a phase that is over, and one that was injected in time is taken back.
 */
#include "vm/vm_private.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "lanes/clock.h"
#include "crash/crash.h"
#include "cpython/creation.h"
#include "wire/engine.h"
#include "vm/fork.h"
#include "memory/overflow.h"
#include "seal/seal.h"
#include "sqlite/sqlite_rules.h"
#include "lanes/urgency.h"
#include "lanes/warden.h"
#include "lanes/warden_vm.h"
#include "wire/wire.h"

/* However busy the machine is, a VM that does not unwind is given up: its grace is put off by this at most. Its caller
 * never waits for that. */
#define STARVED_MOST_NS INT64_C(5000000000)
/* A quarter of its grace is what a VM must have had cores for, by then, to be given up: a stop that is heard unwinds
 * within milliseconds. */
static bool had_its_grace(int64_t grace_ns, int64_t starved_ns) { return starved_ns < grace_ns - grace_ns / 4; }

static _Thread_local vmh_vm *current_vm __attribute__((tls_model("initial-exec")));
static atomic_ullong next_id = 1;
static atomic_int thread_total; /* VM threads that exist */
static atomic_bool ending_all;

vmh_vm *vmh_current(void) { return current_vm; }
bool vmh_vm_stopping(const vmh_vm *vm) { return atomic_load_explicit(&vm->stop.under_way, memory_order_acquire); }
int vmh_vm_stop_fd(vmh_vm *vm) { return vm->stop.fd; }
vmh_image *vmh_vm_system(vmh_vm *vm) { return vm->system; }
vmh_meter *vmh_vm_meter(vmh_vm *vm) { return vm->memory.meter; }
struct vme_context *vmh_vm_engine(vmh_vm *vm) { return atomic_load(&vm->engine); }

vmh_image *vmh_vm_task(vmh_vm *vm)
{
    vmh_lane *lane = atomic_load(&vm->work.lane);
    return lane == NULL ? NULL : lane->image;
}

void vmh_vm_engine_keep(vmh_vm *vm, struct vme_context *context)
{
    vmh_mutex_lock(&vm->life);
    atomic_store(&vm->engine, context);
    vmh_engine_stop(context, atomic_load(&vm->stop.under_way)); /* a stop may have come first */
    vmh_mutex_unlock(&vm->life);
}

void vmh_vm_raise_stop(vmh_vm *vm) { PyErr_SetNone(vm->stop.error); }

void vmh_vm_lose(vmh_vm *vm)
{
    atomic_store(&vm->memory.lost, true);
    vmh_warden_arm(0);
}

const char *vmh_phase_name(enum vmh_phase phase)
{
    static const char *const names[] = {"idle", "boot", "load", "call", "end"};
    return names[phase];
}

/* ---- life of the structure ---- */

static void on_soft(void *context)
{
    (void)context;
    vmh_warden_arm(0); /* allocators call this: waking the warden is all that may happen here */
}

vmh_vm *vmh_vm_new(vmh_image *system, vmh_events *events)
{
    vmh_vm *vm = calloc(1, sizeof *vm);
    if (vm == NULL) {
        errno = ENOMEM;
        return NULL;
    }
    vm->stop.fd = -1;
    vmh_blob_init(&vm->values.permissions);
    vmh_blob_init(&vm->values.scratch);
    vm->memory.meter = vmh_meter_new();
    if (vm->memory.meter == NULL || (vm->stop.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        goto failed;
    pthread_mutex_init(&vm->life, NULL);
    pthread_mutex_init(&vm->log.lock, NULL);
    atomic_init(&vm->refs, 1);
    vm->id = atomic_fetch_add(&next_id, 1);
    vm->system = vmh_image_ref(system);
    vm->events.queue = vmh_events_ref(events);
    vm->log.tail = &vm->log.first;
    vm->phase.deadline_ns = vm->phase.cpu_limit_ns = VMH_FOREVER;
    vm->stop.generation = -1;
    atomic_init(&vm->memory.soft_bytes, LLONG_MAX);
    atomic_init(&vm->memory.hard_bytes, LLONG_MAX);
    vm->events.ready = (vmh_event){.type = VMH_EVENT_READY, .object = vm};
    vm->events.end = (vmh_event){.type = VMH_EVENT_ENDED, .object = vm};
    vm->events.quarantined = (vmh_event){.type = VMH_EVENT_QUARANTINED, .object = vm};
    vm->events.stopped = (vmh_event){.type = VMH_EVENT_STOPPED, .object = vm};
    vm->events.log = (vmh_event){.type = VMH_EVENT_LOG, .object = vm};
    vm->memory.meter->on_soft = on_soft;
    vmh_warden_add_vm(vm);
    return vm;
failed:;
    int error = vm->memory.meter == NULL ? ENOMEM : errno; /* of the descriptor: none is left, say */
    if (vm->memory.meter != NULL)
        vmh_meter_unref(vm->memory.meter);
    free(vm);
    errno = error;
    return NULL;
}

vmh_vm *vmh_vm_ref(vmh_vm *vm)
{
    atomic_fetch_add(&vm->refs, 1);
    return vm;
}

void vmh_vm_unref(vmh_vm *vm)
{
    if (atomic_fetch_sub(&vm->refs, 1) != 1)
        return;
    vmh_warden_remove_vm(vm);
    vmh_lane *lane = atomic_load(&vm->work.lane);
    if (lane != NULL)
        vmh_lane_unref(lane);
    while (vm->log.first != NULL) {
        vmh_log_line *line = vm->log.first;
        vm->log.first = line->next;
        free(line);
    }
    vmh_blob_clear(&vm->values.permissions);
    vmh_blob_clear(&vm->values.scratch);
    vmh_engine_leave(atomic_exchange(&vm->engine, NULL));
    vmh_meter_unref(vm->memory.meter);
    vmh_image_unref(vm->system);
    vmh_events_unref(vm->events.queue);
    close(vm->stop.fd);
    pthread_mutex_destroy(&vm->life);
    pthread_mutex_destroy(&vm->log.lock);
    free(vm);
}

void vmh_vm_link(vmh_vm *vm, vmh_vm **list)
{
    vm->next_vm = *list;
    vm->link = list;
    if (*list != NULL)
        (*list)->link = &vm->next_vm;
    *list = vm;
}

void vmh_vm_unlink(vmh_vm *vm)
{
    *vm->link = vm->next_vm;
    if (vm->next_vm != NULL)
        vm->next_vm->link = vm->link;
}

vmh_vm *vmh_vm_next(const vmh_vm *vm) { return vm->next_vm; }
atomic_int *vmh_vm_refs(vmh_vm *vm) { return &vm->refs; }

void vmh_vm_post(vmh_vm *vm, vmh_event *event)
{
    vmh_vm_ref(vm);
    if (!vmh_events_post(vm->events.queue, event))
        vmh_vm_unref(vm);
}

/* ---- CPU ---- */

static int64_t clock_ns(clockid_t clock)
{
    struct timespec ts;
    return clock_gettime(clock, &ts) == 0 ? (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec : 0;
}

/* Life lock held: thread clocks are read while their threads cannot leave. */
static int64_t cpu_ns_locked(vmh_vm *vm)
{
    if (!atomic_load(&vm->threads.cpu_clock_valid))
        return atomic_load(&vm->threads.cpu_ns_final);
    int64_t sum =
        clock_ns(vm->threads.cpu_clock) + vm->threads.ended_cpu_ns + atomic_load(&vm->memory.meter->helper_cpu_ns);
    for (int i = 0; vm->threads.count > 0 && i < VMH_GUEST_THREADS_MOST; i++)
        if (vm->threads.guests[i].used)
            sum += clock_ns(vm->threads.guests[i].clock);
    return sum;
}

int64_t vmh_vm_cpu_ns(vmh_vm *vm)
{
    vmh_mutex_lock(&vm->life);
    int64_t sum = cpu_ns_locked(vm);
    vmh_mutex_unlock(&vm->life);
    return sum;
}

/* Life lock held. What its threads waited for cores since the first look of this `round`, the one that waited longest:
 * a thread that unwinds may wait for another's GIL, and that one for a core. Grace is put off by as much, not without
 * end. */
static int64_t starved_ns_locked(vmh_vm *vm, int64_t round, int64_t now)
{
    int64_t longest = 0;
    if (atomic_load(&vm->threads.cpu_clock_valid))
        longest = vmh_starved_ns(&vm->threads.starvation, round, vm->threads.tid, now);
    for (int i = 0; vm->threads.count > 0 && i < VMH_GUEST_THREADS_MOST; i++) {
        int64_t starved = !vm->threads.guests[i].used ? 0
                                                      : vmh_starved_ns(&vm->threads.guests[i].starvation, round,
                                                                       vm->threads.guests[i].tid, now);
        longest = starved > longest ? starved : longest;
    }
    return longest < STARVED_MOST_NS ? longest : STARVED_MOST_NS;
}

void vmh_thread_enter(vmh_vm *vm)
{
    current_vm = vm;
    vmh_memory_bind(vm->memory.meter);
    vmh_crash_thread_join(vm->threads.crash_slot);
    vmh_mutex_lock(&vm->life);
    vm->threads.count++;
    for (int i = 0; i < VMH_GUEST_THREADS_MOST; i++)
        if (!vm->threads.guests[i].used) {
            vm->threads.guests[i].tid = gettid();
            vm->threads.guests[i].used = pthread_getcpuclockid(pthread_self(), &vm->threads.guests[i].clock) == 0;
            break;
        }
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
    for (int i = 0; known && i < VMH_GUEST_THREADS_MOST; i++)
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

/* ---- phases and stops ---- */

/* Nobody waits for what a VM loads any more: it was retired, or its lane is to stop. */
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
    vm->phase.cpu_start_ns = cpu_limit_ns == VMH_FOREVER ? 0 : cpu_ns_locked(vm);
    vm->stop.delivered = false;
    if (loads_in_vain(vm))
        deadline_ns = 0;
    vmh_mutex_unlock(&vm->life);
    if (call != NULL) {
        call->started_ns = now;
        if (atomic_load(&call->stop) || atomic_load(&call->lane->stop))
            deadline_ns = 0; /* asked to stop before it began: look at once */
    }
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
        vm->work.doomed = true; /* its lane, or its pool, has let go of it */
    if (delivered) {
        /* what was injected and did not fire yet is taken back */
        PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), NULL);
        atomic_fetch_add(&vm->counters.stops, 1);
        vm->work.doomed = true;
    }
    return delivered;
}

/* Sleeps for ever, holding the VM's GIL: what a quarantined VM that cannot be unwound ends in. It burns nothing and,
 * being inside a pending call, holds no lock of the process. */
static void park(void)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (;;)
        pause();
}

/* Runs on a thread of the VM, under its GIL. */
static int stop_pending(void *argument)
{
    vmh_vm *vm = argument;
    atomic_store(&vm->stop.pending_out, 0);
    bool fragile = false, spared[VMH_GUEST_THREADS_MOST] = {false};
    int count = 0;
    PyThreadState *first = PyInterpreterState_ThreadHead(vm->interpreter.interp);
    for (PyThreadState *ts = first; ts != NULL && !fragile; ts = PyThreadState_Next(ts), count++) {
        fragile = vmh_compat_makes_generic(ts);
        if (count < VMH_GUEST_THREADS_MOST)
            spared[count] = vmh_compat_locks_import(ts);
    }
    if (count == 1)
        spared[0] = false; /* nobody else wants what it may leave taken */
    vmh_mutex_lock(&vm->life);
    bool now =
        vm->phase.which != VMH_PHASE_IDLE && vm->stop.generation == vm->phase.generation && vm->interpreter.stoppable;
    bool give_up = now && vm->stop.quarantined_in != NULL && vm->stop.parked_after-- <= 0;
    if (fragile) {
        vm->stop.inject_gap_ns = 1000000; /* not now, but soon */
    } else if (now && !give_up) {
        count = 0;
        first = PyInterpreterState_ThreadHead(vm->interpreter.interp);
        for (PyThreadState *ts = first; ts != NULL; ts = PyThreadState_Next(ts), count++) {
            if (count < VMH_GUEST_THREADS_MOST && spared[count]) {
                vm->stop.inject_gap_ns = 250000; /* one that hardly leaves there has to be met outside */
            } else {
                PyThreadState_SetAsyncExc(ts->thread_id, vm->stop.error);
                vm->stop.delivered = true;
            }
        }
    }
    vmh_mutex_unlock(&vm->life);
    if (give_up)
        park();
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

/* Life lock held. The reason to stop now, or VMH_OK and the next look in *next. */
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
        deadline_ns = vmh_after_ns(deadline_ns, starved < STARVED_MOST_NS ? starved : STARVED_MOST_NS);
    }
    if (now >= deadline_ns)
        return VMH_TIME_LIMIT;
    *next = deadline_ns;
    if (vm->phase.cpu_limit_ns != VMH_FOREVER) {
        int64_t left = vm->phase.cpu_limit_ns - (cpu_ns_locked(vm) - vm->phase.cpu_start_ns);
        if (left <= 0)
            return VMH_CPU_LIMIT;
        /* several threads may burn at once, the engine's among them: a part of what is left is when to look again, and
         * a millisecond at least */
        int others = vm->threads.count + (atomic_load(&vm->engine) != NULL);
        int64_t look = now + (others > 0 && left > 2000000 ? left / (1 + others) : left) + 50000;
        if (look < *next)
            *next = look;
    }
    return VMH_OK;
}

/* Life lock held. */
static void give_up(vmh_vm *vm, const char *where)
{
    vm->stop.quarantined_in = where;
    atomic_store(&vm->state, VMH_VM_QUARANTINED);
}

/* Life lock held, phase IDLE. A VM that was told to end, or was handed a call, begins to at once, unless a thread that
 * the guest left behind keeps the GIL inside C code: no phase begins then, so no deadline of a phase ends it. True: it
 * had the time of an ending to begin, and is given up. */
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
    /* hardly ever reached: looks at its threads begin there */
    int64_t over = vmh_after_ns(vm->asked.seen_ns, vm->limits.end_ns / 2);
    if (now >= over)
        over = vmh_after_ns(vmh_after_ns(vm->asked.seen_ns, vm->limits.end_ns),
                            starved_ns_locked(vm, vm->asked.seen_ns, now));
    if (now >= over) {
        give_up(vm, "threads left behind");
        return true;
    }
    if (over < *next)
        *next = over;
    return false;
}

/* Life lock held, by the warden. A thread of `vm` stands still for ever, and with it every other thread of it that
 * wants its GIL. The call that it held, to be ended; one that waits while nothing was loaded yet is taken for it, as
 * loading would end like this again. */
static vmh_call *give_up_lost(vmh_vm *vm)
{
    give_up(vm, vm->phase.which == VMH_PHASE_LOAD  ? "stack overflow in load"
                : vm->phase.which == VMH_PHASE_END ? "stack overflow in end"
                                                   : "stack overflow in call");
    vm->interpreter.stoppable = false;
    /* nobody waits for it: not Py_Finalize, not a fork */
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
            /* full already: readable, which is all that it is for */
        }
        inject(vm, now);
        starved_ns_locked(vm, vm->phase.generation, now); /* a look, for the next ones to tell what changed since */
    } else if (now >= vm->stop.next_inject_ns) {
        inject(vm, now);
        starved_ns_locked(vm, vm->phase.generation, now);
    }
    next = vm->stop.next_inject_ns;
    if (vm->stop.quarantined_in == NULL) {
        int64_t over = vmh_after_ns(vm->stop.since_ns, vm->limits.grace_ns);
        if (now >= over) {
            /* the caller is answered now, in any case; only the VM may have more time, when it had no core to unwind on
             */
            int64_t starved = starved_ns_locked(vm, vm->phase.generation, now);
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
            give_up(vm, vmh_phase_name(vm->phase.which));
            quarantined = true;
        } else if (over < next) {
            next = over;
        }
    } else if (vm->stop.parked_after < 0) {
        next = VMH_FOREVER;
    }
done:
    vmh_mutex_unlock(&vm->life);
    if (stolen != NULL) { /* its caller first: both it and the service thread want the main GIL next */
        atomic_fetch_add(&vm->counters.errors, 1);
        if (why != NULL && !vmh_wire_text(&stolen->reply, why))
            vmh_blob_clear(&stolen->reply); /* without memory for it, the error goes without its message */
        vmh_call_finish(stolen, stolen_kind);
        vmh_call_unref(stolen);
    }
    if (quarantined) {
        if (lane != NULL)
            vmh_lane_detach(lane, &vm->work.worker);
        vmh_worker_poke(&vm->work.worker); /* should it ever wait for work again, it finds itself given up */
        vmh_vm_post(vm, &vm->events.quarantined);
    } else if (stolen != NULL) {
        vmh_vm_post(vm, &vm->events.stopped); /* it takes no more calls: another VM may */
    }
    return next;
}

void vmh_vm_attach(vmh_vm *vm, vmh_lane *lane)
{
    vmh_lane_ref(lane);
    atomic_store(&vm->work.lane, lane);
    vmh_worker_poke(&vm->work.worker);
}

void vmh_vm_retire(vmh_vm *vm)
{
    atomic_store(&vm->work.retire, true);
    vmh_worker_poke(&vm->work.worker);
    vmh_mutex_lock(&vm->life);
    bool loads = vm->phase.which == VMH_PHASE_LOAD;
    vmh_mutex_unlock(&vm->life);
    vmh_warden_arm(loads ? 0 : vmh_now_ns() + VMH_BEGIN_NS);
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

/* ---- the thread ---- */

static bool boot(vmh_vm *vm)
{
    int64_t began = vmh_now_ns();
    vmh_fork_transit_begin();
    PyStatus status = vmh_creation_make(&vm->interpreter.tstate);
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

/* The number of thread states of the interpreter; ending it with more than our own would abort the process. */
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

/* Lets the threads that were told to stop do so: the phase END goes on, so they are told again and again, until they
 * are gone or the VM is quarantined. A thread that left vmhost's count may still be on its way out of CPython. */
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

/* Runs inside Py_EndInterpreter, when the modules are gone and hardly a finaliser is left: from here on the
 * interpreter's own structures are taken down, and no stop may touch them. */
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
        park();
}

/* False: threads are left, so the VM must not be ended. All of it is one phase with a deadline: exit handlers, threads
 * and finalisers are stopped like a call, and a VM whose end hangs is quarantined. */
static bool end(vmh_vm *vm)
{
    /* the ending has no memory limit: finalisers of a full VM must be able to run */
    atomic_store(&vm->memory.meter->soft, LLONG_MAX);
    atomic_store(&vm->memory.meter->hard, LLONG_MAX);
    vmh_meter_rearm(vm->memory.meter);
    vmh_phase_begin(vm, VMH_PHASE_END, NULL, vmh_after_ns(vmh_now_ns(), vm->limits.end_ns), VMH_FOREVER);
    vmh_creation_unsettle();
    vmh_guest_finish(vm);
    if (!wait_for_threads(vm))
        return false;
    vmh_guest_clear(vm);
    /* borrowed; cleared late, and out of the guest's reach */
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
        park();
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
    vmh_urgency_set(VMH_PATIENT); /* all answers are given: those who waited for one run first */
    if (!end(vm)) {
        vmh_mutex_lock(&vm->life);
        bool first = vm->stop.quarantined_in == NULL;
        if (first)
            give_up(vm, "threads left behind");
        vmh_mutex_unlock(&vm->life);
        if (first)
            vmh_vm_post(vm, &vm->events.quarantined);
        PyEval_SaveThread(); /* its threads run on; this one waits for ever */
        park();
    }
gone:
    vmh_overflow_unguard();
    vmh_memory_bind(NULL);
    vmh_seal_free(vm);
    atomic_store(&vm->memory.meter->ended, true);
    vmh_mutex_lock(&vm->life);
    atomic_store(&vm->threads.cpu_ns_final, cpu_ns_locked(vm));
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
