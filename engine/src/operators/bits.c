/* Packing booleans into bytes and unpacking, and splitting floats. */
#include <string.h>

#include "runtime/internal.h"
#include "vme_bits.h"

enum { PIECE = 65536 }; /* elements, or packed bytes, between two checks of the stop flag */

/* ---- packing */
typedef struct packing {
    const vme_bits_kernels *kernels;
    const uint8_t *in;
    uint8_t *out;
    int64_t bools, bytes; /* of one row */
    bool big_endian;      /* the first bool is the highest bit of its byte */
} packing;

/* Packs bytes `begin` to `end` - 1 of the output, counted across rows. The last byte of a row may hold fewer than eight
 * bools. */
static vme_status pack_bytes(void *argument, int64_t begin, int64_t end)
{
    const packing *p = argument;
    for (int64_t at = begin, n; at < end; at += n) {
        int64_t row = at / p->bytes, first = at % p->bytes, full = p->bools / 8;
        n = p->bytes - first < end - at ? p->bytes - first : end - at;
        const uint8_t *in = p->in + row * p->bools + 8 * first;
        uint8_t *out = p->out + at;
        p->kernels->pack(first + n > full ? n - 1 : n, p->big_endian, in, out);
        if (first + n > full) {
            uint8_t tail[8] = {0};
            memcpy(tail, in + 8 * (full - first), (size_t)(p->bools - 8 * full));
            p->kernels->pack(1, p->big_endian, tail, out + n - 1);
        }
    }
    return VME_OK;
}

/* Unpacks groups `begin` to `end` - 1 of eight bools of the output, counted across rows. The last group of a row may be
 * partial. */
static vme_status unpack_groups(void *argument, int64_t begin, int64_t end)
{
    const packing *p = argument;
    int64_t groups = vme_bits_bytes(p->bools), full = p->bools / 8 < p->bytes ? p->bools / 8 : p->bytes;
    for (int64_t at = begin, n; at < end; at += n) {
        int64_t row = at / groups, first = at % groups, i = 0;
        n = groups - first < end - at ? groups - first : end - at;
        const uint8_t *in = p->in + row * p->bytes + first;
        uint8_t *out = p->out + row * p->bools + 8 * first;
        if (first < full) {
            i = full - first < n ? full - first : n;
            p->kernels->unpack(i, p->big_endian, in, out);
        }
        for (; i < n; i++) {
            int64_t remaining = p->bools - 8 * (first + i);
            uint8_t tail[8] = {0};
            if (first + i < p->bytes)
                p->kernels->unpack(1, p->big_endian, in + i, tail);
            memcpy(out + 8 * i, tail, (size_t)(remaining < 8 ? remaining : 8));
        }
    }
    return VME_OK;
}

static vme_status run(vme_context *context, bool big, const vme_tensor *in, const vme_tensor *out, bool unpack)
{
    vme_status status = vme_check_output(out);
    if (status != VME_OK)
        return status;
    const vme_tensor *bools = unpack ? out : in, *bytes = unpack ? in : out;
    int last = in->rank - 1;
    bool fits = in->rank == out->rank && last >= 0 && vme_is_contiguous(in) && vme_is_contiguous(out)
                && bytes->dtype == VME_UINT8 && bools->dtype == (unpack ? VME_UINT8 : VME_BOOL)
                && !vme_overlap(in, out);
    for (int d = 0; fits && d < last; d++)
        fits = in->shape[d] == out->shape[d];
    if (!fits || (!unpack && out->shape[last] != vme_bits_bytes(in->shape[last])))
        return vme_fail(VME_BAD_VALUE, "packing bits takes contiguous rows of bool and of uint8");
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    packing p = {.kernels = &vme_kernels_current()->bits,
                 .in = (const uint8_t *)in->data,
                 .out = (uint8_t *)out->data,
                 .bools = bools->shape[last],
                 .bytes = bytes->shape[last],
                 .big_endian = big};
    int64_t groups = vme_bits_bytes(p.bools), rows = p.bools == 0 ? 0 : vme_elements(bools) / p.bools;
    return vme_parallel(context, rows * groups, PIECE, unpack ? unpack_groups : pack_bytes, &p);
}

vme_status vme_bits_pack(vme_context *context, bool big, const vme_tensor *in, const vme_tensor *out)
{
    return run(context, big, in, out, false);
}

vme_status vme_bits_unpack(vme_context *context, bool big, const vme_tensor *in, const vme_tensor *out)
{
    return run(context, big, in, out, true);
}

/* ---- splitting floats into mantissa and exponent, or into fraction and integer part */
typedef struct splitting {
    void (*split)(int64_t n, const char *in, char *first, char *second);
    char *in, *first, *second;
    int64_t size, second_size;
} splitting;

static vme_status split_range(void *argument, int64_t begin, int64_t end)
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
    bool is_modf = second->dtype == in->dtype, is_double = in->dtype == VME_FLOAT64;
    bool fits =
        (is_double || in->dtype == VME_FLOAT32) && first->dtype == in->dtype && (is_modf || second->dtype == VME_INT32);
    const vme_tensor *const operands[] = {in, first, second};
    for (int i = 0; i < 3; i++)
        fits = fits && vme_is_contiguous(operands[i]) && vme_elements(operands[i]) == vme_elements(in);
    if (!fits || vme_overlap(in, first) || vme_overlap(in, second) || vme_overlap(first, second))
        return vme_fail(
            VME_BAD_DTYPE,
            "splitting floats takes contiguous arrays: one of their dtype, and one of their dtype or int32");
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    const vme_bits_kernels *kernels = &vme_kernels_current()->bits;
    splitting s = {is_modf ? kernels->parts[is_double] : kernels->split[is_double],
                   in->data,
                   first->data,
                   second->data,
                   vme_dtype_size((vme_dtype)in->dtype),
                   vme_dtype_size((vme_dtype)second->dtype)};
    return vme_parallel(context, vme_elements(in), PIECE, split_range, &s);
}
