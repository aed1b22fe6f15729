/* Interpreters, threads and stops of Python.h, beside this file, and the objects that they need. */
#include <Python.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"
#include "cpython/compat.h"

struct PyInterpreterState {
    pthread_mutex_t gil;
    PyThreadState *threads; /* GIL */
    PyObject dict, capsule; /* GIL */
    PyObject *kept;         /* the capsule, once it is in the dict. GIL */
    pthread_mutex_t pending_lock;
    vmh_pending_func pending; /* guarded by pending_lock, like its argument; NULL: none */
    void *argument;
};

static _Thread_local PyThreadState *current; /* of the calling thread; it holds the GIL unless `away` */
static _Thread_local bool away;
static atomic_int interpreters;

static PyObject breathe = {.call = python_breathe};

/* ---- interpreters and threads */

static PyInterpreterState *here(void)
{
    CHECK(current != NULL && !away);
    return current->interp;
}

PyThreadState *python_thread(PyInterpreterState *interpreter)
{
    PyThreadState *ts = calloc(1, sizeof *ts);
    CHECK(ts != NULL && current == NULL);
    pthread_mutex_lock(&interpreter->gil);
    *ts =
        (PyThreadState){.interp = interpreter, .thread_id = PyThread_get_thread_ident(), .next = interpreter->threads};
    interpreter->threads = ts;
    current = ts;
    return ts;
}

static void unlink_current(void)
{
    PyThreadState **link = &here()->threads;
    while (*link != current)
        link = &(*link)->next;
    *link = current->next;
}

void python_thread_end(void)
{
    PyInterpreterState *interpreter = here();
    unlink_current();
    free(current);
    current = NULL;
    PyErr_Clear();
    pthread_mutex_unlock(&interpreter->gil);
}

PyThreadState *python_interpreter(void)
{
    PyInterpreterState *interpreter = calloc(1, sizeof *interpreter);
    CHECK(interpreter != NULL);
    pthread_mutex_init(&interpreter->gil, NULL);
    pthread_mutex_init(&interpreter->pending_lock, NULL);
    atomic_fetch_add(&interpreters, 1);
    return python_thread(interpreter);
}

void Py_EndInterpreter(PyThreadState *ts)
{
    PyInterpreterState *interpreter = here();
    CHECK(ts == current && interpreter->threads == ts && ts->next == NULL); /* CPython aborts the process */
    if (interpreter->kept != NULL)
        interpreter->kept->end(interpreter->kept);
    free(ts);
    current = NULL;
    PyErr_Clear();
    pthread_mutex_unlock(&interpreter->gil);
    pthread_mutex_destroy(&interpreter->gil);
    pthread_mutex_destroy(&interpreter->pending_lock);
    free(interpreter);
    atomic_fetch_sub(&interpreters, 1);
}

int python_interpreters(void) { return atomic_load(&interpreters); }

PyInterpreterState *PyInterpreterState_Get(void) { return here(); }
PyObject *PyInterpreterState_GetDict(PyInterpreterState *interpreter) { return &interpreter->dict; }
PyThreadState *PyInterpreterState_ThreadHead(PyInterpreterState *interpreter) { return interpreter->threads; }
PyThreadState *PyThreadState_Next(PyThreadState *ts) { return ts->next; }
PyInterpreterState *PyThreadState_GetInterpreter(PyThreadState *ts) { return ts->interp; }
unsigned long PyThread_get_thread_ident(void) { return (unsigned long)pthread_self(); }

PyThreadState *PyEval_SaveThread(void)
{
    PyInterpreterState *interpreter = here();
    away = true;
    pthread_mutex_unlock(&interpreter->gil);
    return current;
}

void PyEval_RestoreThread(PyThreadState *ts)
{
    CHECK(ts == current && away);
    pthread_mutex_lock(&ts->interp->gil);
    away = false;
}

/* ---- stops */

int _PyEval_AddPendingCall(PyInterpreterState *interpreter, vmh_pending_func function, void *argument, int flags)
{
    CHECK(flags == 0);
    pthread_mutex_lock(&interpreter->pending_lock);
    bool fits = interpreter->pending == NULL;
    if (fits) {
        interpreter->pending = function;
        interpreter->argument = argument;
    }
    pthread_mutex_unlock(&interpreter->pending_lock);
    return fits ? VMH_PENDING_ADDED : -1;
}

int PyThreadState_SetAsyncExc(unsigned long thread, PyObject *type)
{
    for (PyThreadState *ts = here()->threads; ts != NULL; ts = ts->next)
        if (ts->thread_id == thread) {
            ts->async = type;
            return 1;
        }
    return 0;
}

PyObject *python_breathe(void)
{
    PyInterpreterState *interpreter = here();
    pthread_mutex_lock(&interpreter->pending_lock);
    vmh_pending_func function = interpreter->pending;
    void *argument = interpreter->argument;
    interpreter->pending = NULL;
    pthread_mutex_unlock(&interpreter->pending_lock);
    if (function != NULL)
        CHECK(function(argument) == 0);
    if (current->async == NULL)
        return Py_None;
    PyErr_SetNone(current->async);
    current->async = NULL;
    return NULL;
}

PyObject *vmh_dict_get(PyObject *dict, const char *name)
{
    CHECK(dict == &here()->dict);
    return strcmp(name, "vmhost.breathe") == 0 ? &breathe : NULL;
}

/* ---- objects */

PyObject *PyObject_CallNoArgs(PyObject *function) { return function->call(); }
int PyIndex_Check(PyObject *object) { return object->call == NULL; }
double PyFloat_AsDouble(PyObject *object) { return object->number; }
PyObject *PyUnicode_FromString(const char *text) { return text == NULL ? NULL : Py_None; }

/* The last one made: what the test calls. */
PyObject *PyCFunction_NewEx(PyMethodDef *def, PyObject *self, PyObject *module)
{
    (void)module;
    self->pointer = def;
    return self;
}

int PyDict_SetItemString(PyObject *dict, const char *name, PyObject *value)
{
    if (strcmp(name, "vmhost") == 0 && dict == &here()->dict)
        here()->kept = value;
    return 0;
}

PyObject *PyCapsule_New(void *pointer, const char *name, PyCapsule_Destructor end)
{
    CHECK(name == NULL);
    here()->capsule = (PyObject){.pointer = pointer, .end = end};
    return &here()->capsule;
}

void *PyCapsule_GetPointer(PyObject *capsule, const char *name)
{
    CHECK(name == NULL);
    return capsule->pointer;
}
