/* The groups of elementwise kernels that a backend has, one C file each: compiled side by side, merged by backend.c. */
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
