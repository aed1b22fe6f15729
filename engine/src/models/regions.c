/* Regions of images, each resized to one size: averages or maxima of interpolated samples (RoiAlign, He et al., Mask
 * R-CNN, 2017), or maxima of pixels (RoI pooling, Girshick, Fast R-CNN, 2015).
 *
 * Operands: 0 x [n, channels, height, width]; 1 regions [count, 4] of left, top, right, bottom; 2 int64 [count], the
 * image of each region. x and regions are dense and of one dtype, float32 or float64. The result is [count, channels,
 * height, width], dense. */
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
    CORNERS = 4,           /* pixels around a point */
    SAMPLES_MAX = 1 << 16, /* sampling points of one output cell */
    BLOCK_TAPS = 1024,     /* indices and weights of a block of results */
    TAPS_MAX = 64,         /* taps of one blend_places call */
};

typedef struct region_pooling {
    vme_context *context;
    const vme_model_kernels *kernels;
    const char *in, *regions;
    const int64_t *images;
    char *out;
    bool is_double; /* float64; otherwise float32 */
    int mode, ratio;
    bool half_pixel; /* coordinates are those of pixel edges */
    double scale;
    int64_t image_count, channels, height, width, out_height, out_width;
} region_pooling;

typedef struct sampled_region {
    double left, top, bin_width, bin_height;
    int64_t across, down; /* sampling points of one output cell */
} sampled_region;

static double load(const char *numbers, bool is_double, int64_t i)
{
    return is_double ? ((const double *)(const void *)numbers)[i] : (double)((const float *)(const void *)numbers)[i];
}

static void store(char *numbers, bool is_double, int64_t i, double value)
{
    if (is_double)
        ((double *)(void *)numbers)[i] = value;
    else
        ((float *)(void *)numbers)[i] = (float)value;
}

/* Rounds to the dtype. */
static double rounded(const region_pooling *job, double value) { return job->is_double ? value : (double)(float)value; }

static vme_status region_read(const region_pooling *job, int64_t number, double corner[4])
{
    for (int i = 0; i < 4; i++) {
        corner[i] = rounded(job, load(job->regions, job->is_double, number * 4 + i) * job->scale);
        if (!isfinite(corner[i]))
            return vme_fail(VME_BAD_VALUE, "region %lld has a coordinate that is not finite", (long long)number);
    }
    if (job->images[number] < 0 || job->images[number] >= job->image_count)
        return vme_fail(VME_BAD_VALUE, "region %lld is of image %lld, and there are %lld", (long long)number,
                        (long long)job->images[number], (long long)job->image_count);
    return VME_OK;
}

/* Sampling points along one side of an output cell. */
static double sampling_points(const region_pooling *job, double bin) { return job->ratio > 0 ? job->ratio : ceil(bin); }

static vme_status region_align(const region_pooling *job, int64_t number, sampled_region *region)
{
    double corner[4];
    vme_status status = region_read(job, number, corner);
    if (status != VME_OK)
        return status;
    const double offset = job->half_pixel ? 0.5 : 0;
    double width = rounded(job, corner[2] - corner[0]), height = rounded(job, corner[3] - corner[1]);
    if (!job->half_pixel) {
        width = fmax(width, 1);
        height = fmax(height, 1);
    }
    *region = (sampled_region){.left = rounded(job, corner[0] - offset),
                               .top = rounded(job, corner[1] - offset),
                               .bin_width = rounded(job, width / (double)job->out_width),
                               .bin_height = rounded(job, height / (double)job->out_height)};
    const double across = sampling_points(job, region->bin_width), down = sampling_points(job, region->bin_height);
    if (across > SAMPLES_MAX || down > SAMPLES_MAX || (across > 0 && down > 0 && across * down > SAMPLES_MAX))
        return vme_fail(VME_BAD_VALUE,
                        "region %lld reads %.3g times %.3g points for each number, at most %d can be; give a "
                        "sampling_ratio or smaller regions",
                        (long long)number, across, down, SAMPLES_MAX);
    region->across = across > 0 && down > 0 ? (int64_t)across : 0;
    region->down = across > 0 && down > 0 ? (int64_t)down : 0;
    return VME_OK;
}

/* The pixels on both sides of a point in one dimension, and its distance from the first one; false: outside the image.
 */
static bool find_neighbours(double at, int64_t size, int64_t *low, int64_t *high, double *fraction)
{
    if (!(at >= -1 && at <= (double)size))
        return false;
    at = fmax(at, 0);
    *low = (int64_t)at;
    if (*low >= size - 1) {
        *low = *high = size - 1;
        *fraction = 0;
    } else {
        *high = *low + 1;
        *fraction = at - (double)*low;
    }
    return true;
}

/* Indices and weights of the pixels around one point of the region, `stride` elements apart. */
static void corners_of(const region_pooling *job, double x, double y, int64_t stride, int32_t *indices, float *weights)
{
    int64_t top, bottom, left, right;
    double down, across;

    const bool in_image =
        find_neighbours(y, job->height, &top, &bottom, &down) && find_neighbours(x, job->width, &left, &right, &across);
    if (!in_image) {
        for (int i = 0; i < CORNERS; i++) {
            indices[i * stride] = 0;
            weights[i * stride] = 0;
        }
        return;
    }
    const int64_t index[CORNERS] = {top * job->width + left, top * job->width + right, bottom * job->width + left,
                                    bottom * job->width + right};
    const double weight[CORNERS] = {(1 - down) * (1 - across), (1 - down) * across, down * (1 - across), down * across};
    for (int i = 0; i < CORNERS; i++) {
        indices[i * stride] = (int32_t)index[i];
        weights[i * stride] = (float)weight[i];
    }
}

/* Coordinate of sampling point i of `count` in an output cell, in one dimension. */
static double point_coordinate(const region_pooling *job, double first, double bin, int64_t cell, int64_t i,
                               int64_t count)
{
    return rounded(job, first + (double)cell * bin + ((double)i + 0.5) * bin / (double)count);
}

/* Averages of float32 with few points: a block of results at a time, for all channels. */
static void average_few_points(const region_pooling *job, const sampled_region *region, int64_t number)
{
    int32_t indices[BLOCK_TAPS];
    float weights[BLOCK_TAPS];
    const int64_t taps = region->across * region->down * CORNERS, max_results = BLOCK_TAPS / taps,
                  area = job->height * job->width;
    const float point_weight = 1.0f / (float)(region->across * region->down);
    const int64_t total = job->out_height * job->out_width;
    for (int64_t first = 0; first < total && !vme_stopping(job->context); first += max_results) {
        const int64_t block_results = min(max_results, total - first);
        for (int64_t i = 0; i < block_results; i++) {
            const int64_t row = (first + i) / job->out_width, column = (first + i) % job->out_width;
            for (int64_t t = 0; t < region->across * region->down; t++)
                corners_of(
                    job,
                    point_coordinate(job, region->left, region->bin_width, column, t % region->across, region->across),
                    point_coordinate(job, region->top, region->bin_height, row, t / region->across, region->down),
                    block_results, indices + t * CORNERS * block_results + i,
                    weights + t * CORNERS * block_results + i);
        }
        for (int64_t i = 0; i < taps * block_results; i++)
            weights[i] *= point_weight;
        for (int64_t c = 0; c < job->channels && !vme_stopping(job->context); c++)
            job->kernels->blend_places(
                (int)taps, block_results,
                (const float *)(const void *)job->in + (job->images[number] * job->channels + c) * area, indices,
                weights, block_results, (float *)(void *)job->out + (number * job->channels + c) * total + first);
    }
}

/* All other cases: one result at a time; the pixels of each point are computed again for each channel. */
static void pool_points(const region_pooling *job, const sampled_region *region, int64_t number, int64_t c)
{
    const int64_t area = job->height * job->width, total = job->out_height * job->out_width,
                  from = (job->images[number] * job->channels + c) * area;
    for (int64_t i = 0; i < total && !vme_stopping(job->context); i++) {
        double sum = 0, maximum = 0;
        bool any = false;
        for (int64_t t = 0; t < region->across * region->down; t++) {
            int64_t low[2], high[2];
            double fraction[2];
            if (!find_neighbours(point_coordinate(job, region->top, region->bin_height, i / job->out_width,
                                                  t / region->across, region->down),
                                 job->height, &low[0], &high[0], &fraction[0])
                || !find_neighbours(point_coordinate(job, region->left, region->bin_width, i % job->out_width,
                                                     t % region->across, region->across),
                                    job->width, &low[1], &high[1], &fraction[1])) {
                maximum = any ? fmax(maximum, 0) : 0;
                any = true;
                continue;
            }
            for (int corner = 0; corner < CORNERS; corner++) {
                const bool below = corner / 2, right = corner % 2;
                const double weight = (below ? fraction[0] : 1 - fraction[0]) * (right ? fraction[1] : 1 - fraction[1]);
                const double value =
                    weight
                    * load(job->in, job->is_double,
                           from + (below ? high[0] : low[0]) * job->width + (right ? high[1] : low[1]));
                sum += value;
                maximum = any ? fmax(maximum, value) : value;
                any = true;
            }
            if ((t & 1023) == 0 && vme_stopping(job->context))
                return;
        }
        const double count = (double)max(1, region->across * region->down);
        store(job->out, job->is_double, (number * job->channels + c) * total + i,
              job->mode == REGION_AVERAGE ? sum / count : maximum);
    }
}

/* Maxima of whole pixels. */
static void pool_pixels(const region_pooling *job, const double corner[4], int64_t number, int64_t c)
{
    const double left = round(corner[0]), top = round(corner[1]), width = fmax(round(corner[2]) - left + 1, 1),
                 height = fmax(round(corner[3]) - top + 1, 1);
    const double across = rounded(job, width / (double)job->out_width),
                 down = rounded(job, height / (double)job->out_height);
    const int64_t from = (job->images[number] * job->channels + c) * job->height * job->width;
    for (int64_t i = 0; i < job->out_height * job->out_width && !vme_stopping(job->context); i++) {
        const int64_t pixel_row = i / job->out_width, pixel_column = i % job->out_width;
        const double row = (double)pixel_row, column = (double)pixel_column;
        const int64_t y = (int64_t)fmin(fmax(floor(rounded(job, row * down)) + top, 0), (double)job->height),
                      y_end = (int64_t)fmin(fmax(ceil(rounded(job, (row + 1) * down)) + top, 0), (double)job->height),
                      x = (int64_t)fmin(fmax(floor(rounded(job, column * across)) + left, 0), (double)job->width),
                      x_end =
                          (int64_t)fmin(fmax(ceil(rounded(job, (column + 1) * across)) + left, 0), (double)job->width);
        double maximum = y < y_end && x < x_end ? -INFINITY : 0;
        for (int64_t at = y; at < y_end; at++) {
            for (int64_t j = x; j < x_end; j++)
                maximum = fmax(maximum, load(job->in, job->is_double, from + at * job->width + j));
            if (vme_stopping(job->context))
                return;
        }
        store(job->out, job->is_double, (number * job->channels + c) * job->out_height * job->out_width + i, maximum);
    }
}

static vme_status pool_regions(void *argument, int64_t begin, int64_t end)
{
    const region_pooling *job = argument;
    for (int64_t number = begin; number < end && !vme_stopping(job->context); number++) {
        sampled_region region;
        double corner[4];
        vme_status status =
            job->mode == REGION_PIXELS ? region_read(job, number, corner) : region_align(job, number, &region);
        if (status != VME_OK)
            return status;
        const int64_t taps = job->mode == REGION_PIXELS ? 0 : region.across * region.down * CORNERS;
        if (job->mode == REGION_AVERAGE && !job->is_double && taps > 0 && taps <= TAPS_MAX) {
            average_few_points(job, &region, number);
            continue;
        }
        for (int64_t c = 0; c < job->channels && !vme_stopping(job->context); c++)
            if (job->mode == REGION_PIXELS)
                pool_pixels(job, corner, number, c);
            else
                pool_points(job, &region, number, c);
    }
    return VME_OK;
}

static vme_status regions_run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    const model_value *x = &model->value[step->operand[0]], *out = &model->value[step->out];
    float scale;
    memcpy(&scale, &step->p[REGION_SCALE], sizeof scale);
    region_pooling job = {
        .context = context,
        .kernels = &model->kernels->model,
        .in = model_tensor(model, step->operand[0], arena).data,
        .regions = model_tensor(model, step->operand[1], arena).data,
        .images = (const int64_t *)(const void *)model_tensor(model, step->operand[2], arena).data,
        .out = model_tensor(model, step->out, arena).data,
        .is_double = x->dtype == VME_FLOAT64,
        .mode = step->p[REGION_MODE],
        .ratio = step->p[REGION_RATIO],
        .half_pixel = step->p[REGION_HALF_PIXEL] != 0,
        .scale = (double)scale,
        .image_count = x->shape[0],
        .channels = x->shape[1],
        .height = x->shape[2],
        .width = x->shape[3],
        .out_height = out->shape[2],
        .out_width = out->shape[3],
    };
    return vme_parallel_apart(context, out->shape[0], 1, pool_regions, &job);
}

vme_status model_make_regions(model_preparation *preparation, uint32_t number, const model_node_record *node,
                              const uint32_t *operands, model_step *step, int step_number)
{
    (void)operands, (void)step_number;
    const vme_model *model = preparation->model;
    step->run = regions_run;
    if (node->inputs != 3 || step->operand[1] < 0 || step->operand[2] < 0)
        return MODEL_WRONG(number, "has %u operands, expected x, regions and their images", node->inputs);
    const model_value *x = &model->value[step->operand[0]], *regions = &model->value[step->operand[1]],
                      *images = &model->value[step->operand[2]], *out = &model->value[step->out];
    const int dtype = x->dtype;
    const bool fits = x->rank == 4 && out->rank == 4 && regions->rank == 2 && images->rank == 1
                      && (dtype == VME_FLOAT32 || dtype == VME_FLOAT64) && regions->shape[1] == 4
                      && regions->shape[0] == images->shape[0] && out->shape[0] == images->shape[0]
                      && out->shape[1] == x->shape[1] && x->shape[3] <= INT32_MAX / x->shape[2]
                      && step->p[REGION_MODE] >= 0 && step->p[REGION_MODE] < REGION_MODES && step->p[REGION_RATIO] >= 0
                      && model_require_dense(preparation, step->operand[0], dtype)
                      && model_require_dense(preparation, step->operand[1], dtype)
                      && model_require_dense(preparation, step->operand[2], VME_INT64)
                      && model_require_dense(preparation, step->out, dtype);
    if (!fits)
        return MODEL_WRONG(number, "has operands whose shapes or dtypes do not match");
    return model_check_no_overlap(preparation, number, step);
}
