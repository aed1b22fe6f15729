/* A matrix times a few vectors, and a vector times a matrix, for one floating-point type of gemm.h: T names it, E is
 * its C type. */
#define F(name) JOIN(JOIN(T, _), name)

/* Up to 4 rows and 4 vectors share their loads. A single vector takes two steps at once, to hide the latency of its
 * sums. */
INLINE void F(dot_rows)(const int rows, const int vectors, int64_t k, const char *a, int64_t a_row, const char *x,
                        int64_t x_row, char *out, int64_t out_row, int64_t out_vector)
{
    enum { LANES = sizeof(F(vec)) / sizeof(E) };
    const int steps = vectors == 1 ? 2 : 1;
    F(vec) sum[4][4];
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors * steps; v++)
            sum[i][v] = (F(vec)){0};
    int64_t p = 0;
    for (; p + steps * LANES <= k; p += steps * LANES)
#pragma GCC unroll 2
        for (int step = 0; step < steps; step++) {
            F(vec) factor[4];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                factor[v] = F(load)((const E *)(x + v * x_row) + p + step * LANES);
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++) {
                const F(vec) row = F(load)((const E *)(a + i * a_row) + p + step * LANES);
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++)
                    sum[i][v + step] = F(add_product)(sum[i][v + step], row, factor[v]);
            }
        }
    for (; p < k; p += LANES) {
        const F(mask) mask = F(first)(k - p < LANES ? (int)(k - p) : LANES);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            const F(vec) factor = F(load_first)((const E *)(x + v * x_row) + p, mask);
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++)
                sum[i][v] = F(add_product)(sum[i][v], F(load_first)((const E *)(a + i * a_row) + p, mask), factor);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            *(F(unaligned) *)(out + i * out_row + v * out_vector) =
                F(total)(steps == 2 ? F(add)(sum[i][0], sum[i][1]) : sum[i][v]);
}

static void F(dots)(int64_t rows, int vectors, int64_t k, const char *a, int64_t a_row, const char *x, int64_t x_row,
                    char *out, int64_t out_row, int64_t out_vector)
{
#define CASE(n) \
    case n: \
        for (; rows >= 4; rows -= 4, a += 4 * a_row, out += 4 * out_row) \
            F(dot_rows)(4, n, k, a, a_row, x, x_row, out, out_row, out_vector); \
        for (; rows > 0; rows--, a += a_row, out += out_row) \
            F(dot_rows)(1, n, k, a, a_row, x, x_row, out, out_row, out_vector); \
        break;
    switch (vectors) {
        /* clang-format off */
        CASE(1) CASE(2) CASE(3) CASE(4)
        /* clang-format on */
    }
#undef CASE
}

/* Adds eight rows of b at a time to the sums, which stay in L1 while `columns` is at most a few thousand. */
INLINE void F(sum_rows)(const int rows, int64_t columns, const char *x, int64_t x_step, const char *b, int64_t b_row,
                        E *out, bool accumulate)
{
    enum { LANES = sizeof(F(vec)) / sizeof(E) };
    F(vec) factor[8];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
        factor[i] = F(splat)(*(const F(unaligned) *)(x + i * x_step));
    for (int64_t j = 0; j < columns; j += LANES) {
        const bool whole = columns - j >= LANES;
        const F(mask) mask = F(first)(whole ? LANES : (int)(columns - j));
        F(vec) even = {0}, odd = {0};
        if (accumulate)
            even = whole ? F(load)(out + j) : F(load_first)(out + j, mask);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const E *row = (const E *)(b + i * b_row) + j;
            const F(vec) values = whole ? F(load)(row) : F(load_first)(row, mask);
            if (i % 2 == 0)
                even = F(add_product)(even, factor[i], values);
            else
                odd = F(add_product)(odd, factor[i], values);
        }
        even = F(add)(even, odd);
        if (whole)
            F(store)(out + j, even);
        else
            F(store_first)(out + j, mask, even);
    }
}

static void F(sums)(int64_t k, int64_t columns, const char *x, int64_t x_step, const char *b, int64_t b_row, char *out,
                    bool accumulate)
{
    for (; k >= 8; k -= 8, x += 8 * x_step, b += 8 * b_row, accumulate = true)
        F(sum_rows)(8, columns, x, x_step, b, b_row, (E *)out, accumulate);
    for (; k > 0; k--, x += x_step, b += b_row, accumulate = true)
        F(sum_rows)(1, columns, x, x_step, b, b_row, (E *)out, accumulate);
}
#undef F
