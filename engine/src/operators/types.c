/* Loop and result dtypes of each operator: NumPy's ufunc loops (the `types` of each ufunc) and its error messages for
 * missing ones. tests/engine/test_types.py checks every combination against NumPy. */
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

/* The values in vme_operators.h's rows: dtypes (above), and the kind of result. */
enum { LOOP_DTYPE, TRUTH, REAL_PART, BYTE };

struct rule {
    unsigned loops; /* bit mask of the dtypes that the operator computes in */
    int result;
};

#define RULE(OPERATOR, NAME, LOOPS, RESULT, ...) [VME_##OPERATOR] = {LOOPS, RESULT},
static const struct rule unary_rules[] = {VME_UNARY_OPERATORS(RULE)};
static const struct rule binary_rules[] = {VME_BINARY_OPERATORS(RULE)};
#undef RULE

/* The operator's first loop dtype, in NumPy's order, to which `wanted` can be cast safely; VME_DTYPE_COUNT: none. */
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

/* The error message for two dtypes, named by their classes. */
static vme_status no_loop_for(const char *name, vme_dtype a, vme_dtype b)
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
    vme_dtype common = vme_dtype_promote(a, b);
    if ((op == VME_GCD || op == VME_LCM) && (common == VME_BOOL || common >= VME_FLOAT16))
        return no_loop_for(vme_binary_name(op), a, b);
    if (op == VME_DIVIDE && common < VME_FLOAT16)
        common = VME_FLOAT64; /* true division of integers is float64 for every size */
    else if (!(binary_rules[op].loops & INTEGERS))
        /* each integer is promoted to a float separately: int8 and uint8 to float16 */
        common = vme_dtype_promote(vme_dtype_promote(a, VME_FLOAT16), vme_dtype_promote(b, VME_FLOAT16));
    /* integers of both signs compare exactly: vme_binary handles a signed operand of this loop */
    if (op >= VME_EQUAL && op <= VME_GREATER_EQUAL && common == VME_FLOAT64 && a < VME_FLOAT16 && b < VME_FLOAT16)
        common = VME_UINT64;
    vme_dtype found = first_loop(binary_rules[op].loops, common);
    if (found == VME_DTYPE_COUNT)
        return no_loop(vme_binary_name(op));
    *loop = found;
    *result = vme_binary_result(op, found);
    return VME_OK;
}
