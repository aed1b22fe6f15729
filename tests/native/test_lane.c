/* Lanes, calls, events and the warden under many threads: every call ends exactly once, on any of them. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "lanes/clock.h"
#include "fake_vm.h"
#include "lanes/lane.h"

enum { WORKERS = 4, SUBMITTERS = 4, CALLS = 4000 };

typedef struct {
    vmh_lane *lane;
    vmh_worker worker;
    atomic_bool leave;
    long served;
} worker_thread;

static void *serve(void *argument)
{
    worker_thread *self = argument;
    vmh_lane_attach(self->lane, &self->worker);
    while (!atomic_load(&self->leave)) {
        vmh_call *call = vmh_lane_take(self->lane, &self->worker);
        if (call == NULL) {
            vmh_worker_wait(&self->worker);
            continue;
        }
        call->started_ns = vmh_now_ns();
        atomic_fetch_add(&self->lane->running, 1);
        CHECK(vmh_call_claim(call, VMH_RUNNING));
        CHECK(vmh_blob_reserve(&call->reply, call->request.size));
        memcpy(call->reply.data, call->request.data, call->request.size);
        call->reply.size = call->request.size;
        self->served++;
        vmh_call_finish(call, VMH_OK);
        vmh_call_unref(call);
    }
    vmh_lane_detach(self->lane, &self->worker);
    return NULL;
}

typedef struct {
    vmh_lane *lane;
    unsigned seed;
    long ok, cancelled, expired, closed, full;
} submitter_thread;

static void *submit(void *argument)
{
    submitter_thread *self = argument;
    for (int i = 0; i < CALLS; i++) {
        vmh_call *call = vmh_call_new(self->lane);
        CHECK(call != NULL);
        size_t size = (size_t)(rand_r(&self->seed) % 400);
        CHECK(vmh_blob_reserve(&call->request, size));
        memset(call->request.data, i & 255, size);
        call->request.size = size;
        call->level = rand_r(&self->seed) % VMH_LEVELS;
        if (rand_r(&self->seed) % 4 == 0)
            call->deadline_ns = vmh_now_ns() + rand_r(&self->seed) % 200000;
        enum vmh_kind kind = vmh_lane_push(self->lane, &call, 1);
        if (kind != VMH_OK) {
            *(kind == VMH_CLOSED ? &self->closed : &self->full) += 1;
            vmh_call_unref(call);
            continue;
        }
        if (rand_r(&self->seed) % 3 == 0)
            vmh_call_watch(call);
        if (rand_r(&self->seed) % 5 == 0)
            vmh_lane_cancel(call, VMH_CANCELLED);
        while (vmh_call_wait(call, VMH_FOREVER) != 0) {}
        if (call->kind == VMH_OK) {
            CHECK(call->reply.size == size);
            self->ok++;
        } else if (call->kind == VMH_CANCELLED) {
            self->cancelled++;
        } else if (call->kind == VMH_TIME_LIMIT) {
            self->expired++;
        } else {
            CHECK(call->kind == VMH_CLOSED);
            self->closed++;
        }
        vmh_call_unref(call);
    }
    return NULL;
}

static void drop(vmh_event *node)
{
    while (node != NULL) {
        vmh_event *next = node->next;
        enum vmh_event_type type = node->type;
        void *object = node->object;
        atomic_store(&node->queued, false);
        if (type == VMH_EVENT_STARVED)
            vmh_lane_unref(object);
        else
            vmh_call_unref(object);
        node = next;
    }
}

typedef struct {
    vmh_events *events;
    atomic_bool leave;
} reader_thread;

static void *read_events(void *argument)
{
    reader_thread *self = argument;
    while (!atomic_load(&self->leave)) {
        vmh_events_wait(self->events, VMH_FOREVER);
        drop(vmh_events_take(self->events));
    }
    return NULL;
}

static void many_threads(bool close_in_the_middle)
{
    vmh_events *events = vmh_events_new();
    vmh_code_store *store = vmh_code_store_new();
    vmh_lane *lane = vmh_lane_new("task", "1", "main:run", store, events);
    CHECK(events != NULL && store != NULL && lane != NULL);
    lane->capacity = 64;
    worker_thread workers[WORKERS];
    submitter_thread submitters[SUBMITTERS];
    reader_thread reader = {.events = events};
    pthread_t threads[WORKERS + SUBMITTERS + 1];
    memset(workers, 0, sizeof workers);
    memset(submitters, 0, sizeof submitters);
    for (int i = 0; i < WORKERS; i++) {
        workers[i].lane = lane;
        CHECK(pthread_create(&threads[i], NULL, serve, &workers[i]) == 0);
    }
    for (int i = 0; i < SUBMITTERS; i++) {
        submitters[i].lane = lane;
        submitters[i].seed = (unsigned)i + 1;
        CHECK(pthread_create(&threads[WORKERS + i], NULL, submit, &submitters[i]) == 0);
    }
    CHECK(pthread_create(&threads[WORKERS + SUBMITTERS], NULL, read_events, &reader) == 0);
    if (close_in_the_middle) {
        usleep(20000);
        vmh_lane_close(lane, true);
    }
    long ends = 0, ok = 0, served = 0;
    for (int i = 0; i < SUBMITTERS; i++) {
        pthread_join(threads[WORKERS + i], NULL);
        ok += submitters[i].ok;
        ends += submitters[i].ok + submitters[i].cancelled + submitters[i].expired + submitters[i].closed
                + submitters[i].full;
    }
    for (int i = 0; i < WORKERS; i++) {
        atomic_store(&workers[i].leave, true);
        vmh_worker_poke(&workers[i].worker);
    }
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(threads[i], NULL);
        served += workers[i].served;
    }
    atomic_store(&reader.leave, true);
    vmh_events_wake(events);
    pthread_join(threads[WORKERS + SUBMITTERS], NULL);
    drop(vmh_events_take(events));
    CHECK(ends == (long)SUBMITTERS * CALLS);
    CHECK(served == ok);
    CHECK(lane->queued == 0 && lane->idle_count == 0 && lane->workers == 0 && atomic_load(&lane->running) == 0);
    CHECK(atomic_load(&lane->refs) == 1);
    vmh_lane_unref(lane);
    vmh_code_store_unref(store);
    vmh_events_unref(events);
}

/* Each duration lies in the bucket whose ends are on either side of it, and a call that has ended is in both
 * histograms. */
static void durations(void)
{
    int64_t start = 0; /* of the bucket, in units */
    for (int bucket = 0; bucket < VMH_HISTOGRAM_BUCKETS; bucket++) {
        int64_t end = start + (bucket < 8 ? 1 : INT64_C(1) << (bucket / 8 - 1));
        CHECK(vmh_histogram_bucket(start * VMH_HISTOGRAM_UNIT_NS) == bucket);
        CHECK(vmh_histogram_bucket(end * VMH_HISTOGRAM_UNIT_NS - 1) == bucket);
        start = end;
    }
    CHECK(vmh_histogram_bucket(-1) == 0 && vmh_histogram_bucket(INT64_MIN) == 0);
    CHECK(vmh_histogram_bucket(INT64_MAX) == VMH_HISTOGRAM_BUCKETS - 1);

    vmh_events *events = vmh_events_new();
    vmh_code_store *store = vmh_code_store_new();
    vmh_lane *lane = vmh_lane_new("task", "1", "main:run", store, events);
    vmh_call *ran = vmh_call_new(lane), *never = vmh_call_new(lane);
    ran->submitted_ns = vmh_now_ns() - 2000000;
    ran->started_ns = ran->submitted_ns + 1000000;
    CHECK(vmh_call_claim(ran, VMH_QUEUED) && vmh_call_claim(never, VMH_QUEUED));
    vmh_call_finish(ran, VMH_OK);
    vmh_call_finish(never, VMH_CANCELLED);
    CHECK(atomic_load(&lane->waits.counts[vmh_histogram_bucket(1000000)]) == 1);
    CHECK(atomic_load(&lane->wait_ns_total) == 1000000);
    long long walls = 0, waits = 0;
    for (int bucket = 0; bucket < VMH_HISTOGRAM_BUCKETS; bucket++) {
        walls += atomic_load(&lane->walls.counts[bucket]);
        waits += atomic_load(&lane->waits.counts[bucket]);
    }
    CHECK(walls == 1 && waits == 1);
    vmh_call_unref(ran);
    vmh_call_unref(never);
    drop(vmh_events_take(events));
    vmh_lane_unref(lane);
    vmh_code_store_unref(store);
    vmh_events_unref(events);
}

/* Highest priority first, then first come; a call handed to a worker that leaves is not lost. */
static void order(void)
{
    vmh_events *events = vmh_events_new();
    vmh_code_store *store = vmh_code_store_new();
    vmh_lane *lane = vmh_lane_new("task", "1", "main:run", store, events);
    vmh_worker worker = {0}, other = {0};
    vmh_call *calls[6];
    const int levels[6] = {7, 7, 0, 15, 7, 0}, expected[6] = {2, 5, 0, 1, 4, 3};
    vmh_lane_attach(lane, &worker);
    for (int i = 0; i < 6; i++) {
        calls[i] = vmh_call_new(lane);
        calls[i]->level = levels[i];
        CHECK(vmh_lane_push(lane, &calls[i], 1) == VMH_OK);
    }
    CHECK(vmh_lane_starved(lane));
    for (int i = 0; i < 6; i++) {
        vmh_call *call = vmh_lane_take(lane, &worker);
        CHECK(call == calls[expected[i]]);
        CHECK(vmh_call_claim(call, VMH_RUNNING));
        vmh_call_finish(call, VMH_OK);
        vmh_call_unref(call);
    }
    CHECK(vmh_lane_take(lane, &worker) == NULL);
    for (int i = 0; i < 6; i++)
        vmh_call_unref(calls[i]);

    vmh_call *call = vmh_call_new(lane);
    CHECK(vmh_lane_push(lane, &call, 1) == VMH_OK); /* handed to the idle worker, */
    vmh_lane_detach(lane, &worker);                 /* which leaves instead */
    vmh_lane_attach(lane, &other);
    CHECK(vmh_lane_take(lane, &other) == call);
    CHECK(vmh_call_claim(call, VMH_RUNNING));
    CHECK(!vmh_call_claim(call, VMH_RUNNING)); /* one end only */
    vmh_call_finish(call, VMH_OK);
    vmh_call_unref(call);
    vmh_call_unref(call);
    vmh_lane_detach(lane, &other);
    drop(vmh_events_take(events));
    vmh_lane_unref(lane);
    vmh_code_store_unref(store);
    vmh_events_unref(events);
}

/* The warden ends a queued call whose time is over, while all other threads sleep. */
static void expiry(void)
{
    vmh_events *events = vmh_events_new();
    vmh_code_store *store = vmh_code_store_new();
    vmh_lane *lane = vmh_lane_new("task", "1", "main:run", store, events);
    vmh_call *call = vmh_call_new(lane);
    call->deadline_ns = vmh_now_ns() + 5000000;
    CHECK(vmh_lane_push(lane, &call, 1) == VMH_OK);
    while (vmh_call_wait(call, VMH_FOREVER) != 0) {}
    CHECK(call->kind == VMH_TIME_LIMIT);
    vmh_call_unref(call);
    drop(vmh_events_take(events));
    vmh_lane_unref(lane);
    vmh_code_store_unref(store);
    vmh_events_unref(events);
}

static void *come_and_go(void *unused)
{
    (void)unused;
    for (int i = 0; i < 300; i++) {
        vmh_vm *vm = calloc(1, sizeof *vm);
        CHECK(vm != NULL);
        atomic_init(&vm->refs, 1);
        vmh_warden_add_vm(vm);
        vmh_warden_arm(0);
        usleep(100);
        vmh_vm_unref(vm);
    }
    return NULL;
}

/* VMs end while the warden looks at them. */
static void lookers(void)
{
    pthread_t threads[4];
    vmh_vm *steady = calloc(1, sizeof *steady);
    CHECK(steady != NULL);
    atomic_init(&steady->refs, 1);
    vmh_warden_add_vm(steady);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, come_and_go, NULL) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    int seen = atomic_load(&steady->looks);
    CHECK(seen > 0);
    while (atomic_load(&steady->looks) == seen)
        usleep(500); /* it asked to be looked at again, and is */
    vmh_vm_unref(steady);
}

static void add_another(vmh_vm *vm, void *count)
{
    (void)vm;
    vmh_vm *other = calloc(1, sizeof *other);
    CHECK(other != NULL);
    atomic_init(&other->refs, 1);
    vmh_warden_add_vm(other);
    vmh_vm_unref(other);
    ++*(int *)count;
}

/* A visitor holds no lock: it may wait for a lock whose holder waits for the list. */
static void visitors(void)
{
    vmh_vm *all[3];
    for (int i = 0; i < 3; i++) {
        all[i] = calloc(1, sizeof *all[i]);
        CHECK(all[i] != NULL);
        atomic_init(&all[i]->refs, 1);
        vmh_warden_add_vm(all[i]);
    }
    int count = 0;
    vmh_warden_visit_vms(add_another, &count);
    CHECK(count == 3);
    for (int i = 0; i < 3; i++)
        vmh_vm_unref(all[i]);
}

static vmh_call *pushed(vmh_lane *lane, int64_t deadline_ns)
{
    vmh_call *call = vmh_call_new(lane);
    CHECK(call != NULL);
    call->deadline_ns = deadline_ns;
    CHECK(vmh_lane_push(lane, &call, 1) == VMH_OK);
    return call;
}

/* A call that was handed to an idle worker and not taken: it is counted, and any thread may end it. */
static void handed_over(void)
{
    vmh_events *events = vmh_events_new();
    vmh_code_store *store = vmh_code_store_new();
    vmh_lane *lane = vmh_lane_new("task", "1", "main:run", store, events);
    vmh_worker worker = {0}, other = {0};
    int64_t handed_ns;
    vmh_lane_attach(lane, &worker);
    CHECK(vmh_lane_take(lane, &worker) == NULL);
    vmh_call *call = pushed(lane, VMH_FOREVER), *second = pushed(lane, VMH_FOREVER);
    CHECK(worker.slot == call && lane->queued == 1 && atomic_load(&lane->running) == 0);
    CHECK(vmh_lane_unfinished(lane) == 2);
    CHECK(vmh_lane_cancel(call, VMH_CANCELLED) && call->kind == VMH_CANCELLED && !vmh_lane_cancel(call, VMH_CANCELLED));
    CHECK(vmh_lane_unfinished(lane) == 1);
    vmh_lane_detach(lane, &worker); /* does not put the cancelled one back */
    vmh_lane_detach(lane, &worker);
    CHECK(lane->workers == 0 && lane->queued == 1);
    vmh_call_unref(call);
    CHECK(vmh_lane_take(lane, &worker) == NULL && !worker.idle); /* it left */
    vmh_lane_attach(lane, &worker);
    vmh_lane_attach(lane, &other);
    CHECK((call = vmh_lane_take(lane, &worker)) == second);
    vmh_call_unref(call);
    CHECK(vmh_call_claim(second, VMH_RUNNING));
    vmh_call_finish(second, VMH_OK);
    vmh_call_unref(second);
    CHECK(vmh_lane_take(lane, &worker) == NULL);
    call = pushed(lane, vmh_now_ns() + INT64_C(3600000000000));
    CHECK(vmh_lane_take(lane, &other) == NULL);
    CHECK(vmh_lane_expire_slot(lane, &worker, vmh_now_ns(), &handed_ns) == call->deadline_ns && handed_ns != 0);
    vmh_lane_detach(lane, &worker); /* its handed call goes to the idle one */
    CHECK(other.slot == call && atomic_load(&other.inbox) == 1);
    CHECK(vmh_lane_expire_slot(lane, &worker, vmh_now_ns(), &handed_ns) == VMH_FOREVER && handed_ns == 0);
    CHECK(vmh_lane_expire_slot(lane, &other, call->deadline_ns, &handed_ns) == VMH_FOREVER);
    CHECK(call->kind == VMH_TIME_LIMIT && vmh_lane_unfinished(lane) == 0);
    vmh_call_unref(call);
    vmh_lane_close(lane, false);
    vmh_lane_detach(lane, &other);
    CHECK(vmh_lane_over(lane));
    drop(vmh_events_take(events));
    vmh_lane_unref(lane);
    vmh_code_store_unref(store);
    vmh_events_unref(events);
}

/* ---- a worker that somebody is about to poke is not let go */
struct leaving {
    vmh_lane *lane;
    vmh_worker worker;
    atomic_bool left;
};

static void *leave(void *argument)
{
    struct leaving *leaving = argument;
    vmh_lane_detach(leaving->lane, &leaving->worker);
    atomic_store(&leaving->left, true);
    return NULL;
}

static void poked_while_leaving(void)
{
    vmh_events *events = vmh_events_new();
    vmh_code_store *store = vmh_code_store_new();
    struct leaving leaving = {.lane = vmh_lane_new("task", "1", "main:run", store, events)};
    pthread_t thread;
    vmh_lane_attach(leaving.lane, &leaving.worker);
    atomic_store(&leaving.worker.pokers, 1);
    CHECK(pthread_create(&thread, NULL, leave, &leaving) == 0);
    usleep(50000);
    CHECK(!atomic_load(&leaving.left));
    atomic_store(&leaving.worker.pokers, 0);
    pthread_join(thread, NULL);
    vmh_lane_attach(leaving.lane, &leaving.worker);
    CHECK(vmh_lane_take(leaving.lane, &leaving.worker) == NULL);
    vmh_call_unref(pushed(leaving.lane, VMH_FOREVER));
    CHECK(leaving.worker.slot != NULL && atomic_load(&leaving.worker.pokers) == 0);
    vmh_lane_detach(leaving.lane, &leaving.worker);
    vmh_lane_close(leaving.lane, true);
    vmh_lane_unref(leaving.lane);
    vmh_code_store_unref(store);
    vmh_events_unref(events);
}

int main(void)
{
    CHECK(vmh_warden_start() == 0);
    durations();
    order();
    expiry();
    handed_over();
    poked_while_leaving();
    many_threads(false);
    many_threads(true);
    lookers();
    visitors();
    puts("test_lane: passed");
    return 0;
}
