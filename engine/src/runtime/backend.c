/* The kernels that this process uses: those of the fastest backend that its CPU can run, or of a forced one. */
#include "runtime/internal.h"

#include <pthread.h>
#include <string.h>

static bool always(void) { return true; }

static bool has_avx2(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
    return false;
#endif
}

static bool has_avx512(void)
{
#ifdef __x86_64__
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
           && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}

static const vme_order_kernels no_order;
static const vme_random_kernels no_random;
static const vme_backend backends[] = {
    {"portable", always, vme_elementwise_portable, &vme_reduce_portable, &vme_gemm_portable, &vme_move_portable,
     &no_order, &vme_bits_portable, &no_random, &vme_model_portable, &vme_winograd_portable, &model_rows_portable,
     &embedding_rows_portable, &model_quantized_portable, &model_narrow_portable, &images_portable},
#ifdef __x86_64__
    {"avx2", has_avx2, vme_elementwise_avx2, &vme_reduce_avx2, &vme_gemm_avx2, &vme_move_avx2, &vme_order_avx2,
     &vme_bits_avx2, &no_random, &vme_model_avx2, &vme_winograd_avx2, &model_rows_avx2, &embedding_rows_avx2,
     &model_quantized_avx2, &model_narrow_avx2, &images_avx2},
    {"avx512", has_avx512, vme_elementwise_avx512, &vme_reduce_avx512, &vme_gemm_avx512, &vme_move_avx512,
     &vme_order_avx512, &vme_bits_avx512, &vme_random_avx512, &vme_model_avx512, &vme_winograd_avx512,
     &model_rows_avx512, &embedding_rows_avx512, &model_quantized_avx512, &model_narrow_avx512, &images_avx512},
#endif
};
enum { BACKENDS = sizeof backends / sizeof *backends };
_Static_assert((int)BACKENDS <= (int)VME_BACKENDS_MAX, "who lists backends has room for all");

/* The table of each backend, where missing kernels are taken from the next slower backend; filled once. `current` is a
 * pointer, so that a change is one store. NULL: not filled yet. */
static vme_kernels filled[BACKENDS];
static _Atomic(const vme_kernels *) current;
static atomic_bool is_forced;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill(void *table, const void *from, size_t size)
{
    /* the tables passed here consist of function pointers only */
    void (**into)(void) = table;
    void (*const *source)(void) = from;
    for (size_t i = 0; i < size / sizeof *into; i++)
        if (into[i] == NULL)
            into[i] = source[i];
}

static int best(void)
{
    for (int i = BACKENDS - 1; i > 0; i--)
        if (backends[i].available())
            return i;
    return 0;
}

static void start(void)
{
    const vme_backend *portable = &backends[0];
    for (int i = 0; i < BACKENDS; i++) {
        vme_kernels *kernels = &filled[i];
        /* the next slower backend */
        const vme_kernels *below = i == 0 ? NULL : &filled[i - 1];
        for (const vme_elementwise_kernels *const *group = backends[i].elementwise; *group != NULL; group++)
            fill(&kernels->elementwise, *group, sizeof kernels->elementwise);
        kernels->reduce = *backends[i].reduce;
        kernels->gemm = *backends[i].gemm;
        kernels->move = *backends[i].move;
        kernels->order = *backends[i].order;
        kernels->bits = *backends[i].bits;
        kernels->random = *backends[i].random;
        kernels->model = *backends[i].model;
        kernels->winograd = *backends[i].winograd;
        kernels->rows = backends[i].rows;
        kernels->embedding = backends[i].embedding;
        kernels->quantized = backends[i].quantized;
        kernels->narrow = backends[i].narrow;
        kernels->images = backends[i].images;
        if (below != NULL)
            fill(&kernels->elementwise, &below->elementwise, sizeof kernels->elementwise);
        fill(&kernels->reduce, below ? &below->reduce : portable->reduce, sizeof kernels->reduce);
        fill(&kernels->move, below ? &below->move : portable->move, sizeof kernels->move);
        for (int d = 0; below != NULL && d < VME_DTYPE_COUNT; d++)
            if (kernels->gemm.of[d].tile == NULL)
                kernels->gemm.of[d] = below->gemm.of[d];
    }
    atomic_store(&current, &filled[best()]);
}

const vme_kernels *vme_kernels_current(void)
{
    const vme_kernels *kernels = vme_thread_options_now.kernels != NULL
                                     ? vme_thread_options_now.kernels
                                     : atomic_load_explicit(&current, memory_order_acquire);
    if (kernels == NULL) {
        pthread_once(&once, start);
        kernels = atomic_load_explicit(&current, memory_order_relaxed);
    }
    return kernels;
}

const vme_kernels *vme_kernels_of(int backend)
{
    pthread_once(&once, start);
    return &filled[backend];
}

bool vme_backend_forced(void) { return atomic_load(&is_forced); }

int vme_backend_count(void) { return BACKENDS; }
const char *vme_backend_name(int backend) { return backend < 0 || backend >= BACKENDS ? "" : backends[backend].name; }
bool vme_backend_available(int backend) { return backend >= 0 && backend < BACKENDS && backends[backend].available(); }

/* Counts the kernels of a table that are not NULL. */
static int count(const void *table, size_t size)
{
    void (*const *kernel)(void) = table;
    int found = 0;
    for (size_t i = 0; i < size / sizeof *kernel; i++)
        found += kernel[i] != NULL;
    return found;
}

int vme_backend_kernels(int backend)
{
    if (backend < 0 || backend >= BACKENDS)
        return 0;
    const vme_backend *own = &backends[backend];
    int found = count(own->reduce, sizeof *own->reduce) + count(own->move, sizeof *own->move)
                + count(own->order, sizeof *own->order) + count(own->bits, sizeof *own->bits)
                + count(own->random, sizeof *own->random) + count(own->model, sizeof *own->model)
                + count(own->winograd, sizeof *own->winograd);
    for (const vme_elementwise_kernels *const *group = own->elementwise; *group != NULL; group++)
        found += count(*group, sizeof **group);
    for (int d = 0; d < VME_DTYPE_COUNT; d++) {
        const vme_gemm_kernel *gemm = &own->gemm->of[d];
        found += (gemm->tile != NULL) + (gemm->pack_a != NULL) + (gemm->pack_b != NULL) + (gemm->dots != NULL)
                 + (gemm->sums != NULL);
    }
    return found;
}

int vme_backend_current(void)
{
    pthread_once(&once, start);
    return (int)(atomic_load(&current) - filled);
}

vme_status vme_backend_force(int backend)
{
    pthread_once(&once, start);
    const bool force = backend != -1;
    if (!force)
        backend = best();
    if (!vme_backend_available(backend))
        return vme_fail(VME_UNSUPPORTED, "backend %d (%s) cannot run on this machine", backend,
                        vme_backend_name(backend));
    atomic_store(&is_forced, force);
    atomic_store(&current, &filled[backend]);
    return VME_OK;
}
