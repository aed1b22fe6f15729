/* Conditions: edges' codes over predicates, and predicates' programs over values. Run time is bounded by their length;
 * nothing allocates. */
#include "core/machine.h"

#include <math.h>
#include <string.h>

static const vmp_value NONE = {.kind = VMP_NONE}, FAILED = {.kind = VMP_FAILED};

static vmp_value truth(bool value) { return (vmp_value){.kind = VMP_BOOL, .truth = value}; }

static vmp_value real(double value) { return (vmp_value){.kind = VMP_DOUBLE, .real = value}; }

static bool is_number(const vmp_value *value) { return value->kind >= VMP_INT && value->kind <= VMP_DOUBLE; }

static double as_real(const vmp_value *value)
{
    return value->kind == VMP_INT    ? (double)value->whole
           : value->kind == VMP_UINT ? (double)value->natural
                                     : value->real;
}

static int text_order(const vmp_value *a, const vmp_value *b)
{
    uint32_t both = a->size < b->size ? a->size : b->size;
    int order = both == 0 ? 0 : memcmp(a->text, b->text, both);
    return order != 0 ? order : (a->size > b->size) - (a->size < b->size);
}

/* ---- simple comparisons: missing values never compare, values of two kinds are unequal, numbers are doubles */

static bool by_order(unsigned operator, int order)
{
    switch (operator) {
    case 0: return order == 0;
    case 1: return order != 0;
    case 2: return order < 0;
    case 3: return order <= 0;
    case 4: return order > 0;
    default: return order >= 0;
    }
}

/* Java's order of doubles: NaN equals itself and is above all others; -0.0 is below 0.0. */
static int real_order(double a, double b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) - isnan(b);
    if (a != b)
        return a < b ? -1 : 1;
    return (int)(signbit(b) != 0) - (int)(signbit(a) != 0);
}

static bool compares(unsigned operator, const vmp_value *a, const vmp_value *b)
{
    if (a->kind <= VMP_NULL || b->kind <= VMP_NULL)
        return false;
    if (is_number(a) && is_number(b))
        return by_order(operator, real_order(as_real(a), as_real(b)));
    if (a->kind != b->kind || a->kind == VMP_OTHER)
        return operator == 1;
    if (a->kind == VMP_BOOL)
        return by_order(operator, (int)a->truth - (int)b->truth);
    return by_order(operator, text_order(a, b));
}

/* ---- aggregates over taken events */

static vmp_value kept(const vmp_engine *engine, uint32_t event, uint32_t number)
{
    const vmp_taken *taken = vmp_taken_at(engine, event);
    for (uint32_t i = 0; i < taken->kept_count; i++)
        if (taken->kept[i].field == number)
            return taken->kept[i].value;
    return NONE;
}

static vmp_value gather(vmp_engine *engine, const vmp_op *op, uint32_t node)
{
    uint32_t count = 0, seen = 0, numbers = 0;
    double sum = 0, low = 0, high = 0;
    vmp_value first = NONE, last = NONE;
    for (; node != 0; node = vmp_node_at(engine, node)->previous)
        if (vmp_node_at(engine, node)->step == op->b)
            engine->path[count++] = vmp_node_at(engine, node)->event; /* reserved when the node was made */
    seen = count;
    while (count-- > 0) { /* in order, as sums of doubles depend on it */
        vmp_value value = op->a == VMP_NO_FIELD ? NONE : kept(engine, engine->path[count], op->a);
        if (value.kind <= VMP_NULL)
            continue;
        if (first.kind == VMP_NONE)
            first = value;
        last = value;
        if (is_number(&value)) {
            double number = as_real(&value);
            sum += number;
            low = numbers == 0 || number < low ? number : low;
            high = numbers == 0 || number > high ? number : high;
            numbers++;
        }
    }
    switch (op->c) {
    case VMP_SUM: return real(sum);
    case VMP_COUNT: return (vmp_value){.kind = VMP_INT, .whole = seen};
    case VMP_MIN: return numbers == 0 ? NONE : real(low);
    case VMP_MAX: return numbers == 0 ? NONE : real(high);
    case VMP_MEAN: return numbers == 0 ? NONE : real(sum / numbers);
    case VMP_FIRST: return first;
    default: return last;
    }
}

/* ---- CEL */

/* -1, 0, 1; 2: unordered (NaN). Numbers of different kinds compare by their mathematical values. */
static int number_order(const vmp_value *a, const vmp_value *b)
{
    if (a->kind == VMP_DOUBLE || b->kind == VMP_DOUBLE) {
        if (a->kind == VMP_DOUBLE && b->kind == VMP_DOUBLE)
            return isnan(a->real) || isnan(b->real) ? 2 : (a->real > b->real) - (a->real < b->real);
        bool swapped = b->kind == VMP_DOUBLE;
        double d = swapped ? b->real : a->real;
        const vmp_value *n = swapped ? a : b;
        int order; /* of the double relative to the integer */
        if (isnan(d))
            return 2;
        if (n->kind == VMP_INT) {
            if (d < -9223372036854775808.0 || d >= 9223372036854775808.0)
                order = d < 0 ? -1 : 1;
            else {
                int64_t whole = (int64_t)d;
                double rest = d - (double)whole;
                order = whole != n->whole ? (whole > n->whole) - (whole < n->whole) : (rest > 0) - (rest < 0);
            }
        } else {
            if (d < 0 || d >= 18446744073709551616.0)
                order = d < 0 ? -1 : 1;
            else {
                uint64_t natural = (uint64_t)d;
                double rest = d - (double)natural;
                order =
                    natural != n->natural ? (natural > n->natural) - (natural < n->natural) : (rest > 0) - (rest < 0);
            }
        }
        return swapped ? -order : order;
    }
    if (a->kind == b->kind)
        return a->kind == VMP_INT ? (a->whole > b->whole) - (a->whole < b->whole)
                                  : (a->natural > b->natural) - (a->natural < b->natural);
    if (a->kind == VMP_INT)
        return a->whole < 0 ? -1 : ((uint64_t)a->whole > b->natural) - ((uint64_t)a->whole < b->natural);
    return b->whole < 0 ? 1 : (a->natural > (uint64_t)b->whole) - (a->natural < (uint64_t)b->whole);
}

static bool lacks(const vmp_value *value) { return value->kind <= VMP_FAILED; }

static vmp_value equal(const vmp_value *a, const vmp_value *b)
{
    if (lacks(a) || lacks(b) || a->kind == VMP_OTHER || b->kind == VMP_OTHER)
        return FAILED;
    if (is_number(a) && is_number(b))
        return truth(number_order(a, b) == 0);
    if (a->kind != b->kind)
        return truth(false);
    switch (a->kind) {
    case VMP_NULL: return truth(true);
    case VMP_BOOL: return truth(a->truth == b->truth);
    default: return truth(a->size == b->size && text_order(a, b) == 0);
    }
}

static vmp_value ordered(unsigned operator, const vmp_value *a, const vmp_value *b)
{
    int order;
    if (is_number(a) && is_number(b)) {
        order = number_order(a, b);
        /* the specification orders integers near 2^63 as the double that they round to */
        if ((a->kind == VMP_INT && b->kind == VMP_DOUBLE && b->real == 9223372036854775808.0)
            || (b->kind == VMP_INT && a->kind == VMP_DOUBLE && a->real == 9223372036854775808.0))
            order = (as_real(a) > as_real(b)) - (as_real(a) < as_real(b));
    } else if (a->kind != b->kind)
        return FAILED;
    else if (a->kind == VMP_BOOL)
        order = (int)a->truth - (int)b->truth;
    else if (a->kind == VMP_TEXT || a->kind == VMP_BYTES)
        order = text_order(a, b);
    else
        return FAILED;
    if (order == 2)
        return truth(false);
    switch (operator) {
    case VMP_LT: return truth(order < 0);
    case VMP_LE: return truth(order <= 0);
    case VMP_GT: return truth(order > 0);
    default: return truth(order >= 0);
    }
}

static vmp_value whole(int64_t value) { return (vmp_value){.kind = VMP_INT, .whole = value}; }

static vmp_value natural(uint64_t value) { return (vmp_value){.kind = VMP_UINT, .natural = value}; }

static vmp_value arithmetic(unsigned operation, const vmp_value *a, const vmp_value *b)
{
    if (a->kind != b->kind || !is_number(a))
        return FAILED;
    if (a->kind == VMP_DOUBLE) {
        switch (operation) {
        case VMP_ADD: return real(a->real + b->real);
        case VMP_SUBTRACT: return real(a->real - b->real);
        case VMP_MULTIPLY: return real(a->real * b->real);
        case VMP_DIVIDE: return real(a->real / b->real);
        default: return FAILED;
        }
    }
    if (a->kind == VMP_INT) {
        int64_t x = a->whole, y = b->whole, z;
        switch (operation) {
        case VMP_ADD: return __builtin_add_overflow(x, y, &z) ? FAILED : whole(z);
        case VMP_SUBTRACT: return __builtin_sub_overflow(x, y, &z) ? FAILED : whole(z);
        case VMP_MULTIPLY: return __builtin_mul_overflow(x, y, &z) ? FAILED : whole(z);
        case VMP_DIVIDE: return y == 0 || (x == INT64_MIN && y == -1) ? FAILED : whole(x / y);
        default: return y == 0 || (x == INT64_MIN && y == -1) ? FAILED : whole(x % y);
        }
    }
    uint64_t x = a->natural, y = b->natural, z;
    switch (operation) {
    case VMP_ADD: return __builtin_add_overflow(x, y, &z) ? FAILED : natural(z);
    case VMP_SUBTRACT: return __builtin_sub_overflow(x, y, &z) ? FAILED : natural(z);
    case VMP_MULTIPLY: return __builtin_mul_overflow(x, y, &z) ? FAILED : natural(z);
    case VMP_DIVIDE: return y == 0 ? FAILED : natural(x / y);
    default: return y == 0 ? FAILED : natural(x % y);
    }
}

/* && and ||: a deciding side overrides an error of the other one. */
static vmp_value logical(bool deciding, const vmp_value *a, const vmp_value *b)
{
    if ((a->kind == VMP_BOOL && a->truth == deciding) || (b->kind == VMP_BOOL && b->truth == deciding))
        return truth(deciding);
    return a->kind == VMP_BOOL && b->kind == VMP_BOOL ? truth(!deciding) : FAILED;
}

/* The number of code points in UTF-8. */
static int64_t points(const vmp_value *text)
{
    int64_t count = 0;
    for (uint32_t i = 0; i < text->size; i++)
        count += ((unsigned char)text->text[i] & 0xc0) != 0x80;
    return count;
}

static vmp_value holds_text(unsigned operation, const vmp_value *a, const vmp_value *b)
{
    if (a->kind != VMP_TEXT || b->kind != VMP_TEXT)
        return FAILED;
    if (b->size > a->size)
        return truth(false);
    if (b->size == 0)
        return truth(true);
    switch (operation) {
    case VMP_CONTAINS: return truth(memmem(a->text, a->size, b->text, b->size) != NULL);
    case VMP_STARTS_WITH: return truth(memcmp(a->text, b->text, b->size) == 0);
    default: return truth(memcmp(a->text + a->size - b->size, b->text, b->size) == 0);
    }
}

static vmp_value converted(unsigned operation, const vmp_value *a)
{
    if (!is_number(a))
        return FAILED;
    switch (operation) {
    case VMP_TO_DOUBLE: return real(as_real(a));
    case VMP_TO_INT:
        if (a->kind == VMP_INT)
            return *a;
        if (a->kind == VMP_UINT)
            return a->natural > INT64_MAX ? FAILED : whole((int64_t)a->natural);
        /* the specification excludes both ends of the range: as doubles they equal values beyond it */
        return a->real > -9223372036854775808.0 && a->real < 9223372036854775808.0 ? whole((int64_t)a->real) : FAILED;
    default:
        if (a->kind == VMP_UINT)
            return *a;
        if (a->kind == VMP_INT)
            return a->whole < 0 ? FAILED : natural((uint64_t)a->whole);
        return a->real >= 0 && a->real < 18446744073709551616.0 ? natural((uint64_t)a->real) : FAILED;
    }
}

static vmp_value negated(const vmp_value *a)
{
    if (a->kind == VMP_DOUBLE)
        return real(-a->real);
    return a->kind == VMP_INT && a->whole != INT64_MIN ? whole(-a->whole) : FAILED;
}

static vmp_value one_of(const vmp_value *value, const vmp_value *listed, uint32_t count)
{
    if (lacks(value))
        return FAILED;
    for (uint32_t i = 0; i < count; i++)
        if (lacks(&listed[i])) /* an element that is an error makes the list one */
            return FAILED;
    for (uint32_t i = 0; i < count; i++) {
        vmp_value same = equal(value, &listed[i]);
        if (same.kind == VMP_BOOL && same.truth)
            return same;
    }
    return truth(false);
}

/* ---- programs */

vmp_value vmp_run(vmp_engine *engine, const vmp_rule *rule, const vmp_test *test, uint32_t node)
{
    vmp_value stack[VMP_STACK];
    vmp_value *top = stack; /* one past the last value; the depth was checked in vmp_add */
    for (const vmp_op *op = rule->operations + test->first, *end = op + test->count; op < end; op++) {
        switch ((vmp_operation)op->operation) {
        case VMP_CONSTANT: *top++ = rule->constants[op->a]; break;
        case VMP_FIELD: *top++ = vmp_field(engine, op->a); break;
        case VMP_HAS: {
            vmp_value value = vmp_field(engine, op->a);
            *top++ = value.kind == VMP_FAILED ? FAILED : truth(value.kind != VMP_NONE);
            break;
        }
        case VMP_GATHER: *top++ = gather(engine, op, node); break;
        case VMP_COMPARE:
            top--;
            top[-1] = truth(compares(op->a, &top[-1], &top[0]));
            break;
        case VMP_PLUS:
            top--;
            top[-1] = is_number(&top[-1]) && is_number(&top[0]) ? real(as_real(&top[-1]) + as_real(&top[0])) : NONE;
            break;
        case VMP_EQ:
            top--;
            top[-1] = equal(&top[-1], &top[0]);
            break;
        case VMP_NE: {
            top--;
            vmp_value same = equal(&top[-1], &top[0]);
            top[-1] = same.kind == VMP_BOOL ? truth(!same.truth) : same;
            break;
        }
        case VMP_LT:
        case VMP_LE:
        case VMP_GT:
        case VMP_GE:
            top--;
            top[-1] = ordered(op->operation, &top[-1], &top[0]);
            break;
        case VMP_ADD:
        case VMP_SUBTRACT:
        case VMP_MULTIPLY:
        case VMP_DIVIDE:
        case VMP_MODULO:
            top--;
            top[-1] = arithmetic(op->operation, &top[-1], &top[0]);
            break;
        case VMP_NEGATE: top[-1] = negated(&top[-1]); break;
        case VMP_NOT: top[-1] = top[-1].kind == VMP_BOOL ? truth(!top[-1].truth) : FAILED; break;
        case VMP_AND:
            top--;
            top[-1] = logical(false, &top[-1], &top[0]);
            break;
        case VMP_OR:
            top--;
            top[-1] = logical(true, &top[-1], &top[0]);
            break;
        case VMP_CHOOSE:
            top -= 2;
            top[-1] = top[-1].kind != VMP_BOOL ? FAILED : top[-1].truth ? top[0] : top[1];
            break;
        case VMP_IN:
            top -= op->a;
            top[-1] = one_of(&top[-1], top, op->a);
            break;
        case VMP_SIZE:
            top[-1] = top[-1].kind == VMP_TEXT    ? whole(points(&top[-1]))
                      : top[-1].kind == VMP_BYTES ? whole(top[-1].size)
                                                  : FAILED;
            break;
        case VMP_CONTAINS:
        case VMP_STARTS_WITH:
        case VMP_ENDS_WITH:
            top--;
            top[-1] = holds_text(op->operation, &top[-1], &top[0]);
            break;
        case VMP_TO_INT:
        case VMP_TO_UINT:
        case VMP_TO_DOUBLE: top[-1] = converted(op->operation, &top[-1]); break;
        case VMP_TO_DYN:
            if (top[-1].kind == VMP_NONE)
                top[-1] = FAILED;
            break;
        case VMP_KIND_IS: top[-1] = lacks(&top[-1]) ? FAILED : truth(top[-1].kind == op->a); break;
        case VMP_OPERATION_COUNT: break;
        }
    }
    return stack[0];
}

static bool test_holds(vmp_engine *engine, vmp_rule *rule, vmp_test *test, uint32_t node)
{
    if (test->named)
        return test->name == engine->name;
    if (test->gathers || test->seen != engine->order) {
        vmp_value value = vmp_run(engine, rule, test, node);
        test->truth = value.kind == VMP_BOOL && value.truth;
        test->seen = engine->order;
    }
    return test->truth;
}

bool vmp_holds(vmp_engine *engine, vmp_rule *rule, const int16_t *codes, uint32_t count, uint32_t node)
{
    if (count == 0)
        return true;
    uint64_t stack = 0; /* one bit per value; the depth was checked in vmp_add */
    for (uint32_t i = 0; i < count; i++) {
        switch (codes[i]) {
        case VMP_TRUE: stack = stack << 1 | 1; break;
        case VMP_NEGATE_IT: stack ^= 1; break;
        case VMP_BOTH: stack = stack >> 1 & (stack | ~UINT64_C(1)); break;
        case VMP_EITHER: stack = stack >> 1 | (stack & 1); break;
        default: stack = stack << 1 | test_holds(engine, rule, &rule->tests[codes[i]], node); break;
        }
    }
    return stack & 1;
}
