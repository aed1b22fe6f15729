/* Fourier transforms: rows are divided among threads, and plans are cached.
 *
 * pocketfft cannot be stopped. Rows that take longer than a stop may take are foreign work (foreign.h): they run on a
 * copy, on an engine thread that a stop abandons. Their plans are made in the same way.
 *
 * A plan (factors and roots of unity) is read-only, so several threads may use it. Small plans are cached for the
 * process and not charged. Larger ones are made for one call and charged to its context, like all scratch memory. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "operators/fft.h"
#include "runtime/foreign.h"

enum {
    CACHED_PLANS = 32,
    CACHED_LENGTH_MAX = 1 << 14, /* a plan takes at most about 512 KiB, all cached plans 16 MiB */
    CALLER_LENGTH_MAX = 1 << 16, /* rows up to this length run on the caller's thread: one to two milliseconds */
};

/* ---- memory */
typedef struct header {
    vme_context *charged_context;
    size_t bytes;
} header;
enum { HEADER = 64 };
static _Thread_local vme_context *charged_context;
/* The scratch memory of the last row, which the next row reuses. It stays charged until all rows are transformed. */
static _Thread_local struct {
    bool enabled;
    void *memory;
} spare;

static size_t usable_bytes(const void *memory)
{
    return ((const header *)(const void *)((const char *)memory - HEADER))->bytes - HEADER;
}

void *vme_fft_new(size_t bytes)
{
    if (spare.memory != NULL && usable_bytes(spare.memory) >= bytes) {
        void *memory = spare.memory;
        spare.memory = NULL;
        return memory;
    }
    if (bytes > PTRDIFF_MAX - 2 * HEADER)
        return NULL;
    char *memory = charged_context != NULL ? vme_scratch_new(charged_context, bytes + HEADER)
                                           : aligned_alloc(HEADER, (bytes + 2 * HEADER - 1) & ~(size_t)(HEADER - 1));
    if (memory == NULL)
        return NULL;
    *(header *)(void *)memory = (header){charged_context, bytes + HEADER};
    return memory + HEADER;
}

void vme_fft_free(void *memory)
{
    if (memory == NULL)
        return;
    if (spare.enabled && spare.memory == NULL) {
        spare.memory = memory;
        return;
    }
    header *head = (header *)(void *)((char *)memory - HEADER);
    if (head->charged_context != NULL)
        vme_scratch_free(head->charged_context, head, head->bytes);
    else
        free(head);
}

static void spare_begin(void) { spare.enabled = true; }

static void spare_end(void)
{
    spare.enabled = false;
    vme_fft_free(spare.memory);
    spare.memory = NULL;
}

/* ---- plans */
typedef struct plan {
    void *fft_plan;
    int64_t n;
    bool of_reals, is_double;
    int users;         /* guarded by the lock */
    uint64_t last_use; /* time of the last use */
} plan;

static struct {
    pthread_mutex_t lock;
    plan entries[CACHED_PLANS];
    uint64_t clock;
} plans = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void before_fork(void) { pthread_mutex_lock(&plans.lock); }
static void after_fork(void) { pthread_mutex_unlock(&plans.lock); }
__attribute__((constructor)) static void register_fork_handlers(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}

static void *plan_new(bool of_reals, bool is_double, int64_t n)
{
    return is_double ? vme_fft_plan_f64(of_reals, (size_t)n) : vme_fft_plan_f32(of_reals, (size_t)n);
}

static void plan_free(bool of_reals, bool is_double, void *fft_plan)
{
    if (fft_plan != NULL && is_double)
        vme_fft_free_plan_f64(of_reals, fft_plan);
    else if (fft_plan != NULL)
        vme_fft_free_plan_f32(of_reals, fft_plan);
}

/* Returns a plan to use until plan_release, or NULL if there is no memory. *entry is its cache entry, or NULL if the
 * caller owns the plan. */
static void *plan_acquire(vme_context *context, bool of_reals, bool is_double, int64_t n, plan **entry)
{
    *entry = NULL;
    if (n <= CACHED_LENGTH_MAX) {
        pthread_mutex_lock(&plans.lock);
        plan *found = NULL, *oldest = NULL;
        for (int i = 0; i < CACHED_PLANS && found == NULL; i++) {
            plan *candidate = &plans.entries[i];
            if (candidate->fft_plan != NULL && candidate->n == n && candidate->of_reals == of_reals
                && candidate->is_double == is_double)
                found = candidate;
            else if (candidate->users == 0 && (oldest == NULL || candidate->last_use < oldest->last_use))
                oldest = candidate;
        }
        if (found == NULL && oldest != NULL) {
            void *fft_plan = plan_new(of_reals, is_double, n);
            if (fft_plan != NULL) {
                plan_free(oldest->of_reals, oldest->is_double, oldest->fft_plan);
                *oldest = (plan){.fft_plan = fft_plan, .n = n, .of_reals = of_reals, .is_double = is_double};
                found = oldest;
            }
        }
        if (found != NULL) {
            found->users++;
            found->last_use = ++plans.clock;
        }
        pthread_mutex_unlock(&plans.lock);
        *entry = found;
        if (found != NULL)
            return found->fft_plan;
    }
    charged_context = context;
    void *fft_plan = plan_new(of_reals, is_double, n);
    charged_context = NULL;
    return fft_plan;
}

static void plan_release(bool of_reals, bool is_double, void *fft_plan, plan *entry)
{
    if (entry == NULL) {
        plan_free(of_reals, is_double, fft_plan);
        return;
    }
    pthread_mutex_lock(&plans.lock);
    entry->users--;
    pthread_mutex_unlock(&plans.lock);
}

/* ---- long rows */
typedef struct long_plan {
    atomic_int users; /* the call and each row in progress; abandoned rows may outlive the call */
    bool of_reals, is_double;
    void *fft_plan;
} long_plan;

static void long_plan_release(long_plan *p)
{
    if (p == NULL || atomic_fetch_sub_explicit(&p->users, 1, memory_order_acq_rel) != 1)
        return;
    plan_free(p->of_reals, p->is_double, p->fft_plan);
    vme_fft_free(p);
}

typedef struct long_row { /* the block of foreign work */
    long_plan *plan;      /* a reference, which the work releases */
    bool started;         /* set when the work has started: only then does it release the reference */
    vme_fft_kind kind;
    int64_t n, in_length;
    double factor;
    void *in, *out, *row; /* within this block */
} long_row;

static vme_status no_memory(int64_t n)
{
    return vme_fail(VME_NO_MEMORY, "no memory for a Fourier transform of %lld numbers", (long long)n);
}

static vme_status long_plan_work(vme_context *context, void *block, const atomic_bool *abandoned)
{
    (void)abandoned;
    long_row *r = block;
    r->started = true;
    charged_context = context;
    r->plan->fft_plan = plan_new(r->plan->of_reals, r->plan->is_double, r->n);
    charged_context = NULL;
    vme_status status = r->plan->fft_plan == NULL ? no_memory(r->n) : VME_OK;
    long_plan_release(r->plan);
    return status;
}

static vme_status long_row_work(vme_context *context, void *block, const atomic_bool *abandoned)
{
    (void)abandoned;
    long_row *r = block;
    r->started = true;
    charged_context = context;
    if (r->plan->fft_plan == NULL) /* a single row makes the plan itself */
        r->plan->fft_plan = plan_new(r->plan->of_reals, r->plan->is_double, r->n);
    int rc = r->plan->fft_plan == NULL ? -1
             : r->plan->is_double
                 ? vme_fft_row_f64(r->kind, r->plan->fft_plan, r->n, r->factor, r->in, r->in_length, r->out, r->row)
                 : vme_fft_row_f32(r->kind, r->plan->fft_plan, r->n, r->factor, r->in, r->in_length, r->out, r->row);
    charged_context = NULL;
    long_plan_release(r->plan);
    return rc == 0 ? VME_OK : no_memory(r->n);
}

/* Runs the work on a foreign thread and copies its result to `to`. Afterwards the block is freed, or the thread owns
 * it. */
static vme_status run_foreign(vme_context *context, vme_foreign_work *work, long_row *r, size_t bytes, void *to,
                              size_t out_bytes)
{
    void *block = r;
    atomic_fetch_add_explicit(&r->plan->users, 1, memory_order_relaxed);
    long_plan *p = r->plan;
    vme_status status = vme_foreign(context, work, &block, bytes);
    if (block == NULL)
        return status;
    if (!r->started)
        long_plan_release(p);
    if (status == VME_OK && !vme_foreign_copy(context, to, r->out, out_bytes))
        status = vme_stopped_here(context);
    vme_scratch_free(context, block, bytes);
    return status;
}

/* Makes a plan for long rows. If there is one row, its own work makes the plan, which saves a wait for a thread. NULL,
 * with *status: no memory, or stopped. */
static long_plan *long_plan_new(vme_context *context, bool of_reals, bool is_double, int64_t n, int64_t rows,
                                vme_status *status)
{
    charged_context = context;
    long_plan *p = vme_fft_new(sizeof *p);
    charged_context = NULL;
    if (p == NULL) {
        *status = no_memory(n);
        return NULL;
    }
    *p = (long_plan){.of_reals = of_reals, .is_double = is_double};
    atomic_init(&p->users, 1);
    if (rows == 1)
        return p;
    long_row *r = vme_scratch_new(context, sizeof *r);
    if (r == NULL) {
        long_plan_release(p);
        *status = VME_NO_MEMORY;
        return NULL;
    }
    *r = (long_row){.plan = p, .n = n};
    *status = run_foreign(context, long_plan_work, r, sizeof *r, NULL, 0);
    if (*status == VME_OK)
        return p;
    long_plan_release(p);
    return NULL;
}

/* Whether a row of this length takes too long for the caller's thread. Lengths with a large prime factor need several
 * transforms of more than twice the length (Bluestein's algorithm). */
static bool needs_foreign_thread(int64_t n)
{
    int64_t remaining = n;
    for (int64_t factor = 2; factor * factor <= remaining && factor < 50; factor++)
        while (remaining % factor == 0)
            remaining /= factor;
    return n > (remaining < 50 ? CALLER_LENGTH_MAX : CALLER_LENGTH_MAX / 4);
}

/* ---- rows */
typedef struct transform {
    vme_context *context;
    vme_fft_kind kind;
    void *plan;
    long_plan *foreign_plan; /* if not NULL, rows are foreign work and `plan` is unused */
    int64_t n, in_length;
    double factor;
    bool is_double;
    const char *in;
    char *out;
    size_t in_row, out_row; /* bytes */
} transform;

static size_t round_up(size_t bytes) { return (bytes + VME_ALIGNMENT - 1) & ~(size_t)(VME_ALIGNMENT - 1); }

static vme_status transform_long_row(const transform *t, const char *in, char *out)
{
    size_t real_size = t->is_double ? 8 : 4, element_size = t->kind == VME_FFT_REAL_FORWARD ? real_size : 2 * real_size;
    /* maximum elements read from a row of the input */
    int64_t max_read = t->kind == VME_FFT_REAL_BACKWARD ? t->n / 2 + 1 : t->n;
    size_t in_length = (size_t)(t->in_length < max_read ? t->in_length : max_read),
           header_bytes = round_up(sizeof(long_row)), result_bytes = round_up(t->out_row);
    bool in_place = t->kind == VME_FFT_FORWARD || t->kind == VME_FFT_BACKWARD;
    size_t input_bytes = in_place                          ? 0
                         : t->kind == VME_FFT_REAL_FORWARD ? (size_t)t->n * real_size
                                                           : in_length * element_size,
           bytes = header_bytes + result_bytes + input_bytes;
    long_row *r = vme_scratch_new(t->context, bytes);
    if (r == NULL)
        return VME_NO_MEMORY;
    char *to = (char *)r + header_bytes, *from = in_place ? to : to + result_bytes;
    *r = (long_row){.plan = t->foreign_plan,
                    .kind = t->kind,
                    .n = t->n,
                    .in_length = (int64_t)in_length,
                    .factor = t->factor,
                    .in = from,
                    .out = to,
                    .row = t->kind == VME_FFT_REAL_FORWARD ? from : NULL};
    if (!vme_foreign_copy(t->context, from, in, in_length * element_size)) {
        vme_scratch_free(t->context, r, bytes);
        return vme_stopped_here(t->context);
    }
    return run_foreign(t->context, long_row_work, r, bytes, out, t->out_row);
}

static vme_status transform_long_rows(void *argument, int64_t begin, int64_t end)
{
    const transform *t = argument;
    vme_status status = VME_OK;
    for (int64_t i = begin; status == VME_OK && i < end; i++)
        status = transform_long_row(t, t->in + (size_t)i * t->in_row, t->out + (size_t)i * t->out_row);
    return status;
}

static vme_status transform_rows(void *argument, int64_t begin, int64_t end)
{
    const transform *t = argument;
    charged_context = t->context;
    spare_begin();
    int rc = 0;
    for (int64_t i = begin; rc == 0 && i < end; i++) {
        const char *in = t->in + (size_t)i * t->in_row;
        char *out = t->out + (size_t)i * t->out_row;
        rc = t->is_double ? vme_fft_row_f64(t->kind, t->plan, t->n, t->factor, (const double *)(const void *)in,
                                            t->in_length, (double *)(void *)out, NULL)
                          : vme_fft_row_f32(t->kind, t->plan, t->n, t->factor, (const float *)(const void *)in,
                                            t->in_length, (float *)(void *)out, NULL);
    }
    spare_end();
    charged_context = NULL;
    return rc == 0 ? VME_OK : no_memory(t->n);
}

vme_status vme_fft(vme_context *context, vme_fft_kind kind, int64_t n, double factor, const vme_tensor *in,
                   const vme_tensor *out)
{
    bool of_reals = kind == VME_FFT_REAL_FORWARD || kind == VME_FFT_REAL_BACKWARD;
    bool is_double = out->dtype == VME_FLOAT64 || out->dtype == VME_COMPLEX128;
    int real_dtype = is_double ? VME_FLOAT64 : VME_FLOAT32, complex_dtype = is_double ? VME_COMPLEX128 : VME_COMPLEX64;
    int64_t columns = kind == VME_FFT_REAL_FORWARD ? n / 2 + 1 : n;
    vme_status status = vme_check_output(out);
    if (status != VME_OK)
        return status;
    if (n < 1 || n > INT64_MAX / 64)
        return vme_fail(VME_BAD_VALUE, "Invalid number of FFT data points (%lld) specified.", (long long)n);
    if (in->rank != out->rank || in->rank < 1 || out->shape[out->rank - 1] != columns || !vme_is_contiguous(in)
        || !vme_is_contiguous(out) || in->dtype != (kind == VME_FFT_REAL_FORWARD ? real_dtype : complex_dtype)
        || out->dtype != (kind == VME_FFT_REAL_BACKWARD ? real_dtype : complex_dtype))
        return vme_fail(VME_BAD_VALUE, "a Fourier transform needs contiguous rows of one precision");
    int64_t rows = vme_elements(out) / columns, in_length = in->shape[in->rank - 1];
    if (in_length != 0 && vme_elements(in) / in_length != rows)
        return vme_fail(VME_BAD_SHAPE, "a Fourier transform of %lld rows cannot fill %lld",
                        (long long)(vme_elements(in) / in_length), (long long)rows);
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    if (rows == 0)
        return VME_OK;
    plan *entry = NULL;
    bool foreign = needs_foreign_thread(n);
    long_plan *foreign_plan = foreign ? long_plan_new(context, of_reals, is_double, n, rows, &status) : NULL;
    void *fft_plan = foreign ? NULL : plan_acquire(context, of_reals, is_double, n, &entry);
    if (fft_plan == NULL && foreign_plan == NULL)
        return status == VME_OK ? no_memory(n) : status;
    transform t = {.context = context,
                   .kind = kind,
                   .plan = fft_plan,
                   .foreign_plan = foreign_plan,
                   .n = n,
                   .in_length = in_length,
                   .factor = factor,
                   .is_double = is_double,
                   .in = in->data,
                   .out = out->data,
                   .in_row = (size_t)in_length * (size_t)vme_dtype_size((vme_dtype)in->dtype),
                   .out_row = (size_t)columns * (size_t)vme_dtype_size((vme_dtype)out->dtype)};
    int64_t grain = 32768 / n;
    status = vme_parallel(context, rows, grain < 1 ? 1 : grain,
                          foreign_plan != NULL ? transform_long_rows : transform_rows, &t);
    if (foreign_plan != NULL)
        long_plan_release(foreign_plan);
    else
        plan_release(of_reals, is_double, fft_plan, entry);
    return status;
}
