/* Fourier transforms: rows are divided among threads, plans are cached.
 *
 * pocketfft cannot be stopped. Rows that take longer than a stop may take are foreign work (foreign.h): they run on a
 * copy, on an engine thread that a stop abandons. Their plan is made in the same way.
 *
 * A plan (factors and roots of unity) is read only, so several threads may use it. Small plans are cached for the
 * process and not charged. Larger ones are made for the call and charged to its context, as all scratch memory is. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "operators/fft.h"
#include "runtime/foreign.h"

enum {
    PLANS = 32,
    KEPT_MAX = 1 << 14,
    OWN_MAX = 1 << 16 /* limit for rows on the caller's thread: one to two milliseconds */
}; /* cached plans take at most about 512 KiB each, 16 MiB in all */

/* ---- memory */
typedef struct header {
    vme_context *payer;
    size_t bytes;
} header;
enum { HEADER = 64 };
static _Thread_local vme_context *payer;
/* While rows are transformed: the scratch memory of the last row, reused for the next one and charged meanwhile. */
static _Thread_local struct {
    bool keeps;
    void *memory;
} spare;

static size_t room(const void *memory)
{
    return ((const header *)(const void *)((const char *)memory - HEADER))->bytes - HEADER;
}

void *vme_fft_new(size_t bytes)
{
    if (spare.memory != NULL && room(spare.memory) >= bytes) {
        void *memory = spare.memory;
        spare.memory = NULL;
        return memory;
    }
    if (bytes > PTRDIFF_MAX - 2 * HEADER || (payer != NULL && vme_context_charge(payer, bytes + HEADER) != VME_OK))
        return NULL;
    char *memory = aligned_alloc(HEADER, (bytes + 2 * HEADER - 1) & ~(size_t)(HEADER - 1));
    if (memory == NULL) {
        if (payer != NULL)
            vme_context_release(payer, bytes + HEADER);
        return NULL;
    }
    *(header *)(void *)memory = (header){payer, bytes + HEADER};
    if (payer != NULL)
        vme_context_note_peak(payer);
    return memory + HEADER;
}

void vme_fft_free(void *memory)
{
    if (memory == NULL)
        return;
    if (spare.keeps && spare.memory == NULL) {
        spare.memory = memory;
        return;
    }
    header *head = (header *)(void *)((char *)memory - HEADER);
    if (head->payer != NULL)
        vme_context_release(head->payer, head->bytes);
    free(head);
}

static void spare_begin(void) { spare.keeps = true; }

static void spare_end(void)
{
    spare.keeps = false;
    vme_fft_free(spare.memory);
    spare.memory = NULL;
}

/* ---- plans */
typedef struct plan {
    void *prepared;
    int64_t n;
    bool of_reals, wide;
    int users;     /* guarded by the lock */
    uint64_t used; /* time of the last use */
} plan;

static struct {
    pthread_mutex_t lock;
    plan kept[PLANS];
    uint64_t clock;
} plans = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void before_fork(void) { pthread_mutex_lock(&plans.lock); }
static void after_fork(void) { pthread_mutex_unlock(&plans.lock); }
__attribute__((constructor)) static void begin(void) { pthread_atfork(before_fork, after_fork, after_fork); }

static void *plan_new(bool of_reals, bool wide, int64_t n)
{
    return wide ? vme_fft_plan_f64(of_reals, (size_t)n) : vme_fft_plan_f32(of_reals, (size_t)n);
}

static void plan_drop(bool of_reals, bool wide, void *prepared)
{
    if (prepared != NULL && wide)
        vme_fft_drop_f64(of_reals, prepared);
    else if (prepared != NULL)
        vme_fft_drop_f32(of_reals, prepared);
}

/* Returns a plan to use until plan_leave; *entry is its cache entry, or NULL if the caller owns it. NULL: no memory. */
static void *plan_take(vme_context *context, bool of_reals, bool wide, int64_t n, plan **entry)
{
    *entry = NULL;
    if (n <= KEPT_MAX) {
        pthread_mutex_lock(&plans.lock);
        plan *found = NULL, *oldest = NULL;
        for (int i = 0; i < PLANS && found == NULL; i++) {
            plan *one = &plans.kept[i];
            if (one->prepared != NULL && one->n == n && one->of_reals == of_reals && one->wide == wide)
                found = one;
            else if (one->users == 0 && (oldest == NULL || one->used < oldest->used))
                oldest = one;
        }
        if (found == NULL && oldest != NULL) {
            void *prepared = plan_new(of_reals, wide, n);
            if (prepared != NULL) {
                plan_drop(oldest->of_reals, oldest->wide, oldest->prepared);
                *oldest = (plan){.prepared = prepared, .n = n, .of_reals = of_reals, .wide = wide};
                found = oldest;
            }
        }
        if (found != NULL) {
            found->users++;
            found->used = ++plans.clock;
        }
        pthread_mutex_unlock(&plans.lock);
        *entry = found;
        if (found != NULL)
            return found->prepared;
    }
    payer = context;
    void *prepared = plan_new(of_reals, wide, n);
    payer = NULL;
    return prepared;
}

static void plan_leave(bool of_reals, bool wide, void *prepared, plan *entry)
{
    if (entry == NULL) {
        plan_drop(of_reals, wide, prepared);
        return;
    }
    pthread_mutex_lock(&plans.lock);
    entry->users--;
    pthread_mutex_unlock(&plans.lock);
}

/* ---- long rows */
typedef struct long_plan {
    atomic_int users; /* the call, and each row in progress: abandoned rows end later */
    bool of_reals, wide;
    void *prepared;
} long_plan;

static void long_plan_leave(long_plan *p)
{
    if (p == NULL || atomic_fetch_sub_explicit(&p->users, 1, memory_order_acq_rel) != 1)
        return;
    plan_drop(p->of_reals, p->wide, p->prepared);
    vme_fft_free(p);
}

typedef struct long_row { /* the block of foreign work */
    long_plan *plan;      /* a reference, which the work releases */
    bool begun;           /* set when the work has started: only then does it release the reference */
    vme_fft_kind kind;
    int64_t n, given;
    double factor;
    void *in, *out, *row; /* within this block */
} long_row;

static vme_status no_memory(int64_t n)
{
    return vme_fail(VME_NO_MEMORY, "no memory for a Fourier transform of %lld numbers", (long long)n);
}

static vme_status make_plan(vme_context *context, void *block, const atomic_bool *abandoned)
{
    (void)abandoned;
    long_row *r = block;
    r->begun = true;
    payer = context;
    r->plan->prepared = plan_new(r->plan->of_reals, r->plan->wide, r->n);
    payer = NULL;
    vme_status status = r->plan->prepared == NULL ? no_memory(r->n) : VME_OK;
    long_plan_leave(r->plan);
    return status;
}

static vme_status do_row(vme_context *context, void *block, const atomic_bool *abandoned)
{
    (void)abandoned;
    long_row *r = block;
    r->begun = true;
    payer = context;
    if (r->plan->prepared == NULL) /* a single row makes the plan itself */
        r->plan->prepared = plan_new(r->plan->of_reals, r->plan->wide, r->n);
    int rc = r->plan->prepared == NULL ? -1
             : r->plan->wide
                 ? vme_fft_row_f64(r->kind, r->plan->prepared, r->n, r->factor, r->in, r->given, r->out, r->row)
                 : vme_fft_row_f32(r->kind, r->plan->prepared, r->n, r->factor, r->in, r->given, r->out, r->row);
    payer = NULL;
    long_plan_leave(r->plan);
    return rc == 0 ? VME_OK : no_memory(r->n);
}

/* Hands the block over; afterwards it is freed or owned by the thread. */
static vme_status hand_over(vme_context *context, vme_foreign_work *work, long_row *r, size_t bytes, void *to,
                            size_t out_bytes)
{
    void *block = r;
    atomic_fetch_add_explicit(&r->plan->users, 1, memory_order_relaxed);
    long_plan *p = r->plan;
    vme_status status = vme_foreign(context, work, &block, bytes);
    if (block == NULL)
        return status;
    if (!r->begun)
        long_plan_leave(p);
    if (status == VME_OK && !vme_foreign_copy(context, to, r->out, out_bytes))
        status = vme_stopped_here(context);
    vme_scratch_free(context, block, bytes);
    return status;
}

/* A single row makes its plan itself, which saves a wait for a thread. NULL, with *status: no memory, or stopped. */
static long_plan *long_plan_take(vme_context *context, bool of_reals, bool wide, int64_t n, int64_t rows,
                                 vme_status *status)
{
    payer = context;
    long_plan *p = vme_fft_new(sizeof *p);
    payer = NULL;
    if (p == NULL) {
        *status = no_memory(n);
        return NULL;
    }
    *p = (long_plan){.of_reals = of_reals, .wide = wide};
    atomic_init(&p->users, 1);
    if (rows == 1)
        return p;
    long_row *r = vme_scratch_new(context, sizeof *r);
    if (r == NULL) {
        long_plan_leave(p);
        *status = VME_NO_MEMORY;
        return NULL;
    }
    *r = (long_row){.plan = p, .n = n};
    *status = hand_over(context, make_plan, r, sizeof *r, NULL, 0);
    if (*status == VME_OK)
        return p;
    long_plan_leave(p);
    return NULL;
}

/* Lengths with a large prime factor take several transforms of more than twice the length (Bluestein's algorithm). */
static bool takes_long(int64_t n)
{
    int64_t left = n;
    for (int64_t factor = 2; factor * factor <= left && factor < 50; factor++)
        while (left % factor == 0)
            left /= factor;
    return n > (left < 50 ? OWN_MAX : OWN_MAX / 4);
}

/* ---- rows */
typedef struct transform {
    vme_context *context;
    vme_fft_kind kind;
    void *plan;
    long_plan *far; /* not NULL: rows are foreign work, and `plan` is unused */
    int64_t n, given;
    double factor;
    bool wide;
    const char *in;
    char *out;
    size_t in_row, out_row; /* bytes */
} transform;

static size_t rounded(size_t bytes) { return (bytes + VME_ALIGNMENT - 1) & ~(size_t)(VME_ALIGNMENT - 1); }

static vme_status one_long_row(const transform *t, const char *in, char *out)
{
    size_t real = t->wide ? 8 : 4, number = t->kind == VME_FFT_REAL_FORWARD ? real : 2 * real;
    int64_t taken = t->kind == VME_FFT_REAL_BACKWARD ? t->n / 2 + 1 : t->n; /* maximum elements read from a row of the
                                                                             * input */
    size_t given = (size_t)(t->given < taken ? t->given : taken), before = rounded(sizeof(long_row)),
           result = rounded(t->out_row);
    bool in_place = t->kind == VME_FFT_FORWARD || t->kind == VME_FFT_BACKWARD;
    size_t aside = in_place                          ? 0
                   : t->kind == VME_FFT_REAL_FORWARD ? (size_t)t->n * real
                                                     : given * number,
           bytes = before + result + aside;
    long_row *r = vme_scratch_new(t->context, bytes);
    if (r == NULL)
        return VME_NO_MEMORY;
    char *to = (char *)r + before, *from = in_place ? to : to + result;
    *r = (long_row){.plan = t->far,
                    .kind = t->kind,
                    .n = t->n,
                    .given = (int64_t)given,
                    .factor = t->factor,
                    .in = from,
                    .out = to,
                    .row = t->kind == VME_FFT_REAL_FORWARD ? from : NULL};
    if (!vme_foreign_copy(t->context, from, in, given * number)) {
        vme_scratch_free(t->context, r, bytes);
        return vme_stopped_here(t->context);
    }
    return hand_over(t->context, do_row, r, bytes, out, t->out_row);
}

static vme_status some_long_rows(void *argument, int64_t begin, int64_t end)
{
    const transform *t = argument;
    vme_status status = VME_OK;
    for (int64_t i = begin; status == VME_OK && i < end; i++)
        status = one_long_row(t, t->in + (size_t)i * t->in_row, t->out + (size_t)i * t->out_row);
    return status;
}

static vme_status some_rows(void *argument, int64_t begin, int64_t end)
{
    const transform *t = argument;
    payer = t->context;
    spare_begin();
    int rc = 0;
    for (int64_t i = begin; rc == 0 && i < end; i++) {
        const char *in = t->in + (size_t)i * t->in_row;
        char *out = t->out + (size_t)i * t->out_row;
        rc = t->wide ? vme_fft_row_f64(t->kind, t->plan, t->n, t->factor, (const double *)(const void *)in, t->given,
                                       (double *)(void *)out, NULL)
                     : vme_fft_row_f32(t->kind, t->plan, t->n, t->factor, (const float *)(const void *)in, t->given,
                                       (float *)(void *)out, NULL);
    }
    spare_end();
    payer = NULL;
    return rc == 0 ? VME_OK : no_memory(t->n);
}

vme_status vme_fft(vme_context *context, vme_fft_kind kind, int64_t n, double factor, const vme_tensor *in,
                   const vme_tensor *out)
{
    bool of_reals = kind == VME_FFT_REAL_FORWARD || kind == VME_FFT_REAL_BACKWARD;
    bool wide = out->dtype == VME_FLOAT64 || out->dtype == VME_COMPLEX128;
    int real = wide ? VME_FLOAT64 : VME_FLOAT32, number = wide ? VME_COMPLEX128 : VME_COMPLEX64;
    int64_t columns = kind == VME_FFT_REAL_FORWARD ? n / 2 + 1 : n;
    vme_status status = vme_check_output(out);
    if (status != VME_OK)
        return status;
    if (n < 1 || n > INT64_MAX / 64)
        return vme_fail(VME_BAD_VALUE, "Invalid number of FFT data points (%lld) specified.", (long long)n);
    if (in->rank != out->rank || in->rank < 1 || out->shape[out->rank - 1] != columns || !vme_is_contiguous(in)
        || !vme_is_contiguous(out) || in->dtype != (kind == VME_FFT_REAL_FORWARD ? real : number)
        || out->dtype != (kind == VME_FFT_REAL_BACKWARD ? real : number))
        return vme_fail(VME_BAD_VALUE, "a Fourier transform needs contiguous rows of one precision");
    int64_t rows = vme_elements(out) / columns, given = in->shape[in->rank - 1];
    if (given != 0 && vme_elements(in) / given != rows)
        return vme_fail(VME_BAD_SHAPE, "a Fourier transform of %lld rows cannot fill %lld",
                        (long long)(vme_elements(in) / given), (long long)rows);
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    if (rows == 0)
        return VME_OK;
    plan *entry = NULL;
    bool is_long = takes_long(n);
    long_plan *far = is_long ? long_plan_take(context, of_reals, wide, n, rows, &status) : NULL;
    void *prepared = is_long ? NULL : plan_take(context, of_reals, wide, n, &entry);
    if (prepared == NULL && far == NULL)
        return status == VME_OK ? no_memory(n) : status;
    transform t = {.context = context,
                   .kind = kind,
                   .plan = prepared,
                   .far = far,
                   .n = n,
                   .given = given,
                   .factor = factor,
                   .wide = wide,
                   .in = in->data,
                   .out = out->data,
                   .in_row = (size_t)given * (size_t)vme_dtype_size((vme_dtype)in->dtype),
                   .out_row = (size_t)columns * (size_t)vme_dtype_size((vme_dtype)out->dtype)};
    int64_t grain = 32768 / n;
    status = vme_parallel(context, rows, grain < 1 ? 1 : grain, far != NULL ? some_long_rows : some_rows, &t);
    if (far != NULL)
        long_plan_leave(far);
    else
        plan_leave(of_reals, wide, prepared, entry);
    return status;
}
