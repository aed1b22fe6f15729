/* The element types: sizes, names, formats, promotion. */
#include "runtime/internal.h"

#include <string.h>

static const struct {
    const char *name, *format;
    int size;
} dtypes[VME_DTYPE_COUNT] = {
    [VME_BOOL] = {"bool", "?", 1},
    [VME_INT8] = {"int8", "b", 1},
    [VME_INT16] = {"int16", "h", 2},
    [VME_INT32] = {"int32", "i", 4},
    [VME_INT64] = {"int64", "l", 8},
    [VME_UINT8] = {"uint8", "B", 1},
    [VME_UINT16] = {"uint16", "H", 2},
    [VME_UINT32] = {"uint32", "I", 4},
    [VME_UINT64] = {"uint64", "L", 8},
    [VME_FLOAT16] = {"float16", "e", 2},
    [VME_FLOAT32] = {"float32", "f", 4},
    [VME_FLOAT64] = {"float64", "d", 8},
    [VME_COMPLEX64] = {"complex64", "Zf", 8},
    [VME_COMPLEX128] = {"complex128", "Zd", 16},
};

int vme_dtype_size(vme_dtype dtype) { return dtypes[dtype].size; }
const char *vme_dtype_name(vme_dtype dtype) { return dtypes[dtype].name; }
const char *vme_dtype_format(vme_dtype dtype) { return dtypes[dtype].format; }

bool vme_dtype_from_format(const char *format, vme_dtype *dtype)
{
    if (format[0] == '@' || format[0] == '=' || (format[0] == '<' && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__))
        format++;
    for (int i = 0; i < VME_DTYPE_COUNT; i++)
        if (strcmp(format, dtypes[i].format) == 0) {
            *dtype = (vme_dtype)i;
            return true;
        }
    if (format[0] != 0 && format[1] == 0 && strchr("qQnN", format[0]) != NULL) {
        *dtype = format[0] == 'q' || format[0] == 'n' ? VME_INT64 : VME_UINT64;
        return true;
    }
    return false;
}

static bool is_signed(vme_dtype dtype) { return dtype >= VME_INT8 && dtype <= VME_INT64; }
static bool is_unsigned(vme_dtype dtype) { return dtype >= VME_UINT8 && dtype <= VME_UINT64; }

/* The float dtype in which NumPy computes float operations on a dtype: the dtype itself if it is a float or complex,
 * the smallest sufficient one (by NumPy's rule) for bool and integers. */
static vme_dtype float_for(vme_dtype dtype)
{
    if (dtype >= VME_FLOAT16)
        return dtype;
    switch (dtypes[dtype].size) {
    case 1: return VME_FLOAT16;
    case 2: return VME_FLOAT32;
    default: return VME_FLOAT64;
    }
}

vme_dtype vme_dtype_promote(vme_dtype a, vme_dtype b)
{
    if (a == b || b == VME_BOOL)
        return a;
    if (a == VME_BOOL)
        return b;
    if (a > b) {
        vme_dtype swap = a;
        a = b;
        b = swap;
    }
    /* a < b in the order signed, unsigned, float, complex */
    if (b >= VME_COMPLEX64) {
        if (a >= VME_COMPLEX64)
            return b;
        return float_for(a) == VME_FLOAT64 ? VME_COMPLEX128 : b;
    }
    if (b >= VME_FLOAT16) {
        vme_dtype other = float_for(a);
        return other > b ? other : b;
    }
    if (is_signed(a) == is_signed(b))
        return b;
    /* a signed, b unsigned: a signed dtype that is wider than b, or float64 */
    if (is_unsigned(b) && dtypes[a].size > dtypes[b].size)
        return a;
    switch (dtypes[b].size) {
    case 1: return VME_INT16;
    case 2: return VME_INT32;
    case 4: return VME_INT64;
    default: return VME_FLOAT64;
    }
}
