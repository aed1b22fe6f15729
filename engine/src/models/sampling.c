/* Images sampled at coordinates given by another tensor (ONNX's GridSample, DeformConv): in two or three dimensions, by
 * nearest pixel, linear interpolation, or cubic convolution (Keys, 1981).
 *
 * Operands: 0 x [n, channels, sizes …]; 1 grid [n, any …, dimensions], the last size's coordinate first. Both are dense
 * and of one dtype, float32 or float64. The result is [n, channels, any …], dense. A NaN coordinate reads 0 with zero
 * padding; otherwise it gives NaN (nearest: the first pixel). */
#include "models/file.h"
#include "models/makers.h"
#include "models/model.h"
#include "models/preparation.h"
#include "models/step.h"
#include "models/tensors.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/numbers.h"

#include <math.h>
#include <string.h>

enum {
    DIMENSIONS_MAX = 3,
    TAPS_MAX = 4,      /* of one dimension */
    BLOCK_TAPS = 1024, /* indices and weights of a block: taps times results */
    PIECE = 1 << 14,   /* minimum products between two checks of the stop flag */
};

typedef struct sampling {
    vme_context *context;
    const vme_model_kernels *kernels;
    const char *in, *grid;
    char *out;
    bool is_double; /* float64; otherwise float32 */
    int dimensions, taps, mode, border, coordinates;
    int64_t size[DIMENSIONS_MAX], channels, pixels, results, block, blocks;
} sampling;

static double load(const char *numbers, bool is_double, int64_t i)
{
    return is_double ? ((const double *)(const void *)numbers)[i] : (double)((const float *)(const void *)numbers)[i];
}

/* The coordinate in pixels, rounded to the dtype. */
static double pixel_coordinate(const sampling *job, int64_t i, int64_t size)
{
    const double position = load(job->grid, job->is_double, i);
    const bool corners = job->coordinates == SAMPLE_CORNERS;
    if (job->coordinates == SAMPLE_PIXELS)
        return position;
    if (job->is_double)
        return corners ? (position + 1) / 2 * (double)(size - 1) : ((position + 1) * (double)size - 1) / 2;
    const float single = (float)position;
    return (double)(corners ? (single + 1) / 2 * (float)(size - 1) : ((single + 1) * (float)size - 1) / 2);
}

/* The position, reflected at both ends of the range until it lies within. */
static double reflected(double position, double low, double high)
{
    const double range = high - low;
    if (!(position < low || position > high))
        return position;
    if (range <= 0)
        return low;
    const double beyond = position < low ? low - position : position - high, turns = floor(beyond / range);
    const double rest = beyond - turns * range;
    const bool from_low = (position < low) == (fmod(turns, 2) == 0);
    return from_low ? low + rest : high - rest;
}

/* Index of the pixel at `position`; -1: none. */
static int64_t pixel_index(const sampling *job, double position, int64_t size)
{
    if (job->border == SAMPLE_ZEROS)
        return position >= 0 && position <= (double)(size - 1) ? (int64_t)position : -1;
    if (job->border == SAMPLE_REFLECTION) {
        const double half = job->coordinates == SAMPLE_CORNERS ? 0 : 0.5;
        position = reflected(position, -half, (double)(size - 1) + half);
    }
    return position >= 0 ? (int64_t)fmin(position, (double)(size - 1)) : 0;
}

/* Weights of cubic convolution, with a = -0.75 as in ONNX, for a point `offset` pixels after the second tap. */
static void cubic_weights(double offset, double weights[TAPS_MAX])
{
    const double a = -0.75;
    weights[0] = ((a * (offset + 1) - 5 * a) * (offset + 1) + 8 * a) * (offset + 1) - 4 * a;
    weights[1] = ((a + 2) * offset - (a + 3)) * offset * offset + 1;
    weights[2] = ((a + 2) * (1 - offset) - (a + 3)) * (1 - offset) * (1 - offset) + 1;
    weights[3] = ((a * (2 - offset) - 5 * a) * (2 - offset) + 8 * a) * (2 - offset) - 4 * a;
}

/* Pixels and weights of the taps along one dimension, for coordinate `i` of the grid. */
static void taps_along(const sampling *job, int64_t i, int64_t size, int64_t pixel[TAPS_MAX], double weight[TAPS_MAX])
{
    const double half = job->coordinates == SAMPLE_CORNERS ? 0 : 0.5;
    double position = pixel_coordinate(job, i, size);
    if (job->mode == SAMPLE_NEAREST)
        position = rint(position);
    /* cubic interpolation moves the pixel of each tap instead (pixel_index) */
    if (job->mode != SAMPLE_CUBIC && (position < -half || position > (double)(size - 1) + half)) {
        if (job->border == SAMPLE_BORDER)
            position = position < 0 ? 0 : (double)(size - 1);
        else if (job->border == SAMPLE_REFLECTION)
            position = reflected(position, -half, (double)(size - 1) + half);
    }
    const double first = floor(position);
    if (job->mode == SAMPLE_NEAREST) {
        pixel[0] = pixel_index(job, position, size);
        weight[0] = 1;
        return;
    }
    if (job->mode == SAMPLE_LINEAR) {
        weight[0] = 1 - (position - first);
        weight[1] = position - first;
    } else {
        cubic_weights(position - first, weight);
    }
    for (int t = 0; t < job->taps; t++)
        pixel[t] = pixel_index(job, first + t - (job->taps == TAPS_MAX), size);
}

typedef struct tap_table {
    int32_t indices[BLOCK_TAPS];
    float weights[BLOCK_TAPS];
} tap_table;

/* Index and weight of each tap of one result. Indices are `stride` elements apart, and so are weights; if
 * double_weights is not NULL, it receives the weights instead, contiguous. */
static void find_taps(const sampling *job, int64_t result, int64_t stride, int32_t *indices, float *weights,
                      double *double_weights)
{
    int64_t pixel[DIMENSIONS_MAX][TAPS_MAX];
    double weight[DIMENSIONS_MAX][TAPS_MAX];
    const int d = job->dimensions;
    for (int axis = 0; axis < d; axis++)
        taps_along(job, result * d + (d - 1 - axis), job->size[axis], pixel[axis], weight[axis]);
    int64_t count = 1;
    for (int axis = 0; axis < d; axis++)
        count *= job->taps;
    for (int64_t t = 0; t < count; t++) {
        int64_t index = 0, rest = t;
        double product = 1;
        bool in_image = true;
        for (int axis = d - 1; axis >= 0; axis--, rest /= job->taps) {
            in_image = in_image && pixel[axis][rest % job->taps] >= 0;
            product *= weight[axis][rest % job->taps];
        }
        rest = t;
        int64_t axis_stride = 1;
        for (int axis = d - 1; axis >= 0; axis--, rest /= job->taps) {
            index += max(0, pixel[axis][rest % job->taps]) * axis_stride;
            axis_stride *= job->size[axis];
        }
        indices[t * stride] = (int32_t)index;
        if (double_weights != NULL)
            double_weights[t] = in_image ? product : 0;
        else
            weights[t * stride] = in_image ? (float)product : 0;
    }
}

static int64_t taps_count(const sampling *job)
{
    int64_t count = 1;
    for (int axis = 0; axis < job->dimensions; axis++)
        count *= job->taps;
    return count;
}

/* ---- linear, in two dimensions */
enum {
    LINEAR_SIZE_MAX = 1 << 24, /* of a dimension: float32 represents all integers up to it */
    LINEAR_BLOCK = 128,        /* results: their taps are on the stack */
};

static bool is_linear_plane(const sampling *job)
{
    return job->mode == SAMPLE_LINEAR && job->dimensions == 2 && !job->is_double && job->border != SAMPLE_REFLECTION
           && job->size[0] <= LINEAR_SIZE_MAX && job->size[1] <= LINEAR_SIZE_MAX;
}

/* Both taps of results along one dimension. */
typedef struct linear {
    int32_t pixel[2][LINEAR_BLOCK];
    float weight[2][LINEAR_BLOCK];
} linear;

/* The coordinates are every other number of `grid`. The compiler vectorizes these loops. */
static void linear_along(const sampling *job, const float *restrict grid, int64_t count, int64_t size,
                         linear *restrict taps)
{
    float position[LINEAR_BLOCK];
    const float extent = (float)size, last = (float)(size - 1), half = job->coordinates == SAMPLE_CORNERS ? 0 : 0.5f;
    const int32_t end = (int32_t)(size - 1);
    const bool zeros = job->border == SAMPLE_ZEROS;
    /* with zero padding, taps outside `from` to `to` get no weight */
    const int32_t from = zeros ? 0 : INT32_MIN, to = zeros ? end : INT32_MAX;
    switch (job->coordinates) {
    case SAMPLE_PIXELS:
        for (int64_t i = 0; i < count; i++)
            position[i] = grid[2 * i];
        break;
    case SAMPLE_CORNERS:
        for (int64_t i = 0; i < count; i++)
            position[i] = (grid[2 * i] + 1) / 2 * last;
        break;
    default:
        for (int64_t i = 0; i < count; i++)
            position[i] = ((grid[2 * i] + 1) * extent - 1) / 2;
        break;
    }
    for (int64_t i = 0; !zeros && i < count; i++) {
        const float low = position[i] < -half ? 0 : position[i];
        position[i] = low > last + half ? last : low;
    }
    for (int64_t i = 0; i < count; i++) {
        const float above_low = position[i] > -2 ? position[i] : -2,
                    clamped = above_low < last + 2 ? above_low : last + 2; /* NaN: -2 */
        const int32_t truncated = (int32_t)clamped, first = truncated - ((float)truncated > clamped ? 1 : 0),
                      second = first + 1;
        const float fraction = position[i] - (float)first, rest = 1 - fraction;
        taps->weight[0][i] = ((first < from) | (first > to)) ? 0 : rest;
        taps->weight[1][i] = ((second < from) | (second > to)) ? 0 : fraction;
        taps->pixel[0][i] = first < 0 ? 0 : first > end ? end : first;
        taps->pixel[1][i] = second < 0 ? 0 : second > end ? end : second;
    }
}

/* The taps of `count` results from number `result` on, counted through all images; `stride` as in find_taps. */
static void linear_taps(const sampling *job, int64_t result, int64_t count, int64_t stride, int32_t *restrict indices,
                        float *restrict weights)
{
    const float *grid = (const float *)(const void *)job->grid + 2 * result;
    const int32_t width = (int32_t)job->size[1];
    linear down, across;
    for (int64_t block; count > 0; count -= block, grid += 2 * block, indices += block, weights += block) {
        block = min(count, LINEAR_BLOCK);
        linear_along(job, grid + 1, block, job->size[0], &down);
        linear_along(job, grid, block, job->size[1], &across);
        for (int tap = 0; tap < 4; tap++)
            for (int64_t i = 0; i < block; i++) {
                indices[tap * stride + i] = down.pixel[tap / 2][i] * width + across.pixel[tap % 2][i];
                weights[tap * stride + i] = down.weight[tap / 2][i] * across.weight[tap % 2][i];
            }
    }
}

/* A block of results of image n, for all channels. */
static void sample_block(const sampling *job, int64_t n, int64_t begin, int64_t end)
{
    tap_table table;
    const int64_t count = taps_count(job), results = end - begin;
    if (is_linear_plane(job))
        linear_taps(job, n * job->results + begin, results, results, table.indices, table.weights);
    else
        for (int64_t i = 0; i < results; i++)
            find_taps(job, n * job->results + begin + i, results, table.indices + i, table.weights + i, NULL);
    for (int64_t c = 0; c < job->channels && !vme_stopping(job->context); c++) {
        const int64_t channel = n * job->channels + c;
        job->kernels->blend_places((int)count, results, (const float *)(const void *)job->in + channel * job->pixels,
                                   table.indices, table.weights, results,
                                   (float *)(void *)job->out + channel * job->results + begin);
    }
}

static void sample_block_double(const sampling *job, int64_t n, int64_t begin, int64_t end)
{
    int32_t indices[TAPS_MAX * TAPS_MAX * TAPS_MAX];
    double weights[TAPS_MAX * TAPS_MAX * TAPS_MAX];
    const int64_t count = taps_count(job);
    for (int64_t i = begin; i < end && !vme_stopping(job->context); i++) {
        find_taps(job, n * job->results + i, 1, indices, NULL, weights);
        for (int64_t c = 0; c < job->channels; c++) {
            const double *in = (const double *)(const void *)job->in + (n * job->channels + c) * job->pixels;
            double sum = 0;
            for (int64_t t = 0; t < count; t++)
                sum += in[indices[t]] * weights[t];
            ((double *)(void *)job->out)[(n * job->channels + c) * job->results + i] = sum;
        }
    }
}

static vme_status sample_blocks(void *argument, int64_t begin, int64_t end)
{
    const sampling *job = argument;
    for (int64_t i = begin; i < end && !vme_stopping(job->context); i++) {
        const int64_t n = i / job->blocks, first = i % job->blocks * job->block;
        (job->is_double ? sample_block_double : sample_block)(job, n, first, min(job->results, first + job->block));
    }
    return VME_OK;
}

static vme_status sampling_run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    const model_value *x = &model->value[step->operand[0]];
    sampling job = {
        .context = context,
        .kernels = &model->kernels->model,
        .in = model_tensor(model, step->operand[0], arena).data,
        .grid = model_tensor(model, step->operand[1], arena).data,
        .out = model_tensor(model, step->out, arena).data,
        .is_double = x->dtype == VME_FLOAT64,
        .dimensions = x->rank - 2,
        .mode = step->p[SAMPLE_MODE],
        .border = step->p[SAMPLE_PADDING],
        .coordinates = step->p[SAMPLE_COORDINATES],
        .taps = step->p[SAMPLE_MODE] == SAMPLE_NEAREST  ? 1
                : step->p[SAMPLE_MODE] == SAMPLE_LINEAR ? 2
                                                        : TAPS_MAX,
        .channels = x->shape[1],
        .pixels = 1,
        .results = 1,
    };
    const model_value *out = &model->value[step->out];
    for (int d = 0; d < job.dimensions; d++) {
        job.size[d] = x->shape[d + 2];
        job.pixels *= job.size[d];
    }
    for (int d = 2; d < out->rank; d++)
        job.results *= out->shape[d];
    job.block = min(job.results, BLOCK_TAPS / taps_count(&job));
    job.blocks = ceil_div(job.results, job.block);
    return vme_parallel_apart(context, x->shape[0] * job.blocks, PIECE / (BLOCK_TAPS * job.channels) + 1, sample_blocks,
                              &job);
}

vme_status model_make_sampling(model_preparation *preparation, uint32_t number, const model_node_record *node,
                               const uint32_t *operands, model_step *step, int step_number)
{
    (void)operands, (void)step_number;
    const vme_model *model = preparation->model;
    step->run = sampling_run;
    if (node->inputs != 2 || step->operand[1] < 0)
        return MODEL_WRONG(number, "has %u operands, expected x and a grid", node->inputs);
    const model_value *x = &model->value[step->operand[0]], *grid = &model->value[step->operand[1]],
                      *out = &model->value[step->out];
    const int dimensions = x->rank - 2, dtype = x->dtype;
    bool fits = (dimensions == 2 || dimensions == 3) && grid->rank >= 2 && out->rank == grid->rank
                && (dtype == VME_FLOAT32 || dtype == VME_FLOAT64) && grid->shape[0] == x->shape[0]
                && out->shape[0] == x->shape[0] && out->shape[1] == x->shape[1]
                && grid->shape[grid->rank - 1] == dimensions && step->p[SAMPLE_MODE] >= 0
                && step->p[SAMPLE_MODE] < SAMPLE_MODES && step->p[SAMPLE_PADDING] >= 0
                && step->p[SAMPLE_PADDING] < SAMPLE_BORDERS && step->p[SAMPLE_COORDINATES] >= 0
                && step->p[SAMPLE_COORDINATES] < SAMPLE_COORDINATE_KINDS;
    int64_t pixels = 1;
    for (int d = 2; fits && d < x->rank; d++)
        fits = !__builtin_mul_overflow(pixels, x->shape[d], &pixels) && pixels <= INT32_MAX;
    for (int d = 2; fits && d < out->rank; d++)
        fits = out->shape[d] == grid->shape[d - 1];
    fits = fits && model_require_dense(preparation, step->operand[0], dtype)
           && model_require_dense(preparation, step->operand[1], dtype)
           && model_require_dense(preparation, step->out, dtype);
    if (!fits)
        return MODEL_WRONG(number, "has operands whose shapes or dtypes do not match");
    return model_check_no_overlap(preparation, number, step);
}
