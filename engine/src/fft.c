/* Fourier transforms: rows divided among threads, plans kept for the next call.
 *
 * A plan (factors and roots of unity) is read only and may serve several threads. Small ones are kept, for the process; they are
 * not charged. Larger ones are made for the call and charged to its context, as all scratch is. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fft.h"

enum { PLANS = 32, KEPT_MOST = 1 << 14 };       /* about 512 KiB each at most, 16 MiB in all */

/* ---- memory */
typedef struct block {
    vme_context *payer;
    size_t bytes;
} block;
enum { HEADER = 64 };
static _Thread_local vme_context *payer;

void *vme_fft_new(size_t bytes)
{
    if (bytes > PTRDIFF_MAX - 2 * HEADER || (payer != NULL && vme_context_charge(payer, bytes + HEADER) != VME_OK))
        return NULL;
    char *memory = aligned_alloc(HEADER, (bytes + 2 * HEADER - 1) & ~(size_t)(HEADER - 1));
    if (memory == NULL) {
        if (payer != NULL)
            vme_context_release(payer, bytes + HEADER);
        return NULL;
    }
    *(block *)(void *)memory = (block){payer, bytes + HEADER};
    return memory + HEADER;
}

void vme_fft_free(void *memory)
{
    if (memory == NULL)
        return;
    block *header = (block *)(void *)((char *)memory - HEADER);
    if (header->payer != NULL)
        vme_context_release(header->payer, header->bytes);
    free(header);
}

/* ---- plans */
typedef struct plan {
    void *made;
    int64_t n;
    bool of_reals, wide;
    int users;                  /* under the lock */
    uint64_t used;              /* when last */
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

static void plan_drop(bool of_reals, bool wide, void *made)
{
    if (made != NULL && wide)
        vme_fft_drop_f64(of_reals, made);
    else if (made != NULL)
        vme_fft_drop_f32(of_reals, made);
}

/* A plan to use until plan_leave; *place is where it is kept, NULL where it is the caller's. NULL: no memory. */
static void *plan_take(vme_context *context, bool of_reals, bool wide, int64_t n, plan **place)
{
    *place = NULL;
    if (n <= KEPT_MOST) {
        pthread_mutex_lock(&plans.lock);
        plan *found = NULL, *oldest = NULL;
        for (int i = 0; i < PLANS && found == NULL; i++) {
            plan *one = &plans.kept[i];
            if (one->made != NULL && one->n == n && one->of_reals == of_reals && one->wide == wide)
                found = one;
            else if (one->users == 0 && (oldest == NULL || one->used < oldest->used))
                oldest = one;
        }
        if (found == NULL && oldest != NULL) {
            void *made = plan_new(of_reals, wide, n);
            if (made != NULL) {
                plan_drop(oldest->of_reals, oldest->wide, oldest->made);
                *oldest = (plan){.made = made, .n = n, .of_reals = of_reals, .wide = wide};
                found = oldest;
            }
        }
        if (found != NULL) {
            found->users++;
            found->used = ++plans.clock;
        }
        pthread_mutex_unlock(&plans.lock);
        *place = found;
        if (found != NULL)
            return found->made;
    }
    payer = context;
    void *made = plan_new(of_reals, wide, n);
    payer = NULL;
    return made;
}

static void plan_leave(bool of_reals, bool wide, void *made, plan *place)
{
    if (place == NULL) {
        plan_drop(of_reals, wide, made);
        return;
    }
    pthread_mutex_lock(&plans.lock);
    place->users--;
    pthread_mutex_unlock(&plans.lock);
}

/* ---- rows */
typedef struct transform {
    vme_context *context;
    vme_fft_kind kind;
    void *plan;
    int64_t n, given;
    double factor;
    bool wide;
    const char *in;
    char *out;
    size_t in_row, out_row;     /* bytes */
} transform;

static vme_status some_rows(void *argument, int64_t begin, int64_t end)
{
    const transform *t = argument;
    size_t bytes = t->kind == VME_FFT_REAL_FORWARD ? (size_t)t->n * (t->wide ? 8 : 4) : 0;
    void *row = bytes == 0 ? NULL : vme_scratch_new(t->context, bytes);
    if (bytes != 0 && row == NULL)
        return VME_NO_MEMORY;
    payer = t->context;
    int rc = 0;
    for (int64_t i = begin; rc == 0 && i < end; i++) {
        const char *in = t->in + (size_t)i * t->in_row;
        char *out = t->out + (size_t)i * t->out_row;
        rc = t->wide ? vme_fft_row_f64(t->kind, t->plan, t->n, t->factor, (const double *)(const void *)in, t->given, (double *)(void *)out, row)
                     : vme_fft_row_f32(t->kind, t->plan, t->n, t->factor, (const float *)(const void *)in, t->given, (float *)(void *)out, row);
    }
    payer = NULL;
    vme_scratch_free(t->context, row, bytes);
    return rc == 0 ? VME_OK : vme_fail(VME_NO_MEMORY, "no memory for a Fourier transform of %lld numbers", (long long)t->n);
}

vme_status vme_fft(vme_context *context, vme_fft_kind kind, int64_t n, double factor, const vme_tensor *in, const vme_tensor *out)
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
    if (in->rank != out->rank || in->rank < 1 || out->shape[out->rank - 1] != columns || !vme_is_contiguous(in) || !vme_is_contiguous(out)
        || in->dtype != (kind == VME_FFT_REAL_FORWARD ? real : number) || out->dtype != (kind == VME_FFT_REAL_BACKWARD ? real : number))
        return vme_fail(VME_BAD_VALUE, "a Fourier transform needs contiguous rows of one precision");
    int64_t rows = vme_elements(out) / columns, given = in->shape[in->rank - 1];
    if (given != 0 && vme_elements(in) / given != rows)
        return vme_fail(VME_BAD_SHAPE, "a Fourier transform of %lld rows cannot fill %lld", (long long)(vme_elements(in) / given),
                        (long long)rows);
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    plan *place;
    void *made = plan_take(context, of_reals, wide, n, &place);
    if (made == NULL)
        return vme_fail(VME_NO_MEMORY, "no memory to plan a Fourier transform of %lld numbers", (long long)n);
    transform t = {.context = context, .kind = kind, .plan = made, .n = n, .given = given, .factor = factor, .wide = wide,
                   .in = in->data, .out = out->data,
                   .in_row = (size_t)given * (size_t)vme_dtype_size((vme_dtype)in->dtype),
                   .out_row = (size_t)columns * (size_t)vme_dtype_size((vme_dtype)out->dtype)};
    int64_t grain = 32768 / n;
    status = vme_parallel(context, rows, grain < 1 ? 1 : grain, some_rows, &t);
    plan_leave(of_reals, wide, made, place);
    return status;
}
