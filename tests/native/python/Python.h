/* Stands for CPython's header where the files of vm/ that run a VM, and waits.c, are built without CPython, for the
 * sanitizers: the types and functions that they and their headers name, and nothing more. python.c has the functions:
 * interpreters with a GIL each, thread states, pending calls and exceptions that are injected, but no objects to speak
 * of. */
#ifndef VMH_TEST_PYTHON_H
#define VMH_TEST_PYTHON_H

#include <assert.h>
#include <limits.h>
#include <math.h>
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
#define Py_UNUSED(NAME)           unused_##NAME __attribute__((unused))
#define _PyCFunction_CAST(METHOD) ((PyCFunction)(void (*)(void))(METHOD))

typedef ssize_t Py_ssize_t;
typedef struct _object PyObject;
typedef struct _typeobject PyTypeObject;
typedef struct PyType_Spec PyType_Spec;
typedef struct PyGetSetDef PyGetSetDef;
typedef struct PyCodeObject PyCodeObject;
typedef struct PyConfig PyConfig;
typedef struct PyMemAllocatorEx PyMemAllocatorEx;
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
typedef struct PyMethodDef {
    const char *ml_name;
    PyCFunction ml_meth;
    int ml_flags;
    const char *ml_doc;
} PyMethodDef;
enum { METH_O = 8 };

/* The one type of object: a number, a function without arguments, or a capsule. The owner of an object is who declares
 * it: references are not counted. */
struct _object {
    double number;
    PyObject *(*call)(void); /* NULL: it cannot be called */
    void *pointer;
    PyCapsule_Destructor end;
};

extern PyObject none_object;
extern PyObject *PyExc_OSError, *PyExc_OverflowError, *PyExc_TypeError, *PyExc_ValueError;
#define Py_None        (&none_object)
#define Py_RETURN_NONE return Py_None

static inline void Py_XDECREF(PyObject *object) { (void)object; }
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

PyObject *PyErr_Occurred(void);
void PyErr_SetNone(PyObject *type);
void PyErr_SetString(PyObject *type, const char *text);
PyObject *PyErr_SetFromErrno(PyObject *type);
PyObject *PyErr_Format(PyObject *type, const char *format, ...);
void PyErr_Clear(void);

/* ---- what tests have beside: python.c */

/* A new interpreter, its first thread state the calling thread's, GIL held. */
PyThreadState *python_interpreter(void);
/* Another thread state of the interpreter for the calling thread, which takes the GIL; and its end. */
PyThreadState *python_thread(PyInterpreterState *interpreter);
void python_thread_end(void);
/* What the interpreter does between two instructions: pending calls run, and what was injected is raised. NULL: it was.
 */
PyObject *python_breathe(void);
/* Interpreters that were made and did not end. */
int python_interpreters(void);

#endif
