/* The thread pool of the process: it divides an operator's work among the calling thread and helper threads.
 *
 * A job is a range of pieces; its struct is on the caller's stack. Threads take pieces in order, or each thread takes
 * those of its own part first and then steals from other parts. The caller always works itself. Helpers join listed
 * jobs while fewer threads work than the pool may use, and leave between two pieces when new callers exceed that
 * number. So many concurrent callers have a core each and no helpers; a single caller has all cores. The result of a
 * piece never depends on the thread that computes it.
 *
 * A helper is started when a job first needs it. An idle helper spins (for a shorter time after each spin without a
 * job), then sleeps. A wake-up costs the caller as much as a small product. So the caller of a job of several pieces
 * times the first one, and wakes helpers only if the rest is worth it; spinning helpers join at once. A woken helper
 * avoids its caller's core, where a scheduler that packs threads on few cores would place it. A forked child starts
 * without helpers. One lock guards the shared state. It is taken a few times per job and twice per helper that joins a
 * job, never per piece (unless the piece fails). */
#include "runtime/cores.h"
#include "runtime/pool.h"
#include "runtime/signals.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    PARTS_MAX = 8, /* maximum parts of a range; each thread starts with one of them */
    HELPERS_MAX = 255,
    HELPER_STACK = 256 << 10,
    SPINS_MAX = 1 << 10,
    SPINS_MIN = 1 << 4,
    TRIED_MIN = 4,      /* minimum pieces of a job whose caller times one before it wakes helpers */
    WAKING_NS = 100000, /* minimum work left that is worth a wake-up: a helper takes half of it, and costs the wake-up
                         * and a cold cache */
    BURST_NS = 1000000, /* the work of short jobs adds up to WAKING_NS if they follow each other within this time: a
                         * helper woken for one of them is still spinning when the next one is listed */
};

struct job {
    vme_context *context;
    vme_body *body;
    void *argument;
    int64_t count, grain;
    vme_thread_options options; /* of the caller */
    int parts;                  /* consecutive parts of the range */
    struct {
        _Alignas(VME_ALIGNMENT) _Atomic int64_t next;
        int64_t end;
    } part[PARTS_MAX];  /* next: the first element that no thread has taken. One part per cache line */
    atomic_bool ended;  /* a piece failed, or the context was stopped */
    atomic_int helpers; /* helpers working on the job; changed under the lock */
    bool counted;       /* its work is included in the pool's `short_ns` */
    bool listed;        /* helpers may join */
    bool called;        /* call_helpers has run */
    bool waiting;       /* the caller sleeps until all helpers have left; under the lock */
    struct job *previous, *following;
    int core;                     /* the caller's core when the job was listed */
    int64_t left_first, first_ns; /* pieces left at the first check (0: not checked yet), and its time */
    /* under the lock: the lowest failed piece and its error, so that the caller's error does not depend on timing */
    int64_t failed_at;
    vme_status status;
    char *message; /* NULL: there was no memory for it */
};

/* Guarded by the lock. */
struct helper {
    pthread_t thread;
    pthread_cond_t woken;
    bool sleeping;   /* asleep, and not signalled yet */
    int spinning_on; /* the core on which it spins, or CORE_NONE */
    core_avoided avoided;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t left;         /* signalled when a helper leaves a job whose caller waits */
    _Atomic(struct job *) first; /* the listed jobs; changed under the lock */
    int started;                 /* number of helper threads */
    struct helper helpers[HELPERS_MAX];
    bool closing;
    atomic_int sleeping, spinning;
    atomic_int working;                 /* callers and helpers that work on jobs of several pieces */
    atomic_int max_threads;             /* `working` up to which helpers may join; 0: not determined yet */
    _Atomic int64_t short_ns, short_at; /* work of the current burst of short jobs, and the time of the last one */
    _Alignas(VME_ALIGNMENT) atomic_uint listings; /* incremented by list() and announce(); spinning helpers poll it. On
                                                   * a cache line of its own */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .left = PTHREAD_COND_INITIALIZER};

static int cores(void)
{
    const int count = cores_count();
    return count > HELPERS_MAX + 1 ? HELPERS_MAX + 1 : count;
}

int vme_threads(void)
{
    int max_threads = atomic_load_explicit(&pool.max_threads, memory_order_relaxed);
    if (max_threads == 0) {
        int unset = 0;
        max_threads = cores();
        if (!atomic_compare_exchange_strong(&pool.max_threads, &unset, max_threads))
            max_threads = unset;
    }
    return max_threads;
}

vme_status vme_threads_set(int threads)
{
    int max_threads = cores();
    if (threads < 1 || threads > max_threads)
        return vme_fail(VME_BAD_VALUE, "threads: expected 1 .. %d (this machine's cores), got %d", max_threads,
                        threads);
    atomic_store(&pool.max_threads, threads);
    return VME_OK;
}

static _Thread_local int worker; /* number of this helper, from 1; 0: a caller */
_Thread_local vme_thread_options vme_thread_options_now;

int vme_worker(void) { return worker; }

vme_thread_options vme_thread_options_set(vme_thread_options options)
{
    vme_thread_options before = vme_thread_options_now;
    vme_thread_options_now = options;
    return before;
}

int vme_parallel_threads(void)
{
    return vme_thread_options_now.threads == 0 ? vme_threads() : vme_thread_options_now.threads;
}

/* ---- jobs */
static void fail(struct job *job, int64_t piece, vme_status status, const char *message)
{
    pthread_mutex_lock(&pool.lock);
    if (job->status == VME_OK || piece < job->failed_at) {
        job->failed_at = piece;
        job->status = status;
        free(job->message);
        job->message = strdup(message);
    }
    pthread_mutex_unlock(&pool.lock);
    atomic_store_explicit(&job->ended, true, memory_order_relaxed);
}

/* The number of elements that no thread has taken yet. */
static int64_t left_of(const struct job *job)
{
    int64_t left = 0;
    for (int i = 0; i < job->parts; i++) {
        int64_t next = atomic_load_explicit(&job->part[i].next, memory_order_relaxed);
        left += next < job->part[i].end ? job->part[i].end - next : 0;
    }
    return left;
}

/* Takes a piece, from this thread's own part first, then from the following ones. False: none is left. */
static bool take(struct job *job, int64_t *begin, int64_t *end)
{
    for (int i = 0; i < job->parts; i++) {
        const int number = (worker + i) % job->parts;
        const int64_t part_end = job->part[number].end;
        if (atomic_load_explicit(&job->part[number].next, memory_order_relaxed) >= part_end)
            continue;
        *begin = atomic_fetch_add_explicit(&job->part[number].next, job->grain, memory_order_relaxed);
        if (*begin >= part_end)
            continue;
        *end = part_end - *begin > job->grain ? *begin + job->grain : part_end;
        return true;
    }
    return false;
}

/* Takes one piece and computes it. False: none is left, or the job has ended. */
static bool do_piece(struct job *job)
{
    int64_t begin, end;
    if (atomic_load_explicit(&job->ended, memory_order_relaxed))
        return false;
    if (vme_stopping(job->context)) {
        atomic_store_explicit(&job->ended, true, memory_order_relaxed);
        return false;
    }
    if (!take(job, &begin, &end))
        return false;
    vme_status status = job->body(job->argument, begin, end);
    if (status != VME_OK)
        fail(job, begin, status, vme_message());
    return true;
}

/* The number of helpers that may work on the job at once. */
static int helpers_max(const struct job *job)
{
    return (job->options.threads == 0 ? vme_threads() : job->options.threads) - 1;
}

static bool wants_help(const struct job *job)
{
    return atomic_load_explicit(&job->helpers, memory_order_relaxed) < helpers_max(job)
           && !atomic_load_explicit(&job->ended, memory_order_relaxed) && left_of(job) > 0;
}

static uint64_t thread_cpu_ns(void)
{
    struct timespec now;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0
               ? (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec
               : 0;
}

/* ---- helpers */
/* Joins a listed job that has pieces left, if the pool may use one more thread. NULL: none. Expects the lock held. */
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
    vme_context *context = job->context; /* stays valid, because the caller waits until this helper has left */
    uint64_t before = thread_cpu_ns();
    {
        VME_FLUSHING_IF(context->flags | job->options.flags);
        const vme_thread_options own = vme_thread_options_set(job->options);
        while (atomic_load_explicit(&pool.working, memory_order_relaxed) <= vme_threads() && do_piece(job))
            ;
        vme_thread_options_set(own);
    }
    uint64_t spent = thread_cpu_ns() - before;
    atomic_fetch_add_explicit(&context->helper_ns, spent, memory_order_relaxed);
    if (context->account.worked != NULL)
        context->account.worked(context->account.owner, spent);
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_sub(&pool.working, 1);
    bool waiting = job->waiting;
    if (atomic_fetch_sub(&job->helpers, 1) == 1 && waiting) /* from here on the job may not exist any more */
        pthread_cond_broadcast(&pool.left);
    pthread_mutex_unlock(&pool.lock);
}

static void *helper(void *number)
{
    worker = (int)(intptr_t)number;
    struct helper *self = &pool.helpers[worker - 1];
    int spins = SPINS_MAX;
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
        /* spins only while a core is idle */
        if (spins > SPINS_MIN && atomic_load(&pool.working) < vme_threads()) {
            self->spinning_on = sched_getcpu();
            atomic_fetch_add(&pool.spinning, 1);
            pthread_mutex_unlock(&pool.lock);
            bool found = false;
            for (int i = 0; i < spins && !found; i++) {
                vme_relax();
                found = atomic_load_explicit(&pool.listings, memory_order_relaxed) != seen;
            }
            pthread_mutex_lock(&pool.lock);
            atomic_fetch_sub(&pool.spinning, 1);
            self->spinning_on = CORE_NONE;
            spins = found ? SPINS_MAX : spins / 2;
            continue;
        }
        self->sleeping = true;
        atomic_fetch_add(&pool.sleeping, 1);
        if (atomic_load(&pool.listings) == seen) /* announce() increments it without the lock: check again */
            while (!pool.closing && self->sleeping)
                pthread_cond_wait(&self->woken, &pool.lock);
        if (self->sleeping) {
            self->sleeping = false;
            atomic_fetch_sub(&pool.sleeping, 1);
        }
        spins = spins < SPINS_MAX / 4 ? SPINS_MAX / 4 : spins;
    }
    pthread_mutex_unlock(&pool.lock);
    return NULL;
}

static void before_fork(void) { pthread_mutex_lock(&pool.lock); }
static void in_parent(void) { pthread_mutex_unlock(&pool.lock); }

static void in_child(void)
{
    /* the child has only this thread, so no thread holds the lock or waits: initialize both again */
    pool.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pool.left = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    atomic_store(&pool.first, NULL);
    pool.started = 0;
    atomic_store(&pool.sleeping, 0);
    atomic_store(&pool.spinning, 0);
    atomic_store(&pool.working, 0);
}

__attribute__((constructor)) static void begin(void) { pthread_atfork(before_fork, in_parent, in_child); }

/* The process exits or unloads the library, so helpers must not run its code any more: ends and joins them. */
__attribute__((destructor)) static void end(void)
{
    pthread_mutex_lock(&pool.lock);
    pool.closing = true;
    int started = pool.started;
    pool.started = 0;
    for (int i = 0; i < started; i++)
        pthread_cond_signal(&pool.helpers[i].woken);
    pthread_mutex_unlock(&pool.lock);
    for (int i = 0; i < started; i++)
        pthread_join(pool.helpers[i].thread, NULL);
}

/* Starts one more helper. If the system refuses a thread, the job runs without it. Expects the lock held. */
static void start_helper(int core)
{
    pthread_attr_t attributes;
    sigset_t before;
    if (pthread_attr_init(&attributes) != 0)
        return;
    if (pthread_attr_setstacksize(&attributes, HELPER_STACK) == 0 && vme_signals_block(&before) == 0) {
        struct helper *result = &pool.helpers[pool.started];
        *result = (struct helper){.woken = PTHREAD_COND_INITIALIZER, .spinning_on = CORE_NONE, .avoided = CORES_ALL};
        if (pthread_create(&result->thread, &attributes, helper, (void *)(intptr_t)(pool.started + 1)) == 0) {
            pthread_setname_np(result->thread, "vme");
            core_avoid(result->thread, &result->avoided, core);
            pool.started++;
        }
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    pthread_attr_destroy(&attributes);
}

/* Moves spinning helpers away from `core`, the caller's: a helper there competes with the caller instead of running
 * beside it. Expects the lock held. */
static void clear_core(int core)
{
    for (int i = 0; i < pool.started && atomic_load_explicit(&pool.spinning, memory_order_relaxed) > 0; i++)
        if (pool.helpers[i].spinning_on == core)
            core_avoid(pool.helpers[i].thread, &pool.helpers[i].avoided, core);
}

/* Lists the job, so that helpers can join. */
static void list(struct job *job)
{
    pthread_mutex_lock(&pool.lock);
    job->listed = true;
    job->core = sched_getcpu();
    clear_core(job->core);
    job->previous = NULL;
    job->following = atomic_load(&pool.first);
    if (job->following != NULL)
        job->following->previous = job;
    atomic_store(&pool.first, job);
    atomic_fetch_add(&pool.listings, 1);
    pthread_mutex_unlock(&pool.lock);
}

/* Wakes helpers for a job (NULL: the first listed one) until `wanted` are awake, counting those that spin, and starts
 * new ones if there are too few. They avoid the core of the job's caller. */
static void wake(int wanted, const struct job *job)
{
    unsigned char woken[HELPERS_MAX];
    int count = 0;
    pthread_mutex_lock(&pool.lock);
    if (job == NULL)
        job = atomic_load(&pool.first);
    const int core = job == NULL ? CORE_NONE : job->core;
    for (int i = 0; i < pool.started; i++)
        wanted -= pool.helpers[i].spinning_on != CORE_NONE;
    for (int i = 0; i < pool.started && count < wanted; i++)
        if (pool.helpers[i].sleeping) {
            core_avoid(pool.helpers[i].thread, &pool.helpers[i].avoided, core);
            pool.helpers[i].sleeping = false;
            atomic_fetch_sub(&pool.sleeping, 1);
            woken[count++] = (unsigned char)i;
        }
    for (int i = count; i < wanted && pool.started < vme_threads() - 1 && !pool.closing; i++)
        start_helper(core);
    pthread_mutex_unlock(&pool.lock);
    while (count > 0)
        pthread_cond_signal(&pool.helpers[woken[--count]].woken);
}

static int64_t pieces_left(const struct job *job) { return (left_of(job) + job->grain - 1) / job->grain; }

/* Wakes as many helpers as the job can use and the pool has free threads for. */
static void call_helpers(struct job *job)
{
    int64_t pieces = pieces_left(job) - 1; /* minus the one that the caller takes next */
    int free = vme_threads() - atomic_load(&pool.working);
    int wanted = pieces < free ? (int)pieces : free;
    wake(wanted < helpers_max(job) ? wanted : helpers_max(job), job);
    job->called = true;
}

/* Removes the job from the list and waits until every helper has left it. */
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
    for (int i = 0; i < SPINS_MAX && atomic_load_explicit(&job->helpers, memory_order_acquire) > 0; i++)
        vme_relax();
    if (atomic_load_explicit(&job->helpers, memory_order_acquire) == 0)
        return;
    pthread_mutex_lock(&pool.lock);
    job->waiting = true;
    while (atomic_load(&job->helpers) > 0)
        pthread_cond_wait(&pool.left, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}

/* Called when a caller has finished: a helper that left another job to free a core may join again. */
static void announce(void)
{
    atomic_fetch_add(&pool.listings, 1);
    if (atomic_load(&pool.sleeping) > 0)
        wake(1, NULL);
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Adds the work of a job that is too short for a wake-up to the current burst. True: the burst is worth a wake-up.
 * Simultaneous callers may lose an addition, which only delays a wake-up. */
static bool ends_a_burst(struct job *job, int64_t left_ns, int64_t now)
{
    if (job->counted)
        return false;
    job->counted = true;
    const int64_t before = atomic_exchange_explicit(&pool.short_at, now, memory_order_relaxed);
    const int64_t sum =
        left_ns + (now - before < BURST_NS ? atomic_load_explicit(&pool.short_ns, memory_order_relaxed) : 0);
    atomic_store_explicit(&pool.short_ns, sum < WAKING_NS ? sum : 0, memory_order_relaxed);
    return sum >= WAKING_NS;
}

/* Called before each piece: lists the job as soon as the pool may use one more thread, and wakes helpers if the work
 * left is worth it. */
static void look_for_help(struct job *job)
{
    if (job->called || atomic_load_explicit(&pool.working, memory_order_relaxed) >= vme_threads() || !wants_help(job))
        return;
    const int64_t left = pieces_left(job);
    if (left < 2)
        return;
    if (!job->listed)
        list(job);
    if (job->count / job->grain >= TRIED_MIN) {
        int64_t now = now_ns();
        if (job->left_first == 0) {
            job->left_first = left;
            job->first_ns = now;
        }
        if (left == job->left_first)
            return;
        const int64_t each_ns = (now - job->first_ns) / (job->left_first - left);
        if (each_ns < WAKING_NS / left && !ends_a_burst(job, each_ns * left, now))
            return;
    }
    call_helpers(job);
}

static vme_status run(struct job *job)
{
    atomic_fetch_add(&pool.working, 1);
    do
        look_for_help(job);
    while (do_piece(job));
    atomic_fetch_sub(&pool.working, 1);
    if (job->listed)
        unlist(job);
    if (atomic_load(&pool.first) != NULL)
        announce();
    if (job->status != VME_OK) {
        const vme_status status =
            vme_fail(job->status, "%s", job->message == NULL ? "no memory for the message of an error" : job->message);
        free(job->message);
        return status;
    }
    if (atomic_load_explicit(&job->ended, memory_order_relaxed))
        return vme_stopped_here(job->context);
    return VME_OK;
}

/* Runs a job whose range has at most `max_threads` parts. */
static vme_status divided(vme_context *context, int64_t count, int64_t grain, vme_body *body, void *argument,
                          int max_threads)
{
    if (count <= 0)
        return VME_OK;
    if (vme_stopping(context))
        return vme_stopped_here(context);
    VME_FLUSHING(context);
    if (count <= grain)
        return body(argument, 0, count);
    struct job job = {.context = context,
                      .body = body,
                      .argument = argument,
                      .count = count,
                      .grain = grain,
                      .options = vme_thread_options_now};
    const int64_t pieces = (count + grain - 1) / grain, threads = helpers_max(&job) + 1,
                  parts = threads < max_threads ? threads : max_threads;
    job.parts = (int)(parts < pieces ? parts : pieces);
    int64_t begin = 0;
    for (int i = 0; i < job.parts; i++) {
        atomic_init(&job.part[i].next, begin);
        begin = i == job.parts - 1 ? count : begin + (pieces / job.parts + (i < pieces % job.parts)) * grain;
        job.part[i].end = begin;
    }
    return run(&job);
}

vme_status vme_parallel(vme_context *context, int64_t count, int64_t grain, vme_body *body, void *argument)
{
    return divided(context, count, grain, body, argument, 1);
}

vme_status vme_parallel_apart(vme_context *context, int64_t count, int64_t grain, vme_body *body, void *argument)
{
    return divided(context, count, grain, body, argument, PARTS_MAX);
}
