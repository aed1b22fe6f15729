/* What each operator computes in and returns, dtype by dtype: NumPy's ufunc loops (the `types` of each ufunc) and its
 * sentences for what has none. tests/engine/test_types.py holds every combination against NumPy. */
#include "runtime/internal.h"

#define BIT(dtype) (1u << (dtype))
enum {
    BOOL = BIT(VME_BOOL),
    SIGNED = BIT(VME_INT8) | BIT(VME_INT16) | BIT(VME_INT32) | BIT(VME_INT64),
    UNSIGNED = BIT(VME_UINT8) | BIT(VME_UINT16) | BIT(VME_UINT32) | BIT(VME_UINT64),
    INTEGERS = SIGNED | UNSIGNED,
    FLOATS = BIT(VME_FLOAT16) | BIT(VME_FLOAT32) | BIT(VME_FLOAT64),
    COMPLEX = BIT(VME_COMPLEX64) | BIT(VME_COMPLEX128),
    ANY = BOOL | INTEGERS | FLOATS | COMPLEX,
};

/* What the result is. */
enum { LOOP_DTYPE, TRUTH, REAL_PART, BYTE };

struct rule {
    unsigned loops; /* dtypes that the operator computes in */
    int result;
};

static const struct rule unary_rules[VME_UNARY_COUNT] = {
    [VME_NEGATIVE] = {INTEGERS | FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_POSITIVE] = {INTEGERS | FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_ABSOLUTE] = {ANY, REAL_PART},
    [VME_SIGN] = {INTEGERS | FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_INVERT] = {BOOL | INTEGERS, LOOP_DTYPE},
    [VME_LOGICAL_NOT] = {ANY, TRUTH},
    [VME_SQUARE] = {INTEGERS | FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_SQRT] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_CBRT] = {FLOATS, LOOP_DTYPE},
    [VME_RECIPROCAL] = {INTEGERS | FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_EXP] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_EXP2] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_EXPM1] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_LOG] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_LOG2] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_LOG10] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_LOG1P] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_SIN] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_COS] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_TAN] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_ARCSIN] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_ARCCOS] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_ARCTAN] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_SINH] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_COSH] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_TANH] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_ARCSINH] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_ARCCOSH] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_ARCTANH] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_ERF] = {FLOATS, LOOP_DTYPE},
    [VME_FLOOR] = {BOOL | INTEGERS | FLOATS, LOOP_DTYPE},
    [VME_CEIL] = {BOOL | INTEGERS | FLOATS, LOOP_DTYPE},
    [VME_TRUNC] = {BOOL | INTEGERS | FLOATS, LOOP_DTYPE},
    [VME_RINT] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_ISNAN] = {ANY, TRUTH},
    [VME_ISINF] = {ANY, TRUTH},
    [VME_ISFINITE] = {ANY, TRUTH},
    [VME_SIGNBIT] = {FLOATS, TRUTH},
    [VME_REAL] = {ANY, REAL_PART},
    [VME_IMAG] = {ANY, REAL_PART},
    [VME_CONJUGATE] = {INTEGERS | FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_BITWISE_COUNT] = {INTEGERS, BYTE},
};

static const struct rule binary_rules[VME_BINARY_COUNT] = {
    [VME_ADD] = {ANY, LOOP_DTYPE},
    [VME_SUBTRACT] = {INTEGERS | FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_MULTIPLY] = {ANY, LOOP_DTYPE},
    [VME_DIVIDE] = {FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_FLOOR_DIVIDE] = {INTEGERS | FLOATS, LOOP_DTYPE},
    [VME_REMAINDER] = {INTEGERS | FLOATS, LOOP_DTYPE},
    [VME_FMOD] = {INTEGERS | FLOATS, LOOP_DTYPE},
    [VME_POWER] = {INTEGERS | FLOATS | COMPLEX, LOOP_DTYPE},
    [VME_MAXIMUM] = {ANY, LOOP_DTYPE},
    [VME_MINIMUM] = {ANY, LOOP_DTYPE},
    [VME_FMAX] = {ANY, LOOP_DTYPE},
    [VME_FMIN] = {ANY, LOOP_DTYPE},
    [VME_ARCTAN2] = {FLOATS, LOOP_DTYPE},
    [VME_HYPOT] = {FLOATS, LOOP_DTYPE},
    [VME_COPYSIGN] = {FLOATS, LOOP_DTYPE},
    [VME_NEXTAFTER] = {FLOATS, LOOP_DTYPE},
    [VME_LOGADDEXP] = {FLOATS, LOOP_DTYPE},
    [VME_BITWISE_AND] = {BOOL | INTEGERS, LOOP_DTYPE},
    [VME_BITWISE_OR] = {BOOL | INTEGERS, LOOP_DTYPE},
    [VME_BITWISE_XOR] = {BOOL | INTEGERS, LOOP_DTYPE},
    [VME_LEFT_SHIFT] = {INTEGERS, LOOP_DTYPE},
    [VME_RIGHT_SHIFT] = {INTEGERS, LOOP_DTYPE},
    [VME_EQUAL] = {ANY, TRUTH},
    [VME_NOT_EQUAL] = {ANY, TRUTH},
    [VME_LESS] = {ANY, TRUTH},
    [VME_LESS_EQUAL] = {ANY, TRUTH},
    [VME_GREATER] = {ANY, TRUTH},
    [VME_GREATER_EQUAL] = {ANY, TRUTH},
    [VME_LOGICAL_AND] = {ANY, TRUTH},
    [VME_LOGICAL_OR] = {ANY, TRUTH},
    [VME_LOGICAL_XOR] = {ANY, TRUTH},
    [VME_HEAVISIDE] = {FLOATS, LOOP_DTYPE},
    [VME_GCD] = {INTEGERS, LOOP_DTYPE},
    [VME_LCM] = {INTEGERS, LOOP_DTYPE},
};

/* The first of the operator's dtypes that holds `wanted`, in NumPy's order; VME_DTYPE_COUNT when there is none. */
static vme_dtype first_loop(unsigned loops, vme_dtype wanted)
{
    if (loops & BIT(wanted))
        return wanted;
    if (wanted == VME_BOOL && (loops & BIT(VME_INT8)))
        return VME_INT8;
    vme_dtype floating = vme_dtype_promote(wanted, VME_FLOAT16);
    return loops & BIT(floating) ? floating : VME_DTYPE_COUNT;
}

static vme_dtype result_of(struct rule rule, vme_dtype loop)
{
    if (rule.result == TRUTH)
        return VME_BOOL;
    if (rule.result == BYTE)
        return VME_UINT8;
    if (rule.result == REAL_PART && loop >= VME_COMPLEX64)
        return loop == VME_COMPLEX64 ? VME_FLOAT32 : VME_FLOAT64;
    return loop;
}

vme_dtype vme_unary_result(vme_unary_op op, vme_dtype loop) { return result_of(unary_rules[op], loop); }
vme_dtype vme_binary_result(vme_binary_op op, vme_dtype loop) { return result_of(binary_rules[op], loop); }

static vme_status no_loop(const char *name)
{
    return vme_fail(VME_BAD_DTYPE,
                    "ufunc '%s' not supported for the input types, and the inputs could not be safely coerced to any "
                    "supported types according to the casting rule ''safe''",
                    name);
}

/* The sentence on two dtypes, which it names by their classes. */
static vme_status no_loop_of(const char *name, vme_dtype a, vme_dtype b)
{
    static const char *const classes[VME_DTYPE_COUNT] = {"Bool",    "Int8",    "Int16",     "Int32",     "Int64",
                                                         "UInt8",   "UInt16",  "UInt32",    "UInt64",    "Float16",
                                                         "Float32", "Float64", "Complex64", "Complex128"};
    return vme_fail(VME_BAD_DTYPE,
                    "ufunc '%s' did not contain a loop with signature matching types (<class 'numpy.dtypes.%sDType'>, "
                    "<class 'numpy.dtypes.%sDType'>) -> None",
                    name, classes[a], classes[b]);
}

vme_status vme_unary_types(vme_unary_op op, vme_dtype in, vme_dtype *loop, vme_dtype *result)
{
    if (in == VME_BOOL && op == VME_NEGATIVE)
        return vme_fail(VME_BAD_DTYPE,
                        "The numpy boolean negative, the `-` operator, is not supported, use the `~` operator or the "
                        "logical_not function instead.");
    if (in == VME_BOOL && (op == VME_SIGN || op == VME_POSITIVE))
        return vme_fail(VME_BAD_DTYPE,
                        "ufunc '%s' did not contain a loop with signature matching types "
                        "<class 'numpy.dtypes.BoolDType'> -> None",
                        vme_unary_name(op));
    vme_dtype found = first_loop(unary_rules[op].loops, in);
    if (found == VME_DTYPE_COUNT)
        return no_loop(vme_unary_name(op));
    *loop = found;
    *result = vme_unary_result(op, found);
    return VME_OK;
}

vme_status vme_binary_types(vme_binary_op op, vme_dtype a, vme_dtype b, vme_dtype *loop, vme_dtype *result)
{
    if (op == VME_SUBTRACT && a == VME_BOOL && b == VME_BOOL)
        return vme_fail(VME_BAD_DTYPE,
                        "numpy boolean subtract, the `-` operator, is not supported, use the bitwise_xor, the `^` "
                        "operator, or the logical_xor function instead.");
    vme_dtype both = vme_dtype_promote(a, b);
    if ((op == VME_GCD || op == VME_LCM) && (both == VME_BOOL || both >= VME_FLOAT16))
        return no_loop_of(vme_binary_name(op), a, b);
    if (op == VME_DIVIDE && both < VME_FLOAT16)
        both = VME_FLOAT64; /* true division of integers is float64 whatever their size */
    else if (!(binary_rules[op].loops
               & INTEGERS)) /* each integer becomes a float by itself: int8 and uint8 are float16 */
        both = vme_dtype_promote(vme_dtype_promote(a, VME_FLOAT16), vme_dtype_promote(b, VME_FLOAT16));
    /* integers of both signs compare exactly: vme_binary takes this loop with a signed operand as that */
    if (op >= VME_EQUAL && op <= VME_GREATER_EQUAL && both == VME_FLOAT64 && a < VME_FLOAT16 && b < VME_FLOAT16)
        both = VME_UINT64;
    vme_dtype found = first_loop(binary_rules[op].loops, both);
    if (found == VME_DTYPE_COUNT)
        return no_loop(vme_binary_name(op));
    *loop = found;
    *result = vme_binary_result(op, found);
    return VME_OK;
}
