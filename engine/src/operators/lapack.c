/* LAPACK of a foreign library (OpenBLAS), opened at first use and called through pointers.
 *
 * Everything runs on a foreign thread (foreign.c), including opening: on copies, single-threaded, one item of the batch
 * after the other, so that abandoned work ends after the current item. Matrices are transposed to Fortran order and
 * back. The calls are those of NumPy's linalg, so signs and orders agree where results are not unique. */
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
    char why[VME_MESSAGE_SIZE];
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

static vme_status missing(void)
{
    bool tried = atomic_load(&lapack.state) == MISSING;
    return vme_fail(VME_UNSUPPORTED, "%s", tried ? lapack.why : "this function needs LAPACK: " ADVICE);
}

/* Looks up a function by its LAPACK name, under the names that builds of OpenBLAS and LAPACK use. */
static bool find(void *library, char kind, const char *name, void *pointer)
{
    static const char *const forms[] = {"scipy_%c%s_", "%c%s_"};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        char symbol[64];
        snprintf(symbol, sizeof symbol, forms[i], kind, name);
        void *found = dlsym(library, symbol);
        if (found != NULL) {
            memcpy(pointer, &found, sizeof found);
            return true;
        }
    }
    snprintf(lapack.why, sizeof lapack.why, "%.120s has no function %c%s; " ADVICE, lapack.path, kind, name);
    return false;
}

static bool load(void)
{
    void *library = dlopen(lapack.path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(lapack.why, sizeof lapack.why, "LAPACK could not be loaded (%.160s); " ADVICE, dlerror());
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
        char kind = real ? 'd' : 'z';
        functions *f = real ? &lapack.real : &lapack.complex;
        if (!find(library, kind, "gesv", &f->gesv) || !find(library, kind, "getrf", &f->getrf)
            || !find(library, kind, "potrf", &f->potrf) || !find(library, kind, "geqrf", &f->geqrf)
            || !find(library, kind, real ? "orgqr" : "ungqr", &f->orgqr) || !find(library, kind, "gesdd", &f->gesdd)
            || !find(library, kind, "geev", &f->geev) || !find(library, kind, real ? "syevd" : "heevd", &f->eigh)
            || !find(library, kind, "gelsd", &f->gelsd))
            return false;
    }
    return true;
}

static vme_status ready(void)
{
    if (atomic_load(&lapack.state) == UNTRIED) {
        pthread_mutex_lock(&lapack.lock);
        if (atomic_load(&lapack.state) == UNTRIED)
            atomic_store(&lapack.state, load() ? LOADED : MISSING);
        pthread_mutex_unlock(&lapack.lock);
    }
    return atomic_load(&lapack.state) == LOADED ? VME_OK : missing();
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

/* to[j * ld + i] = from[i * columns + j], or back */
static void transpose(char *to, const char *from, int64_t rows, int64_t columns, int64_t ld, size_t size, bool back)
{
    for (int64_t j = 0; j < columns; j++)
        for (int64_t i = 0; i < rows; i++) {
            size_t fortran = (size_t)(j * ld + i) * size, c = (size_t)(i * columns + j) * size;
            if (back)
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

static double real_at(const lapack_item *item, const char *vector, int64_t i)
{
    double value;
    memcpy(&value, vector + (size_t)i * item->size, 8);
    return value;
}

static void put_real(char *vector, int64_t i, double value)
{
    memcpy(vector + (size_t)i * sizeof value, &value, sizeof value);
}

/* The calls with their work space; lwork -1 queries its size. Each returns LAPACK's info. */
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

/* Queries the sizes of the calls' work space; sets nothing else. */
static void ask(lapack_item *item)
{
    const vme_linear_job *j = item->job;
    char answer[16] = {0};
    double real_answer[2] = {0};
    int integers[8] = {0}, rank = 0, wanted = -1, info = 0, k = min(j->m, j->n);
    item->work = answer;
    item->rwork = (char *)real_answer;
    item->integers = integers;
    item->a = item->b = item->u = item->vt = item->s = item->tau = answer; /* not read in a query */
    int64_t m = j->m, n = j->n, levels = 1;
    for (int64_t size = k; size > 25; size /= 2)
        levels++;
    item->lrwork = item->liwork = 1;
    switch (j->op) {
    case VME_LINEAR_SVD: {
        char jobz = svd_job(j);
        call_gesdd(item, jobz, -1);
        int64_t longer = m > n ? m : n;
        item->lrwork =
            jobz == 'N' ? 7 * k + 1 : max(5 * (int64_t)k * k + 5 * k, 2 * longer * k + 2 * (int64_t)k * k + k) + 1;
        item->liwork = 8 * k + 1;
        break;
    }
    case VME_LINEAR_QR: {
        int rows = (int)m, columns = (int)n, lda = max(1, m), full = (int)(j->flags & VME_LINEAR_FULL ? m : k), second;
        item->f->geqrf(&rows, &columns, item->a, &lda, item->tau, answer, &wanted, &info);
        second = (int)real_at(item, answer, 0);
        item->f->orgqr(&rows, &full, &k, item->a, &lda, item->tau, answer, &wanted, &info);
        if (real_at(item, answer, 0) < second)
            put_real(answer, 0, second);
        break;
    }
    case VME_LINEAR_EIG:
        call_geev(item, j->out_bytes[1] != 0, -1);
        item->lrwork = 2 * (int)n + 1;
        break;
    case VME_LINEAR_EIGH:
        call_eigh(item, j->out_bytes[1] != 0, -1, -1, -1);
        item->liwork = integers[0];
        item->lrwork = (int)real_answer[0];
        break;
    case VME_LINEAR_LSTSQ:
        call_gelsd(item, -1, &rank);
        item->liwork = integers[0];
        item->lrwork = (int)real_answer[0];
        break;
    default: item->liwork = max(1, n); break;
    }
    item->lwork = max(1, (int64_t)real_at(item, answer, 0));
    item->work = item->rwork = NULL;
    item->integers = NULL;
    item->a = item->b = item->u = item->vt = item->s = item->tau = NULL;
}

/* sign and log |det| of the factored matrix in `a` */
static void determinant(const lapack_item *item, int info, char *sign_out, char *log_out)
{
    int64_t n = item->job->n;
    double re = 1, im = 0, logarithm = 0;
    if (info > 0) {
        re = 0;
        logarithm = -INFINITY;
    } else {
        for (int64_t i = 0; i < n; i++)
            if (item->integers[i] != i + 1)
                re = -re;
        for (int64_t i = 0; i < n; i++) {
            double x = real_at(item, item->a, i * n + i),
                   y = item->complex ? real_at(item, item->a + sizeof(double), i * n + i) : 0;
            double size = item->complex ? hypot(x, y) : fabs(x);
            if (item->complex) {
                double turned = re * (x / size) - im * (y / size);
                im = re * (y / size) + im * (x / size);
                re = turned;
            } else if (x < 0)
                re = -re;
            logarithm += log(size);
        }
    }
    put_real(sign_out, 0, re);
    if (item->complex)
        put_real(sign_out, 1, im);
    put_real(log_out, 0, logarithm);
}

/* Converts real eigenvalues and pairs of vectors to complex numbers: LAPACK writes the real and imaginary parts of a
 * conjugate pair as two vectors. */
static void pairs_of(const lapack_item *item, char *values, char *vectors)
{
    int64_t n = item->job->n;
    for (int64_t i = 0; i < n; i++) {
        put_real(values, 2 * i, real_at(item, item->s, i));
        put_real(values, 2 * i + 1, real_at(item, item->tau, i));
    }
    for (int64_t j = 0; vectors != NULL && j < n; j++) {
        bool pair = real_at(item, item->tau, j) != 0 && j + 1 < n;
        for (int64_t i = 0; i < n; i++) {
            double re = real_at(item, item->vt, j * n + i), im = pair ? real_at(item, item->vt, (j + 1) * n + i) : 0;
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

static void not_a_number(char *out, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof(double); i++)
        put_real(out, (int64_t)i, (double)NAN);
}

/* Solves one item; returns LAPACK's info: above 0 it failed. */
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
            copy_bytes(out[0], item->a, (size_t)m * (size_t)n * size); /* copied without transposing: the transpose in C
                                                                        * order */
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
            item->f->orgqr(&m, &full, &k, item->a, &lda, item->tau, item->work, &item->lwork, &info);
            transpose(out[0], item->a, m, full, lda, size, true);
        }
        break;
    }
    case VME_LINEAR_SVD: {
        char jobz = svd_job(j);
        info = call_gesdd(item, jobz, item->lwork);
        copy_bytes(out[0], item->s, (size_t)k * sizeof(double));
        if (jobz != 'N') {
            int wide = jobz == 'A' ? m : k, high = jobz == 'A' ? n : k;
            transpose(out[1], item->u, m, wide, lda, size, true);
            transpose(out[2], item->vt, high, n, max(1, high), size, true);
        }
        break;
    }
    case VME_LINEAR_EIG: {
        bool vectors = j->out_bytes[1] != 0;
        info = call_geev(item, vectors, item->lwork);
        if (!item->complex)
            pairs_of(item, out[0], vectors ? out[1] : NULL);
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
        info = call_gelsd(item, item->lwork, &rank);
        transpose(out[0], item->b, max(m, n), columns, ldb, size, true);
        copy_bytes(out[1], item->s, (size_t)k * sizeof(double));
        int64_t wide = rank;
        memcpy(out[2], &wide, sizeof wide);
        break;
    }
    case VME_LINEAR_COUNT: break;
    }
    if (info > 0)
        for (int i = 0; i < 3; i++)
            if (!(j->op == VME_LINEAR_LSTSQ && i == 2))
                not_a_number(out[i], j->out_bytes[i]);
    return info;
}

static size_t rounded(size_t bytes) { return (bytes + VME_ALIGNMENT - 1) & ~(size_t)(VME_ALIGNMENT - 1); }

/* The whole batch, on a foreign thread: the block is the job followed by its copies. */
static vme_status work(vme_context *context, void *block, const atomic_bool *abandoned)
{
    vme_linear_job *j = block;
    vme_status status = ready();
    if (status != VME_OK)
        return status;
    bool complex = j->dtype == VME_COMPLEX128;
    lapack_item item = {.context = context,
                        .job = j,
                        .f = complex ? &lapack.complex : &lapack.real,
                        .size = sizeof(double) << complex,
                        .complex = complex};
    ask(&item);
    size_t m = (size_t)j->m, n = (size_t)j->n, longer = m > n ? m : n, full = j->op == VME_LINEAR_QR && m > n ? m : n;
    size_t matrix = rounded(m * full * item.size), vector = rounded((longer + 1) * item.size);
    size_t right = rounded(longer * (j->op == VME_LINEAR_INVERSE ? n : (size_t)j->columns) * item.size);
    size_t left = j->out_bytes[1] == 0 && j->op != VME_LINEAR_EIG
                      ? 0
                      : rounded(m * (j->op == VME_LINEAR_SVD ? longer : m) * item.size);
    size_t other = j->op == VME_LINEAR_SVD || j->op == VME_LINEAR_EIG ? rounded(n * longer * item.size) : 0;
    size_t integers = rounded(((size_t)item.liwork + longer) * sizeof(int)),
           working = rounded((size_t)item.lwork * item.size);
    size_t reals = complex ? rounded((size_t)item.lrwork * sizeof(double)) : 0;
    size_t bytes = matrix + right + left + other + 2 * vector + integers + working + reals + VME_ALIGNMENT;
    char *scratch = vme_scratch_new(context, bytes), *at = scratch;
    if (scratch == NULL)
        return VME_NO_MEMORY;
    item.a = at;
    at += matrix;
    item.b = at;
    at += right;
    item.u = at;
    at += left;
    item.vt = at;
    at += other;
    item.s = at;
    at += vector;
    item.tau = at;
    at += vector;
    item.integers = (int *)(void *)at;
    at += integers;
    item.work = at;
    at += working;
    item.rwork = at;
    for (int64_t i = 0; i < j->batch && !atomic_load_explicit(abandoned, memory_order_relaxed); i++) {
        const char *in[2];
        char *out[3];
        for (int k = 0; k < 2; k++)
            in[k] = j->in[k] + (size_t)i * j->in_bytes[k];
        for (int k = 0; k < 3; k++)
            out[k] = j->out[k] + (size_t)i * j->out_bytes[k];
        if (solve_item(&item, in, out) > 0)
            j->failed++;
    }
    vme_scratch_free(context, scratch, bytes);
    return VME_OK;
}

vme_status vme_lapack(vme_context *context, vme_linear_job *job)
{
    if (!vme_lapack_present())
        return missing();
    if (job->m > INT_MAX || job->n > INT_MAX || job->columns > INT_MAX)
        return vme_fail(VME_BAD_SHAPE, "LAPACK takes matrices of at most %d rows and columns", INT_MAX);
    size_t count = (size_t)job->batch, bytes = rounded(sizeof *job);
    for (int i = 0; i < 2; i++)
        bytes += rounded(count * job->in_bytes[i]);
    for (int i = 0; i < 3; i++)
        bytes += rounded(count * job->out_bytes[i]);
    void *block = vme_scratch_new(context, bytes);
    if (block == NULL)
        return VME_NO_MEMORY;
    vme_linear_job *copy = block;
    *copy = *job;
    char *at = (char *)block + rounded(sizeof *job);
    bool going = true;
    for (int i = 0; i < 2; i++) {
        going = going && vme_foreign_copy(context, at, job->in[i], count * job->in_bytes[i]);
        copy->in[i] = at;
        at += rounded(count * job->in_bytes[i]);
    }
    for (int i = 0; i < 3; i++) {
        copy->out[i] = at;
        at += rounded(count * job->out_bytes[i]);
    }
    vme_status status = going ? vme_foreign(context, work, &block, bytes) : vme_stopped_here(context);
    if (status == VME_OK) {
        for (int i = 0; going && i < 3; i++)
            going = vme_foreign_copy(context, job->out[i], copy->out[i], count * job->out_bytes[i]);
        job->failed = copy->failed;
        status = going ? VME_OK : vme_stopped_here(context);
    }
    vme_scratch_free(context, block, bytes);
    return status;
}
