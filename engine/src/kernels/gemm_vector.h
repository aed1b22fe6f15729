/* Matrix times vector for one floating element type of gemm.h: T names it, E is its C type. */
#define F(name) JOIN(JOIN(T, _), name)

/* Four rows at a time share the loads of x; sums of 4 vectors a row hide the latency of the additions. */
INLINE void F(dot_rows)(const int rows, int64_t k, const char *a, int64_t a_row, const E *x, char *out, int64_t out_step)
{
    enum { LANES = sizeof(F(vec)) / sizeof(E), WAYS = 2 };
    F(vec) sum[4][WAYS];
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int w = 0; w < WAYS; w++)
            sum[i][w] = (F(vec)){0};
    int64_t p = 0;
    for (; p + WAYS * LANES <= k; p += WAYS * LANES) {
#pragma GCC unroll 4
        for (int w = 0; w < WAYS; w++) {
            const F(vec) factor = F(load)(x + p + w * LANES);
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++)
                sum[i][w] = F(add_product)(sum[i][w], factor, F(load)((const E *)(a + i * a_row) + p + w * LANES));
        }
    }
    for (; p < k; p += LANES) {
        const F(mask) some = F(first)(k - p < LANES ? (int)(k - p) : LANES);
        const F(vec) factor = F(load_first)(x + p, some);
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++)
            sum[i][0] = F(add_product)(sum[i][0], factor, F(load_first)((const E *)(a + i * a_row) + p, some));
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
        *(F(loose) *)(out + i * out_step) = F(total)(F(add)(sum[i][0], sum[i][1]));
}

static void F(dots)(int64_t rows, int64_t k, const char *a, int64_t a_row, const char *x, char *out, int64_t out_step)
{
    for (; rows >= 4; rows -= 4, a += 4 * a_row, out += 4 * out_step)
        F(dot_rows)(4, k, a, a_row, (const E *)x, out, out_step);
    for (; rows > 0; rows--, a += a_row, out += out_step)
        F(dot_rows)(1, k, a, a_row, (const E *)x, out, out_step);
}

/* Eight rows of b at a time go into the sums, which stay in the nearest cache while `columns` is a few thousand. */
INLINE void F(sum_rows)(const int rows, int64_t columns, const char *x, int64_t x_step, const char *b, int64_t b_row, E *out,
                        bool accumulate)
{
    enum { LANES = sizeof(F(vec)) / sizeof(E) };
    F(vec) factor[8];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
        factor[i] = F(all)(*(const F(loose) *)(x + i * x_step));
    for (int64_t j = 0; j < columns; j += LANES) {
        const bool whole = columns - j >= LANES;
        const F(mask) some = F(first)(whole ? LANES : (int)(columns - j));
        F(vec) even = {0}, odd = {0};
        if (accumulate)
            even = whole ? F(load)(out + j) : F(load_first)(out + j, some);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const E *row = (const E *)(b + i * b_row) + j;
            const F(vec) values = whole ? F(load)(row) : F(load_first)(row, some);
            if (i % 2 == 0)
                even = F(add_product)(even, factor[i], values);
            else
                odd = F(add_product)(odd, factor[i], values);
        }
        even = F(add)(even, odd);
        if (whole)
            F(store)(out + j, even);
        else
            F(store_first)(out + j, some, even);
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
