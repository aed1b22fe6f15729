/* exp and log of float64 and power of both types in AVX-512, where libmvec measured half as fast as NumPy.
 *
 * log(x), x = 2^k m, 0.75 <= m < 1.5: a reciprocal with few bits, c = j/16, is derived from m, so that r = m c - 1 is
 * exact; then log(x) = k log(2) - log(c) (a table) + log(1 + r) (Taylor series). e^x = 2^(n/16) (a table) times a
 * Taylor series around 0; vscalef handles overflow and gradual underflow. As in ARM's optimized routines (math/pow.c),
 * which gather from tables of 128 entries. */
#include <immintrin.h>

static inline __m512d splat(f64 x) { return _mm512_set1_pd(x); }

/* c[0] + c[1] x + … + c[count - 1] x^(count-1), at most 16 terms, evaluated in pairs, pairs of pairs and so on
 * (Estrin's scheme): less latency than Horner's rule. */
static inline __attribute__((always_inline)) __m512d polynomial(int count, const f64 *c, __m512d x)
{
    __m512d part[8], power = x;
    int parts = (count + 1) / 2;
    for (int i = 0; i < parts; i++)
        part[i] = 2 * i + 1 < count ? _mm512_fmadd_pd(splat(c[2 * i + 1]), x, splat(c[2 * i])) : splat(c[2 * i]);
    for (; parts > 1; parts = (parts + 1) / 2) {
        power = _mm512_mul_pd(power, power);
        for (int i = 0; i < parts / 2; i++)
            part[i] = _mm512_fmadd_pd(part[2 * i + 1], power, part[2 * i]);
        if (parts % 2 != 0)
            part[parts / 2] = part[parts - 1];
    }
    return part[0];
}

static inline __m512d look_up(const f64 *table, __m512d shifted)
{
    return _mm512_permutex2var_pd(_mm512_loadu_pd(table), _mm512_castpd_si512(shifted), _mm512_loadu_pd(table + 8));
}

/* -log(j/16), j = 11 to 21, at index j & 15: in multiples of 2^-42, so that k LOG_2_HIGH can be added exactly, and the
 * remainder. */
static const f64 log_high[] = {
    0x0.0p+0,
    -0x1.f0a30c0118000p-5,
    -0x1.e27076e2b0000p-4,
    -0x1.5ff3070a7a000p-3,
    -0x1.c8ff7c79aa000p-3,
    -0x1.1675cababa000p-2,
    0x0.0p+0,
    0x0.0p+0,
    0x0.0p+0,
    0x0.0p+0,
    0x0.0p+0,
    0x1.7fafa3bd81000p-2,
    0x1.269621134e000p-2,
    0x1.a93ed3c8ae000p-3,
    0x1.1178e8227e000p-3,
    0x1.08598b59e4000p-4,
};
static const f64 log_low[] = {
    0x0.0p+0,
    0x1.d599e83368e91p-45,
    0x1.a342c2af0003cp-45,
    0x1.8586f183bebf2p-44,
    0x1.7794f689f8434p-45,
    -0x1.8380e731f55c4p-44,
    0x0.0p+0,
    0x0.0p+0,
    0x0.0p+0,
    0x0.0p+0,
    0x0.0p+0,
    0x1.46fb79bf6d4cbp-44,
    -0x1.1b61f10522625p-44,
    -0x1.8724350562169p-45,
    0x1.1ef78ce2d07f2p-45,
    -0x1.7e5dd7009902cp-46,
};
#define LOG_2_HIGH 0x1.62e42fefa3800p-1
#define LOG_2_LOW  0x1.ef35793c76730p-45
/* 2^(n/16) */
static const f64 root_powers[] = {
    0x1.0000000000000p+0, 0x1.0b5586cf9890fp+0, 0x1.172b83c7d517bp+0, 0x1.2387a6e756238p+0,
    0x1.306fe0a31b715p+0, 0x1.3dea64c123422p+0, 0x1.4bfdad5362a27p+0, 0x1.5ab07dd485429p+0,
    0x1.6a09e667f3bcdp+0, 0x1.7a11473eb0187p+0, 0x1.8ace5422aa0dbp+0, 0x1.9c49182a3f090p+0,
    0x1.ae89f995ad3adp+0, 0x1.c199bdd85529cp+0, 0x1.d5818dcfba487p+0, 0x1.ea4afa2a490dap+0,
};
#define SIXTEENTH_HIGH 0x1.62e42fefa0000p-5
#define SIXTEENTH_LOW  0x1.cf79abc9e3b3ap-44

/* Returns k; x > 0 may be subnormal. The low bits of *shifted receive j, *r receives r, |r| < 2^-4.4. */
#define ROUND_TO_SIXTEENTHS splat(0x1.8p48) /* adding it rounds to 16ths */
static inline __m512d reduce(__m512d x, __m512d *shifted, __m512d *r)
{
    __m512d m = _mm512_getmant_pd(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src), k = _mm512_getexp_pd(x), one = splat(1);
    k = _mm512_mask_add_pd(k, _mm512_cmp_pd_mask(m, one, _CMP_LT_OQ), k, one);
    *shifted = _mm512_add_pd(_mm512_rcp14_pd(m), ROUND_TO_SIXTEENTHS);
    *r = _mm512_fmsub_pd(m, _mm512_sub_pd(*shifted, ROUND_TO_SIXTEENTHS), one);
    return k;
}

/* (log(1 + r) - r + r^2/2) / r^3 */
static const f64 log_series[] = {1.0 / 3,   -1.0 / 4, 1.0 / 5,   -1.0 / 6, 1.0 / 7,   -1.0 / 8, 1.0 / 9,
                                 -1.0 / 10, 1.0 / 11, -1.0 / 12, 1.0 / 13, -1.0 / 14, 1.0 / 15, -1.0 / 16};

static inline __m512d log_of(__m512d x)
{
    __m512d r, shifted, k = reduce(x, &shifted, &r),
                        high = _mm512_fmadd_pd(k, splat(LOG_2_HIGH), look_up(log_high, shifted));
    __mmask8 regular = _mm512_cmp_pd_mask(x, splat(0), _CMP_GT_OQ) & _mm512_cmp_pd_mask(x, splat(INFINITY), _CMP_LT_OQ);
    __m512d square = _mm512_mul_pd(r, r), low = _mm512_fmadd_pd(k, splat(LOG_2_LOW), look_up(log_low, shifted));
    low = _mm512_fmadd_pd(_mm512_mul_pd(square, r), polynomial(10, log_series, r), low);
    low = _mm512_fmadd_pd(square, splat(-0.5), low);
    __m512d sum = _mm512_add_pd(high, r), error = _mm512_add_pd(_mm512_sub_pd(high, sum), r);
    sum = _mm512_add_pd(sum, _mm512_add_pd(low, error));
    if (__builtin_expect(regular != 0xff, 0)) { /* zero: -infinity; infinity and NaN: themselves; negative: NaN */
        __mmask8 zero = _mm512_cmp_pd_mask(x, splat(0), _CMP_EQ_OQ),
                 negative = _mm512_cmp_pd_mask(x, splat(0), _CMP_LT_OQ);
        __m512d special = _mm512_mask_mov_pd(_mm512_mask_mov_pd(x, zero, splat(-INFINITY)), negative, splat(NAN));
        sum = _mm512_mask_mov_pd(special, regular, sum);
    }
    return sum;
}
VECTOR1(log_f64, f64, v64, log_of)

/* e^(x + low), where `low` is much smaller than x */
static inline __m512d exp_of_sum(__m512d x, __m512d low)
{
    /* beyond these bounds the result is 0 or infinity; a NaN is the second operand and passes through */
    x = _mm512_max_pd(splat(-760), _mm512_min_pd(splat(720), x));
    __m512d shifted = _mm512_fmadd_pd(x, splat(0x1.71547652b82fep+4), splat(0x1.8p52)),
            n = _mm512_sub_pd(shifted, splat(0x1.8p52));
    __m512d r = _mm512_fnmadd_pd(n, splat(SIXTEENTH_HIGH), x);
    r = _mm512_add_pd(_mm512_fnmadd_pd(n, splat(SIXTEENTH_LOW), r), low);
    static const f64 inverse_factorials[] = {1, 0.5, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040};
    __m512d sum = _mm512_mul_pd(polynomial(7, inverse_factorials, r), r);
    __m512d root = look_up(root_powers, shifted);
    return _mm512_scalef_pd(_mm512_fmadd_pd(root, sum, root), _mm512_mul_pd(n, splat(0.0625)));
}

static inline __m512d exp_of(__m512d x) { return exp_of_sum(x, _mm512_setzero_pd()); }
VECTOR1(exp_f64, f64, v64, exp_of)

/* x^y = e^(y log(x)) for normal x > 0 and finite y, with log(x) as a sum of two numbers, to 63 bits. Not inlined: its
 * constants would be spilled to the stack of the calling loop. */
extern v64 NAME64_2(pow)(v64, v64);
static __attribute__((noinline)) v64 power_of_f64(v64 base, v64 exponent)
{
    __m512d x = (__m512d)base, y = (__m512d)exponent, r, shifted;
    __mmask8 regular = _mm512_cmp_pd_mask(x, splat(0x1p-1022), _CMP_GE_OQ)
                       & _mm512_cmp_pd_mask(x, splat(INFINITY), _CMP_LT_OQ)
                       & _mm512_cmp_pd_mask(_mm512_abs_pd(y), splat(INFINITY), _CMP_LT_OQ);
    __m512d k = reduce(_mm512_mask_mov_pd(splat(1), regular, x), &shifted, &r);
    __m512d first = _mm512_fmadd_pd(k, splat(LOG_2_HIGH), look_up(log_high, shifted)), second = _mm512_add_pd(first, r);
    __m512d half = _mm512_mul_pd(r, splat(-0.5)), square = _mm512_mul_pd(r, half), high = _mm512_add_pd(second, square);
    __m512d low = _mm512_fmadd_pd(k, splat(LOG_2_LOW), look_up(log_low, shifted));
    low = _mm512_add_pd(low, _mm512_add_pd(_mm512_sub_pd(first, second), r));
    low = _mm512_add_pd(low, _mm512_fmsub_pd(r, half, square));
    low = _mm512_add_pd(low, _mm512_add_pd(_mm512_sub_pd(second, high), square));
    low = _mm512_fmadd_pd(_mm512_mul_pd(_mm512_mul_pd(r, r), r), polynomial(14, log_series, r), low);
    __m512d log = _mm512_add_pd(high, low);
    low = _mm512_add_pd(_mm512_sub_pd(high, log), low);
    __m512d product = _mm512_mul_pd(y, log);
    __mmask8 out_of_range = _mm512_cmp_pd_mask(_mm512_abs_pd(product), splat(800), _CMP_GT_OQ);
    __m512d product_low = _mm512_maskz_fmadd_pd((__mmask8)~out_of_range, y, low, _mm512_fmsub_pd(y, log, product));
    __m512d result = exp_of_sum(product, product_low);
    if (__builtin_expect(regular != 0xff, 0)) /* zeros, negative and special values: these lanes from libmvec */
        result = _mm512_mask_mov_pd((__m512d)NAME64_2(pow)(base, exponent), regular, result);
    return (v64)result;
}
VECTOR2(power_by_any_f64, f64, v64, power_of_f64)

/* The same in float32, with 23 bits of log(x): within 2 ulp. */
static const f32 log_high_f32[] = {
    /* in multiples of 2^-16 */
    0x0.0p+0f, -0x1.f0ap-5f, -0x1.e27p-4f, -0x1.5ffp-3f, -0x1.c90p-3f,   -0x1.167400p-2f, 0x0.0p+0f,      0x0.0p+0f,
    0x0.0p+0f, 0x0.0p+0f,    0x0.0p+0f,    0x1.7fbp-2f,  0x1.269800p-2f, 0x1.a94p-3f,     0x1.117800p-3f, 0x1.086p-4f,
};
static const f32 log_low_f32[] = {
    0x0.0p+0f,        -0x1.86008cp-20f, -0x1.db8abcp-22f, -0x1.83853cp-18f, 0x1.070cacp-20f, -0x1.cababap-18f,
    0x0.0p+0f,        0x0.0p+0f,        0x0.0p+0f,        0x0.0p+0f,        0x0.0p+0f,       -0x1.7109fap-20f,
    -0x1.deecb2p-18f, -0x1.2c3752p-19f, 0x1.d044fcp-20f,  -0x1.9d2988p-18f,
};
static const f32 root_powers_f32[] = {
    0x1.000p+0f,    0x1.0b5586p+0f, 0x1.172b84p+0f, 0x1.2387a6p+0f, 0x1.306fe0p+0f, 0x1.3dea64p+0f,
    0x1.4bfdaep+0f, 0x1.5ab07ep+0f, 0x1.6a09e6p+0f, 0x1.7a1148p+0f, 0x1.8ace54p+0f, 0x1.9c4918p+0f,
    0x1.ae89fap+0f, 0x1.c199bep+0f, 0x1.d5818ep+0f, 0x1.ea4afap+0f,
};
static inline __m512 splat_f32(f32 x) { return _mm512_set1_ps(x); }
static inline __m512 look_up_f32(const f32 *table, __m512 shifted)
{
    return _mm512_permutexvar_ps(_mm512_castps_si512(shifted), _mm512_loadu_ps(table));
}

extern v32 NAME32_2(pow)(v32, v32);
static __attribute__((noinline)) v32 power_of_f32(v32 base, v32 exponent)
{
    __m512 x = (__m512)base, y = (__m512)exponent, one = splat_f32(1), shift = splat_f32(0x1.8p19f);
    __mmask16 regular = _mm512_cmp_ps_mask(x, splat_f32(0x1p-126f), _CMP_GE_OQ)
                        & _mm512_cmp_ps_mask(x, splat_f32(INFINITY), _CMP_LT_OQ)
                        & _mm512_cmp_ps_mask(_mm512_abs_ps(y), splat_f32(INFINITY), _CMP_LT_OQ);
    __m512 m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src), k = _mm512_getexp_ps(x);
    k = _mm512_mask_add_ps(k, _mm512_cmp_ps_mask(m, one, _CMP_LT_OQ), k, one);
    __m512 shifted = _mm512_add_ps(_mm512_rcp14_ps(m), shift),
           r = _mm512_fmsub_ps(m, _mm512_sub_ps(shifted, shift), one);
    __m512 first = _mm512_fmadd_ps(k, splat_f32(0x1.62e4000000000p-1f), look_up_f32(log_high_f32, shifted)),
           second = _mm512_add_ps(first, r);
    __m512 half = _mm512_mul_ps(r, splat_f32(-0.5f)), square = _mm512_mul_ps(r, half),
           high = _mm512_add_ps(second, square);
    __m512 low = _mm512_fmadd_ps(k, splat_f32(0x1.7f7d1c0000000p-20f), look_up_f32(log_low_f32, shifted));
    low = _mm512_add_ps(low, _mm512_add_ps(_mm512_sub_ps(first, second), r));
    low = _mm512_add_ps(low, _mm512_fmsub_ps(r, half, square));
    low = _mm512_add_ps(low, _mm512_add_ps(_mm512_sub_ps(second, high), square));
    __m512 thirds = _mm512_fmadd_ps(splat_f32(-1.0f / 4), r, splat_f32(1.0f / 3)),
           fifths = _mm512_fmadd_ps(splat_f32(-1.0f / 6), r, splat_f32(1.0f / 5));
    __m512 sevenths = _mm512_fmadd_ps(splat_f32(-1.0f / 8), r, splat_f32(1.0f / 7)), r_squared = _mm512_mul_ps(r, r);
    thirds = _mm512_fmadd_ps(_mm512_fmadd_ps(sevenths, r_squared, fifths), r_squared, thirds);
    low = _mm512_fmadd_ps(_mm512_mul_ps(r_squared, r), thirds, low);
    __m512 log = _mm512_add_ps(high, low);
    low = _mm512_add_ps(_mm512_sub_ps(high, log), low);
    __m512 product = _mm512_mul_ps(y, log);
    __mmask16 in_range = _mm512_cmp_ps_mask(_mm512_abs_ps(product), splat_f32(110), _CMP_LT_OQ);
    __m512 product_low = _mm512_maskz_fmadd_ps(in_range, y, low, _mm512_fmsub_ps(y, log, product));
    /* e^(product + product_low) */
    product = _mm512_max_ps(splat_f32(-110), _mm512_min_ps(splat_f32(110), product));
    shift = splat_f32(0x1.8p23f);
    shifted = _mm512_fmadd_ps(product, splat_f32(0x1.715476p+4f), shift);
    __m512 n = _mm512_sub_ps(shifted, shift);
    r = _mm512_fnmadd_ps(n, splat_f32(0x1.62e0000000000p-5f), product);
    r = _mm512_add_ps(_mm512_fnmadd_ps(n, splat_f32(0x1.0bfbe80000000p-19f), r), product_low);
    __m512 sum = _mm512_fmadd_ps(_mm512_fmadd_ps(splat_f32(1.0f / 24), r, splat_f32(1.0f / 6)), _mm512_mul_ps(r, r),
                                 _mm512_fmadd_ps(splat_f32(0.5f), r, one));
    __m512 root = look_up_f32(root_powers_f32, shifted);
    __m512 result =
        _mm512_scalef_ps(_mm512_fmadd_ps(_mm512_mul_ps(sum, r), root, root), _mm512_mul_ps(n, splat_f32(0.0625f)));
    if (__builtin_expect(regular != 0xffff, 0)) /* zeros, negative and special values: these lanes from libmvec */
        result = _mm512_mask_mov_ps((__m512)NAME32_2(pow)(base, exponent), regular, result);
    return (v32)result;
}
VECTOR2(power_by_any_f32, f32, v32, power_of_f32)

#define POWER(T) \
    LOOP1(square_##T, T, T, x *x) \
    static void power_##T(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, char *out, \
                          int64_t out_step) \
    { \
        if (b_step == 0 && n > 0 && *(const T##_at *)b == 2) \
            square_##T(n, a, a_step, out, out_step); \
        else \
            power_by_any_##T(n, a, a_step, b, b_step, out, out_step); \
    }
POWER(f32)
POWER(f64)
