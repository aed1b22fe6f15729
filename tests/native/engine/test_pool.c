/* The thread pool: every piece once, failures, stops, several callers, CPU charged, flags of the floating-point unit, forks. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../check.h"
#include "internal.h"

static atomic_ullong worked_ns;
static void worked(void *owner, uint64_t cpu_ns) { (void)owner; atomic_fetch_add(&worked_ns, cpu_ns); }

static vme_context *context_with(unsigned flags)
{
    vme_context *context;
    CHECK(vme_context_new(&(vme_account){.worked = worked}, flags, &context) == VME_OK);
    return context;
}

/* ---- every element is visited once, whoever calls how often at once */
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
        CHECK(vme_parallel(context, visits->count, visits->grain, visit, visits) == VME_OK);
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
    if (!pthread_equal(pthread_self(), meeting->caller) && sigismember(&blocked, SIGINT) && sigismember(&blocked, SIGTERM))
        atomic_fetch_add(&meeting->masked, 1);
    atomic_fetch_add(&meeting->pieces, 1);
    atomic_fetch_add(&meeting->arrived, 1);
    while (atomic_load(&meeting->arrived) < 2)      /* so both pieces are at work at once, on two threads */
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
        CHECK(meeting.small * 0.5f != 0);           /* the caller's own mode is back */
        vme_context_unref(context);
    }
}

/* ---- the lowest piece that fails is what the caller hears */
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
    }
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
    vme_statistics statistics;
    vme_context_statistics(context, &statistics);
    CHECK(statistics.stopped == 2);
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
            alarm(60);          /* instead of a child that hangs */
#ifdef __SANITIZE_THREAD__      /* which allows no new threads here */
            CHECK(vme_threads_set(1) == VME_OK);
#endif
            visit_often((void *)8);
            helpers_join();
#ifdef __SANITIZE_ADDRESS__     /* which would look for leaks, and find what the parent's other threads hold */
            _exit(0);
#endif
            exit(0);            /* runs the destructor */
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
    failures();
    stops();
    sizes();
    idle();
    forks();
    puts("pool: ok");
    return 0;
}
