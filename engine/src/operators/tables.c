/* Counting into tables, and piecewise linear interpolation between points. */
#include "runtime/internal.h"
#include "vme_tables.h"

enum {
    COUNTS_PIECE = 65536,   /* elements between two checks of the stop flag */
    POINTS_PIECE = 4096,    /* the same for interpolation */
    LINEAR_SEARCH_MAX = 16, /* maximum points of a linear search */
    SEARCH_BLOCK = 128,     /* elements of one call of the backend's search kernel */
};

static bool is_vector(const vme_tensor *t, vme_dtype dtype)
{
    return t->rank == 1 && t->dtype == (int)dtype && vme_is_contiguous(t);
}

/* ---- counting: one thread, because indices repeat */
vme_status vme_count(vme_context *context, const vme_tensor *indices, const vme_tensor *weights,
                     const vme_tensor *table)
{
    vme_status status = vme_check_output(table);
    if (status != VME_OK)
        return status;
    if (!is_vector(indices, VME_INT64) || !is_vector(table, weights == NULL ? VME_INT64 : VME_FLOAT64)
        || vme_overlap(indices, table)
        || (weights != NULL
            && (!is_vector(weights, VME_FLOAT64) || weights->shape[0] != indices->shape[0]
                || vme_overlap(weights, table))))
        return vme_fail(VME_BAD_VALUE, "counting takes vectors of int64, weights of float64, and a table of its own");
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    const int64_t *bins = (const int64_t *)indices->data, size = table->shape[0], n = indices->shape[0];
    const double *weight = weights == NULL ? NULL : (const double *)weights->data;
    int64_t *counts = (int64_t *)table->data;
    double *sums = (double *)table->data;
    for (int64_t begin = 0; begin < n; begin += COUNTS_PIECE) {
        if (vme_stopping(context))
            return vme_stopped_here(context);
        int64_t end = n - begin < COUNTS_PIECE ? n : begin + COUNTS_PIECE;
        for (int64_t i = begin; i < end; i++) {
            if ((uint64_t)bins[i] >= (uint64_t)size)
                return vme_fail(VME_BAD_INDEX, "index %lld is out of bounds for axis 0 with size %lld",
                                (long long)bins[i], (long long)size);
            if (weight == NULL)
                counts[bins[i]]++;
            else
                sums[bins[i]] += weight[i];
        }
    }
    return VME_OK;
}

/* ---- linear interpolation */
typedef struct interpolation {
    const double *x, *points, *values; /* points: ascending */
    const double *slopes;              /* NULL: computed on demand, because there are more points than elements */
    double *out;
    int64_t count;                    /* number of points */
    const vme_order_kernels *kernels; /* NULL: none in this backend */
    const int64_t *keys;              /* of the points, in the kernels' format */
    double left, right;
} interpolation;

/* The number of points not above x. Branch-free, because a misprediction would cost more than a step. */
static inline int64_t count_points_until(const interpolation *job, double x)
{
    const double *base = job->points;
    int64_t count = job->count, position = 0;
    if (count <= LINEAR_SEARCH_MAX) {
        for (int64_t i = 0; i < count; i++)
            position += base[i] <= x;
        return position;
    }
    while (count > 1) {
        int64_t half = count / 2;
        base += half & -(int64_t)(base[half - 1] <= x);
        count -= half;
    }
    return base - job->points + (*base <= x);
}

static inline double segment_slope(const interpolation *job, int64_t i)
{
    return (job->values[i + 1] - job->values[i]) / (job->points[i + 1] - job->points[i]);
}

/* The value at x. `position` is the number of points not above x; unused if x is NaN. */
static inline double interpolate(const interpolation *job, double x, int64_t position)
{
    if (x != x)
        return job->count == 1 ? job->values[0] : x; /* with one point NumPy only compares x with it */
    if (position == 0 && x < job->points[0])
        return job->left;
    if (position == 0) { /* the first point is NaN */
        if (job->count == 1)
            return job->values[0];
        position = 1;
    }
    const double *point = job->points + position - 1, *value = job->values + position - 1;
    if (x == *point)
        return *value;
    if (position == job->count)
        return job->right;
    double slope = job->slopes != NULL ? job->slopes[position - 1] : segment_slope(job, position - 1),
           y = slope * (x - point[0]) + value[0];
    if (y != y) { /* a slope or an end is infinite: compute from the other end, or use the value that both ends share */
        y = slope * (x - point[1]) + value[1];
        if (y != y && value[0] == value[1])
            y = value[0];
    }
    return y;
}

static vme_status interpolate_range(void *argument, int64_t begin, int64_t end)
{
    const interpolation *job = argument;
    if (job->keys == NULL) {
        for (int64_t i = begin; i < end; i++)
            job->out[i] = interpolate(job, job->x[i], count_points_until(job, job->x[i]));
        return VME_OK;
    }
    int64_t keys[SEARCH_BLOCK], position[SEARCH_BLOCK];
    for (int64_t n; begin < end; begin += n) {
        n = end - begin < SEARCH_BLOCK ? end - begin : SEARCH_BLOCK;
        job->kernels->keys[1](VME_FLOAT64, n, (const char *)(job->x + begin), sizeof *job->x, false, true, keys);
        job->kernels->search(n, keys, job->count, job->keys, true, position);
        for (int64_t i = 0; i < n; i++)
            job->out[begin + i] = interpolate(job, job->x[begin + i], position[i]);
    }
    return VME_OK;
}

vme_status vme_interpolate(vme_context *context, const vme_tensor *x, const vme_tensor *xp, const vme_tensor *fp,
                           double left, double right, const vme_tensor *out)
{
    vme_status status = vme_check_output(out);
    if (status != VME_OK)
        return status;
    bool fits = is_vector(xp, VME_FLOAT64) && is_vector(fp, VME_FLOAT64) && xp->shape[0] == fp->shape[0]
                && xp->shape[0] > 0 && x->dtype == VME_FLOAT64 && out->dtype == VME_FLOAT64 && vme_is_contiguous(x)
                && vme_is_contiguous(out) && vme_elements(x) == vme_elements(out);
    if (!fits || vme_overlap(x, out) || vme_overlap(xp, out) || vme_overlap(fp, out))
        return vme_fail(VME_BAD_VALUE,
                        "interpolating takes contiguous float64, as many points as values, and an output of its own");
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    interpolation job = {.x = (const double *)x->data,
                         .points = (const double *)xp->data,
                         .values = (const double *)fp->data,
                         .out = (double *)out->data,
                         .count = xp->shape[0],
                         .left = left,
                         .right = right};
    int64_t n = vme_elements(out);
    if (n == 0)
        return VME_OK;
    const vme_kernels *kernels = vme_kernels_current();
    bool use_keys = kernels->order.search != NULL && n >= job.count / 16, use_slopes = job.count <= n;
    size_t array_bytes = (size_t)job.count * sizeof(double), bytes = (use_keys + use_slopes) * array_bytes;
    char *scratch = bytes == 0 ? NULL : vme_scratch_new(context, bytes);
    if (bytes > 0 && scratch == NULL)
        return VME_NO_MEMORY;
    double *slopes = use_slopes ? (double *)(void *)scratch : NULL;
    int64_t *keys = use_keys ? (int64_t *)(void *)(scratch + use_slopes * array_bytes) : NULL;
    for (int64_t begin = 0; begin < job.count && bytes > 0 && status == VME_OK; begin += COUNTS_PIECE) {
        int64_t end = job.count - begin < COUNTS_PIECE ? job.count : begin + COUNTS_PIECE;
        if (use_keys)
            kernels->order.keys[1](VME_FLOAT64, end - begin, (const char *)(job.points + begin), sizeof *job.points,
                                   false, true, keys + begin);
        for (int64_t i = begin; use_slopes && i < end && i < job.count - 1; i++)
            slopes[i] = segment_slope(&job, i);
        if (vme_stopping(context))
            status = vme_stopped_here(context);
    }
    job.slopes = slopes;
    job.kernels = &kernels->order;
    job.keys = keys;
    if (status == VME_OK)
        status = vme_parallel(context, n, POINTS_PIECE, interpolate_range, &job);
    if (scratch != NULL)
        vme_scratch_free(context, scratch, bytes);
    return status;
}
