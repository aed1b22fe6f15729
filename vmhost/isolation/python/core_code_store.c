/* `_core.CodeStore`: code and files of one bundle. */
#include "python/core.h"
#include "wire/engine.h"

static PyObject *store_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":CodeStore", names))
        return NULL;
    code_store_object *self = (code_store_object *)type->tp_alloc(type, 0);
    if (self != NULL && (self->store = vmh_code_store_new()) == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void store_dealloc(PyObject *object)
{
    code_store_object *self = (code_store_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->store != NULL)
        vmh_code_store_unref(self->store);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *store_add(PyObject *object, const char *name, bool is_package, Py_buffer *data)
{
    int rc = vmh_code_store_add(((code_store_object *)object)->store, name, is_package, data->buf, (size_t)data->len);
    PyBuffer_Release(data);
    if (rc < 0)
        return PyErr_NoMemory();
    if (rc > 0)
        return PyErr_Format(PyExc_ValueError, "%s is in this code store already", name);
    Py_RETURN_NONE;
}

static PyObject *store_add_module(PyObject *self, PyObject *args)
{
    const char *name;
    int is_package;
    Py_buffer code;
    if (!PyArg_ParseTuple(args, "spy*:add_module", &name, &is_package, &code))
        return NULL;
    return store_add(self, name, is_package, &code);
}

static PyObject *store_add_text(PyObject *self, PyObject *args)
{
    Py_buffer digest, code;
    char name[1 + 64 + 1] = "#";
    if (!PyArg_ParseTuple(args, "y*y*:add_text", &digest, &code))
        return NULL;
    if (digest.len != 32) {
        PyErr_Format(PyExc_ValueError, "digest: expected 32 bytes, got %zd", digest.len);
        PyBuffer_Release(&digest);
        PyBuffer_Release(&code);
        return NULL;
    }
    for (int i = 0; i < 32; i++)
        snprintf(name + 1 + 2 * i, 3, "%02x", ((const uint8_t *)digest.buf)[i]);
    PyBuffer_Release(&digest);
    return store_add(self, name, false, &code);
}

static PyObject *store_add_file(PyObject *self, PyObject *args)
{
    PyObject *path;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "Uy*:add_file", &path, &data))
        return NULL;
    PyObject *name = PyUnicode_FromFormat("/%U", path);
    const char *text = name == NULL ? NULL : PyUnicode_AsUTF8(name);
    if (text == NULL) {
        PyBuffer_Release(&data);
        Py_XDECREF(name);
        return NULL;
    }
    PyObject *result = store_add(self, text, false, &data);
    Py_DECREF(name);
    return result;
}

static PyObject *store_add_model(PyObject *self, PyObject *args)
{
    const char *name;
    unsigned long long address;
    if (!PyArg_ParseTuple(args, "sK:add_model", &name, &address))
        return NULL;
    int rc = vmh_engine_hold_model(((code_store_object *)self)->store, name, (uintptr_t)address);
    if (rc < 0)
        return PyErr_NoMemory();
    if (rc > 0)
        return PyErr_Format(PyExc_ValueError, "%s is in this code store already", name);
    Py_RETURN_NONE;
}

static PyObject *store_add_table(PyObject *self, PyObject *args)
{
    const char *name;
    PyObject *table;
    int trains;
    if (!PyArg_ParseTuple(args, "sOp:add_table", &name, &table, &trains)
        || vmh_engine_hold_table(((code_store_object *)self)->store, name, table, trains) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef store_methods[] = {
    {"add_module", store_add_module, METH_VARARGS,
     PyDoc_STR("add_module(name, is_package, code): marshalled code, digest-checked by the caller.")},
    {"add_text", store_add_text, METH_VARARGS,
     PyDoc_STR("add_text(digest, code): marshalled code of a text, by its SHA-256.")},
    {"add_model", store_add_model, METH_VARARGS,
     PyDoc_STR("add_model(name, address): a prepared vme_model, kept from now on.")},
    {"add_table", store_add_table, METH_VARARGS,
     PyDoc_STR("add_table(name, table, trains): an engine's embedding table, for lookups or also for training.")},
    {"add_file", store_add_file, METH_VARARGS, PyDoc_STR("add_file(path, data): a resource.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot store_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("Code and files of one bundle, in memory that every VM can read.")},
    {Py_tp_new, store_new},
    {Py_tp_dealloc, store_dealloc},
    {Py_tp_methods, store_methods},
    {0, NULL},
};

PyType_Spec vmh_code_store_spec = {"vmhost.isolation._core.CodeStore", sizeof(code_store_object), 0, Py_TPFLAGS_DEFAULT,
                                   store_slots};
