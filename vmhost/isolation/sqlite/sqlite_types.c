/* Types of `_sqlite3`: gives cursors and connections their attributes before __init__, since other objects read them. A
 * connection whose second __init__ failed is reset. gates_types.c does the same for other modules. */
#include "seal/gates.h"
#include "sqlite/sqlite_use.h"

static _Atomic(Py_ssize_t) cursor_description;
static _Atomic(initproc) cursor_init;
static _Atomic(destructor) connection_dealloc;
enum { CURSOR_ROWS, CONNECTION_ROWS, CONNECTION_TEXTS, CONNECTION_CHANGES, ATTRIBUTES };
static _Atomic(PyGetSetDef *) attributes[ATTRIBUTES];

static int attribute_set(PyObject *object, int which, PyObject *value)
{
    PyGetSetDef *def = atomic_load(&attributes[which]);
    return def->set(object, value, def->closure);
}

/* Creates an object with object.__new__, ignoring the arguments for __init__. */
static PyObject *instance_new(PyTypeObject *type)
{
    PyObject *nothing = PyTuple_New(0), *self = nothing == NULL ? NULL : PyBaseObject_Type.tp_new(type, nothing, NULL);
    Py_XDECREF(nothing);
    return self;
}

static PyObject *cursor_new_gate(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    PyObject *self = instance_new(type);
    if (self == NULL)
        return NULL;
    vmh_member_fill(self, atomic_load(&cursor_description), Py_None); /* Row() reads it */
    if (attribute_set(self, CURSOR_ROWS, Py_None) < 0)
        Py_CLEAR(self);
    return self;
}

static int connection_fill(PyObject *connection)
{
    return attribute_set(connection, CONNECTION_ROWS, Py_None) < 0
                   || attribute_set(connection, CONNECTION_TEXTS, (PyObject *)&PyUnicode_Type) < 0
               ? -1
               : 0;
}

static PyObject *connection_new_gate(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    PyObject *self = instance_new(type);
    if (self != NULL && connection_fill(self) < 0)
        Py_CLEAR(self);
    return self;
}

/* Whether it is open; if not, an exception is set. */
static bool is_open(PyObject *connection)
{
    PyGetSetDef *def = atomic_load(&attributes[CONNECTION_CHANGES]);
    PyObject *changes = def->get(connection, def->closure);
    Py_XDECREF(changes);
    return changes != NULL;
}

void vmh_sqlite_unopened(PyObject *connection)
{
    PyObject *error = PyErr_GetRaisedException();
    if (!is_open(connection))
        connection_fill(connection);
    PyErr_SetRaisedException(error);
}

static bool is_connection(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    while (type != NULL && type->tp_dealloc != atomic_load(&connection_dealloc))
        type = type->tp_base;
    return type != NULL;
}

/* A cursor adds itself to a list in its connection, which exists only once the connection was opened. */
static int cursor_init_gate(PyObject *self, PyObject *args, PyObject *kwargs)
{
    if (PyTuple_GET_SIZE(args) == 1 && is_connection(PyTuple_GET_ITEM(args, 0)) && !is_open(PyTuple_GET_ITEM(args, 0)))
        return -1;
    return atomic_load(&cursor_init)(self, args, kwargs);
}

static int attribute_find(PyTypeObject *type, const char *name, int which)
{
    PyGetSetDef *def = vmh_getset_of(type, name);
    atomic_store(&attributes[which], def);
    return def == NULL ? -1 : 0;
}

/* Replaces the __new__ of a type that inherits object's. The type gets its own __new__, because object.__new__ would
 * refuse it. */
static int new_replace(PyTypeObject *type, newfunc function)
{
    /* The __new__ of every native type is the same C function, which calls the slot of the type that it is bound to. */
    PyObject *dict = PyType_GetDict(&PyLong_Type), *own = NULL;
    PyObject *other = dict == NULL ? NULL : vmh_dict_get(dict, "__new__");
    if (other != NULL && PyCFunction_CheckExact(other))
        own = PyCFunction_New(((PyCFunctionObject *)other)->m_ml, (PyObject *)type);
    else if (!PyErr_Occurred())
        PyErr_SetString(PyExc_SystemError, "int.__new__ is not a builtin function in this Python");
    int rc = own == NULL ? -1 : PyDict_SetItemString(type->tp_dict, "__new__", own);
    Py_XDECREF(own);
    Py_XDECREF(dict);
    return rc < 0 ? -1 : vmh_slot_replace(type, "__new__", (void **)&type->tp_new, (void *)function);
}

int vmh_sqlite_types_finish(PyObject *dict, PyTypeObject *connection)
{
    PyTypeObject *cursor = (PyTypeObject *)vmh_dict_get(dict, "Cursor");
    if (cursor == NULL || cursor->tp_init == cursor_init_gate)
        return PyErr_Occurred() ? -1 : 0;
    Py_ssize_t description = vmh_member_offset(cursor, "description");
    if (description == 0 || attribute_find(cursor, "row_factory", CURSOR_ROWS) < 0
        || attribute_find(connection, "row_factory", CONNECTION_ROWS) < 0
        || attribute_find(connection, "text_factory", CONNECTION_TEXTS) < 0
        || attribute_find(connection, "total_changes", CONNECTION_CHANGES) < 0)
        return -1;
    atomic_store(&cursor_description, description);
    atomic_store(&cursor_init, cursor->tp_init);
    atomic_store(&connection_dealloc, connection->tp_dealloc);
    return new_replace(cursor, cursor_new_gate) < 0 || new_replace(connection, connection_new_gate) < 0
               ? -1
               : vmh_slot_replace(cursor, "__init__", (void **)&cursor->tp_init, (void *)cursor_init_gate);
}
