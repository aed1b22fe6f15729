/* Random numbers of many distributions; used by the engine's arrays only. See vme.h for contexts and tensors.
 *
 * Numbers are drawn from one stream, in order on one thread, because a number may consume any number of words. The
 * algorithms and the order in which they consume words are those of numpy.random.Generator, so the same key gives the
 * same numbers, up to rounding. */
#ifndef VME_RANDOM_H
#define VME_RANDOM_H

#include "vme.h"

typedef enum vme_random_kind {
    VME_RANDOM_UNIFORM,             /* [0, 1): float32 or float64 */
    VME_RANDOM_NORMAL,              /* standard: float32 or float64 */
    VME_RANDOM_EXPONENTIAL,         /* standard: float32 or float64 */
    VME_RANDOM_EXPONENTIAL_INVERSE, /* the same by inversion: float32 or float64 */
    VME_RANDOM_GAMMA,               /* standard, shape a: float32 or float64 */
    VME_RANDOM_BETA,                /* a, b */
    VME_RANDOM_LAPLACE,
    VME_RANDOM_GUMBEL,
    VME_RANDOM_LOGISTIC,             /* standard */
    VME_RANDOM_STUDENT,              /* degrees of freedom */
    VME_RANDOM_WALD,                 /* mean, scale */
    VME_RANDOM_VONMISES,             /* mu, kappa */
    VME_RANDOM_TRIANGULAR,           /* left, mode, right */
    VME_RANDOM_NONCENTRAL_CHISQUARE, /* degrees of freedom, noncentrality */
    VME_RANDOM_POISSON,              /* lambda -> int64, as all below */
    VME_RANDOM_BINOMIAL,             /* n, p */
    VME_RANDOM_GEOMETRIC,            /* p */
    VME_RANDOM_NEGATIVE_BINOMIAL,    /* n, p */
    VME_RANDOM_LOGSERIES,            /* p */
    VME_RANDOM_ZIPF,                 /* a */
    VME_RANDOM_INTEGERS,             /* first, last - first (uint64, both included) -> any integer dtype or bool */
    VME_RANDOM_SHUFFLE,              /* the rows of `out` (int64), by masked rejection */
    VME_RANDOM_SHUFFLE_TAIL,         /* the same by multiplication, down to index `first` (parameter 0) */
    VME_RANDOM_SAMPLE, /* distinct numbers below `population` (parameter 0), unordered (Floyd's algorithm) */
    VME_RANDOM_KINDS,
} vme_random_kind;

/* The state of numpy.random.Philox, including the unused words of the current block and an unused half word. */
typedef struct vme_random_state {
    uint64_t key[2], counter[4], buffer[4], buffer_pos, has_uint32, uinteger;
} vme_random_state;

/* Fills `out` (C-contiguous) and advances the state. `parameters`: those of the kind, then NULL; each C-contiguous
 * float64 (uint64 for integers), of rank 0 or with as many elements as `out`. */
VME_API vme_status vme_random(vme_context *context, vme_random_state *state, vme_random_kind kind,
                              const vme_tensor *const parameters[3], const vme_tensor *out);

#endif
