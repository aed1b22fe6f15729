/* The thread pool: every piece once, failures, stops, several callers, CPU charged, flags of the floating-point unit,
 * forks. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../check.h"
#include "runtime/internal.h"
#include "runtime/pool.h"

static atomic_ullong worked_ns;
static void worked(void *owner, uint64_t cpu_ns)
{
    (void)owner;
    atomic_fetch_add(&worked_ns, cpu_ns);
}

static vme_context *context_with(unsigned flags)
{
    vme_context *context;
    CHECK(vme_context_new(&(vme_account){.worked = worked}, flags, &context) == VME_OK);
    return context;
}

/* ---- every element is visited once, for any number of callers at once */
enum { ELEMENTS = 5000 };
struct visits {
    unsigned char seen[ELEMENTS];
    int64_t count, grain;
};

static vme_status visit(void *argument, int64_t begin, int64_t end)
{
    struct visits *visits = argument;
    CHECK(begin % visits->grain == 0 && begin < end && end <= visits->count && end - begin <= visits->grain);
    for (int64_t i = begin; i < end; i++)
        visits->seen[i]++;
    return VME_OK;
}

static void *visit_often(void *seed)
{
    struct visits *visits = malloc(sizeof *visits);
    vme_context *context = context_with(0);
    unsigned random = (unsigned)(uintptr_t)seed;
    CHECK(visits != NULL);
    for (int round = 0; round < 300; round++) {
        random = random * 1664525u + 1013904223u;
        visits->count = random >> 8 & 4095;
        visits->grain = 1 + (random >> 20) % 300;
        memset(visits->seen, 0, sizeof visits->seen);
        CHECK((round % 2 == 0 ? vme_parallel : vme_parallel_apart)(context, visits->count, visits->grain, visit, visits)
              == VME_OK);
        for (int i = 0; i < ELEMENTS; i++)
            CHECK(visits->seen[i] == (i < visits->count));
    }
    vme_context_unref(context);
    free(visits);
    return NULL;
}

static void many_callers(void)
{
    pthread_t threads[6];
    for (int i = 0; i < 6; i++)
        CHECK(pthread_create(&threads[i], NULL, visit_often, (void *)(uintptr_t)(i + 1)) == 0);
    for (int i = 0; i < 6; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

/* ---- helpers join a lone caller; their CPU is charged; they compute with the context's flags and no signals */
struct meeting {
    atomic_int arrived;
    pthread_t caller;
    volatile float small;
    atomic_int flushed, masked, pieces;
};

static vme_status meet(void *argument, int64_t begin, int64_t end)
{
    (void)begin, (void)end;
    struct meeting *meeting = argument;
    if (meeting->small * 0.5f == 0)
        atomic_fetch_add(&meeting->flushed, 1);
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    if (!pthread_equal(pthread_self(), meeting->caller) && sigismember(&blocked, SIGINT)
        && sigismember(&blocked, SIGTERM))
        atomic_fetch_add(&meeting->masked, 1);
    atomic_fetch_add(&meeting->pieces, 1);
    atomic_fetch_add(&meeting->arrived, 1);
    while (atomic_load(&meeting->arrived) < 2) /* so both pieces are at work at once, on two threads */
        sched_yield();
    return VME_OK;
}

static void helpers_join(void)
{
    if (vme_threads() < 2)
        return;
    for (unsigned flags = 0; flags <= VME_FLUSH_SUBNORMALS; flags += VME_FLUSH_SUBNORMALS) {
        vme_context *context = context_with(flags);
        struct meeting meeting = {.caller = pthread_self(), .small = 1.2e-38f};
        unsigned long long before = atomic_load(&worked_ns);
        CHECK(vme_parallel(context, 2, 1, meet, &meeting) == VME_OK);
        CHECK(atomic_load(&meeting.pieces) == 2 && atomic_load(&meeting.masked) == 1);
        vme_statistics statistics;
        vme_context_statistics(context, &statistics);
        CHECK(statistics.helper_cpu_ns > 0 && statistics.helper_cpu_ns == atomic_load(&worked_ns) - before);
#ifdef __x86_64__
        CHECK(atomic_load(&meeting.flushed) == (flags ? 2 : 0));
#endif
        CHECK(meeting.small * 0.5f != 0); /* the caller's own mode is back */
        vme_context_unref(context);
    }
}

/* ---- a helper that was woken keeps off its caller's core, whatever cores it had before; what others take from it
 * stays taken */
struct placement {
    struct meeting meeting;
    cpu_set_t helpers, wanted; /* where the helper may run, and where it shall from then on; empty: no matter */
};

static vme_status look_and_meet(void *argument, int64_t begin, int64_t end)
{
    struct placement *placement = argument;
    if (!pthread_equal(pthread_self(), placement->meeting.caller)) {
        CHECK(sched_getaffinity(0, sizeof placement->helpers, &placement->helpers) == 0);
        CHECK(CPU_COUNT(&placement->wanted) == 0
              || sched_setaffinity(0, sizeof placement->wanted, &placement->wanted) == 0);
    }
    return meet(&placement->meeting, begin, end);
}

/* The cores on which a helper may run that a caller on this core woke. */
static cpu_set_t helpers_from(int core, const cpu_set_t *wanted)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL); /* it sleeps by then: see idle() */
    vme_context *context = context_with(0);
    struct placement placement = {.meeting.caller = pthread_self(), .wanted = *wanted};
    CHECK(vme_parallel(context, 2, 1, look_and_meet, &placement) == VME_OK);
    vme_context_unref(context);
    return placement.helpers;
}

static void expect_helpers(int core, const cpu_set_t *wanted, const cpu_set_t *expected)
{
    cpu_set_t found;
    for (int tries = 0; tries < 50; tries++) { /* on a machine with much to do it may not be asleep yet */
        found = helpers_from(core, wanted);
        if (CPU_EQUAL(&found, expected))
            return;
    }
    CHECK(!"a helper may run where it should not, or not where it may");
}

static void indices(void)
{
    cpu_set_t all, none, first_alone, but_first, but_second;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    int threads = vme_threads(), first = 0, second;
    if (CPU_COUNT(&all) < 2)
        return;
    while (!CPU_ISSET(first, &all))
        first++;
    for (second = first + 1; !CPU_ISSET(second, &all);)
        second++;
    CHECK(vme_threads_set(2) == VME_OK);
    CPU_ZERO(&none);
    CPU_ZERO(&first_alone);
    CPU_SET(first, &first_alone);
    but_first = but_second = all;
    CPU_CLR(first, &but_first);
    CPU_CLR(second, &but_second);
    expect_helpers(first, &none, &but_first);
    expect_helpers(second, &none, &but_second);
    expect_helpers(first, &first_alone, &but_first); /* and then another program leaves it one core */
    expect_helpers(second, &none, &first_alone);
    expect_helpers(first, &all, &first_alone);
    expect_helpers(second, &none, &but_second);
    CHECK(sched_setaffinity(0, sizeof all, &all) == 0);
    CHECK(vme_threads_set(threads) == VME_OK);
}

/* ---- a job of several pieces wakes helpers too, but for its first piece */
static vme_status meet_later(void *meeting, int64_t begin, int64_t end)
{
    if (begin > 0)
        return meet(meeting, begin, end);
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return VME_OK;
}

static void helpers_join_later(void)
{
    if (vme_threads() < 2)
        return;
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    vme_context *context = context_with(0);
    struct meeting meeting = {.caller = pthread_self()};
    CHECK(vme_parallel(context, 5, 1, meet_later, &meeting) == VME_OK);
    CHECK(atomic_load(&meeting.pieces) == 4);
    vme_context_unref(context);
}

/* ---- jobs too short to wake a helper for wake one together, which then waits for the next */
struct burst {
    pthread_t caller;
    atomic_bool helped;
};

static vme_status be_short(void *argument, int64_t begin, int64_t end)
{
    (void)begin, (void)end;
    struct burst *burst = argument;
    if (!pthread_equal(pthread_self(), burst->caller))
        atomic_store(&burst->helped, true);
    for (volatile int i = 0; i < 4000; i++)
        ;
    return VME_OK;
}

static void bursts(void)
{
    if (vme_threads() < 2)
        return;
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL); /* helpers sleep by then */
    vme_context *context = context_with(0);
    struct burst burst = {.caller = pthread_self()};
    for (int job = 0; job < 20000 && !atomic_load(&burst.helped); job++)
        CHECK(vme_parallel(context, 6, 1, be_short, &burst) == VME_OK);
    CHECK(atomic_load(&burst.helped));
    vme_context_unref(context);
}

/* ---- threads that work apart keep to their parts of the range until these are done */
enum { APART = 40 };
struct apart {
    atomic_int done[2]; /* pieces, by the caller and by the helper */
    atomic_int strayed, helped;
};

static vme_status keep_apart(void *argument, int64_t begin, int64_t end)
{
    struct apart *apart = argument;
    const int who = vme_worker() > 0, mine = atomic_load(&apart->done[who]);
    CHECK(end == begin + 1);
    atomic_fetch_or(&apart->helped, who ? vme_worker() : 0);
    if (mine < APART / 2 && begin / (APART / 2) != vme_worker() % 2)
        atomic_fetch_add(&apart->strayed, 1);
    atomic_fetch_add(&apart->done[who], 1);
    if (mine == 0 && who == 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); /* helpers are woken after the first piece */
    else
        while (mine < APART / 2 && atomic_load(&apart->done[!who]) <= mine) /* so both work side by side */
            sched_yield();
    return VME_OK;
}

static void parts(void)
{
    if (vme_threads() < 2)
        return;
    vme_context *context = context_with(0);
    vme_thread_options before = vme_thread_options_set((vme_thread_options){.threads = 2});
    struct apart apart = {0};
    CHECK(vme_parallel_threads() == 2);
    CHECK(vme_parallel_apart(context, APART, 1, keep_apart, &apart) == VME_OK);
    CHECK(atomic_load(&apart.done[0]) == APART / 2 && atomic_load(&apart.done[1]) == APART / 2);
    CHECK(atomic_load(&apart.helped) % 2 == 0
          || atomic_load(&apart.strayed) == 0); /* a helper of an even number has the caller's part */
    vme_thread_options_set(before);
    vme_context_unref(context);
}

/* ---- items in slots: each once, and what a slot has left is done by others; no slot on two threads */
enum { ITEMS = 1000 };
struct slotted {
    vme_context *context;
    int64_t slots, waiting,
        stopping; /* the slot that waits until others have done its part; the item that stops the context, -1: none */
    atomic_int seen[ITEMS], left, inside[VME_SLOTS_MAX];
};

static void do_some(void *argument, int64_t slot, vme_items *items)
{
    struct slotted *slotted = argument;
    CHECK(atomic_fetch_add(&slotted->inside[slot], 1) == 0);
    for (int64_t item; vme_item_next(items, &item);) {
        atomic_fetch_add(&slotted->seen[item], 1);
        atomic_fetch_sub(&slotted->left, 1);
        if (item == slotted->stopping)
            vme_context_stop(slotted->context, true);
        while (slot == slotted->waiting && atomic_load(&slotted->left) > 0)
            sched_yield();
    }
    CHECK(atomic_fetch_sub(&slotted->inside[slot], 1) == 1);
}

static void slots(void)
{
    struct slotted slotted = {.context = context_with(0), .stopping = -1};
    for (slotted.slots = 1; slotted.slots <= VME_SLOTS_MAX; slotted.slots++)
        for (int64_t items = 0; items <= ITEMS; items = items * 3 + 1) {
            memset(slotted.seen, 0, sizeof slotted.seen);
            atomic_store(&slotted.left, (int)items);
            slotted.waiting = slotted.slots > 1 && vme_threads() > 1 ? (int64_t)slotted.slots - 1 : -1;
            CHECK(vme_parallel_slots(slotted.context, slotted.slots, items, do_some, &slotted) == VME_OK);
            for (int i = 0; i < ITEMS; i++)
                CHECK(atomic_load(&slotted.seen[i]) == (i < items));
        }
    atomic_store(&slotted.left, 0);
    slotted.stopping = 7;
    CHECK(vme_parallel_slots(slotted.context, 2, ITEMS, do_some, &slotted) == VME_STOPPED);
    CHECK(atomic_load(&slotted.seen[7]) > 0 && atomic_load(&slotted.left) > -ITEMS);
    vme_context_stop(slotted.context, false);
    vme_context_unref(slotted.context);
}

/* ---- the caller gets the error of the lowest piece that fails */
static vme_status fail_from(void *argument, int64_t begin, int64_t end)
{
    (void)end;
    int64_t first = *(int64_t *)argument;
    return begin < first ? VME_OK : vme_fail(VME_BAD_VALUE, "piece %lld", (long long)begin);
}

static void failures(void)
{
    vme_context *context = context_with(0);
    for (int64_t first = 0; first < 200; first++) {
        char expected[32];
        snprintf(expected, sizeof expected, "piece %lld", (long long)first);
        CHECK(vme_parallel(context, 200, 1, fail_from, &first) == VME_BAD_VALUE);
        CHECK(strcmp(vme_message(), expected) == 0);
        long long failed = -1;
        CHECK(vme_parallel_apart(context, 200, 1, fail_from, &first) == VME_BAD_VALUE);
        CHECK(sscanf(vme_message(), "piece %lld", &failed) == 1 && failed >= first);
    }
    const vme_thread_options before = vme_thread_options_set((vme_thread_options){.threads = 1});
    const int64_t first = 3;
    failing_malloc(0);
    CHECK(vme_parallel(context, 200, 1, fail_from, (void *)&first) == VME_BAD_VALUE);
    CHECK(failing_malloc(-1) && strcmp(vme_message(), "no memory for the message of an error") == 0);
    vme_thread_options_set(before);
    vme_context_unref(context);
}

/* ---- a stop in the middle */
static vme_status stop_at_ten(void *context, int64_t begin, int64_t end)
{
    (void)end;
    if (begin == 10)
        vme_context_stop(context, true);
    return VME_OK;
}

static void stops(void)
{
    vme_context *context = context_with(0);
    CHECK(vme_parallel(context, INT64_MAX / 2, 1, stop_at_ten, context) == VME_STOPPED);
    CHECK(vme_parallel(context, 1, 1, stop_at_ten, context) == VME_STOPPED);
    vme_context_stop(context, false);
    CHECK(vme_parallel_apart(context, INT64_MAX / 2, 1, stop_at_ten, context) == VME_STOPPED);
    vme_statistics statistics;
    vme_context_statistics(context, &statistics);
    CHECK(statistics.stopped == 3);
    vme_context_stop(context, false);
    CHECK(vme_parallel(context, 9, 1, stop_at_ten, context) == VME_OK);
    vme_context_unref(context);
}

/* ---- sizes of the pool */
static void sizes(void)
{
    int threads = vme_threads();
    CHECK(vme_threads_set(0) == VME_BAD_VALUE && vme_threads_set(100000) == VME_BAD_VALUE);
    CHECK(vme_threads() == threads);
    CHECK(vme_threads_set(1) == VME_OK && vme_threads() == 1);
    visit_often((void *)99);
    CHECK(vme_threads_set(threads) == VME_OK);
}

/* ---- idle helpers sleep */
static void idle(void)
{
    struct timespec pause = {.tv_nsec = 20000000}, before, after;
    nanosleep(&pause, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    nanosleep(&pause, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    CHECK((after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec < pause.tv_nsec / 4);
}

/* ---- a forked child has no helpers and makes its own; others' jobs at the time of the fork are not its business */
static atomic_bool enough;

static void *visit_meanwhile(void *seed)
{
    while (!atomic_load(&enough))
        visit_often(seed);
    return NULL;
}

static void forks(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, visit_meanwhile, (void *)7) == 0);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(60);     /* instead of a child that hangs */
#ifdef __SANITIZE_THREAD__ /* which allows no new threads here */
            CHECK(vme_threads_set(1) == VME_OK);
#endif
            visit_often((void *)8);
            helpers_join();
#ifdef __SANITIZE_ADDRESS__ /* which would look for leaks, and find what the parent's other threads hold */
            _exit(0);
#endif
            exit(0); /* runs the destructor */
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    atomic_store(&enough, true);
    CHECK(pthread_join(thread, NULL) == 0);
}

int main(void)
{
    helpers_join();
    many_callers();
    helpers_join();
    helpers_join_later();
    bursts();
    indices();
    parts();
    slots();
    failures();
    stops();
    sizes();
    idle();
    forks();
    puts("pool: ok");
    return 0;
}
