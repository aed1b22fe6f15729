/* Recurrent cells over rows of float32, and the product of a few rows with a packed matrix that starts each step
 * (models/recurrence.c). Included by rows.h, whose exponentials it uses. */

/* ---- `lanes`: a vector in AVX-512; otherwise one float32, in loops that the compiler vectorizes */
#ifdef __AVX512F__
typedef __m512 lanes;
#define FOR_EACH_LANE(n) \
    for (int64_t i = 0; i < (n); i += 16) \
        for (__mmask16 mask = first_lanes((n) - i), once = 1; once; once = 0)
#define READ(from)       _mm512_maskz_loadu_ps(mask, (from) + i)
#define WRITE(to, value) _mm512_mask_storeu_ps((to) + i, mask, value)
static inline lanes sigmoid_of(lanes x) { return sigmoid16(x); }
static inline lanes power_of_2(lanes rounded) { return _mm512_scalef_ps(splat(1), rounded - splat(ROUNDING)); }
static inline lanes limited_magnitude(lanes x, float bound)
{
    return _mm512_min_ps(splat(bound), _mm512_abs_ps(x));
} /* NaN stays */
static inline lanes copy_sign(lanes x, lanes sign) { return _mm512_or_ps(x, _mm512_and_ps(sign, splat(-0.0f))); }
static inline lanes add_product(lanes sum, lanes a, lanes b) { return _mm512_fmadd_ps(a, b, sum); }
#else
typedef float lanes;
#define splat(x) (x)
#define FOR_EACH_LANE(n) \
    _Pragma("GCC ivdep") \
    for (int64_t i = 0; i < (n); i++)
#define READ(from)       (from)[i]
#define WRITE(to, value) (to)[i] = (value)
static inline lanes sigmoid_of(lanes x) { return sigmoid(x); }
static inline lanes power_of_2(lanes rounded) { return times_power(1, rounded); }
static inline lanes limited_magnitude(lanes x, float bound)
{
    const float magnitude = x < 0 ? -x : x;
    return magnitude > bound ? bound : magnitude;
}
static inline lanes copy_sign(lanes x, lanes sign) { return __builtin_copysignf(x, sign); }
#endif

/* tanh(|x|) = E / (E + 2) with E = e^(2|x|) - 1. With 2|x| = k log(2) + r, E = 2^k (e^r - 1) + (2^k - 1): the second
 * term is exact, e^r - 1 is a Taylor series. Beyond 10 the quotient rounds to 1. */
static inline lanes tanh_of(lanes x)
{
    const lanes magnitude = limited_magnitude(x, 10),
                rounded = add_product(splat(ROUNDING), magnitude, splat(0x1.715476p+1f)), k = rounded - splat(ROUNDING);
    const lanes r =
        add_product(add_product(magnitude + magnitude, k, splat(-0x1.62e4p-1f)), k, splat(-0x1.7f7d1cp-20f));
    lanes sum = splat(1.0f / 720);
    sum = add_product(splat(1.0f / 120), sum, r);
    sum = add_product(splat(1.0f / 24), sum, r);
    sum = add_product(splat(1.0f / 6), sum, r);
    sum = add_product(splat(0.5f), sum, r);
    const lanes power_k = power_of_2(rounded), expm1_r = add_product(r, sum, r * r),
                e = add_product(power_k - splat(1), power_k, expm1_r);
    return copy_sign(e / (e + splat(2)), x);
}

/* ---- cells. `x` has the gates' products with the input, `p` those with the previous state, gates side by side; a
 * gate's argument is the sum of both. The next state is written to `h` and `y`. */
static void cell_lstm(int64_t n, const float *restrict x, const float *restrict p, float *restrict c, float *restrict h,
                      float *restrict y)
{
    FOR_EACH_LANE(n)
    {
        const lanes input_gate = sigmoid_of(READ(x) + READ(p)), output_gate = sigmoid_of(READ(x + n) + READ(p + n)),
                    forget_gate = sigmoid_of(READ(x + 2 * n) + READ(p + 2 * n)),
                    candidate = tanh_of(READ(x + 3 * n) + READ(p + 3 * n));
        const lanes cell = add_product(forget_gate * READ(c), input_gate, candidate),
                    state = output_gate * tanh_of(cell);
        WRITE(c, cell);
        WRITE(h, state);
        WRITE(y, state);
    }
}

/* `q`: the candidate's product with the state. With a `bias` the reset gate multiplies q + bias; otherwise it was
 * already applied to the state. */
static void cell_gru(int64_t n, const float *restrict x, const float *restrict p, const float *restrict q,
                     const float *restrict bias, float *restrict h, float *restrict y)
{
    FOR_EACH_LANE(n)
    {
        const lanes update_gate = sigmoid_of(READ(x) + READ(p)), previous = READ(h);
        lanes candidate_product = READ(q);
        if (bias != NULL)
            candidate_product = sigmoid_of(READ(x + n) + READ(p + n)) * (candidate_product + READ(bias));
        const lanes candidate = tanh_of(READ(x + 2 * n) + candidate_product),
                    state = add_product((splat(1) - update_gate) * candidate, update_gate, previous);
        WRITE(h, state);
        WRITE(y, state);
    }
}

static void cell_gru_reset(int64_t n, const float *restrict x, const float *restrict p, const float *restrict h,
                           float *restrict out)
{
    FOR_EACH_LANE(n) WRITE(out, sigmoid_of(READ(x + n) + READ(p + n)) * READ(h));
}

static void cell_tanh(int64_t n, const float *restrict x, const float *restrict p, float *restrict h, float *restrict y)
{
    FOR_EACH_LANE(n)
    {
        const lanes state = tanh_of(READ(x) + READ(p));
        WRITE(h, state);
        WRITE(y, state);
    }
}

static void cell_tanh_in_place(int64_t n, float *x) { FOR_EACH_LANE(n) WRITE(x, tanh_of(READ(x))); }
#undef FOR_EACH_LANE
#undef READ
#undef WRITE
#ifndef __AVX512F__
#undef splat
#endif

/* ---- product: rows x k times a sliver k x VME_SLIVER */
#if defined(__AVX512F__)
#define CELL_BYTES 64
#elif defined(__AVX2__)
#define CELL_BYTES 32
#else
#define CELL_BYTES 16
#endif
typedef float cell_vec __attribute__((vector_size(CELL_BYTES)));
typedef float cell_vec_unaligned __attribute__((vector_size(CELL_BYTES), aligned(4), may_alias));
enum { CELL_LANES = CELL_BYTES / 4 };

/* Keeps `rows` x `vectors` sums in registers; a single row sums even and odd steps separately, to hide latency. */
static inline __attribute__((always_inline)) void sliver_block(const int rows, const int vectors, int64_t k,
                                                               const float *a, int64_t a_row, const float *b,
                                                               float *out, int64_t out_row)
{
    const int steps = rows * vectors < 8 ? 2 : 1;
    cell_vec sum[6][8];
#pragma GCC unroll 6
    for (int r = 0; r < rows * steps; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            sum[r][v] = (cell_vec){0};
    int64_t p = 0;
    for (; p + steps <= k; p += steps)
#pragma GCC unroll 2
        for (int s = 0; s < steps; s++) {
            const float *row = b + (p + s) * VME_SLIVER;
            cell_vec columns[8];
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++)
                columns[v] = *(const cell_vec_unaligned *)(row + v * CELL_LANES);
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++) {
                const cell_vec factor = a[r * a_row + p + s] - (cell_vec){0};
#pragma GCC unroll 8
                for (int v = 0; v < vectors; v++)
#if defined(__AVX512F__)
                    sum[r * steps + s][v] = _mm512_fmadd_ps(factor, columns[v], sum[r * steps + s][v]);
#else
                    sum[r * steps + s][v] += factor * columns[v];
#endif
            }
        }
    for (; p < k; p++)
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vectors; v++)
                sum[r * steps][v] +=
                    a[r * a_row + p] * *(const cell_vec_unaligned *)(b + p * VME_SLIVER + v * CELL_LANES);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            *(cell_vec_unaligned *)(out + r * out_row + v * CELL_LANES) =
                steps == 2 ? sum[2 * r][v] + sum[2 * r + 1][v] : sum[r][v];
}

/* Vectors of a sliver whose sums fit in the registers, for a number of rows. */
#if defined(__AVX512F__)
#define VECTORS(rows) 4
#else
#define VECTORS(rows) ((rows) == 1 ? 8 : (rows) <= 3 ? 4 : 2)
#endif
#define BLOCK(rows) \
    case rows: \
        for (int64_t j = 0; j < VME_SLIVER; j += VECTORS(rows) * CELL_LANES) \
            sliver_block(rows, VECTORS(rows), k, a, a_row, b + j, out + j, out_row); \
        break;
static void sliver_product(int rows, int64_t k, const float *a, int64_t a_row, const float *b, float *out,
                           int64_t out_row)
{
    switch (rows) {
        /* clang-format off */
        BLOCK(1) BLOCK(2) BLOCK(3) BLOCK(4) BLOCK(5) BLOCK(6)
        /* clang-format on */
    }
}
#undef BLOCK
#undef VECTORS
