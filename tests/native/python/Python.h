/* Stands for CPython's header where files of the core are built without CPython, for the sanitizers: the types and
 * functions that they and their headers name, and nothing more. python.c has interpreters with a GIL each, thread
 * states, pending calls and exceptions that are injected; errors.c what an error is; objects.c counted objects, for
 * tests that fail each call once. */
#ifndef VMH_TEST_PYTHON_H
#define VMH_TEST_PYTHON_H

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define PY_VERSION_HEX            0x030E0000
#define PyAPI_FUNC(TYPE)          TYPE
#define PyAPI_DATA(TYPE)          extern TYPE
#define PyDoc_STR(TEXT)           TEXT
#define PY_SSIZE_T_MAX            SSIZE_MAX
#define Py_UNUSED(NAME)           unused_##NAME __attribute__((unused))
#define _PyCFunction_CAST(METHOD) ((PyCFunction)(void (*)(void))(METHOD))

typedef ssize_t Py_ssize_t;
typedef struct _object PyObject;
typedef struct _typeobject PyTypeObject;
typedef struct PyType_Spec PyType_Spec;
typedef struct PyGetSetDef PyGetSetDef;
typedef struct PyConfig PyConfig;
typedef enum { PYMEM_DOMAIN_RAW, PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ } PyMemAllocatorDomain;
typedef struct PyMemAllocatorEx {
    void *ctx;
    void *(*malloc)(void *ctx, size_t size);
    void *(*calloc)(void *ctx, size_t count, size_t size);
    void *(*realloc)(void *ctx, void *block, size_t size);
    void (*free)(void *ctx, void *block);
} PyMemAllocatorEx;
typedef struct PyObjectArenaAllocator {
    void *ctx;
    void *(*alloc)(void *ctx, size_t size);
    void (*free)(void *ctx, void *arena, size_t size);
} PyObjectArenaAllocator;
typedef struct PyInterpreterState PyInterpreterState;
typedef struct PyThreadState {
    PyInterpreterState *interp;
    unsigned long thread_id;
    PyObject *async; /* injected, not raised yet */
    struct PyThreadState *next;
} PyThreadState;
typedef struct PyStatus {
    const char *err_msg; /* NULL: fine */
} PyStatus;
typedef void (*destructor)(PyObject *object);
typedef void (*PyCapsule_Destructor)(PyObject *capsule);
typedef PyObject *(*PyCFunction)(PyObject *self, PyObject *argument);
typedef PyObject *(*PyCFunctionFast)(PyObject *self, PyObject *const *args, Py_ssize_t count);
typedef int64_t PyTime_t; /* nanoseconds */
typedef struct PyMethodDef {
    const char *ml_name;
    PyCFunction ml_meth;
    int ml_flags;
    const char *ml_doc;
} PyMethodDef;
enum { METH_KEYWORDS = 2, METH_O = 8, METH_CLASS = 16, METH_FASTCALL = 128 };

/* The one type of object: a number, a text, a function without arguments, a capsule, or a list. `refs` 0: who declared
 * it owns it, and references are not counted. */
struct _object {
    double number;
    PyObject *(*call)(void); /* NULL: it cannot be called */
    void *pointer;
    PyCapsule_Destructor end; /* of a counted object: frees it */
    Py_ssize_t refs;
    PyTypeObject *type;
};

/* The parts of these types that objects.c's tests need: a tuple has up to two items. */
struct _typeobject {
    PyObject base;
    PyObject *dict;
};
typedef struct PyCodeObject {
    PyObject base;
    PyObject *co_filename, *co_qualname;
    int co_firstlineno;
} PyCodeObject;
typedef struct PyMethodDescrObject {
    PyObject base;
    PyMethodDef *d_method;
} PyMethodDescrObject;
typedef struct PyTupleObject {
    PyObject base;
    Py_ssize_t size;
    PyObject *items[2];
} PyTupleObject;

extern PyObject none_object;
extern PyObject *PyExc_MemoryError, *PyExc_OSError, *PyExc_OverflowError, *PyExc_RuntimeError, *PyExc_SystemError,
    *PyExc_TypeError, *PyExc_ValueError;
extern PyTypeObject PyCode_Type, PyType_Type, PyClassMethodDescr_Type;
#define Py_None        (&none_object)
#define Py_RETURN_NONE return Py_None

static inline PyObject *Py_XNewRef(PyObject *object)
{
    if (object != NULL && object->refs > 0)
        object->refs++;
    return object;
}

static inline void Py_XDECREF(PyObject *object)
{
    if (object != NULL && object->refs > 0 && --object->refs == 0)
        object->end(object);
}

#define Py_NewRef(OBJECT) Py_XNewRef((PyObject *)(OBJECT))
#define Py_INCREF(OBJECT) ((void)Py_NewRef(OBJECT))
#define Py_DECREF(OBJECT) Py_XDECREF((PyObject *)(OBJECT))
#define Py_CLEAR(PLACE)   Py_SETREF(PLACE, NULL)
#define Py_SETREF(PLACE, OBJECT) \
    do { \
        PyObject *setref_before = (PLACE); \
        (PLACE) = (OBJECT); \
        Py_XDECREF(setref_before); \
    } while (0)
#define Py_IS_TYPE(OBJECT, TYPE)     ((OBJECT)->type == (TYPE))
#define PyCode_Check(OBJECT)         Py_IS_TYPE(OBJECT, &PyCode_Type)
#define PyType_Check(OBJECT)         Py_IS_TYPE((PyObject *)(OBJECT), &PyType_Type)
#define PyTuple_GET_SIZE(OBJECT)     (((PyTupleObject *)(OBJECT))->size)
#define PyTuple_GET_ITEM(OBJECT, AT) (((PyTupleObject *)(OBJECT))->items[AT])

static inline int PyFloat_Check(PyObject *object) { return object->call == NULL; }
int PyIndex_Check(PyObject *object);
double PyFloat_AsDouble(PyObject *object);
PyObject *PyUnicode_FromString(const char *text);
PyObject *PyCFunction_NewEx(PyMethodDef *def, PyObject *self, PyObject *module);
int PyDict_SetItemString(PyObject *dict, const char *name, PyObject *value);
PyObject *PyObject_CallNoArgs(PyObject *function);

PyObject *PyCapsule_New(void *pointer, const char *name, PyCapsule_Destructor end);
void *PyCapsule_GetPointer(PyObject *capsule, const char *name);

static inline int PyStatus_Exception(PyStatus status) { return status.err_msg != NULL; }
PyInterpreterState *PyInterpreterState_Get(void);
PyThreadState *PyInterpreterState_ThreadHead(PyInterpreterState *interpreter);
PyThreadState *PyThreadState_Next(PyThreadState *ts);
PyInterpreterState *PyThreadState_GetInterpreter(PyThreadState *ts);
int PyThreadState_SetAsyncExc(unsigned long thread, PyObject *type);
unsigned long PyThread_get_thread_ident(void);
void Py_EndInterpreter(PyThreadState *ts);
PyObject *PyInterpreterState_GetDict(PyInterpreterState *interpreter);
PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *ts);

PyObject *PySys_GetObject(const char *name);
PyObject *PyObject_GetAttrString(PyObject *object, const char *name);
PyObject *PyObject_CallMethod(PyObject *object, const char *name, const char *format, ...);
PyObject *PyObject_CallFunction(PyObject *function, const char *format, ...);
PyObject *PyCFunction_New(PyMethodDef *def, PyObject *self);
PyObject *PyDescr_NewClassMethod(PyTypeObject *type, PyMethodDef *def);
PyObject *PyType_GetDict(PyTypeObject *type);
int PyModule_AddFunctions(PyObject *module, PyMethodDef *functions);
PyObject *PyFloat_FromDouble(double number);
PyObject *PyLong_FromUnsignedNativeBytes(const void *bytes, size_t count, int flags);
long PyLong_AsLong(PyObject *object);
const char *PyUnicode_AsUTF8(PyObject *text);
int PyUnicode_EqualToUTF8(PyObject *text, const char *other);
PyObject *PyList_New(Py_ssize_t size);
int PyList_Append(PyObject *list, PyObject *item);
int PyTime_Time(PyTime_t *now);
double PyTime_AsSecondsDouble(PyTime_t time);
enum { Py_ASNATIVEBYTES_LITTLE_ENDIAN = 1 };
PyInterpreterState *PyInterpreterState_Main(void);
PyThreadState *PyThreadState_GetUnchecked(void);

PyObject *PyErr_Occurred(void);
PyObject *PyErr_GetRaisedException(void);
void PyErr_SetRaisedException(PyObject *error);
void PyErr_SetNone(PyObject *type);
void PyErr_SetString(PyObject *type, const char *text);
PyObject *PyErr_SetFromErrno(PyObject *type);
PyObject *PyErr_Format(PyObject *type, const char *format, ...);
void PyErr_Clear(void);

/* ---- further functions for tests: objects.c */

/* One call that may fail does, after `after` more went well; -1: none does. Gives whether one failed since the last
 * time. */
bool objects_fail(long after);
long objects_live(void); /* counted ones that were made and not freed */
PyObject *objects_new(PyTypeObject *type, double number, const char *text);
/* For attributes, methods and functions of objects: a new reference, or NULL with an error. The test's own. */
PyObject *objects_attribute(PyObject *object, const char *name);
PyObject *objects_called(PyObject *object, const char *name, PyObject *const *args, int count);

/* ---- python.c */

/* A new interpreter, its first thread state the calling thread's, GIL held. */
PyThreadState *python_interpreter(void);
/* Another thread state of the interpreter for the calling thread, which takes the GIL; and its end. */
PyThreadState *python_thread(PyInterpreterState *interpreter);
void python_thread_end(void);
/* What the interpreter does between two instructions: pending calls run, and what was injected is raised. NULL: it was.
 */
PyObject *python_breathe(void);
/* Interpreters that were made and have not ended. */
int python_interpreters(void);

/* test_memory.c */
void PyMem_GetAllocator(PyMemAllocatorDomain domain, PyMemAllocatorEx *found);
void PyObject_GetArenaAllocator(PyObjectArenaAllocator *found);
void PyObject_SetArenaAllocator(PyObjectArenaAllocator *set);
void *PyMem_RawMalloc(size_t size);
void PyMem_RawFree(void *block);

#endif
