#include "wire/records.h"

/* The slot `name` of the class in `found`, NULL if the class has nothing of that name. 1, or 0: it has a descriptor of
 * another kind, or -1 with an exception. */
static int find_slot(PyTypeObject *type, PyObject *name, PyMemberDef **found)
{
    *found = NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); i++) {
        PyTypeObject *base = (PyTypeObject *)PyTuple_GET_ITEM(type->tp_mro, i);
        PyObject *dict = PyType_GetDict(base), *value = NULL;
        int has = dict == NULL ? -1 : PyDict_GetItemRef(dict, name, &value);
        Py_XDECREF(dict);
        if (has == 0)
            continue;
        if (has < 0)
            return -1;
        bool is_slot = Py_IS_TYPE(value, &PyMemberDescr_Type), is_free = Py_TYPE(value)->tp_descr_set == NULL;
        if (is_slot) {
            PyMemberDef *slot = ((PyMemberDescrObject *)value)->d_member; /* lives as long as `base` */
            is_slot = slot->type == Py_T_OBJECT_EX && !(slot->flags & (Py_READONLY | Py_RELATIVE_OFFSET))
                      && ((PyDescrObject *)value)->d_type == base;
            *found = is_slot ? slot : NULL;
        }
        Py_DECREF(value);
        return is_slot || is_free;
    }
    return 1;
}

int vmh_record_describe(vmh_record *record, PyTypeObject *type, PyObject *names)
{
    PyTypeObject *base = type, *root = names == NULL ? &PyTuple_Type : &PyBaseObject_Type;
    while (base != NULL && PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE))
        base = base->tp_base;
    if (base != root || base == type || !PyUnstable_Type_AssignVersionTag(type))
        return 0; /* the instances of other types written in C have state of their own */
    if (names != NULL) {
        if (PyTuple_GET_SIZE(names) > VMH_RECORD_FIELDS_MAX || PyType_HasFeature(type, Py_TPFLAGS_IS_ABSTRACT))
            return 0;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
            PyObject *name = PyTuple_GET_ITEM(names, i);
            int rc = PyUnicode_CheckExact(name) ? find_slot(type, name, &record->slots[i]) : 0;
            if (rc <= 0)
                return rc;
            if (record->slots[i] == NULL && !(type->tp_flags & Py_TPFLAGS_MANAGED_DICT))
                return 0;
        }
    }
    record->version = type->tp_version_tag;
    record->type = (PyTypeObject *)Py_NewRef(type);
    record->names = Py_XNewRef(names);
    return 1;
}

bool vmh_record_holds(const vmh_record *record, PyObject *value, PyObject *dict)
{
    PyObject *fields[VMH_RECORD_FIELDS_MAX];
    Py_ssize_t count = PyTuple_GET_SIZE(record->names);
    bool same = count > 0 && PyDict_CheckExact(dict) && PyDict_GET_SIZE(dict) == count
                && vmh_record_read(record, value, fields) > 0;
    for (Py_ssize_t i = same ? count : 0; i-- > 0; Py_DECREF(fields[i]))
        same = PyDict_GetItemWithError(dict, PyTuple_GET_ITEM(record->names, i)) == fields[i] && same;
    PyErr_Clear();
    return same;
}

bool vmh_record_is_current(const vmh_record *record)
{
    return record->type != NULL && record->type->tp_version_tag == record->version;
}

int vmh_record_read(const vmh_record *record, PyObject *value, PyObject **fields)
{
    PyObject *dict = NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(record->names), done = 0;
    int rc = 1;
    for (; rc > 0 && done < count; done++) {
        fields[done] = NULL;
        if (record->slots[done] != NULL) {
            fields[done] = Py_XNewRef(*(PyObject **)((char *)value + record->slots[done]->offset));
            rc = fields[done] != NULL;
        } else if (dict == NULL && (dict = PyObject_GenericGetDict(value, NULL)) == NULL) {
            rc = -1;
        } else {
            rc = PyDict_GetItemRef(dict, PyTuple_GET_ITEM(record->names, done), &fields[done]);
        }
    }
    Py_XDECREF(dict);
    while (rc <= 0 && done > 0)
        Py_CLEAR(fields[--done]);
    return rc;
}

PyObject *vmh_record_make(const vmh_record *record, PyObject *const *fields)
{
    PyObject *none = PyTuple_New(0), *dict = NULL;
    PyObject *value = none == NULL ? NULL : PyBaseObject_Type.tp_new(record->type, none, NULL);
    Py_XDECREF(none);
    for (Py_ssize_t i = 0; value != NULL && i < PyTuple_GET_SIZE(record->names); i++) {
        if (record->slots[i] != NULL)
            Py_XSETREF(*(PyObject **)((char *)value + record->slots[i]->offset), Py_NewRef(fields[i]));
        else if ((dict == NULL && (dict = PyObject_GenericGetDict(value, NULL)) == NULL)
                 || PyDict_SetItem(dict, PyTuple_GET_ITEM(record->names, i), fields[i]) < 0)
            Py_CLEAR(value);
    }
    Py_XDECREF(dict);
    return value;
}

bool vmh_record_is_error(const PyTypeObject *type)
{
    const PyTypeObject *base = (PyTypeObject *)PyExc_BaseException;
    return !PyType_HasFeature((PyTypeObject *)type, Py_TPFLAGS_HEAPTYPE) && type->tp_basicsize == base->tp_basicsize
           && type->tp_new == base->tp_new && type->tp_init == base->tp_init
           && PyType_IsSubtype((PyTypeObject *)type, (PyTypeObject *)PyExc_Exception);
}

void vmh_record_describe_error(vmh_record *record, PyTypeObject *type)
{
    record->type = (PyTypeObject *)Py_NewRef(type);
    record->version = type->tp_version_tag;
}

PyObject *vmh_record_error_args(PyObject *value)
{
    PyBaseExceptionObject *error = (PyBaseExceptionObject *)value;
    if (error->args == NULL || (error->dict != NULL && PyDict_GET_SIZE(error->dict) > 0))
        return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(error->args); i++)
        if (PyType_HasFeature(Py_TYPE(PyTuple_GET_ITEM(error->args, i)), Py_TPFLAGS_HEAPTYPE))
            return NULL;
    return Py_NewRef(error->args);
}

void vmh_record_clear(vmh_record *record)
{
    Py_CLEAR(record->type);
    Py_CLEAR(record->names);
}
