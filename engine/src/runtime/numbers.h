/* Whole numbers: the lesser, the greater, and into how many parts one is divided. */
#ifndef VME_NUMBERS_H
#define VME_NUMBERS_H

#include <stdint.h>

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t parts(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

#endif
