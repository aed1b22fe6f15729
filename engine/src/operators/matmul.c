/* The matrix product: out[..., i, j] = sum over p of a[..., i, p] * b[..., p, j].
 *
 * A tile is computed from a panel, its rows of a, and a sliver, its columns of b. Wide products are divided into blocks
 * of columns. A block is one job. It is divided into parts of k, whose partial sums are accumulated in the output. The
 * pieces of the job are, for each part of k in turn, first packing the rows of b that the part needs, then computing
 * its cells: a few panels of rows times all or many of the columns. Threads take pieces in this order. A piece waits
 * only for the earlier pieces that it depends on, so a thread that finds no more cells of one part continues with the
 * next. Two parts of b are packed at a time, for all threads. The thread that computes a cell packs the cell's rows of
 * a into its own memory, which stays in L1 and L2. Operands are read in place if the tiles (kernels/gemm.h) do that
 * well: a with any steps, b with contiguous columns.
 *
 * A product of complex numbers is a real one with twice the columns and twice the k: a and out are read as pairs of
 * reals, and each row (x, y) of b is packed as two rows, (x, y) and (-y, x). float16 is packed as float32 and summed in
 * float32.
 *
 * The order of summation depends on shapes and steps, never on the number of threads. */
#include "runtime/machine.h"
#include "runtime/numbers.h"
#include "runtime/pool.h"
#include "operators/raster.h"

#include <sched.h>
#include <string.h>

enum {
    PIECES = 16,         /* pieces for each thread; slower cores take fewer */
    PACK_SLIVERS = 4,    /* slivers in a packing piece */
    RING = 2,            /* parts of k for which b is packed at a time */
    STRIP = 32,          /* rows of b in a slab, and tiles side by side in a strip */
    SUM_STRIPS = 64,     /* maximum strips of a vector product that are computed at once */
    SPINS_MAX = 1 << 10, /* spins of a waiting thread before it yields its core */
    TILE_ROWS_MAX = 14,
    TILE_BYTES_MAX = TILE_ROWS_MAX * 128,
};

/* How elements are computed: as they are, as pairs of reals (complex numbers), or float16 as float32. */
typedef enum form { PLAIN, PAIRS, HALF } form;

/* An operand: the first element of its first matrix, and the steps in bytes between rows, between columns, and along
 * the leading dimensions. */
typedef struct operand_view {
    char *data;
    int64_t row, column;
    int64_t lead[VME_RANK_MAX];
} operand_view;

/* A part of k: `depth` terms from k0 on. */
typedef struct k_part {
    int64_t index, k0, depth;
} k_part;

typedef struct product {
    vme_context *context;
    const vme_gemm_kernel *kernel;
    form form;
    int real, element; /* in bytes: of the type that tiles compute in, and of the operands' elements */
    int64_t m, n, k;   /* n and k count reals */
    int64_t matrices;
    bool pack_a, pack_b, b_shared; /* b_shared: one matrix for the whole batch */
    int64_t panel;                 /* rows of a tile in this product */
    int64_t depth, parts;          /* depth: of one part of k; parts: their number */
    char *packed_b, *sums;         /* sums: float32 for HALF */
    /* bytes of a packed part of b, of one matrix of it, and of a panel, a column of it, a row of a sliver, a sliver */
    int64_t packed_b_part, packed_b_matrix, panel_bytes, packed_a_column, packed_b_row, sliver_bytes;
    char *workspaces; /* memory for packed panels, one for each thread: a flag that it is in use, then the panels */
    int64_t workspace_count, workspace_bytes;
    /* the current block */
    int64_t first, group; /* index of its first matrix, and number of matrices */
    int64_t row0, rows, column0, columns;
    int64_t panels, slivers;           /* of the block */
    int64_t cell_panels, cell_slivers; /* of a cell */
    int64_t cell_rows, cell_columns;   /* numbers of cells, of one matrix */
    int64_t near_slivers;              /* slivers that stay in L2 while all panels of a cell are multiplied with them */
    int64_t packs, cells;              /* numbers of packing pieces and of cells, of each part of k */
    atomic_llong packed[RING], computed[RING]; /* completed pieces of all parts so far at this index in the ring */
    atomic_llong *cell_progress;               /* completed parts of k of each cell; NULL: there is one part */
    atomic_bool abandoned;                     /* a piece was not computed: the context was stopped */
    /* the operands; large, so the fields from here on are not zeroed */
    int lead; /* number of leading dimensions */
    int64_t lead_shape[VME_RANK_MAX];
    operand_view a, b, c;
} product;

static char *matrix_of(const product *job, const operand_view *operand, int64_t index)
{
    char *data = operand->data;
    for (int d = job->lead - 1; d >= 0 && index > 0; d--) {
        data += index % job->lead_shape[d] * operand->lead[d];
        index /= job->lead_shape[d];
    }
    return data;
}

/* ---- packing */
typedef float unaligned_float __attribute__((aligned(1), may_alias));
typedef double unaligned_double __attribute__((aligned(1), may_alias));

/* `rows` x `columns` elements, rows contiguous in `out`. */
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
    vme_loop1 *widen = vme_kernels_current()->elementwise.cast[VME_FLOAT16][VME_FLOAT32];
    if (in_row == 2 && in_column != 2)
        for (int64_t j = 0; j < columns; j++)
            widen(rows, in + j * in_column, in_row, out + j * 4, out_row);
    else
        for (int64_t i = 0; i < rows; i++)
            widen(columns, in + i * in_row, in_column, out + i * out_row, 4);
}

/* Packs each row of pairs (x, y) as two rows: (x, y) and (-y, x). `rows` and `columns` count pairs. */
#define PACK_PAIRS(real) \
    static void pack_pairs_##real(int64_t rows, int64_t columns, const char *in, int64_t in_row, int64_t in_column, \
                                  char *out, int64_t out_row) \
    { \
        for (int64_t i = 0; i < rows; i++) { \
            real *upper = (real *)(out + 2 * i * out_row), *lower = (real *)(out + (2 * i + 1) * out_row); \
            for (int64_t j = 0; j < columns; j++) { \
                const unaligned_##real *pair = (const unaligned_##real *)(in + i * in_row + j * in_column); \
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

/* Packs a panel of a: its rows are contiguous, its columns (reals) packed_a_column apart. */
static void pack_panel(const product *job, k_part part, const char *a, int64_t panel, char *out)
{
    int64_t row = job->row0 + panel * job->panel, rows = min(job->panel, job->row0 + job->rows - row);
    int64_t column = job->packed_a_column;
    if (job->form == PAIRS) {
        const char *in = a + row * job->a.row + part.k0 / 2 * job->a.column;
        for (int64_t half = 0; half < 2; half++)
            pack_rows(job->real, part.depth / 2, rows, in + half * job->real, job->a.column, job->a.row,
                      out + half * column, 2 * column);
        return;
    }
    const char *in = a + row * job->a.row + part.k0 * job->a.column;
    if (job->form == HALF) {
        pack_halves(part.depth, rows, in, job->a.column, job->a.row, out, column);
        return;
    }
    /* whole squares are transposed fastest: rows of the next panel fill the unused space of this one */
    if (job->kernel->pack_a != NULL && job->a.column == job->element && job->m - row >= job->kernel->packed_rows) {
        job->kernel->pack_a(part.depth, in, job->a.row, out);
        return;
    }
    pack_rows(job->element, part.depth, rows, in, job->a.column, job->a.row, out, column);
}

static void pack_sliver(const product *job, k_part part, const char *b, int64_t sliver, char *out)
{
    int64_t pair = job->form == PAIRS ? 2 : 1;
    int64_t column = job->column0 + sliver * job->kernel->columns;
    int64_t columns = min(job->kernel->columns, job->column0 + job->columns - column);
    const char *in = b + part.k0 / pair * job->b.row + column / pair * job->b.column;
    if (job->form == HALF)
        pack_halves(part.depth, columns, in, job->b.row, job->b.column, out, job->packed_b_row);
    else if (job->form == PLAIN)
        pack_rows(job->element, part.depth, columns, in, job->b.row, job->b.column, out, job->packed_b_row);
    else if (job->real == sizeof(float))
        pack_pairs_float(part.depth / 2, columns / 2, in, job->b.row, job->b.column, out, job->packed_b_row);
    else
        pack_pairs_double(part.depth / 2, columns / 2, in, job->b.row, job->b.column, out, job->packed_b_row);
}

/* Packs up to PACK_SLIVERS slivers of one matrix: piece `piece`. */
static void pack(const product *job, k_part part, int64_t piece)
{
    int64_t pieces = ceil_div(job->slivers, PACK_SLIVERS), matrix = piece / pieces,
            sliver = piece % pieces * PACK_SLIVERS;
    int64_t end = min(job->slivers, sliver + PACK_SLIVERS),
            full = min(end, job->columns / job->kernel->columns) - sliver;
    const char *b = matrix_of(job, &job->b, job->first + matrix);
    char *out = job->packed_b + part.index % RING * job->packed_b_part + matrix * job->packed_b_matrix
                + sliver * job->sliver_bytes;
    if (job->form == PLAIN && job->b.column == job->element && job->kernel->pack_b != NULL && full > 0) {
        job->kernel->pack_b(part.depth, full,
                            b + part.k0 * job->b.row + (job->column0 + sliver * job->kernel->columns) * job->real,
                            job->b.row, out, job->sliver_bytes);
        sliver += full;
        out += full * job->sliver_bytes;
    }
    for (; sliver < end; sliver++, out += job->sliver_bytes)
        pack_sliver(job, part, b, sliver, out);
}

/* ---- computing */
/* Computes a tile whose columns are not contiguous in the output, in a buffer, and copies it. */
static void scattered_tile(const product *job, vme_gemm_tile *tile, int64_t column)
{
    _Alignas(VME_ALIGNMENT) char buffer[TILE_BYTES_MAX];
    char *c = tile->c;
    int64_t c_row = tile->c_row;
    int step = job->element / job->real; /* 2 for pairs */
    tile->c = buffer;
    tile->c_row = tile->columns * job->real;
    if (tile->accumulate)
        for (int i = 0; i < tile->rows; i++)
            for (int j = 0; j < tile->columns; j += step)
                memcpy(buffer + i * tile->c_row + j * job->real, c + i * c_row + (column + j) / step * job->c.column,
                       (size_t)job->element);
    job->kernel->tile(tile);
    for (int i = 0; i < tile->rows; i++)
        for (int j = 0; j < tile->columns; j += step)
            memcpy(c + i * c_row + (column + j) / step * job->c.column, buffer + i * tile->c_row + j * job->real,
                   (size_t)job->element);
    tile->c = c;
    tile->c_row = c_row;
}

/* Acquires a workspace for one thread and one cell: if possible the one that the thread used last, which is in its
 * caches. There is one for each thread that may work; a surplus thread waits. */
static char *workspace_acquire(const product *job)
{
    for (int64_t i = vme_worker();; i++) {
        char *workspace = job->workspaces + i % job->workspace_count * job->workspace_bytes;
        bool taken = false;
        if (atomic_compare_exchange_strong((atomic_bool *)workspace, &taken, true))
            return workspace;
        vme_relax();
    }
}

/* Computes a cell's part of k. Returns false if the context was stopped. */
static bool compute_cell(const product *job, k_part part, int64_t matrix, int64_t cell_row, int64_t cell_column)
{
    const vme_gemm_kernel *kernel = job->kernel;
    int64_t pair = job->form == PAIRS ? 2 : 1;
    int64_t first_panel = cell_row * job->cell_panels, panels = min(job->panels - first_panel, job->cell_panels);
    const char *a = matrix_of(job, &job->a, job->first + matrix);
    const char *b = matrix_of(job, &job->b, job->first + matrix) + part.k0 * job->b.row + job->column0 * job->real;
    if (job->pack_b)
        b = job->packed_b + part.index % RING * job->packed_b_part
            + (job->b_shared ? 0 : matrix * job->packed_b_matrix);
    bool scattered = job->form != HALF && job->c.column != job->element;
    char *c = job->form == HALF ? job->sums : matrix_of(job, &job->c, job->first + matrix) + job->row0 * job->c.row;
    int64_t c_row = job->form == HALF ? job->columns * job->real : job->c.row;
    if (job->form != HALF && !scattered)
        c += job->column0 * job->real;
    vme_gemm_tile tile = {
        .k = part.depth,
        .a_row = job->pack_a ? job->real : job->a.row,
        .a_column = job->pack_a          ? job->packed_a_column
                    : job->form == PAIRS ? job->real
                                         : job->a.column,
        .b_row = job->pack_b ? job->packed_b_row : job->b.row,
        .c_row = c_row,
        .accumulate = part.k0 > 0,
        .far = true,
    };
    /* prefetch distance: the rows of b that are used while one is loaded, from L2 if it is packed, else from memory */
    tile.ahead = (job->pack_b ? 8 : MATMUL_AHEAD / job->panel) * tile.b_row;
    int64_t panel_bytes = job->pack_a ? job->panel_bytes : job->panel * job->a.row;
    int64_t sliver_bytes = job->pack_b ? job->sliver_bytes : (int64_t)kernel->columns * job->real;
    char *workspace = NULL;
    if (job->pack_a) {
        workspace = workspace_acquire(job);
        for (int64_t p = 0; p < panels; p++)
            pack_panel(job, part, a, first_panel + p, workspace + VME_ALIGNMENT + p * panel_bytes);
        a = workspace + VME_ALIGNMENT;
    } else
        a += (job->row0 + first_panel * job->panel) * job->a.row + part.k0 / pair * job->a.column;
    int64_t first_sliver = cell_column * job->cell_slivers, end = min(job->slivers, first_sliver + job->cell_slivers);
    bool stopped = false;
    for (; first_sliver < end && !stopped; first_sliver += job->near_slivers) {
        int64_t slivers = min(job->near_slivers, end - first_sliver);
        for (int64_t i = 0; i < panels * slivers; i++) {
            /* along the rows of the output; but if b is not packed, a few panels are multiplied with each sliver while
             * it is in cache */
            int64_t p = job->pack_b ? i / slivers : i % panels;
            int64_t s = first_sliver + (job->pack_b ? i % slivers : i / panels);
            int64_t row = (first_panel + p) * job->panel, column = s * kernel->columns;
            tile.rows = (int)min(job->panel, job->rows - row);
            tile.columns = (int)min(kernel->columns, job->columns - column);
            tile.a = a + p * panel_bytes;
            tile.b = b + s * sliver_bytes;
            tile.c = c + row * c_row;
            if (scattered)
                scattered_tile(job, &tile, job->column0 + column);
            else {
                tile.c += column * job->real;
                kernel->tile(&tile);
            }
        }
        stopped = vme_stopping(job->context);
    }
    if (workspace != NULL)
        atomic_store_explicit((atomic_bool *)workspace, false, memory_order_release);
    return !stopped;
}

/* Waits until earlier pieces have raised `count` to `target`. Returns false if they will not, because the context was
 * stopped. */
static bool await(const product *job, const atomic_llong *count, int64_t target)
{
    for (int spins = 1; atomic_load_explicit(count, memory_order_acquire) < target; spins++) {
        if (vme_stopping(job->context) || atomic_load_explicit(&job->abandoned, memory_order_relaxed))
            return false;
        if (spins % SPINS_MAX == 0)
            sched_yield(); /* the thread with that piece may need this core */
        else
            vme_relax();
    }
    return true;
}

static bool run_piece(product *job, k_part part, int64_t piece)
{
    int64_t slot = part.index % RING, round = part.index / RING;
    if (piece < job->packs) {
        /* wait until the previous part at this index in the ring is no longer needed */
        if (!await(job, &job->computed[slot], round * job->cells))
            return false;
        pack(job, part, piece);
        atomic_fetch_add_explicit(&job->packed[slot], 1, memory_order_release);
        return true;
    }
    int64_t cell = piece - job->packs, across = cell / job->cell_rows;
    if (!await(job, &job->packed[slot], (round + 1) * job->packs)
        || (job->cell_progress != NULL && !await(job, &job->cell_progress[cell], part.index)))
        return false;
    if (!compute_cell(job, part, across / job->cell_columns, cell % job->cell_rows, across % job->cell_columns))
        return false;
    if (job->cell_progress != NULL) {
        atomic_store_explicit(&job->cell_progress[cell], part.index + 1, memory_order_release);
        atomic_fetch_add_explicit(&job->computed[slot], 1, memory_order_release);
    }
    return true;
}

static vme_status run_pieces(void *argument, int64_t begin, int64_t end)
{
    product *job = argument;
    for (int64_t i = begin; i < end; i++) {
        int64_t index = i / (job->packs + job->cells);
        k_part part = {.index = index, .k0 = index * job->depth, .depth = min(job->depth, job->k - index * job->depth)};
        if (atomic_load_explicit(&job->abandoned, memory_order_relaxed)
            || !run_piece(job, part, i % (job->packs + job->cells)))
            atomic_store_explicit(&job->abandoned, true, memory_order_relaxed);
    }
    return VME_OK;
}

/* Rounds rows of the float32 sums to the float16 output. */
static vme_status round_halves(void *argument, int64_t begin, int64_t end)
{
    const product *job = argument;
    char *c = matrix_of(job, &job->c, job->first) + job->row0 * job->c.row + job->column0 * job->c.column;
    vme_loop1 *round_to_half = vme_kernels_current()->elementwise.cast[VME_FLOAT32][VME_FLOAT16];
    for (int64_t i = begin; i < end; i++) {
        const float *sums = (const float *)job->sums + i * job->columns;
        round_to_half(job->columns, (const char *)sums, 4, c + i * job->c.row, job->c.column);
    }
    return VME_OK;
}

/* Chooses the panels and slivers of a cell, for the largest block. */
static void divide(product *job)
{
    const vme_gemm_kernel *kernel = job->kernel;
    int64_t depth = max(1, job->depth), panels = ceil_div(job->rows, job->panel),
            slivers = ceil_div(job->columns, kernel->columns);
    int64_t sliver_work = job->panel * kernel->columns * depth;
    int64_t total = job->group * job->rows * job->columns * max(1, job->k);
    int64_t work = max(min(kernel->work, MATMUL_PIECE_MIN), min(kernel->work, total / (PIECES * vme_threads())));
    job->near_slivers = max(1, min(slivers, MATMUL_NEAR / (depth * kernel->columns * job->real)));
    if (job->pack_a) {
        bool far = job->pack_b && slivers > job->near_slivers; /* packed b does not stay in L2 */
        int64_t min_panels = far ? max(1, min(MATMUL_PANELS_MIN, panels / (2 * vme_threads()))) : 1;
        job->cell_panels = min(min(panels, MATMUL_PANELS_MAX), max(min_panels, work / (sliver_work * slivers)));
        int64_t columns = job->cell_panels * sliver_work * slivers / (min_panels > 1 ? 8 * kernel->work : work);
        job->cell_slivers = ceil_div(slivers, max(1, min(columns, slivers / MATMUL_SLIVERS_MIN)));
    } else {
        job->cell_slivers = ceil_div(slivers, ceil_div(slivers, max(1, min(work / sliver_work, job->near_slivers))));
        job->cell_panels = max(1, min(panels, work / (sliver_work * job->cell_slivers)));
    }
    job->cell_panels = ceil_div(panels, ceil_div(panels, job->cell_panels));
}

/* Counts the cells and packing pieces of the current block. */
static void count_cells(product *job)
{
    job->panels = ceil_div(job->rows, job->panel);
    job->slivers = ceil_div(job->columns, job->kernel->columns);
    job->cell_rows = ceil_div(job->panels, job->cell_panels);
    job->cell_columns = ceil_div(job->slivers, job->cell_slivers);
    job->cells = job->group * job->cell_rows * job->cell_columns;
    job->packs = job->pack_b ? ceil_div(job->slivers, PACK_SLIVERS) * (job->b_shared ? 1 : job->group) : 0;
}

/* Computes one block of rows and columns, for `group` matrices and all of k. */
static vme_status compute_block(product *job)
{
    count_cells(job);
    for (int i = 0; i < RING; i++) {
        atomic_store_explicit(&job->packed[i], 0, memory_order_relaxed);
        atomic_store_explicit(&job->computed[i], 0, memory_order_relaxed);
    }
    for (int64_t i = 0; job->cell_progress != NULL && i < job->cells; i++)
        atomic_store_explicit(&job->cell_progress[i], 0, memory_order_relaxed);
    atomic_store_explicit(&job->abandoned, false, memory_order_relaxed);
    int64_t pieces = job->packs + job->cells, work = job->group * job->rows * job->columns * job->depth / pieces;
    int64_t grain = max(1, MATMUL_PIECE_MIN / max(1, work));
    vme_status status = vme_parallel(job->context, job->parts * pieces, grain, run_pieces, job);
    if (status == VME_OK && atomic_load_explicit(&job->abandoned, memory_order_relaxed))
        return vme_stopped_here(job->context);
    return status;
}

/* The length of the equal parts into which `length` is divided: a multiple of `unit`, at most about `max_each`. */
static int64_t equal_parts(int64_t length, int64_t max_each, int64_t unit)
{
    return ceil_div(ceil_div(max(1, length), ceil_div(max(1, length), max_each)), unit) * unit;
}

/* Decides which operands are packed. */
static void choose_packing(product *job)
{
    const vme_gemm_kernel *kernel = job->kernel;
    job->panel = ceil_div(job->m, ceil_div(job->m, kernel->rows));
    job->b_shared = true;
    for (int d = 0; d < job->lead; d++)
        job->b_shared = job->b_shared && job->b.lead[d] == 0;
    bool contiguous = job->a.column == job->element;
    job->pack_a = job->form == HALF
                  || (job->form == PAIRS ? !contiguous
                                         : job->n > 2 * kernel->columns && (!contiguous || job->m * job->k > 1 << 14));
    /* short rows that are contiguous in memory need no packing for few panels */
    bool narrow = job->b.row > 0 && job->b.row < MATMUL_NARROW;
    job->pack_b = job->form != PLAIN || job->b.column != job->element || job->m > (narrow ? 16 : 4) * job->panel;
}

/* Computes all rows of the output in one block of columns. float16 is computed by blocks of rows, because the memory
 * for its float32 sums holds one block. */
static vme_status compute_columns(product *job, int64_t rows)
{
    vme_status status = VME_OK;
    for (job->row0 = 0; status == VME_OK && job->row0 < job->m; job->row0 += rows) {
        job->rows = min(rows, job->m - job->row0);
        status = compute_block(job);
        if (status == VME_OK && job->form == HALF)
            status = vme_parallel(job->context, job->rows, max(1, (1 << 16) / job->columns), round_halves, job);
    }
    return status;
}

static size_t round_up(int64_t bytes) { return ((size_t)bytes + VME_ALIGNMENT - 1) & ~(size_t)(VME_ALIGNMENT - 1); }

static vme_status multiply(product *job)
{
    choose_packing(job);
    const vme_gemm_kernel *kernel = job->kernel;
    /* depths are even, so that complex numbers stay whole */
    job->depth = equal_parts(job->k, MATMUL_SUM, 2);
    job->parts = max(1, ceil_div(job->k, job->depth));
    int64_t rows = job->form == HALF ? equal_parts(job->m, MATMUL_ROWS, job->panel) : job->m;
    int64_t columns = equal_parts(job->n, MATMUL_COLUMNS, kernel->columns);
    job->packed_a_column = (int64_t)kernel->packed_rows * job->real;
    job->panel_bytes = (int64_t)round_up(job->depth * job->packed_a_column);
    job->packed_b_row = (int64_t)kernel->columns * job->real;
    job->sliver_bytes = max(1, job->depth) * job->packed_b_row;
    job->packed_b_matrix = job->pack_b ? ceil_div(columns, kernel->columns) * job->sliver_bytes : 0;
    int64_t ring = min(RING, job->parts), matrix_bytes = job->b_shared ? 0 : ring * job->packed_b_matrix;
    /* the memory for float16's sums holds one matrix */
    int64_t group = job->form == HALF   ? 1
                    : matrix_bytes == 0 ? job->matrices
                                        : min(job->matrices, max(1, MATMUL_PACKED_MAX / matrix_bytes));
    job->packed_b_part = job->packed_b_matrix * (job->b_shared ? 1 : group);
    job->group = group;
    job->rows = rows;
    job->columns = min(columns, job->n);
    divide(job);
    count_cells(job);
    job->workspace_count = job->pack_a ? min(vme_threads(), job->cells) : 0;
    job->workspace_bytes = VME_ALIGNMENT + job->cell_panels * job->panel_bytes;
    int64_t b_bytes = ring * job->packed_b_part, all_workspace_bytes = job->workspace_count * job->workspace_bytes;
    int64_t progress_bytes = job->parts > 1 ? (int64_t)round_up(job->cells * (int64_t)sizeof *job->cell_progress) : 0;
    size_t bytes = (size_t)(b_bytes + all_workspace_bytes + progress_bytes)
                   + (job->form == HALF ? round_up(rows * columns * job->real) : 0);
    char *scratch = NULL;
    if (bytes > 0) {
        scratch = vme_scratch_new(job->context, bytes);
        if (scratch == NULL)
            return VME_NO_MEMORY;
        job->packed_b = scratch;
        job->workspaces = scratch + b_bytes;
        job->cell_progress = progress_bytes > 0 ? (atomic_llong *)(scratch + b_bytes + all_workspace_bytes) : NULL;
        job->sums = scratch + b_bytes + all_workspace_bytes + progress_bytes;
        for (int64_t i = 0; i < job->workspace_count; i++)
            atomic_init((atomic_bool *)(job->workspaces + i * job->workspace_bytes), false);
    }
    vme_status status = VME_OK;
    for (job->first = 0; status == VME_OK && job->first < job->matrices; job->first += group) {
        job->group = min(group, job->matrices - job->first);
        for (job->column0 = 0; status == VME_OK && job->column0 < job->n; job->column0 += columns) {
            job->columns = min(columns, job->n - job->column0);
            status = compute_columns(job, rows);
        }
    }
    vme_scratch_free(job->context, scratch, bytes);
    return status;
}

/* ---- small products: tiles on the operands in place */
static void small_tiles(const product *job, const char *a, const char *b, char *c)
{
    const vme_gemm_kernel *kernel = job->kernel;
    vme_gemm_tile tile = {
        .k = job->k, .a_row = job->a.row, .a_column = job->a.column, .b_row = job->b.row, .c_row = job->c.row};
    int sliver_bytes = kernel->columns * job->real, m = (int)job->m, n = (int)job->n, panel = (int)job->panel;
    tile.ahead = 8 * job->b.row;
    for (int column = 0; column < n; column += kernel->columns) {
        tile.columns = n - column < kernel->columns ? n - column : kernel->columns;
        tile.b = b;
        tile.a = a;
        tile.c = c;
        for (int row = 0; row < m; row += panel) {
            tile.rows = m - row < panel ? m - row : panel;
            kernel->tile(&tile);
            tile.a += panel * job->a.row;
            tile.c += panel * job->c.row;
        }
        b += sliver_bytes;
        c += sliver_bytes;
    }
}

static vme_status small_products(void *argument, int64_t begin, int64_t end)
{
    const product *job = argument;
    for (int64_t i = begin; i < end; i++) {
        const char *a = matrix_of(job, &job->a, i), *b = matrix_of(job, &job->b, i);
        char *c = matrix_of(job, &job->c, i);
        if (job->n == 1 && job->kernel->dots != NULL && job->k > 0 && job->a.column == job->real
            && job->b.row == job->real)
            job->kernel->dots(job->m, 1, job->k, a, job->a.row, b, 0, c, job->c.row, 0);
        else if (job->n == 1 && job->kernel->dots != NULL && job->k > 0 && job->a.row == job->real
                 && job->c.row == job->real)
            job->kernel->sums(job->k, job->m, b, job->b.row, a, job->a.column, c, false);
        else
            small_tiles(job, a, b, c);
    }
    return VME_OK;
}

static vme_status multiply_small(product *job)
{
    /* equal panels; 32-bit divisions are the fast ones */
    uint32_t m = (uint32_t)job->m, panels = (m + (uint32_t)job->kernel->rows - 1) / (uint32_t)job->kernel->rows;
    job->panel = (m + panels - 1) / panels;
    int64_t grain = job->matrices == 1 ? 1 : max(1, MATMUL_SMALL / (job->m * job->n * job->k + 256));
    return vme_parallel(job->context, job->matrices, grain, small_products, job);
}

/* ---- thin products: each row of the output is a sum of a few scaled rows of b */
static vme_status thin_rows(void *argument, int64_t begin, int64_t end)
{
    const product *job = argument;
    for (int64_t i = begin; i < end; i++) {
        int64_t matrix = job->first + i / job->m, row = i % job->m;
        job->kernel->sums(job->k, job->n, matrix_of(job, &job->a, matrix) + row * job->a.row, job->a.column,
                          matrix_of(job, &job->b, matrix), job->b.row,
                          matrix_of(job, &job->c, matrix) + row * job->c.row, false);
    }
    return VME_OK;
}

/* ---- few rows, bound by loading b from memory
 * A thread takes a strip of columns and walks down b by slabs of a few rows. While it computes the tiles of one slab,
 * it prefetches the cache lines of the next slab in memory order and packs them as they arrive. So b is read once, at
 * the speed of memory. Packed slabs and sums stay in L2; b and the output would not if their rows are a power of two
 * apart. */
typedef struct strips {
    const product *job;
    const char *a, *b; /* of the current matrix */
    char *c;
} strips;

static void pack_row(const product *job, const char *b, int64_t columns, char *out)
{
    int64_t full = columns / job->kernel->columns, rest = columns % job->kernel->columns;
    if (full > 0)
        job->kernel->pack_b(1, full, b, 0, out, job->sliver_bytes);
    if (rest > 0)
        memcpy(out + full * job->sliver_bytes, b + full * job->packed_b_row, (size_t)(rest * job->real));
}

/* Computes one strip. `panels` is the thread's workspace. Returns false if the context was stopped. */
static bool compute_strip(const strips *task, int64_t column, char *panels)
{
    const product *job = task->job;
    const int64_t tile_columns = job->kernel->columns, columns = min(job->columns, job->n - column),
                  slivers = ceil_div(columns, tile_columns);
    char *slabs = panels + job->panels * job->panel_bytes, *sums = slabs + RING * job->packed_b_part;
    const char *b = task->b + column * job->real;
    for (int64_t j = 0; j < min(job->depth, job->k); j++)
        pack_row(job, b + j * job->b.row, columns, slabs + j * job->packed_b_row);
    for (int64_t index = 0; index < job->parts; index++) {
        const k_part part = {
            .index = index, .k0 = index * job->depth, .depth = min(job->depth, job->k - index * job->depth)};
        const int64_t next_depth = min(job->depth, job->k - part.k0 - part.depth);
        const char *slab = slabs + index % RING * job->packed_b_part;
        char *next = slabs + (index + 1) % RING * job->packed_b_part;
        for (int64_t panel = 0; panel < job->panels; panel++)
            pack_panel(job, part, task->a, panel, panels + panel * job->panel_bytes);
        b += part.depth * job->b.row;
        for (int64_t sliver = 0, packed = 0; sliver < slivers; sliver++) {
            vme_gemm_tile tile = {.k = part.depth,
                                  .a_row = job->real,
                                  .a_column = job->packed_a_column,
                                  .b_row = job->packed_b_row,
                                  .c_row = job->packed_b_row,
                                  .accumulate = index > 0};
            tile.columns = (int)min(tile_columns, columns - sliver * tile_columns);
            tile.b = slab + sliver * job->sliver_bytes;
            /* prefetch one row ahead of packing; a tile's step on that row prefetches what it reads itself */
            const int64_t prefetched = next_depth * sliver + slivers;
            if (prefetched < next_depth * slivers)
                tile.ahead = b + prefetched / slivers * job->b.row + prefetched % slivers * job->packed_b_row - tile.b;
            for (int64_t row = 0; row < job->m; row += job->panel, tile.ahead = 0) {
                tile.rows = (int)min(job->panel, job->m - row);
                tile.a = panels + row / job->panel * job->panel_bytes;
                tile.c = sums + (sliver * job->m + row) * job->packed_b_row;
                job->kernel->tile(&tile);
            }
            for (const int64_t end = next_depth * (sliver + 1) / slivers; packed < end; packed++)
                pack_row(job, b + packed * job->b.row, columns, next + packed * job->packed_b_row);
        }
        if (vme_stopping(job->context))
            return false;
    }
    for (int64_t row = 0; row < job->m; row++)
        for (int64_t sliver = 0; sliver < slivers; sliver++)
            memcpy(task->c + row * job->c.row + (column + sliver * tile_columns) * job->real,
                   sums + (sliver * job->m + row) * job->packed_b_row,
                   (size_t)(min(tile_columns, columns - sliver * tile_columns) * job->real));
    return true;
}

static vme_status compute_strips(void *argument, int64_t begin, int64_t end)
{
    const strips *task = argument;
    char *workspace = workspace_acquire(task->job);
    bool stopped = false;
    for (int64_t i = begin; i < end && !stopped; i++)
        stopped = !compute_strip(task, i * task->job->columns, workspace + VME_ALIGNMENT);
    atomic_store_explicit((atomic_bool *)workspace, false, memory_order_release);
    return stopped ? vme_stopped_here(task->job->context) : VME_OK;
}

static vme_status multiply_strips(product *job)
{
    const vme_gemm_kernel *kernel = job->kernel;
    job->depth = job->slivers = STRIP; /* equal, so that each tile prefetches one row */
    job->parts = ceil_div(job->k, job->depth);
    job->columns = job->slivers * kernel->columns;
    job->rows = job->m;
    job->panels = ceil_div(job->m, kernel->rows);
    job->panel = ceil_div(job->m, job->panels);
    job->packed_a_column = (int64_t)kernel->packed_rows * job->real;
    job->panel_bytes = job->depth * job->packed_a_column;
    job->packed_b_row = (int64_t)kernel->columns * job->real;
    /* not a power of two, so that slivers do not share cache sets */
    job->sliver_bytes = (job->depth + 1) * job->packed_b_row;
    job->packed_b_part = job->slivers * job->sliver_bytes;
    int64_t strip_count = ceil_div(job->n, job->columns);
    job->workspace_count = min(vme_threads(), strip_count);
    job->workspace_bytes = VME_ALIGNMENT + job->panels * job->panel_bytes + RING * job->packed_b_part
                           + job->slivers * job->m * job->packed_b_row;
    size_t bytes = (size_t)(job->workspace_count * job->workspace_bytes);
    job->workspaces = vme_scratch_new(job->context, bytes);
    if (job->workspaces == NULL)
        return VME_NO_MEMORY;
    for (int64_t i = 0; i < job->workspace_count; i++)
        atomic_init((atomic_bool *)(job->workspaces + i * job->workspace_bytes), false);
    vme_status status = VME_OK;
    for (int64_t i = 0; status == VME_OK && i < job->matrices; i++) {
        strips task = {job, matrix_of(job, &job->a, i), matrix_of(job, &job->b, i), matrix_of(job, &job->c, i)};
        status = vme_parallel(job->context, strip_count, 1, compute_strips, &task);
    }
    vme_scratch_free(job->context, job->workspaces, bytes);
    return status;
}

/* ---- a matrix times a few vectors, one matrix at a time */
typedef struct vector_product {
    const product *job;
    const char *a, *x;
    char *c; /* if k is divided: partial sums, [part][vector][row] */
    int64_t c_row, c_vector, c_part, x_row, pieces, step;
} vector_product;

static vme_status dots(void *argument, int64_t begin, int64_t end)
{
    const vector_product *task = argument;
    const product *job = task->job;
    for (int64_t i = begin; i < end; i++) {
        int64_t part = i / task->pieces, row = i % task->pieces * task->step, rows = min(task->step, job->m - row);
        int64_t p = part * MATMUL_DOTS, depth = min(MATMUL_DOTS, job->k - p);
        for (int64_t v = 0; v < job->n; v += 4)
            job->kernel->dots(rows, (int)min(4, job->n - v), depth, task->a + row * job->a.row + p * job->real,
                              job->a.row, task->x + v * task->x_row + p * job->real, task->x_row,
                              task->c + part * task->c_part + row * task->c_row + v * task->c_vector, task->c_row,
                              task->c_vector);
    }
    return VME_OK;
}

#define ADD_PARTS(real) \
    static void add_parts_##real(const vector_product *task, int64_t part_count, char *c) \
    { \
        const product *job = task->job; \
        for (int64_t v = 0; v < job->n; v++) \
            for (int64_t i = 0; i < job->m; i++) { \
                real total = 0; \
                for (int64_t part = 0; part < part_count; part++) \
                    total += *(const real *)(task->c + part * task->c_part + v * task->c_vector + i * task->c_row); \
                *(unaligned_##real *)(c + i * job->c.row + v * job->c.column) = total; \
            } \
    }
ADD_PARTS(float)
ADD_PARTS(double)

static vme_status multiply_dots(const product *job, const char *a, const char *b, char *c)
{
    vector_product task = {
        .job = job, .a = a, .x = b, .c = c, .c_row = job->c.row, .c_vector = job->c.column, .x_row = job->b.column};
    int64_t part_count = ceil_div(job->k, MATMUL_DOTS);
    bool contiguous = job->b.row == job->real;
    int64_t packed_row = (int64_t)round_up(job->k * job->real) + VME_ALIGNMENT;
    int64_t bytes = contiguous ? 0 : job->n * packed_row;
    int64_t part_bytes = part_count > 1 ? part_count * job->n * job->m * job->real : 0;
    char *scratch = NULL;
    if (bytes + part_bytes > 0) {
        scratch = vme_scratch_new(job->context, (size_t)(bytes + part_bytes));
        if (scratch == NULL)
            return VME_NO_MEMORY;
    }
    if (!contiguous) {
        pack_rows(job->real, job->n, job->k, b, job->b.column, job->b.row, scratch, packed_row);
        task.x = scratch;
        task.x_row = packed_row;
    }
    if (part_count > 1) {
        task.c = scratch + bytes;
        task.c_row = job->real;
        task.c_vector = job->m * job->real;
        task.c_part = job->n * task.c_vector;
    }
    task.step = max(4, MATMUL_VECTOR_WORK / min(job->k, MATMUL_DOTS) & ~(int64_t)3);
    task.pieces = ceil_div(job->m, task.step);
    vme_status status = vme_parallel(job->context, part_count * task.pieces, 1, dots, &task);
    if (status == VME_OK && part_count > 1) {
        if (job->real == sizeof(float))
            add_parts_float(&task, part_count, c);
        else
            add_parts_double(&task, part_count, c);
    }
    vme_scratch_free(job->context, scratch, (size_t)(bytes + part_bytes));
    return status;
}

/* A vector-matrix product by strips of columns. A piece is one part of k of one strip; all strips of one part come
 * before those of the next. */
typedef struct strip_sums {
    const product *job;
    const char *a, *x;
    char *c;
    int64_t columns, strips, step, depth;
    atomic_llong done[SUM_STRIPS]; /* completed parts of k of each strip */
} strip_sums;

static vme_status sums(void *argument, int64_t begin, int64_t end)
{
    strip_sums *task = argument;
    const product *job = task->job;
    for (int64_t i = begin; i < end; i++) {
        int64_t part = i / task->strips, strip = i % task->strips, k0 = part * task->depth, column = strip * task->step;
        if (!await(job, &task->done[strip], part))
            return vme_stopped_here(job->context);
        job->kernel->sums(min(task->depth, job->k - k0), min(task->step, task->columns - column),
                          task->x + k0 * job->b.row, job->b.row, task->a + column * job->real + k0 * job->a.column,
                          job->a.column, task->c + column * job->real, k0 > 0);
        atomic_store_explicit(&task->done[strip], part + 1, memory_order_release);
    }
    return VME_OK;
}

/* One vector times a matrix with contiguous columns; the output is contiguous. */
static vme_status multiply_sums(const product *job, const char *a, const char *x, char *c)
{
    strip_sums task = {.job = job, .x = x, .step = min(job->m, job->m >= 4096 ? 1024 : job->m >= 1024 ? 512 : 256)};
    task.depth = min(job->k, max(8, MATMUL_VECTOR_WORK / task.step & ~(int64_t)7));
    vme_status status = VME_OK;
    for (int64_t column = 0; status == VME_OK && column < job->m; column += task.columns) {
        task.columns = min(job->m - column, SUM_STRIPS * task.step);
        task.strips = ceil_div(task.columns, task.step);
        task.a = a + column * job->real;
        task.c = c + column * job->real;
        for (int64_t strip = 0; strip < task.strips; strip++)
            atomic_init(&task.done[strip], 0);
        status = vme_parallel(job->context, task.strips * ceil_div(job->k, task.depth), 1, sums, &task);
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

static void transpose_product(product *job)
{
    operand_view a = job->a;
    job->a = job->b;
    job->b = a;
    int64_t m = job->m;
    job->m = job->n;
    job->n = m;
    operand_view *operands[] = {&job->a, &job->b, &job->c};
    for (int i = 0; i < 3; i++) {
        int64_t row = operands[i]->row;
        operands[i]->row = operands[i]->column;
        operands[i]->column = row;
    }
}

/* Drops leading dimensions of size 1. Merges those along which b is the same into the rows of a and c, if their steps
 * allow it. */
static void fold_leads(product *job)
{
    int kept = 0;
    for (int d = 0; d < job->lead; d++)
        if (job->lead_shape[d] != 1) {
            job->lead_shape[kept] = job->lead_shape[d];
            job->a.lead[kept] = job->a.lead[d];
            job->b.lead[kept] = job->b.lead[d];
            job->c.lead[kept] = job->c.lead[d];
            kept++;
        }
    while (kept > 0 && job->b.lead[kept - 1] == 0) {
        if (job->m == 1) {
            job->a.row = job->a.lead[kept - 1];
            job->c.row = job->c.lead[kept - 1];
        } else if (job->a.lead[kept - 1] != job->m * job->a.row || job->c.lead[kept - 1] != job->m * job->c.row)
            break;
        job->m *= job->lead_shape[--kept];
    }
    job->lead = kept;
    job->matrices = 1;
    for (int d = 0; d < kept; d++)
        job->matrices *= job->lead_shape[d];
}

static vme_status set_operands(product *job, const vme_tensor *a, const vme_tensor *b, const vme_tensor *out)
{
    const vme_tensor *tensors[] = {a, b, out};
    operand_view *operands[] = {&job->a, &job->b, &job->c};
    job->lead = out->rank - 2;
    memcpy(job->lead_shape, out->shape, (size_t)job->lead * sizeof *job->lead_shape);
    vme_tensor target = *out;
    target.rank = job->lead;
    for (int i = 0; i < 3; i++) {
        const vme_tensor *tensor = tensors[i];
        vme_tensor leading = *tensor;
        leading.rank = tensor->rank - 2;
        vme_status status = vme_broadcast_strides(&leading, &target, operands[i]->lead);
        if (status != VME_OK)
            return status;
        operands[i]->data = tensor->data;
        operands[i]->row = tensor->strides[tensor->rank - 2];
        operands[i]->column = tensor->strides[tensor->rank - 1];
    }
    job->m = out->shape[out->rank - 2];
    job->n = out->shape[out->rank - 1];
    job->k = a->shape[a->rank - 1];
    return VME_OK;
}

static vme_status for_each_matrix(const product *job,
                                  vme_status (*multiply_one)(const product *, const char *, const char *, char *))
{
    vme_status status = VME_OK;
    for (int64_t i = 0; status == VME_OK && i < job->matrices; i++)
        status = multiply_one(job, matrix_of(job, &job->a, i), matrix_of(job, &job->b, i), matrix_of(job, &job->c, i));
    return status;
}

static vme_status compute_product(vme_context *context, const vme_tensor *a, const vme_tensor *b, const vme_tensor *out)
{
    vme_dtype dtype = (vme_dtype)a->dtype;
    product job;
    memset(&job, 0, offsetof(product, lead));
    job.context = context;
    job.element = vme_dtype_size(dtype);
    vme_status status = set_operands(&job, a, b, out);
    if (status != VME_OK)
        return status;
    fold_leads(&job);
    if (job.m == 0 || job.n == 0 || job.matrices == 0)
        return VME_OK;
    job.form = dtype >= VME_COMPLEX64 ? PAIRS : dtype == VME_FLOAT16 ? HALF : PLAIN;
    vme_dtype real = dtype == VME_FLOAT16 || dtype == VME_COMPLEX64 ? VME_FLOAT32
                     : dtype == VME_COMPLEX128                      ? VME_FLOAT64
                                                                    : dtype;
    job.real = vme_dtype_size(real);
    job.kernel = &vme_kernels_current()->gemm.of[real];

    bool has_dots = job.form == PLAIN && job.kernel->dots != NULL;
    bool scattered = job.c.column != job.element && job.n > 1;
    if (has_dots && job.m == 1 && job.n > 1)
        transpose_product(&job); /* the vector becomes the second operand */
    else if (scattered && (job.c.row == job.element || job.m == 1))
        transpose_product(&job); /* tiles write along rows */
    else if (has_dots && job.n > 1 && job.n <= MATMUL_FEW && job.m > MATMUL_FEW && job.a.row == job.element)
        transpose_product(&job); /* makes b the operand that is read along rows */
    else if (has_dots && job.m <= (job.a.column == job.element ? 2 * MATMUL_FEW : MATMUL_FEW) && job.n > job.m
             && job.b.row == job.element && job.b.column != job.element)
        transpose_product(&job); /* for dot products, see below */
    if (job.n == 1)
        job.b.column = job.c.column = job.element;
    if (job.k == 1)
        job.a.column = job.element;

    bool contiguous = job.b.column == job.element && job.c.column == job.element;
    int64_t work = job.m * job.n * job.k;
    if (job.form == PLAIN && contiguous && work <= MATMUL_SMALL)
        return multiply_small(&job);
    /* up to twice as many vectors if they are contiguous along k: tiles would need both operands packed */
    if (has_dots && job.k > 0 && job.n <= (job.b.row == job.element ? 2 * MATMUL_FEW : MATMUL_FEW)
        && job.a.column == job.element)
        return for_each_matrix(&job, multiply_dots);
    if (has_dots && job.k > 0 && job.n == 1 && job.a.row == job.element && job.c.row == job.element)
        return for_each_matrix(&job, multiply_sums);
    if (has_dots && job.k > 0 && job.k <= MATMUL_THIN && contiguous && job.n >= 64)
        return vme_parallel(context, job.matrices * job.m, max(1, MATMUL_VECTOR_WORK / (job.n * job.k)), thin_rows,
                            &job);
    if (has_dots && contiguous && job.m <= MATMUL_STRIPS_MAX && job.n >= job.kernel->columns * STRIP / 2
        && job.k * job.n * job.real * ceil_div(job.m, job.kernel->rows) >= MATMUL_STRIPS_MIN)
        return multiply_strips(&job);
    if (job.form == PAIRS) {
        job.n *= 2;
        job.k *= 2;
    }
    return multiply(&job);
}

/* Whether adjacent elements belong to different matrices, as in images whose channels are last. Several threads would
 * then write each cache line, once for each matrix. */
static bool are_interleaved(const vme_tensor *out)
{
    const int64_t element = vme_dtype_size((vme_dtype)out->dtype);
    for (int d = 1; d <= 2; d++)
        if (out->strides[out->rank - d] == element || out->shape[out->rank - d] == 1)
            return false;
    for (int d = 0; d < out->rank - 2; d++)
        if (out->strides[d] == element && out->shape[d] > 1)
            return true;
    return false;
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
    if (!vme_overlap(a, out) && !vme_overlap(b, out) && !are_interleaved(out))
        return compute_product(context, a, b, out);
    int64_t strides[VME_RANK_MAX];
    size_t bytes;
    status = vme_shape_bytes((vme_dtype)out->dtype, out->rank, out->shape, strides, &bytes);
    if (status != VME_OK)
        return status;
    vme_tensor temporary = *out;
    temporary.strides = strides;
    temporary.data = vme_scratch_new(context, bytes);
    if (temporary.data == NULL)
        return VME_NO_MEMORY;
    status = compute_product(context, a, b, &temporary);
    if (status == VME_OK)
        status = vme_move(context, out->rank, out->shape,
                          (vme_side){temporary.data, strides, vme_dtype_size((vme_dtype)out->dtype)},
                          (vme_side){out->data, out->strides, vme_dtype_size((vme_dtype)out->dtype)}, NULL);
    vme_scratch_free(context, temporary.data, bytes);
    return status;
}
