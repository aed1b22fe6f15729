/* The elementwise operators, reductions and scans of the engine, one row each. The enums of vme.h, the names
 * (operators/names.c), the dtype rules (operators/types.c), the costs (operators/elementwise.c) and Python's tables are
 * generated from these rows.
 *
 * Model files contain the numbers of operators: never move a row, and add new ones at the end. docs/development.md
 * explains how to add one.
 *
 *   ROW(ENUMERATOR, "NumPy's name", dtypes that it computes in, dtype of its result, cost)
 *
 * The values of the last three columns are defined where they are read: dtypes and results in types.c, costs in
 * elementwise.c. An operator without a float16 loop of its own computes in float32. */
#ifndef VME_OPERATORS_H
#define VME_OPERATORS_H

/* clang-format off */
/* out = op(in) */
#define VME_UNARY_OPERATORS(ROW)                                                                    \
    ROW(NEGATIVE,      "negative",      INTEGERS | FLOATS | COMPLEX, LOOP_DTYPE, COSTLY_IF_COMPLEX) \
    ROW(POSITIVE,      "positive",      INTEGERS | FLOATS | COMPLEX, LOOP_DTYPE, COSTLY_IF_COMPLEX) \
    ROW(ABSOLUTE,      "absolute",      ANY,                         REAL_PART,  COSTLY_IF_COMPLEX) \
    ROW(SIGN,          "sign",          INTEGERS | FLOATS | COMPLEX, LOOP_DTYPE, COSTLY_IF_COMPLEX) \
    ROW(INVERT,        "invert",        BOOL | INTEGERS,             LOOP_DTYPE, COSTLY_IF_COMPLEX) \
    ROW(LOGICAL_NOT,   "logical_not",   ANY,                         TRUTH,      COSTLY_IF_COMPLEX) \
    ROW(SQUARE,        "square",        INTEGERS | FLOATS | COMPLEX, LOOP_DTYPE, COSTLY_IF_COMPLEX) \
    ROW(SQRT,          "sqrt",          FLOATS | COMPLEX,            LOOP_DTYPE, COSTLY_IF_COMPLEX) \
    ROW(CBRT,          "cbrt",          FLOATS,                      LOOP_DTYPE, COSTLY)            \
    ROW(RECIPROCAL,    "reciprocal",    INTEGERS | FLOATS | COMPLEX, LOOP_DTYPE, COSTLY_IF_COMPLEX) \
    ROW(EXP,           "exp",           FLOATS | COMPLEX,            LOOP_DTYPE, COSTLY)            \
    ROW(EXP2,          "exp2",          FLOATS | COMPLEX,            LOOP_DTYPE, COSTLY)            \
    ROW(EXPM1,         "expm1",         FLOATS | COMPLEX,            LOOP_DTYPE, COSTLY)            \
    ROW(LOG,           "log",           FLOATS | COMPLEX,            LOOP_DTYPE, COSTLY)            \
    ROW(LOG2,          "log2",          FLOATS | COMPLEX,            LOOP_DTYPE, COSTLY)            \
    ROW(LOG10,         "log10",         FLOATS | COMPLEX,            LOOP_DTYPE, COSTLY)            \
    ROW(LOG1P,         "log1p",         FLOATS | COMPLEX,            LOOP_DTYPE, COSTLY)            \
    ROW(SIN,           "sin",           FLOATS | COMPLEX,            LOOP_DTYPE, COSTLY)            \
    ROW(COS,           "cos",           FLOATS | COMPLEX,            LOOP_DTYPE, COSTLY)            \
    ROW(TAN,           "tan",           FLOATS | COMPLEX,            LOOP_DTYPE, COSTLY)            \
    ROW(ARCSIN,        "arcsin",        FLOATS | COMPLEX,            LOOP_DTYPE, COSTLY)            \
    ROW(ARCCOS,        "arccos",        FLOATS | COMPLEX,            LOOP_DTYPE, COSTLY)            \
    ROW(ARCTAN,        "arctan",        FLOATS | COMPLEX,            LOOP_DTYPE, COSTLY)            \
    ROW(SINH,          "sinh",          FLOATS | COMPLEX,            LOOP_DTYPE, COSTLY)            \
    ROW(COSH,          "cosh",          FLOATS | COMPLEX,            LOOP_DTYPE, COSTLY)            \
    ROW(TANH,          "tanh",          FLOATS | COMPLEX,            LOOP_DTYPE, COSTLY)            \
    ROW(ARCSINH,       "arcsinh",       FLOATS | COMPLEX,            LOOP_DTYPE, COSTLY)            \
    ROW(ARCCOSH,       "arccosh",       FLOATS | COMPLEX,            LOOP_DTYPE, COSTLY)            \
    ROW(ARCTANH,       "arctanh",       FLOATS | COMPLEX,            LOOP_DTYPE, COSTLY)            \
    ROW(ERF,           "erf",           FLOATS,                      LOOP_DTYPE, COSTLY)            \
    ROW(FLOOR,         "floor",         BOOL | INTEGERS | FLOATS,    LOOP_DTYPE, CHEAP)             \
    ROW(CEIL,          "ceil",          BOOL | INTEGERS | FLOATS,    LOOP_DTYPE, CHEAP)             \
    ROW(TRUNC,         "trunc",         BOOL | INTEGERS | FLOATS,    LOOP_DTYPE, CHEAP)             \
    ROW(RINT,          "rint",          FLOATS | COMPLEX,            LOOP_DTYPE, CHEAP)             \
    ROW(ISNAN,         "isnan",         ANY,                         TRUTH,      CHEAP)             \
    ROW(ISINF,         "isinf",         ANY,                         TRUTH,      CHEAP)             \
    ROW(ISFINITE,      "isfinite",      ANY,                         TRUTH,      CHEAP)             \
    ROW(SIGNBIT,       "signbit",       FLOATS,                      TRUTH,      CHEAP)             \
    ROW(REAL,          "real",          ANY,                         REAL_PART,  CHEAP)             \
    ROW(IMAG,          "imag",          ANY,                         REAL_PART,  CHEAP)             \
    ROW(CONJUGATE,     "conjugate",     INTEGERS | FLOATS | COMPLEX, LOOP_DTYPE, CHEAP)             \
    ROW(BITWISE_COUNT, "bitwise_count", INTEGERS,                    BYTE,       CHEAP)

/* out = op(a, b). The comparisons, EQUAL to GREATER_EQUAL, are consecutive. */
#define VME_BINARY_OPERATORS(ROW)                                                        \
    ROW(ADD,           "add",           ANY,                         LOOP_DTYPE, CHEAP)  \
    ROW(SUBTRACT,      "subtract",      INTEGERS | FLOATS | COMPLEX, LOOP_DTYPE, CHEAP)  \
    ROW(MULTIPLY,      "multiply",      ANY,                         LOOP_DTYPE, CHEAP)  \
    ROW(DIVIDE,        "divide",        FLOATS | COMPLEX,            LOOP_DTYPE, CHEAP)  \
    ROW(FLOOR_DIVIDE,  "floor_divide",  INTEGERS | FLOATS,           LOOP_DTYPE, COSTLY) \
    ROW(REMAINDER,     "remainder",     INTEGERS | FLOATS,           LOOP_DTYPE, COSTLY) \
    ROW(FMOD,          "fmod",          INTEGERS | FLOATS,           LOOP_DTYPE, COSTLY) \
    ROW(POWER,         "power",         INTEGERS | FLOATS | COMPLEX, LOOP_DTYPE, COSTLY) \
    ROW(MAXIMUM,       "maximum",       ANY,                         LOOP_DTYPE, CHEAP)  \
    ROW(MINIMUM,       "minimum",       ANY,                         LOOP_DTYPE, CHEAP)  \
    ROW(FMAX,          "fmax",          ANY,                         LOOP_DTYPE, CHEAP)  \
    ROW(FMIN,          "fmin",          ANY,                         LOOP_DTYPE, CHEAP)  \
    ROW(ARCTAN2,       "arctan2",       FLOATS,                      LOOP_DTYPE, COSTLY) \
    ROW(HYPOT,         "hypot",         FLOATS,                      LOOP_DTYPE, COSTLY) \
    ROW(COPYSIGN,      "copysign",      FLOATS,                      LOOP_DTYPE, CHEAP)  \
    ROW(NEXTAFTER,     "nextafter",     FLOATS,                      LOOP_DTYPE, COSTLY) \
    ROW(LOGADDEXP,     "logaddexp",     FLOATS,                      LOOP_DTYPE, COSTLY) \
    ROW(BITWISE_AND,   "bitwise_and",   BOOL | INTEGERS,             LOOP_DTYPE, CHEAP)  \
    ROW(BITWISE_OR,    "bitwise_or",    BOOL | INTEGERS,             LOOP_DTYPE, CHEAP)  \
    ROW(BITWISE_XOR,   "bitwise_xor",   BOOL | INTEGERS,             LOOP_DTYPE, CHEAP)  \
    ROW(LEFT_SHIFT,    "left_shift",    INTEGERS,                    LOOP_DTYPE, CHEAP)  \
    ROW(RIGHT_SHIFT,   "right_shift",   INTEGERS,                    LOOP_DTYPE, CHEAP)  \
    ROW(EQUAL,         "equal",         ANY,                         TRUTH,      CHEAP)  \
    ROW(NOT_EQUAL,     "not_equal",     ANY,                         TRUTH,      CHEAP)  \
    ROW(LESS,          "less",          ANY,                         TRUTH,      CHEAP)  \
    ROW(LESS_EQUAL,    "less_equal",    ANY,                         TRUTH,      CHEAP)  \
    ROW(GREATER,       "greater",       ANY,                         TRUTH,      CHEAP)  \
    ROW(GREATER_EQUAL, "greater_equal", ANY,                         TRUTH,      CHEAP)  \
    ROW(LOGICAL_AND,   "logical_and",   ANY,                         TRUTH,      CHEAP)  \
    ROW(LOGICAL_OR,    "logical_or",    ANY,                         TRUTH,      CHEAP)  \
    ROW(LOGICAL_XOR,   "logical_xor",   ANY,                         TRUTH,      CHEAP)  \
    ROW(HEAVISIDE,     "heaviside",     FLOATS,                      LOOP_DTYPE, CHEAP)  \
    ROW(GCD,           "gcd",           INTEGERS,                    LOOP_DTYPE, COSTLY) \
    ROW(LCM,           "lcm",           INTEGERS,                    LOOP_DTYPE, COSTLY)

/* KNOWN_MAX and KNOWN_MIN ignore NaN; the result is NaN if all elements are. */
#define VME_REDUCE_OPERATORS(ROW)       \
    ROW(SUM,           "sum")           \
    ROW(PROD,          "prod")          \
    ROW(MAX,           "max")           \
    ROW(MIN,           "min")           \
    ROW(ALL,           "all")           \
    ROW(ANY,           "any")           \
    ROW(ARGMAX,        "argmax")        \
    ROW(ARGMIN,        "argmin")        \
    ROW(COUNT_NONZERO, "count_nonzero") \
    ROW(KNOWN_MAX,     "fmax")          \
    ROW(KNOWN_MIN,     "fmin")

/* Cumulative values along an axis. */
#define VME_SCAN_OPERATORS(ROW) \
    ROW(CUMSUM,  "cumsum")      \
    ROW(CUMPROD, "cumprod")     \
    ROW(CUMMAX,  "cummax")      \
    ROW(CUMMIN,  "cummin")
/* clang-format on */

#endif
