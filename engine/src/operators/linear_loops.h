/* Solves, factors and inverts one small matrix. linear.c includes this file for each element type, with TYPE, NAME(x),
 * SIZE(x) (the magnitude that selects pivots), MODULUS(x), CONJ(x), RE(x) and ROOT(x) defined. Matrices are row-major.
 * Functions check the stop flag once for each column. They return 0, 1 if the matrix is singular or not positive
 * definite, or -1 if the context was stopped. */

/* LU factorization in place, with partial pivoting: row i was swapped with row pivots[i]. */
static int NAME(factor)(vme_context *context, int64_t n, TYPE *restrict a, int32_t *pivots)
{
    bool singular = false;
    for (int64_t k = 0; k < n; k++) {
        if (vme_stopping(context))
            return -1;
        int64_t pivot = k;
        double largest = SIZE(a[k * n + k]);
        for (int64_t i = k + 1; i < n; i++) {
            double magnitude = SIZE(a[i * n + k]);
            if (magnitude > largest) {
                largest = magnitude;
                pivot = i;
            }
        }
        pivots[k] = (int32_t)pivot;
        if (a[pivot * n + k] == 0) {
            singular = true;
            continue;
        }
        if (pivot != k)
            for (int64_t j = 0; j < n; j++) {
                TYPE swapped = a[k * n + j];
                a[k * n + j] = a[pivot * n + j];
                a[pivot * n + j] = swapped;
            }
        TYPE *restrict pivot_row = a + k * n;
        for (int64_t i = k + 1; i < n; i++) {
            if ((n - k) * (i & 63) > 32768 && vme_stopping(context))
                return -1;
            TYPE *restrict row = a + i * n;
            TYPE factor = row[k] / pivot_row[k];
            row[k] = factor;
            for (int64_t j = k + 1; j < n; j++)
                row[j] -= factor * pivot_row[j];
        }
    }
    return singular;
}

/* Solves for b[n, columns] in place. `a` and `pivots` are the result of `factor`. */
static int NAME(substitute)(vme_context *context, int64_t n, int64_t columns, const TYPE *restrict a,
                            const int32_t *pivots, TYPE *restrict b)
{
    for (int64_t k = 0; k < n; k++)
        if (pivots[k] != k)
            for (int64_t j = 0; j < columns; j++) {
                TYPE swapped = b[k * columns + j];
                b[k * columns + j] = b[pivots[k] * columns + j];
                b[pivots[k] * columns + j] = swapped;
            }
    for (int64_t i = 1; i < n; i++) {
        if (vme_stopping(context))
            return -1;
        for (int64_t k = 0; k < i; k++) {
            TYPE factor = a[i * n + k];
            for (int64_t j = 0; j < columns; j++)
                b[i * columns + j] -= factor * b[k * columns + j];
        }
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        if (vme_stopping(context))
            return -1;
        for (int64_t k = i + 1; k < n; k++) {
            TYPE factor = a[i * n + k];
            for (int64_t j = 0; j < columns; j++)
                b[i * columns + j] -= factor * b[k * columns + j];
        }
        TYPE pivot = a[i * n + i];
        for (int64_t j = 0; j < columns; j++)
            b[i * columns + j] /= pivot;
    }
    return 0;
}

/* Cholesky factor of the lower triangle of `a`, in place, with zeros above. */
static int NAME(cholesky)(vme_context *context, int64_t n, TYPE *restrict a)
{
    for (int64_t i = 0; i < n; i++) {
        if (vme_stopping(context))
            return -1;
        for (int64_t j = 0; j <= i; j++) {
            TYPE sum = a[i * n + j];
            for (int64_t k = 0; k < j; k++)
                sum -= a[i * n + k] * CONJ(a[j * n + k]);
            if (i != j)
                a[i * n + j] = sum / RE(a[j * n + j]);
            else if (RE(sum) <= 0) /* NaN passes, as in OpenBLAS */
                return 1;
            else
                a[i * n + i] = ROOT(RE(sum));
        }
        for (int64_t j = i + 1; j < n; j++)
            a[i * n + j] = 0;
    }
    return 0;
}

static int NAME(solve_item)(vme_context *context, const vme_linear_job *job, const char *const in[2],
                            char *const out[3], char *scratch)
{
    int64_t n = job->n, columns = job->columns;
    TYPE *a = (TYPE *)(void *)scratch, *result = (TYPE *)(void *)out[0];
    int32_t *pivots = (int32_t *)(void *)(scratch + (size_t)(n * n) * sizeof(TYPE));
    const TYPE *input = (const TYPE *)(const void *)in[0];
    int rc;
    if (job->op == VME_LINEAR_CHOLESKY) {
        bool upper = job->flags & VME_LINEAR_UPPER;
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j <= i; j++)
                a[i * n + j] = upper ? CONJ(input[j * n + i]) : input[i * n + j];
        rc = NAME(cholesky)(context, n, a);
        for (int64_t i = 0; rc == 0 && i < n; i++)
            for (int64_t j = 0; j < n; j++)
                result[i * n + j] = upper ? CONJ(a[j * n + i]) : a[i * n + j];
    } else {
        for (int64_t i = 0; i < n * n; i++)
            a[i] = input[i];
        rc = NAME(factor)(context, n, a, pivots);
        if (rc < 0)
            return rc;
        if (job->op == VME_LINEAR_SLOGDET) {
            TYPE sign = 1;
            double logarithm = 0, *log_out = (double *)(void *)out[1];
            for (int64_t i = 0; rc == 0 && i < n; i++) {
                TYPE pivot = a[i * n + i];
                double magnitude = MODULUS(pivot);
                sign *= pivots[i] != i ? -DIRECTION(pivot, magnitude) : DIRECTION(pivot, magnitude);
                logarithm += log(magnitude);
            }
            *result = rc == 0 ? sign : 0;
            *log_out = rc == 0 ? logarithm : -(double)INFINITY;
            return 0;
        }
        if (rc == 0 && job->op == VME_LINEAR_INVERSE) {
            columns = n;
            for (int64_t i = 0; i < n * n; i++)
                result[i] = i % (n + 1) == 0;
        } else if (rc == 0 && n * columns > 0) /* empty arrays may have a NULL pointer */
            memcpy(result, in[1], (size_t)(n * columns) * sizeof(TYPE));
        if (rc == 0)
            rc = NAME(substitute)(context, n, columns, a, pivots, result);
    }
    if (rc > 0)
        for (size_t i = 0; i < job->out_bytes[0] / sizeof(double); i++)
            ((double *)(void *)out[0])[i] = (double)NAN;
    return rc;
}

#undef TYPE
#undef NAME
#undef SIZE
#undef MODULUS
#undef CONJ
#undef RE
#undef DIRECTION
#undef ROOT
