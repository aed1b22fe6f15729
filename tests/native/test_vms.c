/* Whole VMs under many threads, with a stub of CPython (python/) and a guest in C (fake_guest.c): what boots, serves,
 * stops and ends a VM is the core's own (vm/, waits.c, lanes/). Every call ends once, and as it has to; every wait ends
 * when its VM is stopped, and no VM, interpreter or reference is left. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "fake_guest.h"
#include "lanes/clock.h"
#include "lanes/warden.h"
#include "vm/vm_private.h"

enum { VMS = 3, SUBMITTERS = 3, CALLS = 250 };

static vmh_events *events;
static vmh_code_store *store;
static vmh_lane *lane;
static atomic_int alive, made, failed; /* VMs that the host has not seen end, all of them, those that did not boot */
static atomic_bool closing;
static atomic_long by_kind[VMH_KINDS], logs;

static void add_vm(void)
{
    vmh_vm *vm = vmh_vm_new(store, events);
    CHECK(vm != NULL);
    vm->limits = (vmh_vm_limits){.stack_bytes = 1 << 20,
                                 .grace_ns = INT64_C(60000000000),
                                 .boot_ns = INT64_C(60000000000),
                                 .load_ns = INT64_C(60000000000),
                                 .end_ns = INT64_C(60000000000)};
    atomic_store(&vm->memory.soft_bytes, GUEST_SOFT_BYTES);
    atomic_fetch_add(&alive, 1);
    if (atomic_fetch_add(&made, 1) % 8 == VMS)
        vm->limits.boot_ns = GUEST_BOOT_NS;
    CHECK(vmh_vm_start(vm) == 0);
    vmh_vm_attach(vm, lane);
    vmh_vm_unref(vm);
}

/* The host: a VM that ended is replaced, until the lane is closed. */
static void *host(void *unused)
{
    (void)unused;
    while (!atomic_load(&closing) || atomic_load(&alive) > 0) {
        vmh_events_wait(events, vmh_now_ns() + 20000000);
        for (vmh_event *node = vmh_events_take(events), *next; node != NULL; node = next) {
            next = node->next;
            enum vmh_event_type type = node->type;
            void *object = node->object;
            atomic_store(&node->queued, false);
            CHECK(type != VMH_EVENT_QUARANTINED);
            if (type == VMH_EVENT_STARVED)
                vmh_lane_unref(object);
            else if (type == VMH_EVENT_FAILED_CALL || type == VMH_EVENT_DONE)
                vmh_call_unref(object);
            else {
                if (type == VMH_EVENT_LOG)
                    atomic_fetch_add(&logs, 1);
                if (type == VMH_EVENT_FAILED) {
                    CHECK(((vmh_vm *)object)->limits.boot_ns == GUEST_BOOT_NS);
                    atomic_fetch_add(&failed, 1);
                }
                vmh_vm_unref(object);
                if (type == VMH_EVENT_ENDED || type == VMH_EVENT_FAILED) {
                    if (!atomic_load(&closing))
                        add_vm();
                    atomic_fetch_sub(&alive, 1);
                }
            }
        }
    }
    return unused;
}

static void *submit(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    for (int i = 0; i < CALLS; i++) {
        vmh_call *call = vmh_call_new(lane);
        CHECK(call != NULL && vmh_blob_reserve(&call->request, 1));
        enum work which =
            (enum work)((i + (int)seed) % 4 == 0 ? rand_r(&seed) % WORK_KINDS : rand_r(&seed) % WORK_SLEEP);
        call->request.data[0] = (uint8_t)which;
        call->request.size = 1;
        bool cancelled = which >= WORK_SLEEP ? rand_r(&seed) % 2 == 0 : rand_r(&seed) % 16 == 0;
        if ((which >= WORK_SLEEP && !cancelled) || rand_r(&seed) % 16 == 0)
            call->deadline_ns = vmh_now_ns() + rand_r(&seed) % 3000000;
        CHECK(vmh_lane_push(lane, &call, 1) == VMH_OK);
        if (cancelled) {
            usleep((unsigned)(rand_r(&seed) % 1000));
            if (!vmh_lane_cancel(call, VMH_CANCELLED))
                vmh_call_request_stop(call);
        }
        while (vmh_call_wait(call, VMH_FOREVER) != 0) {}
        CHECK(call->kind == VMH_OK || call->kind == VMH_TIME_LIMIT || call->kind == VMH_CANCELLED
              || (call->kind == VMH_MEMORY_LIMIT && which == WORK_MEMORY));
        CHECK(call->kind != VMH_OK || which < WORK_SLEEP);
        CHECK(call->kind != VMH_CANCELLED || cancelled);
        atomic_fetch_add(&by_kind[call->kind], 1);
        vmh_call_unref(call);
    }
    return NULL;
}

/* Asks a VM for its figures, and now and then retires one at any point of its work. */
static void look(vmh_vm *vm, void *seen)
{
    if (++*(long *)seen % 64 == 0)
        vmh_vm_retire(vm);
    CHECK(vmh_vm_cpu_ns(vm) >= 0);
    CHECK(vmh_vm_meter(vm) != NULL && vmh_vm_system(vm) == store);
    CHECK(vmh_vm_task(vm) == NULL || vmh_vm_task(vm) == store);
    CHECK(vmh_thread_count(vm) <= GUEST_THREADS && vmh_vm_stop_fd(vm) >= 0);
    vmh_vm_stopping(vm);
    atomic_load(&vm->counters.stops);
}

static void *watch(void *seen)
{
    while (!atomic_load(&closing)) {
        vmh_warden_visit_vms(look, seen);
        usleep(300);
    }
    return NULL;
}

static void count(vmh_vm *vm, void *vms)
{
    (void)vm;
    ++*(int *)vms;
}

int main(void)
{
    pthread_t host_thread, watcher, submitters[SUBMITTERS];
    long seen = 0, ended = 0;
    int left = 0;
    events = vmh_events_new();
    store = vmh_code_store_new();
    lane = vmh_lane_new("task", "1", "main:run", store, events);
    CHECK(events != NULL && store != NULL && lane != NULL);
    lane->capacity = 64;
    lane->calls_per_vm = 60;
    for (int i = 0; i < VMS; i++)
        add_vm();
    CHECK(pthread_create(&host_thread, NULL, host, NULL) == 0 && pthread_create(&watcher, NULL, watch, &seen) == 0);
    for (int i = 0; i < SUBMITTERS; i++)
        CHECK(pthread_create(&submitters[i], NULL, submit, (void *)(uintptr_t)(i + 1)) == 0);
    for (int i = 0; i < SUBMITTERS; i++)
        pthread_join(submitters[i], NULL);
    atomic_store(&closing, true);
    pthread_join(watcher, NULL);
    vmh_vm_end_all();
    vmh_events_wake(events);
    pthread_join(host_thread, NULL);
    for (int kind = 0; kind < VMH_KINDS; kind++)
        ended += atomic_load(&by_kind[kind]);
    CHECK(ended == SUBMITTERS * CALLS);
    for (int i = 0; i < 1000 && (vmh_vm_threads(false) > 0 || atomic_load(&store->refs) > 2); i++)
        usleep(5000); /* their threads, and those of their guests, are ending */
    vmh_warden_visit_vms(count, &left);
    CHECK(left == 0 && vmh_vm_threads(false) == 0 && python_interpreters() == 0 && atomic_load(&guest_seals) == 0);
    CHECK(atomic_load(&failed) > 0);
    CHECK(seen > 0 && atomic_load(&logs) > 0 && atomic_load(&guest_stopped) > 0 && atomic_load(&guest_locked) > 0);
    CHECK(atomic_load(&by_kind[VMH_TIME_LIMIT]) > 0 && atomic_load(&by_kind[VMH_CANCELLED]) > 0
          && atomic_load(&by_kind[VMH_MEMORY_LIMIT]) > 0 && atomic_load(&by_kind[VMH_OK]) > 0);
    vmh_lane_close(lane, true);
    vmh_lane_unref(lane);
    vmh_code_store_unref(store);
    vmh_events_unref(events);
    printf("test_vms: passed, %d VMs, %ld calls, %ld stopped by time, %ld by their callers, %ld by memory\n",
           atomic_load(&made), ended, atomic_load(&by_kind[VMH_TIME_LIMIT]), atomic_load(&by_kind[VMH_CANCELLED]),
           atomic_load(&by_kind[VMH_MEMORY_LIMIT]));
    return 0;
}
