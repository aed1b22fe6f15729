/* Raster, the primitive for all data movement: copies between two strided views. The two dimensions of the loop nest
 * along which output and input are contiguous are divided into tiles, and each tile is copied by the kernel that fits:
 * memcpy, a strided loop, or a transposition. */
#include "operators/raster.h"
#include "runtime/machine.h"
#include "runtime/numbers.h"

#include <string.h>

#include "operators/nest.h"

enum {
    COLLECT_BYTES = 4096, /* bytes of strided elements that are collected on the stack before they are cast */
    CHANNELS_MAX = 4,     /* maximum channels of pixels for which transposition kernels have loops */
};

enum { OUT, IN }; /* operand numbers in the nest */

typedef struct move {
    vme_nest nest;                   /* the dimensions outside the tiles */
    vme_loop row, column;            /* the dimensions divided into tiles; size 1 if there is none */
    int64_t tile_rows, tile_columns; /* elements of a tile */
    int64_t row_tiles, column_tiles; /* tiles of the two dimensions */
    int64_t run_bytes; /* element size if both sides are contiguous along columns, so that memcpy copies rows; else 0 */
    vme_move2 *transpose; /* kernel for a whole tile; NULL: `strided` copies each row */
    vme_loop1 *strided;
    vme_loop1 *collect; /* collects the strided input of a cast, whose vector loop needs contiguous elements; or NULL */
    int64_t in_element;
    void (*stream)(int64_t bytes, const char *in, char *out); /* replaces memcpy for large copies; NULL: use memcpy */
} move;

static int size_class(int64_t element) { return __builtin_ctzll((uint64_t)element); }
static int64_t magnitude(int64_t a) { return a < 0 ? -a : a; }

static void remove_loop(vme_nest *nest, int index)
{
    nest->rank--;
    for (int i = index; i < nest->rank; i++)
        nest->loops[i] = nest->loops[i + 1];
}

/* Merges a short contiguous run of both sides into one larger element: pairs of float32 move as 8 bytes. */
static int64_t widen(vme_nest *nest, int64_t element)
{
    while (nest->rank > 1) {
        vme_loop *loop = &nest->loops[0];
        int64_t bytes = loop->size * element;
        if (loop->step[IN] != element || loop->step[OUT] != element || bytes > 16 || (bytes & (bytes - 1)) != 0)
            break;
        element = bytes;
        remove_loop(nest, 0);
    }
    return element;
}

/* Detects a move between interleaved pixels (contiguous channels) and planes, one per channel. Makes the dimension
 * along which the output is contiguous the innermost one, and returns the dimension along which the input is
 * contiguous. Returns 0 if there are no such pixels or more than CHANNELS_MAX channels; in the latter case the
 * dimensions are reordered too, for a transposition by square tiles. */
static int find_pixels(vme_nest *nest, int64_t element)
{
    int row = -1, column = -1;
    for (int i = 0; i < nest->rank; i++) {
        row = nest->loops[i].step[IN] == element ? i : row;
        column = nest->loops[i].step[OUT] == element ? i : column;
    }
    if (row < 0 || column < 0 || row == column)
        return 0;
    vme_loop in = nest->loops[row], out = nest->loops[column];
    bool to_planes = in.size <= CHANNELS_MAX && out.step[IN] == in.size * element;
    bool to_pixels = out.size <= CHANNELS_MAX && in.step[OUT] == out.size * element;
    if (!to_planes && !to_pixels && (in.size < RASTER_SQUARES_MIN || out.size < RASTER_SQUARES_MIN))
        return 0;
    nest->loops[column] = nest->loops[0];
    nest->loops[0] = out;
    return !to_planes && !to_pixels ? 0 : row == 0 ? column : row;
}

/* The dimension with the smallest step of the input, among those of at least 4 elements. 0: the innermost one, so that
 * nothing is transposed. */
static int find_transposed(const vme_nest *nest)
{
    int smallest = 0;
    for (int i = 1; i < nest->rank && nest->loops[0].size >= 4; i++)
        if (nest->loops[i].size >= 4 && nest->loops[i].step[IN] != 0
            && magnitude(nest->loops[i].step[IN]) < magnitude(nest->loops[smallest].step[IN]))
            smallest = i;
    return smallest;
}

static void choose_tiles(move *m, int64_t in_element, int64_t out_element, vme_loop1 *cast)
{
    const vme_move_kernels *kernels = &vme_kernels_current()->move;
    vme_nest *nest = &m->nest;
    if (cast == NULL)
        in_element = out_element = widen(nest, in_element);
    int pixel_dimension = cast == NULL ? find_pixels(nest, in_element) : 0;
    m->column = nest->loops[0];
    m->strided = cast != NULL ? cast : kernels->strided[size_class(in_element)];
    bool collects = m->column.step[IN] != in_element && m->column.step[IN] != 0 && m->column.size >= RASTER_COLLECT_MIN;
    m->collect = cast != NULL && collects ? kernels->strided[size_class(in_element)] : NULL;
    m->in_element = in_element;
    bool run = cast == NULL && m->column.step[IN] == in_element && m->column.step[OUT] == out_element;
    m->run_bytes = run ? in_element : 0;
    int transposed_dimension = run ? 0 : pixel_dimension ? pixel_dimension : find_transposed(nest);
    m->row = nest->rank > 1 ? nest->loops[transposed_dimension ? transposed_dimension : 1] : (vme_loop){.size = 1};
    if (transposed_dimension && cast == NULL && m->row.step[IN] == in_element && m->column.step[OUT] == out_element)
        m->transpose = kernels->transpose[size_class(in_element)];
    if (nest->rank > 1)
        remove_loop(nest, transposed_dimension ? transposed_dimension : 1);
    remove_loop(nest, 0);
    if (nest->rank == 0) {
        nest->rank = 1;
        nest->loops[0] = (vme_loop){.size = 1};
    }
    if (pixel_dimension) {
        int64_t block = RASTER_PIECE_BYTES / (CHANNELS_MAX * in_element);
        m->tile_columns = min(m->column.size, block);
        m->tile_rows = min(m->row.size, block);
    } else if (transposed_dimension) {
        m->tile_columns = min(m->column.size, RASTER_TILE_SIDE_BYTES / out_element);
        m->tile_rows = min(m->row.size, RASTER_TILE_SIDE_BYTES / in_element);
    } else {
        int64_t block = RASTER_PIECE_BYTES / (in_element > out_element ? in_element : out_element);
        m->tile_columns = min(m->column.size, block);
        m->tile_rows = min(m->row.size, block / m->tile_columns);
    }
    m->row_tiles = ceil_div(m->row.size, m->tile_rows);
    m->column_tiles = ceil_div(m->column.size, m->tile_columns);
}

/* Casts `n` strided elements, which are collected in blocks first. */
static void cast_collected(const move *m, int64_t n, const char *in, char *out)
{
    _Alignas(VME_ALIGNMENT) char stage[COLLECT_BYTES];
    int64_t in_step = m->column.step[IN], out_step = m->column.step[OUT];
    for (int64_t block = COLLECT_BYTES / m->in_element, count; n > 0;
         n -= count, in += count * in_step, out += count * out_step) {
        count = min(n, block);
        m->collect(count, in, in_step, stage, m->in_element);
        m->strided(count, stage, m->in_element, out, out_step);
    }
}

static void copy_tile(const move *m, int64_t rows, int64_t columns, const char *in, char *out)
{
    const vme_loop *row = &m->row, *column = &m->column;
    if (m->transpose != NULL) {
        m->transpose(rows, columns, in, row->step[IN], column->step[IN], out, row->step[OUT], column->step[OUT]);
    } else if (m->run_bytes != 0 && m->stream != NULL) {
        for (int64_t i = 0; i < rows; i++)
            m->stream(columns * m->run_bytes, in + i * row->step[IN], out + i * row->step[OUT]);
    } else if (m->run_bytes != 0) {
        for (int64_t i = 0; i < rows; i++)
            memcpy(out + i * row->step[OUT], in + i * row->step[IN], (size_t)(columns * m->run_bytes));
    } else if (m->collect != NULL) {
        for (int64_t i = 0; i < rows; i++)
            cast_collected(m, columns, in + i * row->step[IN], out + i * row->step[OUT]);
    } else {
        for (int64_t i = 0; i < rows; i++)
            m->strided(columns, in + i * row->step[IN], column->step[IN], out + i * row->step[OUT], column->step[OUT]);
    }
}

/* Copies tiles `begin` to `end` - 1. The columns vary fastest, then the rows, then the other dimensions. */
static vme_status copy_tiles(void *argument, int64_t begin, int64_t end)
{
    const move *m = argument;
    vme_cursor at;
    int64_t column = begin % m->column_tiles, rest = begin / m->column_tiles;
    int64_t row = rest % m->row_tiles;
    vme_nest_seek(&m->nest, rest / m->row_tiles, &at);
    for (int64_t tile = begin; tile < end; tile++) {
        int64_t first_row = row * m->tile_rows, first_column = column * m->tile_columns;
        copy_tile(m, min(m->tile_rows, m->row.size - first_row), min(m->tile_columns, m->column.size - first_column),
                  at.data[IN] + first_row * m->row.step[IN] + first_column * m->column.step[IN],
                  at.data[OUT] + first_row * m->row.step[OUT] + first_column * m->column.step[OUT]);
        if (++column < m->column_tiles)
            continue;
        column = 0;
        if (++row < m->row_tiles)
            continue;
        row = 0;
        vme_nest_advance(&m->nest, &at, 1);
    }
    return VME_OK;
}

vme_status vme_move(vme_context *context, int rank, const int64_t *shape, vme_side in, vme_side out, vme_loop1 *cast)
{
    move m;
    m.transpose = NULL;
    vme_nest_make(&m.nest, VME_NEST_ANY, rank, shape, 2, (const int64_t *const[]){out.strides, in.strides},
                  (char *const[]){(char *)out.data, (char *)in.data});
    int64_t bytes = m.nest.elements * (in.element > out.element ? in.element : out.element);
    if (bytes == 0)
        return VME_OK;
    choose_tiles(&m, in.element, out.element, cast);
    m.stream = NULL;
    if (bytes >= RASTER_STREAM_MIN && m.tile_columns * m.run_bytes >= RASTER_STREAM_RUN_MIN)
        m.stream = vme_kernels_current()->move.stream;
    int64_t tiles = m.row_tiles * m.column_tiles;
    for (int i = 0; i < m.nest.rank; i++)
        tiles *= m.nest.loops[i].size;
    if (bytes < RASTER_PARALLEL_MIN)
        return vme_stopping(context) ? vme_stopped_here(context) : copy_tiles(&m, 0, tiles);
    int64_t tile_bytes = bytes / tiles + 1;
    return vme_parallel_apart(context, tiles, tile_bytes >= RASTER_PIECE_BYTES ? 1 : RASTER_PIECE_BYTES / tile_bytes,
                              copy_tiles, &m);
}

vme_status vme_raster(vme_context *context, int element_size, int count, const vme_region *regions,
                      vme_buffer *destination)
{
    if (element_size < 1 || element_size > 16 || (element_size & (element_size - 1)) != 0)
        return vme_fail(VME_BAD_VALUE, "element size: expected 1, 2, 4, 8 or 16 bytes, got %d", element_size);
    if (!vme_buffer_writable(destination))
        return vme_fail(VME_READ_ONLY, "assignment destination is read-only");
    int64_t elements = (int64_t)vme_buffer_size(destination) / element_size;
    for (int i = 0; i < count; i++) { /* all regions are checked before any is copied */
        const vme_region *region = &regions[i];
        bool fits = region->rank >= 1 && region->rank <= VME_REGION_RANK, empty = false;
        int64_t low = region->destination_offset, high = low;
        for (int d = 0; fits && d < region->rank; d++) {
            int64_t span;
            fits = region->size[d] >= 0;
            empty = empty || region->size[d] == 0;
            if (fits && region->size[d] > 0)
                fits = !__builtin_mul_overflow(region->size[d] - 1, region->destination_strides[d], &span)
                       && !__builtin_add_overflow(span < 0 ? low : high, span, span < 0 ? &low : &high);
        }
        if (!fits || (!empty && (low < 0 || high >= elements)))
            return vme_fail(VME_BAD_SHAPE, "region %d does not lie inside its destination of %lld elements", i,
                            (long long)elements);
    }
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    for (int i = 0; i < count; i++) {
        const vme_region *region = &regions[i];
        int64_t in[VME_REGION_RANK], out[VME_REGION_RANK];
        bool empty = false;
        for (int d = 0; d < region->rank; d++)
            empty = empty || region->size[d] == 0;
        if (empty)
            continue;
        for (int d = 0; d < region->rank; d++) {
            bool steps = region->size[d] > 1; /* the stride of a dimension of size 1 may be anything */
            in[d] = steps ? region->source_strides[d] * element_size : 0;
            out[d] = steps ? region->destination_strides[d] * element_size : 0;
        }
        char *to = (char *)vme_buffer_data(destination) + region->destination_offset * element_size;
        vme_status status =
            vme_move(context, region->rank, region->size,
                     (vme_side){region->source + region->source_offset * element_size, in, element_size},
                     (vme_side){to, out, element_size}, NULL);
        if (status != VME_OK)
            return status;
    }
    return VME_OK;
}
