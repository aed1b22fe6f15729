/* Matrix products of random shapes and strides on every backend, in memory of exactly their extent, so that the address
 * sanitizer sees a byte too many; sums of small whole numbers are exact, so every result is compared with plain loops.
 */
#include <stdlib.h>
#include <string.h>

#include "../check.h"
#include "runtime/internal.h"

static uint64_t seed = 20261121;

static int random_below(int max)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed >> 33) % (unsigned)max);
}

enum { RANK = 3 };
typedef struct array {
    char *memory;
    int64_t shape[RANK], strides[RANK];
    vme_tensor tensor;
} array;

/* Dimensions in any order, spaced out, walked backwards; elements at odd addresses now and then. */
static void make(array *result, vme_dtype dtype, int64_t lead, int64_t rows, int64_t columns)
{
    int size = vme_dtype_size(dtype), order[RANK] = {0, 1, 2};
    int64_t step = size + (random_below(8) == 0 ? 1 : 0), span = size, first = 0;
    memcpy(result->shape, (int64_t[]){lead, rows, columns}, sizeof result->shape);
    if (random_below(2))
        order[random_below(3)] = 2, order[2] = 0, order[1] = 1, order[0] = 2;
    if (random_below(3) == 0)
        order[0] ^= order[1], order[1] ^= order[0], order[0] ^= order[1];
    for (int i = RANK - 1; i >= 0; i--) {
        int at = order[i];
        result->strides[at] = step * (random_below(4) == 0 ? 1 + random_below(3) : 1);
        step = result->strides[at] * (result->shape[at] > 0 ? result->shape[at] : 1);
        int64_t extent = (result->shape[at] - 1) * result->strides[at];
        if (result->shape[at] > 0)
            span += extent;
        if (result->shape[at] > 0 && random_below(4) == 0) {
            first += extent;
            result->strides[at] = -result->strides[at];
        }
    }
    result->memory = malloc((size_t)span);
    CHECK(result->memory != NULL);
    memset(result->memory, 0x55, (size_t)span);
    result->tensor = (vme_tensor){.data = result->memory + first,
                                  .shape = result->shape,
                                  .strides = result->strides,
                                  .rank = RANK,
                                  .dtype = dtype};
}

static char *element_at(const array *of, int64_t lead, int64_t row, int64_t column)
{
    return of->tensor.data + (of->shape[0] == 1 ? 0 : lead) * of->strides[0] + row * of->strides[1]
           + column * of->strides[2];
}

#define FOR_TYPE(dtype, DO) \
    switch (dtype) { \
    case VME_BOOL: \
    case VME_INT8: \
    case VME_UINT8: DO(int8_t, int8_t) break; \
    case VME_INT16: \
    case VME_UINT16: DO(int16_t, int16_t) break; \
    case VME_INT32: \
    case VME_UINT32: DO(int32_t, int32_t) break; \
    case VME_INT64: \
    case VME_UINT64: DO(int64_t, int64_t) break; \
    case VME_FLOAT16: DO(_Float16, float) break; \
    case VME_FLOAT32: DO(float, float) break; \
    case VME_FLOAT64: DO(double, double) break; \
    case VME_COMPLEX64: DO(_Complex float, _Complex float) break; \
    default: DO(_Complex double, _Complex double) break; \
    }

static void fill(const array *of)
{
#define FILL(type, wide) \
    for (int64_t l = 0; l < of->shape[0]; l++) \
        for (int64_t i = 0; i < of->shape[1]; i++) \
            for (int64_t j = 0; j < of->shape[2]; j++) { \
                int value = random_below(5); \
                type element = of->tensor.dtype == VME_BOOL ? (type)(value == 0) : (type)(value - 2); \
                memcpy(element_at(of, l, i, j), &element, sizeof element); \
            }
    FOR_TYPE(of->tensor.dtype, FILL);
}

static void compare(const array *a, const array *b, const array *out)
{
#define COMPARE(type, wide) \
    for (int64_t l = 0; l < out->shape[0]; l++) \
        for (int64_t i = 0; i < out->shape[1]; i++) \
            for (int64_t j = 0; j < out->shape[2]; j++) { \
                wide sum = 0; \
                type x, y, got; \
                for (int64_t p = 0; p < a->shape[2]; p++) { \
                    memcpy(&x, element_at(a, l, i, p), sizeof x); \
                    memcpy(&y, element_at(b, l, p, j), sizeof y); \
                    sum = out->tensor.dtype == VME_BOOL ? (wide)(sum != 0 || (x != 0 && y != 0)) \
                                                        : (wide)(sum + (wide)x * (wide)y); \
                } \
                memcpy(&got, element_at(out, l, i, j), sizeof got); \
                CHECK(got == (type)sum); \
            }
    FOR_TYPE(out->tensor.dtype, COMPARE);
}

int main(void)
{
    vme_context *context;
    CHECK(vme_context_new(NULL, 0, &context) == VME_OK);
    for (int round = 0; round < 1200; round++) {
        int backend = round % vme_backend_count();
        if (!vme_backend_available(backend))
            continue;
        CHECK(vme_backend_force(backend) == VME_OK);
        vme_dtype dtype = (vme_dtype)random_below(VME_DTYPE_COUNT);
        int max = round % 50 == 0 ? 400 : round % 5 == 0 ? 70 : 20;
        int64_t size[3];
        for (int i = 0; i < 3; i++)
            size[i] = random_below(8) == 0 ? random_below(2) : 1 + random_below(max);
        int64_t lead = max > 100 ? 1 : random_below(4);
        array a, b, out;
        make(&a, dtype, random_below(2) ? lead : 1, size[0], size[2]);
        make(&b, dtype, random_below(2) ? lead : 1, size[2], size[1]);
        make(&out, dtype, lead, size[0], size[1]);
        fill(&a);
        fill(&b);
        CHECK(vme_matmul(context, &a.tensor, &b.tensor, &out.tensor) == VME_OK);
        compare(&a, &b, &out);
        free(a.memory);
        free(b.memory);
        free(out.memory);
    }
    vme_statistics statistics;
    vme_context_statistics(context, &statistics);
    CHECK(statistics.live_bytes == 0);
    vme_context_unref(context);
    puts("matmul: ok");
    return 0;
}
