/* A VM's structure: its creation and freeing, and the interface for lower rooms (lanes/vm.h). */
#include "vm/vm_private.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "lanes/clock.h"
#include "wire/engine.h"
#include "lanes/warden.h"
#include "lanes/warden_vm.h"

static atomic_ullong next_id = 1;

bool vmh_vm_stopping(const vmh_vm *vm) { return atomic_load_explicit(&vm->stop.under_way, memory_order_acquire); }
int vmh_vm_stop_fd(vmh_vm *vm) { return vm->stop.fd; }
vmh_code_store *vmh_vm_system(vmh_vm *vm) { return vm->system; }
vmh_meter *vmh_vm_meter(vmh_vm *vm) { return vm->memory.meter; }

void vmh_vm_denied(vmh_vm *vm)
{
    vmh_lane *lane = atomic_load(&vm->work.lane);
    if (lane != NULL)
        atomic_fetch_add_explicit(&lane->denied_total, 1, memory_order_relaxed);
}
struct vme_context *vmh_vm_engine(vmh_vm *vm) { return atomic_load(&vm->engine); }

vmh_code_store *vmh_vm_task(vmh_vm *vm)
{
    vmh_lane *lane = atomic_load(&vm->work.lane);
    return lane == NULL ? NULL : lane->store;
}

void vmh_vm_engine_keep(vmh_vm *vm, struct vme_context *context)
{
    vmh_mutex_lock(&vm->life);
    atomic_store(&vm->engine, context);
    vmh_engine_stop(context, atomic_load(&vm->stop.under_way)); /* a stop may have begun before the engine was loaded */
    vmh_mutex_unlock(&vm->life);
}

void vmh_vm_raise_stop(vmh_vm *vm)
{
    vmh_mutex_lock(&vm->life);
    if (vm->stop.generation == vm->phase.generation)
        vm->stop.delivered = true; /* the pending call may run too late to record it */
    vmh_mutex_unlock(&vm->life);
    PyErr_SetNone(vm->stop.error);
}

void vmh_vm_lose(vmh_vm *vm)
{
    atomic_store(&vm->memory.lost, true);
    vmh_warden_arm(0);
}

static void on_soft(void *context)
{
    (void)context;
    vmh_warden_arm(0); /* allocators call this: it may only wake the warden */
}

vmh_vm *vmh_vm_new(vmh_code_store *system, vmh_events *events)
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
    vm->system = vmh_code_store_ref(system);
    vm->events.queue = vmh_events_ref(events);
    vm->log.tail = &vm->log.first;
    vm->log.rate = VMH_LOG_RATE;
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
    int error = vm->memory.meter == NULL ? ENOMEM : errno; /* of eventfd, for example EMFILE */
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
    vmh_code_store_unref(vm->system);
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
