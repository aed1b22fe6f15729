/* Shared by the files of engine/arrays: the array object, the module's state, and functions used across files.
 *
 * A function that returns NULL or a negative status has set an exception. */
#ifndef ENGINE_ARRAYS_H
#define ENGINE_ARRAYS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#include "vme.h"
#include "vme_python.h"

enum {
    ARRAY_INLINE_RANK = 4,  /* shapes and strides up to this rank are stored in the object */
    ARRAY_FREE_MAX = 64,    /* maximum dead objects kept for reuse */
    ARRAY_SMALL_BYTES = 64, /* and as many dead buffers of this size: a scalar, or 8 floats */
    ARRAY_ELEMENT_BYTES = VME_SCALAR_BYTES,
};

enum {
    ARRAY_READ_ONLY = 1,  /* this view is read-only, even if its buffer is writable */
    ARRAY_CONTIGUOUS = 2, /* C order without gaps */
    ARRAY_SCALAR = 4,     /* corresponds to a NumPy scalar: 0-d, immutable, hashable */
    ARRAY_OWN = 8,        /* its buffer was allocated by this interpreter's context, so it may be reused */
    ARRAY_VIEW = 32,      /* made as a view of another array: flags.owndata is False */
    ARRAY_LENT = 16,      /* its memory belongs to a Python object of this interpreter */
};

typedef struct array_state array_state;

typedef struct array {
    PyObject_HEAD
    vme_tensor t;       /* owns a reference to t.buffer; t.shape and t.strides point to `dims` or `far_dims` */
    array_state *state; /* kept alive by the module, which the type keeps alive */
    int64_t size;       /* elements */
    int64_t *far_dims;  /* for ranks above ARRAY_INLINE_RANK: a PyMem block; else NULL */
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
    PyObject *module; /* borrowed: this module */
    PyTypeObject *array_type, *dtype_type, *ufunc_type, *iterator_type;
    PyObject *dtypes[VME_DTYPE_COUNT];
    PyObject *axis_error;
    PyObject *no_value;             /* the sentinel for omitted arguments where None has a meaning */
    PyObject *traced_type, *tracer; /* tracing.c; NULL: no tracing */
    vme_context *context;
    array *free_arrays[ARRAY_FREE_MAX];
    vme_buffer *free_buffers[ARRAY_FREE_MAX];
    int free_array_count, free_buffer_count, free_max;
    uint64_t writes; /* number of writes into arrays so far; a buffer has that of its last one: module.c, _writes */
    int writing;     /* number of running operations that may write into existing arrays: WRITING */
    void *api;       /* struct vme_python_api */
};

array_state *array_state_of(PyObject *module);

/* ---- errors.c */
/* Sets the exception for `status` (not VME_OK) with the engine's message; always returns NULL. */
PyObject *array_fail(array_state *state, vme_status status);
/* The same as an int: 0 for VME_OK, else -1 with the exception set. */
int array_check_status(array_state *state, vme_status status);
int array_errors_init(array_state *state, PyObject *module);
/* "(2,3)", as NumPy's messages write a shape. */
PyObject *array_shape_text(int rank, const int64_t *shape);
PyObject *array_axis_error(array_state *state, int64_t axis, int rank);

/* Calls the engine; without the GIL if the work takes more than about 10 us (`work`: elements times the cost of one
 * relative to an addition). */
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
/* The same for an operator; if it takes that long, profiles show it as `name`, a string that is never freed. */
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

/* For calls that check whether an array is writable and write later, without the GIL or after code of the program ran,
 * which could have passed the array to another VM in between. While WRITING, such arrays are passed as copies. */
#define WRITING(state, call) \
    ({ \
        array_state *writing_state = (state); \
        writing_state->writing++; \
        __typeof__(call) writing_result = (call); \
        writing_state->writing--; \
        writing_result; \
    })

/* For loops over elements with the GIL held; call it after each element. Counts in `*walked`, and checks the stop flag
 * every ARRAY_WALK_MAX elements. -1: stopped, the exception is set. */
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
/* A C-contiguous array with a new buffer. */
array *array_new(array_state *state, int dtype, int rank, const int64_t *shape, bool zeroed);
/* The same for a shape that comes from an existing array: `size` is known to fit. */
array *array_new_like(const array *of, int dtype);
/* Dense; undefined, or zeros if `zero`; its dimensions are ordered in memory by the size of `strides`. */
array *array_new_ordered(array_state *state, int dtype, int rank, const int64_t *shape, const int64_t *strides,
                         bool zero);
array *array_new_scalar(array_state *state, int dtype);
/* The address `offset` bytes after the first element; an error where that lies outside the buffer. */
char *array_data_at(const array *of, int64_t offset);
/* A view; strides are in bytes, NULL: C order. Inherits the restrictions of `of`. */
array *array_view_of(const array *of, int dtype, int rank, const int64_t *shape, const int64_t *strides, char *data);
PyObject *array_sizes_tuple(int rank, const int64_t *sizes); /* a tuple of ints */
/* Steals the reference to `buffer`, even on failure. */
array *array_on_buffer(array_state *state, vme_buffer *buffer, int dtype, int rank, const int64_t *shape,
                       const int64_t *strides, char *data, int flags);
bool array_writable(const array *self);
/* Before a write: counts it. -1 with ValueError unless it is writable. */
int array_require_writable(const array *self, const char *what);
PyTypeObject *array_type_new(array_state *state, PyObject *module);
void array_free_lists_clear(array_state *state);
/* Of a view whose base is dropped at once. */
static inline array *array_as_owner(array *self)
{
    if (self != NULL)
        self->flags &= ~ARRAY_VIEW;
    return self;
}
static inline PyObject *array_as_scalar(array *self)
{
    if (self != NULL && self->t.rank == 0)
        self->flags |= ARRAY_SCALAR | ARRAY_READ_ONLY;
    return (PyObject *)self;
}

/* ---- arguments.c */
/* Parses a vectorcall's arguments into `values` (borrowed; NULL: absent) by `names`, which ends with NULL. The first
 * `positional` may be positional, the first `required` are required. */
int array_arguments(const char *function, PyObject *const *args, Py_ssize_t count, PyObject *keywords,
                    const char *const *names, int positional, int required, PyObject **values);
int array_argument_bool(PyObject *value, bool absent, bool *result);
int array_argument_int(PyObject *value, int64_t absent, int64_t *result);
/* A shape: an int or a sequence of ints. -1: a value that is neither. */
int array_argument_shape(PyObject *value, int *rank, int64_t *shape);
/* An axis in [0, rank). */
/* For a 0-d array the axis of the one-element array that NumPy converts it to: 0 or -1. */
int array_argument_axis_of_one(array_state *state, PyObject *value, int rank, int *axis);
int array_argument_axis(array_state *state, PyObject *value, int rank, int *axis);
/* None or absent: all axes; an int; a tuple of ints. As a bit mask for vme_reduce. */
int array_argument_axes(array_state *state, PyObject *value, int rank, uint64_t *axes);
/* None or absent: NULL in *out; an array; or a tuple of one array. Borrowed. */
int array_argument_out(PyObject *value, array **out);
/* Calls a function implemented in Python, with `self` as first argument; imports its module at the first call. */
PyObject *array_delegate(const char *module, const char *function, PyObject *self, PyObject *const *args,
                         Py_ssize_t count, PyObject *keywords);
static inline bool array_given(PyObject *value) { return value != NULL && value != Py_None; }

/* ---- dtype.c */
void dtype_dealloc(PyObject *object);
static inline bool is_dtype(PyObject *object) { return Py_TYPE(object)->tp_dealloc == dtype_dealloc; }
int array_dtypes_init(array_state *state, PyObject *module);
/* The dtype that `object` names; None is float64. -1 with TypeError. */
int array_dtype_from(array_state *state, PyObject *object);
/* The same, `absent` if the value is NULL or None. -1: failed. */
int array_argument_dtype(array_state *state, PyObject *value, int absent);
static inline bool dtype_is_integer(int dtype) { return dtype >= VME_INT8 && dtype <= VME_UINT64; }
static inline bool dtype_is_float(int dtype) { return dtype >= VME_FLOAT16 && dtype <= VME_FLOAT64; }
static inline bool dtype_is_complex(int dtype) { return dtype >= VME_COMPLEX64; }
/* "no" 0, "equiv" 1, "safe" 2, "same_kind" 3, "unsafe" 4; "same_value" is not supported; -1: unknown, with ValueError.
 */
enum { CAST_NO, CAST_EQUIV, CAST_SAFE, CAST_SAME_KIND, CAST_UNSAFE };
int dtype_casting(PyObject *value, int absent);
bool dtype_can_cast(int from, int to, int casting);
/* The dtype that all dtypes of a set promote to, in any order; a bit for each number of a dtype. */
int dtype_promote_all(uint32_t dtypes);
/* The dtype that a Python number (weak, NEP 50) and an array of `dtype` promote to. */
int dtype_for_weak(int dtype, int weak);

/* ---- element.c */
enum { WEAK_NONE, WEAK_BOOL, WEAK_INT, WEAK_FLOAT, WEAK_COMPLEX };
/* The kind of Python number, including subclasses; WEAK_NONE: not a number. */
int element_weak(PyObject *object);
PyObject *element_to_python(int dtype, const char *data);
/* Writes one element; OverflowError for a Python int out of bounds. */
int element_from_python(int dtype, PyObject *object, char *data);
float element_half_to_float(uint16_t half);
uint16_t element_half_from_float(double value);

/* ---- creation.c */
/* An array of anything that array() accepts: a new reference to the object itself if it is an array with this dtype.
 * dtype -1: any. */
array *array_from_any(array_state *state, PyObject *object, int dtype);
/* As above, never sharing memory. */
array *array_copy_of_any(array_state *state, PyObject *object, int dtype);
/* Whether the object may be the other operand of an array: 1, else 0. Sets no exception. */
bool array_is_operand(PyObject *object);

/* ---- conversion.c */
array *array_cast(array *self, int dtype); /* always a copy, in C order */
/* The same in order 'C', 'F', or 'K', which keeps the order of dimensions in memory. */
array *array_cast_in_order(array *self, int dtype, char order);
/* Dense; undefined, or zeros if `zero`; in that order; 'K': the order of dimensions of `like`. */
array *array_new_in_order(const array *like, int dtype, int rank, const int64_t *shape, char order, bool zero);
array *array_contiguous(array *self, int dtype); /* the array itself (a new reference) if it already is */
/* target[...] = source, broadcast and cast; the caller has checked that the target is writable. */
int array_assign(array *target, const array *source);
int array_assign_python(array *target, PyObject *value);
/* Whether storing `source` as one element of `dtype` is checked, as Python's numbers are: 300 and NaN are no int8. As
 * in NumPy, unsigned dtypes take scalars modulo 2**bits. */
static inline bool array_checks_scalar(const array *source, int dtype)
{
    return source->flags & ARRAY_SCALAR && dtype >= VME_INT8 && dtype <= VME_INT64
           && !dtype_is_complex(source->t.dtype);
}
array *array_scalar_from(array_state *state, int dtype, PyObject *number);
PyObject *array_item_value(array *self); /* the array must have one element */

/* ---- arithmetic.c */
int array_ufuncs_init(array_state *state, PyObject *module);
/* Whether the elements are dense in Fortran order. */
bool array_is_fortran(const array *of);
/* The argument `order` for reading `of`: 'C', 'F' or 'K' ('A' becomes 'C' or 'F'), `absent` if omitted; 0: an exception
 * is set. */
char array_argument_order(PyObject *value, const array *of, char absent);
int array_argument_device(PyObject *value); /* -1 unless the value is None or "cpu" */
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
PyObject *array_item_at(array *self, int64_t index); /* self[index], index in bounds: a view, or for rank 1 a scalar */

/* numpy.take; values: a, indices, axis, out, mode */
PyObject *array_take(array_state *state, array *self, PyObject **values);
PyObject *array_scatter_add(array_state *state, PyObject *const *values); /* target, key, values */

/* ---- shape.c */
/* A view if the strides allow it, otherwise a copy. One size may be -1. */
array *array_reshape(array *self, int rank, const int64_t *shape);
array *array_transpose(array *self, const int *order); /* NULL: reversed */
array *array_broadcast_to(array *self, int rank, const int64_t *shape);
/* numpy.diagonal; values: a, offset, axis1, axis2 */
array *array_diagonal(array_state *state, array *self, PyObject **values);

/* ---- tracing.c */
/* Whether an argument, or an item nested in a list or tuple argument, is of the traced type. Call only if there is one.
 */
bool array_any_traced(const array_state *state, PyObject *const *args, Py_ssize_t count, PyObject *keywords);
/* The tracer's result of the call. */
PyObject *array_call_traced(array_state *state, const char *name, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords);
static inline bool array_is_traced(const array_state *state, PyObject *object)
{
    return __builtin_expect((PyObject *)Py_TYPE(object) == state->traced_type, 0);
}
/* Sets the TypeError for reading a traced array as plain numbers; always returns NULL. */
array *array_refuse_traced(void);
#define ARRAY_TRACED(state, args, count, keywords) \
    (__builtin_expect((state)->traced_type != NULL, 0) && array_any_traced(state, args, count, keywords))

/* ---- buffer_protocol.c */
int array_getbuffer(PyObject *self, Py_buffer *view, int flags);
void array_releasebuffer(PyObject *self, Py_buffer *view);
/* An array on a foreign object's memory, without a copy; read-only if the object is. */
array *array_from_exporter(array_state *state, PyObject *object);

/* ---- methods and module functions, each defined in the file of its subject */
#define ARRAY_VECTORCALL PyObject *const *args, Py_ssize_t count, PyObject *keywords

#endif
