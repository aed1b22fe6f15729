/* The groups of elementwise kernels of a backend, one C file each, so that they compile in parallel; backend.c merges
 * them. */
#include "loops.h"

extern const vme_elementwise_kernels VME_TABLE(integers), VME_TABLE(floats), VME_TABLE(complexes),
    VME_TABLE(comparisons), VME_TABLE(casts), VME_TABLE(mathematics), VME_TABLE(vector_mathematics),
    VME_TABLE(divisors), VME_TABLE(bit_counts);

const vme_elementwise_kernels *const VME_TABLE(elementwise)[] = {
    &VME_TABLE(integers),
    &VME_TABLE(floats),
    &VME_TABLE(complexes),
    &VME_TABLE(comparisons),
    &VME_TABLE(casts),
    &VME_TABLE(divisors),
    &VME_TABLE(bit_counts),
#ifdef VME_VECTORS
    &VME_TABLE(vector_mathematics),
#else
    &VME_TABLE(mathematics),
#endif
    NULL,
};
