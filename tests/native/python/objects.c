/* Counted objects of Python.h, beside this file, on one thread. Each call that may fail in CPython counts, and one of
 * them can be made to fail: with MemoryError, as CPython's do. */
#include <Python.h>

#include "check.h"
#include "cpython/compat.h"

enum { ARGUMENTS_MAX = 8 };

typedef struct list_node {
    PyObject *item;
    struct list_node *next;
} list_node;

PyTypeObject PyCode_Type, PyType_Type, PyClassMethodDescr_Type;
static PyTypeObject list_type;
static long left = -1, live;
static bool failed;

bool objects_fail(long after)
{
    bool before = failed;
    left = after;
    failed = false;
    return before;
}

long objects_live(void) { return live; }

static bool fails(void)
{
    CHECK(PyErr_Occurred() == NULL); /* an error that is set is not known to who is called */
    if (left < 0 || left-- > 0)
        return false;
    failed = true;
    PyErr_SetNone(PyExc_MemoryError);
    return true;
}

/* ---- made and freed */

static void gone(PyObject *object)
{
    if (object->type == &list_type)
        for (list_node *node = object->pointer, *next; node != NULL; node = next) {
            next = node->next;
            Py_DECREF(node->item);
            free(node);
        }
    live--;
    free(object);
}

PyObject *objects_new(PyTypeObject *type, double number, const char *text)
{
    PyObject *made = fails() ? NULL : calloc(1, sizeof(PyTupleObject));
    if (made == NULL)
        return NULL;
    *made = (PyObject){.number = number, .pointer = (void *)(uintptr_t)text, .end = gone, .refs = 1, .type = type};
    live++;
    return made;
}

PyObject *PyFloat_FromDouble(double number) { return objects_new(NULL, number, NULL); }
PyObject *PyUnicode_FromString(const char *text) { return objects_new(NULL, 0, text); }

PyObject *PyLong_FromUnsignedNativeBytes(const void *bytes, size_t count, int flags)
{
    CHECK(count > 0 && flags == Py_ASNATIVEBYTES_LITTLE_ENDIAN);
    return objects_new(NULL, *(const unsigned char *)bytes, NULL);
}

PyObject *PyCFunction_New(PyMethodDef *def, PyObject *self)
{
    PyObject *made = objects_new(NULL, 0, NULL);
    CHECK(self == NULL);
    if (made != NULL)
        made->pointer = def;
    return made;
}

PyObject *PyDescr_NewClassMethod(PyTypeObject *type, PyMethodDef *def)
{
    PyObject *made = objects_new(&PyClassMethodDescr_Type, 0, NULL);
    CHECK(type != NULL);
    if (made != NULL)
        ((PyMethodDescrObject *)made)->d_method = def;
    return made;
}

/* ---- queries */

long PyLong_AsLong(PyObject *object) { return (long)object->number; }
int PyUnicode_EqualToUTF8(PyObject *text, const char *other) { return strcmp(text->pointer, other) == 0; }
const char *PyUnicode_AsUTF8(PyObject *text) { return fails() ? NULL : text->pointer; }
PyObject *PyObject_GetAttrString(PyObject *object, const char *name)
{
    return fails() ? NULL : objects_attribute(object, name);
}

int PyTime_Time(PyTime_t *now)
{
    *now = 1500000000;
    return fails() ? -1 : 0;
}

double PyTime_AsSecondsDouble(PyTime_t time) { return (double)time / 1e9; }

PyObject *PyList_New(Py_ssize_t size)
{
    CHECK(size == 0);
    return objects_new(&list_type, 0, NULL);
}

int PyList_Append(PyObject *list, PyObject *item)
{
    list_node *node = fails() ? NULL : malloc(sizeof *node);
    if (node == NULL)
        return -1;
    *node = (list_node){Py_NewRef(item), list->pointer};
    list->pointer = node;
    list->number++;
    return 0;
}

/* ---- calls */

static PyObject *call(PyObject *object, const char *name, const char *format, va_list values)
{
    PyObject made[ARGUMENTS_MAX], *args[ARGUMENTS_MAX];
    int count = 0;
    for (; format != NULL && *format != 0; format++, count++) {
        CHECK(count < ARGUMENTS_MAX);
        made[count] = (PyObject){0};
        args[count] = &made[count];
        if (*format == 'O')
            args[count] = va_arg(values, PyObject *);
        else if (*format == 's')
            made[count].pointer = va_arg(values, char *);
        else if (*format == 'l')
            made[count].number = (double)va_arg(values, long);
        else {
            CHECK(*format == 'i');
            made[count].number = va_arg(values, int);
        }
        CHECK(args[count] != NULL);
    }
    return fails() ? NULL : objects_called(object, name, args, count);
}

PyObject *PyObject_CallMethod(PyObject *object, const char *name, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    PyObject *result = call(object, name, format, values);
    va_end(values);
    return result;
}

PyObject *PyObject_CallFunction(PyObject *function, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    PyObject *result = call(function, NULL, format, values);
    va_end(values);
    return result;
}
