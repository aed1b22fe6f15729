/* The tile of gemm.h for one element type: T names it (f32), E is its C type, ROWS its most rows. Every number of rows has code
 * of its own, with its sums in registers. */
#define F(name) JOIN(JOIN(T, _), name)
typedef E F(loose) __attribute__((aligned(1), may_alias));

/* One step along k of sums that lie in registers; row(i) is where row i's element of a lies. Packed rows have constant distances,
 * so that an instruction can read its factor itself: some do, as many as there are loads to spare. That leaves fewer instructions to
 * issue, which is what two threads on one core share. */
#define STEP(row, b, from_memory) \
    do { \
        F(vec) columns[2]; \
        if (vectors == 2) \
            columns[0] = F(load)((const E *)(b)); \
        columns[vectors - 1] = whole ? F(load)((const E *)(b) + (vectors - 1) * LANES) \
                                     : F(load_first)((const E *)(b) + (vectors - 1) * LANES, some); \
        _Pragma("GCC unroll 16") \
        for (int i = 0; i < rows; i++) { \
            const F(loose) *const element = (const F(loose) *)(row); \
            if (from_memory) { \
                _Pragma("GCC unroll 2") \
                for (int v = 0; v < vectors; v++) \
                    sum[i][v] = F(add_product_from)(sum[i][v], element, columns[v]); \
                continue; \
            } \
            const F(vec) factor = F(all)(*element); \
            _Pragma("GCC unroll 2") \
            for (int v = 0; v < vectors; v++) \
                sum[i][v] = F(add_product)(sum[i][v], factor, columns[v]); \
        } \
    } while (0)

#define FETCH(b) \
    do { \
        __builtin_prefetch(b); \
        if (vectors == 2) \
            __builtin_prefetch((b) + sizeof(F(vec))); \
    } while (0)

INLINE void F(block)(const vme_gemm_tile *tile, const int rows, const int vectors, const bool whole, const bool packed)
{
    enum { LANES = sizeof(F(vec)) / sizeof(E), STEP_BYTES = VME_PACKED_ROWS(ROWS) * sizeof(E) };
    F(vec) sum[ROWS][2];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            sum[i][v] = (F(vec)){0};
    const F(mask) some = F(first)(tile->columns - (vectors - 1) * LANES);
    const char *a = tile->a, *b = tile->b;
    const int64_t b_row = tile->b_row, ahead = tile->ahead, coming_step = tile->coming_step;
    const char *coming = tile->coming;
    char *c = tile->c;
    int64_t p = tile->k;
    /* c is on its way while the sums are made: a row every two steps, lest b wait behind it, where there are that many */
    const bool full = rows + 3 >= ROWS, slowly = packed && full && p >= 4 * ROWS;
    if (tile->far && !slowly)
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                __builtin_prefetch(c + i * tile->c_row + v * (int)sizeof(F(vec)), 1);
    if (packed) {
        enum { AHEAD = 8 * STEP_BYTES };
#define TWO_STEPS \
        STEP(a + i * (int)sizeof(E), b, F(from_memory)(i)); \
        FETCH(b + ahead); \
        __builtin_prefetch(a + AHEAD); \
        STEP(a + STEP_BYTES + i * (int)sizeof(E), b + b_row, F(from_memory)(i)); \
        FETCH(b + b_row + ahead); \
        if (STEP_BYTES >= 64) \
            __builtin_prefetch(a + AHEAD + STEP_BYTES); \
        p -= 2; \
        a += 2 * STEP_BYTES; \
        b += 2 * b_row
        if (slowly) {
            const char *row = c;
#pragma GCC unroll 1
            for (int fetched = 0; fetched < rows; fetched++, row += tile->c_row) {
                __builtin_prefetch(row, 1);
                if (vectors == 2)
                    __builtin_prefetch(row + sizeof(F(vec)), 1);
                TWO_STEPS;
            }
        }
        while (full && p >= 2) {
            TWO_STEPS;
        }
#undef TWO_STEPS
        for (; p > 0; p--, a += STEP_BYTES, b += b_row) {
            STEP(a + i * (int)sizeof(E), b, F(from_memory)(i));
            FETCH(b + ahead);
        }
    }
    else {
        /* Two moving pointers and six steps reach 14 rows. The compiler is kept from making a moving pointer of each row: it has
         * too few registers for that. */
        const int64_t a_column = tile->a_column;
        int64_t step1 = tile->a_row, step2 = 2 * step1, step3 = 3 * step1, step4 = 4 * step1, step5 = 5 * step1, step6 = 6 * step1;
        __asm__("" : "+r"(step1), "+r"(step2), "+r"(step3), "+r"(step4), "+r"(step5), "+r"(step6));
        const char *seventh = a + 7 * tile->a_row;
        for (; p > 0; p--) {
            STEP((i < 7 ? a : seventh) + (i % 7 == 0 ? 0 : i % 7 == 1 ? step1 : i % 7 == 2 ? step2 : i % 7 == 3 ? step3
                                          : i % 7 == 4 ? step4 : i % 7 == 5 ? step5 : step6), b, false);
            FETCH(b + ahead);
            __builtin_prefetch(coming, 0, 2);
            coming += coming_step;
            a += a_column;
            if (rows > 7)
                seventh += a_column;
            b += b_row;
        }
    }
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
#undef STEP
#undef FETCH

#if PACKED
/* Four slivers at once: of a row's part that lies together few lines are read, and few places are written in turn. */
static void F(pack_b)(int64_t k, int64_t count, const char *b, int64_t b_row, char *out, int64_t out_sliver)
{
    enum { LANES = sizeof(F(vec)) / sizeof(E), WIDTH = 2 * sizeof(F(vec)), GROUP = 4 };
    for (; count > 0; count -= GROUP, b += GROUP * WIDTH, out += GROUP * out_sliver) {
        const int64_t slivers = count < GROUP ? count : GROUP;
        const char *in = b;
        char *to = out;
        for (int64_t p = 0; p < k; p++, in += b_row, to += WIDTH)
            for (int64_t s = 0; s < slivers; s++) {
                __builtin_prefetch(in + 8 * b_row + s * WIDTH);
                const F(vec) left = F(load)((const E *)(in + s * WIDTH)), right = F(load)((const E *)(in + s * WIDTH) + LANES);
                F(store)((E *)(to + s * out_sliver), left);
                F(store)((E *)(to + s * out_sliver) + LANES, right);
            }
    }
}
#endif

static void F(tile)(const vme_gemm_tile *tile)
{
    enum { LANES = sizeof(F(vec)) / sizeof(E) };
#define CASE(n, packed) \
    case n: \
        if (n > ROWS) \
            __builtin_unreachable(); \
        if (tile->columns == 2 * LANES) \
            F(block)(tile, n > ROWS ? 1 : n, 2, true, packed); \
        else if (tile->columns > LANES) \
            F(block)(tile, n > ROWS ? 1 : n, 2, false, packed); \
        else \
            F(block)(tile, n > ROWS ? 1 : n, 1, false, packed); \
        break;
#define EACH(packed) \
    switch (tile->rows) { \
        CASE(1, packed) CASE(2, packed) CASE(3, packed) CASE(4, packed) CASE(5, packed) CASE(6, packed) CASE(7, packed) \
        CASE(8, packed) CASE(9, packed) CASE(10, packed) CASE(11, packed) CASE(12, packed) CASE(13, packed) CASE(14, packed) \
    }
#if PACKED
    if (tile->a_row == sizeof(E) && tile->a_column == VME_PACKED_ROWS(ROWS) * sizeof(E)) {
        EACH(true)
        return;
    }
#endif
    EACH(false)
#undef EACH
#undef CASE
}
#undef F
