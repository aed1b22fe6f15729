/* Distributions, drawn sequentially from Philox's stream.
 *
 * Normal and exponential: ziggurats of 256 strips (Marsaglia, Tsang: The ziggurat method for generating random
 * variables, 2000), with tables computed from the definition. Gamma: Marsaglia, Tsang: A simple method for generating
 * gamma variables, 2000. Beta: Johnk. Poisson: Hoermann's PTRS, 1993. Binomial: Kachitvichyanukul, Schmeiser: BTPE,
 * 1988, and inversion. Bounded integers: Lemire, 2019. Wald: Michael, Schucany, Haas, 1976. Von Mises: Best, Fisher,
 * 1979. All consume words in the order of NumPy's Generator. Formulas are written as in NumPy, so that results are
 * rounded alike. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "operators/random.h"

#define PI 3.14159265358979323846
enum { PIECE = 4096 }; /* numbers between two checks of the stop flag */

/* ---- words */
/* The stream of random words that starts at a state. bits_close stores the position in the state. */
typedef struct bits {
    vme_random_state *state;
    uint64_t words[VME_PHILOX_WORDS], base[4]; /* base: the counter before the first block of `words` */
    int at, end;                               /* index in `words` of the next one, and the number of words */
    bool fresh;                                /* freshly generated words, not the rest of the state's block */
    bool has_half;                             /* `half` is the upper half of a word whose lower half was used */
    uint32_t half;
    uint32_t narrow; /* the unused bits of a word that 8- and 16-bit numbers share */
    int narrow_left; /* how many more such numbers they suffice for */
    bool bad;        /* a parameter is outside of its distribution's domain, where a rejection loop may never end */
    struct {         /* values derived from the last parameters, reused while the parameters stay the same */
        double mean, exp_neg_mean; /* Poisson */
        double p, p_zero;          /* binomial by inversion: its p, and the probability of 0 */
        int64_t n, max;
    } last;
} bits;

static void bits_open(bits *b, vme_random_state *state)
{
    b->state = state;
    memcpy(b->words, state->buffer, sizeof state->buffer);
    memcpy(b->base, state->counter, sizeof b->base);
    b->at = (int)state->buffer_pos;
    b->end = 4;
    b->fresh = false;
    b->has_half = state->has_uint32 != 0;
    b->half = (uint32_t)state->uinteger;
    b->narrow_left = 0;
    b->bad = false;
    b->last.mean = b->last.p = NAN;
}

static __attribute__((noinline)) void bits_refill(bits *b)
{
    if (b->fresh)
        vme_philox_advance(b->base, VME_PHILOX_WORDS / 4);
    vme_philox_blocks(b->state->key, b->base, b->words);
    b->at = 0;
    b->end = VME_PHILOX_WORDS;
    b->fresh = true;
}

static inline uint64_t next64(bits *b)
{
    if (__builtin_expect(b->at >= b->end, 0))
        bits_refill(b);
    return b->words[b->at++];
}

static inline uint32_t next32(bits *b)
{
    if (b->has_half) {
        b->has_half = false;
        return b->half;
    }
    uint64_t word = next64(b);
    b->has_half = true;
    b->half = (uint32_t)(word >> 32);
    return (uint32_t)word;
}

/* Stores the block of the last word used, and the position in it, in the state. */
static void bits_close(bits *b)
{
    vme_random_state *state = b->state;
    state->has_uint32 = b->has_half;
    state->uinteger = b->half;
    if (!b->fresh) {
        state->buffer_pos = (uint64_t)b->at;
        return;
    }
    int block = b->at == 0 ? 0 : (b->at - 1) / 4;
    memcpy(state->buffer, b->words + 4 * block, sizeof state->buffer);
    memcpy(state->counter, b->base, sizeof b->base);
    vme_philox_advance(state->counter, (uint64_t)block + 1);
    state->buffer_pos = (uint64_t)(b->at - 4 * block);
}

static inline double uniform(bits *b) { return (double)(next64(b) >> 11) * (1.0 / 9007199254740992.0); }
static inline float uniform_f(bits *b) { return (float)(next32(b) >> 8) * (1.0f / 16777216.0f); }

/* ---- ziggurats: strips of equal area; x[i] is the right edge of strip i; the first strip includes the tail */
typedef struct ziggurat {
    uint64_t k[256]; /* numbers below it are certain to lie under the curve */
    double w[256], f[256];
    uint32_t k_f[256];
    float w_f[256], f_f[256];
} ziggurat;
static ziggurat normal_table, exponential_table;
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;
#define NORMAL_END      3.6541528853610087963519472518L
#define EXPONENTIAL_END 7.6971174701310497140446280481L

static long double density(bool normal, long double x) { return normal ? expl(-0.5L * x * x) : expl(-x); }

static void make_table(ziggurat *z, bool normal, long double end, long double area, long double scale,
                       long double scale_f)
{
    long double x[256];
    x[255] = end;
    for (int i = 254; i > 0; i--) {
        long double y = area / x[i + 1] + density(normal, x[i + 1]);
        x[i] = normal ? sqrtl(-2 * logl(y)) : -logl(y);
    }
    x[0] = 0;
    for (int i = 0; i < 256; i++) {
        long double width = i == 0 ? area / density(normal, end) : x[i],
                    certain = i == 0 ? end / width : x[i - 1] / x[i];
        z->k[i] = (uint64_t)(certain * scale);
        z->k_f[i] = (uint32_t)roundl(certain * scale_f);
        z->w[i] = (double)(width / scale);
        z->w_f[i] = (float)(width / scale_f);
        z->f[i] = (double)density(normal, x[i]);
        z->f_f[i] = (float)density(normal, x[i]);
    }
}

static void make_tables(void)
{
    long double r = NORMAL_END, e = EXPONENTIAL_END;
    make_table(&normal_table, true, r, r * density(true, r) + sqrtl(acosl(-1) / 2) * erfcl(r / sqrtl(2)),
               4503599627370496.0L, 8388608.0L);
    make_table(&exponential_table, false, e, (e + 1) * density(false, e), 9007199254740992.0L, 8388608.0L);
}

static double normal(bits *b)
{
    for (;;) {
        uint64_t word = next64(b), magnitude = word >> 9 & 0xfffffffffffff;
        int strip = word & 0xff;
        double x = (double)magnitude * normal_table.w[strip];
        if (word >> 8 & 1)
            x = -x;
        if (__builtin_expect(magnitude < normal_table.k[strip], 1))
            return x;
        if (strip != 0) {
            if ((normal_table.f[strip - 1] - normal_table.f[strip]) * uniform(b) + normal_table.f[strip]
                < exp(-0.5 * x * x))
                return x;
            continue;
        }
        for (;;) {
            double excess = -(double)(1 / NORMAL_END) * log1p(-uniform(b)), y = -log1p(-uniform(b));
            if (y + y > excess * excess)
                return magnitude >> 8 & 1 ? -((double)NORMAL_END + excess) : (double)NORMAL_END + excess;
        }
    }
}

static float normal_f(bits *b)
{
    for (;;) {
        uint32_t word = next32(b), magnitude = word >> 9;
        int strip = word & 0xff;
        float x = (float)magnitude * normal_table.w_f[strip];
        if (word >> 8 & 1)
            x = -x;
        if (__builtin_expect(magnitude < normal_table.k_f[strip], 1))
            return x;
        if (strip != 0) {
            if ((double)((normal_table.f_f[strip - 1] - normal_table.f_f[strip]) * uniform_f(b)
                         + normal_table.f_f[strip])
                < exp(-0.5 * (double)x * (double)x))
                return x;
            continue;
        }
        for (;;) {
            float excess = -(float)(1 / NORMAL_END) * log1pf(-uniform_f(b)), y = -log1pf(-uniform_f(b));
            if (y + y > excess * excess)
                return magnitude >> 8 & 1 ? -((float)NORMAL_END + excess) : (float)NORMAL_END + excess;
        }
    }
}

static double exponential(bits *b)
{
    for (;;) {
        uint64_t word = next64(b) >> 3, magnitude = word >> 8;
        int strip = word & 0xff;
        double x = (double)magnitude * exponential_table.w[strip];
        if (__builtin_expect(magnitude < exponential_table.k[strip], 1))
            return x;
        if (strip == 0)
            return (double)EXPONENTIAL_END - log1p(-uniform(b));
        if ((exponential_table.f[strip - 1] - exponential_table.f[strip]) * uniform(b) + exponential_table.f[strip]
            < exp(-x))
            return x;
    }
}

static float exponential_f(bits *b)
{
    for (;;) {
        uint32_t word = next32(b) >> 1, magnitude = word >> 8;
        int strip = word & 0xff;
        float x = (float)magnitude * exponential_table.w_f[strip];
        if (__builtin_expect(magnitude < exponential_table.k_f[strip], 1))
            return x;
        if (strip == 0)
            return (float)EXPONENTIAL_END - log1pf(-uniform_f(b));
        if ((exponential_table.f_f[strip - 1] - exponential_table.f_f[strip]) * uniform_f(b)
                + exponential_table.f_f[strip]
            < expf(-x))
            return x;
    }
}

/* ---- continuous */
/* Whether a parameter is in its domain; written so that NaN is not. Parameters are checked where they are used: another
 * thread may write them meanwhile. */
static inline bool in_domain(bits *b, bool fits)
{
    b->bad |= !fits;
    return fits;
}

static double gamma_of(bits *b, double shape)
{
    if (!in_domain(b, shape >= 0))
        return 0;
    if (shape == 1)
        return exponential(b);
    if (shape == 0)
        return 0;
    if (shape < 1)
        for (;;) {
            double u = uniform(b), v = exponential(b);
            if (u <= 1 - shape) {
                double x = pow(u, 1 / shape);
                if (x <= v)
                    return x;
            } else {
                double y = -log((1 - u) / shape), x = pow(1 - shape + shape * y, 1 / shape);
                if (x <= v + y)
                    return x;
            }
        }
    double d = shape - 1. / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x, v;
        do {
            x = normal(b);
            v = 1 + c * x;
        } while (v <= 0);
        v = v * v * v;
        double u = uniform(b);
        if (u < 1 - 0.0331 * (x * x) * (x * x) || log(u) < 0.5 * x * x + d * (1 - v + log(v)))
            return d * v;
    }
}

static float gamma_of_f(bits *b, float shape)
{
    if (!in_domain(b, shape >= 0))
        return 0;
    if (shape == 1)
        return exponential_f(b);
    if (shape == 0)
        return 0;
    if (shape < 1)
        for (;;) {
            float u = uniform_f(b), v = exponential_f(b);
            if (u <= 1 - shape) {
                float x = powf(u, 1 / shape);
                if (x <= v)
                    return x;
            } else {
                float y = -logf((1 - u) / shape), x = powf(1 - shape + shape * y, 1 / shape);
                if (x <= v + y)
                    return x;
            }
        }
    float d = shape - 1.0f / 3, c = 1 / sqrtf(9 * d);
    for (;;) {
        float x, v;
        do {
            x = normal_f(b);
            v = 1 + c * x;
        } while (v <= 0);
        v = v * v * v;
        float u = uniform_f(b);
        if (u < 1 - 0.0331f * (x * x) * (x * x) || logf(u) < 0.5f * x * x + d * (1 - v + logf(v)))
            return d * v;
    }
}

static double beta(bits *b, double p, double q)
{
    if (!in_domain(b, p > 0 && q > 0))
        return 0;
    if (p > 1 || q > 1) {
        double x = gamma_of(b, p), y = gamma_of(b, q);
        return x / (x + y);
    }
    if (p < 3e-103 && q < 3e-103) /* the result is always 0 or 1 */
        return (p + q) * uniform(b) < p;
    for (;;) {
        double u = uniform(b), v = uniform(b), x = pow(u, 1 / p), y = pow(v, 1 / q);
        if (x + y > 1 || u + v <= 0)
            continue;
        if (x > 0 && y > 0)
            return x / (x + y);
        double difference = log(u) / p - log(v) / q; /* one of them underflowed */
        return difference > 0 ? exp(-log1p(exp(-difference))) : exp(difference - log1p(exp(difference)));
    }
}

static double laplace(bits *b)
{
    for (;;) {
        double u = uniform(b);
        if (u >= 0.5)
            return -log(2 - u - u);
        if (u > 0)
            return log(u + u);
    }
}

static double gumbel(bits *b)
{
    double u;
    do
        u = 1 - uniform(b);
    while (u >= 1);
    return -log(-log(u));
}

static double logistic(bits *b)
{
    double u;
    do
        u = uniform(b);
    while (u <= 0);
    return log(u / (1 - u));
}

static double student(bits *b, double df)
{
    double x = normal(b);
    return sqrt(df / 2) * x / sqrt(gamma_of(b, df / 2));
}

static double wald(bits *b, double mean, double scale)
{
    double y = normal(b);
    y = mean * y * y;
    double d = 1 + sqrt(1 + 4 * scale / y), x = mean * (1 - 2 / d);
    return uniform(b) <= mean / (mean + x) ? x : mean * mean / x;
}

static double von_mises(bits *b, double mu, double kappa)
{
    if (isnan(kappa))
        return kappa;
    if (kappa < 1e-8)
        return PI * (2 * uniform(b) - 1);
    double s;
    if (kappa < 1e-5)
        s = 1 / kappa + kappa;
    else if (kappa <= 1e6) {
        double r = 1 + sqrt(1 + 4 * kappa * kappa), rho = (r - sqrt(2 * r)) / (2 * kappa);
        s = (1 + rho * rho) / (2 * rho);
    } else {
        double x = mu + sqrt(1 / kappa) * normal(b);
        return x < -PI ? x + 2 * PI : x > PI ? x - 2 * PI : x;
    }
    double w;
    for (;;) {
        double z = cos(PI * uniform(b));
        w = (1 + s * z) / (s + z);
        double y = kappa * (s - w), v = uniform(b);
        if (y * (2 - y) - v >= 0 || log(y / v) + 1 - y >= 0)
            break;
    }
    double angle = acos(w);
    if (uniform(b) < 0.5)
        angle = -angle;
    angle += mu;
    double magnitude = fmod(fabs(angle) + PI, 2 * PI) - PI;
    return angle < 0 ? -magnitude : magnitude;
}

static double triangular(bits *b, double left, double mode, double right)
{
    double base = right - left, left_base = mode - left, u = uniform(b);
    return u <= left_base / base ? left + sqrt(u * (left_base * base))
                                 : right - sqrt((1 - u) * ((right - mode) * base));
}

/* ---- discrete */
static double log_gamma(double x)
{
    static const double series[10] = {8.333333333333333e-02,  -2.777777777777778e-03, 7.936507936507937e-04,
                                      -5.952380952380952e-04, 8.417508417508418e-04,  -1.917526917526918e-03,
                                      6.410256410256410e-03,  -2.955065359477124e-02, 1.796443723688307e-01,
                                      -1.39243221690590e+00}; /* Stirling's series */
    if (x == 1 || x == 2)
        return 0;
    int64_t shift = x < 7 ? (int64_t)(7 - x) : 0;
    double shifted = x + (double)shift, inverse_square = (1 / shifted) * (1 / shifted), sum = series[9];
    for (int k = 8; k >= 0; k--)
        sum = sum * inverse_square + series[k];
    double value = sum / shifted + 0.5 * 1.8378770664093453 + (shifted - 0.5) * log(shifted) - shifted;
    for (int64_t k = 0; k < shift; k++) {
        value -= log(shifted - 1);
        shifted -= 1;
    }
    return value;
}

#define POISSON_MEAN_MAX 9.223372006484771e18 /* as in NumPy: the mean plus 10 deviations fits an int64_t */
static int64_t poisson(bits *b, double mean)
{
    if (!in_domain(b, mean >= 0 && mean <= POISSON_MEAN_MAX))
        return 0;
    if (mean == 0)
        return 0;
    if (mean < 10) {
        if (mean != b->last.mean) {
            b->last.mean = mean;
            b->last.exp_neg_mean = exp(-mean);
        }
        double exp_neg_mean = b->last.exp_neg_mean, product = 1;
        for (int64_t k = 0;; k++) {
            product *= uniform(b);
            if (product <= exp_neg_mean)
                return k;
        }
    }
    double sqrt_mean = sqrt(mean), log_mean = log(mean), p = 0.931 + 2.53 * sqrt_mean, a = -0.059 + 0.02483 * p;
    double inverse_alpha = 1.1239 + 1.1328 / (p - 3.4), v_r = 0.9277 - 3.6224 / (p - 2);
    for (;;) {
        double u = uniform(b) - 0.5, v = uniform(b), us = 0.5 - fabs(u);
        int64_t k = (int64_t)floor((2 * a / us + p) * u + mean + 0.43);
        if (us >= 0.07 && v <= v_r)
            return k;
        if (k < 0 || (us < 0.013 && v > us))
            continue;
        if (log(v) + log(inverse_alpha) - log(a / (us * us) + p)
            <= -mean + (double)k * log_mean - log_gamma((double)k + 1))
            return k;
    }
}

static double stirling_tail(double x, double x2)
{
    return (13860. - (462. - (132. - (99. - 140. / x2) / x2) / x2) / x2) / x / 166320.;
}

/* BTPE, for p <= 0.5; most names are the paper's */
static int64_t binomial_btpe(bits *b, int64_t n, double p)
{
    double r = p < 1 - p ? p : 1 - p, q = 1 - r, trials = (double)n, fm = trials * r + r;
    int64_t m = (int64_t)floor(fm);
    double middle = (double)m, p1 = floor(2.195 * sqrt(trials * r * q) - 4.6 * q) + 0.5, xm = middle + 0.5,
           xl = xm - p1, xr = xm + p1;
    double c = 0.134 + 20.5 / (15.3 + middle), a = (fm - xl) / (fm - xl * r), laml = a * (1 + a / 2);
    a = (xr - fm) / (xr * q);
    double lamr = a * (1 + a / 2), p2 = p1 * (1 + 2 * c), p3 = p2 + c / laml, p4 = p3 + c / lamr, nrq = trials * r * q;
    for (;;) {
        double u = uniform(b) * p4, v = uniform(b);
        int64_t y;
        if (u <= p1)
            return (int64_t)floor(xm - p1 * v + u);
        if (u <= p2) {
            double x = xl + (u - p1) / c;
            v = v * c + 1 - fabs(middle - x + 0.5) / p1;
            if (v > 1)
                continue;
            y = (int64_t)floor(x);
        } else if (u <= p3) {
            double at = floor(xl + log(v) / laml);
            if (v == 0 || at < 0)
                continue;
            y = (int64_t)at;
            v = v * (u - p2) * laml;
        } else {
            double at = floor(xr - log(v) / lamr);
            if (v == 0 || at > trials)
                continue;
            y = (int64_t)at;
            v = v * (u - p3) * lamr;
        }
        int64_t k = y > m ? y - m : m - y;
        double distance = (double)k, at = (double)y;
        if (k <= 20 || distance >= nrq / 2 - 1) {
            double s = r / q, f = 1;
            a = s * (trials + 1);
            for (int64_t i = m + 1; i <= y; i++)
                f *= a / (double)i - s;
            for (int64_t i = y + 1; i <= m; i++)
                f /= a / (double)i - s;
            if (v > f)
                continue;
            return y;
        }
        double rho = distance / nrq * ((distance * (distance / 3 + 0.625) + 0.16666666666666666) / nrq + 0.5);
        double t = -distance * distance / (2 * nrq), log_v = log(v);
        if (log_v < t - rho)
            return y;
        if (log_v > t + rho)
            continue;
        double x1 = at + 1, f1 = middle + 1, z = trials + 1 - middle, w = trials - at + 1;
        if (log_v > xm * log(f1 / x1) + (trials - middle + 0.5) * log(z / w) + (at - middle) * log(w * r / (x1 * q))
                        + stirling_tail(f1, f1 * f1) + stirling_tail(z, z * z) - stirling_tail(x1, x1 * x1)
                        - stirling_tail(w, w * w))
            continue;
        return y;
    }
}

static int64_t binomial_inversion(bits *b, int64_t n, double p)
{
    double q = 1 - p;
    if (p != b->last.p || n != b->last.n) {
        double trials = (double)n, mean = trials * p, max = mean + 10 * sqrt(mean * q + 1);
        b->last.p = p;
        b->last.n = n;
        b->last.p_zero = exp(trials * log1p(-p));
        b->last.max = (int64_t)(trials < max ? trials : max);
    }
    int64_t bound = b->last.max, x = 0;
    double p_zero = b->last.p_zero, px = p_zero, u = uniform(b);
    while (u > px) {
        x++;
        if (x > bound) {
            x = 0;
            px = p_zero;
            u = uniform(b);
        } else {
            u -= px;
            px = (double)(n - x + 1) * p * px / ((double)x * q);
        }
    }
    return x;
}

static int64_t binomial(bits *b, double trials, double p)
{
    if (!in_domain(b, trials >= 0 && trials <= 9223372036854775808. && p >= 0 && p <= 1))
        return 0;
    const int64_t n = trials < 9223372036854775808. ? (int64_t)trials : INT64_MAX;
    if (n == 0 || p == 0)
        return 0;
    double p_small = p <= 0.5 ? p : 1 - p;
    int64_t x = p_small * (double)n <= 30 ? binomial_inversion(b, n, p_small) : binomial_btpe(b, n, p_small);
    return p <= 0.5 ? x : n - x;
}

static int64_t geometric(bits *b, double p)
{
    if (!in_domain(b, p > 0 && p <= 1))
        return 0;
    if (p >= 0.333333333333333333333333) {
        int64_t x = 1;
        double sum = p, product = p, u = uniform(b);
        while (u > sum) {
            product *= 1 - p;
            sum += product;
            x++;
        }
        return x;
    }
    double z = ceil(-exponential(b) / log1p(-p));
    return z >= 9.223372036854776e+18 ? INT64_MAX : (int64_t)z;
}

static int64_t log_series(bits *b, double p)
{
    double r = log1p(-p);
    for (;;) {
        double v = uniform(b);
        if (v >= p)
            return 1;
        double q = -expm1(r * uniform(b));
        if (v <= q * q) {
            int64_t x = v == 0 ? 0 : (int64_t)floor(1 + log(v) / log(q));
            if (x >= 1)
                return x;
        } else
            return v >= q ? 1 : 2;
    }
}

static int64_t zipf(bits *b, double a)
{
    if (!in_domain(b, a > 1))
        return 0;
    if (a >= 1025)
        return 1;
    double am1 = a - 1, two = pow(2, am1), min = pow((double)INT64_MAX, -am1);
    for (;;) {
        double u = uniform(b), v;
        u = u * min + (1 - u);
        v = uniform(b);
        double x = floor(pow(u, -1 / am1));
        if (x > (double)INT64_MAX || x < 1)
            continue;
        double t = pow(1 + 1 / x, am1);
        if (v * x * (t - 1) / (two - 1) <= t / two)
            return (int64_t)x;
    }
}

static int64_t negative_binomial(bits *b, double n, double p) { return poisson(b, (1 - p) / p * gamma_of(b, n)); }

static double noncentral_chisquare(bits *b, double df, double noncentrality)
{
    if (isnan(noncentrality))
        return noncentrality;
    if (noncentrality == 0)
        return 2 * gamma_of(b, df / 2);
    if (df > 1) {
        double central = 2 * gamma_of(b, (df - 1) / 2), x = normal(b) + sqrt(noncentrality);
        return central + x * x;
    }
    return 2 * gamma_of(b, (df + 2 * (double)poisson(b, noncentrality / 2)) / 2);
}

/* ---- integers from 0 to `max`, inclusive */
static uint64_t bounded_by_mask(bits *b, uint64_t max)
{
    if (max == 0)
        return 0;
    uint64_t mask = ~UINT64_C(0) >> __builtin_clzll(max), value;
    do
        value = (max <= UINT32_MAX ? next32(b) : next64(b)) & mask;
    while (value > max);
    return value;
}

static inline uint32_t bounded32(bits *b, uint32_t max)
{
    if (max == UINT32_MAX)
        return next32(b);
    uint32_t range = max + 1;
    uint64_t product = (uint64_t)next32(b) * range;
    if ((uint32_t)product < range) {
        uint32_t threshold = (UINT32_MAX - max) % range;
        while ((uint32_t)product < threshold)
            product = (uint64_t)next32(b) * range;
    }
    return (uint32_t)(product >> 32);
}

static inline uint64_t bounded64(bits *b, uint64_t max)
{
    if (max == 0)
        return 0;
    if (max <= UINT32_MAX)
        return bounded32(b, (uint32_t)max);
    if (max == UINT64_MAX)
        return next64(b);
    uint64_t range = max + 1;
    unsigned __int128 product = (unsigned __int128)next64(b) * range;
    if ((uint64_t)product < range) {
        uint64_t threshold = (UINT64_MAX - max) % range;
        while ((uint64_t)product < threshold)
            product = (unsigned __int128)next64(b) * range;
    }
    return (uint64_t)(product >> 64);
}

/* `width` bits of a 32-bit word that several numbers share; draws a new word when no bits are left */
static inline uint32_t next_narrow(bits *b, int width)
{
    if (b->narrow_left == 0) {
        b->narrow = next32(b);
        b->narrow_left = 32 / width - 1;
    } else {
        b->narrow >>= width;
        b->narrow_left--;
    }
    return b->narrow & ((1u << width) - 1);
}

static inline uint32_t bounded_narrow(bits *b, uint32_t max, int width)
{
    uint32_t all = (1u << width) - 1;
    if (max == 0 || !in_domain(b, max <= all))
        return 0;
    if (max == all)
        return next_narrow(b, width);
    uint32_t range = max + 1, product = next_narrow(b, width) * range;
    if ((product & all) < range) {
        uint32_t threshold = (all - max) % range;
        while ((product & all) < threshold)
            product = next_narrow(b, width) * range;
    }
    return product >> width;
}

/* ---- filling */
static double parameter(const vme_tensor *const parameters[3], int which, int64_t i)
{
    const vme_tensor *p = parameters[which];
    return ((const double *)(const void *)p->data)[p->rank == 0 ? 0 : i];
}

static uint64_t uint64_parameter(const vme_tensor *const parameters[3], int which, int64_t i)
{
    const vme_tensor *p = parameters[which];
    return ((const uint64_t *)(const void *)p->data)[p->rank == 0 ? 0 : i];
}

static void store_integer(bits *b, const vme_tensor *const p[3], const vme_tensor *out, int64_t i)
{
    uint64_t first = uint64_parameter(p, 0, i), max = uint64_parameter(p, 1, i), value;
    int size = vme_dtype_size((vme_dtype)out->dtype);
    if (out->dtype == VME_BOOL)
        value = max == 0 ? first : next_narrow(b, 1);
    else if (size == 8)
        value = first + bounded64(b, max);
    else if (size == 4)
        value = first + (max == 0 ? 0 : bounded32(b, (uint32_t)max));
    else
        value = first + bounded_narrow(b, (uint32_t)max, 8 * size);
    memcpy(out->data + i * size, &value, (size_t)size); /* little-endian: the low bytes */
}

/* The most frequent distributions loop over the available words. They call the general function only where those end,
 * and for the few words that the first test of a ziggurat does not accept. */
static void fill_uniform(bits *b, double *out, int64_t n)
{
    for (int64_t i = 0; i < n;) {
        int64_t count = b->end - b->at < n - i ? b->end - b->at : n - i;
        const uint64_t *words = b->words + b->at;
        for (int64_t j = 0; j < count; j++)
            out[i + j] = (double)(int64_t)(words[j] >> 11) * (1.0 / 9007199254740992.0);
        b->at += (int)count;
        i += count;
        if (i < n)
            bits_refill(b);
    }
}

static void fill_normal(bits *b, double *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t count = b->end - b->at < n - i ? b->end - b->at : n - i, j;
        const uint64_t *words = b->words + b->at;
        for (j = 0; j < count; j++) {
            uint64_t word = words[j], magnitude = word >> 9 & 0xfffffffffffff,
                     negative = word << 55 & UINT64_C(0x8000000000000000), number;
            double x = (double)(int64_t)magnitude * normal_table.w[word & 0xff];
            if (__builtin_expect(magnitude >= normal_table.k[word & 0xff], 0))
                break;
            memcpy(&number, &x, sizeof x);
            number ^= negative;
            memcpy(out + i + j, &number, sizeof number);
        }
        b->at += (int)j;
        i += j;
        if (i < n)
            out[i] = normal(b);
    }
}

static void fill_exponential(bits *b, double *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t count = b->end - b->at < n - i ? b->end - b->at : n - i, j;
        const uint64_t *words = b->words + b->at;
        for (j = 0; j < count; j++) {
            uint64_t magnitude = words[j] >> 11, strip = words[j] >> 3 & 0xff;
            if (__builtin_expect(magnitude >= exponential_table.k[strip], 0))
                break;
            out[i + j] = (double)(int64_t)magnitude * exponential_table.w[strip];
        }
        b->at += (int)j;
        i += j;
        if (i < n)
            out[i] = exponential(b);
    }
}

/* The same over halves of words, for float32 and integers of up to 32 bits. VALUE(half) is the result if ACCEPT(half).
 * If it is not accepted or no whole word is left, NUMBER draws one value. */
#define FILL_HALVES(NAME, TYPE, PARAMETERS, ACCEPT, VALUE, NUMBER) \
    static void NAME(bits *b, TYPE *out, int64_t n PARAMETERS) \
    { \
        int64_t i = 0; \
        while (i < n) { \
            const uint64_t *words = b->words + b->at, *end = b->words + b->end; \
            bool accepted = !b->has_half; \
            for (; accepted && words < end && n - i >= 2; words++) { \
                uint32_t half = (uint32_t)*words, other = (uint32_t)(*words >> 32); \
                accepted = ACCEPT(half) & ACCEPT(other); \
                if (__builtin_expect(!accepted, 0)) \
                    break; \
                out[i] = VALUE(half); \
                out[i + 1] = VALUE(other); \
                i += 2; \
            } \
            if (words > b->words + b->at) \
                b->half = (uint32_t)(words[-1] >> 32); \
            b->at = (int)(words - b->words); \
            if (i < n) \
                out[i++] = NUMBER; \
        } \
    }
#define NO_PARAMETERS
#define ACCEPT_ALWAYS(half) true
#define UNIFORM_F(half)     ((float)(int32_t)((half) >> 8) * (1.0f / 16777216.0f))
FILL_HALVES(fill_uniform_f, float, NO_PARAMETERS, ACCEPT_ALWAYS, UNIFORM_F, uniform_f(b))
#define ACCEPT_NORMAL_F(half) ((half) >> 9 < normal_table.k_f[(half) & 0xff])
#define NORMAL_F(half) \
    ((float)(int32_t)((half) >> 9) \
     * ((half) >> 8 & 1 ? -normal_table.w_f[(half) & 0xff] : normal_table.w_f[(half) & 0xff]))
FILL_HALVES(fill_normal_f, float, NO_PARAMETERS, ACCEPT_NORMAL_F, NORMAL_F, normal_f(b))
#define ACCEPT_EXPONENTIAL_F(half) ((half) >> 9 < exponential_table.k_f[(half) >> 1 & 0xff])
#define EXPONENTIAL_F(half)        ((float)(int32_t)((half) >> 9) * exponential_table.w_f[(half) >> 1 & 0xff])
FILL_HALVES(fill_exponential_f, float, NO_PARAMETERS, ACCEPT_EXPONENTIAL_F, EXPONENTIAL_F, exponential_f(b))
/* A number below `range`, plus `first`. NUMBER draws it if the lower half of the product is below `range`, because it
 * may have to be redrawn. */
#define RANGE_PARAMETERS   , uint64_t first, uint32_t range
#define FIRST_PARAMETER    , uint64_t first
#define ACCEPT_BELOW(half) ((uint32_t)((half) * range) >= range)
#define BELOW_64(half)     (first + ((uint64_t)(half) * range >> 32))
#define BELOW_32(half)     ((uint32_t)first + (uint32_t)((uint64_t)(half) * range >> 32))
#define ANY_32(half)       ((uint32_t)first + (half))
FILL_HALVES(fill_any_32, uint32_t, FIRST_PARAMETER, ACCEPT_ALWAYS, ANY_32, (uint32_t)first + next32(b))
FILL_HALVES(fill_below_64, uint64_t, RANGE_PARAMETERS, ACCEPT_BELOW, BELOW_64, first + bounded32(b, range - 1))
FILL_HALVES(fill_below_32, uint32_t, RANGE_PARAMETERS, ACCEPT_BELOW, BELOW_32,
            (uint32_t)first + bounded32(b, range - 1))

/* Sets elements `begin` to `end` - 1 of the output. */
#define FILL_EACH(TYPE, NUMBER) \
    for (int64_t i = begin; i < end; i++) \
        ((TYPE *)(void *)out->data)[i] = NUMBER; \
    break

static void fill_doubles(bits *b, vme_random_kind kind, const vme_tensor *const p[3], const vme_tensor *out,
                         int64_t begin, int64_t end)
{
    switch (kind) {
    case VME_RANDOM_UNIFORM: fill_uniform(b, (double *)(void *)out->data + begin, end - begin); break;
    case VME_RANDOM_NORMAL: fill_normal(b, (double *)(void *)out->data + begin, end - begin); break;
    case VME_RANDOM_EXPONENTIAL: fill_exponential(b, (double *)(void *)out->data + begin, end - begin); break;
    case VME_RANDOM_EXPONENTIAL_INVERSE: FILL_EACH(double, -log1p(-uniform(b)));
    case VME_RANDOM_GAMMA: FILL_EACH(double, gamma_of(b, parameter(p, 0, i)));
    case VME_RANDOM_BETA: FILL_EACH(double, beta(b, parameter(p, 0, i), parameter(p, 1, i)));
    case VME_RANDOM_LAPLACE: FILL_EACH(double, laplace(b));
    case VME_RANDOM_GUMBEL: FILL_EACH(double, gumbel(b));
    case VME_RANDOM_LOGISTIC: FILL_EACH(double, logistic(b));
    case VME_RANDOM_STUDENT: FILL_EACH(double, student(b, parameter(p, 0, i)));
    case VME_RANDOM_WALD: FILL_EACH(double, wald(b, parameter(p, 0, i), parameter(p, 1, i)));
    case VME_RANDOM_VONMISES: FILL_EACH(double, von_mises(b, parameter(p, 0, i), parameter(p, 1, i)));
    case VME_RANDOM_TRIANGULAR:
        FILL_EACH(double, triangular(b, parameter(p, 0, i), parameter(p, 1, i), parameter(p, 2, i)));
    default: FILL_EACH(double, noncentral_chisquare(b, parameter(p, 0, i), parameter(p, 1, i)));
    }
}

static void fill_floats(bits *b, vme_random_kind kind, const vme_tensor *const p[3], const vme_tensor *out,
                        int64_t begin, int64_t end)
{
    switch (kind) {
    case VME_RANDOM_UNIFORM: fill_uniform_f(b, (float *)(void *)out->data + begin, end - begin); break;
    case VME_RANDOM_NORMAL: fill_normal_f(b, (float *)(void *)out->data + begin, end - begin); break;
    case VME_RANDOM_EXPONENTIAL: fill_exponential_f(b, (float *)(void *)out->data + begin, end - begin); break;
    case VME_RANDOM_EXPONENTIAL_INVERSE: FILL_EACH(float, -log1pf(-uniform_f(b)));
    default: FILL_EACH(float, gamma_of_f(b, (float)parameter(p, 0, i)));
    }
}

static void fill_counts(bits *b, vme_random_kind kind, const vme_tensor *const p[3], const vme_tensor *out,
                        int64_t begin, int64_t end)
{
    switch (kind) {
    case VME_RANDOM_POISSON: FILL_EACH(int64_t, poisson(b, parameter(p, 0, i)));
    case VME_RANDOM_BINOMIAL: FILL_EACH(int64_t, binomial(b, parameter(p, 0, i), parameter(p, 1, i)));
    case VME_RANDOM_GEOMETRIC: FILL_EACH(int64_t, geometric(b, parameter(p, 0, i)));
    case VME_RANDOM_NEGATIVE_BINOMIAL: FILL_EACH(int64_t, negative_binomial(b, parameter(p, 0, i), parameter(p, 1, i)));
    case VME_RANDOM_LOGSERIES: FILL_EACH(int64_t, log_series(b, parameter(p, 0, i)));
    default: FILL_EACH(int64_t, zipf(b, parameter(p, 0, i)));
    }
}

static void fill_integers(bits *b, const vme_tensor *const p[3], const vme_tensor *out, int64_t begin, int64_t end)
{
    uint64_t first = uint64_parameter(p, 0, 0), max = uint64_parameter(p, 1, 0);
    bool same_range = p[0]->rank == 0 && p[1]->rank == 0;
    int size = vme_dtype_size((vme_dtype)out->dtype);
    if (same_range && size >= 4 && max != 0 && max < UINT32_MAX) {
        if (size == 8)
            fill_below_64(b, (uint64_t *)(void *)out->data + begin, end - begin, first, (uint32_t)max + 1);
        else
            fill_below_32(b, (uint32_t *)(void *)out->data + begin, end - begin, first, (uint32_t)max + 1);
        return;
    }
    if (same_range && size == 4 && max == UINT32_MAX) {
        fill_any_32(b, (uint32_t *)(void *)out->data + begin, end - begin, first);
        return;
    }
    if (same_range && size <= 2 && out->dtype != VME_BOOL) {
        for (int64_t i = begin; size == 1 && i < end; i++)
            out->data[i] = (char)(first + bounded_narrow(b, (uint32_t)max, 8));
        for (int64_t i = begin; size == 2 && i < end; i++)
            ((uint16_t *)(void *)out->data)[i] = (uint16_t)(first + bounded_narrow(b, (uint32_t)max, 16));
        return;
    }
    if (same_range && size == 8) {
        uint64_t *to = (uint64_t *)(void *)out->data;
        for (int64_t i = begin; i < end; i++)
            to[i] = first + bounded64(b, max);
        return;
    }
    for (int64_t i = begin; i < end; i++)
        store_integer(b, p, out, i);
}

static void swap(int64_t *row, int64_t i, int64_t j)
{
    int64_t value = row[i];
    row[i] = row[j];
    row[j] = value;
}

/* Floyd's algorithm with a hash table of the numbers drawn. */
static vme_status sample(vme_context *context, bits *b, uint64_t population, int64_t *out, int64_t count)
{
    if (population < (uint64_t)count || population > INT64_MAX)
        return vme_fail(VME_BAD_VALUE, "random numbers: there are no %lld distinct ones below %llu", (long long)count,
                        (unsigned long long)population);
    uint64_t min_slots = (uint64_t)(1.2 * (double)count),
             mask = min_slots == 0 ? 0 : ~UINT64_C(0) >> __builtin_clzll(min_slots);
    size_t bytes = (size_t)(mask + 1) * sizeof(uint64_t);
    uint64_t *drawn = vme_scratch_new(context, bytes);
    if (drawn == NULL)
        return VME_NO_MEMORY;
    memset(drawn, 0xff, bytes);
    vme_status status = VME_OK;
    for (int64_t i = 0; i < count; i++) {
        if (i % PIECE == 0 && vme_stopping(context)) {
            status = vme_stopped_here(context);
            break;
        }
        uint64_t last = population - (uint64_t)count + (uint64_t)i, value = bounded64(b, last), at = value & mask;
        while (drawn[at] != UINT64_MAX && drawn[at] != value)
            at = (at + 1) & mask;
        if (drawn[at] != UINT64_MAX) { /* already drawn: take the last number, which cannot have been */
            value = last;
            at = value & mask;
            while (drawn[at] != UINT64_MAX)
                at = (at + 1) & mask;
        }
        drawn[at] = value;
        out[i] = (int64_t)value;
    }
    vme_scratch_free(context, drawn, bytes);
    return status;
}

vme_status vme_random(vme_context *context, vme_random_state *state, vme_random_kind kind,
                      const vme_tensor *const parameters[3], const vme_tensor *out)
{
    static const int parameter_count[VME_RANDOM_KINDS] = {
        [VME_RANDOM_GAMMA] = 1,
        [VME_RANDOM_BETA] = 2,
        [VME_RANDOM_STUDENT] = 1,
        [VME_RANDOM_WALD] = 2,
        [VME_RANDOM_VONMISES] = 2,
        [VME_RANDOM_TRIANGULAR] = 3,
        [VME_RANDOM_NONCENTRAL_CHISQUARE] = 2,
        [VME_RANDOM_POISSON] = 1,
        [VME_RANDOM_BINOMIAL] = 2,
        [VME_RANDOM_GEOMETRIC] = 1,
        [VME_RANDOM_NEGATIVE_BINOMIAL] = 2,
        [VME_RANDOM_LOGSERIES] = 1,
        [VME_RANDOM_ZIPF] = 1,
        [VME_RANDOM_INTEGERS] = 2,
        [VME_RANDOM_SHUFFLE_TAIL] = 1,
        [VME_RANDOM_SAMPLE] = 1,
    };
    vme_status status = vme_check_output(out);
    if (status != VME_OK)
        return status;
    int64_t count = vme_elements(out);
    bool is_float32 = out->dtype == VME_FLOAT32 && kind <= VME_RANDOM_GAMMA, is_discrete = kind >= VME_RANDOM_POISSON;
    bool fits = kind == VME_RANDOM_INTEGERS ? out->dtype <= VME_UINT64
                : is_discrete               ? out->dtype == VME_INT64
                                            : is_float32 || out->dtype == VME_FLOAT64;
    for (int i = 0; i < parameter_count[kind]; i++)
        fits = fits && parameters[i] != NULL && vme_is_contiguous(parameters[i])
               && parameters[i]->dtype == (kind >= VME_RANDOM_INTEGERS ? VME_UINT64 : VME_FLOAT64)
               && (parameters[i]->rank == 0 || (kind <= VME_RANDOM_INTEGERS && vme_elements(parameters[i]) == count));
    if (!fits || !vme_is_contiguous(out) || state->buffer_pos > 4)
        return vme_fail(VME_BAD_VALUE, "random numbers: parameters or output do not fit the distribution");
    pthread_once(&tables_once, make_tables);
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    bits b;
    bits_open(&b, state);
    if (kind == VME_RANDOM_SAMPLE)
        status = sample(context, &b, uint64_parameter(parameters, 0, 0), (int64_t *)(void *)out->data, count);
    else if (kind == VME_RANDOM_SHUFFLE || kind == VME_RANDOM_SHUFFLE_TAIL) {
        int64_t n = out->rank == 0 ? 0 : out->shape[out->rank - 1], rows = n == 0 ? 0 : count / n;
        int64_t first = kind == VME_RANDOM_SHUFFLE ? 1 : (int64_t)uint64_parameter(parameters, 0, 0);
        for (int64_t r = 0; r < rows && status == VME_OK; r++)
            for (int64_t i = n - 1; i >= first && i > 0; i--) {
                int64_t *row = (int64_t *)(void *)out->data + r * n;
                swap(row, i,
                     (int64_t)(kind == VME_RANDOM_SHUFFLE ? bounded_by_mask(&b, (uint64_t)i)
                                                          : bounded64(&b, (uint64_t)i)));
                if (i % PIECE == 0 && vme_stopping(context)) {
                    status = vme_stopped_here(context);
                    break;
                }
            }
    } else
        for (int64_t begin = 0; begin < count && status == VME_OK; begin += PIECE) {
            int64_t end = count - begin > PIECE ? begin + PIECE : count;
            if (vme_stopping(context))
                status = vme_stopped_here(context);
            else if (kind == VME_RANDOM_INTEGERS)
                fill_integers(&b, parameters, out, begin, end);
            else
                (is_discrete  ? fill_counts
                 : is_float32 ? fill_floats
                              : fill_doubles)(&b, kind, parameters, out, begin, end);
        }
    bits_close(&b);
    if (status == VME_OK && b.bad)
        return vme_fail(VME_BAD_VALUE, kind == VME_RANDOM_NEGATIVE_BINOMIAL
                                           ? "n too large or p too small, see Generator.negative_binomial Notes"
                                           : "random numbers: a parameter is outside of the distribution's domain");
    return status;
}
