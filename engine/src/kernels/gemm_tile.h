/* The tile of gemm.h for one element type: T names it (f32), E is its C type, ROWS its most rows. Every number of rows
 * has code of its own, with its sums in registers. PACKED: tiles of packed rows have, too; LAYERS: and those of models'
 * layers. */
#define F(name) JOIN(JOIN(T, _), name)
typedef E F(loose) __attribute__((aligned(1), may_alias));

/* One step along k of sums that lie in registers; row(i) is where row i's element of a lies. Packed rows have constant
 * distances, so that an instruction can read its factor itself: some do, as many as there are loads to spare. That
 * leaves fewer instructions to issue, which is what two threads on one core share. */
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

#define FETCH_OUTPUT(row) \
    do { \
        __builtin_prefetch(row, 1); \
        if (vectors == 2) \
            __builtin_prefetch((row) + sizeof(F(vec)), 1); \
    } while (0)
/* Row i's sums and those that lie at `row`, and back there. */
#define PLUS(i, row) \
    do { \
        const E *const from = (const E *)(row); \
        if (vectors == 2) \
            sum[i][0] = F(add)(F(load)(from), sum[i][0]); \
        sum[i][vectors - 1] = \
            F(add)(whole ? F(load)(from + (vectors - 1) * LANES) : F(load_first)(from + (vectors - 1) * LANES, some), \
                   sum[i][vectors - 1]); \
    } while (0)
#define PUT(i, row) \
    do { \
        E *const to = (E *)(row); \
        if (vectors == 2) \
            F(store)(to, sum[i][0]); \
        if (whole) \
            F(store)(to + (vectors - 1) * LANES, sum[i][vectors - 1]); \
        else \
            F(store_first)(to + (vectors - 1) * LANES, some, sum[i][vectors - 1]); \
    } while (0)

#ifndef GEMM_WAYS
#define GEMM_WAYS
typedef enum gemm_way { SPREAD_ROWS, PACKED_ROWS, LAYER } gemm_way;
#endif

INLINE void F(block)(const vme_gemm_tile *tile, const vme_gemm_layer *layer, const int rows, const int vectors,
                     const bool whole, const gemm_way way)
{
    enum { LANES = sizeof(F(vec)) / sizeof(E), STEP_BYTES = VME_PACKED_ROWS(ROWS) * sizeof(E) };
    F(vec) sum[ROWS][2], start[2] = {{0}};
#if LAYERS
    const bool from_bias =
        way == LAYER && layer->bias != NULL && !tile->accumulate && !layer->apart; /* saves adding it */
    if (from_bias)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            start[v] = F(load)(layer->bias + v * LANES);
#endif
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            sum[i][v] = start[v];
    const F(mask) some = F(first)(tile->columns - (vectors - 1) * LANES);
    const char *a = tile->a, *b = tile->b;
    /* what is known of layers leaves registers to the pointers */
    const int64_t b_row = way == LAYER ? 2 * (int64_t)sizeof(F(vec)) : tile->b_row,
                  ahead = way == LAYER ? 8 * b_row : tile->ahead;
    char *c = tile->c;
    bool accumulate = tile->accumulate;
    int64_t p = tile->k;
    /* c is on its way while the sums are made: a row every two steps, lest b wait behind it, where there are that many
     */
    const bool full = rows + 3 >= ROWS, slowly = (way == LAYER || (way == PACKED_ROWS && full)) && p >= 4 * ROWS;
    if (tile->far && !slowly)
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                __builtin_prefetch(c + i * tile->c_row + v * (int)sizeof(F(vec)), 1);
    if (way == PACKED_ROWS) {
        enum { AHEAD = 8 * STEP_BYTES };
#define PACKED_STEPS \
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
                FETCH_OUTPUT(row);
                PACKED_STEPS;
            }
        }
        while (full && p >= 2) {
            PACKED_STEPS;
        }
#undef PACKED_STEPS
        for (; p > 0; p--, a += STEP_BYTES, b += b_row) {
            STEP(a + i * (int)sizeof(E), b, F(from_memory)(i));
            FETCH(b + ahead);
        }
    } else {
        /* Two moving pointers and three steps, which addresses can take once, twice or four times, reach 14 rows. The
         * compiler is kept from making a moving pointer of each row: it has too few registers for that. What has no
         * register is better read from the stack (volatile) than brought back from a vector register, which takes the
         * place of a sum's product. */
        const int64_t a_column = way == LAYER ? (int64_t)sizeof(E) : tile->a_column;
        int64_t step1 = tile->a_row, step3 = 3 * step1, step5 = 5 * step1;
        __asm__("" : "+r"(step1), "+r"(step3), "+r"(step5));
        const char *seventh = a + 7 * tile->a_row, *coming = way == LAYER ? layer->coming : NULL;
        const volatile int64_t coming_step = way == LAYER ? layer->coming_step : 0;
        int64_t runs = way == LAYER ? layer->runs : 1;
        bool fetching = way == LAYER && slowly && tile->far;
#define ROW \
    ((i < 7 ? a : seventh) \
     + (i % 7 == 0   ? 0 \
        : i % 7 == 1 ? step1 \
        : i % 7 == 2 ? 2 * step1 \
        : i % 7 == 3 ? step3 \
        : i % 7 == 4 ? 4 * step1 \
        : i % 7 == 5 ? step5 \
                     : 2 * step3))
        do {
            /* Two steps move the pointers once: that takes cycles of the ports that multiply, too. */
#define LAYER_STEPS \
    do { \
        _Pragma("GCC unroll 2") \
        for (int s = 0; s < 2; s++) { \
            STEP(ROW + s * a_column, b + s * b_row, false); \
            FETCH(b + s * b_row + ahead); \
            __builtin_prefetch(coming, 0, 2); \
            coming += coming_step; \
        } \
        a += 2 * a_column; \
        if (rows > 7) \
            seventh += 2 * a_column; \
        b += 2 * b_row; \
        p -= 2; \
    } while (0)
            if (way == LAYER && fetching) {
                const char *row = c;
#pragma GCC unroll 1
                for (int fetched = 0; fetched < rows; fetched++, row += tile->c_row) {
                    FETCH_OUTPUT(row);
                    LAYER_STEPS;
                }
                fetching = false;
            }
            while (way == LAYER && p >= 2)
                LAYER_STEPS;
#undef LAYER_STEPS
            for (; p > 0; p--) {
                STEP(ROW, b, false);
                FETCH(b + ahead);
                if (way == LAYER) {
                    __builtin_prefetch(coming, 0, 2);
                    coming += coming_step;
                }
                a += a_column;
                if (rows > 7)
                    seventh += a_column;
                b += b_row;
            }
            if (way == LAYER) {
                p = tile->k;
                a += layer->a_run - p * a_column;
                seventh += layer->a_run - p * a_column;
                if (layer->apart && runs > 1) {
                    char *row = c;
#pragma GCC unroll 16
                    for (int i = 0; i < rows; i++, row += tile->c_row) {
                        if (accumulate)
                            PLUS(i, row);
                        PUT(i, row);
#pragma GCC unroll 2
                        for (int v = 0; v < vectors; v++)
                            sum[i][v] = start[v];
                    }
                    accumulate = true;
                }
            }
        } while (--runs > 0);
#undef ROW
    }
    if (accumulate)
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++)
            PLUS(i, c + i * tile->c_row);
#if LAYERS
    if (way == LAYER && layer->bias != NULL) {
        if (!from_bias)
#pragma GCC unroll 16
            for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
                for (int v = 0; v < vectors; v++)
                    sum[i][v] = F(add)(sum[i][v], F(load)(layer->bias + v * LANES));
        if (layer->addend != NULL)
#pragma GCC unroll 16
            for (int i = 0; i < rows; i++) {
                const E *addend = (const E *)(layer->addend + i * layer->addend_row),
                        *last = addend + (vectors - 1) * LANES;
                if (vectors == 2)
                    sum[i][0] = F(add)(sum[i][0], F(load)(addend));
                sum[i][vectors - 1] = F(add)(sum[i][vectors - 1], whole ? F(load)(last) : F(load_first)(last, some));
            }
        if (layer->bounds.low > -__builtin_inff()) {
            const F(vec) low = F(all)(layer->bounds.low);
#pragma GCC unroll 16
            for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
                for (int v = 0; v < vectors; v++)
                    sum[i][v] = F(max)(sum[i][v], low);
        }
        if (layer->bounds.high < __builtin_inff()) {
            const F(vec) high = F(all)(layer->bounds.high);
#pragma GCC unroll 16
            for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
                for (int v = 0; v < vectors; v++)
                    sum[i][v] = F(min)(sum[i][v], high);
        }
    }
#endif
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++, c += tile->c_row)
        PUT(i, c);
}
#undef STEP
#undef FETCH
#undef FETCH_OUTPUT
#undef PLUS
#undef PUT

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
                const F(vec) left = F(load)((const E *)(in + s * WIDTH)),
                             right = F(load)((const E *)(in + s * WIDTH) + LANES);
                F(store)((E *)(to + s * out_sliver), left);
                F(store)((E *)(to + s * out_sliver) + LANES, right);
            }
    }
}
#endif

#define CASE(n) \
    case n: \
        if (n > ROWS) \
            __builtin_unreachable(); \
        if (tile->columns == 2 * LANES) \
            F(block)(tile, layer, n > ROWS ? 1 : n, 2, true, way); \
        else if (tile->columns > LANES) \
            F(block)(tile, layer, n > ROWS ? 1 : n, 2, false, way); \
        else \
            F(block)(tile, layer, n > ROWS ? 1 : n, 1, false, way); \
        break;
INLINE void F(any_block)(const vme_gemm_tile *tile, const vme_gemm_layer *layer, const gemm_way way)
{
    enum { LANES = sizeof(F(vec)) / sizeof(E) };
    switch (tile->rows) {
        /* clang-format off */
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7)
        CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
        /* clang-format on */
    }
}
#undef CASE

static void F(tile)(const vme_gemm_tile *tile)
{
#if PACKED
    if (tile->a_row == sizeof(E) && tile->a_column == VME_PACKED_ROWS(ROWS) * sizeof(E)) {
        F(any_block)(tile, NULL, PACKED_ROWS);
        return;
    }
#endif
    F(any_block)(tile, NULL, SPREAD_ROWS);
}

#if LAYERS
static void F(layer_tile)(const vme_gemm_tile *tile, const vme_gemm_layer *layer) { F(any_block)(tile, layer, LAYER); }
#endif
#undef F
