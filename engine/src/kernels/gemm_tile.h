/* The tile of gemm.h for one element type: T names it (f32), E is its C type, ROWS its most rows. Every number of rows has code
 * of its own, with its sums in registers. */
#define F(name) JOIN(JOIN(T, _), name)
typedef E F(loose) __attribute__((aligned(1), may_alias));

INLINE void F(block)(const vme_gemm_tile *tile, const int rows, const int vectors, const bool whole)
{
    enum { LANES = sizeof(F(vec)) / sizeof(E) };
    F(vec) sum[ROWS][2];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            sum[i][v] = (F(vec)){0};
    const F(mask) some = F(first)(tile->columns - (vectors - 1) * LANES);
    const char *a = tile->a, *b = tile->b;
    const int64_t a_column = tile->a_column, b_row = tile->b_row, ahead = tile->ahead;
    /* Two moving pointers and six steps reach 14 rows. The compiler is kept from making a moving pointer of each row: it has
     * too few registers for that. */
    int64_t step1 = tile->a_row, step2 = 2 * step1, step3 = 3 * step1, step4 = 4 * step1, step5 = 5 * step1, step6 = 6 * step1;
    __asm__("" : "+r"(step1), "+r"(step2), "+r"(step3), "+r"(step4), "+r"(step5), "+r"(step6));
    const char *seventh = a + 7 * tile->a_row;
#define ROW(i) ((i < 7 ? a : seventh) + (i % 7 == 0 ? 0 : i % 7 == 1 ? step1 : i % 7 == 2 ? step2 : i % 7 == 3 ? step3 \
                                         : i % 7 == 4 ? step4 : i % 7 == 5 ? step5 : step6))
    char *c = tile->c;
    if (tile->far)              /* on its way while the sums are made */
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                __builtin_prefetch(c + i * tile->c_row + v * (int)sizeof(F(vec)), 1);
    for (int64_t p = tile->k; p > 0; p--) {
        F(vec) columns[2];
        if (vectors == 2)
            columns[0] = F(load)((const E *)b);
        columns[vectors - 1] = whole ? F(load)((const E *)b + (vectors - 1) * LANES)
                                     : F(load_first)((const E *)b + (vectors - 1) * LANES, some);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            const F(vec) factor = F(all)(*(const F(loose) *)ROW(i));
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                sum[i][v] = F(add_product)(sum[i][v], factor, columns[v]);
        }
        __builtin_prefetch(b + ahead);
        if (vectors == 2)
            __builtin_prefetch(b + ahead + sizeof(F(vec)));
        a += a_column;
        if (rows > 7)
            seventh += a_column;
        b += b_row;
    }
#undef ROW
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        E *row = (E *)c, *last = row + (vectors - 1) * LANES;
        if (tile->accumulate) {
            if (vectors == 2)
                sum[i][0] = F(add)(F(load)(row), sum[i][0]);
            sum[i][vectors - 1] = F(add)(whole ? F(load)(last) : F(load_first)(last, some), sum[i][vectors - 1]);
        }
        if (vectors == 2)
            F(store)(row, sum[i][0]);
        if (whole)
            F(store)(last, sum[i][vectors - 1]);
        else
            F(store_first)(last, some, sum[i][vectors - 1]);
        c += tile->c_row;
    }
}

static void F(tile)(const vme_gemm_tile *tile)
{
    enum { LANES = sizeof(F(vec)) / sizeof(E) };
#define CASE(n) \
    case n: \
        if (n > ROWS) \
            __builtin_unreachable(); \
        if (tile->columns == 2 * LANES) \
            F(block)(tile, n > ROWS ? 1 : n, 2, true); \
        else if (tile->columns > LANES) \
            F(block)(tile, n > ROWS ? 1 : n, 2, false); \
        else \
            F(block)(tile, n > ROWS ? 1 : n, 1, false); \
        break;
    switch (tile->rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
    }
#undef CASE
}
#undef F
