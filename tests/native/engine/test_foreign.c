/* Threads for foreign code: results and failures, stopped callers, and forks beside work that holds a lock which no
 * fork handler covers. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../check.h"
#include "runtime/foreign.h"
#include "vme_foreign.h"

enum { CALLERS = 3, FORKS = 20, HELD_US = 2000 };

static vme_context *context_new(void)
{
    vme_context *context;
    CHECK(vme_context_new(&(vme_account){0}, 0, &context) == VME_OK);
    return context;
}

static vme_status call(vme_context *context, vme_foreign_work *work, int *value)
{
    void *block = vme_scratch_new(context, sizeof *value);
    CHECK(block != NULL);
    *(int *)block = *value;
    vme_status status = vme_foreign(context, work, &block, sizeof *value);
    if (block != NULL)
        *value = *(int *)block;
    vme_scratch_free(context, block, sizeof *value);
    return status;
}

/* ---- results and failures */
static vme_status twice(vme_context *context, void *block, const atomic_bool *abandoned)
{
    (void)context;
    (void)abandoned;
    *(int *)block *= 2;
    return VME_OK;
}

static vme_status fail(vme_context *context, void *block, const atomic_bool *abandoned)
{
    (void)context;
    (void)abandoned;
    return vme_fail(VME_BAD_VALUE, "%d is refused", *(int *)block);
}

static void results(void)
{
    vme_context *context = context_new();
    int value = 21;
    CHECK(call(context, twice, &value) == VME_OK && value == 42);
    CHECK(call(context, fail, &value) == VME_BAD_VALUE && strcmp(vme_message(), "42 is refused") == 0);
    vme_context_unref(context);
}

/* ---- a stopped caller returns while its work goes on */
static atomic_bool working, may_end;

static vme_status until_it_may_end(vme_context *context, void *block, const atomic_bool *abandoned)
{
    (void)context;
    (void)block;
    (void)abandoned;
    atomic_store(&working, true);
    while (!atomic_load(&may_end))
        usleep(1000);
    return VME_OK;
}

static void *call_until_it_may_end(void *context)
{
    int value = 0;
    return (void *)(uintptr_t)call(context, until_it_may_end, &value);
}

static void wait_for(atomic_bool *flag)
{
    while (!atomic_load(flag))
        usleep(1000);
}

static void stopped(void)
{
    vme_context *context = context_new();
    pthread_t caller;
    void *status;
    CHECK(pthread_create(&caller, NULL, call_until_it_may_end, context) == 0);
    wait_for(&working);
    vme_context_stop(context, true);
    CHECK(pthread_join(caller, &status) == 0 && (uintptr_t)status == VME_STOPPED);
    CHECK(vme_abandoned_threads() == 1);
    atomic_store(&may_end, true);
    while (vme_abandoned_threads() > 0)
        usleep(1000);
    vme_context_unref(context);
}

/* ---- forks: a child can use the library, whose lock is held nearly always */
static pthread_mutex_t library = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool enough;

static vme_status use_library(vme_context *context, void *block, const atomic_bool *abandoned)
{
    (void)context;
    (void)abandoned;
    CHECK(pthread_mutex_lock(&library) == 0);
    usleep(HELD_US);
    *(int *)block += 1;
    CHECK(pthread_mutex_unlock(&library) == 0);
    return VME_OK;
}

static void *use_library_often(void *context)
{
    int value = 0;
    while (!atomic_load(&enough))
        CHECK(call(context, use_library, &value) == VME_OK);
    return NULL;
}

/* In a forked child, a thread of the engine, or where it can't have one, the caller itself does the work. */
enum child_does { BY_A_THREAD, BY_ITSELF };
#ifdef __SANITIZE_THREAD__ /* allows no new threads in a child */
static const enum child_does quiet_child = BY_ITSELF, busy_child = BY_ITSELF;
#elif defined(__SANITIZE_ADDRESS__)
/* The allocator of GCC 12 stays locked in a child if another thread allocated at the fork. */
static const enum child_does quiet_child = BY_A_THREAD, busy_child = BY_ITSELF;
#else
static const enum child_does quiet_child = BY_A_THREAD, busy_child = BY_A_THREAD;
#endif

/* A child that does the work. It ends without exit(), whose leak check would find what the parent's other threads hold.
 */
static pid_t forked(vme_context *context, vme_foreign_work *work, enum child_does how)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60); /* a child that hangs is killed, and the test fails */
        int value = 1;
        atomic_bool abandoned = false;
        vme_status status = how == BY_ITSELF ? work(context, &value, &abandoned) : call(context, work, &value);
        _exit(status == VME_OK && value == 2 ? 0 : 1);
    }
    return child;
}

static void ended_well(pid_t child)
{
    int status, got;
    do
        got = waitpid(child, &status, 0);
    while (got < 0 && errno == EINTR);
    CHECK(got == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void forks(void)
{
    vme_context *context = context_new();
    pthread_t threads[CALLERS];
    for (int i = 0; i < CALLERS; i++)
        CHECK(pthread_create(&threads[i], NULL, use_library_often, context) == 0);
    for (int i = 0; i < FORKS; i++)
        ended_well(forked(context, use_library, busy_child));
    atomic_store(&enough, true);
    for (int i = 0; i < CALLERS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    vme_context_unref(context);
}

/* ---- a fork does not wait for work without end; the child does without its locks */
static void forks_beside_work_that_lasts(void)
{
    vme_context *context = context_new();
    pthread_t caller;
    void *status;
    atomic_store(&working, false);
    atomic_store(&may_end, false);
    CHECK(pthread_create(&caller, NULL, call_until_it_may_end, context) == 0);
    wait_for(&working);
    ended_well(forked(context, twice, quiet_child));
    atomic_store(&may_end, true);
    CHECK(pthread_join(caller, &status) == 0 && (uintptr_t)status == VME_OK);
    int value = 3;
    CHECK(call(context, twice, &value) == VME_OK && value == 6); /* work starts again */
    vme_context_unref(context);
}

int main(void)
{
    results();
    stopped();
    forks();
    forks_beside_work_that_lasts();
    puts("foreign: ok");
    return 0;
}
