/* The matrix product: out[..., i, j] = sum over p of a[..., i, p] * b[..., p, j].
 *
 * Work is cut into blocks of columns where there are many of them, and those into parts of k, whose sums go through the
 * output from one to the next. A block is one job. Its pieces are, for each part of k in turn, to pack what the part
 * needs of b, then the cells: a few panels of rows times all or many of the columns. Pieces are taken in this order and
 * wait for those before them that they build on, never all for all: a thread that runs out of cells of one part goes on
 * with the next. Of b two parts are kept packed, for everybody; a cell's rows of a are packed by who computes it, into
 * room of its own which stays in the nearest caches. Operands are read where they lie when the tiles (kernels/gemm.h)
 * can do that well: any steps for a, columns side by side for b.
 *
 * Complex numbers are pairs of reals: with a and out as they lie and each row (x, y) of b packed as two, (x, y) and
 * (-y, x), their product is a real one of twice the columns and twice the k. float16 is packed as float32 and summed
 * there.
 *
 * The order in which a sum is taken depends on shapes and steps, never on the number of threads. */
#include "runtime/machine.h"
#include "runtime/numbers.h"
#include "runtime/pages.h"
#include "runtime/pool.h"
#include "operators/raster.h"

#include <sched.h>
#include <string.h>

enum {
    PIECES = 16,          /* for each thread: cores that are slowed down take fewer */
    PACK_SLIVERS = 4,     /* in a piece that packs them */
    RING = 2,             /* parts of k of which b is packed at a time */
    ROOM_LARGE = 1 << 20, /* bytes of scratch memory */
    STRIP = 32,           /* rows of b in a slab, tiles beside each other in a strip */
    SUM_STRIPS = 64,      /* of a vector's product, at once */
    SPINS_MAX = 1 << 10,  /* before a waiting thread lets others have its core */
    TILE_ROWS_MAX = 14,
    TILE_BYTES_MAX = TILE_ROWS_MAX * 128,
};

typedef enum form { PLAIN, PAIRS, HALF } form;

/* An operand: one matrix's first element, its steps in bytes from row to row and column to column, and from matrix to
 * matrix. */
typedef struct side {
    char *data;
    int64_t row, column;
    int64_t lead[VME_RANK_MAX];
} side;

/* A part of k at hand. */
typedef struct k_part {
    int64_t number, k0, depth;
} k_part;

typedef struct product {
    vme_context *context;
    const vme_gemm_kernel *kernel;
    form form;
    int real, element; /* bytes: of what tiles compute in, and of the operands' elements */
    int64_t m, n, k;   /* n and k in reals */
    int64_t matrices;
    bool pack_a, pack_b, b_shared; /* b_shared: the same matrix for the whole batch */
    int64_t panel;                 /* rows of a tile here */
    int64_t depth, parts;          /* of a part of k; how many */
    char *packed_b, *sums;         /* sums: float32 for HALF */
    int64_t packed_b_part, packed_b_matrix, panel_bytes, packed_a_column, packed_b_row, sliver_bytes;
    char *rooms; /* for packed panels, one a thread: a flag that it is taken, then the panels */
    int64_t room_count, room_bytes;
    /* the block at hand */
    int64_t first, group; /* matrices */
    int64_t row0, rows, column0, columns;
    int64_t panels, slivers, cell_panels, cell_slivers, cell_rows, cell_columns;
    int64_t near_slivers;                      /* that a cell's panels go through before the next ones */
    int64_t packs, cells;                      /* pieces of each part of k */
    atomic_llong packed[RING], computed[RING]; /* pieces done of the parts with this place in the ring, all so far */
    atomic_llong *turns;                       /* parts of k done, a cell; NULL: there is one part */
    atomic_bool abandoned;                     /* a piece was not done: the context was stopped */
    /* the operands; only this part is not set to 0 first, being large */
    int lead; /* leading dimensions */
    int64_t lead_shape[VME_RANK_MAX];
    side a, b, c;
} product;

static char *matrix_of(const product *it, const side *operand, int64_t number)
{
    char *data = operand->data;
    for (int d = it->lead - 1; d >= 0 && number > 0; d--) {
        data += number % it->lead_shape[d] * operand->lead[d];
        number /= it->lead_shape[d];
    }
    return data;
}

/* ---- packing */
typedef float loose_float __attribute__((aligned(1), may_alias));
typedef double loose_double __attribute__((aligned(1), may_alias));
typedef uint32_t loose32 __attribute__((aligned(1), may_alias));
typedef uint64_t loose64 __attribute__((aligned(1), may_alias));
typedef _Float16 loose_half __attribute__((aligned(1), may_alias));

/* `rows` x `columns` elements, rows side by side in `out`. */
static void pack_rows(int element, int64_t rows, int64_t columns, const char *in, int64_t in_row, int64_t in_column,
                      char *out, int64_t out_row)
{
    if (in_column == element) {
        for (int64_t i = 0; i < rows; i++)
            memcpy(out + i * out_row, in + i * in_row, (size_t)(columns * element));
        return;
    }
    const vme_kernels *kernels = vme_kernels_current();
    int log = __builtin_ctz((unsigned)element);
    if (in_row == element)
        kernels->move.transpose[log](rows, columns, in, in_row, in_column, out, out_row, element);
    else
        for (int64_t i = 0; i < rows; i++)
            kernels->move.strided[log](columns, in + i * in_row, in_column, out + i * out_row, element);
}

static void pack_halves(int64_t rows, int64_t columns, const char *in, int64_t in_row, int64_t in_column, char *out,
                        int64_t out_row)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            ((float *)(out + i * out_row))[j] = (float)*(const loose_half *)(in + i * in_row + j * in_column);
}

/* Each row of pairs (x, y) as two rows: (x, y) and (-y, x). `rows` and `columns` in pairs. */
#define PACK_PAIRS(real) \
    static void pack_pairs_##real(int64_t rows, int64_t columns, const char *in, int64_t in_row, int64_t in_column, \
                                  char *out, int64_t out_row) \
    { \
        for (int64_t i = 0; i < rows; i++) { \
            real *upper = (real *)(out + 2 * i * out_row), *lower = (real *)(out + (2 * i + 1) * out_row); \
            for (int64_t j = 0; j < columns; j++) { \
                const loose_##real *pair = (const loose_##real *)(in + i * in_row + j * in_column); \
                real x = pair[0], y = pair[1]; \
                upper[2 * j] = x; \
                upper[2 * j + 1] = y; \
                lower[2 * j] = -y; \
                lower[2 * j + 1] = x; \
            } \
        } \
    }
PACK_PAIRS(float)
PACK_PAIRS(double)

/* A panel of a, so that the elements of its rows lie side by side and its columns (reals) packed_a_column apart. */
static void pack_panel(const product *it, k_part at, const char *a, int64_t panel, char *out)
{
    int64_t row = it->row0 + panel * it->panel, rows = min(it->panel, it->row0 + it->rows - row);
    int64_t column = it->packed_a_column;
    if (it->form == PAIRS) {
        const char *in = a + row * it->a.row + at.k0 / 2 * it->a.column;
        for (int64_t half = 0; half < 2; half++)
            pack_rows(it->real, at.depth / 2, rows, in + half * it->real, it->a.column, it->a.row, out + half * column,
                      2 * column);
        return;
    }
    const char *in = a + row * it->a.row + at.k0 * it->a.column;
    if (it->form == HALF) {
        pack_halves(at.depth, rows, in, it->a.column, it->a.row, out, column);
        return;
    }
    /* whole squares are turned fastest: rows of the next panel fill the room behind this one's */
    if (it->kernel->pack_a != NULL && it->a.column == it->element && it->m - row >= it->kernel->packed_rows) {
        it->kernel->pack_a(at.depth, in, it->a.row, out);
        return;
    }
    pack_rows(it->element, at.depth, rows, in, it->a.column, it->a.row, out, column);
}

static void pack_sliver(const product *it, k_part at, const char *b, int64_t sliver, char *out)
{
    int64_t pair = it->form == PAIRS ? 2 : 1;
    int64_t column = it->column0 + sliver * it->kernel->columns;
    int64_t columns = min(it->kernel->columns, it->column0 + it->columns - column);
    const char *in = b + at.k0 / pair * it->b.row + column / pair * it->b.column;
    if (it->form == HALF)
        pack_halves(at.depth, columns, in, it->b.row, it->b.column, out, it->packed_b_row);
    else if (it->form == PLAIN)
        pack_rows(it->element, at.depth, columns, in, it->b.row, it->b.column, out, it->packed_b_row);
    else if (it->real == sizeof(float))
        pack_pairs_float(at.depth / 2, columns / 2, in, it->b.row, it->b.column, out, it->packed_b_row);
    else
        pack_pairs_double(at.depth / 2, columns / 2, in, it->b.row, it->b.column, out, it->packed_b_row);
}

/* Some slivers of one matrix, the `piece`-th. */
static void pack(const product *it, k_part at, int64_t piece)
{
    int64_t pieces = ceil_div(it->slivers, PACK_SLIVERS), matrix = piece / pieces,
            sliver = piece % pieces * PACK_SLIVERS;
    int64_t end = min(it->slivers, sliver + PACK_SLIVERS), whole = min(end, it->columns / it->kernel->columns) - sliver;
    const char *b = matrix_of(it, &it->b, it->first + matrix);
    char *out =
        it->packed_b + at.number % RING * it->packed_b_part + matrix * it->packed_b_matrix + sliver * it->sliver_bytes;
    if (it->form == PLAIN && it->b.column == it->element && it->kernel->pack_b != NULL && whole > 0) {
        it->kernel->pack_b(at.depth, whole,
                           b + at.k0 * it->b.row + (it->column0 + sliver * it->kernel->columns) * it->real, it->b.row,
                           out, it->sliver_bytes);
        sliver += whole;
        out += whole * it->sliver_bytes;
    }
    for (; sliver < end; sliver++, out += it->sliver_bytes)
        pack_sliver(it, at, b, sliver, out);
}

/* ---- computing */
/* A tile whose columns do not lie side by side in the output: computed aside, then moved there. */
static void scattered_tile(const product *it, vme_gemm_tile *tile, int64_t column)
{
    _Alignas(VME_ALIGNMENT) char aside[TILE_BYTES_MAX];
    char *c = tile->c;
    int64_t c_row = tile->c_row;
    int step = it->element / it->real; /* 2 for pairs */
    tile->c = aside;
    tile->c_row = tile->columns * it->real;
    if (tile->accumulate)
        for (int i = 0; i < tile->rows; i++)
            for (int j = 0; j < tile->columns; j += step)
                memcpy(aside + i * tile->c_row + j * it->real, c + i * c_row + (column + j) / step * it->c.column,
                       (size_t)it->element);
    it->kernel->tile(tile);
    for (int i = 0; i < tile->rows; i++)
        for (int j = 0; j < tile->columns; j += step)
            memcpy(c + i * c_row + (column + j) / step * it->c.column, aside + i * tile->c_row + j * it->real,
                   (size_t)it->element);
    tile->c = c;
    tile->c_row = c_row;
}

/* Room for packed panels, a thread's own while it computes a cell: the same one again where it can be, for that is in
 * its caches. There are as many as threads may work; should there be more all the same, the last one waits for another
 * to end. */
static char *room_take(const product *it)
{
    for (int64_t i = vme_worker();; i++) {
        char *room = it->rooms + i % it->room_count * it->room_bytes;
        bool taken = false;
        if (atomic_compare_exchange_strong((atomic_bool *)room, &taken, true))
            return room;
        vme_relax();
    }
}

/* Returns false when the context is stopped meanwhile. */
static bool compute_cell(const product *it, k_part at, int64_t matrix, int64_t cell_row, int64_t cell_column)
{
    const vme_gemm_kernel *kernel = it->kernel;
    int64_t pair = it->form == PAIRS ? 2 : 1;
    int64_t first_panel = cell_row * it->cell_panels, panels = min(it->panels - first_panel, it->cell_panels);
    const char *a = matrix_of(it, &it->a, it->first + matrix);
    const char *b = matrix_of(it, &it->b, it->first + matrix) + at.k0 * it->b.row + it->column0 * it->real;
    if (it->pack_b)
        b = it->packed_b + at.number % RING * it->packed_b_part + (it->b_shared ? 0 : matrix * it->packed_b_matrix);
    bool scattered = it->form != HALF && it->c.column != it->element;
    char *c = it->form == HALF ? it->sums : matrix_of(it, &it->c, it->first + matrix) + it->row0 * it->c.row;
    int64_t c_row = it->form == HALF ? it->columns * it->real : it->c.row;
    if (it->form != HALF && !scattered)
        c += it->column0 * it->real;
    vme_gemm_tile tile = {
        .k = at.depth,
        .a_row = it->pack_a ? it->real : it->a.row,
        .a_column = it->pack_a          ? it->packed_a_column
                    : it->form == PAIRS ? it->real
                                        : it->a.column,
        .b_row = it->pack_b ? it->packed_b_row : it->b.row,
        .c_row = c_row,
        .accumulate = at.k0 > 0,
        .far = true,
    };
    /* so many rows of b as pass while one is on its way: from the second cache, or from where it lies */
    tile.ahead = (it->pack_b ? 8 : MATMUL_AHEAD / it->panel) * tile.b_row;
    int64_t panel_bytes = it->pack_a ? it->panel_bytes : it->panel * it->a.row;
    int64_t sliver_bytes = it->pack_b ? it->sliver_bytes : (int64_t)kernel->columns * it->real;
    char *room = NULL;
    if (it->pack_a) {
        room = room_take(it);
        for (int64_t p = 0; p < panels; p++)
            pack_panel(it, at, a, first_panel + p, room + VME_ALIGNMENT + p * panel_bytes);
        a = room + VME_ALIGNMENT;
    } else
        a += (it->row0 + first_panel * it->panel) * it->a.row + at.k0 / pair * it->a.column;
    int64_t first_sliver = cell_column * it->cell_slivers, end = min(it->slivers, first_sliver + it->cell_slivers);
    bool stopped = false;
    for (; first_sliver < end && !stopped; first_sliver += it->near_slivers) {
        int64_t slivers = min(it->near_slivers, end - first_sliver);
        for (int64_t i = 0; i < panels * slivers; i++) {
            /* along the rows of the output; but where b is not packed few panels go through each sliver while it is
             * near */
            int64_t p = it->pack_b ? i / slivers : i % panels;
            int64_t s = first_sliver + (it->pack_b ? i % slivers : i / panels);
            int64_t row = (first_panel + p) * it->panel, column = s * kernel->columns;
            tile.rows = (int)min(it->panel, it->rows - row);
            tile.columns = (int)min(kernel->columns, it->columns - column);
            tile.a = a + p * panel_bytes;
            tile.b = b + s * sliver_bytes;
            tile.c = c + row * c_row;
            if (scattered)
                scattered_tile(it, &tile, it->column0 + column);
            else {
                tile.c += column * it->real;
                kernel->tile(&tile);
            }
        }
        stopped = vme_stopping(it->context);
    }
    if (room != NULL)
        atomic_store_explicit((atomic_bool *)room, false, memory_order_release);
    return !stopped;
}

/* Until pieces that were taken before this one have counted up to `least`; false: they will not, the context is
 * stopped. */
static bool await(const product *it, const atomic_llong *count, int64_t least)
{
    for (int spins = 1; atomic_load_explicit(count, memory_order_acquire) < least; spins++) {
        if (vme_stopping(it->context) || atomic_load_explicit(&it->abandoned, memory_order_relaxed))
            return false;
        if (spins % SPINS_MAX == 0)
            sched_yield(); /* who has that piece may be waiting for this core */
        else
            vme_relax();
    }
    return true;
}

static bool do_piece(product *it, k_part at, int64_t piece)
{
    int64_t place = at.number % RING, round = at.number / RING;
    if (piece < it->packs) {
        /* what was packed there before is needed no longer */
        if (!await(it, &it->computed[place], round * it->cells))
            return false;
        pack(it, at, piece);
        atomic_fetch_add_explicit(&it->packed[place], 1, memory_order_release);
        return true;
    }
    int64_t cell = piece - it->packs, across = cell / it->cell_rows;
    if (!await(it, &it->packed[place], (round + 1) * it->packs)
        || (it->turns != NULL && !await(it, &it->turns[cell], at.number)))
        return false;
    if (!compute_cell(it, at, across / it->cell_columns, cell % it->cell_rows, across % it->cell_columns))
        return false;
    if (it->turns != NULL) {
        atomic_store_explicit(&it->turns[cell], at.number + 1, memory_order_release);
        atomic_fetch_add_explicit(&it->computed[place], 1, memory_order_release);
    }
    return true;
}

static vme_status do_pieces(void *argument, int64_t begin, int64_t end)
{
    product *it = argument;
    for (int64_t i = begin; i < end; i++) {
        int64_t number = i / (it->packs + it->cells);
        k_part at = {.number = number, .k0 = number * it->depth, .depth = min(it->depth, it->k - number * it->depth)};
        if (atomic_load_explicit(&it->abandoned, memory_order_relaxed)
            || !do_piece(it, at, i % (it->packs + it->cells)))
            atomic_store_explicit(&it->abandoned, true, memory_order_relaxed);
    }
    return VME_OK;
}

/* Rows of the float32 sums into the float16 output. */
static vme_status round_halves(void *argument, int64_t begin, int64_t end)
{
    const product *it = argument;
    char *c = matrix_of(it, &it->c, it->first) + it->row0 * it->c.row + it->column0 * it->c.column;
    for (int64_t i = begin; i < end; i++) {
        const float *sums = (const float *)it->sums + i * it->columns;
        for (int64_t j = 0; j < it->columns; j++)
            *(loose_half *)(c + i * it->c.row + j * it->c.column) = (_Float16)sums[j];
    }
    return VME_OK;
}

/* How many panels and slivers a cell has, for the largest block that there will be. */
static void divide(product *it)
{
    const vme_gemm_kernel *kernel = it->kernel;
    int64_t depth = max(1, it->depth), panels = ceil_div(it->rows, it->panel),
            slivers = ceil_div(it->columns, kernel->columns);
    int64_t sliver_work = it->panel * kernel->columns * depth;
    int64_t total = it->group * it->rows * it->columns * max(1, it->k);
    int64_t work = max(min(kernel->work, MATMUL_PIECE_MIN), min(kernel->work, total / (PIECES * vme_threads())));
    it->near_slivers = max(1, min(slivers, MATMUL_NEAR / (depth * kernel->columns * it->real)));
    if (it->pack_a) {
        bool far = it->pack_b && slivers > it->near_slivers;
        int64_t wide = far ? max(1, min(MATMUL_PANELS_MIN, panels / (2 * vme_threads()))) : 1;
        it->cell_panels = min(min(panels, MATMUL_PANELS_MAX), max(wide, work / (sliver_work * slivers)));
        int64_t columns = it->cell_panels * sliver_work * slivers / (wide > 1 ? 8 * kernel->work : work);
        it->cell_slivers = ceil_div(slivers, max(1, min(columns, slivers / MATMUL_SLIVERS_MIN)));
    } else {
        it->cell_slivers = ceil_div(slivers, ceil_div(slivers, max(1, min(work / sliver_work, it->near_slivers))));
        it->cell_panels = max(1, min(panels, work / (sliver_work * it->cell_slivers)));
    }
    it->cell_panels = ceil_div(panels, ceil_div(panels, it->cell_panels));
}

/* The cells of the block at hand. */
static void count_cells(product *it)
{
    it->panels = ceil_div(it->rows, it->panel);
    it->slivers = ceil_div(it->columns, it->kernel->columns);
    it->cell_rows = ceil_div(it->panels, it->cell_panels);
    it->cell_columns = ceil_div(it->slivers, it->cell_slivers);
    it->cells = it->group * it->cell_rows * it->cell_columns;
    it->packs = it->pack_b ? ceil_div(it->slivers, PACK_SLIVERS) * (it->b_shared ? 1 : it->group) : 0;
}

/* All of k of one block of rows and columns, for `group` matrices. */
static vme_status do_block(product *it)
{
    count_cells(it);
    for (int i = 0; i < RING; i++) {
        atomic_store_explicit(&it->packed[i], 0, memory_order_relaxed);
        atomic_store_explicit(&it->computed[i], 0, memory_order_relaxed);
    }
    for (int64_t i = 0; it->turns != NULL && i < it->cells; i++)
        atomic_store_explicit(&it->turns[i], 0, memory_order_relaxed);
    atomic_store_explicit(&it->abandoned, false, memory_order_relaxed);
    int64_t pieces = it->packs + it->cells, work = it->group * it->rows * it->columns * it->depth / pieces;
    int64_t grain = max(1, MATMUL_PIECE_MIN / max(1, work));
    vme_status status = vme_parallel(it->context, it->parts * pieces, grain, do_pieces, it);
    if (status == VME_OK && atomic_load_explicit(&it->abandoned, memory_order_relaxed))
        return vme_stopped_here(it->context);
    return status;
}

/* Parts as equal as multiples of `unit` make them, none above `most_each`. */
static int64_t equal_parts(int64_t whole, int64_t most_each, int64_t unit)
{
    return ceil_div(ceil_div(max(1, whole), ceil_div(max(1, whole), most_each)), unit) * unit;
}

/* Whether operands are packed. */
static void plan(product *it)
{
    const vme_gemm_kernel *kernel = it->kernel;
    it->panel = ceil_div(it->m, ceil_div(it->m, kernel->rows));
    it->b_shared = true;
    for (int d = 0; d < it->lead; d++)
        it->b_shared = it->b_shared && it->b.lead[d] == 0;
    bool beside = it->a.column == it->element;
    it->pack_a = it->form == HALF
                 || (it->form == PAIRS ? !beside : it->n > 2 * kernel->columns && (!beside || it->m * it->k > 1 << 14));
    /* short rows side by side are near each other as they lie */
    bool narrow = it->b.row > 0 && it->b.row < MATMUL_NARROW;
    it->pack_b = it->form != PLAIN || it->b.column != it->element || it->m > (narrow ? 16 : 4) * it->panel;
}

/* All of the output's rows in a block of columns. float16 goes by blocks of rows: its sums in float32 are only one
 * block's. */
static vme_status do_columns(product *it, int64_t rows)
{
    vme_status status = VME_OK;
    for (it->row0 = 0; status == VME_OK && it->row0 < it->m; it->row0 += rows) {
        it->rows = min(rows, it->m - it->row0);
        status = do_block(it);
        if (status == VME_OK && it->form == HALF)
            status = vme_parallel(it->context, it->rows, max(1, (1 << 16) / it->columns), round_halves, it);
    }
    return status;
}

static size_t rounded(int64_t bytes) { return ((size_t)bytes + VME_ALIGNMENT - 1) & ~(size_t)(VME_ALIGNMENT - 1); }

/* Scratch memory; a large one is of huge pages, kept for the next product. */
static char *room_new(vme_context *context, size_t bytes, size_t *pages)
{
    *pages = 0;
    if (bytes < ROOM_LARGE)
        return vme_scratch_new(context, bytes);
    if (vme_context_charge(context, bytes) != VME_OK)
        return NULL;
    char *room = vme_pages_new(context, bytes, false, pages);
    if (room == NULL) {
        vme_context_release(context, bytes);
        vme_fail(VME_NO_MEMORY, "the system has no %zu bytes", bytes);
    } else {
        vme_context_note_peak(context);
    }
    return room;
}

static void room_free(vme_context *context, char *room, size_t bytes, size_t pages)
{
    if (pages == 0) {
        vme_scratch_free(context, room, bytes);
        return;
    }
    vme_pages_free(context, room, pages);
    vme_context_release(context, bytes);
}

static vme_status multiply(product *it)
{
    plan(it);
    const vme_gemm_kernel *kernel = it->kernel;
    /* depths are even, so that a complex number is never cut */
    it->depth = equal_parts(it->k, MATMUL_SUM, 2);
    it->parts = max(1, ceil_div(it->k, it->depth));
    int64_t rows = it->form == HALF ? equal_parts(it->m, MATMUL_ROWS, it->panel) : it->m;
    int64_t columns = equal_parts(it->n, MATMUL_COLUMNS, kernel->columns);
    it->packed_a_column = (int64_t)kernel->packed_rows * it->real;
    it->panel_bytes = (int64_t)rounded(it->depth * it->packed_a_column);
    it->packed_b_row = (int64_t)kernel->columns * it->real;
    it->sliver_bytes = max(1, it->depth) * it->packed_b_row;
    it->packed_b_matrix = it->pack_b ? ceil_div(columns, kernel->columns) * it->sliver_bytes : 0;
    int64_t ring = min(RING, it->parts), each = it->b_shared ? 0 : ring * it->packed_b_matrix;
    /* float16's sums are one matrix's */
    int64_t group = it->form == HALF ? 1
                    : each == 0      ? it->matrices
                                     : min(it->matrices, max(1, MATMUL_PACKED_MAX / each));
    it->packed_b_part = it->packed_b_matrix * (it->b_shared ? 1 : group);
    it->group = group;
    it->rows = rows;
    it->columns = min(columns, it->n);
    divide(it);
    count_cells(it);
    it->room_count = it->pack_a ? min(vme_threads(), it->cells) : 0;
    it->room_bytes = VME_ALIGNMENT + it->cell_panels * it->panel_bytes;
    int64_t b_bytes = ring * it->packed_b_part, rooms_bytes = it->room_count * it->room_bytes;
    int64_t turns_bytes = it->parts > 1 ? (int64_t)rounded(it->cells * (int64_t)sizeof *it->turns) : 0;
    size_t bytes =
        (size_t)(b_bytes + rooms_bytes + turns_bytes) + (it->form == HALF ? rounded(rows * columns * it->real) : 0);
    char *scratch = NULL;
    size_t pages = 0;
    if (bytes > 0) {
        scratch = room_new(it->context, bytes, &pages);
        if (scratch == NULL)
            return VME_NO_MEMORY;
        it->packed_b = scratch;
        it->rooms = scratch + b_bytes;
        it->turns = turns_bytes > 0 ? (atomic_llong *)(scratch + b_bytes + rooms_bytes) : NULL;
        it->sums = scratch + b_bytes + rooms_bytes + turns_bytes;
        for (int64_t i = 0; i < it->room_count; i++)
            atomic_init((atomic_bool *)(it->rooms + i * it->room_bytes), false);
    }
    vme_status status = VME_OK;
    for (it->first = 0; status == VME_OK && it->first < it->matrices; it->first += group) {
        it->group = min(group, it->matrices - it->first);
        for (it->column0 = 0; status == VME_OK && it->column0 < it->n; it->column0 += columns) {
            it->columns = min(columns, it->n - it->column0);
            status = do_columns(it, rows);
        }
    }
    room_free(it->context, scratch, bytes, pages);
    return status;
}

/* ---- small products: tiles on the operands as they lie */
static void small_tiles(const product *it, const char *a, const char *b, char *c)
{
    const vme_gemm_kernel *kernel = it->kernel;
    vme_gemm_tile tile = {
        .k = it->k, .a_row = it->a.row, .a_column = it->a.column, .b_row = it->b.row, .c_row = it->c.row};
    int sliver_bytes = kernel->columns * it->real, m = (int)it->m, n = (int)it->n, panel = (int)it->panel;
    tile.ahead = 8 * it->b.row;
    for (int column = 0; column < n; column += kernel->columns) {
        tile.columns = n - column < kernel->columns ? n - column : kernel->columns;
        tile.b = b;
        tile.a = a;
        tile.c = c;
        for (int row = 0; row < m; row += panel) {
            tile.rows = m - row < panel ? m - row : panel;
            kernel->tile(&tile);
            tile.a += panel * it->a.row;
            tile.c += panel * it->c.row;
        }
        b += sliver_bytes;
        c += sliver_bytes;
    }
}

static vme_status small_products(void *argument, int64_t begin, int64_t end)
{
    const product *it = argument;
    for (int64_t i = begin; i < end; i++) {
        const char *a = matrix_of(it, &it->a, i), *b = matrix_of(it, &it->b, i);
        char *c = matrix_of(it, &it->c, i);
        if (it->n == 1 && it->kernel->dots != NULL && it->k > 0 && it->a.column == it->real && it->b.row == it->real)
            it->kernel->dots(it->m, 1, it->k, a, it->a.row, b, 0, c, it->c.row, 0);
        else if (it->n == 1 && it->kernel->dots != NULL && it->k > 0 && it->a.row == it->real && it->c.row == it->real)
            it->kernel->sums(it->k, it->m, b, it->b.row, a, it->a.column, c, false);
        else
            small_tiles(it, a, b, c);
    }
    return VME_OK;
}

static vme_status multiply_small(product *it)
{
    /* equal panels; divisions of 32 bits are the fast ones */
    uint32_t m = (uint32_t)it->m, panels = (m + (uint32_t)it->kernel->rows - 1) / (uint32_t)it->kernel->rows;
    it->panel = (m + panels - 1) / panels;
    int64_t grain = it->matrices == 1 ? 1 : max(1, MATMUL_SMALL / (it->m * it->n * it->k + 256));
    return vme_parallel(it->context, it->matrices, grain, small_products, it);
}

/* ---- a thin product: each row of the output is a few rows of b, scaled and added */
static vme_status thin_rows(void *argument, int64_t begin, int64_t end)
{
    const product *it = argument;
    for (int64_t i = begin; i < end; i++) {
        int64_t matrix = it->first + i / it->m, row = i % it->m;
        it->kernel->sums(it->k, it->n, matrix_of(it, &it->a, matrix) + row * it->a.row, it->a.column,
                         matrix_of(it, &it->b, matrix), it->b.row, matrix_of(it, &it->c, matrix) + row * it->c.row,
                         false);
    }
    return VME_OK;
}

/* ---- few rows, and a b from memory
 * A strip of columns is one thread's. It goes through b by slabs of a few rows: while the tiles of one slab are
 * computed, lines of the next one come, in the order in which they lie, and are packed as soon as they are there. So b
 * is read once and at the speed of memory, and all else stays in the second cache, where neither b nor the output would
 * by itself when rows lie a power of two apart. */
typedef struct strips {
    const product *it;
    const char *a, *b; /* of the matrix at hand */
    char *c;
} strips;

static void pack_row(const product *it, const char *b, int64_t columns, char *out)
{
    int64_t whole = columns / it->kernel->columns, rest = columns % it->kernel->columns;
    if (whole > 0)
        it->kernel->pack_b(1, whole, b, 0, out, it->sliver_bytes);
    if (rest > 0)
        memcpy(out + whole * it->sliver_bytes, b + whole * it->packed_b_row, (size_t)(rest * it->real));
}

/* Returns false when the context is stopped meanwhile. */
static bool compute_strip(const strips *at, int64_t column, char *panels)
{
    const product *it = at->it;
    const int64_t tile_columns = it->kernel->columns, columns = min(it->columns, it->n - column),
                  slivers = ceil_div(columns, tile_columns);
    char *slabs = panels + it->panels * it->panel_bytes, *sums = slabs + RING * it->packed_b_part;
    const char *b = at->b + column * it->real;
    for (int64_t j = 0; j < min(it->depth, it->k); j++)
        pack_row(it, b + j * it->b.row, columns, slabs + j * it->packed_b_row);
    for (int64_t number = 0; number < it->parts; number++) {
        const k_part part = {
            .number = number, .k0 = number * it->depth, .depth = min(it->depth, it->k - number * it->depth)};
        const int64_t coming = min(it->depth, it->k - part.k0 - part.depth);
        const char *slab = slabs + number % RING * it->packed_b_part;
        char *next = slabs + (number + 1) % RING * it->packed_b_part;
        for (int64_t panel = 0; panel < it->panels; panel++)
            pack_panel(it, part, at->a, panel, panels + panel * it->panel_bytes);
        b += part.depth * it->b.row;
        for (int64_t sliver = 0, packed = 0; sliver < slivers; sliver++) {
            vme_gemm_tile tile = {.k = part.depth,
                                  .a_row = it->real,
                                  .a_column = it->packed_a_column,
                                  .b_row = it->packed_b_row,
                                  .c_row = it->packed_b_row,
                                  .accumulate = number > 0};
            tile.columns = (int)min(tile_columns, columns - sliver * tile_columns);
            tile.b = slab + sliver * it->sliver_bytes;
            /* a row more than will be packed after this tile; a step of it fetches what it reads itself */
            const int64_t fetched = coming * sliver + slivers;
            if (fetched < coming * slivers)
                tile.ahead = b + fetched / slivers * it->b.row + fetched % slivers * it->packed_b_row - tile.b;
            for (int64_t row = 0; row < it->m; row += it->panel, tile.ahead = 0) {
                tile.rows = (int)min(it->panel, it->m - row);
                tile.a = panels + row / it->panel * it->panel_bytes;
                tile.c = sums + (sliver * it->m + row) * it->packed_b_row;
                it->kernel->tile(&tile);
            }
            for (const int64_t end = coming * (sliver + 1) / slivers; packed < end; packed++)
                pack_row(it, b + packed * it->b.row, columns, next + packed * it->packed_b_row);
        }
        if (vme_stopping(it->context))
            return false;
    }
    for (int64_t row = 0; row < it->m; row++)
        for (int64_t sliver = 0; sliver < slivers; sliver++)
            memcpy(at->c + row * it->c.row + (column + sliver * tile_columns) * it->real,
                   sums + (sliver * it->m + row) * it->packed_b_row,
                   (size_t)(min(tile_columns, columns - sliver * tile_columns) * it->real));
    return true;
}

static vme_status do_strips(void *argument, int64_t begin, int64_t end)
{
    const strips *at = argument;
    char *room = room_take(at->it);
    bool stopped = false;
    for (int64_t i = begin; i < end && !stopped; i++)
        stopped = !compute_strip(at, i * at->it->columns, room + VME_ALIGNMENT);
    atomic_store_explicit((atomic_bool *)room, false, memory_order_release);
    return stopped ? vme_stopped_here(at->it->context) : VME_OK;
}

static vme_status multiply_strips(product *it)
{
    const vme_gemm_kernel *kernel = it->kernel;
    it->depth = it->slivers = STRIP; /* alike: then a tile fetches a row */
    it->parts = ceil_div(it->k, it->depth);
    it->columns = it->slivers * kernel->columns;
    it->rows = it->m;
    it->panels = ceil_div(it->m, kernel->rows);
    it->panel = ceil_div(it->m, it->panels);
    it->packed_a_column = (int64_t)kernel->packed_rows * it->real;
    it->panel_bytes = it->depth * it->packed_a_column;
    it->packed_b_row = (int64_t)kernel->columns * it->real;
    it->sliver_bytes = (it->depth + 1) * it->packed_b_row; /* no power of two */
    it->packed_b_part = it->slivers * it->sliver_bytes;
    int64_t strip_count = ceil_div(it->n, it->columns);
    it->room_count = min(vme_threads(), strip_count);
    it->room_bytes = VME_ALIGNMENT + it->panels * it->panel_bytes + RING * it->packed_b_part
                     + it->slivers * it->m * it->packed_b_row;
    size_t bytes = (size_t)(it->room_count * it->room_bytes), pages;
    it->rooms = room_new(it->context, bytes, &pages);
    if (it->rooms == NULL)
        return VME_NO_MEMORY;
    for (int64_t i = 0; i < it->room_count; i++)
        atomic_init((atomic_bool *)(it->rooms + i * it->room_bytes), false);
    vme_status status = VME_OK;
    for (int64_t i = 0; status == VME_OK && i < it->matrices; i++) {
        strips at = {it, matrix_of(it, &it->a, i), matrix_of(it, &it->b, i), matrix_of(it, &it->c, i)};
        status = vme_parallel(it->context, strip_count, 1, do_strips, &at);
    }
    room_free(it->context, it->rooms, bytes, pages);
    return status;
}

/* ---- a matrix times few vectors, one matrix at a time */
typedef struct vector_product {
    const product *it;
    const char *a, *x;
    char *c; /* for parts of k: their sums, [part][vector][row] */
    int64_t c_row, c_vector, c_part, x_row, pieces, step;
} vector_product;

static vme_status dots(void *argument, int64_t begin, int64_t end)
{
    const vector_product *at = argument;
    const product *it = at->it;
    for (int64_t i = begin; i < end; i++) {
        int64_t part = i / at->pieces, row = i % at->pieces * at->step, rows = min(at->step, it->m - row);
        int64_t p = part * MATMUL_DOTS, depth = min(MATMUL_DOTS, it->k - p);
        for (int64_t v = 0; v < it->n; v += 4)
            it->kernel->dots(rows, (int)min(4, it->n - v), depth, at->a + row * it->a.row + p * it->real, it->a.row,
                             at->x + v * at->x_row + p * it->real, at->x_row,
                             at->c + part * at->c_part + row * at->c_row + v * at->c_vector, at->c_row, at->c_vector);
    }
    return VME_OK;
}

#define ADD_PARTS(real) \
    static void add_parts_##real(const vector_product *at, int64_t part_count, char *c) \
    { \
        const product *it = at->it; \
        for (int64_t v = 0; v < it->n; v++) \
            for (int64_t i = 0; i < it->m; i++) { \
                real total = 0; \
                for (int64_t part = 0; part < part_count; part++) \
                    total += *(const real *)(at->c + part * at->c_part + v * at->c_vector + i * at->c_row); \
                *(loose_##real *)(c + i * it->c.row + v * it->c.column) = total; \
            } \
    }
ADD_PARTS(float)
ADD_PARTS(double)

static vme_status multiply_dots(const product *it, const char *a, const char *b, char *c)
{
    vector_product at = {
        .it = it, .a = a, .x = b, .c = c, .c_row = it->c.row, .c_vector = it->c.column, .x_row = it->b.column};
    int64_t part_count = ceil_div(it->k, MATMUL_DOTS);
    bool along = it->b.row == it->real;
    int64_t packed_row = (int64_t)rounded(it->k * it->real) + VME_ALIGNMENT;
    int64_t bytes = along ? 0 : it->n * packed_row;
    int64_t part_bytes = part_count > 1 ? part_count * it->n * it->m * it->real : 0;
    char *scratch = NULL;
    if (bytes + part_bytes > 0) {
        scratch = vme_scratch_new(it->context, (size_t)(bytes + part_bytes));
        if (scratch == NULL)
            return VME_NO_MEMORY;
    }
    if (!along) {
        pack_rows(it->real, it->n, it->k, b, it->b.column, it->b.row, scratch, packed_row);
        at.x = scratch;
        at.x_row = packed_row;
    }
    if (part_count > 1) {
        at.c = scratch + bytes;
        at.c_row = it->real;
        at.c_vector = it->m * it->real;
        at.c_part = it->n * at.c_vector;
    }
    at.step = max(4, MATMUL_VECTOR_WORK / min(it->k, MATMUL_DOTS) & ~(int64_t)3);
    at.pieces = ceil_div(it->m, at.step);
    vme_status status = vme_parallel(it->context, part_count * at.pieces, 1, dots, &at);
    if (status == VME_OK && part_count > 1) {
        if (it->real == sizeof(float))
            add_parts_float(&at, part_count, c);
        else
            add_parts_double(&at, part_count, c);
    }
    vme_scratch_free(it->context, scratch, (size_t)(bytes + part_bytes));
    return status;
}

/* Strips of columns, a piece for each part of k: all strips' of one part before those of the next. */
typedef struct strip_sums {
    const product *it;
    const char *a, *x;
    char *c;
    int64_t columns, strips, step, depth;
    atomic_llong done[SUM_STRIPS]; /* parts of k, by strip */
} strip_sums;

static vme_status sums(void *argument, int64_t begin, int64_t end)
{
    strip_sums *at = argument;
    const product *it = at->it;
    for (int64_t i = begin; i < end; i++) {
        int64_t part = i / at->strips, strip = i % at->strips, k0 = part * at->depth, column = strip * at->step;
        if (!await(it, &at->done[strip], part))
            return vme_stopped_here(it->context);
        it->kernel->sums(min(at->depth, it->k - k0), min(at->step, at->columns - column), at->x + k0 * it->b.row,
                         it->b.row, at->a + column * it->real + k0 * it->a.column, it->a.column,
                         at->c + column * it->real, k0 > 0);
        atomic_store_explicit(&at->done[strip], part + 1, memory_order_release);
    }
    return VME_OK;
}

/* One vector, and a matrix whose columns lie side by side, as do the output's elements. */
static vme_status multiply_sums(const product *it, const char *a, const char *x, char *c)
{
    strip_sums at = {.it = it, .x = x, .step = min(it->m, it->m >= 4096 ? 1024 : it->m >= 1024 ? 512 : 256)};
    at.depth = min(it->k, max(8, MATMUL_VECTOR_WORK / at.step & ~(int64_t)7));
    vme_status status = VME_OK;
    for (int64_t column = 0; status == VME_OK && column < it->m; column += at.columns) {
        at.columns = min(it->m - column, SUM_STRIPS * at.step);
        at.strips = ceil_div(at.columns, at.step);
        at.a = a + column * it->real;
        at.c = c + column * it->real;
        for (int64_t strip = 0; strip < at.strips; strip++)
            atomic_init(&at.done[strip], 0);
        status = vme_parallel(it->context, at.strips * ceil_div(it->k, at.depth), 1, sums, &at);
    }
    return status;
}

/* ---- the operator */
static vme_status mismatch(const vme_tensor *a, const vme_tensor *b)
{
    return vme_fail(
        VME_BAD_SHAPE,
        "matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature (n?,k),(k,m?)->(n?,m?) "
        "(size %lld is different from %lld)",
        (long long)b->shape[b->rank - 2], (long long)a->shape[a->rank - 1]);
}

static void swap_sides(product *it)
{
    side a = it->a;
    it->a = it->b;
    it->b = a;
    int64_t m = it->m;
    it->m = it->n;
    it->n = m;
    side *sides[] = {&it->a, &it->b, &it->c};
    for (int i = 0; i < 3; i++) {
        int64_t row = sides[i]->row;
        sides[i]->row = sides[i]->column;
        sides[i]->column = row;
    }
}

/* Leading dimensions that only make a and c taller are rows; those of size 1 are nothing. */
static void fold_leads(product *it)
{
    int kept = 0;
    for (int d = 0; d < it->lead; d++)
        if (it->lead_shape[d] != 1) {
            it->lead_shape[kept] = it->lead_shape[d];
            it->a.lead[kept] = it->a.lead[d];
            it->b.lead[kept] = it->b.lead[d];
            it->c.lead[kept] = it->c.lead[d];
            kept++;
        }
    while (kept > 0 && it->b.lead[kept - 1] == 0) {
        if (it->m == 1) {
            it->a.row = it->a.lead[kept - 1];
            it->c.row = it->c.lead[kept - 1];
        } else if (it->a.lead[kept - 1] != it->m * it->a.row || it->c.lead[kept - 1] != it->m * it->c.row)
            break;
        it->m *= it->lead_shape[--kept];
    }
    it->lead = kept;
    it->matrices = 1;
    for (int d = 0; d < kept; d++)
        it->matrices *= it->lead_shape[d];
}

static vme_status describe(product *it, const vme_tensor *a, const vme_tensor *b, const vme_tensor *out)
{
    const vme_tensor *tensors[] = {a, b, out};
    side *sides[] = {&it->a, &it->b, &it->c};
    it->lead = out->rank - 2;
    memcpy(it->lead_shape, out->shape, (size_t)it->lead * sizeof *it->lead_shape);
    vme_tensor target = *out;
    target.rank = it->lead;
    for (int i = 0; i < 3; i++) {
        const vme_tensor *tensor = tensors[i];
        vme_tensor leading = *tensor;
        leading.rank = tensor->rank - 2;
        vme_status status = vme_broadcast_strides(&leading, &target, sides[i]->lead);
        if (status != VME_OK)
            return status;
        sides[i]->data = tensor->data;
        sides[i]->row = tensor->strides[tensor->rank - 2];
        sides[i]->column = tensor->strides[tensor->rank - 1];
    }
    it->m = out->shape[out->rank - 2];
    it->n = out->shape[out->rank - 1];
    it->k = a->shape[a->rank - 1];
    return VME_OK;
}

static vme_status each_matrix(const product *it,
                              vme_status (*multiply_one)(const product *, const char *, const char *, char *))
{
    vme_status status = VME_OK;
    for (int64_t i = 0; status == VME_OK && i < it->matrices; i++)
        status = multiply_one(it, matrix_of(it, &it->a, i), matrix_of(it, &it->b, i), matrix_of(it, &it->c, i));
    return status;
}

static vme_status compute_product(vme_context *context, const vme_tensor *a, const vme_tensor *b, const vme_tensor *out)
{
    vme_dtype dtype = (vme_dtype)a->dtype;
    product it;
    memset(&it, 0, offsetof(product, lead));
    it.context = context;
    it.element = vme_dtype_size(dtype);
    vme_status status = describe(&it, a, b, out);
    if (status != VME_OK)
        return status;
    fold_leads(&it);
    if (it.m == 0 || it.n == 0 || it.matrices == 0)
        return VME_OK;
    it.form = dtype >= VME_COMPLEX64 ? PAIRS : dtype == VME_FLOAT16 ? HALF : PLAIN;
    vme_dtype real = dtype == VME_FLOAT16 || dtype == VME_COMPLEX64 ? VME_FLOAT32
                     : dtype == VME_COMPLEX128                      ? VME_FLOAT64
                                                                    : dtype;
    it.real = vme_dtype_size(real);
    it.kernel = &vme_kernels_current()->gemm.of[real];

    bool floating = it.form == PLAIN && it.kernel->dots != NULL;
    bool scattered = it.c.column != it.element && it.n > 1;
    if (floating && it.m == 1 && it.n > 1)
        swap_sides(&it); /* one kind of vector product is enough */
    else if (scattered && (it.c.row == it.element || it.m == 1))
        swap_sides(&it); /* what tiles write lies along rows */
    else if (floating && it.n > 1 && it.n <= MATMUL_FEW && it.m > MATMUL_FEW && it.a.row == it.element)
        swap_sides(&it); /* b is the one that is read along rows */
    else if (floating && it.m <= (it.a.column == it.element ? 2 * MATMUL_FEW : MATMUL_FEW) && it.n > it.m
             && it.b.row == it.element && it.b.column != it.element)
        swap_sides(&it); /* dot products, see below */
    if (it.n == 1)
        it.b.column = it.c.column = it.element;
    if (it.k == 1)
        it.a.column = it.element;

    bool beside = it.b.column == it.element && it.c.column == it.element;
    int64_t work = it.m * it.n * it.k;
    if (it.form == PLAIN && beside && work <= MATMUL_SMALL)
        return multiply_small(&it);
    /* where the vectors lie along k too, tiles would have to pack both operands */
    if (floating && it.k > 0 && it.n <= (it.b.row == it.element ? 2 * MATMUL_FEW : MATMUL_FEW)
        && it.a.column == it.element)
        return each_matrix(&it, multiply_dots);
    if (floating && it.k > 0 && it.n == 1 && it.a.row == it.element && it.c.row == it.element)
        return each_matrix(&it, multiply_sums);
    if (floating && it.k > 0 && it.k <= MATMUL_THIN && beside && it.n >= 64)
        return vme_parallel(context, it.matrices * it.m, max(1, MATMUL_VECTOR_WORK / (it.n * it.k)), thin_rows, &it);
    if (floating && beside && it.m <= MATMUL_STRIPS_MAX && it.n >= it.kernel->columns * STRIP / 2
        && it.k * it.n * it.real * ceil_div(it.m, it.kernel->rows) >= MATMUL_STRIPS_MIN)
        return multiply_strips(&it);
    if (it.form == PAIRS) {
        it.n *= 2;
        it.k *= 2;
    }
    return multiply(&it);
}

vme_status vme_matmul(vme_context *context, const vme_tensor *a, const vme_tensor *b, const vme_tensor *out)
{
    VME_FLUSHING(context);
    vme_status status = vme_check_output(out);
    if (status != VME_OK)
        return status;
    if (a->rank < 2 || b->rank < 2 || out->rank < 2)
        return vme_fail(VME_BAD_SHAPE,
                        "matmul: expected operands and output of two dimensions or more, got %d, %d and %d", a->rank,
                        b->rank, out->rank);
    if (a->dtype != b->dtype || a->dtype != out->dtype)
        return vme_fail(VME_BAD_DTYPE, "matmul: expected one dtype, got %s, %s and %s",
                        vme_dtype_name((vme_dtype)a->dtype), vme_dtype_name((vme_dtype)b->dtype),
                        vme_dtype_name((vme_dtype)out->dtype));
    if (a->shape[a->rank - 1] != b->shape[b->rank - 2])
        return mismatch(a, b);
    if (out->shape[out->rank - 2] != a->shape[a->rank - 2] || out->shape[out->rank - 1] != b->shape[b->rank - 1])
        return vme_fail(VME_BAD_SHAPE, "matmul: expected an output of %lld x %lld matrices, got %lld x %lld",
                        (long long)a->shape[a->rank - 2], (long long)b->shape[b->rank - 1],
                        (long long)out->shape[out->rank - 2], (long long)out->shape[out->rank - 1]);
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    if (!vme_overlap(a, out) && !vme_overlap(b, out))
        return compute_product(context, a, b, out);
    int64_t strides[VME_RANK_MAX];
    size_t bytes;
    status = vme_shape_bytes((vme_dtype)out->dtype, out->rank, out->shape, strides, &bytes);
    if (status != VME_OK)
        return status;
    vme_tensor aside = *out;
    aside.strides = strides;
    aside.data = vme_scratch_new(context, bytes);
    if (aside.data == NULL)
        return VME_NO_MEMORY;
    status = compute_product(context, a, b, &aside);
    if (status == VME_OK)
        status = vme_move(context, out->rank, out->shape,
                          (vme_side){aside.data, strides, vme_dtype_size((vme_dtype)out->dtype)},
                          (vme_side){out->data, out->strides, vme_dtype_size((vme_dtype)out->dtype)}, NULL);
    vme_scratch_free(context, aside.data, bytes);
    return status;
}
