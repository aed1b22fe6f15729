/* LAPACK by function pointers: see lapack.c. */
#ifndef VME_LAPACK_H
#define VME_LAPACK_H

#include "runtime/internal.h"

/* The arguments of a linear-algebra operator, as checked by linear.c. Matrices are in C order, one after the other. */
typedef struct vme_linear_job {
    vme_linear_op op;
    int dtype;                    /* VME_FLOAT64 or VME_COMPLEX128 */
    int64_t batch, m, n, columns; /* columns: of the right-hand side */
    unsigned flags;
    double cutoff;
    const char *in[2];
    char *out[3];
    size_t in_bytes[2], out_bytes[3]; /* of one item; 0: no such operand */
    int64_t failed;                   /* items that did not converge, or are singular */
} vme_linear_job;

/* Computes the whole batch by LAPACK. Returns VME_UNSUPPORTED, with a message that says what to install, if there is no
 * library. */
vme_status vme_lapack(vme_context *context, vme_linear_job *job);
/* Whether a library was named and, if it was tried, could be loaded. */
bool vme_lapack_present(void);

#endif
