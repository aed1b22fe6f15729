/* Element types for memory access: unaligned, and allowed to alias other types. */
#ifndef VME_ELEMENTS_H
#define VME_ELEMENTS_H

#include <stdint.h>

typedef int8_t e_i8 __attribute__((may_alias));
typedef int16_t e_i16 __attribute__((may_alias, aligned(1)));
typedef int32_t e_i32 __attribute__((may_alias, aligned(1)));
typedef int64_t e_i64 __attribute__((may_alias, aligned(1)));
typedef uint8_t e_u8 __attribute__((may_alias));
typedef uint16_t e_u16 __attribute__((may_alias, aligned(1)));
typedef uint32_t e_u32 __attribute__((may_alias, aligned(1)));
typedef uint64_t e_u64 __attribute__((may_alias, aligned(1)));
typedef float e_f32 __attribute__((may_alias, aligned(1)));
typedef double e_f64 __attribute__((may_alias, aligned(1)));
typedef struct {
    float re, im;
} __attribute__((may_alias, packed)) e_c64;
typedef struct {
    double re, im;
} __attribute__((may_alias, packed)) e_c128;

#endif
