/* The process's one thread pool: dividing an operator's work among the calling thread and helpers.
 *
 * A job is a range of pieces on its caller's stack. The caller always works itself; helpers take pieces of listed jobs while
 * fewer threads work than the pool may use, and leave between two pieces when more callers have come. So many callers at once
 * have a core each and no helpers, a single one has all cores. What a piece computes never depends on who computes it.
 *
 * Helpers start when a job first wants one. An idle one spins a little (less and less while that finds nothing), then sleeps. A
 * forked child starts without any. Everything shared is under one lock, taken twice a job and twice a helper's visit; single
 * pieces never touch it. */
#include "internal.h"
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { HELPERS_MOST = 255, HELPER_STACK = 256 << 10, SPINS_MOST = 1 << 10, SPINS_LEAST = 1 << 4 };

struct job {
    vme_context *context;
    vme_body *body;
    void *argument;
    int64_t count, grain;
    vme_wishes wishes;              /* its caller's */
    _Atomic int64_t next;           /* the first element that nobody has taken */
    atomic_bool ended;              /* a piece failed, or the context was stopped */
    atomic_int helpers;             /* at work on it; changes under the lock */
    bool listed, waiting;           /* under the lock: helpers may join; the caller sleeps until they have left */
    struct job *previous, *following;
    /* under the lock: the lowest piece that failed, so that what the caller hears does not depend on who was faster */
    int64_t failed_at;
    vme_status status;
    char message[VME_MESSAGE_SIZE];
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work, left;      /* a job was listed; a helper left a job whose caller waits */
    _Atomic(struct job *) first;    /* of the listed ones; changes under the lock */
    int started, sleeping;          /* helpers */
    pthread_t helpers[HELPERS_MOST];
    bool closing;
    atomic_int spinning;
    atomic_int working;             /* threads at work on jobs of several pieces, callers and helpers */
    atomic_int most;                /* that may be; 0: not asked yet */
    atomic_uint listings;           /* counts, so that spinning helpers see a new one */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .left = PTHREAD_COND_INITIALIZER};

static int cores(void)
{
    cpu_set_t set;
    long online = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
    return online < 1 ? 1 : online > HELPERS_MOST + 1 ? HELPERS_MOST + 1 : (int)online;
}

int vme_threads(void)
{
    int most = atomic_load_explicit(&pool.most, memory_order_relaxed);
    if (most == 0) {
        int unset = 0;
        most = cores();
        if (!atomic_compare_exchange_strong(&pool.most, &unset, most))
            most = unset;
    }
    return most;
}

vme_status vme_threads_set(int threads)
{
    int most = cores();
    if (threads < 1 || threads > most)
        return vme_fail(VME_BAD_VALUE, "threads: expected 1 .. %d (this machine's cores), got %d", most, threads);
    atomic_store(&pool.most, threads);
    return VME_OK;
}

static _Thread_local int worker;    /* of a helper: its number, from 1 */
static _Thread_local vme_wishes wished;

int vme_worker(void) { return worker; }

vme_wishes vme_wish(vme_wishes wishes)
{
    vme_wishes before = wished;
    wished = wishes;
    return before;
}

/* ---- jobs */
static void fail(struct job *job, int64_t piece, vme_status status, const char *message)
{
    pthread_mutex_lock(&pool.lock);
    if (job->status == VME_OK || piece < job->failed_at) {
        job->failed_at = piece;
        job->status = status;
        snprintf(job->message, sizeof job->message, "%s", message);
    }
    pthread_mutex_unlock(&pool.lock);
    atomic_store_explicit(&job->ended, true, memory_order_relaxed);
}

/* Takes and does one piece; false: there was none. */
static bool do_piece(struct job *job)
{
    if (atomic_load_explicit(&job->ended, memory_order_relaxed))
        return false;
    if (vme_stopping(job->context)) {
        atomic_store_explicit(&job->ended, true, memory_order_relaxed);
        return false;
    }
    if (atomic_load_explicit(&job->next, memory_order_relaxed) >= job->count)
        return false;
    int64_t begin = atomic_fetch_add_explicit(&job->next, job->grain, memory_order_relaxed);
    if (begin >= job->count)
        return false;
    int64_t end = job->count - begin > job->grain ? begin + job->grain : job->count;
    vme_status status = job->body(job->argument, begin, end);
    if (status != VME_OK)
        fail(job, begin, status, vme_message());
    return true;
}

/* Helpers that may work on it at once. */
static int helpers_most(const struct job *job) { return (job->wishes.threads == 0 ? vme_threads() : job->wishes.threads) - 1; }

static bool wants_help(const struct job *job)
{
    return atomic_load_explicit(&job->helpers, memory_order_relaxed) < helpers_most(job) && !atomic_load_explicit(&job->ended, memory_order_relaxed)
           && atomic_load_explicit(&job->next, memory_order_relaxed) < job->count;
}

static uint64_t thread_cpu_ns(void)
{
    struct timespec now;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0 ? (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec : 0;
}

/* ---- helpers */
/* A listed job that has pieces left, joined, while the pool may use one more thread; NULL: none. Under the lock. */
static struct job *join(void)
{
    if (atomic_load(&pool.working) >= vme_threads())
        return NULL;
    for (struct job *job = atomic_load(&pool.first); job != NULL; job = job->following)
        if (wants_help(job)) {
            atomic_fetch_add(&job->helpers, 1);
            atomic_fetch_add(&pool.working, 1);
            return job;
        }
    return NULL;
}

static void help(struct job *job)
{
    vme_context *context = job->context;        /* its caller waits in it until this helper has left */
    uint64_t before = thread_cpu_ns();
    {
        VME_FLUSHING_IF(context->flags | job->wishes.flags);
        while (atomic_load_explicit(&pool.working, memory_order_relaxed) <= vme_threads() && do_piece(job))
            ;
    }
    uint64_t spent = thread_cpu_ns() - before;
    atomic_fetch_add_explicit(&context->helper_ns, spent, memory_order_relaxed);
    if (context->account.worked != NULL)
        context->account.worked(context->account.owner, spent);
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_sub(&pool.working, 1);
    bool waiting = job->waiting;
    if (atomic_fetch_sub(&job->helpers, 1) == 1 && waiting)     /* from here on the job may be gone */
        pthread_cond_broadcast(&pool.left);
    pthread_mutex_unlock(&pool.lock);
}

static void *helper(void *number)
{
    worker = (int)(intptr_t)number;
    int spins = SPINS_MOST;
    pthread_mutex_lock(&pool.lock);
    while (!pool.closing) {
        struct job *job = join();
        if (job != NULL) {
            pthread_mutex_unlock(&pool.lock);
            help(job);
            pthread_mutex_lock(&pool.lock);
            continue;
        }
        unsigned seen = atomic_load(&pool.listings);
        /* spinning pays only where a core is idle: not while callers fill them */
        if (spins > SPINS_LEAST && atomic_load(&pool.working) < vme_threads()) {
            atomic_fetch_add(&pool.spinning, 1);
            pthread_mutex_unlock(&pool.lock);
            bool found = false;
            for (int i = 0; i < spins && !found; i++) {
                vme_relax();
                found = atomic_load_explicit(&pool.listings, memory_order_relaxed) != seen;
            }
            pthread_mutex_lock(&pool.lock);
            atomic_fetch_sub(&pool.spinning, 1);
            spins = found ? SPINS_MOST : spins / 2;
            continue;
        }
        pool.sleeping++;
        while (!pool.closing && seen == atomic_load(&pool.listings))
            pthread_cond_wait(&pool.work, &pool.lock);
        pool.sleeping--;
        spins = spins < SPINS_MOST / 4 ? SPINS_MOST / 4 : spins;
    }
    pthread_mutex_unlock(&pool.lock);
    return NULL;
}

static void before_fork(void) { pthread_mutex_lock(&pool.lock); }
static void in_parent(void) { pthread_mutex_unlock(&pool.lock); }

static void in_child(void)
{
    /* the helpers and all other callers are the parent's; nobody else is here to hold what is made anew */
    pool.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pool.work = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    pool.left = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    atomic_store(&pool.first, NULL);
    pool.started = pool.sleeping = 0;
    atomic_store(&pool.spinning, 0);
    atomic_store(&pool.working, 0);
}

__attribute__((constructor)) static void begin(void) { pthread_atfork(before_fork, in_parent, in_child); }

/* The process ends or the library goes: no helper may run its code any longer. */
__attribute__((destructor)) static void end(void)
{
    pthread_mutex_lock(&pool.lock);
    pool.closing = true;
    int started = pool.started;
    pool.started = 0;
    pthread_cond_broadcast(&pool.work);
    pthread_mutex_unlock(&pool.lock);
    for (int i = 0; i < started; i++)
        pthread_join(pool.helpers[i], NULL);
}

/* One helper more, where the system gives a thread; without one the work is done all the same. Under the lock. */
static void start_helper(void)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    if (pthread_attr_init(&attributes) != 0)
        return;
    sigfillset(&all);
    if (pthread_attr_setstacksize(&attributes, HELPER_STACK) == 0 && pthread_sigmask(SIG_SETMASK, &all, &before) == 0) {
        pthread_t *thread = &pool.helpers[pool.started];
        if (pthread_create(thread, &attributes, helper, (void *)(intptr_t)(pool.started + 1)) == 0) {
            pthread_setname_np(*thread, "vme");
            pool.started++;
        }
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    pthread_attr_destroy(&attributes);
}

/* Lets helpers join, and wakes as many as the job can use and the machine has cores for. */
static void list(struct job *job)
{
    pthread_mutex_lock(&pool.lock);
    int64_t pieces = (job->count - atomic_load(&job->next)) / job->grain;      /* beside the caller's own next one */
    int free = vme_threads() - atomic_load(&pool.working);
    int wanted = pool.closing ? 0 : pieces < free ? (int)pieces : free;
    wanted = wanted < helpers_most(job) ? wanted : helpers_most(job);
    job->listed = true;
    job->previous = NULL;
    job->following = atomic_load(&pool.first);
    if (job->following != NULL)
        job->following->previous = job;
    atomic_store(&pool.first, job);
    atomic_fetch_add(&pool.listings, 1);
    wanted -= atomic_load(&pool.spinning);
    int wake = wanted < pool.sleeping ? wanted : pool.sleeping;
    for (int i = wake; i < wanted && pool.started < vme_threads() - 1; i++)
        start_helper();
    pthread_mutex_unlock(&pool.lock);
    for (; wake > 0; wake--)
        pthread_cond_signal(&pool.work);
}

/* Nobody joins any more; returns when every helper has left. */
static void unlist(struct job *job)
{
    pthread_mutex_lock(&pool.lock);
    if (job->previous != NULL)
        job->previous->following = job->following;
    else
        atomic_store(&pool.first, job->following);
    if (job->following != NULL)
        job->following->previous = job->previous;
    pthread_mutex_unlock(&pool.lock);
    for (int i = 0; i < SPINS_MOST && atomic_load_explicit(&job->helpers, memory_order_acquire) > 0; i++)
        vme_relax();
    if (atomic_load_explicit(&job->helpers, memory_order_acquire) == 0)
        return;
    pthread_mutex_lock(&pool.lock);
    job->waiting = true;
    while (atomic_load(&job->helpers) > 0)
        pthread_cond_wait(&pool.left, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}

/* A caller has ended: a helper that had to leave another's job may come back. */
static void announce(void)
{
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_add(&pool.listings, 1);
    bool wake = pool.sleeping > 0 && atomic_load(&pool.spinning) == 0;
    pthread_mutex_unlock(&pool.lock);
    if (wake)
        pthread_cond_signal(&pool.work);
}

static vme_status run(struct job *job)
{
    atomic_fetch_add(&pool.working, 1);
    do
        if (!job->listed && atomic_load_explicit(&pool.working, memory_order_relaxed) < vme_threads() && wants_help(job)
            && job->count - atomic_load_explicit(&job->next, memory_order_relaxed) > job->grain)
            list(job);
    while (do_piece(job));
    atomic_fetch_sub(&pool.working, 1);
    if (job->listed)
        unlist(job);
    if (atomic_load(&pool.first) != NULL)
        announce();
    if (job->status != VME_OK)
        return vme_fail(job->status, "%s", job->message);
    if (atomic_load_explicit(&job->ended, memory_order_relaxed))
        return vme_stopped_here(job->context);
    return VME_OK;
}

vme_status vme_parallel(vme_context *context, int64_t count, int64_t grain, vme_body *body, void *argument)
{
    if (count <= 0)
        return VME_OK;
    if (vme_stopping(context))
        return vme_stopped_here(context);
    VME_FLUSHING(context);
    if (count <= grain)
        return body(argument, 0, count);
    struct job job = {.context = context, .body = body, .argument = argument, .count = count, .grain = grain, .wishes = wished};
    return run(&job);
}
