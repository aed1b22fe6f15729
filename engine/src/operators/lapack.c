/* LAPACK of a foreign library (OpenBLAS), opened at first use and called through pointers.
 *
 * Everything, including opening the library, runs on a foreign thread (foreign.c). It works on copies, single-threaded,
 * one item of the batch after the other, so abandoned work ends after the current item. Matrices are transposed to
 * Fortran order and back. The calls are those of NumPy's linalg, so signs and orders agree where results are not
 * unique. */
#include "operators/lapack.h"

#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/foreign.h"
#include "runtime/numbers.h"

/* The Fortran functions of one element type. All arguments are pointers, except the string lengths at the end. Real
 * types have no `rwork`, complex ones no `wi`. */
typedef struct functions {
    void (*gesv)(const int *n, const int *columns, void *a, const int *lda, int *pivots, void *b, const int *ldb,
                 int *info);
    void (*getrf)(const int *m, const int *n, void *a, const int *lda, int *pivots, int *info);
    void (*potrf)(const char *uplo, const int *n, void *a, const int *lda, int *info, size_t);
    void (*geqrf)(const int *m, const int *n, void *a, const int *lda, void *tau, void *work, const int *lwork,
                  int *info);
    void (*orgqr)(const int *m, const int *n, const int *k, void *a, const int *lda, void *tau, void *work,
                  const int *lwork, int *info);
    void (*gesdd)(void);
    void (*geev)(void);
    void (*eigh)(void);
    void (*gelsd)(void);
} functions;
typedef void real_gesdd(const char *, const int *, const int *, void *, const int *, void *, void *, const int *,
                        void *, const int *, void *, const int *, int *, int *, size_t);
typedef void complex_gesdd(const char *, const int *, const int *, void *, const int *, void *, void *, const int *,
                           void *, const int *, void *, const int *, void *, int *, int *, size_t);
typedef void real_geev(const char *, const char *, const int *, void *, const int *, void *, void *, void *,
                       const int *, void *, const int *, void *, const int *, int *, size_t, size_t);
typedef void complex_geev(const char *, const char *, const int *, void *, const int *, void *, void *, const int *,
                          void *, const int *, void *, const int *, void *, int *, size_t, size_t);
typedef void real_eigh(const char *, const char *, const int *, void *, const int *, void *, void *, const int *, int *,
                       const int *, int *, size_t, size_t);
typedef void complex_eigh(const char *, const char *, const int *, void *, const int *, void *, void *, const int *,
                          void *, const int *, int *, const int *, int *, size_t, size_t);
typedef void real_gelsd(const int *, const int *, const int *, void *, const int *, void *, const int *, void *,
                        const void *, int *, void *, const int *, int *, int *);
typedef void complex_gelsd(const int *, const int *, const int *, void *, const int *, void *, const int *, void *,
                           const void *, int *, void *, const int *, void *, int *, int *);

enum { NONE, UNTRIED, LOADED, MISSING };
static struct {
    pthread_mutex_t lock;
    char path[PATH_MAX];
    char load_error[VME_MESSAGE_SIZE];
    atomic_int state;
    functions real, complex;
} lapack = {.lock = PTHREAD_MUTEX_INITIALIZER};

#define ADVICE "install scipy-openblas32 where the host runs (pip install scipy-openblas32)"

vme_status vme_lapack_at(const char *path)
{
    if (strlen(path) >= sizeof lapack.path)
        return vme_fail(VME_BAD_VALUE, "the path of the LAPACK library is longer than %zu bytes",
                        sizeof lapack.path - 1);
    pthread_mutex_lock(&lapack.lock);
    if (atomic_load(&lapack.state) != LOADED) {
        strcpy(lapack.path, path);
        atomic_store(&lapack.state, UNTRIED);
    }
    pthread_mutex_unlock(&lapack.lock);
    return VME_OK;
}

bool vme_lapack_present(void)
{
    int state = atomic_load(&lapack.state);
    return state == UNTRIED || state == LOADED;
}

static vme_status fail_missing(void)
{
    bool tried = atomic_load(&lapack.state) == MISSING;
    return vme_fail(VME_UNSUPPORTED, "%s", tried ? lapack.load_error : "this function needs LAPACK: " ADVICE);
}

/* Looks up a function by its LAPACK name and type prefix, in the spellings of builds of OpenBLAS and LAPACK. */
static bool find_symbol(void *library, char prefix, const char *name, void *pointer)
{
    static const char *const formats[] = {"scipy_%c%s_", "%c%s_"};
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        char symbol[64];
        snprintf(symbol, sizeof symbol, formats[i], prefix, name);
        void *found = dlsym(library, symbol);
        if (found != NULL) {
            memcpy(pointer, &found, sizeof found);
            return true;
        }
    }
    snprintf(lapack.load_error, sizeof lapack.load_error, "%.120s has no function %c%s; " ADVICE, lapack.path, prefix,
             name);
    return false;
}

static bool load(void)
{
    void *library = dlopen(lapack.path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(lapack.load_error, sizeof lapack.load_error, "LAPACK could not be loaded (%.160s); " ADVICE,
                 dlerror());
        return false;
    }
    void (*set_threads)(int) = NULL;
    void *found = dlsym(library, "scipy_openblas_set_num_threads");
    found = found != NULL ? found : dlsym(library, "openblas_set_num_threads");
    if (found != NULL) {
        memcpy(&set_threads, &found, sizeof found);
        set_threads(1);
    }
    for (int i = 0; i < 2; i++) {
        bool real = i == 0;
        char prefix = real ? 'd' : 'z';
        functions *f = real ? &lapack.real : &lapack.complex;
        if (!find_symbol(library, prefix, "gesv", &f->gesv) || !find_symbol(library, prefix, "getrf", &f->getrf)
            || !find_symbol(library, prefix, "potrf", &f->potrf) || !find_symbol(library, prefix, "geqrf", &f->geqrf)
            || !find_symbol(library, prefix, real ? "orgqr" : "ungqr", &f->orgqr)
            || !find_symbol(library, prefix, "gesdd", &f->gesdd) || !find_symbol(library, prefix, "geev", &f->geev)
            || !find_symbol(library, prefix, real ? "syevd" : "heevd", &f->eigh)
            || !find_symbol(library, prefix, "gelsd", &f->gelsd))
            return false;
    }
    return true;
}

static vme_status ensure_loaded(void)
{
    if (atomic_load(&lapack.state) == UNTRIED) {
        pthread_mutex_lock(&lapack.lock);
        if (atomic_load(&lapack.state) == UNTRIED)
            atomic_store(&lapack.state, load() ? LOADED : MISSING);
        pthread_mutex_unlock(&lapack.lock);
    }
    return atomic_load(&lapack.state) == LOADED ? VME_OK : fail_missing();
}

/* ---- one item */
typedef struct lapack_item {
    vme_context *context;
    const vme_linear_job *job;
    const functions *f;
    size_t size; /* bytes of an element */
    bool complex;
    /* scratch memory of one item, in this order */
    char *a, *b, *u, *vt; /* matrices in Fortran order */
    char *s, *tau;        /* vectors */
    int *integers;
    char *work, *rwork;
    int lwork, lrwork, liwork;
} lapack_item;

/* to[j * ld + i] = from[i * columns + j]; if `to_c_order`, the inverse */
static void transpose(char *to, const char *from, int64_t rows, int64_t columns, int64_t ld, size_t size,
                      bool to_c_order)
{
    for (int64_t j = 0; j < columns; j++)
        for (int64_t i = 0; i < rows; i++) {
            size_t fortran = (size_t)(j * ld + i) * size, c = (size_t)(i * columns + j) * size;
            if (to_c_order)
                memcpy(to + c, from + fortran, size);
            else
                memcpy(to + fortran, from + c, size);
        }
}

/* memcpy for possibly empty data: empty arrays may have a NULL pointer. */
static void copy_bytes(char *to, const char *from, size_t bytes)
{
    if (bytes > 0)
        memcpy(to, from, bytes);
}

static double get_real(const lapack_item *item, const char *vector, int64_t i)
{
    double value;
    memcpy(&value, vector + (size_t)i * item->size, 8);
    return value;
}

static void put_real(char *vector, int64_t i, double value)
{
    memcpy(vector + (size_t)i * sizeof value, &value, sizeof value);
}

/* The calls that take a workspace; lwork -1 queries its size. Each returns LAPACK's info. */
static int call_gesdd(const lapack_item *item, char jobz, int lwork)
{
    const vme_linear_job *j = item->job;
    int m = (int)j->m, n = (int)j->n, lda = max(1, m), k = min(m, n), ldu = lda, ldvt = max(1, jobz == 'A' ? n : k),
        info = 0;
    if (item->complex)
        ((complex_gesdd *)item->f->gesdd)(&jobz, &m, &n, item->a, &lda, item->s, item->u, &ldu, item->vt, &ldvt,
                                          item->work, &lwork, item->rwork, item->integers, &info, 1);
    else
        ((real_gesdd *)item->f->gesdd)(&jobz, &m, &n, item->a, &lda, item->s, item->u, &ldu, item->vt, &ldvt,
                                       item->work, &lwork, item->integers, &info, 1);
    return info;
}

static int call_geev(const lapack_item *item, bool vectors, int lwork)
{
    int n = (int)item->job->n, ld = max(1, n), info = 0;
    const char *left = "N", *right = vectors ? "V" : "N";
    if (item->complex)
        ((complex_geev *)item->f->geev)(left, right, &n, item->a, &ld, item->s, item->u, &ld, item->vt, &ld, item->work,
                                        &lwork, item->rwork, &info, 1, 1);
    else
        ((real_geev *)item->f->geev)(left, right, &n, item->a, &ld, item->s, item->tau, item->u, &ld, item->vt, &ld,
                                     item->work, &lwork, &info, 1, 1);
    return info;
}

static int call_eigh(const lapack_item *item, bool vectors, int lwork, int lrwork, int liwork)
{
    int n = (int)item->job->n, ld = max(1, n), info = 0;
    const char *jobz = vectors ? "V" : "N", *uplo = item->job->flags & VME_LINEAR_UPPER ? "U" : "L";
    if (item->complex)
        ((complex_eigh *)item->f->eigh)(jobz, uplo, &n, item->a, &ld, item->s, item->work, &lwork, item->rwork, &lrwork,
                                        item->integers, &liwork, &info, 1, 1);
    else
        ((real_eigh *)item->f->eigh)(jobz, uplo, &n, item->a, &ld, item->s, item->work, &lwork, item->integers, &liwork,
                                     &info, 1, 1);
    return info;
}

static int call_gelsd(const lapack_item *item, int lwork, int *rank)
{
    const vme_linear_job *j = item->job;
    int m = (int)j->m, n = (int)j->n, columns = (int)j->columns, lda = max(1, m), ldb = max(1, max(m, n)), info = 0;
    const double *cutoff = &j->cutoff;
    if (item->complex)
        ((complex_gelsd *)item->f->gelsd)(&m, &n, &columns, item->a, &lda, item->b, &ldb, item->s, cutoff, rank,
                                          item->work, &lwork, item->rwork, item->integers, &info);
    else
        ((real_gelsd *)item->f->gelsd)(&m, &n, &columns, item->a, &lda, item->b, &ldb, item->s, cutoff, rank,
                                       item->work, &lwork, item->integers, &info);
    return info;
}

static char svd_job(const vme_linear_job *j)
{
    return j->out_bytes[1] == 0 ? 'N' : j->flags & VME_LINEAR_FULL ? 'A' : 'S';
}

/* Queries the sizes of the workspaces: sets lwork, lrwork and liwork. Returns LAPACK's info: not 0 if it refused the
 * sizes. */
static int query_workspace(lapack_item *item)
{
    const vme_linear_job *j = item->job;
    char work_size[16] = {0};
    double rwork_size[2] = {0};
    int integers[8] = {0}, rank = 0, query = -1, info = 0, k = min(j->m, j->n);
    item->work = work_size;
    item->rwork = (char *)rwork_size;
    item->integers = integers;
    item->a = item->b = item->u = item->vt = item->s = item->tau = work_size; /* not read in a query */
    int64_t m = j->m, n = j->n, levels = 1;
    for (int64_t size = k; size > 25; size /= 2)
        levels++;
    item->lrwork = item->liwork = 1;
    switch (j->op) {
    case VME_LINEAR_SVD: {
        char jobz = svd_job(j);
        info = call_gesdd(item, jobz, -1);
        int64_t longer = m > n ? m : n;
        item->lrwork =
            jobz == 'N' ? 7 * k + 1 : max(5 * (int64_t)k * k + 5 * k, 2 * longer * k + 2 * (int64_t)k * k + k) + 1;
        item->liwork = 8 * k + 1;
        break;
    }
    case VME_LINEAR_QR: {
        int rows = (int)m, columns = (int)n, lda = max(1, m), full = (int)(j->flags & VME_LINEAR_FULL ? m : k),
            geqrf_size;
        item->f->geqrf(&rows, &columns, item->a, &lda, item->tau, work_size, &query, &info);
        geqrf_size = (int)get_real(item, work_size, 0);
        if (info != 0)
            break;
        item->f->orgqr(&rows, &full, &k, item->a, &lda, item->tau, work_size, &query, &info);
        if (get_real(item, work_size, 0) < geqrf_size)
            put_real(work_size, 0, geqrf_size);
        break;
    }
    case VME_LINEAR_EIG:
        info = call_geev(item, j->out_bytes[1] != 0, -1);
        item->lrwork = 2 * (int)n + 1;
        break;
    case VME_LINEAR_EIGH:
        info = call_eigh(item, j->out_bytes[1] != 0, -1, -1, -1);
        item->liwork = integers[0];
        item->lrwork = (int)rwork_size[0];
        break;
    case VME_LINEAR_LSTSQ:
        info = call_gelsd(item, -1, &rank);
        item->liwork = integers[0];
        item->lrwork = (int)rwork_size[0];
        break;
    default: item->liwork = max(1, n); break;
    }
    item->lwork = max(1, (int64_t)get_real(item, work_size, 0));
    item->work = item->rwork = NULL;
    item->integers = NULL;
    item->a = item->b = item->u = item->vt = item->s = item->tau = NULL;
    return info;
}

/* The sign and log |det| of the LU factorization in `a`. */
static void determinant(const lapack_item *item, int info, char *sign_out, char *log_out)
{
    int64_t n = item->job->n;
    double re = 1, im = 0, logarithm = 0;
    if (info != 0) {
        re = 0;
        logarithm = -INFINITY;
    } else {
        for (int64_t i = 0; i < n; i++)
            if (item->integers[i] != i + 1)
                re = -re;
        for (int64_t i = 0; i < n; i++) {
            double x = get_real(item, item->a, i * n + i),
                   y = item->complex ? get_real(item, item->a + sizeof(double), i * n + i) : 0;
            double modulus = item->complex ? hypot(x, y) : fabs(x);
            if (item->complex) {
                double product_re = re * (x / modulus) - im * (y / modulus);
                im = re * (y / modulus) + im * (x / modulus);
                re = product_re;
            } else if (x < 0)
                re = -re;
            logarithm += log(modulus);
        }
    }
    put_real(sign_out, 0, re);
    if (item->complex)
        put_real(sign_out, 1, im);
    put_real(log_out, 0, logarithm);
}

/* Converts the eigenvalues and eigenvectors of a real matrix to complex numbers. LAPACK writes the real and imaginary
 * parts of the eigenvectors of a conjugate pair as two real vectors. */
static void expand_conjugate_pairs(const lapack_item *item, char *values, char *vectors)
{
    int64_t n = item->job->n;
    for (int64_t i = 0; i < n; i++) {
        put_real(values, 2 * i, get_real(item, item->s, i));
        put_real(values, 2 * i + 1, get_real(item, item->tau, i));
    }
    for (int64_t j = 0; vectors != NULL && j < n; j++) {
        bool pair = get_real(item, item->tau, j) != 0 && j + 1 < n;
        for (int64_t i = 0; i < n; i++) {
            double re = get_real(item, item->vt, j * n + i), im = pair ? get_real(item, item->vt, (j + 1) * n + i) : 0;
            put_real(vectors, 2 * (i * n + j), re);
            put_real(vectors, 2 * (i * n + j) + 1, im);
            if (pair) {
                put_real(vectors, 2 * (i * n + j + 1), re);
                put_real(vectors, 2 * (i * n + j + 1) + 1, -im);
            }
        }
        j += pair;
    }
}

static void fill_nan(char *out, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof(double); i++)
        put_real(out, (int64_t)i, (double)NAN);
}

/* Fills the outputs of an item that LAPACK did not solve as NumPy does: NaN, and -1 for the rank. */
static void fill_failed(const vme_linear_job *j, char *const out[3])
{
    const int64_t no_rank = -1;
    for (int i = 0; i < 3; i++)
        if (j->op == VME_LINEAR_LSTSQ && i == 2)
            memcpy(out[i], &no_rank, sizeof no_rank);
        else
            fill_nan(out[i], j->out_bytes[i]);
}

/* Whether all numbers are finite: with an infinite one LAPACK's iterations may never end, and of NaN it prints lines to
 * the standard output of the process. */
static bool all_finite(const char *in, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += sizeof(double)) {
        double value;
        memcpy(&value, in + at, sizeof value);
        if (!isfinite(value))
            return false;
    }
    return true;
}

/* Solves one item. Returns LAPACK's info: above 0 if the computation failed, below 0 if LAPACK refused an argument, as
 * gesdd does a matrix with NaN; it has written no output then. */
static int solve_item(lapack_item *item, const char *const in[2], char *const out[3])
{
    const vme_linear_job *j = item->job;
    int m = (int)j->m, n = (int)j->n, columns = (int)j->columns, lda = max(1, m), k = min(m, n), info = 0, rank = 0;
    size_t size = item->size;
    transpose(item->a, in[0], m, n, lda, size, false);
    switch (j->op) {
    case VME_LINEAR_SOLVE:
        transpose(item->b, in[1], n, columns, lda, size, false);
        item->f->gesv(&n, &columns, item->a, &lda, item->integers, item->b, &lda, &info);
        transpose(out[0], item->b, n, columns, lda, size, true);
        break;
    case VME_LINEAR_INVERSE:
        memset(item->b, 0, (size_t)n * (size_t)n * size);
        for (int64_t i = 0; i < n; i++)
            put_real(item->b + (size_t)(i * n + i) * size, 0, 1);
        item->f->gesv(&n, &n, item->a, &lda, item->integers, item->b, &lda, &info);
        transpose(out[0], item->b, n, n, lda, size, true);
        break;
    case VME_LINEAR_SLOGDET:
        item->f->getrf(&n, &n, item->a, &lda, item->integers, &info);
        determinant(item, info, out[0], out[1]);
        return 0;
    case VME_LINEAR_CHOLESKY: {
        bool upper = j->flags & VME_LINEAR_UPPER;
        item->f->potrf(upper ? "U" : "L", &n, item->a, &lda, &info, 1);
        for (int64_t c = 0; c < n; c++)
            for (int64_t r = upper ? c + 1 : 0; r < (upper ? n : c); r++)
                memset(item->a + (size_t)(c * n + r) * size, 0, size);
        transpose(out[0], item->a, n, n, lda, size, true);
        break;
    }
    case VME_LINEAR_QR: {
        int full = (int)(j->flags & VME_LINEAR_FULL ? m : k);
        item->f->geqrf(&m, &n, item->a, &lda, item->tau, item->work, &item->lwork, &info);
        if (j->flags & VME_LINEAR_RAW) {
            /* the result is the transpose in C order, which is LAPACK's matrix as it is */
            copy_bytes(out[0], item->a, (size_t)m * (size_t)n * size);
            copy_bytes(out[1], item->tau, (size_t)k * size);
            break;
        }
        for (int64_t r = 0; r < full; r++)
            for (int64_t c = 0; c < n; c++) {
                char *to = out[1] + (size_t)(r * n + c) * size;
                if (r <= c && r < m)
                    memcpy(to, item->a + (size_t)(c * lda + r) * size, size);
                else
                    memset(to, 0, size);
            }
        if (j->out_bytes[0] != 0) {
            if (info == 0)
                item->f->orgqr(&m, &full, &k, item->a, &lda, item->tau, item->work, &item->lwork, &info);
            transpose(out[0], item->a, m, full, lda, size, true);
        }
        break;
    }
    case VME_LINEAR_SVD: {
        char jobz = svd_job(j);
        info = all_finite(in[0], j->in_bytes[0]) ? call_gesdd(item, jobz, item->lwork) : -1;
        copy_bytes(out[0], item->s, (size_t)k * sizeof(double));
        if (jobz != 'N') {
            int u_columns = jobz == 'A' ? m : k, vt_rows = jobz == 'A' ? n : k;
            transpose(out[1], item->u, m, u_columns, lda, size, true);
            transpose(out[2], item->vt, vt_rows, n, max(1, vt_rows), size, true);
        }
        break;
    }
    case VME_LINEAR_EIG: {
        bool vectors = j->out_bytes[1] != 0;
        info = all_finite(in[0], j->in_bytes[0]) ? call_geev(item, vectors, item->lwork) : -1;
        if (!item->complex)
            expand_conjugate_pairs(item, out[0], vectors ? out[1] : NULL);
        else {
            copy_bytes(out[0], item->s, (size_t)n * size);
            if (vectors)
                transpose(out[1], item->vt, n, n, lda, size, true);
        }
        break;
    }
    case VME_LINEAR_EIGH: {
        bool vectors = j->out_bytes[1] != 0;
        info = call_eigh(item, vectors, item->lwork, item->lrwork, item->liwork);
        copy_bytes(out[0], item->s, (size_t)n * sizeof(double));
        if (vectors)
            transpose(out[1], item->a, n, n, lda, size, true);
        break;
    }
    case VME_LINEAR_LSTSQ: {
        int ldb = max(1, max(m, n));
        memset(item->b, 0, (size_t)ldb * (size_t)columns * size);
        transpose(item->b, in[1], m, columns, ldb, size, false);
        info = all_finite(in[0], j->in_bytes[0]) ? call_gelsd(item, item->lwork, &rank) : -1;
        transpose(out[0], item->b, max(m, n), columns, ldb, size, true);
        copy_bytes(out[1], item->s, (size_t)k * sizeof(double));
        int64_t rank_out = rank;
        memcpy(out[2], &rank_out, sizeof rank_out);
        break;
    }
    case VME_LINEAR_COUNT: break;
    }
    if (info != 0)
        fill_failed(j, out);
    return info;
}

static size_t round_up(size_t bytes) { return (bytes + VME_ALIGNMENT - 1) & ~(size_t)(VME_ALIGNMENT - 1); }

/* Solves the whole batch, on a foreign thread. The block is the job, followed by copies of its operands. */
static vme_status run_batch(vme_context *context, void *block, const atomic_bool *abandoned)
{
    vme_linear_job *j = block;
    vme_status status = ensure_loaded();
    if (status != VME_OK)
        return status;
    bool complex = j->dtype == VME_COMPLEX128;
    lapack_item item = {.context = context,
                        .job = j,
                        .f = complex ? &lapack.complex : &lapack.real,
                        .size = sizeof(double) << complex,
                        .complex = complex};
    int info = query_workspace(&item);
    if (info != 0)
        return vme_fail(VME_BAD_SHAPE, "LAPACK refused a matrix of %lld rows and %lld columns (info %d)",
                        (long long)j->m, (long long)j->n, info);
    size_t m = (size_t)j->m, n = (size_t)j->n, longer = m > n ? m : n, full = j->op == VME_LINEAR_QR && m > n ? m : n;
    size_t a_bytes = round_up(m * full * item.size), vector_bytes = round_up((longer + 1) * item.size);
    size_t b_bytes = round_up(longer * (j->op == VME_LINEAR_INVERSE ? n : (size_t)j->columns) * item.size);
    size_t u_bytes = j->out_bytes[1] == 0 && j->op != VME_LINEAR_EIG
                         ? 0
                         : round_up(m * (j->op == VME_LINEAR_SVD ? longer : m) * item.size);
    size_t vt_bytes = j->op == VME_LINEAR_SVD || j->op == VME_LINEAR_EIG ? round_up(n * longer * item.size) : 0;
    size_t integer_bytes = round_up(((size_t)item.liwork + longer) * sizeof(int)),
           work_bytes = round_up((size_t)item.lwork * item.size);
    size_t rwork_bytes = complex ? round_up((size_t)item.lrwork * sizeof(double)) : 0;
    size_t bytes = a_bytes + b_bytes + u_bytes + vt_bytes + 2 * vector_bytes + integer_bytes + work_bytes + rwork_bytes
                   + VME_ALIGNMENT;
    char *scratch = vme_scratch_new(context, bytes), *at = scratch;
    if (scratch == NULL)
        return VME_NO_MEMORY;
    item.a = at;
    at += a_bytes;
    item.b = at;
    at += b_bytes;
    item.u = at;
    at += u_bytes;
    item.vt = at;
    at += vt_bytes;
    item.s = at;
    at += vector_bytes;
    item.tau = at;
    at += vector_bytes;
    item.integers = (int *)(void *)at;
    at += integer_bytes;
    item.work = at;
    at += work_bytes;
    item.rwork = at;
    for (int64_t i = 0; i < j->batch && !atomic_load_explicit(abandoned, memory_order_relaxed); i++) {
        const char *in[2];
        char *out[3];
        for (int k = 0; k < 2; k++)
            in[k] = j->in[k] + (size_t)i * j->in_bytes[k];
        for (int k = 0; k < 3; k++)
            out[k] = j->out[k] + (size_t)i * j->out_bytes[k];
        if (solve_item(&item, in, out) != 0)
            j->failed++;
    }
    vme_scratch_free(context, scratch, bytes);
    return VME_OK;
}

vme_status vme_lapack(vme_context *context, vme_linear_job *job)
{
    if (!vme_lapack_present())
        return fail_missing();
    if (job->m > INT_MAX || job->n > INT_MAX || job->columns > INT_MAX)
        return vme_fail(VME_BAD_SHAPE, "LAPACK takes matrices of at most %d rows and columns", INT_MAX);
    size_t count = (size_t)job->batch, bytes = round_up(sizeof *job);
    for (int i = 0; i < 2; i++)
        bytes += round_up(count * job->in_bytes[i]);
    for (int i = 0; i < 3; i++)
        bytes += round_up(count * job->out_bytes[i]);
    void *block = vme_scratch_new(context, bytes);
    if (block == NULL)
        return VME_NO_MEMORY;
    vme_linear_job *copy = block;
    *copy = *job;
    char *at = (char *)block + round_up(sizeof *job);
    bool running = true;
    for (int i = 0; i < 2; i++) {
        running = running && vme_foreign_copy(context, at, job->in[i], count * job->in_bytes[i]);
        copy->in[i] = at;
        at += round_up(count * job->in_bytes[i]);
    }
    for (int i = 0; i < 3; i++) {
        copy->out[i] = at;
        at += round_up(count * job->out_bytes[i]);
    }
    vme_status status = running ? vme_foreign(context, run_batch, &block, bytes) : vme_stopped_here(context);
    if (status == VME_OK) {
        for (int i = 0; running && i < 3; i++)
            running = vme_foreign_copy(context, job->out[i], copy->out[i], count * job->out_bytes[i]);
        job->failed = copy->failed;
        status = running ? VME_OK : vme_stopped_here(context);
    }
    vme_scratch_free(context, block, bytes);
    return status;
}
