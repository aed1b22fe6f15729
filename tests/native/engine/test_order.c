/* Sorting and selecting keys by each backend's kernels: all lengths up to some vectors, orders that are hard to part, a
 * stop. */
#include <stdlib.h>
#include <string.h>

#include "../check.h"
#include "runtime/internal.h"

static uint64_t seed = 20261121;

static uint64_t drawn(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed >> 16;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t key_of(int pattern, int64_t i, int64_t n, bool wide)
{
    int64_t min = wide ? INT64_MIN : INT32_MIN, max = wide ? INT64_MAX : INT32_MAX;
    switch (pattern) {
    case 0: return wide ? (int64_t)(drawn() << 16 ^ drawn()) : (int32_t)drawn();
    case 1: return drawn() % 3 == 0 ? min : drawn() % 2 ? max : max - 1;
    case 2: return max;
    case 3: return min;
    case 4: return i;
    case 5: return -i;
    case 6: return i < n / 2 ? i : n - i;
    default: return i % 8 == 7 ? i : 0; /* what a vector's last lane holds decides */
    }
}

static void check_line(vme_context *context, const vme_order_kernels *kernels, bool wide, int pattern, int64_t n)
{
    /* of exactly the size: an address sanitizer sees accesses beyond it */
    size_t size = wide ? 8 : 4;
    char *keys = malloc((size_t)n * size + 1), *again = malloc((size_t)n * size + 1);
    int64_t *sorted = malloc((size_t)n * sizeof *sorted + 1);
    CHECK(keys != NULL && again != NULL && sorted != NULL);
    for (int64_t i = 0; i < n; i++) {
        sorted[i] = key_of(pattern, i, n, wide);
        int32_t narrow = (int32_t)sorted[i];
        memcpy(keys + (size_t)i * size, wide ? (void *)&sorted[i] : (void *)&narrow, size);
    }
    memcpy(again, keys, (size_t)n * size);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    CHECK(kernels->sort[wide](context, n, keys));
    int64_t kth = n == 0 ? 0 : (int64_t)(drawn() % (uint64_t)n);
    if (n > 0)
        CHECK(kernels->select[wide](context, n, again, kth));
    for (int64_t i = 0; i < n; i++) {
        int64_t key = wide ? ((int64_t *)(void *)keys)[i] : ((int32_t *)(void *)keys)[i];
        int64_t other = wide ? ((int64_t *)(void *)again)[i] : ((int32_t *)(void *)again)[i];
        CHECK(key == sorted[i]);
        CHECK(i < kth ? other <= sorted[kth] : i > kth ? other >= sorted[kth] : other == sorted[kth]);
    }
    free(keys);
    free(again);
    free(sorted);
}

int main(void)
{
    vme_context *context;
    CHECK(vme_context_new(NULL, 0, &context) == VME_OK);
    for (int backend = 0; backend < vme_backend_count(); backend++) {
        if (!vme_backend_available(backend))
            continue;
        CHECK(vme_backend_force(backend) == VME_OK);
        const vme_order_kernels *kernels = &vme_kernels_current()->order;
        if (kernels->sort[0] == NULL)
            continue;
        for (int wide = 0; wide < 2; wide++) {
            for (int pattern = 0; pattern < 8; pattern++) {
                for (int64_t n = 0; n < 700; n += n < 40 ? 1 : 1 + (int64_t)(drawn() % 40))
                    check_line(context, kernels, wide, pattern, n);
                check_line(context, kernels, wide, pattern, 20000 + pattern);
            }
            static int64_t many[10000];
            for (int i = 0; i < 10000; i++)
                many[i] = (int64_t)drawn();
            vme_context_stop(context, true);
            CHECK(!kernels->sort[wide](context, 10000, many));
            CHECK(!kernels->select[wide](context, 10000, many, 5000));
            vme_context_stop(context, false);
        }
    }
    vme_context_unref(context);
    return 0;
}
