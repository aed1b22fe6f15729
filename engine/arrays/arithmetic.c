/* Arithmetic: the number protocol, comparisons, and the ufunc objects (`add`, `exp`, …), all on the engine's
 * elementwise operators.
 *
 * Python numbers are weak (NEP 50): they take the dtype of the other operand. Fast paths come first: two arrays of one
 * dtype and one shape, and an array with a Python float or int. */
#include "methods.h"

#include <math.h>

/* Cost of an element relative to an addition; decides whether the GIL is released. */
static int unary_cost(int op) { return op >= VME_CBRT && op <= VME_ERF && op != VME_RECIPROCAL ? 16 : 1; }
static int binary_cost(int op)
{
    switch (op) {
    case VME_POWER:
    case VME_ARCTAN2:
    case VME_LOGADDEXP:
    case VME_HYPOT:
    case VME_FMOD: return 24;
    case VME_FLOOR_DIVIDE:
    case VME_REMAINDER:
    case VME_NEXTAFTER:
    case VME_GCD:
    case VME_LCM: return 8;
    default: return 1;
    }
}

/* ---- operands */
/* Without dimensions the pointers may be NULL. */
static inline bool same_extents(int rank, const int64_t *a, const int64_t *b)
{
    return rank == 0 || memcmp(a, b, (size_t)rank * sizeof *a) == 0;
}

typedef struct operand {
    const vme_tensor *t; /* the array's tensor, or `scalar` */
    array *held;         /* a reference to release; NULL: borrowed or none */
    PyObject *object;
    int weak; /* WEAK_NONE: an array */
    vme_tensor scalar;
    char element[ARRAY_ELEMENT_BYTES];
} operand;

static int operand_get(array_state *state, PyObject *object, operand *of)
{
    of->object = object;
    of->held = NULL;
    of->t = NULL;
    of->weak = WEAK_NONE;
    if (is_array(object)) {
        of->t = &((array *)object)->t;
        return 0;
    }
    of->weak = element_weak(object);
    if (of->weak != WEAK_NONE)
        return 0;
    of->held = array_from_any(state, object, -1);
    if (of->held == NULL)
        return -1;
    of->t = &of->held->t;
    return 0;
}

static int default_dtype(const operand *of)
{
    switch (of->weak) {
    case WEAK_BOOL: return VME_BOOL;
    case WEAK_FLOAT: return VME_FLOAT64;
    case WEAK_COMPLEX: return VME_COMPLEX128;
    }
    int overflow;
    PyLong_AsLongLongAndOverflow(of->object, &overflow);
    return overflow > 0 ? VME_UINT64 : VME_INT64;
}

static int operand_settle(operand *of, int dtype)
{
    of->scalar = (vme_tensor){NULL, of->element, NULL, NULL, 0, dtype};
    of->t = &of->scalar;
    return element_from_python(dtype, of->object, of->element);
}

/* ---- outputs */
/* A result of this shape with the memory layout of `like` if that is a permuted dense array of the same shape,
 * otherwise in C order. */
static array *result_new(array_state *state, int dtype, int rank, const int64_t *shape, const vme_tensor *like)
{
    bool alike = like != NULL && like->rank == rank && same_extents(rank, like->shape, shape);
    return alike ? array_new_ordered(state, dtype, rank, shape, like->strides, false)
                 : array_new(state, dtype, rank, shape, false);
}

array *array_new_ordered(array_state *state, int dtype, int rank, const int64_t *shape, const int64_t *strides,
                         bool zero)
{
    int order[VME_RANK_MAX];
    bool permuted = false;
    for (int i = 0; i < rank; i++) { /* insertion sort by descending stride; stable */
        int64_t stride = llabs(strides[i]);
        int at = i;
        for (; at > 0 && llabs(strides[order[at - 1]]) < stride; at--)
            order[at] = order[at - 1];
        order[at] = i;
        permuted = permuted || at != i;
    }
    if (!permuted)
        return array_new(state, dtype, rank, shape, zero);
    int64_t sizes[VME_RANK_MAX];
    int inverse[VME_RANK_MAX];
    for (int i = 0; i < rank; i++) {
        sizes[i] = shape[order[i]];
        inverse[order[i]] = i;
    }
    array *dense = array_new(state, dtype, rank, sizes, zero);
    array *result = dense == NULL ? NULL : array_transpose(dense, inverse);
    Py_XDECREF(dense);
    return array_as_owner(result);
}

static int check_output_shape(const array *out, int rank, const int64_t *shape)
{
    bool fits = out->t.rank >= rank;
    for (int i = 0; fits && i < rank; i++) {
        int64_t size = out->t.shape[i + out->t.rank - rank];
        fits = size == shape[i] || (shape[i] == 1);
    }
    if (fits)
        return 0;
    PyObject *own = array_shape_text(out->t.rank, out->t.shape), *wanted = array_shape_text(rank, shape);
    if (own != NULL && wanted != NULL)
        PyErr_Format(PyExc_ValueError,
                     "non-broadcastable output operand with shape %U doesn't match the broadcast shape %U", own,
                     wanted);
    Py_XDECREF(own);
    Py_XDECREF(wanted);
    return -1;
}

static int check_output(array_state *state, const char *name, int result, array *out, int rank, const int64_t *shape)
{
    if (!dtype_can_cast(result, out->t.dtype, CAST_SAME_KIND)) {
        PyErr_Format(PyExc_TypeError, "Cannot cast ufunc '%s' output from %R to %R with casting rule 'same_kind'", name,
                     state->dtypes[result], state->dtypes[out->t.dtype]);
        return -1;
    }
    return check_output_shape(out, rank, shape);
}

/* ---- dying temporaries */
/* Minimum elements of a dying temporary whose memory is reused for the result. */
enum { REUSE_MIN = 1 << 14 };

/* Whether `object` is a large intermediate result of an expression that no other code can see.
 *
 * Only slots and ufuncs may ask, about operands that they read immediately: CPython looks for the object on the running
 * frame's stack, where it must be owned (the value of a variable is borrowed there, or has two references). Callers
 * that use an operand again afterwards (divmod) must not allow reuse. */
static inline bool is_dying(PyObject *object)
{
    const array *self = (array *)object;
    return self->size >= REUSE_MIN
           && (self->flags & (ARRAY_OWN | ARRAY_CONTIGUOUS | ARRAY_READ_ONLY)) == (ARRAY_OWN | ARRAY_CONTIGUOUS)
           && PyUnstable_Object_IsUniqueReferencedTemporary(object) && vme_buffer_references(self->t.buffer) == 1
           && vme_buffer_writable(self->t.buffer) && self->weak_references == NULL;
}

/* The result's memory: that of `object` if it is a dying temporary of this dtype and shape; otherwise NULL. */
static inline array *taken(PyObject *object, int dtype, int rank, const int64_t *shape)
{
    if (!is_array(object))
        return NULL;
    array *self = (array *)object;
    bool fits = self->t.dtype == dtype && self->t.rank == rank && same_extents(rank, self->t.shape, shape);
    return fits && is_dying(object) ? (array *)Py_NewRef(object) : NULL;
}

/* ---- unary */
/* `take`: the operand's memory may be reused for the result if it is dying. */
static PyObject *unary(array_state *state, int op, PyObject *object, array *out, int dtype, bool take)
{
    take = take && is_array(object) && is_dying(object); /* asked before `in` adds a reference */
    array *in = array_from_any(state, object, -1), *created = NULL;
    if (in == NULL)
        return NULL;
    vme_dtype loop, result;
    vme_status status = vme_unary_types((vme_unary_op)op, (vme_dtype)(dtype < 0 ? in->t.dtype : dtype), &loop, &result);
    if (status != VME_OK) {
        array_fail(state, status);
        goto done;
    }
    if (dtype >= 0 && !dtype_can_cast(in->t.dtype, (int)loop, CAST_SAME_KIND)) {
        PyErr_Format(PyExc_TypeError, "Cannot cast ufunc '%s' input from %R to %R with casting rule 'same_kind'",
                     vme_unary_name((vme_unary_op)op), state->dtypes[in->t.dtype], state->dtypes[loop]);
        goto done;
    }
    if (out != NULL) {
        if (check_output(state, vme_unary_name((vme_unary_op)op), (int)result, out, in->t.rank, in->t.shape) < 0)
            goto done;
        created = (array *)Py_NewRef(out);
    } else if (take && (int)result == in->t.dtype) {
        created = (array *)Py_NewRef(in);
    } else if (in->flags & ARRAY_CONTIGUOUS) {
        created = array_new_like(in, (int)result);
    } else {
        created = result_new(state, (int)result, in->t.rank, in->t.shape, &in->t);
    }
    if (created != NULL) {
        status = OPERATOR(state->context, vme_unary_name((vme_unary_op)op), created->size * unary_cost(op),
                          vme_unary(state->context, (vme_unary_op)op, loop, &in->t, &created->t));
        if (status != VME_OK) {
            array_fail(state, status);
            Py_CLEAR(created);
        }
    }
done:
    Py_DECREF(in);
    return out != NULL ? (PyObject *)created : array_as_scalar(created);
}

PyObject *array_unary(array_state *state, int op, PyObject *object, array *out, int dtype)
{
    return unary(state, op, object, out, dtype, false);
}

/* ---- binary */
static bool is_comparison(int op) { return op >= VME_EQUAL && op <= VME_GREATER_EQUAL; }
static int python_comparison(int op)
{
    return op == VME_LESS            ? Py_LT
           : op == VME_LESS_EQUAL    ? Py_LE
           : op == VME_EQUAL         ? Py_EQ
           : op == VME_NOT_EQUAL     ? Py_NE
           : op == VME_GREATER_EQUAL ? Py_GE
                                     : Py_GT;
}
static bool is_logical(int op) { return op == VME_LOGICAL_AND || op == VME_LOGICAL_OR || op == VME_LOGICAL_XOR; }

/* One answer for all elements of `other`. */
static PyObject *everywhere(array_state *state, bool answer, const vme_tensor *other, array *out)
{
    array *result =
        out != NULL ? (array *)Py_NewRef(out) : array_new(state, VME_BOOL, other->rank, other->shape, false);
    if (result != NULL && array_assign_python(result, answer ? Py_True : Py_False) < 0)
        Py_CLEAR(result);
    return out != NULL ? (PyObject *)result : array_as_scalar(result);
}

/* A comparison with a Python int that the other side's dtype cannot hold has the same answer for all elements. */
static PyObject *compare_out_of_bounds(array_state *state, int op, const vme_tensor *other, bool int_is_right,
                                       PyObject *number, array *out)
{
    PyObject *zero = PyLong_FromLong(0);
    int positive = zero == NULL ? -1 : PyObject_RichCompareBool(number, zero, Py_GT);
    Py_XDECREF(zero);
    if (positive < 0)
        return NULL;
    bool other_is_less = positive; /* array < number */
    if (!int_is_right)
        other_is_less = !other_is_less; /* seen from the number's side: number < array is array > number */
    bool answer = op == VME_NOT_EQUAL || ((op == VME_LESS || op == VME_LESS_EQUAL) && other_is_less)
                  || ((op == VME_GREATER || op == VME_GREATER_EQUAL) && !other_is_less);
    return everywhere(state, answer, other, out);
}

static bool int_out_of_bounds(int dtype, PyObject *number)
{
    char element[ARRAY_ELEMENT_BYTES];
    if (!dtype_is_integer(dtype) || element_from_python(dtype, number, element) == 0)
        return false;
    PyErr_Clear();
    return true;
}

/* x ** 2 and the like have cheaper operators, as in NumPy. -1: no. */
static int cheaper_power(const vme_tensor *base, const operand *exponent)
{
    double value;
    if (exponent->weak == WEAK_INT) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(exponent->object, &overflow);
        value = overflow ? 7 : (double)number;
        if (base->dtype < VME_FLOAT16 && value != 2)
            return -1;
    } else if (exponent->weak == WEAK_FLOAT && base->dtype >= VME_FLOAT16)
        value = PyFloat_AS_DOUBLE(exponent->object);
    else
        return -1;
    return base->dtype == VME_BOOL ? -1
           : value == 2            ? VME_SQUARE
           : value == 0.5          ? VME_SQRT
           : value == -1           ? VME_RECIPROCAL
           : value == 1            ? VME_POSITIVE
                                   : -1;
}

/* `take`: an operand's memory may be reused for the result if it is dying. */
static PyObject *binary(array_state *state, int op, PyObject *left, PyObject *right, array *out, int dtype, bool take)
{
    operand a, b;
    array *created = NULL;
    PyObject *answer = NULL;
    b.held = NULL;
    if (operand_get(state, left, &a) < 0)
        return NULL;
    if (operand_get(state, right, &b) < 0)
        goto done;
    int a_dtype, b_dtype;
    if (a.weak == WEAK_NONE && b.weak == WEAK_NONE) {
        a_dtype = a.t->dtype;
        b_dtype = b.t->dtype;
    } else if (a.weak == WEAK_NONE || b.weak == WEAK_NONE) {
        operand *weak = a.weak == WEAK_NONE ? &b : &a;
        const vme_tensor *other = a.weak == WEAK_NONE ? a.t : b.t;
        int met = weak->weak == WEAK_BOOL ? VME_BOOL : dtype_for_weak(other->dtype, weak->weak);
        if (op == VME_DIVIDE && dtype_is_integer(met))
            met = VME_FLOAT64; /* the dtype of the division: the number need not fit the integers */
        if (weak->weak == WEAK_INT && is_comparison(op) && int_out_of_bounds(met, weak->object)) {
            answer = compare_out_of_bounds(state, op, other, weak == &b, weak->object, out);
            goto done;
        }
        if (weak->weak == WEAK_INT && is_logical(op) && int_out_of_bounds(met, weak->object)) {
            weak->object = Py_True; /* only its truth value counts, which is true: it is not 0 */
            weak->weak = WEAK_BOOL;
            met = VME_BOOL;
        }
        if (op == VME_POWER && weak == &b && dtype < 0) {
            int cheaper = cheaper_power(other, weak);
            if (cheaper >= 0) {
                answer = unary(state, cheaper, left, out, -1, take);
                goto done;
            }
        }
        if (operand_settle(weak, met) < 0)
            goto done;
        a_dtype = a.t->dtype;
        b_dtype = b.t->dtype;
    } else {
        a_dtype = default_dtype(&a);
        b_dtype = default_dtype(&b);
        if (is_comparison(op) && a.weak == WEAK_INT && b.weak == WEAK_INT
            && (int_out_of_bounds(a_dtype, left) || int_out_of_bounds(b_dtype, right))) {
            int truth = PyObject_RichCompareBool(left, right, python_comparison(op));
            if (truth >= 0) {
                const vme_tensor single = {.rank = 0};
                answer = everywhere(state, truth, &single, out);
            }
            goto done;
        }
        if (operand_settle(&a, a_dtype) < 0 || operand_settle(&b, b_dtype) < 0)
            goto done;
    }
    vme_dtype loop, result;
    vme_status status = vme_binary_types((vme_binary_op)op, (vme_dtype)(dtype < 0 ? a_dtype : dtype),
                                         (vme_dtype)(dtype < 0 ? b_dtype : dtype), &loop, &result);
    if (status != VME_OK) {
        array_fail(state, status);
        goto done;
    }
    if (dtype >= 0
        && !(dtype_can_cast(a_dtype, (int)loop, CAST_SAME_KIND)
             && dtype_can_cast(b_dtype, (int)loop, CAST_SAME_KIND))) {
        PyErr_Format(PyExc_TypeError, "Cannot cast ufunc '%s' input from %R to %R with casting rule 'same_kind'",
                     vme_binary_name((vme_binary_op)op),
                     state->dtypes[dtype_can_cast(a_dtype, (int)loop, CAST_SAME_KIND) ? b_dtype : a_dtype],
                     state->dtypes[loop]);
        goto done;
    }
    int rank;
    int64_t broadcast[VME_RANK_MAX];
    const int64_t *shape = broadcast;
    const vme_tensor *both[2] = {a.t, b.t};
    if (b.t->rank == 0) {
        rank = a.t->rank;
        shape = a.t->shape;
    } else if (a.t->rank == 0) {
        rank = b.t->rank;
        shape = b.t->shape;
    } else if (a.t->rank == b.t->rank && same_extents(a.t->rank, a.t->shape, b.t->shape)) {
        rank = a.t->rank;
        shape = a.t->shape;
    } else if ((status = vme_shape_broadcast(2, both, &rank, broadcast)) != VME_OK) {
        array_fail(state, status);
        goto done;
    }
    if (out != NULL) {
        if (check_output(state, vme_binary_name((vme_binary_op)op), (int)result, out, rank, shape) < 0)
            goto done;
        created = (array *)Py_NewRef(out);
    } else if (take
               && ((created = taken(left, (int)result, rank, shape)) != NULL
                   || (created = taken(right, (int)result, rank, shape)) != NULL)) {
        ;
    } else {
        array *first = a.weak == WEAK_NONE ? (a.held != NULL ? a.held : (array *)left) : NULL;
        bool plain = first != NULL && (first->flags & ARRAY_CONTIGUOUS) && first->t.dtype == (int)result
                     && shape == first->t.shape;
        created =
            plain ? array_new_like(first, (int)result)
                  : result_new(state, (int)result, rank, shape, a.t->rank == rank && a.weak == WEAK_NONE ? a.t : b.t);
        if (created == NULL)
            goto done;
    }
    status = OPERATOR(state->context, vme_binary_name((vme_binary_op)op), created->size * binary_cost(op),
                      vme_binary(state->context, (vme_binary_op)op, loop, a.t, b.t, &created->t));
    if (status != VME_OK) {
        array_fail(state, status);
        Py_CLEAR(created);
    }
    answer = out != NULL ? (PyObject *)created : array_as_scalar(created);
done:
    Py_XDECREF(a.held);
    Py_XDECREF(b.held);
    return answer;
}

PyObject *array_binary(array_state *state, int op, PyObject *left, PyObject *right, array *out, int dtype)
{
    return binary(state, op, left, right, out, dtype, false);
}

static array_state *state_of_either(PyObject *a, PyObject *b)
{
    return is_array(a) ? ((array *)a)->state : ((array *)b)->state;
}

static PyObject *binary_operator(int op, PyObject *left, PyObject *right, bool take)
{
    if (is_array(left)) {
        array *a = (array *)left, *out = NULL;
        vme_dtype loop, result;
        if (is_array(right)) {
            array *b = (array *)right;
            if (a->t.dtype == b->t.dtype && a->t.rank == b->t.rank && (a->flags & b->flags & ARRAY_CONTIGUOUS)
                && same_extents(a->t.rank, a->t.shape, b->t.shape)
                && vme_binary_types((vme_binary_op)op, (vme_dtype)a->t.dtype, (vme_dtype)b->t.dtype, &loop, &result)
                       == VME_OK) {
                take = take && (int)result == a->t.dtype;
                out = take && is_dying(left)    ? (array *)Py_NewRef(left)
                      : take && is_dying(right) ? (array *)Py_NewRef(right)
                                                : array_new_like(a, (int)result);
                if (out == NULL)
                    return NULL;
                vme_status status =
                    OPERATOR(a->state->context, vme_binary_name((vme_binary_op)op), a->size * binary_cost(op),
                             vme_binary(a->state->context, (vme_binary_op)op, loop, &a->t, &b->t, &out->t));
                if (__builtin_expect(status != VME_OK, 0)) {
                    Py_DECREF(out);
                    return array_fail(a->state, status);
                }
                return array_as_scalar(out);
            }
        } else if (PyFloat_CheckExact(right) && (a->flags & ARRAY_CONTIGUOUS) && op != VME_POWER
                   && (a->t.dtype == VME_FLOAT64 || a->t.dtype == VME_FLOAT32)
                   && vme_binary_types((vme_binary_op)op, (vme_dtype)a->t.dtype, (vme_dtype)a->t.dtype, &loop, &result)
                          == VME_OK) {
            double wide = PyFloat_AS_DOUBLE(right);
            float narrow = (float)wide;
            vme_tensor scalar = {NULL,      a->t.dtype == VME_FLOAT64 ? (char *)&wide : (char *)&narrow, NULL, NULL, 0,
                                 a->t.dtype};
            out = take && (int)result == a->t.dtype && is_dying(left) ? (array *)Py_NewRef(left)
                                                                      : array_new_like(a, (int)result);
            if (out == NULL)
                return NULL;
            vme_status status =
                OPERATOR(a->state->context, vme_binary_name((vme_binary_op)op), a->size * binary_cost(op),
                         vme_binary(a->state->context, (vme_binary_op)op, loop, &a->t, &scalar, &out->t));
            if (__builtin_expect(status != VME_OK, 0)) {
                Py_DECREF(out);
                return array_fail(a->state, status);
            }
            return array_as_scalar(out);
        }
    }
    if (!array_is_operand(left) || !array_is_operand(right))
        Py_RETURN_NOTIMPLEMENTED;
    return binary(state_of_either(left, right), op, left, right, NULL, -1, take);
}

/* A scalar is immutable; the name is bound to a new one. */
static PyObject *inplace_operator(int op, PyObject *left, PyObject *right)
{
    array *a = (array *)left;
    if (a->flags & ARRAY_SCALAR || !array_is_operand(right))
        Py_RETURN_NOTIMPLEMENTED;
    if (array_require_writable(a, "output array is read-only") < 0)
        return NULL;
    return WRITING(a->state, array_binary(a->state, op, left, right, a, -1));
}

#define BINARY(name, op) \
    static PyObject *number_##name(PyObject *a, PyObject *b) { return binary_operator(op, a, b, true); } \
    static PyObject *number_inplace_##name(PyObject *a, PyObject *b) { return inplace_operator(op, a, b); }
BINARY(add, VME_ADD)
BINARY(subtract, VME_SUBTRACT)
static PyObject *number_multiply(PyObject *a, PyObject *b)
{
    /* a scalar leaves a list or tuple to Python, which repeats it or says that the scalar is no integer */
    PyObject *scalar = is_array(a) ? a : b, *other = is_array(a) ? b : a;
    if (((array *)scalar)->flags & ARRAY_SCALAR && (PyList_Check(other) || PyTuple_Check(other)))
        Py_RETURN_NOTIMPLEMENTED;
    return binary_operator(VME_MULTIPLY, a, b, true);
}
static PyObject *number_inplace_multiply(PyObject *a, PyObject *b) { return inplace_operator(VME_MULTIPLY, a, b); }
BINARY(true_divide, VME_DIVIDE)
BINARY(floor_divide, VME_FLOOR_DIVIDE)
BINARY(remainder, VME_REMAINDER)
BINARY(and, VME_BITWISE_AND)
BINARY(or, VME_BITWISE_OR)
BINARY(xor, VME_BITWISE_XOR)
BINARY(lshift, VME_LEFT_SHIFT)
BINARY(rshift, VME_RIGHT_SHIFT)

static PyObject *number_power(PyObject *a, PyObject *b, PyObject *modulus)
{
    if (modulus != Py_None)
        Py_RETURN_NOTIMPLEMENTED;
    return binary_operator(VME_POWER, a, b, true);
}
static PyObject *number_inplace_power(PyObject *a, PyObject *b, PyObject *modulus)
{
    return inplace_operator(VME_POWER, a, b);
}

static PyObject *number_divmod(PyObject *a, PyObject *b)
{
    PyObject *quotient = binary_operator(VME_FLOOR_DIVIDE, a, b, false); /* no reuse: both operands are needed again */
    if (quotient == NULL || quotient == Py_NotImplemented)
        return quotient;
    PyObject *rest = binary_operator(VME_REMAINDER, a, b, true);
    PyObject *both = rest == NULL ? NULL : PyTuple_Pack(2, quotient, rest);
    Py_DECREF(quotient);
    Py_XDECREF(rest);
    return both;
}

#define UNARY(name, op) \
    static PyObject *number_##name(PyObject *a) { return unary(((array *)a)->state, op, a, NULL, -1, true); }
UNARY(negative, VME_NEGATIVE)
UNARY(positive, VME_POSITIVE)
UNARY(absolute, VME_ABSOLUTE)
UNARY(invert, VME_INVERT)

static PyObject *number_matmul(PyObject *a, PyObject *b)
{
    if (!array_is_operand(a) || !array_is_operand(b))
        Py_RETURN_NOTIMPLEMENTED;
    return array_matrix_product(state_of_either(a, b), a, b, NULL);
}
static PyObject *number_inplace_matmul(PyObject *a, PyObject *b)
{
    if (!array_is_operand(b))
        Py_RETURN_NOTIMPLEMENTED;
    array *self = (array *)a;
    if (array_require_writable(self, "output array is read-only") < 0)
        return NULL;
    return WRITING(self->state, array_matrix_product(self->state, a, b, self));
}

#define SLOT(name, function) \
    {Py_nb_##name, number_##function}, { Py_nb_inplace_##name, number_inplace_##function }
PyType_Slot array_number_slots[] = {
    SLOT(add, add),
    SLOT(subtract, subtract),
    SLOT(multiply, multiply),
    SLOT(true_divide, true_divide),
    SLOT(floor_divide, floor_divide),
    SLOT(remainder, remainder),
    SLOT(power, power),
    SLOT(and, and),
    SLOT(or, or),
    SLOT(xor, xor),
    SLOT(lshift, lshift),
    SLOT(rshift, rshift),
    SLOT(matrix_multiply, matmul),
    {Py_nb_divmod, number_divmod},
    {Py_nb_negative, number_negative},
    {Py_nb_positive, number_positive},
    {Py_nb_absolute, number_absolute},
    {Py_nb_invert, number_invert},
    {0, NULL},
};

PyObject *array_richcompare(PyObject *a, PyObject *b, int comparison)
{
    static const char ops[] = {[Py_LT] = VME_LESS,      [Py_LE] = VME_LESS_EQUAL, [Py_EQ] = VME_EQUAL,
                               [Py_NE] = VME_NOT_EQUAL, [Py_GT] = VME_GREATER,    [Py_GE] = VME_GREATER_EQUAL};
    if ((comparison == Py_EQ || comparison == Py_NE)
        && (b == Py_None || PyUnicode_CheckExact(b))) /* no number equals None or a string */
        return everywhere(((array *)a)->state, comparison == Py_NE, &((array *)a)->t, NULL);
    return binary_operator(ops[comparison], a, b, false);
}

/* ---- ufuncs: one object for each elementwise operator */
typedef struct ufunc {
    PyObject_HEAD
    array_state *state;
    vectorcallfunc call;
    int op;
    bool binary;
} ufunc;

static const char *ufunc_name(const ufunc *self)
{
    return self->binary ? vme_binary_name((vme_binary_op)self->op) : vme_unary_name((vme_unary_op)self->op);
}

/* An array for results selected by where=: the mask's shape takes part in broadcasting. */
static array *masked_result(const array *mask, array *computed)
{
    const vme_tensor *both[2] = {&computed->t, &mask->t};
    int64_t shape[VME_RANK_MAX];
    int rank;
    if (array_check_status(computed->state, vme_shape_broadcast(2, both, &rank, shape)) < 0)
        return NULL;
    if (rank == computed->t.rank && same_extents(rank, shape, computed->t.shape))
        return array_new_like(computed, computed->t.dtype);
    return array_new(computed->state, computed->t.dtype, rank, shape, false);
}

static vme_status types_of(const ufunc *self, vme_dtype operands, vme_dtype *loop, vme_dtype *result)
{
    return self->binary ? vme_binary_types((vme_binary_op)self->op, operands, operands, loop, result)
                        : vme_unary_types((vme_unary_op)self->op, operands, loop, result);
}

/* The meaning of dtype=: the dtype of the operator's result. -1: no restriction, because there is only this one. -2:
 * there is no such result. */
static int ufunc_dtype(const ufunc *self, int dtype)
{
    vme_dtype loop, result;
    if (dtype == VME_BOOL && types_of(self, VME_FLOAT64, &loop, &result) == VME_OK && result == VME_BOOL)
        return -1;
    if (types_of(self, (vme_dtype)dtype, &loop, &result) != VME_OK || (int)result == dtype)
        return dtype; /* a failure here occurs again in the call, with its own message */
    PyErr_Format(PyExc_TypeError, "No loop matching the specified signature and casting was found for ufunc %s",
                 ufunc_name(self));
    return -2;
}

static bool is_nested_list(PyObject *object) { return PyList_Check(object) || PyTuple_Check(object); }

/* -1 with TypeError if an operand does not cast to the loop's dtype by a rule that is stricter than same_kind. */
static int check_inputs(const ufunc *self, PyObject *const *inputs, int casting, PyObject *rule, int dtype)
{
    array_state *state = self->state;
    int own[2] = {0, 0}, weak[2] = {WEAK_NONE, WEAK_NONE}, count = 1 + self->binary;
    for (int i = 0; i < count; i++) {
        array *operand_array = array_from_any(state, inputs[i], -1);
        if (operand_array == NULL)
            return -1;
        weak[i] = element_weak(inputs[i]);
        own[i] = operand_array->t.dtype;
        Py_DECREF(operand_array);
    }
    if (self->binary && (weak[0] == WEAK_NONE) != (weak[1] == WEAK_NONE)) {
        int number = weak[0] == WEAK_NONE;
        own[number] = dtype_for_weak(own[!number], weak[number]);
    }
    vme_dtype loop, result;
    vme_status status =
        self->binary ? vme_binary_types((vme_binary_op)self->op, (vme_dtype)(dtype < 0 ? own[0] : dtype),
                                        (vme_dtype)(dtype < 0 ? own[1] : dtype), &loop, &result)
                     : vme_unary_types((vme_unary_op)self->op, (vme_dtype)(dtype < 0 ? own[0] : dtype), &loop, &result);
    if (status != VME_OK)
        return 0; /* the call fails with its own message */
    for (int i = 0; i < count; i++)
        if (!dtype_can_cast(own[i], (int)loop, casting)) {
            if (self->binary)
                PyErr_Format(PyExc_TypeError, "Cannot cast ufunc '%s' input %d from %R to %R with casting rule %R",
                             ufunc_name(self), i, state->dtypes[own[i]], state->dtypes[loop], rule);
            else
                PyErr_Format(PyExc_TypeError, "Cannot cast ufunc '%s' input from %R to %R with casting rule %R",
                             ufunc_name(self), state->dtypes[own[i]], state->dtypes[loop], rule);
            return -1;
        }
    return 0;
}

static PyObject *ufunc_with_arguments(ufunc *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    static const char *const binary_names[] = {"x1", "x2", "out", "where", "casting", "order", "dtype", "subok", NULL};
    static const char *const unary_names[] = {"x", "out", "where", "casting", "order", "dtype", "subok", NULL};
    PyObject *all[8], **values = all + self->binary; /* values[0..] has the layout of a unary ufunc's arguments, from
                                                      * its `x` on */
    array *out;
    int inputs = 1 + self->binary;
    bool as_array; /* out=...: the result is an array, never a scalar */
    if (array_arguments(ufunc_name(self), args, count, keywords, self->binary ? binary_names : unary_names, inputs + 1,
                        inputs, all)
        < 0)
        return NULL;
    as_array = values[1] == Py_Ellipsis;
    if (as_array)
        values[1] = NULL;
    if (array_argument_out(values[1], &out) < 0)
        return NULL;
    int dtype = array_argument_dtype(self->state, values[5], -1);
    if ((dtype < 0 && PyErr_Occurred()) || (dtype >= 0 && (dtype = ufunc_dtype(self, dtype)) == -2))
        return NULL;
    int casting = dtype_casting(values[3], CAST_SAME_KIND);
    if (casting < 0)
        return NULL;
    if (casting < CAST_SAME_KIND && check_inputs(self, all, casting, values[3], dtype) < 0)
        return NULL;
    bool masked = values[2] != NULL && values[2] != Py_True, cast = casting != CAST_SAME_KIND && out != NULL;
    array *target = masked || cast ? NULL : out;
    PyObject *result = self->binary ? array_binary(self->state, self->op, all[0], all[1], target, dtype)
                                    : array_unary(self->state, self->op, all[0], target, dtype);
    if (result != NULL && out != NULL && target == NULL) {
        const vme_tensor *created = &((array *)result)->t;
        if (!dtype_can_cast(created->dtype, out->t.dtype, casting)) {
            if (cast)
                PyErr_Format(PyExc_TypeError, "Cannot cast ufunc '%s' output from %R to %R with casting rule %R",
                             ufunc_name(self), self->state->dtypes[created->dtype], self->state->dtypes[out->t.dtype],
                             values[3]);
            else
                check_output(self->state, ufunc_name(self), created->dtype, out, created->rank, created->shape);
            Py_CLEAR(result);
        } else if (check_output_shape(out, created->rank, created->shape) < 0)
            Py_CLEAR(result);
    }
    if (result != NULL && as_array)
        ((array *)result)->flags &= ~(ARRAY_SCALAR | ARRAY_READ_ONLY);
    if (result == NULL || (!masked && !cast))
        return result;
    if (!masked) {
        bool written =
            array_require_writable(out, "output array is read-only") == 0 && array_assign(out, (array *)result) == 0;
        Py_SETREF(result, written ? Py_NewRef(out) : NULL);
        return result;
    }
    /* where=: writes only the selected elements */
    array *mask = array_from_any(self->state, values[2], is_nested_list(values[2]) ? VME_BOOL : -1),
          *computed = (array *)result, *into = NULL;
    if (mask != NULL && mask->t.dtype != VME_BOOL)
        PyErr_Format(PyExc_TypeError, "Cannot cast array data from %R to dtype('bool') according to the rule 'safe'",
                     self->state->dtypes[mask->t.dtype]);
    else if (mask != NULL) {
        into = out != NULL ? (array *)Py_NewRef(out) : masked_result(mask, computed);
        if (into != NULL
            && array_check_status(self->state,
                                  OPERATOR(self->state->context, "where", into->size,
                                           vme_where(self->state->context, &mask->t, &computed->t, &into->t, &into->t)))
                   < 0)
            Py_CLEAR(into);
    }
    Py_XDECREF(mask);
    Py_DECREF(computed);
    return (PyObject *)into;
}

static PyObject *ufunc_call(PyObject *object, PyObject *const *args, size_t flags, PyObject *keywords)
{
    ufunc *self = (ufunc *)object;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (ARRAY_TRACED(self->state, args, count, keywords))
        return array_call_traced(self->state, ufunc_name(self), args, count, keywords);
    if (self->binary && count == 2 && keywords == NULL) {
        if ((is_array(args[0]) || is_array(args[1])) && array_is_operand(args[0]) && array_is_operand(args[1]))
            return binary_operator(self->op, args[0], args[1], !is_comparison(self->op));
        return array_binary(self->state, self->op, args[0], args[1], NULL, -1);
    }
    if (!self->binary && count == 1 && keywords == NULL)
        return unary(self->state, self->op, args[0], NULL, -1, true);
    return WRITING(self->state, ufunc_with_arguments(self, args, count, keywords));
}

static PyObject *ufunc_get_name(PyObject *self, void *closure)
{
    return PyUnicode_FromString(ufunc_name((ufunc *)self));
}
static PyObject *ufunc_repr(PyObject *self) { return PyUnicode_FromFormat("<ufunc '%s'>", ufunc_name((ufunc *)self)); }
static PyObject *ufunc_nin(PyObject *self, void *closure) { return PyLong_FromLong(1 + ((ufunc *)self)->binary); }
static PyObject *ufunc_nout(PyObject *self, void *closure) { return PyLong_FromLong(1); }

static PyObject *ufunc_nargs(PyObject *self, void *closure) { return PyLong_FromLong(2 + ((ufunc *)self)->binary); }
static PyObject *ufunc_signature(PyObject *self, void *closure) { Py_RETURN_NONE; }

/* The result of reducing no elements. */
static PyObject *ufunc_identity(PyObject *self, void *closure)
{
    const ufunc *of = (ufunc *)self;
    if (of->binary)
        switch (of->op) {
        case VME_ADD:
        case VME_BITWISE_OR:
        case VME_BITWISE_XOR:
        case VME_HYPOT:
        case VME_GCD: return PyLong_FromLong(0);
        case VME_MULTIPLY: return PyLong_FromLong(1);
        case VME_BITWISE_AND: return PyLong_FromLong(-1);
        case VME_LOGICAL_AND: Py_RETURN_TRUE;
        case VME_LOGICAL_OR:
        case VME_LOGICAL_XOR: Py_RETURN_FALSE;
        case VME_LOGADDEXP: return PyFloat_FromDouble(-INFINITY);
        }
    Py_RETURN_NONE;
}

static PyGetSetDef ufunc_attributes[] = {
    {"__name__", ufunc_get_name, NULL, NULL, NULL},
    {"nin", ufunc_nin, NULL, "Number of inputs.", NULL},
    {"nout", ufunc_nout, NULL, "1.", NULL},
    {"nargs", ufunc_nargs, NULL, "Number of inputs and outputs.", NULL},
    {"identity", ufunc_identity, NULL, "What a reduction of nothing gives; None: an error.", NULL},
    {"signature", ufunc_signature, NULL, "None: works element by element.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef ufunc_members[] = {
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(ufunc, call), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* reduce, accumulate, outer and at are implemented in Python, by the operator's name */
#define UFUNC_METHOD(name) \
    static PyObject *ufunc_##name(PyObject *self, ARRAY_VECTORCALL) \
    { \
        return array_delegate("vmhost.engine.numpy._ufuncs", #name, self, args, count, keywords); \
    }
UFUNC_METHOD(reduce)
UFUNC_METHOD(accumulate)
UFUNC_METHOD(outer)
UFUNC_METHOD(reduceat)
static PyObject *ufunc_at(PyObject *self, ARRAY_VECTORCALL)
{
    const ufunc *of = (const ufunc *)self;
    if (of->binary && of->op == VME_ADD && count == 3 && keywords == NULL && is_array(args[0]) && is_array(args[1])
        && args[2] != Py_None)
        return array_scatter_add(of->state, args);
    return array_delegate("vmhost.engine.numpy._ufuncs", "at", self, args, count, keywords);
}
#define UFUNC_ENTRY(name) {#name, (PyCFunction)(void (*)(void))ufunc_##name, METH_FASTCALL | METH_KEYWORDS, NULL}
static PyMethodDef ufunc_methods[] = {
    UFUNC_ENTRY(reduce),   UFUNC_ENTRY(accumulate), UFUNC_ENTRY(outer),
    UFUNC_ENTRY(reduceat), UFUNC_ENTRY(at),         {NULL, NULL, 0, NULL},
};

static int ufunc_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void ufunc_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot ufunc_slots[] = {
    {Py_tp_dealloc, ufunc_dealloc},  {Py_tp_traverse, ufunc_traverse},
    {Py_tp_call, PyVectorcall_Call}, {Py_tp_getset, ufunc_attributes},
    {Py_tp_members, ufunc_members},  {Py_tp_methods, ufunc_methods},
    {Py_tp_repr, ufunc_repr},        {0, NULL},
};
static PyType_Spec ufunc_spec = {
    "vmhost.engine.numpy.ufunc",
    sizeof(ufunc),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_VECTORCALL
        | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    ufunc_slots,
};

static int ufunc_add(array_state *state, PyObject *module, bool binary, int op)
{
    ufunc *self = (ufunc *)state->ufunc_type->tp_alloc(state->ufunc_type, 0);
    if (self == NULL)
        return -1;
    self->state = state;
    self->call = ufunc_call;
    self->op = op;
    self->binary = binary;
    int result = PyModule_AddObjectRef(module, ufunc_name(self), (PyObject *)self);
    Py_DECREF(self);
    return result;
}

int array_ufuncs_init(array_state *state, PyObject *module)
{
    state->ufunc_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &ufunc_spec, NULL);
    if (state->ufunc_type == NULL || PyModule_AddObjectRef(module, "ufunc", (PyObject *)state->ufunc_type) < 0)
        return -1;
    for (int op = 0; op < VME_UNARY_COUNT; op++)
        if (ufunc_add(state, module, false, op) < 0)
            return -1;
    for (int op = 0; op < VME_BINARY_COUNT; op++)
        if (ufunc_add(state, module, true, op) < 0)
            return -1;
    return 0;
}

static PyObject *conjugate(PyObject *self, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"out", NULL};
    PyObject *value;
    array *of = (array *)self, *out;
    if (array_arguments("conjugate", args, count, keywords, names, 1, 0, &value) < 0
        || array_argument_out(value, &out) < 0)
        return NULL;
    if (out == NULL && !dtype_is_complex(of->t.dtype))
        return Py_NewRef(self); /* as NumPy's method does; the function makes a new array */
    return WRITING(of->state, array_unary(of->state, VME_CONJUGATE, self, out, -1));
}
PyObject *array_method_conjugate(PyObject *self, ARRAY_VECTORCALL) { return conjugate(self, args, count, keywords); }
PyObject *array_method_conj(PyObject *self, ARRAY_VECTORCALL) { return conjugate(self, args, count, keywords); }

/* ---- where and clip */
PyObject *array_function_where(PyObject *module, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"condition", "x", "y", NULL};
    PyObject *values[3];
    array_state *state = array_state_of(module);
    operand a, b;
    array *mask = NULL, *result = NULL;
    if (count == 0 && keywords != NULL)
        return PyErr_Format(PyExc_TypeError, "where() takes its condition by position");
    if (array_arguments("where", args, count, keywords, names, 3, 1, values) < 0)
        return NULL;
    if (count == 1 && keywords != NULL && PyTuple_GET_SIZE(keywords) != 0)
        return PyErr_Format(PyExc_TypeError, "where() takes no keyword arguments");
    if ((values[1] == NULL) != (values[2] == NULL))
        return PyErr_Format(PyExc_ValueError, "either both or neither of x and y should be given");
    if (values[1] == NULL)
        return array_function_nonzero(module, values, 1, NULL);
    a.held = b.held = NULL;
    if (operand_get(state, values[1], &a) < 0 || operand_get(state, values[2], &b) < 0)
        goto done;
    mask = array_from_any(state, values[0], VME_BOOL);
    if (mask == NULL)
        goto done;
    int a_dtype = a.weak == WEAK_NONE ? a.t->dtype : default_dtype(&a),
        b_dtype = b.weak == WEAK_NONE ? b.t->dtype : default_dtype(&b);
    if (a.weak != WEAK_NONE && b.weak == WEAK_NONE)
        a_dtype = a.weak == WEAK_BOOL ? VME_BOOL : dtype_for_weak(b_dtype, a.weak);
    else if (b.weak != WEAK_NONE && a.weak == WEAK_NONE)
        b_dtype = b.weak == WEAK_BOOL ? VME_BOOL : dtype_for_weak(a_dtype, b.weak);
    if ((a.weak != WEAK_NONE && operand_settle(&a, a_dtype) < 0)
        || (b.weak != WEAK_NONE && operand_settle(&b, b_dtype) < 0))
        goto done;
    const vme_tensor *all[3] = {&mask->t, a.t, b.t};
    int rank;
    int64_t shape[VME_RANK_MAX];
    if (array_check_status(state, vme_shape_broadcast(3, all, &rank, shape)) < 0)
        goto done;
    result = array_new(state, (int)vme_dtype_promote((vme_dtype)a_dtype, (vme_dtype)b_dtype), rank, shape, false);
    if (result != NULL
        && array_check_status(state, OPERATOR(state->context, "where", result->size * 2,
                                              vme_where(state->context, &mask->t, a.t, b.t, &result->t)))
               < 0)
        Py_CLEAR(result);
done:
    Py_XDECREF(a.held);
    Py_XDECREF(b.held);
    Py_XDECREF(mask);
    return (PyObject *)result;
}

enum { CLIP_BLOCK = 1 << 14 }; /* bytes, few enough to stay in cache until they are read again */

static vme_status clip_blocks(vme_context *context, const array *in, const operand *low, const operand *high,
                              const array *out)
{
    int64_t step = vme_dtype_size((vme_dtype)in->t.dtype), block = CLIP_BLOCK / step, count;
    vme_dtype loop = (vme_dtype)in->t.dtype;
    vme_status status = VME_OK;
    for (int64_t begin = 0; begin < in->size && status == VME_OK; begin += block) {
        count = in->size - begin < block ? in->size - begin : block;
        const vme_tensor from = {in->t.buffer, in->t.data + begin * step, &count, &step, 1, in->t.dtype};
        const vme_tensor to = {out->t.buffer, out->t.data + begin * step, &count, &step, 1, in->t.dtype};
        status = vme_binary(context, VME_MAXIMUM, loop, &from, low->t, &to);
        if (status == VME_OK)
            status = vme_binary(context, VME_MINIMUM, loop, &to, high->t, &to);
    }
    return status;
}

/* Clips a large array by two Python numbers that its dtype holds, both in one pass through memory. NULL without an
 * error: not applicable. */
static PyObject *clip_in_blocks(array_state *state, array *self, PyObject *low, PyObject *high)
{
    bool floats = self->t.dtype >= VME_FLOAT16;
    operand bounds[2];
    PyObject *const given[2] = {low, high};
    if (!(self->flags & ARRAY_CONTIGUOUS) || self->size * vme_dtype_size((vme_dtype)self->t.dtype) <= CLIP_BLOCK
        || self->t.dtype == VME_BOOL)
        return NULL;
    for (int i = 0; i < 2; i++) {
        if (!PyLong_CheckExact(given[i]) && !(floats && PyFloat_CheckExact(given[i])))
            return NULL;
        bounds[i].object = given[i];
        if (operand_settle(&bounds[i], self->t.dtype) < 0)
            return NULL;
    }
    array *result = array_new_like(self, self->t.dtype);
    if (result != NULL
        && array_check_status(state, OPERATOR(state->context, "clip", result->size * 2,
                                              clip_blocks(state->context, self, &bounds[0], &bounds[1], result)))
               < 0)
        Py_CLEAR(result);
    return (PyObject *)result;
}

/* Whether a bound is an integer of Python that no element of the integer dtype passes: it need not fit the dtype. */
static bool bounds_nothing(int dtype, PyObject *bound, bool above)
{
    if (!PyLong_CheckExact(bound) || !dtype_is_integer(dtype))
        return false;
    int overflow, bits = 8 * vme_dtype_size((vme_dtype)dtype);
    bool is_signed = dtype <= VME_INT64;
    long long value = PyLong_AsLongLongAndOverflow(bound, &overflow);
    if (!above)
        return overflow < 0 || (overflow == 0 && value <= (is_signed ? INT64_MIN >> (64 - bits) : 0));
    if (overflow > 0 && !is_signed && bits == 64) {
        unsigned long long wide = PyLong_AsUnsignedLongLong(bound);
        bool beyond = wide == UINT64_MAX; /* or an error: larger than any */
        PyErr_Clear();
        return beyond;
    }
    return overflow > 0
           || (overflow == 0 && value >= 0 && (uint64_t)value >= UINT64_MAX >> (64 - bits) >> (is_signed ? 1 : 0));
}

static const char *const clip_names[] = {"a", "a_min", "a_max", "out", "min", "max", "dtype", NULL};
static PyObject *clip(array_state *state, array *self, PyObject **values)
{
    if ((values[1] != NULL || values[2] != NULL) && (values[4] != NULL || values[5] != NULL))
        return PyErr_Format(PyExc_ValueError, "Passing `min` or `max` keyword argument when `a_min` and `a_max` are "
                                              "provided is forbidden.");
    PyObject *low = array_given(values[1]) ? values[1] : values[4],
             *high = array_given(values[2]) ? values[2] : values[5];
    array *out;
    int dtype = array_argument_dtype(state, values[6], -1);
    if ((dtype < 0 && PyErr_Occurred()) || array_argument_out(values[3], &out) < 0)
        return NULL;
    if (array_given(low) && bounds_nothing(self->t.dtype, low, false))
        low = NULL;
    if (array_given(high) && bounds_nothing(self->t.dtype, high, true))
        high = NULL;
    PyObject *result = out == NULL && dtype < 0 && array_given(low) && array_given(high)
                           ? clip_in_blocks(state, self, low, high)
                           : NULL;
    if (result != NULL || PyErr_Occurred())
        return result;
    result = Py_NewRef(self);
    if (array_given(low))
        Py_SETREF(result, array_binary(state, VME_MAXIMUM, result, low, array_given(high) ? NULL : out, dtype));
    if (result != NULL && array_given(high)) {
        /* Python numbers keep the dtype and the shape: the array made above may be overwritten */
        array *created = (array *)result;
        if (out == NULL && created != self
            && (PyFloat_CheckExact(high) ? created->t.dtype >= VME_FLOAT16
                                         : PyLong_CheckExact(high) && created->t.dtype != VME_BOOL))
            out = created;
        Py_SETREF(result, array_binary(state, VME_MINIMUM, result, high, out, dtype));
    }
    if (result == (PyObject *)self) {
        Py_DECREF(result);
        return out != NULL ? array_unary(state, VME_POSITIVE, (PyObject *)self, out, dtype)
                           : (PyObject *)array_cast(self, dtype < 0 ? self->t.dtype : dtype);
    }
    return result;
}
static PyObject *clip_function(array_state *state, array *self, PyObject **values)
{
    if ((values[1] == NULL) != (values[2] == NULL))
        return PyErr_Format(PyExc_TypeError, "clip() missing 1 required positional argument: '%s'",
                            clip_names[values[1] == NULL ? 1 : 2]);
    return clip(state, self, values);
}
ARRAY_FUNCTION_OF(clip, clip_names, 4, 1, 7, clip_function)
static const char *const clip_method_names[] = {"self", "min", "max", "out", NULL};
static PyObject *clip_method(array_state *state, array *self, PyObject **values)
{
    values[4] = values[5] = values[6] = NULL;
    return clip(state, self, values);
}
ARRAY_METHOD_OF(clip, clip_method_names, 4, 1, 7, clip_method)

/* ---- matrix products */
static int matmul_mismatch(int64_t first, int64_t second)
{
    PyErr_Format(PyExc_ValueError,
                 "matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature "
                 "(n?,k),(k,m?)->(n?,m?) (size %lld is different from %lld)",
                 (long long)second, (long long)first);
    return -1;
}

PyObject *array_matrix_product(array_state *state, PyObject *left, PyObject *right, array *out)
{
    array *a = array_from_any(state, left, -1), *b = a == NULL ? NULL : array_from_any(state, right, -1),
          *created = NULL, *view = NULL;
    if (b == NULL)
        goto done;
    if (a->t.rank == 0 || b->t.rank == 0) {
        PyErr_Format(PyExc_ValueError,
                     "matmul: Input operand %d does not have enough dimensions (has 0, gufunc core with signature "
                     "(n?,k),(k,m?)->(n?,m?) requires 1)",
                     a->t.rank == 0 ? 0 : 1);
        goto done;
    }
    int dtype = (int)vme_dtype_promote((vme_dtype)a->t.dtype, (vme_dtype)b->t.dtype);
    if (a->t.dtype != dtype)
        Py_SETREF(a, array_cast(a, dtype));
    if (a != NULL && b->t.dtype != dtype)
        Py_SETREF(b, array_cast(b, dtype));
    if (a == NULL || b == NULL)
        goto done;
    /* vectors become matrices with an extra dimension, which the result drops again */
    bool row = a->t.rank == 1, column = b->t.rank == 1;
    int64_t a_shape[2] = {1, a->t.shape[a->t.rank - 1]}, a_strides[2] = {0, a->t.strides[a->t.rank - 1]};
    int64_t b_shape[2] = {b->t.shape[0], 1}, b_strides[2] = {b->t.strides[0], 0};
    vme_tensor at = a->t, bt = b->t;
    if (row) {
        at.rank = 2;
        at.shape = a_shape;
        at.strides = a_strides;
    }
    if (column) {
        bt.rank = 2;
        bt.shape = b_shape;
        bt.strides = b_strides;
    }
    int64_t k = at.shape[at.rank - 1], rows = at.shape[at.rank - 2], columns = bt.shape[bt.rank - 1];
    if (k != bt.shape[bt.rank - 2]) {
        matmul_mismatch(k, bt.shape[bt.rank - 2]);
        goto done;
    }
    vme_tensor a_lead = at, b_lead = bt;
    a_lead.rank -= 2;
    b_lead.rank -= 2;
    const vme_tensor *leads[2] = {&a_lead, &b_lead};
    int64_t shape[VME_RANK_MAX];
    int lead;
    if (array_check_status(state, vme_shape_broadcast(2, leads, &lead, shape)) < 0)
        goto done;
    int rank = lead;
    if (!row)
        shape[rank++] = rows;
    if (!column)
        shape[rank++] = columns;
    if (rank > VME_RANK_MAX) {
        PyErr_Format(PyExc_ValueError, "maximum supported dimension for an ndarray is currently %d, found %d",
                     VME_RANK_MAX, rank);
        goto done;
    }
    if (out != NULL && (out->t.rank != rank || !same_extents(rank, out->t.shape, shape))) {
        PyErr_SetString(PyExc_ValueError, "matmul: the output's shape is not the result's");
        goto done;
    }
    if (out != NULL && !dtype_can_cast(dtype, out->t.dtype, CAST_SAME_KIND)) {
        PyErr_Format(PyExc_TypeError, "Cannot cast ufunc 'matmul' output from %R to %R with casting rule 'same_kind'",
                     state->dtypes[dtype], state->dtypes[out->t.dtype]);
        goto done;
    }
    created = array_new(state, dtype, rank, shape, false);
    if (created == NULL)
        goto done;
    /* the engine's output always has both matrix dimensions */
    int64_t full[VME_RANK_MAX + 2], steps[VME_RANK_MAX + 2], step = vme_dtype_size((vme_dtype)dtype);
    for (int i = 0; i < lead; i++)
        full[i] = shape[i];
    full[lead] = row ? 1 : rows;
    full[lead + 1] = column ? 1 : columns;
    for (int i = lead + 1; i >= 0; i--) {
        steps[i] = step;
        step *= full[i] == 0 ? 1 : full[i];
    }
    vme_tensor result = {created->t.buffer, created->t.data, full, steps, lead + 2, dtype};
    if (array_check_status(state, OPERATOR(state->context, "matmul", created->size * k / 8,
                                           vme_matmul(state->context, &at, &bt, &result)))
        < 0)
        Py_CLEAR(created);
    else if (out != NULL) {
        if (array_assign(out, created) < 0)
            Py_CLEAR(created);
        else
            Py_SETREF(created, (array *)Py_NewRef(out));
    }
done:
    Py_XDECREF(a);
    Py_XDECREF(b);
    Py_XDECREF(view);
    return out != NULL ? (PyObject *)created : array_as_scalar(created);
}

PyObject *array_function_matmul(PyObject *module, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"x1", "x2", "out", NULL};
    PyObject *values[3];
    array *out;
    for (Py_ssize_t i = 0, given = keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords); i < given && count >= 2; i++) {
        if (!PyUnicode_EqualToUTF8(PyTuple_GET_ITEM(keywords, i), "out")) /* the rarely used arguments of a ufunc */
            return array_delegate("vmhost.engine.numpy._products", "matmul", args[0], args + 1, count - 1, keywords);
    }
    if (array_arguments("matmul", args, count, keywords, names, 3, 2, values) < 0
        || array_argument_out(values[2], &out) < 0)
        return NULL;
    return WRITING(array_state_of(module), array_matrix_product(array_state_of(module), values[0], values[1], out));
}

/* dot: scalars multiply, matrices and vectors use matmul; for higher ranks the sum is over a's last and b's
 * second-to-last dimension. */
static const char *const dot_names[] = {"a", "b", "out", NULL};
static PyObject *dot(array_state *state, array *self, PyObject **values)
{
    array *out, *other = array_from_any(state, values[1], -1);
    PyObject *result = NULL;
    if (other == NULL)
        return NULL;
    if (array_argument_out(values[2], &out) < 0) {
        Py_DECREF(other);
        return NULL;
    }
    int ranks[2] = {self->t.rank, other->t.rank};
    static const char unfit[] =
        "output array is not acceptable (must have the right datatype, number of dimensions, and "
        "be a C-Array)";
    if (out != NULL
        && (!(out->flags & ARRAY_CONTIGUOUS)
            || out->t.dtype != (int)vme_dtype_promote((vme_dtype)self->t.dtype, (vme_dtype)other->t.dtype))) {
        PyErr_SetString(PyExc_ValueError, unfit);
    } else if (ranks[0] == 0 || ranks[1] == 0) {
        result = array_binary(state, VME_MULTIPLY, (PyObject *)self, (PyObject *)other, out, -1);
    } else if (self->t.shape[ranks[0] - 1] != other->t.shape[ranks[1] == 1 ? 0 : ranks[1] - 2]) {
        PyObject *own = array_shape_text(ranks[0], self->t.shape), *others = array_shape_text(ranks[1], other->t.shape);
        int dims[2] = {ranks[0] - 1, ranks[1] == 1 ? 0 : ranks[1] - 2};
        if (own != NULL && others != NULL)
            PyErr_Format(PyExc_ValueError, "shapes %U and %U not aligned: %lld (dim %d) != %lld (dim %d)", own, others,
                         (long long)self->t.shape[dims[0]], dims[0], (long long)other->t.shape[dims[1]], dims[1]);
        Py_XDECREF(own);
        Py_XDECREF(others);
    } else if (ranks[1] <= 2) {
        result = array_matrix_product(state, (PyObject *)self, (PyObject *)other, out);
    } else {
        PyObject *module = PyImport_ImportModule("vmhost.engine.numpy._products");
        result = module == NULL ? NULL : PyObject_CallMethod(module, "dot_of_high_rank", "OO", self, other);
        Py_XDECREF(module);
        if (result != NULL && out != NULL) {
            const array *found = (array *)result;
            int stored = -1;
            if (found->t.rank != out->t.rank || !same_extents(out->t.rank, found->t.shape, out->t.shape))
                PyErr_SetString(PyExc_ValueError, unfit);
            else
                stored = array_assign(out, found);
            Py_SETREF(result, stored < 0 ? NULL : Py_NewRef(out));
        }
    }
    Py_DECREF(other);
    return result;
}
ARRAY_BOTH_OF(dot, dot_names, 3, 2, 3, dot)

/* ---- promotion functions */
PyObject *array_function_promote_types(PyObject *module, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"type1", "type2", NULL};
    PyObject *values[2];
    array_state *state = array_state_of(module);
    int a, b;
    if (array_arguments("promote_types", args, count, keywords, names, 2, 2, values) < 0
        || (a = array_dtype_from(state, values[0])) < 0 || (b = array_dtype_from(state, values[1])) < 0)
        return NULL;
    return Py_NewRef(state->dtypes[vme_dtype_promote((vme_dtype)a, (vme_dtype)b)]);
}

PyObject *array_function_result_type(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    int weakest = WEAK_NONE, weak_dtype = -1;
    uint32_t met = 0;
    if (count == 0)
        return PyErr_Format(PyExc_ValueError, "at least one array or dtype is required");
    for (Py_ssize_t i = 0; i < count; i++) {
        int own, weak = element_weak(args[i]);
        if (weak != WEAK_NONE) {
            operand of = {.object = args[i], .weak = weak};
            own = default_dtype(&of);
            weak_dtype = weak_dtype < 0 ? own : (int)vme_dtype_promote((vme_dtype)weak_dtype, (vme_dtype)own);
            weakest = weak > weakest ? weak : weakest;
            continue;
        }
        if (is_array(args[i]))
            own = ((array *)args[i])->t.dtype;
        else if ((own = array_dtype_from(state, args[i])) < 0)
            return NULL;
        met |= UINT32_C(1) << own;
    }
    /* several Python numbers are of the default dtype of their kind; the value of a single one chooses */
    int dtype = met != 0                           ? dtype_for_weak(dtype_promote_all(met), weakest)
                : count > 1 && weakest == WEAK_INT ? VME_INT64
                                                   : weak_dtype;
    return Py_NewRef(state->dtypes[dtype]);
}

PyObject *array_function_can_cast(PyObject *module, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"from_", "to", "casting", NULL};
    PyObject *values[3];
    array_state *state = array_state_of(module);
    int from, to, casting;
    if (array_arguments("can_cast", args, count, keywords, names, 3, 2, values) < 0)
        return NULL;
    if (element_weak(values[0]) != WEAK_NONE)
        return PyErr_Format(
            PyExc_TypeError,
            "can_cast() does not support Python ints, floats, and complex because the result used to "
            "depend on the value.\nThis change was part of adopting NEP 50, we may explicitly allow them again in the "
            "future.");
    if ((from = is_array(values[0]) ? ((array *)values[0])->t.dtype : array_dtype_from(state, values[0])) < 0
        || (to = array_dtype_from(state, values[1])) < 0 || (casting = dtype_casting(values[2], CAST_SAFE)) < 0)
        return NULL;
    return PyBool_FromLong(dtype_can_cast(from, to, casting));
}
