/* VME_FLUSH_SUBNORMALS: every way through an operator, small and large, computes so on the calling thread too, and
 * leaves the thread as it was; without the flag nothing is flushed. */
#include <string.h>

#include "../check.h"
#include "vme.h"

enum { MAX = 1 << 18 };
static float in[MAX + 2], out[MAX + 2];
static volatile float small = 1.2e-38f;

static vme_tensor vector(float *data, const int64_t *shape, const int64_t *stride)
{
    return (vme_tensor){NULL, (char *)data, shape, stride, 1, VME_FLOAT32};
}

/* Each writes into out[0] a half of 1.2e-38. */
static vme_status unary(vme_context *context, const vme_tensor *a, const vme_tensor *b, const vme_tensor *to)
{
    (void)b;
    return vme_unary(context, VME_SQUARE, VME_FLOAT32, a, to);
}
static vme_status binary(vme_context *context, const vme_tensor *a, const vme_tensor *b, const vme_tensor *to)
{
    return vme_binary(context, VME_MULTIPLY, VME_FLOAT32, a, b, to);
}
static vme_status reduce(vme_context *context, const vme_tensor *a, const vme_tensor *b, const vme_tensor *to)
{
    (void)b;
    int64_t one = 1, step = 4;
    vme_tensor first = *to;
    first.shape = &one;
    first.strides = &step;
    return vme_reduce(context, VME_PROD, VME_FLOAT32, a, 1, NULL, &first);
}
static vme_status scan(vme_context *context, const vme_tensor *a, const vme_tensor *b, const vme_tensor *to)
{
    (void)b;
    return vme_scan(context, VME_CUMPROD, VME_FLOAT32, a, 0, to);
}
static vme_status product(vme_context *context, const vme_tensor *a, const vme_tensor *b, const vme_tensor *to)
{
    int64_t rows[2] = {1, a->shape[0]}, columns[2] = {a->shape[0], 1}, one[2] = {1, 1}, steps[2] = {0, a->strides[0]},
            downwards[2] = {b->strides[0], 0}, packed[2] = {4, 4};
    vme_tensor x = {NULL, a->data, rows, steps, 2, VME_FLOAT32},
               y = {NULL, b->data, columns, downwards, 2, VME_FLOAT32},
               z = {NULL, to->data, one, packed, 2, VME_FLOAT32};
    return vme_matmul(context, &x, &y, &z);
}

int main(void)
{
#ifdef __x86_64__
    static vme_status (*const operators[])(vme_context *, const vme_tensor *, const vme_tensor *,
                                           const vme_tensor *) = {
        unary, binary, reduce, scan, product,
    };
    static const int64_t sizes[] = {2, 8, 1000, MAX}, steps[] = {4, 8, -4};
    for (int backend = 0; backend < vme_backend_count(); backend++) {
        if (vme_backend_force(backend) != VME_OK)
            continue;
        for (unsigned flags = 0; flags <= VME_FLUSH_SUBNORMALS; flags += VME_FLUSH_SUBNORMALS)
            for (int op = 0; op < 5; op++)
                for (int i = 0; i < 12; i++) {
                    int64_t step = steps[i % 3], size = sizes[i / 3] / (step == 8 && i / 3 > 0 ? 2 : 1);
                    vme_context *context;
                    CHECK(vme_context_new(NULL, flags, &context) == VME_OK);
                    /* factors whose product is a half of the least normal number, once; all others are neutral */
                    float *first = step < 0 ? in + size - 1 : in;
                    for (int64_t k = 0; k < MAX; k++)
                        in[k] = op == 4 ? 0 : 1;
                    first[0] = op == 0 ? 7.7e-20f : op == 1 || op == 4 ? 7.7e-20f : small;
                    if (op == 2 || op == 3)
                        *(float *)((char *)first + step) = 0.5f;
                    int64_t out_step = 4;
                    vme_tensor a = vector(first, &size, &step), to = vector(out, &size, &out_step);
                    memset(out, 0x40, sizeof out);
                    CHECK(operators[op](context, &a, &a, &to) == VME_OK);
                    float result = op == 3 ? out[1] : out[0];
                    CHECK(result < 1e-30f && (result == 0) == (flags != 0));
                    CHECK(small * 0.5f != 0);
                    vme_context_unref(context);
                }
    }
#endif
    return 0;
}
