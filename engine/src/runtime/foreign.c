/* Threads for foreign code. A library that cannot be stopped runs on a thread of the engine, with a stack of 8 MiB,
 * while its caller waits. When the caller's context is stopped, the caller returns at once and the work is abandoned:
 * the thread finishes it, then frees the memory of the work, which stays charged until then.
 *
 * A thread serves one caller at a time, then waits for the next one. At most vme_threads() idle threads are kept. The
 * caller of a working thread sleeps, so the number of runnable threads never exceeds the number of callers.
 *
 * A forked child has none of these threads, but a copy of their locks. If a thread held a lock of a foreign library at
 * the time of the fork, the lock stays locked in the child, and the next call of that library hangs there. OpenBLAS
 * locks its list of buffers in each product, and its fork handlers do not cover that lock. So a fork waits up to a
 * second until no work is running, and no work starts meanwhile. After a second the process forks in any case.
 *
 * At exit the process waits up to a second for running work: destructors of a foreign library free memory that the work
 * uses (OpenBLAS unmaps its buffers, and the thread would crash). After a second the process ends without running the
 * destructors. */
#include "runtime/foreign.h"
#include "runtime/signals.h"

#include "vme_foreign.h"

#include <linux/futex.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    STACK = 8 << 20,        /* bytes */
    SPINS = 1 << 10,        /* iterations before a caller sleeps */
    LOOK_NS = 5000000,      /* interval at which a waiting caller reports its thread's CPU time */
    COPY_PIECE = 256 << 10, /* bytes copied between two checks of the stop flag */
    EXIT_S = 1,             /* seconds that an exit waits for running jobs */
    FORK_S = 1,             /* the same for a fork */
};

typedef struct job {
    atomic_int refs; /* one of the caller, one of the thread */
    atomic_bool done, abandoned;
    vme_context *context; /* one reference */
    vme_foreign_work *work;
    void *block;
    size_t bytes;
    clockid_t clock; /* the thread's CPU clock; set before `begun` */
    atomic_bool begun;
    uint64_t before_ns;
    uint64_t spent_ns; /* set before `done` */
    vme_status status;
    char message[VME_MESSAGE_SIZE];
} job;

typedef struct worker {
    pthread_cond_t wake;
    job *next;
    struct worker *following; /* next in the list of idle workers */
} worker;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t ended;  /* signalled when a job ends; forks and the exit handler wait on it */
    pthread_cond_t forked; /* signalled when no fork is in progress any more */
    worker *idle;
    int idle_count;
    int busy;    /* threads with a job */
    int forking; /* forks in progress: no job may start */
    bool watches_forks;
    bool ending; /* the process exits: no job may start */
} crew = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER, .forked = PTHREAD_COND_INITIALIZER};

static atomic_int abandoned_jobs; /* whose threads still work for them */

int vme_abandoned_threads(void) { return atomic_load(&abandoned_jobs); }

static void job_drop(job *done)
{
    if (atomic_fetch_sub_explicit(&done->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (atomic_load(&done->abandoned))
        atomic_fetch_sub(&abandoned_jobs, 1);
    vme_scratch_free(done->context, done->block, done->bytes);
    vme_context_unref(done->context);
    free(done);
}

/* The caller sleeps on its context's event counter (futex), which the end of a job and a stop increment. */
static void event_wait(vme_context *context, unsigned seen)
{
    struct timespec timeout = {0, LOOK_NS};
    syscall(SYS_futex, &context->events, FUTEX_WAIT_PRIVATE, seen, &timeout, NULL, 0);
}

void vme_context_event(vme_context *context)
{
    atomic_fetch_add(&context->events, 1);
    syscall(SYS_futex, &context->events, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static uint64_t cpu_ns(clockid_t clock)
{
    struct timespec now;
    return clock_gettime(clock, &now) == 0 ? (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec : 0;
}

static void serve(job *todo)
{
    if (pthread_getcpuclockid(pthread_self(), &todo->clock) != 0)
        todo->clock = CLOCK_THREAD_CPUTIME_ID;
    todo->before_ns = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    atomic_store(&todo->begun, true);
    todo->status = todo->work(todo->context, todo->block, &todo->abandoned);
    if (todo->status != VME_OK)
        snprintf(todo->message, sizeof todo->message, "%s", vme_message());
    todo->spent_ns = cpu_ns(CLOCK_THREAD_CPUTIME_ID) - todo->before_ns;
    atomic_store(&todo->done, true);
    vme_context_event(todo->context);
    job_drop(todo);
}

static void *worker_main(void *argument)
{
    worker self = {.wake = PTHREAD_COND_INITIALIZER, .next = argument};
    pthread_setname_np(pthread_self(), "vme");
    for (;;) {
        serve(self.next);
        self.next = NULL;
        pthread_mutex_lock(&crew.lock);
        crew.busy--;
        pthread_cond_broadcast(&crew.ended);
        if (crew.idle_count >= vme_threads()) {
            pthread_mutex_unlock(&crew.lock);
            return NULL;
        }
        self.following = crew.idle;
        crew.idle = &self;
        crew.idle_count++;
        while (self.next == NULL)
            pthread_cond_wait(&self.wake, &crew.lock);
        pthread_mutex_unlock(&crew.lock);
    }
}

/* Waits until no job runs; false after `seconds`. Expects the lock held. */
static bool jobs_ended_within(int seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += seconds;
    while (crew.busy > 0)
        if (pthread_cond_clockwait(&crew.ended, &crew.lock, CLOCK_MONOTONIC, &until) != 0)
            return false;
    return true;
}

static void before_fork(void)
{
    pthread_mutex_lock(&crew.lock);
    crew.forking++;
    (void)jobs_ended_within(FORK_S);
}

static void in_parent(void)
{
    if (--crew.forking == 0)
        pthread_cond_broadcast(&crew.forked);
    pthread_mutex_unlock(&crew.lock);
}

static void in_child(void)
{
    crew.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    crew.idle = NULL;
    crew.ended = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    crew.forked = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    crew.idle_count = 0;
    crew.busy = 0;
    crew.forking = 0;
    crew.ending = false;
    atomic_store(&abandoned_jobs, 0);
}

/* Exit handlers run before the destructors of libraries. */
static void at_exit(int exit_status, void *unused)
{
    (void)unused;
    pthread_mutex_lock(&crew.lock);
    crew.ending = true;
    if (!jobs_ended_within(EXIT_S)) {
        fflush(NULL);
        _exit(exit_status);
    }
    pthread_mutex_unlock(&crew.lock);
}

__attribute__((constructor)) static void begin(void)
{
    (void)on_exit(at_exit, NULL); /* if this fails for lack of memory, the process does not wait at exit */
}

static vme_status thread_start(job *todo)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t before;
    int error = pthread_attr_init(&attributes);
    if (error == 0) {
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        error = pthread_attr_setstacksize(&attributes, STACK);
        if (error == 0 && (error = vme_signals_block(&before)) == 0) {
            error = pthread_create(&thread, &attributes, worker_main, todo);
            pthread_sigmask(SIG_SETMASK, &before, NULL);
        }
        pthread_attr_destroy(&attributes);
    }
    return error == 0
               ? VME_OK
               : vme_fail(VME_NO_MEMORY, "the system gives no thread for a foreign library's work (error %d)", error);
}

/* Registers the fork handlers before the first job. Expects the lock held. A fork runs its prepare handlers in reverse
 * order of registration. So this one, registered late, waits for jobs before other handlers of the engine and of the
 * library take locks that the jobs need. */
static vme_status watch_forks(void)
{
    if (!crew.watches_forks && pthread_atfork(before_fork, in_parent, in_child) != 0)
        return vme_fail(VME_NO_MEMORY, "no memory for the fork handlers of a foreign library's work");
    crew.watches_forks = true;
    return VME_OK;
}

static vme_status submit(job *todo)
{
    pthread_mutex_lock(&crew.lock);
    vme_status status = watch_forks();
    if (status != VME_OK) {
        pthread_mutex_unlock(&crew.lock);
        return status;
    }
    while (crew.forking > 0)
        pthread_cond_wait(&crew.forked, &crew.lock);
    if (crew.ending) {
        pthread_mutex_unlock(&crew.lock);
        return vme_stopped_here(todo->context);
    }
    worker *idle = crew.idle;
    crew.busy++;
    if (idle != NULL) {
        crew.idle = idle->following;
        crew.idle_count--;
        idle->next = todo;
        pthread_cond_signal(&idle->wake);
    }
    pthread_mutex_unlock(&crew.lock);
    if (idle != NULL)
        return VME_OK;
    status = thread_start(todo);
    if (status != VME_OK) {
        pthread_mutex_lock(&crew.lock);
        crew.busy--;
        pthread_cond_broadcast(&crew.ended);
        pthread_mutex_unlock(&crew.lock);
    }
    return status;
}

static void report(vme_context *context, uint64_t spent_ns, uint64_t *reported_ns)
{
    if (spent_ns <= *reported_ns)
        return;
    atomic_fetch_add_explicit(&context->helper_ns, spent_ns - *reported_ns, memory_order_relaxed);
    if (context->account.worked != NULL)
        context->account.worked(context->account.owner, spent_ns - *reported_ns);
    *reported_ns = spent_ns;
}

vme_status vme_foreign(vme_context *context, vme_foreign_work *work, void **block, size_t bytes)
{
    if (vme_stopping(context))
        return vme_stopped_here(context);
    job *todo = calloc(1, sizeof *todo);
    if (todo == NULL)
        return vme_fail(VME_NO_MEMORY, "no memory for a foreign library's work");
    atomic_init(&todo->refs, 2);
    todo->context = vme_context_ref(context);
    todo->work = work;
    todo->block = *block;
    todo->bytes = bytes;
    vme_status status = submit(todo);
    if (status != VME_OK) {
        vme_context_unref(context);
        free(todo);
        return status;
    }
    uint64_t reported_ns = 0;
    for (int i = 0; i < SPINS && !atomic_load(&todo->done); i++)
        vme_relax();
    for (;;) {
        unsigned seen = atomic_load(&context->events);
        if (atomic_load(&todo->done)) {
            report(context, todo->spent_ns, &reported_ns);
            status = todo->status == VME_OK ? VME_OK : vme_fail(todo->status, "%s", todo->message);
            todo->block = NULL; /* it stays the caller's */
            break;
        }
        if (vme_stopping(context)) {
            atomic_fetch_add(&abandoned_jobs, 1);
            atomic_store(&todo->abandoned, true);
            *block = NULL;
            status = vme_stopped_here(context);
            break;
        }
        event_wait(context, seen);
        if (atomic_load(&todo->begun) && !atomic_load(&todo->done)) {
            uint64_t now = cpu_ns(todo->clock);
            report(context, now > todo->before_ns ? now - todo->before_ns : 0, &reported_ns);
        }
    }
    job_drop(todo);
    return status;
}

bool vme_foreign_copy(const vme_context *context, void *to, const void *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += COPY_PIECE) {
        if (vme_stopping(context))
            return false;
        memcpy((char *)to + at, (const char *)from + at, bytes - at < COPY_PIECE ? bytes - at : COPY_PIECE);
    }
    return true;
}
