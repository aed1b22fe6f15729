/* Minimum, maximum, and division of non-negative numbers, rounded up. */
#ifndef VME_NUMBERS_H
#define VME_NUMBERS_H

#include <stdint.h>

static inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t ceil_div(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

#endif
