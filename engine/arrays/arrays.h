/* What the files of engine/arrays share: the array object, the module's state, and the functions that cross files.
 *
 * A function that returns an object or a status below zero has set an exception when it returns NULL or -1.
 */
#ifndef ENGINE_ARRAYS_H
#define ENGINE_ARRAYS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#include "vme.h"
#include "vme_python.h"

enum {
    ARRAY_INLINE_RANK = 4,  /* shapes and strides up to this rank lie in the object */
    ARRAY_FREE_MAX = 64,    /* dead objects kept for the next array */
    ARRAY_SMALL_BYTES = 64, /* and as many dead buffers of this size: a scalar, or 8 numbers */
    ARRAY_ELEMENT_BYTES = VME_SCALAR_BYTES,
};

enum {
    ARRAY_READ_ONLY = 1,  /* this view must not write, whatever its buffer allows */
    ARRAY_CONTIGUOUS = 2, /* C order without gaps */
    ARRAY_SCALAR = 4,     /* stands where NumPy has a scalar: 0-d, never written again, hashable */
    ARRAY_OWN = 8,        /* its buffer comes from this interpreter's context, so it may be kept for reuse */
    ARRAY_LENT = 16,      /* its memory belongs to a Python object of this interpreter */
};

typedef struct array_state array_state;

typedef struct array {
    PyObject_HEAD
    vme_tensor t;       /* owns a reference to t.buffer; t.shape and t.strides point to `dims` or `far_dims` */
    array_state *state; /* the type keeps the module, and so this, alive */
    int64_t size;       /* elements */
    int64_t *far_dims;  /* ranks above ARRAY_INLINE_RANK: PyMem block; else NULL */
    PyObject *weak_references;
    int flags;
    int64_t dims[2 * ARRAY_INLINE_RANK];
} array;

typedef struct dtype_object {
    PyObject_HEAD
    int number; /* vme_dtype */
    array_state *state;
    vectorcallfunc call;
} dtype_object;

struct array_state {
    PyObject *module; /* borrowed: ourselves */
    PyTypeObject *array_type, *dtype_type, *ufunc_type, *iterator_type;
    PyObject *dtypes[VME_DTYPE_COUNT];
    PyObject *axis_error;
    PyObject *no_value;             /* what says that an argument was left out, where None means something */
    PyObject *traced_type, *tracer; /* tracing.c; NULL: nothing is traced */
    vme_context *context;
    array *free_arrays[ARRAY_FREE_MAX];
    vme_buffer *free_buffers[ARRAY_FREE_MAX];
    int free_array_count, free_buffer_count, free_max;
    int writing; /* operations under way that may write into arrays which exist: WRITING */
    void *api;   /* struct vme_python_api */
};

array_state *array_state_of(PyObject *module);

/* ---- errors.c */
/* Sets the exception that stands for `status` (not VME_OK) with the engine's sentence; always NULL. */
PyObject *array_fail(array_state *state, vme_status status);
/* The same as an int: 0 for VME_OK, else -1 with the exception set. */
int array_check_status(array_state *state, vme_status status);
int array_errors_init(array_state *state, PyObject *module);
/* "(2,3)", as NumPy's sentences write a shape. */
PyObject *array_shape_text(int rank, const int64_t *shape);
PyObject *array_axis_error(array_state *state, int64_t axis, int rank);

/* Calls the engine; above about 10 us of work (`work`: elements times what one costs against an addition) without the
 * GIL. */
#define ARRAY_WORK_RELEASE 30000
#define ENGINE(work, call) \
    ({ \
        vme_status engine_status; \
        if (__builtin_expect((work) < ARRAY_WORK_RELEASE, 1)) { \
            engine_status = (call); \
        } else { \
            PyThreadState *engine_thread = PyEval_SaveThread(); \
            engine_status = (call); \
            PyEval_RestoreThread(engine_thread); \
        } \
        engine_status; \
    })
/* The same for an operator that profiles show, where it takes that long, as `name`, a text that stays for good. */
#define OPERATOR(context, name, work, call) \
    ({ \
        vme_status operator_status; \
        if (__builtin_expect((work) < ARRAY_WORK_RELEASE, 1)) { \
            operator_status = (call); \
        } else { \
            vme_context *operator_context = (context); \
            const char *operator_before = vme_context_do(operator_context, name); \
            PyThreadState *operator_thread = PyEval_SaveThread(); \
            operator_status = (call); \
            PyEval_RestoreThread(operator_thread); \
            vme_context_do(operator_context, operator_before); \
        } \
        operator_status; \
    })

/* A call that asks whether an array may be written, and writes later: without the GIL, or after code of the program has
 * run, which may have had the array cross a wall meanwhile. It crosses as a copy then. */
#define WRITING(state, call) \
    ({ \
        array_state *writing_state = (state); \
        writing_state->writing++; \
        __typeof__(call) writing_result = (call); \
        writing_state->writing--; \
        writing_result; \
    })

/* What walks over elements with the GIL held asks this after each: `*walked` counts them, and every ARRAY_WALK_MAX of
 * them it looks at the stop flag. -1: stopped, the exception is set. */
#define ARRAY_WALK_MAX 2048
static inline int array_walk(array_state *state, int64_t *walked)
{
    if (__builtin_expect(++*walked % ARRAY_WALK_MAX != 0, 1) || !vme_context_stopped(state->context))
        return 0;
    array_fail(state, VME_STOPPED);
    return -1;
}

/* ---- array.c */
void array_dealloc(PyObject *object);
static inline bool is_array(PyObject *object) { return Py_TYPE(object)->tp_dealloc == array_dealloc; }
/* A C-contiguous array on a new buffer. */
array *array_new(array_state *state, int dtype, int rank, const int64_t *shape, bool zeroed);
/* The same for a shape that comes from an existing array: `size` is known to fit. */
array *array_new_like(const array *of, int dtype);
/* Dense, undefined or `zero`, its dimensions in memory ordered by the size of `strides`. */
array *array_new_ordered(array_state *state, int dtype, int rank, const int64_t *shape, const int64_t *strides,
                         bool zero);
array *array_new_scalar(array_state *state, int dtype);
/* A view: strides in bytes; inherits what `of` must not do. Strides NULL: C order. */
array *array_view_of(const array *of, int dtype, int rank, const int64_t *shape, const int64_t *strides, char *data);
/* Takes over the caller's reference to `buffer`, also when it fails. */
array *array_on_buffer(array_state *state, vme_buffer *buffer, int dtype, int rank, const int64_t *shape,
                       const int64_t *strides, char *data, int flags);
bool array_writable(const array *self);
/* -1 with ValueError unless it may be written. */
int array_require_writable(const array *self, const char *what);
PyTypeObject *array_type_new(array_state *state, PyObject *module);
void array_free_lists_clear(array_state *state);
static inline PyObject *array_as_scalar(array *self)
{
    if (self != NULL && self->t.rank == 0)
        self->flags |= ARRAY_SCALAR | ARRAY_READ_ONLY;
    return (PyObject *)self;
}

/* ---- arguments.c */
/* Reads a vectorcall's arguments into `values` (borrowed; NULL: absent) by `names`, which ends with NULL. The first
 * `positional` may be given without their name, the first `required` must be given. */
int array_arguments(const char *function, PyObject *const *args, Py_ssize_t count, PyObject *keywords,
                    const char *const *names, int positional, int required, PyObject **values);
int array_argument_bool(PyObject *value, bool absent, bool *result);
int array_argument_int(PyObject *value, int64_t absent, int64_t *result);
/* A shape: an int or a sequence of ints. -1: a value that is neither. */
int array_argument_shape(PyObject *value, int *rank, int64_t *shape);
/* An axis in [0, rank). */
/* A 0-d array takes the axis of the array of one element that NumPy makes of it: 0 or -1. */
int array_argument_axis_of_one(array_state *state, PyObject *value, int rank, int *axis);
int array_argument_axis(array_state *state, PyObject *value, int rank, int *axis);
/* None or absent: all of them; an int; a tuple of ints. Bits, as vme_reduce takes them. */
int array_argument_axes(array_state *state, PyObject *value, int rank, uint64_t *axes);
/* None or absent: NULL in *out; an array; a 1-tuple of one. Borrowed. */
int array_argument_out(PyObject *value, array **out);
/* Calls a function that is written in Python with `self` in front of the arguments; its module is imported at the first
 * call. */
PyObject *array_delegate(const char *module, const char *function, PyObject *self, PyObject *const *args,
                         Py_ssize_t count, PyObject *keywords);
static inline bool array_given(PyObject *value) { return value != NULL && value != Py_None; }

/* ---- dtype.c */
void dtype_dealloc(PyObject *object);
static inline bool is_dtype(PyObject *object) { return Py_TYPE(object)->tp_dealloc == dtype_dealloc; }
int array_dtypes_init(array_state *state, PyObject *module);
/* The dtype that `object` names; None is float64. -1 with TypeError. */
int array_dtype_from(array_state *state, PyObject *object);
/* The same, `absent` where the value is NULL or None. -1: failed. */
int array_argument_dtype(array_state *state, PyObject *value, int absent);
static inline bool dtype_is_integer(int dtype) { return dtype >= VME_INT8 && dtype <= VME_UINT64; }
static inline bool dtype_is_float(int dtype) { return dtype >= VME_FLOAT16 && dtype <= VME_FLOAT64; }
static inline bool dtype_is_complex(int dtype) { return dtype >= VME_COMPLEX64; }
/* "no" 0, "equiv" 1, "safe" 2, "same_kind" 3, "unsafe" 4, "same_value" is not known; -1: unknown, with ValueError. */
enum { CAST_NO, CAST_EQUIV, CAST_SAFE, CAST_SAME_KIND, CAST_UNSAFE };
int dtype_casting(PyObject *value, int absent);
bool dtype_can_cast(int from, int to, int casting);
/* The dtype in which a Python number (weak, NEP 50) meets an array of `dtype`. */
int dtype_for_weak(int dtype, int weak);

/* ---- element.c */
enum { WEAK_NONE, WEAK_BOOL, WEAK_INT, WEAK_FLOAT, WEAK_COMPLEX };
/* Which Python number it is exactly (subclasses count); WEAK_NONE: no number. */
int element_weak(PyObject *object);
PyObject *element_to_python(int dtype, const char *data);
/* Writes one element; OverflowError for a Python int out of bounds. */
int element_from_python(int dtype, PyObject *object, char *data);
float element_half_to_float(uint16_t half);
uint16_t element_half_from_float(double value);

/* ---- creation.c */
/* An array of anything that array() takes: the object itself (a new reference) where it is one and the dtype fits.
 * dtype -1: as it comes. */
array *array_from_any(array_state *state, PyObject *object, int dtype);
/* As above, never sharing memory. */
array *array_copy_of_any(array_state *state, PyObject *object, int dtype);
/* What may stand beside an array in arithmetic: 1, else 0. Does not set exceptions. */
bool array_is_operand(PyObject *object);

/* ---- conversion.c */
array *array_cast(array *self, int dtype); /* always a copy, C order */
/* The same in the order 'C', 'F', or 'K', the dimensions in memory as they are. */
array *array_cast_in_order(array *self, int dtype, char order);
/* Dense, undefined or `zero`, in that order; 'K': the dimensions in memory as those of `like`. */
array *array_new_in_order(const array *like, int dtype, int rank, const int64_t *shape, char order, bool zero);
array *array_contiguous(array *self, int dtype); /* itself (new reference) where it is already so */
/* target[...] = source, broadcast and cast; the target must be writable (checked). */
int array_assign(array *target, const array *source);
int array_assign_python(array *target, PyObject *value);
array *array_scalar_from(array_state *state, int dtype, PyObject *number);
PyObject *array_item_value(array *self); /* of an array of one element */

/* ---- arithmetic.c */
int array_ufuncs_init(array_state *state, PyObject *module);
/* Whether the elements lie densely in Fortran's order. */
bool array_is_fortran(const array *of);
/* An argument `order` for reading `of`: 'C', 'F' or 'K' ('A' is one of the first two), `absent` without one; 0: an
 * exception is set. */
char array_argument_order(PyObject *value, const array *of, char absent);
int array_argument_device(PyObject *value); /* -1 for anything but None and "cpu" */
PyObject *array_unary(array_state *state, int op, PyObject *operand, array *out, int dtype);
PyObject *array_binary(array_state *state, int op, PyObject *a, PyObject *b, array *out, int dtype);
extern PyType_Slot array_number_slots[];     /* arithmetic.c */
extern PyType_Slot array_conversion_slots[]; /* conversion.c: __float__, __int__, __index__, __bool__ */
PyObject *array_richcompare(PyObject *a, PyObject *b, int comparison);
PyObject *array_matrix_product(array_state *state, PyObject *a, PyObject *b, array *out);

/* ---- reductions.c */
PyObject *array_reduce(array *self, int op, uint64_t axes, bool keep, int dtype, array *out, PyObject *initial);

/* ---- indexing.c */
PyObject *array_subscript(PyObject *self, PyObject *key);
int array_assign_subscript(PyObject *self, PyObject *key, PyObject *value);
PyObject *array_item_at(array *self, int64_t index); /* self[index], index in bounds: a view, or a scalar of rank 1 */

/* numpy.take; values: a, indices, axis, out, mode */
PyObject *array_take(array_state *state, array *self, PyObject **values);
PyObject *array_scatter_add(array_state *state, PyObject *const *values); /* target, key, values */

/* ---- shape.c */
/* A view where strides allow it, else a copy. One size may be -1. */
array *array_reshape(array *self, int rank, const int64_t *shape);
array *array_transpose(array *self, const int *order); /* NULL: reversed */
array *array_broadcast_to(array *self, int rank, const int64_t *shape);
/* numpy.diagonal; values: a, offset, axis1, axis2 */
array *array_diagonal(array_state *state, array *self, PyObject **values);

/* ---- tracing.c */
/* Whether an argument, or an item of one that is a list or tuple, however deep, is of the traced type. Only where
 * there is one. */
bool array_any_traced(const array_state *state, PyObject *const *args, Py_ssize_t count, PyObject *keywords);
/* What the tracer makes of the call. */
PyObject *array_call_traced(array_state *state, const char *name, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords);
static inline bool array_is_traced(const array_state *state, PyObject *object)
{
    return __builtin_expect((PyObject *)Py_TYPE(object) == state->traced_type, 0);
}
/* Sets the TypeError of who would read a traced array as plain numbers; always NULL. */
array *array_refuse_traced(void);
#define ARRAY_TRACED(state, args, count, keywords) \
    (__builtin_expect((state)->traced_type != NULL, 0) && array_any_traced(state, args, count, keywords))

/* ---- buffer_protocol.c */
int array_getbuffer(PyObject *self, Py_buffer *view, int flags);
void array_releasebuffer(PyObject *self, Py_buffer *view);
/* An array on a foreign object's memory, without a copy; read-only where the object is. */
array *array_from_exporter(array_state *state, PyObject *object);

/* ---- methods and module functions, each defined in the file of its subject */
#define ARRAY_VECTORCALL PyObject *const *args, Py_ssize_t count, PyObject *keywords

#endif
