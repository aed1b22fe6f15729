#include "wire/wire.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "wire/buffer.h"
#include "wire/engine.h"
#include "wire/handover.h"
#include "wire/library.h"
#include "wire/packed.h"
#include "wire/records.h"
#include "vme_python.h"

/* Each value is a one-byte tag and its payload; sizes and counts are 8 bytes. Both sides are in this process, so byte
 * order is native. */
enum tag {
    TAG_NONE,
    TAG_TRUE,
    TAG_FALSE,
    TAG_INT,
    TAG_BIG,
    TAG_FLOAT,
    TAG_COMPLEX,
    TAG_ASCII,
    TAG_STR,
    TAG_BYTES,
    TAG_LIST,
    TAG_TUPLE,
    TAG_DICT,
    TAG_SET,
    TAG_FROZENSET,
    TAG_BUFFER,
    TAG_LENT_BYTES,
    TAG_LENT_TEXT,
    TAG_GIVEN_BYTES,
    TAG_GIVEN_TEXT,
    TAG_ARRAY,
    TAG_SCALAR,
    TAG_PACKED, /* followed by bytes that contain the encoded value */
    TAG_KIND,   /* followed by a byte, the codec's kind; then its detail and its payload */
    TAG_LAYOUT, /* likewise, with the names of the payload's fields, or None, before it: others follow as TAG_AGAIN */
    TAG_AGAIN,  /* followed by the number of a TAG_LAYOUT of this message, and the payload of a value of its class */
};

/* Kinds of vmhost/guest/classes.py whose values after the first one of a message are read and made here: dataclasses,
 * whose payload has a value for each name; namedtuples, whose payload is a tuple; members of enums, which need none
 * since they are the same object again; and exceptions of Python's own classes, whose payload is their arguments. Zones
 * are the same object again too; they leave half of the layouts to classes. */
enum { KIND_FIELDS = 100, KIND_TUPLE = 101, KIND_MEMBER = 102, KIND_ERROR = 103, LAYOUTS_MAX = 32 };

/* A class whose values the message has already, or an object that it has. */
typedef struct {
    int kind;
    PyObject *same;    /* owned: the object, of the kinds that are one; NULL */
    vmh_record record; /* of the others */
    /* when decoding: */
    PyObject *detail, *names, *payload; /* owned; `payload` only of an object */
} layout;

static bool is_zone_kind(long kind) { return kind == VMH_LIBRARY_TIMEZONE || kind == VMH_LIBRARY_ZONE_INFO; }

static bool is_object_kind(long kind) { return kind == KIND_MEMBER || is_zone_kind(kind); }

/* MAPPED_BYTES: malloc always maps blocks of this size or more (DEFAULT_MMAP_THRESHOLD_MAX of the C library).
 * STOP_LOOK: items between two checks whether the VM is being stopped. */
enum { DEPTH_MAX = 200, MAPPED_BYTES = 32 << 20, STOP_LOOK = 1 << 16 };

/* Bytes of decoded objects; those of containers without their items. A deque has a block of its own. */
enum {
    NUMBER_BYTES = 32,
    TEXT_BYTES = 64,
    LIST_BYTES = 72,
    DICT_BYTES = 240,
    SET_BYTES = 232,
    SLOT_BYTES = 8,   /* of a list or tuple */
    ENTRY_BYTES = 64, /* of a dict or set */
    ARRAY_BYTES = 256,
    KIND_BYTES = 64,
    DEQUE_BYTES = 640,
    DECODED_FACTOR = 4, /* a list that holds one number many times needs it */
};

/* The encoder's position, for messages: one step per container level. */
typedef struct step {
    const struct step *up;
    PyObject *key; /* borrowed from the caller, which holds it; NULL: an index */
    Py_ssize_t index;
} step;

typedef struct {
    vmh_blob *blob;
    const char *what;
    const vmh_codec *codec;
    vmh_vm *vm;
    int depth;
    unsigned walked;  /* container items encoded so far */
    size_t max_bytes; /* maximum size of the message */
    /* About what the value takes once it is decoded, and the maximum: what is small in the VM and on the wire may be
     * large there, such as a list that holds the same empty deque a million times. */
    size_t decoded, max_decoded;
    bool ours;       /* no one else refers to the current container or those around it: its items may be taken out */
    bool in_key;     /* within a dict's key or a set's item */
    layout *layouts; /* LAYOUTS_MAX of them; NULL: none yet */
    uint8_t layout_count;
    vmh_library library;
} encoder;

static layout *new_layout(layout **layouts, uint8_t *count)
{
    if (*layouts == NULL && (*layouts = PyMem_Calloc(LAYOUTS_MAX, sizeof **layouts)) == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    return &(*layouts)[(*count)++];
}

static void free_layouts(layout *layouts, uint8_t count)
{
    PyObject *error = count == 0 ? NULL : PyErr_GetRaisedException();
    for (uint8_t i = 0; i < count; i++) {
        vmh_record_clear(&layouts[i].record);
        Py_XDECREF(layouts[i].same);
        Py_XDECREF(layouts[i].detail);
        Py_XDECREF(layouts[i].names);
        Py_XDECREF(layouts[i].payload);
    }
    if (error != NULL)
        PyErr_SetRaisedException(error);
    PyMem_Free(layouts);
}

/* The path from `$`: "[3]" or ".key" for each step, outermost first. */
static PyObject *path(const step *at)
{
    if (at == NULL)
        return PyUnicode_FromString("$");
    PyObject *up = path(at->up), *all = NULL;
    if (up == NULL)
        return NULL;
    if (at->key == NULL)
        all = PyUnicode_FromFormat("%U[%zd]", up, at->index);
    else if (PyUnicode_CheckExact(at->key) && PyUnicode_IsIdentifier(at->key))
        all = PyUnicode_FromFormat("%U.%.100U", up, at->key);
    else if (PyUnicode_CheckExact(at->key) || PyLong_CheckExact(at->key) || PyBytes_CheckExact(at->key))
        all = PyUnicode_FromFormat("%U[%.100R]", up, at->key);
    else
        all = PyUnicode_FromFormat("%U[a `%.100s`]", up, Py_TYPE(at->key)->tp_name);
    Py_DECREF(up);
    return all;
}

/* Raises `type` with the value's place. `format` has one %s, for the name of the value's type. */
static int refuse(const encoder *e, const step *at, PyObject *type, const char *format, PyObject *value)
{
    PyObject *where = path(at);
    if (where == NULL)
        return -1;
    char name[200];
    snprintf(name, sizeof name, "%s", Py_TYPE(value)->tp_name);
    PyObject *why = PyUnicode_FromFormat(format, name);
    if (why != NULL)
        PyErr_Format(type, "%s: %U: %U", e->what, where, why);
    Py_DECREF(where);
    Py_XDECREF(why);
    return -1;
}

/* Replaces the current exception, which says why a value cannot cross, by a ValueError with the place. An exception
 * that is no `Exception` (a stop, Ctrl-C), and MemoryError, stay. Always -1. */
static int refuse_because(const encoder *e, const step *at)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError))
        return -1;
    PyObject *error = PyErr_GetRaisedException(), *why = PyObject_Str(error), *where = NULL;
    if (why == NULL && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        why = PyUnicode_FromFormat("its buffer raises `%.200s`", Py_TYPE(error)->tp_name);
    }
    if (why != NULL && (where = path(at)) != NULL)
        PyErr_Format(PyExc_ValueError, "%s: %U: %.1000U", e->what, where, why);
    Py_XDECREF(where);
    Py_XDECREF(why);
    Py_DECREF(error);
    return -1;
}

static int refuse_change(const encoder *e, const step *at, PyObject *container)
{
    return refuse(e, at, PyExc_ValueError,
                  "this `%s` changed while it crossed: code of what it holds ran and changed it", container);
}

static uint8_t *room(encoder *e, size_t size)
{
    if (e->vm != NULL && size > e->max_bytes - e->blob->size) {
        PyErr_Format(PyExc_MemoryError, "%s: takes more than %zu bytes, all that this VM may have", e->what,
                     e->max_bytes);
        return NULL;
    }
    if (e->decoded > e->max_decoded) {
        PyErr_Format(PyExc_MemoryError,
                     "%s: would take more than %zu bytes where it arrives, %d times all that this VM "
                     "may have",
                     e->what, e->max_decoded, DECODED_FACTOR);
        return NULL;
    }
    if (!vmh_blob_reserve(e->blob, size)) {
        PyErr_Format(PyExc_MemoryError, "%s: there is no memory for a message of more than %zu bytes", e->what,
                     e->blob->size);
        return NULL;
    }
    uint8_t *at = e->blob->data + e->blob->size;
    e->blob->size += size;
    return at;
}

static int put_tag(encoder *e, enum tag tag)
{
    uint8_t *at = room(e, 1);
    if (at == NULL)
        return -1;
    *at = (uint8_t)tag;
    return 0;
}

static int put_sized(encoder *e, enum tag tag, const void *data, size_t size)
{
    uint8_t *at = room(e, 9 + size);
    if (at == NULL)
        return -1;
    uint64_t n = size;
    *at = (uint8_t)tag;
    memcpy(at + 1, &n, 8);
    memcpy(at + 9, data, size);
    return 0;
}

bool vmh_wire_text(vmh_blob *blob, const char *text)
{
    uint64_t size = strlen(text);
    if (!vmh_blob_reserve(blob, 9 + size))
        return false;
    uint8_t *at = blob->data + blob->size;
    *at = TAG_ASCII;
    memcpy(at + 1, &size, 8);
    memcpy(at + 9, text, size); /* NOLINT(bugprone-not-null-terminated-result): its size is stored before it */
    blob->size += 9 + size;
    return true;
}

static int put_count(encoder *e, enum tag tag, Py_ssize_t count)
{
    uint8_t *at = room(e, 9);
    if (at == NULL)
        return -1;
    uint64_t n = (uint64_t)count;
    *at = (uint8_t)tag;
    memcpy(at + 1, &n, 8);
    return 0;
}

static int put_int(encoder *e, PyObject *value)
{
    int overflow;
    long long small = PyLong_AsLongLongAndOverflow(value, &overflow);
    e->decoded += NUMBER_BYTES;
    if (!overflow) {
        uint8_t *at = room(e, 9);
        if (at == NULL)
            return -1;
        *at = TAG_INT;
        memcpy(at + 1, &small, 8);
        return 0;
    }
    Py_ssize_t size = PyLong_AsNativeBytes(value, NULL, 0, Py_ASNATIVEBYTES_LITTLE_ENDIAN);
    e->decoded += size > 0 ? (size_t)size : 0;
    if (size < 0 || put_count(e, TAG_BIG, size) < 0)
        return -1;
    uint8_t *at = room(e, (size_t)size);
    if (at == NULL)
        return -1;
    return PyLong_AsNativeBytes(value, at, size, Py_ASNATIVEBYTES_LITTLE_ENDIAN) < 0 ? -1 : 0;
}

/* A reference to a storage, with its view: format, dimensions. */
static int put_buffer(encoder *e, vmh_storage *storage, const vmh_view *view)
{
    if (put_tag(e, TAG_BUFFER) < 0)
        return -1;
    uint8_t *at = room(e, 4 + sizeof *view);
    if (at == NULL)
        return -1;
    uint32_t index = e->blob->storage_count;
    memcpy(at, &index, 4);
    memcpy(at + 4, view, sizeof *view);
    if (!vmh_blob_add_storage(e->blob, storage)) {
        PyErr_NoMemory();
        return -1;
    }
    atomic_store(&storage->frozen, true);
    return 0;
}

/* A reference to an array's buffer, with the array's description. */
static int put_array(encoder *e, PyObject *value, const struct vme_python_api *arrays)
{
    vmh_storage *storage = NULL;
    vmh_array array;
    const int64_t *shape, *strides;
    PyObject *crosses;
    if (vmh_engine_put(value, arrays, &storage, &array, &shape, &strides, &crosses) < 0)
        return -1;
    size_t sizes = (size_t)array.rank * sizeof *shape;
    int rc = put_tag(e, TAG_ARRAY);
    uint8_t *at = rc < 0 ? NULL : room(e, sizeof array + 2 * sizes);
    if (at != NULL) {
        array.storage = e->blob->storage_count;
        memcpy(at, &array, sizeof array);
        memcpy(at + sizeof array, shape, sizes);
        memcpy(at + sizeof array + sizes, strides, sizes);
        if (!vmh_blob_add_storage(e->blob, storage)) {
            PyErr_NoMemory();
            at = NULL;
        }
    }
    vmh_storage_unref(storage);
    Py_DECREF(crosses);
    return at == NULL ? -1 : 0;
}

static int put_scalar(encoder *e, const vmh_scalar *scalar)
{
    uint8_t *at = put_tag(e, TAG_SCALAR) < 0 ? NULL : room(e, sizeof *scalar);
    if (at == NULL)
        return -1;
    memcpy(at, scalar, sizeof *scalar);
    return 0;
}

/* 1: `value` has the attribute; 0: it does not; -1: an error that is no `Exception`. */
static int has_attribute(PyObject *value, const char *name)
{
    PyObject *found;
    int has = PyObject_GetOptionalAttrString(value, name, &found);
    Py_XDECREF(found);
    if (has < 0 && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        return 0;
    }
    return has;
}

/* Whether `value` is of the type `name`, of a library that may not be loaded, or of a subclass. */
static bool is_a(PyObject *value, const char *name)
{
    PyObject *types = Py_TYPE(value)->tp_mro;
    for (Py_ssize_t i = 0; types != NULL && i < PyTuple_GET_SIZE(types); i++)
        if (strcmp(((PyTypeObject *)PyTuple_GET_ITEM(types, i))->tp_name, name) == 0)
            return true;
    return false;
}

/* A buffer describes some NumPy elements incompletely, unlike NumPy's own interface
 * (https://numpy.org/doc/stable/reference/arrays.interface.html): a date is just eight bytes, a masked array has no
 * mask. 0: the buffer is complete; 1: it is not from NumPy; -1: refused, or an error. */
static int check_array_interface(const encoder *e, const step *at, PyObject *value)
{
    PyObject *interface, *code = NULL;
    int has = PyObject_GetOptionalAttrString(value, "__array_interface__", &interface), rc = -1;
    if (has < 0 && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        return 1;
    }
    if (has <= 0)
        return has == 0 ? 1 : -1;
    if (PyDict_CheckExact(interface) && PyDict_GetItemStringRef(interface, "typestr", &code) < 0)
        goto done;
    const char *text = code != NULL && PyUnicode_CheckExact(code) ? PyUnicode_AsUTF8(code) : NULL;
    if (text == NULL)
        PyErr_Clear();
    if (text != NULL && text[0] != 0 && strchr("biufc", text[1]) == NULL) {
        PyObject *where = path(at);
        if (where != NULL)
            PyErr_Format(PyExc_TypeError,
                         "%s: %U: a `%.200s` of dtype '%.40s' cannot cross; arrays of bool, int, float and "
                         "complex can",
                         e->what, where, Py_TYPE(value)->tp_name, text);
        Py_XDECREF(where);
    } else if (is_a(value, "MaskedArray")) {
        rc = refuse(e, at, PyExc_TypeError,
                    "a `%s` cannot cross without its mask; send its data and its mask, or filled()", value);
    } else {
        rc = 0;
    }
done:
    Py_XDECREF(code);
    Py_DECREF(interface);
    return rc;
}

/* Recognises a scalar of NumPy's: hashable, read-only, without dimensions. 1: stored in `scalar`; 0: it is something
 * else; -1: an error. */
static int foreign_scalar(PyObject *value, vmh_scalar *scalar)
{
    Py_buffer view;
    if (Py_TYPE(value)->tp_hash == PyObject_HashNotImplemented)
        return 0;
    if (PyObject_GetBuffer(value, &view, PyBUF_FORMAT | PyBUF_STRIDES) < 0) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return -1;
        PyErr_Clear(); /* raised again, with the place, when it is encoded as a buffer */
        return 0;
    }
    scalar->dtype = view.ndim == 0 && view.readonly && view.format != NULL ? vmh_engine_dtype(view.format) : -1;
    bool is = scalar->dtype >= 0 && view.len <= (Py_ssize_t)sizeof scalar->element && view.len == view.itemsize;
    if (is)
        memcpy(scalar->element, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return is;
}

static int refuse_in_key(const encoder *e, const step *at, PyObject *value)
{
    return refuse(e, at, PyExc_TypeError,
                  "a `%s` cannot cross as a dict's key or a set's item; make it a tuple, or bytes", value);
}

static int put_foreign_buffer(encoder *e, const step *at, PyObject *value, bool is_array)
{
    vmh_view view;
    vmh_storage *storage = NULL;
    if (vmh_buffer_from_object(value, e->vm, &storage, &view) < 0)
        return refuse_because(e, at);
    view.is_array = is_array;
    int rc = put_buffer(e, storage, &view);
    vmh_storage_unref(storage);
    return rc;
}

/* An object with the buffer protocol: a scalar by value, otherwise its memory. */
static int put_foreign(encoder *e, const step *at, PyObject *value)
{
    vmh_scalar scalar = {.foreign = true};
    int of_numpy = check_array_interface(e, at, value), is = of_numpy != 0 ? 0 : foreign_scalar(value, &scalar);
    if (of_numpy < 0 || is < 0)
        return -1;
    if (is > 0)
        return put_scalar(e, &scalar);
    if (e->in_key)
        return refuse_in_key(e, at, value);
    int is_array = of_numpy == 0 ? 1 : has_attribute(value, "__dlpack__");
    return is_array < 0 ? -1 : put_foreign_buffer(e, at, value, is_array);
}

static int put_storage(encoder *e, enum tag tag, vmh_storage *storage)
{
    uint32_t index = e->blob->storage_count;
    uint8_t *at = room(e, 5);
    if (at == NULL)
        return -1;
    *at = (uint8_t)tag;
    memcpy(at + 1, &index, 4);
    if (vmh_blob_add_storage(e->blob, storage))
        return 0;
    PyErr_NoMemory();
    return -1;
}

/* The host lends large bytes and ASCII str: a reference instead of a copy. */
static int put_lent(encoder *e, enum tag tag, PyObject *value, void *data, Py_ssize_t size)
{
    vmh_storage *storage = vmh_buffer_lend(value, data, size);
    int rc = storage == NULL ? -1 : put_storage(e, tag, storage);
    if (storage != NULL)
        vmh_storage_unref(storage);
    return rc;
}

static int put_bytes(encoder *e, PyObject *value)
{
    if (e->vm == NULL && PyBytes_GET_SIZE(value) >= VMH_LARGE_BYTES)
        return put_lent(e, TAG_LENT_BYTES, value, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value));
    e->decoded += TEXT_BYTES + (size_t)PyBytes_GET_SIZE(value);
    return put_sized(e, TAG_BYTES, PyBytes_AS_STRING(value), (size_t)PyBytes_GET_SIZE(value));
}

static int put_str(encoder *e, PyObject *value)
{
    if (PyUnicode_IS_ASCII(value) && e->vm == NULL && PyUnicode_GET_LENGTH(value) >= VMH_LARGE_BYTES)
        return put_lent(e, TAG_LENT_TEXT, value, PyUnicode_1BYTE_DATA(value), PyUnicode_GET_LENGTH(value));
    e->decoded += TEXT_BYTES + (size_t)PyUnicode_GET_LENGTH(value) * (size_t)PyUnicode_KIND(value);
    if (PyUnicode_IS_ASCII(value))
        return put_sized(e, TAG_ASCII, PyUnicode_1BYTE_DATA(value), (size_t)PyUnicode_GET_LENGTH(value));
    /* surrogatepass: lone surrogates are valid values */
    PyObject *bytes = PyUnicode_AsEncodedString(value, "utf-8", "surrogatepass");
    if (bytes == NULL)
        return -1;
    int rc = put_sized(e, TAG_STR, PyBytes_AS_STRING(bytes), (size_t)PyBytes_GET_SIZE(bytes));
    Py_DECREF(bytes);
    return rc;
}

/* A VM passes large bytes and ASCII str on with their memory. Takes over the reference to `value`, which must fit. */
static int put_given(encoder *e, PyObject *value)
{
    bool text = PyUnicode_Check(value);
    size_t size = (size_t)(text ? PyUnicode_GET_LENGTH(value) : PyBytes_GET_SIZE(value));
    vmh_storage *storage = vmh_storage_adopt(NULL, size);
    int rc = storage == NULL ? -1 : put_storage(e, text ? TAG_GIVEN_TEXT : TAG_GIVEN_BYTES, storage);
    if (rc < 0) {
        Py_DECREF(value);
        PyErr_NoMemory();
    } else {
        storage->data = vmh_handover_take(value);
        rc = storage->data == NULL ? -1 : 0;
    }
    if (storage != NULL)
        vmh_storage_unref(storage);
    return rc;
}

static int put(encoder *e, PyObject *value, const step *at);

/* True if encoding the value runs no Python code, which could change its container. */
static inline bool is_plain(PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    return type == &PyLong_Type || type == &PyFloat_Type || type == &PyUnicode_Type || value == Py_None
           || type == &PyBool_Type || type == &PyBytes_Type || type == &PyComplex_Type;
}

/* Checks for a stop every STOP_LOOK items: encoding a large message runs no pending calls. -1: stopped. */
static int look_up(encoder *e)
{
    if (++e->walked % STOP_LOOK != 0 || e->vm == NULL || !vmh_vm_stopping(e->vm))
        return 0;
    vmh_vm_raise_stop(e->vm);
    return -1;
}

/* Encodes an item whose code may run and change the container: so it is held meanwhile. */
static int put_held(encoder *e, PyObject *item, const step *at)
{
    Py_INCREF(item);
    int rc = put(e, item, at);
    Py_DECREF(item); /* may run a finalizer */
    return rc;
}

/* Each item is read when its turn comes, and the count is checked after each item that may have run code. */
static int put_list(encoder *e, PyObject *list, Py_ssize_t count, const step *at)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyList_GET_ITEM(list, i);
        step here = {at, NULL, i};
        if (look_up(e) < 0)
            return -1;
        if (e->ours && vmh_handover_fits(item)) {
            PyList_SET_ITEM(list, i, Py_NewRef(Py_None));
            if (put_given(e, item) < 0)
                return -1;
        } else if (is_plain(item)) {
            if (put(e, item, &here) < 0)
                return -1;
        } else {
            if (put_held(e, item, &here) < 0)
                return -1;
            if (PyList_GET_SIZE(list) != count)
                return refuse_change(e, at, list);
        }
    }
    return 0;
}

static int put_tuple(encoder *e, PyObject *tuple, Py_ssize_t count, const step *at)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i);
        step here = {at, NULL, i};
        bool given = e->ours && vmh_handover_fits(item);
        if (look_up(e) < 0)
            return -1;
        if (given)
            PyTuple_SET_ITEM(tuple, i, Py_NewRef(Py_None));
        if ((given ? put_given(e, item) : is_plain(item) ? put(e, item, &here) : put_held(e, item, &here)) < 0)
            return -1;
    }
    return 0;
}

/* Encodes a dict's key or a set's item: its memory is not taken, and it must arrive as something hashable. */
static int put_key(encoder *e, PyObject *key, const step *at)
{
    bool ours = e->ours, in_key = e->in_key;
    e->ours = false;
    e->in_key = true;
    int rc = is_plain(key) ? put(e, key, at) : put_held(e, key, at);
    e->ours = ours;
    e->in_key = in_key;
    return rc;
}

static int put_dict_item(encoder *e, PyObject *dict, PyObject *key, PyObject *item, const step *at)
{
    bool plain = is_plain(key);
    if (put_key(e, key, at) < 0)
        return -1;
    if (!plain || !e->ours || !vmh_handover_fits(item))
        return is_plain(item) ? put(e, item, at) : put_held(e, item, at);
    Py_INCREF(item);
    if (PyDict_SetItem(dict, key, Py_None) < 0) { /* changing a value does not disturb PyDict_Next */
        Py_DECREF(item);
        return -1;
    }
    return put_given(e, item);
}

static int put_dict(encoder *e, PyObject *dict, Py_ssize_t count, const step *at)
{
    Py_ssize_t position = 0, done = 0;
    PyObject *key, *item;
    while (done < count && PyDict_Next(dict, &position, &key, &item)) {
        step here = {at, key, 0};
        int rc = look_up(e);
        bool plain = is_plain(key) && is_plain(item);
        if (rc == 0 && plain) {
            rc = put_dict_item(e, dict, key, item, &here);
        } else if (rc == 0) {
            Py_INCREF(key);
            bool held = !is_plain(key); /* code can run before the item's turn; a held item cannot be handed over */
            if (held)
                Py_INCREF(item);
            rc = put_dict_item(e, dict, key, item, &here);
            if (held)
                Py_DECREF(item);
            Py_DECREF(key);
        }
        if (rc < 0)
            return -1;
        done++;
        if (!plain && PyDict_GET_SIZE(dict) != count)
            return refuse_change(e, at, dict);
    }
    return done == count ? 0 : refuse_change(e, at, dict);
}

static int put_set(encoder *e, PyObject *set, Py_ssize_t count, const step *at)
{
    PyObject *iterator = PyObject_GetIter(set), *item;
    Py_ssize_t done = 0;
    int rc = iterator == NULL ? -1 : 0;
    while (rc == 0 && done < count && PySet_GET_SIZE(set) == count && (item = PyIter_Next(iterator)) != NULL) {
        step here = {at, NULL, done++};
        rc = look_up(e) < 0 || put_key(e, item, &here) < 0 ? -1 : 0;
        Py_DECREF(item);
    }
    Py_XDECREF(iterator);
    if (rc == 0 && PyErr_Occurred())
        rc = -1;
    return rc == 0 && (done != count || PySet_GET_SIZE(set) != count) ? refuse_change(e, at, set) : rc;
}

/* The walk over a container holds its inner containers: there, two references mean that no one else has it. */
static int put_container(encoder *e, PyObject *value, const step *at)
{
    if (e->depth == DEPTH_MAX)
        return refuse(e, at, PyExc_ValueError, "nested deeper than 200 levels, or holds itself (a `%s`)", value);
    bool ours = e->ours;
    e->ours = ours && Py_REFCNT(value) == (e->depth == 0 ? 1 : 2);
    e->depth++;
    int rc;
    if (PyList_CheckExact(value)) {
        Py_ssize_t count = PyList_GET_SIZE(value);
        e->decoded += LIST_BYTES + (size_t)count * SLOT_BYTES;
        rc = put_count(e, TAG_LIST, count) < 0 ? -1 : put_list(e, value, count, at);
    } else if (PyTuple_CheckExact(value)) {
        Py_ssize_t count = PyTuple_GET_SIZE(value);
        e->decoded += count == 0 ? 0 : LIST_BYTES + (size_t)count * SLOT_BYTES;
        rc = put_count(e, TAG_TUPLE, count) < 0 ? -1 : put_tuple(e, value, count, at);
    } else if (PyDict_CheckExact(value)) {
        Py_ssize_t count = PyDict_GET_SIZE(value);
        e->decoded += DICT_BYTES + (size_t)count * ENTRY_BYTES;
        rc = put_count(e, TAG_DICT, count) < 0 ? -1 : put_dict(e, value, count, at);
    } else {
        Py_ssize_t count = PySet_GET_SIZE(value);
        enum tag tag = PyFrozenSet_CheckExact(value) ? TAG_FROZENSET : TAG_SET;
        e->decoded += SET_BYTES + (size_t)count * ENTRY_BYTES;
        rc = put_count(e, tag, count) < 0 ? -1 : put_set(e, value, count, at);
    }
    e->depth--;
    e->ours = ours;
    return rc;
}

static int put_reference(encoder *e, const layout *as)
{
    uint8_t *to = room(e, 2);
    if (to == NULL)
        return -1;
    to[0] = TAG_AGAIN;
    to[1] = (uint8_t)(as - e->layouts);
    return 0;
}

/* Encodes a value of a layout's class by its fields. 0: one is not set, and nothing was encoded. */
static int put_fields(encoder *e, const layout *as, PyObject *value, const step *at)
{
    PyObject *fields[VMH_RECORD_FIELDS_MAX], *names = as->record.names;
    Py_ssize_t count = PyTuple_GET_SIZE(names);
    int rc = vmh_record_read(&as->record, value, fields);
    if (rc <= 0)
        return rc;
    e->decoded += DICT_BYTES + (size_t)count * ENTRY_BYTES;
    rc = put_reference(e, as);
    for (Py_ssize_t i = 0; rc == 0 && i < count; i++) {
        step here = {at, PyTuple_GET_ITEM(names, i), 0};
        rc = look_up(e) < 0 ? -1 : put(e, fields[i], &here);
    }
    for (Py_ssize_t i = 0; i < count; i++)
        Py_DECREF(fields[i]);
    return rc < 0 ? -1 : 1;
}

/* The layout of the value's class, or of the member that it is, if the message has it; NULL. */
static layout *known_layout(const encoder *e, PyObject *value)
{
    for (uint8_t i = 0; i < e->layout_count; i++) {
        layout *as = &e->layouts[i];
        if (is_object_kind(as->kind) ? as->same == value
                                     : Py_IS_TYPE(value, as->record.type) && vmh_record_is_current(&as->record))
            return as;
    }
    return NULL;
}

/* Encodes an exception by its arguments. 0: it has more than these, and nothing was encoded. */
static int put_error(encoder *e, const layout *as, PyObject *value, const step *at)
{
    PyObject *args = vmh_record_error_args(value);
    if (args == NULL)
        return 0;
    Py_ssize_t count = PyTuple_GET_SIZE(args);
    e->decoded += LIST_BYTES + (size_t)count * SLOT_BYTES;
    int rc = put_reference(e, as) < 0 || put_count(e, TAG_TUPLE, count) < 0 ? -1 : put_tuple(e, args, count, at);
    Py_DECREF(args);
    return rc < 0 ? -1 : 1;
}

/* Encodes a value of a class that the message has already. 0: it has to be packed, and nothing was encoded. */
static int put_again(encoder *e, const layout *as, PyObject *value, const step *at)
{
    if (as->kind == KIND_FIELDS)
        return put_fields(e, as, value, at);
    if (as->kind == KIND_ERROR)
        return put_error(e, as, value, at);
    if (put_reference(e, as) < 0)
        return -1;
    if (is_object_kind(as->kind))
        return 1;
    Py_ssize_t count = PyTuple_GET_SIZE(value);
    e->decoded += LIST_BYTES + (size_t)count * SLOT_BYTES;
    return put_count(e, TAG_TUPLE, count) < 0 || put_tuple(e, value, count, at) < 0 ? -1 : 1;
}

/* The new layout of a value's class whose payload has fields of these names, or None; NULL: it has none, or -1 in `rc`
 * with an exception. */
static layout *add_layout(encoder *e, long kind, PyObject *names, PyObject *value, int *rc)
{
    bool fits = kind == KIND_FIELDS  ? PyTuple_CheckExact(names)
                : kind == KIND_TUPLE ? PyTuple_Check(value)
                : kind == KIND_ERROR ? vmh_record_is_error(Py_TYPE(value))
                                     : is_object_kind(kind);
    if (!fits || e->layout_count >= (is_zone_kind(kind) ? LAYOUTS_MAX / 2 : LAYOUTS_MAX))
        return NULL;
    layout new = {.kind = (int)kind}, *as = NULL;
    if (is_object_kind(kind))
        new.same = Py_NewRef(value);
    else if (kind == KIND_ERROR)
        vmh_record_describe_error(&new.record, Py_TYPE(value));
    else
        *rc = vmh_record_describe(&new.record, Py_TYPE(value), kind == KIND_FIELDS ? names : NULL);
    if (*rc > 0 && (as = new_layout(&e->layouts, &e->layout_count)) == NULL)
        *rc = -1;
    if (as != NULL) {
        *as = new;
        return as;
    }
    Py_XDECREF(new.same);
    vmh_record_clear(&new.record);
    return NULL;
}

static int put_head(encoder *e, enum tag tag, long kind, PyObject *detail, const step *at)
{
    uint8_t *to = room(e, 2);
    if (to == NULL)
        return -1;
    to[0] = (uint8_t)tag;
    to[1] = (uint8_t)kind;
    return put(e, detail, at);
}

/* Encodes the codec's result for a value: `packed` is (kind, detail, payload), and the names of the fields, or None, if
 * further values of the class need not be packed. `again`: its class has a layout, which does not fit this value. */
static int put_packed(encoder *e, PyObject *packed, PyObject *value, bool again, const step *at)
{
    int overflow = 0, rc = 1;
    long kind = -1;
    Py_ssize_t size = PyTuple_CheckExact(packed) ? PyTuple_GET_SIZE(packed) : 0;
    if ((size == 3 || size == 4) && PyLong_CheckExact(PyTuple_GET_ITEM(packed, 0)))
        kind = PyLong_AsLongAndOverflow(PyTuple_GET_ITEM(packed, 0), &overflow);
    if (kind < 0 || kind > UINT8_MAX)
        return refuse(e, at, PyExc_ValueError, "packed as a `%s` that is no (kind, detail, payload)", packed);
    PyObject *detail = PyTuple_GET_ITEM(packed, 1), *payload = PyTuple_GET_ITEM(packed, 2);
    PyObject *names = size == 4                                  ? PyTuple_GET_ITEM(packed, 3)
                      : is_zone_kind(kind) || kind == KIND_ERROR ? Py_None
                                                                 : NULL;
    layout *as = names == NULL || again ? NULL : add_layout(e, kind, names, value, &rc);
    if (rc < 0)
        return -1;
    if (as == NULL)
        return put_head(e, TAG_KIND, kind, detail, at) < 0 ? -1 : put(e, payload, at);
    return put_head(e, TAG_LAYOUT, kind, detail, at) < 0 || put(e, names, at) < 0 ? -1 : put(e, payload, at);
}

/* What an object of a kind takes, without its contents. */
static size_t kind_bytes(PyTypeObject *type)
{
    size_t bytes = KIND_BYTES + (size_t)type->tp_basicsize;
    for (; type != NULL; type = type->tp_base)
        if (strcmp(type->tp_name, "collections.deque") == 0)
            return bytes + DEQUE_BYTES;
    return bytes;
}

static int put_parts(encoder *e, const long *parts, int count)
{
    e->decoded += LIST_BYTES + (size_t)count * (SLOT_BYTES + NUMBER_BYTES);
    if (put_count(e, TAG_TUPLE, count) < 0)
        return -1;
    uint8_t *to = room(e, 9 * (size_t)count);
    for (int i = 0; to != NULL && i < count; i++, to += 9) {
        long long part = parts[i];
        *to = TAG_INT;
        memcpy(to + 1, &part, 8);
    }
    return to == NULL ? -1 : 0;
}

/* Encodes a value of datetime or decimal as the codec would. 0: it has to be packed, and nothing was encoded; so has
 * the first time in a zone. */
static int put_library(encoder *e, PyObject *value, const step *at)
{
    static const long no_offset[3];
    vmh_library_value read;
    int rc = vmh_library_read(&e->library, value, &read);
    if (rc <= 0)
        return rc;
    const layout *zone = read.zone == NULL ? NULL : known_layout(e, read.zone);
    if (read.zone != NULL && (zone == NULL || !is_zone_kind(zone->kind)))
        return 0;
    e->decoded += kind_bytes(Py_TYPE(value));
    rc = put_head(e, TAG_KIND, read.kind, read.zone == NULL ? Py_None : read.zone, at);
    if (rc == 0 && read.in_utc) { /* instead of the detail None: UTC */
        e->blob->size--;
        e->decoded += KIND_BYTES;
        rc = put_head(e, TAG_KIND, VMH_LIBRARY_TIMEZONE, Py_None, at) < 0 ? -1 : put_parts(e, no_offset, 3);
    }
    if (rc == 0)
        rc = read.text != NULL ? put_str(e, read.text) : put_parts(e, read.parts, read.count);
    Py_XDECREF(read.text);
    return rc < 0 ? -1 : 1;
}

/* Encodes a value of another class, if the codec knows it. */
static int put_kind(encoder *e, PyObject *value, const step *at)
{
    if (e->depth == DEPTH_MAX)
        return refuse(e, at, PyExc_ValueError, "nested deeper than 200 levels, or holds itself (a `%s`)", value);
    const layout *as = known_layout(e, value);
    bool ours = e->ours;
    if (as != NULL) {
        e->ours = false; /* its fields stay with the value */
        e->decoded += kind_bytes(Py_TYPE(value));
        e->depth++;
        int done = put_again(e, as, value, at);
        e->depth--;
        e->ours = ours;
        if (done != 0)
            return done < 0 ? -1 : 0;
    }
    int known = e->codec->pack == NULL ? 0 : put_library(e, value, at);
    if (known != 0)
        return known < 0 ? -1 : 0;
    PyObject *packed = e->codec->pack == NULL ? Py_NewRef(Py_None) : PyObject_CallOneArg(e->codec->pack, value);
    int rc;
    if (packed == NULL) {
        rc = refuse_because(e, at);
    } else if (packed == Py_None) {
        rc = refuse(e, at, PyExc_TypeError,
                    "a `%s` cannot cross; what can: None, bool, int, float, complex, str, bytes, list, tuple, dict, "
                    "set, frozenset, arrays, and of the standard library Counter, defaultdict, OrderedDict, deque, "
                    "datetime, Decimal, Fraction, UUID and paths (exact types; convert it first)",
                    value);
    } else {
        e->ours = false; /* the packing function may have kept references to its contents */
        e->decoded += kind_bytes(Py_TYPE(value));
        e->depth++;
        rc = put_packed(e, packed, value, as != NULL, at);
        e->depth--;
        e->ours = ours;
    }
    Py_XDECREF(packed);
    return rc;
}

static int put(encoder *e, PyObject *value, const step *at)
{
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyLong_Type)
        return put_int(e, value);
    if (type == &PyFloat_Type) {
        e->decoded += NUMBER_BYTES;
        uint8_t *to = room(e, 9);
        if (to == NULL)
            return -1;
        *to = TAG_FLOAT;
        memcpy(to + 1, &((PyFloatObject *)value)->ob_fval, 8);
        return 0;
    }
    if (type == &PyUnicode_Type)
        return put_str(e, value);
    if (value == Py_None)
        return put_tag(e, TAG_NONE);
    if (type == &PyBool_Type)
        return put_tag(e, value == Py_True ? TAG_TRUE : TAG_FALSE);
    if (type == &PyList_Type || type == &PyTuple_Type || type == &PyDict_Type || type == &PySet_Type
        || type == &PyFrozenSet_Type)
        return put_container(e, value, at);
    if (type == &PyBytes_Type)
        return put_bytes(e, value);
    if (type == &PyComplex_Type) {
        Py_complex c = PyComplex_AsCComplex(value);
        e->decoded += NUMBER_BYTES;
        uint8_t *to = room(e, 17);
        if (to == NULL)
            return -1;
        *to = TAG_COMPLEX;
        memcpy(to + 1, &c.real, 8);
        memcpy(to + 9, &c.imag, 8);
        return 0;
    }
    if (e->vm == NULL && type == e->codec->packed_type)
        return e->in_key ? refuse_in_key(e, at, value)
                         : (put_tag(e, TAG_PACKED) < 0 ? -1 : put_bytes(e, vmh_packed_bytes(value)));
    if (type == e->codec->buffer_type && e->in_key)
        return refuse_in_key(e, at, value);
    if (type == e->codec->buffer_type && atomic_load(&vmh_buffer_storage(value)->writers) > 0)
        return refuse(e, at, PyExc_ValueError, "a writable memoryview on this `%s` is still open; release it first",
                      value);
    if (type == e->codec->buffer_type || PyObject_CheckBuffer(value))
        e->decoded += ARRAY_BYTES;
    if (type == e->codec->buffer_type)
        return put_buffer(e, vmh_buffer_storage(value), vmh_buffer_view(value));
    const struct vme_python_api *arrays = vmh_engine_arrays();
    vmh_scalar scalar = {0};
    if (arrays == NULL && PyErr_Occurred())
        return -1;
    if (arrays != NULL && arrays->array_check(value)) {
        int dtype;
        e->decoded += ARRAY_BYTES;
        if (arrays->array_scalar(value, &dtype, scalar.element)) {
            scalar.dtype = dtype;
            return put_scalar(e, &scalar);
        }
        return e->in_key ? refuse_in_key(e, at, value) : put_array(e, value, arrays);
    }
    if (PyObject_CheckBuffer(value) && !PyBytes_Check(value) && !PyUnicode_Check(value))
        return put_foreign(e, at, value);
    return put_kind(e, value, at);
}

/* Nested lists that contain the same list many times are small in the VM, but not on the wire: so the VM's hard limit
 * applies to the message too. */
static size_t max_message_bytes(vmh_vm *vm)
{
    long long hard = vm == NULL ? LLONG_MAX : atomic_load(&vmh_vm_meter(vm)->hard);
    return hard == LLONG_MAX ? SIZE_MAX : (size_t)hard;
}

/* Likewise for what the message is decoded to: the host's memory is not charged to the VM. */
static size_t max_decoded_bytes(vmh_vm *vm)
{
    size_t bytes = max_message_bytes(vm);
    return bytes > SIZE_MAX / DECODED_FACTOR ? SIZE_MAX : bytes * DECODED_FACTOR;
}

static int put_all(encoder *e, PyObject *value)
{
    int rc = put(e, value, NULL);
    vmh_library_clear(&e->library);
    free_layouts(e->layouts, e->layout_count);
    return rc;
}

int vmh_wire_encode(vmh_blob *blob, PyObject *value, const char *what, const vmh_codec *codec, vmh_vm *vm)
{
    encoder e = {.blob = blob,
                 .what = what,
                 .codec = codec,
                 .vm = vm,
                 .max_bytes = max_message_bytes(vm),
                 .max_decoded = max_decoded_bytes(vm)};
    return put_all(&e, value);
}

int vmh_wire_encode_within(vmh_blob *blob, size_t max_bytes, PyObject *value, const char *what, const vmh_codec *codec,
                           vmh_vm *vm)
{
    encoder e = {.blob = blob, .what = what, .codec = codec, .vm = vm, .max_bytes = max_bytes, .max_decoded = SIZE_MAX};
    return put_all(&e, value);
}

int vmh_wire_encode_away(vmh_blob *blob, PyObject *value, const char *what, const vmh_codec *codec, vmh_vm *vm)
{
    encoder e = {.blob = blob,
                 .what = what,
                 .codec = codec,
                 .vm = vm,
                 .max_bytes = max_message_bytes(vm),
                 .max_decoded = max_decoded_bytes(vm),
                 .ours = true};
    if (vmh_handover_fits(value))
        return put_given(&e, value);
    int rc = put_all(&e, value);
    Py_DECREF(value);
    return rc;
}

/* ---- decoding ---- */

typedef struct {
    const vmh_blob *blob;
    size_t at;
    const vmh_codec *codec;
    bool in_key;         /* inside a dict's key or a set's item */
    bool refused;        /* the codec, or the hashing of a key, refused a value: the exception says why */
    PyObject *where_not; /* then: the path to that value from the one being read, as text; NULL: itself */
    layout *layouts;     /* LAYOUTS_MAX of them; NULL: none yet */
    uint8_t layout_count;
    vmh_library library;
} decoder;

/* Extends the path to a refused value by `key` (NULL: `index`) of the current container. */
static void note_step(decoder *d, PyObject *key, Py_ssize_t index)
{
    if (!d->refused)
        return;
    PyObject *error = PyErr_GetRaisedException(), *all = NULL;
    const char *format = key == NULL                                                                      ? "[%zd]"
                         : PyUnicode_CheckExact(key) && PyUnicode_IsIdentifier(key)                       ? ".%.100U"
                         : PyUnicode_CheckExact(key) || PyLong_CheckExact(key) || PyBytes_CheckExact(key) ? "[%.100R]"
                                                                                                          : "[a `%T`]";
    PyObject *own = key == NULL ? PyUnicode_FromFormat(format, index) : PyUnicode_FromFormat(format, key);
    if (own != NULL && d->where_not != NULL)
        all = PyUnicode_Concat(own, d->where_not);
    else
        all = Py_XNewRef(own);
    Py_XDECREF(own);
    Py_XSETREF(d->where_not, all);
    PyErr_Clear(); /* out of memory: report without the place */
    PyErr_SetRaisedException(error);
}

/* Records that the current exception was raised while a value from the other side was created. */
static void note_refused(decoder *d)
{
    d->refused = PyErr_ExceptionMatches(PyExc_Exception) && !PyErr_ExceptionMatches(PyExc_MemoryError);
}

static const uint8_t *bite(decoder *d, size_t size)
{
    if (size > d->blob->size - d->at) {
        PyErr_SetString(PyExc_SystemError, "vmhost: a value on the wire ends too early");
        return NULL;
    }
    const uint8_t *from = d->blob->data + d->at;
    d->at += size;
    return from;
}

static const uint8_t *bite_sized(decoder *d, uint64_t *size)
{
    const uint8_t *head = bite(d, 8);
    if (head == NULL)
        return NULL;
    memcpy(size, head, 8);
    return bite(d, *size);
}

static PyObject *get(decoder *d);

static PyObject *get_list(decoder *d, Py_ssize_t count)
{
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = get(d);
        if (item != NULL) {
            PyList_SET_ITEM(list, i, item);
        } else {
            note_step(d, NULL, i);
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *get_tuple(decoder *d, Py_ssize_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple != NULL && i < count; i++) {
        PyObject *item = get(d);
        if (item != NULL) {
            PyTuple_SET_ITEM(tuple, i, item);
        } else {
            note_step(d, NULL, i);
            Py_CLEAR(tuple);
        }
    }
    return tuple;
}

static inline PyObject *get_key(decoder *d)
{
    if (d->at < d->blob->size && d->blob->data[d->at] <= TAG_BYTES) /* no codec or container: in_key does not matter */
        return get(d);
    bool in_key = d->in_key;
    d->in_key = true;
    PyObject *key = get(d);
    d->in_key = in_key;
    return key;
}

static PyObject *get_dict(decoder *d, Py_ssize_t count)
{
    PyObject *dict = PyDict_New();
    for (Py_ssize_t i = 0; dict != NULL && i < count; i++) {
        PyObject *key = get_key(d), *item = NULL;
        if (key != NULL && (item = get(d)) == NULL)
            note_step(d, key, 0);
        if (item == NULL) {
            Py_CLEAR(dict);
        } else if (PyDict_SetItem(dict, key, item) < 0) {
            note_refused(d);
            Py_CLEAR(dict);
        }
        Py_XDECREF(key);
        Py_XDECREF(item);
    }
    return dict;
}

static PyObject *get_set(decoder *d, Py_ssize_t count, bool frozen)
{
    PyObject *set = frozen ? PyFrozenSet_New(NULL) : PySet_New(NULL);
    for (Py_ssize_t i = 0; set != NULL && i < count; i++) {
        PyObject *item = get_key(d);
        if (item == NULL) {
            Py_CLEAR(set);
        } else if (PySet_Add(set, item) < 0) {
            note_refused(d);
            Py_CLEAR(set);
        }
        Py_XDECREF(item);
    }
    return set;
}

/* The codec's value of a kind; `payload` may be NULL, with an exception. */
static PyObject *unpacked(decoder *d, int kind, PyObject *detail, PyObject *payload)
{
    PyObject *value = NULL;
    if (payload != NULL && d->codec->unpack == NULL) {
        PyErr_Format(PyExc_ValueError, "values of kind %d cannot cross here", kind);
        note_refused(d);
    } else if (payload != NULL) {
        const char *entry = d->codec->entry;
        value = PyObject_CallFunction(d->codec->unpack, "iOOOz", kind, detail, payload, d->in_key ? Py_True : Py_False,
                                      entry);
        if (value == NULL)
            note_refused(d);
    }
    if (d->refused && value == NULL && payload != NULL && d->codec->lenient) {
        PyErr_Clear();
        d->refused = false;
        value = Py_NewRef(Py_None);
    }
    return value;
}

static bool is_known_zone(const decoder *d, PyObject *value)
{
    for (uint8_t i = 0; i < d->layout_count; i++)
        if (d->layouts[i].same == value && is_zone_kind(d->layouts[i].kind))
            return true;
    return false;
}

/* Passes a kind's detail and payload to the codec. */
static PyObject *get_kind(decoder *d)
{
    const uint8_t *from = bite(d, 1);
    if (from == NULL)
        return NULL;
    int kind = *from;
    PyObject *detail = get(d), *payload = detail == NULL ? NULL : get(d);
    PyObject *value = NULL;
    if (payload != NULL && d->codec->unpack != NULL)
        value = vmh_library_make(&d->library, kind, detail, is_known_zone(d, detail), payload);
    if (value == NULL && detail != NULL && (payload == NULL || !PyErr_Occurred()))
        value = unpacked(d, kind, detail, payload);
    Py_XDECREF(detail);
    Py_XDECREF(payload);
    return value;
}

/* The first value of a layout, which the codec makes and checks. From it is learned how others are made. */
static PyObject *get_layout(decoder *d)
{
    const uint8_t *from = bite(d, 1);
    if (from == NULL || d->layout_count == LAYOUTS_MAX) {
        if (from != NULL)
            PyErr_SetString(PyExc_SystemError, "vmhost: a message has too many layouts");
        return NULL;
    }
    int kind = *from;
    PyObject *detail = get(d), *names = detail == NULL ? NULL : get(d), *payload = NULL, *value = NULL;
    layout *as = names == NULL ? NULL : new_layout(&d->layouts, &d->layout_count);
    if (as != NULL) {
        as->kind = kind;
        as->detail = Py_NewRef(detail);
        as->names = Py_NewRef(names);
        payload = get(d);
        value = unpacked(d, kind, detail, payload);
    }
    int rc = 0;
    if (value != NULL && is_object_kind(kind) && !(d->in_key && kind == KIND_MEMBER))
        as->same = Py_NewRef(value);
    else if (value != NULL && kind == KIND_TUPLE && PyTuple_Check(value))
        rc = vmh_record_describe(&as->record, Py_TYPE(value), NULL);
    else if (value != NULL && kind == KIND_FIELDS && PyTuple_CheckExact(names))
        rc = vmh_record_describe(&as->record, Py_TYPE(value), names);
    if (rc > 0 && kind == KIND_FIELDS && !vmh_record_holds(&as->record, value, payload))
        vmh_record_clear(&as->record); /* made in another way */
    if (rc < 0)
        Py_CLEAR(value);
    if (value != NULL && kind == KIND_ERROR && vmh_record_is_error(Py_TYPE(value)))
        vmh_record_describe_error(&as->record, Py_TYPE(value));
    if (value != NULL && is_object_kind(kind))
        as->payload = Py_NewRef(payload);
    Py_XDECREF(detail);
    Py_XDECREF(names);
    Py_XDECREF(payload);
    return value;
}

/* A dataclass's value of the fields that follow. */
static PyObject *get_fields(decoder *d, const layout *as)
{
    PyObject *fields[VMH_RECORD_FIELDS_MAX], *value = NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(as->names), done = 0;
    while (done < count && (fields[done] = get(d)) != NULL)
        done++;
    if (done < count) {
        note_step(d, PyTuple_GET_ITEM(as->names, done), 0);
    } else if (!d->in_key && vmh_record_is_current(&as->record)) { /* making the fields may have changed the class */
        value = vmh_record_make(&as->record, fields);
    } else {
        PyObject *payload = PyDict_New();
        for (Py_ssize_t i = 0; payload != NULL && i < count; i++)
            if (PyDict_SetItem(payload, PyTuple_GET_ITEM(as->names, i), fields[i]) < 0)
                Py_CLEAR(payload);
        value = unpacked(d, as->kind, as->detail, payload);
        Py_XDECREF(payload);
    }
    while (done > 0)
        Py_DECREF(fields[--done]);
    return value;
}

/* An exception of these arguments, whose reference it takes. */
static PyObject *get_error(decoder *d, const layout *as, PyObject *args)
{
    PyObject *value = NULL;
    if (!d->in_key && vmh_record_is_current(&as->record) && PyTuple_CheckExact(args)) {
        value = PyObject_CallObject((PyObject *)as->record.type, args);
    } else {
        PyObject *payload = Py_BuildValue("(O{})", args);
        value = unpacked(d, as->kind, as->detail, payload);
        Py_XDECREF(payload);
    }
    Py_DECREF(args);
    return value;
}

/* A further value of a layout. */
static PyObject *get_again(decoder *d)
{
    const uint8_t *from = bite(d, 1);
    if (from == NULL || *from >= d->layout_count) {
        if (from != NULL)
            PyErr_SetString(PyExc_SystemError, "vmhost: a value on the wire has no layout");
        return NULL;
    }
    const layout *as = &d->layouts[*from];
    PyObject *payload, *value = NULL;
    if (is_object_kind(as->kind))
        return as->same != NULL && !(d->in_key && as->kind == KIND_MEMBER)
                   ? Py_NewRef(as->same)
                   : unpacked(d, as->kind, as->detail, as->payload);
    if (as->kind == KIND_FIELDS && PyTuple_CheckExact(as->names)
        && PyTuple_GET_SIZE(as->names) <= VMH_RECORD_FIELDS_MAX)
        return get_fields(d, as);
    if ((payload = get(d)) == NULL)
        return NULL;
    if (as->kind == KIND_ERROR)
        return get_error(d, as, payload);
    if (d->in_key || !vmh_record_is_current(&as->record) || !PyTuple_CheckExact(payload)) {
        value = unpacked(d, as->kind, as->detail, payload);
    } else {
        PyObject *arguments = PyTuple_Pack(1, payload);
        value = arguments == NULL ? NULL : PyTuple_Type.tp_new(as->record.type, arguments, NULL);
        Py_XDECREF(arguments);
    }
    Py_DECREF(payload);
    return value;
}

static PyObject *get_container(decoder *d, enum tag tag)
{
    const uint8_t *head = bite(d, 8);
    if (head == NULL)
        return NULL;
    uint64_t count;
    memcpy(&count, head, 8);
    if (count > d->blob->size - d->at) { /* each item takes at least a byte */
        PyErr_SetString(PyExc_SystemError, "vmhost: a container on the wire is longer than its message");
        return NULL;
    }
    Py_ssize_t n = (Py_ssize_t)count;
    return tag == TAG_LIST    ? get_list(d, n)
           : tag == TAG_TUPLE ? get_tuple(d, n)
           : tag == TAG_DICT  ? get_dict(d, n)
                              : get_set(d, n, tag == TAG_FROZENSET);
}

static PyObject *get_buffer(decoder *d)
{
    const uint8_t *from = bite(d, 4 + sizeof(vmh_view));
    if (from == NULL)
        return NULL;
    uint32_t index;
    vmh_view view;
    memcpy(&index, from, 4);
    memcpy(&view, from + 4, sizeof view);
    if (index >= d->blob->storage_count) {
        PyErr_SetString(PyExc_SystemError, "vmhost: a buffer on the wire has no storage");
        return NULL;
    }
    int dtype = view.is_array && vmh_engine_arrays() != NULL ? vmh_engine_dtype(view.format) : -1;
    if (PyErr_Occurred())
        return NULL;
    if (dtype >= 0) {
        vmh_array array = {index, dtype, view.dimensions, 0};
        return vmh_engine_get(d->blob->storages[index], &array, view.shape, NULL);
    }
    return vmh_buffer_new(d->codec->buffer_type, d->blob->storages[index], &view);
}

static PyObject *get_array(decoder *d)
{
    vmh_array array;
    int64_t sizes[2 * VME_RANK_MAX];
    const uint8_t *from = bite(d, sizeof array);
    if (from == NULL)
        return NULL;
    memcpy(&array, from, sizeof array);
    if (array.storage >= d->blob->storage_count || array.rank < 0 || array.rank > VME_RANK_MAX) {
        PyErr_SetString(PyExc_SystemError, "vmhost: an array on the wire is damaged");
        return NULL;
    }
    size_t rank = (size_t)array.rank;
    if ((from = bite(d, 2 * rank * sizeof *sizes)) == NULL)
        return NULL;
    memcpy(sizes, from, 2 * rank * sizeof *sizes);
    return vmh_engine_get(d->blob->storages[array.storage], &array, sizes, sizes + rank);
}

static PyObject *get_scalar(decoder *d)
{
    vmh_scalar scalar;
    const uint8_t *from = bite(d, sizeof scalar);
    if (from == NULL)
        return NULL;
    memcpy(&scalar, from, sizeof scalar);
    return vmh_engine_scalar(&scalar);
}

static vmh_storage *get_storage(decoder *d)
{
    const uint8_t *from = bite(d, 4);
    if (from == NULL)
        return NULL;
    uint32_t index;
    memcpy(&index, from, 4);
    if (index < d->blob->storage_count)
        return d->blob->storages[index];
    PyErr_SetString(PyExc_SystemError, "vmhost: large bytes or a str on the wire have no storage");
    return NULL;
}

/* Decodes the value in the bytes that follow. */
static PyObject *get_packed(decoder *d)
{
    const uint8_t *tag = bite(d, 1), *data = NULL;
    uint64_t size = 0;
    const vmh_storage *storage;
    if (tag == NULL)
        return NULL;
    if (*tag == TAG_BYTES) {
        data = bite_sized(d, &size);
    } else if ((storage = get_storage(d)) != NULL) {
        data = storage->data;
        size = storage->size;
    }
    PyObject *value = data == NULL ? NULL : vmh_packed_value(data, size);
    if (data != NULL && value == NULL)
        note_refused(d);
    return value;
}

/* Advises huge pages for a block that is so large that malloc maps it: they halve the cost of its first write. */
static void expect_writing(void *data, size_t size)
{
    const uintptr_t huge = 2 << 20, begin = ((uintptr_t)data + huge - 1) & ~(huge - 1),
                    end = ((uintptr_t)data + size) & ~(huge - 1);
    if (size >= MAPPED_BYTES && begin < end)
        madvise((void *)begin, end - begin, MADV_HUGEPAGE); /* optional: some kernels do not support it */
}

static PyObject *get_lent(decoder *d, bool text)
{
    const vmh_storage *storage = get_storage(d);
    if (storage == NULL)
        return NULL;
    Py_ssize_t size = (Py_ssize_t)storage->size;
    PyObject *value = text ? PyUnicode_New(size, 127) : PyBytes_FromStringAndSize(NULL, size);
    if (value == NULL)
        return NULL;
    void *data = text ? (void *)PyUnicode_1BYTE_DATA(value) : (void *)PyBytes_AS_STRING(value);
    expect_writing(data, storage->size);
    memcpy(data, storage->data, storage->size);
    return value;
}

/* The first decoding turns the memory into the value; the storage then lends from that value, in case it is decoded
 * again. */
static PyObject *get_given(decoder *d, bool text)
{
    vmh_storage *storage = get_storage(d);
    if (storage == NULL)
        return NULL;
    if (storage->lender != NULL)
        return Py_NewRef(((Py_buffer *)storage->lender)->obj);
    Py_buffer *lender = PyMem_RawCalloc(1, sizeof *lender);
    if (lender == NULL)
        return PyErr_NoMemory();
    PyObject *value = vmh_handover_give(storage->data, storage->size, text);
    if (value == NULL) {
        PyMem_RawFree(lender);
        return NULL;
    }
    storage->data = text ? (void *)PyUnicode_1BYTE_DATA(value) : (void *)PyBytes_AS_STRING(value);
    storage->lender = lender;
    if (PyBuffer_FillInfo(lender, value, storage->data, (Py_ssize_t)storage->size, 1, PyBUF_SIMPLE) < 0)
        Py_CLEAR(value); /* impossible: it fails only for writable requests */
    return value;
}

static PyObject *get_ascii(const uint8_t *from, Py_ssize_t size)
{
    PyObject *text = PyUnicode_New(size, 127);
    if (text != NULL && size > 0)
        memcpy(PyUnicode_1BYTE_DATA(text), from, (size_t)size);
    return text;
}

static PyObject *get(decoder *d)
{
    const uint8_t *from = bite(d, 1);
    if (from == NULL)
        return NULL;
    enum tag tag = *from;
    uint64_t size;
    double real, imaginary;
    long long small;
    switch (tag) {
    case TAG_NONE: Py_RETURN_NONE;
    case TAG_TRUE: Py_RETURN_TRUE;
    case TAG_FALSE: Py_RETURN_FALSE;
    case TAG_INT:
        if ((from = bite(d, 8)) == NULL)
            return NULL;
        memcpy(&small, from, 8);
        return PyLong_FromLongLong(small);
    case TAG_BIG:
        if ((from = bite_sized(d, &size)) == NULL)
            return NULL;
        return PyLong_FromNativeBytes(from, size, Py_ASNATIVEBYTES_LITTLE_ENDIAN);
    case TAG_FLOAT:
        if ((from = bite(d, 8)) == NULL)
            return NULL;
        memcpy(&real, from, 8);
        return PyFloat_FromDouble(real);
    case TAG_COMPLEX:
        if ((from = bite(d, 16)) == NULL)
            return NULL;
        memcpy(&real, from, 8);
        memcpy(&imaginary, from + 8, 8);
        return PyComplex_FromDoubles(real, imaginary);
    case TAG_ASCII: return (from = bite_sized(d, &size)) == NULL ? NULL : get_ascii(from, (Py_ssize_t)size);
    case TAG_STR:
        return (from = bite_sized(d, &size)) == NULL
                   ? NULL
                   : PyUnicode_DecodeUTF8((const char *)from, (Py_ssize_t)size, "surrogatepass");
    case TAG_BYTES:
        return (from = bite_sized(d, &size)) == NULL ? NULL
                                                     : PyBytes_FromStringAndSize((const char *)from, (Py_ssize_t)size);
    case TAG_LIST:
    case TAG_TUPLE:
    case TAG_DICT:
    case TAG_SET:
    case TAG_FROZENSET: return get_container(d, tag);
    case TAG_BUFFER: return get_buffer(d);
    case TAG_LENT_BYTES:
    case TAG_LENT_TEXT: return get_lent(d, tag == TAG_LENT_TEXT);
    case TAG_GIVEN_BYTES:
    case TAG_GIVEN_TEXT: return get_given(d, tag == TAG_GIVEN_TEXT);
    case TAG_ARRAY: return get_array(d);
    case TAG_SCALAR: return get_scalar(d);
    case TAG_PACKED: return get_packed(d);
    case TAG_KIND: return get_kind(d);
    case TAG_LAYOUT: return get_layout(d);
    case TAG_AGAIN: return get_again(d);
    }
    PyErr_Format(PyExc_SystemError, "vmhost: tag %d on the wire is unknown", (int)tag);
    return NULL;
}

/* Replaces the current exception by a ValueError that begins with the path of the refused value. */
static void raise_refused(const char *what, PyObject *where_not)
{
    PyObject *error = PyErr_GetRaisedException(), *why = PyObject_Str(error);
    if (why == NULL && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        why = PyUnicode_FromFormat("making it raised `%T`", error);
    }
    if (why != NULL && where_not != NULL)
        PyErr_Format(PyExc_ValueError, "%s: $%U: %.1000U", what, where_not, why);
    else if (why != NULL)
        PyErr_Format(PyExc_ValueError, "%s: $: %.1000U", what, why);
    Py_XDECREF(why);
    Py_DECREF(error);
}

PyObject *vmh_wire_decode(const vmh_blob *blob, const char *what, const vmh_codec *codec)
{
    decoder d = {.blob = blob, .codec = codec};
    PyObject *value = get(&d);
    if (d.refused)
        raise_refused(what, d.where_not);
    Py_XDECREF(d.where_not);
    vmh_library_clear(&d.library);
    free_layouts(d.layouts, d.layout_count);
    return value;
}
