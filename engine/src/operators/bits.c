/* Packing booleans into bytes and unpacking, and splitting floats. */
#include <string.h>

#include "runtime/internal.h"
#include "vme_bits.h"

enum { PIECE = 65536 }; /* elements, or bytes of packed bits, between two checks of the stop flag */

/* ---- packing */
typedef struct packing {
    const vme_bits_kernels *kernels;
    const uint8_t *in;
    uint8_t *out;
    int64_t bools, bytes; /* of one row */
    bool big;
} packing;

/* Bytes of the output, numbered across rows. */
static vme_status pack_some(void *argument, int64_t begin, int64_t end)
{
    const packing *p = argument;
    for (int64_t at = begin, n; at < end; at += n) {
        int64_t row = at / p->bytes, first = at % p->bytes, whole = p->bools / 8;
        n = p->bytes - first < end - at ? p->bytes - first : end - at;
        const uint8_t *in = p->in + row * p->bools + 8 * first;
        uint8_t *out = p->out + at;
        p->kernels->pack(first + n > whole ? n - 1 : n, p->big, in, out);
        if (first + n > whole) {
            uint8_t last[8] = {0};
            memcpy(last, in + 8 * (whole - first), (size_t)(p->bools - 8 * whole));
            p->kernels->pack(1, p->big, last, out + n - 1);
        }
    }
    return VME_OK;
}

/* Groups of eight elements of the output, numbered across rows; the last one of a row may be partial. */
static vme_status unpack_some(void *argument, int64_t begin, int64_t end)
{
    const packing *p = argument;
    int64_t eights = (p->bools + 7) / 8, whole = p->bools / 8 < p->bytes ? p->bools / 8 : p->bytes;
    for (int64_t at = begin, n; at < end; at += n) {
        int64_t row = at / eights, first = at % eights, i = 0;
        n = eights - first < end - at ? eights - first : end - at;
        const uint8_t *in = p->in + row * p->bytes + first;
        uint8_t *out = p->out + row * p->bools + 8 * first;
        if (first < whole) {
            i = whole - first < n ? whole - first : n;
            p->kernels->unpack(i, p->big, in, out);
        }
        for (; i < n; i++) {
            int64_t left = p->bools - 8 * (first + i);
            uint8_t last[8] = {0};
            if (first + i < p->bytes)
                p->kernels->unpack(1, p->big, in + i, last);
            memcpy(out + 8 * i, last, (size_t)(left < 8 ? left : 8));
        }
    }
    return VME_OK;
}

static vme_status rows_of(vme_context *context, bool big, const vme_tensor *in, const vme_tensor *out, bool unpacks)
{
    vme_status status = vme_check_output(out);
    if (status != VME_OK)
        return status;
    const vme_tensor *bools = unpacks ? out : in, *bytes = unpacks ? in : out;
    int last = in->rank - 1;
    bool fits = in->rank == out->rank && last >= 0 && vme_is_contiguous(in) && vme_is_contiguous(out)
                && bytes->dtype == VME_UINT8 && bools->dtype == (unpacks ? VME_UINT8 : VME_BOOL)
                && !vme_overlap(in, out);
    for (int d = 0; fits && d < last; d++)
        fits = in->shape[d] == out->shape[d];
    if (!fits || (!unpacks && out->shape[last] != (in->shape[last] + 7) / 8))
        return vme_fail(VME_BAD_VALUE, "packing bits takes contiguous rows of bool and of uint8");
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    packing p = {.kernels = &vme_kernels_current()->bits,
                 .in = (const uint8_t *)in->data,
                 .out = (uint8_t *)out->data,
                 .bools = bools->shape[last],
                 .bytes = bytes->shape[last],
                 .big = big};
    int64_t eights = (p.bools + 7) / 8, rows = p.bools == 0 ? 0 : vme_elements(bools) / p.bools;
    return vme_parallel(context, rows * eights, PIECE, unpacks ? unpack_some : pack_some, &p);
}

vme_status vme_bits_pack(vme_context *context, bool big, const vme_tensor *in, const vme_tensor *out)
{
    return rows_of(context, big, in, out, false);
}

vme_status vme_bits_unpack(vme_context *context, bool big, const vme_tensor *in, const vme_tensor *out)
{
    return rows_of(context, big, in, out, true);
}

/* ---- splitting floats into mantissa and exponent, or into fraction and integer part */
typedef struct splitting {
    void (*split)(int64_t n, const char *in, char *first, char *second);
    char *in, *first, *second;
    int64_t size, second_size;
} splitting;

static vme_status split_some(void *argument, int64_t begin, int64_t end)
{
    const splitting *s = argument;
    s->split(end - begin, s->in + begin * s->size, s->first + begin * s->size, s->second + begin * s->second_size);
    return VME_OK;
}

vme_status vme_split(vme_context *context, const vme_tensor *in, const vme_tensor *first, const vme_tensor *second)
{
    vme_status status = vme_check_output(first);
    if (status != VME_OK || (status = vme_check_output(second)) != VME_OK)
        return status;
    bool parts = second->dtype == in->dtype, wide = in->dtype == VME_FLOAT64;
    bool fits =
        (wide || in->dtype == VME_FLOAT32) && first->dtype == in->dtype && (parts || second->dtype == VME_INT32);
    const vme_tensor *const all[] = {in, first, second};
    for (int i = 0; i < 3; i++)
        fits = fits && vme_is_contiguous(all[i]) && vme_elements(all[i]) == vme_elements(in);
    if (!fits || vme_overlap(in, first) || vme_overlap(in, second) || vme_overlap(first, second))
        return vme_fail(
            VME_BAD_DTYPE,
            "splitting floats takes contiguous arrays: one of their dtype, and one of their dtype or int32");
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    const vme_bits_kernels *kernels = &vme_kernels_current()->bits;
    splitting s = {parts ? kernels->parts[wide] : kernels->split[wide],
                   in->data,
                   first->data,
                   second->data,
                   vme_dtype_size((vme_dtype)in->dtype),
                   vme_dtype_size((vme_dtype)second->dtype)};
    return vme_parallel(context, vme_elements(in), PIECE, split_some, &s);
}
