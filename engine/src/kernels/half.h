/* float16 is computed in float32: conversions of one element, which round to nearest even. */
#ifndef VME_KERNELS_HALF_H
#define VME_KERNELS_HALF_H

#include "loops.h"

#ifdef __F16C__
#include <immintrin.h>

static inline f32 f32_of_half(u16 half) { return _cvtsh_ss(half); }
static inline u16 half_of_f32(f32 value) { return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }
#else
static inline f32 f32_of_bits(u32 bits)
{
    f32 value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline u32 bits_of_f32(f32 value)
{
    u32 bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline f32 f32_of_half(u16 half)
{
    u32 sign = (u32)(half & 0x8000) << 16;
    f32 value =
        f32_of_bits((u32)(half & 0x7fff) << 13) * 0x1p112f; /* moves the exponent's bias, exact for subnormals too */
    u32 bits = bits_of_f32(value) | (value >= 65536.0f ? 0x7f800000u : 0);
    return f32_of_bits(bits | sign);
}

static inline u16 half_of_f32(f32 value)
{
    u32 bits = bits_of_f32(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (u16)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) /* rounds to 65536 or more */
        return (u16)(sign | 0x7c00);
    if (magnitude < 0x38800000) /* subnormal: adding 0.5 rounds to the last bit of a half */
        return (u16)(sign | (bits_of_f32(f32_of_bits(magnitude) + 0.5f) - 0x3f000000));
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return (u16)(sign | ((magnitude - 0x38000000) >> 13));
}
#endif

/* Converts via float32, rounded to odd, so that only the second rounding counts (Boldo and Melquiond 2008). */
static inline u16 half_of_f64(f64 value)
{
    f32 rounded = (f32)value;
    u32 bits;
    memcpy(&bits, &rounded, sizeof bits);
    if ((f64)rounded != value && value == value) {
        if (fabs((f64)rounded) > fabs(value))
            bits--;
        bits |= 1;
    }
    memcpy(&rounded, &bits, sizeof rounded);
    return half_of_f32(rounded);
}

#endif
