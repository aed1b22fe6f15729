/* The tile of gemm.h for one element type: T names it (f32), E is its C type, ROWS its maximum rows. There are three
 * kernels, each with separate code for every number of rows and vectors, so that sums stay in registers: for packed
 * rows (if PACKED), for strided rows, and for models' layers (if LAYERS). */
#define F(name) JOIN(JOIN(T, _), name)
typedef E F(unaligned) __attribute__((aligned(1), may_alias));

/* ---- parts of the kernels. The numbers of rows and vectors (1 or 2 in a row) and `whole` are constants in the caller,
 * so loops unroll and `sum` stays in registers. The last vector has all columns, or, if `whole` is false, only the
 * columns in `mask`. */

/* The last vector of a row. */
INLINE F(vec) F(load_last)(const E *from, const bool whole, const F(mask) mask)
{
    return whole ? F(load)(from) : F(load_first)(from, mask);
}

INLINE void F(start_sums)(F(vec) (*sum)[2], const F(vec) * start, const int rows, const int vectors)
{
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            sum[i][v] = start[v];
}

/* Adds the elements at `row` to a row's sums. */
INLINE void F(add_row)(F(vec) * sum, const char *row, const int vectors, const bool whole, const F(mask) mask)
{
    enum { LANES = sizeof(F(vec)) / sizeof(E) };
    const E *const from = (const E *)row;
    if (vectors == 2)
        sum[0] = F(add)(F(load)(from), sum[0]);
    sum[vectors - 1] = F(add)(F(load_last)(from + (vectors - 1) * LANES, whole, mask), sum[vectors - 1]);
}

INLINE void F(store_row)(const F(vec) * sum, char *row, const int vectors, const bool whole, const F(mask) mask)
{
    enum { LANES = sizeof(F(vec)) / sizeof(E) };
    E *const to = (E *)row;
    if (vectors == 2)
        F(store)(to, sum[0]);
    if (whole)
        F(store)(to + (vectors - 1) * LANES, sum[vectors - 1]);
    else
        F(store_first)(to + (vectors - 1) * LANES, mask, sum[vectors - 1]);
}

INLINE void F(prefetch)(const char *b, const int vectors)
{
    __builtin_prefetch(b);
    if (vectors == 2)
        __builtin_prefetch(b + sizeof(F(vec)));
}

INLINE void F(prefetch_output)(const char *row, const int vectors)
{
    __builtin_prefetch(row, 1);
    if (vectors == 2)
        __builtin_prefetch(row + sizeof(F(vec)), 1);
}

/* All rows of c at once. */
INLINE void F(prefetch_outputs)(const vme_gemm_tile *tile, const int rows, const int vectors)
{
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            __builtin_prefetch(tile->c + i * tile->c_row + v * (int)sizeof(F(vec)), 1);
}

/* Adds the values of c if the tile accumulates. */
INLINE void F(add_output)(F(vec) (*sum)[2], const vme_gemm_tile *tile, const bool accumulate, const int rows,
                          const int vectors, const bool whole, const F(mask) mask)
{
    if (accumulate)
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++)
            F(add_row)(sum[i], tile->c + i * tile->c_row, vectors, whole, mask);
}

INLINE void F(store_output)(F(vec) (*sum)[2], const vme_gemm_tile *tile, const int rows, const int vectors,
                            const bool whole, const F(mask) mask)
{
    char *c = tile->c;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++, c += tile->c_row)
        F(store_row)(sum[i], c, vectors, whole, mask);
}

/* The two vectors of b of one step along k. */
INLINE void F(load_columns)(F(vec) columns[2], const char *b, const int vectors, const bool whole, const F(mask) mask)
{
    enum { LANES = sizeof(F(vec)) / sizeof(E) };
    if (vectors == 2)
        columns[0] = F(load)((const E *)b);
    columns[vectors - 1] = F(load_last)((const E *)b + (vectors - 1) * LANES, whole, mask);
}

INLINE void F(add_products)(F(vec) * sum, const F(vec) factor, const F(vec) columns[2], const int vectors)
{
#pragma GCC unroll 2
    for (int v = 0; v < vectors; v++)
        sum[v] = F(add_product)(sum[v], factor, columns[v]);
}

/* ---- the kernel of packed rows */
#if PACKED
/* One step along k. Packed rows have constant distances, so a multiplication can read its factor from memory. As many
 * do as there are load slots to spare: fewer instructions are left to issue, and two threads on one core share the
 * issue slots. */
INLINE void F(packed_step)(F(vec) (*sum)[2], const char *a, const char *b, const int rows, const int vectors,
                           const bool whole, const F(mask) mask)
{
    F(vec) columns[2];
    F(load_columns)(columns, b, vectors, whole, mask);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        const F(unaligned) *const element = (const F(unaligned) *)(a + i * (int)sizeof(E));
        if (F(from_memory)(i)) {
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                sum[i][v] = F(add_product_from)(sum[i][v], element, columns[v]);
            continue;
        }
        F(add_products)(sum[i], F(splat)(*element), columns, vectors);
    }
}

/* Two steps; prefetches what is read 8 steps later. */
INLINE void F(packed_steps)(F(vec) (*sum)[2], const char *a, const char *b, int64_t b_row, int64_t ahead,
                            const int rows, const int vectors, const bool whole, const F(mask) mask)
{
    enum { STEP_BYTES = VME_PACKED_ROWS(ROWS) * sizeof(E), AHEAD = 8 * STEP_BYTES };
    F(packed_step)(sum, a, b, rows, vectors, whole, mask);
    F(prefetch)(b + ahead, vectors);
    __builtin_prefetch(a + AHEAD);
    F(packed_step)(sum, a + STEP_BYTES, b + b_row, rows, vectors, whole, mask);
    F(prefetch)(b + b_row + ahead, vectors);
    if (STEP_BYTES >= 64)
        __builtin_prefetch(a + AHEAD + STEP_BYTES);
}

INLINE void F(packed_block)(const vme_gemm_tile *tile, const int rows, const int vectors, const bool whole)
{
    enum { LANES = sizeof(F(vec)) / sizeof(E), STEP_BYTES = VME_PACKED_ROWS(ROWS) * sizeof(E) };
    F(vec) sum[ROWS][2];
    const F(vec) zero[2] = {{0}};
    F(start_sums)(sum, zero, rows, vectors);
    const F(mask) mask = F(first)(tile->columns - (vectors - 1) * LANES);
    const char *a = tile->a, *b = tile->b;
    const int64_t b_row = tile->b_row, ahead = tile->ahead;
    int64_t p = tile->k;
    /* prefetches c while sums are computed: one row every two steps, if there are enough steps, so that loads of b are
     * not delayed */
    const bool tall = rows + 3 >= ROWS, gradual = tall && p >= 4 * ROWS;
    if (tile->far && !gradual)
        F(prefetch_outputs)(tile, rows, vectors);
    if (gradual) {
        const char *row = tile->c;
#pragma GCC unroll 1
        for (int prefetched = 0; prefetched < rows; prefetched++, row += tile->c_row) {
            F(prefetch_output)(row, vectors);
            F(packed_steps)(sum, a, b, b_row, ahead, rows, vectors, whole, mask);
            p -= 2;
            a += 2 * STEP_BYTES;
            b += 2 * b_row;
        }
    }
    /* takes two steps at once, unless the mask of a two-vector tile occupies the register that the second step needs */
    const bool paired = tall && (whole || vectors == 1 || sizeof(F(mask)) < sizeof(F(vec)));
    while (paired && p >= 2) {
        F(packed_steps)(sum, a, b, b_row, ahead, rows, vectors, whole, mask);
        p -= 2;
        a += 2 * STEP_BYTES;
        b += 2 * b_row;
    }
    for (; p > 0; p--, a += STEP_BYTES, b += b_row) {
        F(packed_step)(sum, a, b, rows, vectors, whole, mask);
        F(prefetch)(b + ahead, vectors);
    }
    F(add_output)(sum, tile, tile->accumulate, rows, vectors, whole, mask);
    F(store_output)(sum, tile, rows, vectors, whole, mask);
}
#endif

/* ---- the kernel of strided rows: the distance between rows of a is arbitrary */
/* Addresses of 14 rows: two moving pointers, to rows 0 and 7, and three steps, which addressing modes scale by one, two
 * or four. The compiler must not keep a pointer for each row: there are too few registers. */
typedef struct F(row_pointers) {
    const char *row0, *row7;
    int64_t step1, step3, step5;
} F(row_pointers);

INLINE F(row_pointers) F(row_pointers_of)(const vme_gemm_tile *tile)
{
    int64_t step1 = tile->a_row, step3 = 3 * step1, step5 = 5 * step1;
    __asm__("" : "+r"(step1), "+r"(step3), "+r"(step5));
    return (F(row_pointers)){tile->a, tile->a + 7 * tile->a_row, step1, step3, step5};
}

INLINE const char *F(row_at)(const F(row_pointers) * a, const int i)
{
    return (i < 7 ? a->row0 : a->row7)
           + (i % 7 == 0   ? 0
              : i % 7 == 1 ? a->step1
              : i % 7 == 2 ? 2 * a->step1
              : i % 7 == 3 ? a->step3
              : i % 7 == 4 ? 4 * a->step1
              : i % 7 == 5 ? a->step5
                           : 2 * a->step3);
}

INLINE void F(move_row_pointers)(F(row_pointers) * a, const int rows, int64_t bytes)
{
    a->row0 += bytes;
    if (rows > 7)
        a->row7 += bytes;
}

/* One step along k, `offset` bytes further in a. The products are inline here: only then does gcc 12 keep the sums of
 * 14 rows in registers (AVX-512). */
INLINE void F(strided_step)(F(vec) (*sum)[2], const F(row_pointers) * a, int64_t offset, const char *b, const int rows,
                            const int vectors, const bool whole, const F(mask) mask)
{
    F(vec) columns[2];
    F(load_columns)(columns, b, vectors, whole, mask);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        const F(vec) factor = F(splat)(*(const F(unaligned) *)(F(row_at)(a, i) + offset));
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            sum[i][v] = F(add_product)(sum[i][v], factor, columns[v]);
    }
}

INLINE void F(strided_block)(const vme_gemm_tile *tile, const int rows, const int vectors, const bool whole)
{
    enum { LANES = sizeof(F(vec)) / sizeof(E) };
    F(vec) sum[ROWS][2];
    const F(vec) zero[2] = {{0}};
    F(start_sums)(sum, zero, rows, vectors);
    const F(mask) mask = F(first)(tile->columns - (vectors - 1) * LANES);
    const char *b = tile->b;
    const int64_t a_column = tile->a_column, b_row = tile->b_row, ahead = tile->ahead;
    if (tile->far)
        F(prefetch_outputs)(tile, rows, vectors);
    F(row_pointers) a = F(row_pointers_of)(tile);
    for (int64_t p = tile->k; p > 0; p--) {
        F(strided_step)(sum, &a, 0, b, rows, vectors, whole, mask);
        F(prefetch)(b + ahead, vectors);
        F(move_row_pointers)(&a, rows, a_column);
        b += b_row;
    }
    F(add_output)(sum, tile, tile->accumulate, rows, vectors, whole, mask);
    F(store_output)(sum, tile, rows, vectors, whole, mask);
}

/* ---- the kernel of models' layers: runs of k, with strided rows; then bias, addend and bounds */
#if LAYERS
/* Adds bias and addend to the sums of a layer with a bias, and applies the bounds. */
INLINE void F(finish_layer)(F(vec) (*sum)[2], const vme_gemm_layer *layer, const bool from_bias, const int rows,
                            const int vectors, const bool whole, const F(mask) mask)
{
    enum { LANES = sizeof(F(vec)) / sizeof(E) };
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
            sum[i][vectors - 1] = F(add)(sum[i][vectors - 1], F(load_last)(last, whole, mask));
        }
    if (layer->bounds.low > -__builtin_inff()) {
        const F(vec) low = F(splat)(layer->bounds.low);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                sum[i][v] = F(max)(sum[i][v], low);
    }
    if (layer->bounds.high < __builtin_inff()) {
        const F(vec) high = F(splat)(layer->bounds.high);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                sum[i][v] = F(min)(sum[i][v], high);
    }
}

/* Two steps that move the pointers once, because moving them uses the multiplications' ports. */
INLINE void F(layer_steps)(F(vec) (*sum)[2], F(row_pointers) * a, const char **b, const char **coming,
                           const volatile int64_t *coming_step, const int rows, const int vectors, const bool whole,
                           const F(mask) mask)
{
    enum { B_ROW = 2 * sizeof(F(vec)), AHEAD = 8 * B_ROW };
#pragma GCC unroll 2
    for (int s = 0; s < 2; s++) {
        F(strided_step)(sum, a, s * (int64_t)sizeof(E), *b + s * (int64_t)B_ROW, rows, vectors, whole, mask);
        F(prefetch)(*b + s * (int64_t)B_ROW + (int64_t)AHEAD, vectors);
        __builtin_prefetch(*coming, 0, 2);
        *coming += *coming_step;
    }
    F(move_row_pointers)(a, rows, 2 * (int64_t)sizeof(E));
    *b += 2 * (int64_t)B_ROW;
}

INLINE void F(layer_block)(const vme_gemm_tile *tile, const vme_gemm_layer *layer, const int rows, const int vectors,
                           const bool whole)
{
    /* these are constants for layers, which leaves registers for the pointers */
    enum { LANES = sizeof(F(vec)) / sizeof(E), B_ROW = 2 * sizeof(F(vec)), AHEAD = 8 * B_ROW };
    F(vec) sum[ROWS][2], start[2] = {{0}};
    const bool from_bias = layer->bias != NULL && !tile->accumulate && !layer->apart; /* saves an addition */
    if (from_bias)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            start[v] = F(load)(layer->bias + v * LANES);
    F(start_sums)(sum, start, rows, vectors);
    const F(mask) mask = F(first)(tile->columns - (vectors - 1) * LANES);
    const char *b = tile->b;
    bool accumulate = tile->accumulate;
    int64_t p = tile->k;
    /* prefetches c while sums are computed, as in the kernel of packed rows */
    const bool gradual = p >= 4 * ROWS;
    if (tile->far && !gradual)
        F(prefetch_outputs)(tile, rows, vectors);
    F(row_pointers) a = F(row_pointers_of)(tile);
    /* coming_step has no register left and is volatile, so that it is read from the stack: the compiler would keep it
     * in a vector register, and moving it back takes an issue slot of the multiplications. */
    const char *coming = layer->coming;
    const volatile int64_t coming_step = layer->coming_step;
    int64_t runs = layer->runs;
    bool prefetching = gradual && tile->far;
    do {
        if (prefetching) {
            const char *row = tile->c;
#pragma GCC unroll 1
            for (int prefetched = 0; prefetched < rows; prefetched++, row += tile->c_row) {
                F(prefetch_output)(row, vectors);
                F(layer_steps)(sum, &a, &b, &coming, &coming_step, rows, vectors, whole, mask);
                p -= 2;
            }
            prefetching = false;
        }
        while (p >= 2) {
            F(layer_steps)(sum, &a, &b, &coming, &coming_step, rows, vectors, whole, mask);
            p -= 2;
        }
        for (; p > 0; p--) {
            F(strided_step)(sum, &a, 0, b, rows, vectors, whole, mask);
            F(prefetch)(b + (int64_t)AHEAD, vectors);
            __builtin_prefetch(coming, 0, 2);
            coming += coming_step;
            F(move_row_pointers)(&a, rows, sizeof(E));
            b += (int64_t)B_ROW;
        }
        p = tile->k;
        a.row0 += layer->a_run - p * (int64_t)sizeof(E);
        a.row7 += layer->a_run - p * (int64_t)sizeof(E);
        if (layer->apart && runs > 1) {
            char *row = tile->c;
#pragma GCC unroll 16
            for (int i = 0; i < rows; i++, row += tile->c_row) {
                if (accumulate)
                    F(add_row)(sum[i], row, vectors, whole, mask);
                F(store_row)(sum[i], row, vectors, whole, mask);
#pragma GCC unroll 2
                for (int v = 0; v < vectors; v++)
                    sum[i][v] = start[v];
            }
            accumulate = true;
        }
    } while (--runs > 0);
    F(add_output)(sum, tile, accumulate, rows, vectors, whole, mask);
    if (layer->bias != NULL)
        F(finish_layer)(sum, layer, from_bias, rows, vectors, whole, mask);
    F(store_output)(sum, tile, rows, vectors, whole, mask);
}
#endif

#if PACKED
/* Packs four slivers at once: a compromise between long reads from a row and few output streams. */
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

/* ---- a kernel for each number of rows, 1 to ROWS, and of vectors, selected by the tile. Each is a function of its
 * own: compiling all as one function takes much longer. */
#define APART __attribute__((noinline, unused))
#define KERNELS(BLOCK, PARAMETERS, n, ...) \
    static APART void F(BLOCK##_##n##_whole) PARAMETERS { F(BLOCK)(__VA_ARGS__, n > ROWS ? 1 : n, 2, true); } \
    static APART void F(BLOCK##_##n##_wide) PARAMETERS { F(BLOCK)(__VA_ARGS__, n > ROWS ? 1 : n, 2, false); } \
    static APART void F(BLOCK##_##n##_narrow) PARAMETERS { F(BLOCK)(__VA_ARGS__, n > ROWS ? 1 : n, 1, false); }
#define CASE(BLOCK, n, ...) \
    case n: \
        if (n > ROWS) \
            __builtin_unreachable(); \
        if (tile->columns == 2 * LANES) \
            F(BLOCK##_##n##_whole)(__VA_ARGS__); \
        else if (tile->columns > LANES) \
            F(BLOCK##_##n##_wide)(__VA_ARGS__); \
        else \
            F(BLOCK##_##n##_narrow)(__VA_ARGS__); \
        break;
/* Defines NAME, which calls BLOCK(..., rows, vectors, whole). */
/* clang-format off */
#define SELECTOR(NAME, BLOCK, PARAMETERS, ...) \
    KERNELS(BLOCK, PARAMETERS, 1, __VA_ARGS__) KERNELS(BLOCK, PARAMETERS, 2, __VA_ARGS__) \
    KERNELS(BLOCK, PARAMETERS, 3, __VA_ARGS__) KERNELS(BLOCK, PARAMETERS, 4, __VA_ARGS__) \
    KERNELS(BLOCK, PARAMETERS, 5, __VA_ARGS__) KERNELS(BLOCK, PARAMETERS, 6, __VA_ARGS__) \
    KERNELS(BLOCK, PARAMETERS, 7, __VA_ARGS__) KERNELS(BLOCK, PARAMETERS, 8, __VA_ARGS__) \
    KERNELS(BLOCK, PARAMETERS, 9, __VA_ARGS__) KERNELS(BLOCK, PARAMETERS, 10, __VA_ARGS__) \
    KERNELS(BLOCK, PARAMETERS, 11, __VA_ARGS__) KERNELS(BLOCK, PARAMETERS, 12, __VA_ARGS__) \
    KERNELS(BLOCK, PARAMETERS, 13, __VA_ARGS__) KERNELS(BLOCK, PARAMETERS, 14, __VA_ARGS__) \
    static void F(NAME) PARAMETERS \
    { \
        enum { LANES = sizeof(F(vec)) / sizeof(E) }; \
        switch (tile->rows) { \
            CASE(BLOCK, 1, __VA_ARGS__) CASE(BLOCK, 2, __VA_ARGS__) CASE(BLOCK, 3, __VA_ARGS__) \
            CASE(BLOCK, 4, __VA_ARGS__) CASE(BLOCK, 5, __VA_ARGS__) CASE(BLOCK, 6, __VA_ARGS__) \
            CASE(BLOCK, 7, __VA_ARGS__) CASE(BLOCK, 8, __VA_ARGS__) CASE(BLOCK, 9, __VA_ARGS__) \
            CASE(BLOCK, 10, __VA_ARGS__) CASE(BLOCK, 11, __VA_ARGS__) CASE(BLOCK, 12, __VA_ARGS__) \
            CASE(BLOCK, 13, __VA_ARGS__) CASE(BLOCK, 14, __VA_ARGS__) \
        } \
    }
#if PACKED
SELECTOR(packed_tile, packed_block, (const vme_gemm_tile *tile), tile)
#endif
SELECTOR(strided_tile, strided_block, (const vme_gemm_tile *tile), tile)
#if LAYERS
SELECTOR(layer_tile, layer_block, (const vme_gemm_tile *tile, const vme_gemm_layer *layer), tile, layer)
#endif
/* clang-format on */

static void F(tile)(const vme_gemm_tile *tile)
{
#if PACKED
    if (tile->a_row == sizeof(E) && tile->a_column == VME_PACKED_ROWS(ROWS) * sizeof(E)) {
        F(packed_tile)(tile);
        return;
    }
#endif
    F(strided_tile)(tile);
}

#undef APART
#undef KERNELS
#undef SELECTOR
#undef CASE
#undef F
