#include "wire/packed.h"

#include <string.h>

/* ---- the type */

typedef struct {
    PyObject_HEAD
    PyObject *data; /* exact bytes; owned; NULL only during creation */
} packed;

PyObject *vmh_packed_bytes(PyObject *self) { return ((packed *)self)->data; }

static PyObject *packed_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"data", NULL};
    PyObject *data;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:Packed", names, &data))
        return NULL;
    if (!PyBytes_CheckExact(data)) {
        PyErr_Format(PyExc_TypeError, "Packed: expected bytes, got `%T`", data);
        return NULL;
    }
    packed *self = (packed *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->data = Py_NewRef(data);
    return (PyObject *)self;
}

static void packed_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((packed *)self)->data);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *packed_repr(PyObject *self)
{
    return PyUnicode_FromFormat("<vmhost.Packed, %zd bytes>", PyBytes_GET_SIZE(vmh_packed_bytes(self)));
}

static PyObject *packed_data(PyObject *self, void *Py_UNUSED(closure)) { return Py_NewRef(vmh_packed_bytes(self)); }

static PyGetSetDef packed_getset[] = {
    {"data", packed_data, NULL, PyDoc_STR("The bytes."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot packed_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("Packed(data)\n--\n\n"
                                  "A value as msgpack bytes, which the VM decodes. For values that are bytes "
                                  "already, from a file or a socket: the host neither decodes nor encodes "
                                  "them.\n\nIt may be an argument, or part of one except as a dict's key or in a set. "
                                  "Bytes that are not msgpack, or have an extension type, end the call with "
                                  "CrossingError.")},
    {Py_tp_new, packed_new},
    {Py_tp_dealloc, packed_dealloc},
    {Py_tp_repr, packed_repr},
    {Py_tp_getset, packed_getset},
    {0, NULL},
};

PyTypeObject *vmh_packed_type_new(void)
{
    static PyType_Spec spec = {"vmhost.Packed", sizeof(packed), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
                               packed_slots};
    return (PyTypeObject *)PyType_FromSpec(&spec);
}

/* ---- reading msgpack (https://github.com/msgpack/msgpack/blob/master/spec.md) */

/* Short texts are often repeated, keys above all: they share one object. */
enum { DEPTH_MAX = 200, KNOWN_TEXTS = 128, KNOWN_TEXT_BYTES = 24 };

typedef struct {
    const uint8_t *at, *end;
    int depth;
    PyObject *known[KNOWN_TEXTS]; /* ASCII str, by a hash of the text; owned */
} reader;

static PyObject *read_value(reader *r);

static PyObject *cut_short(void)
{
    PyErr_SetString(PyExc_ValueError, "packed: the bytes end in the middle of a value");
    return NULL;
}

/* Consumes `size` bytes. NULL with an error set: fewer are left. */
static const uint8_t *bite(reader *r, size_t size)
{
    if (size > (size_t)(r->end - r->at)) {
        cut_short();
        return NULL;
    }
    const uint8_t *from = r->at;
    r->at += size;
    return from;
}

/* A big-endian number of `bytes` bytes. */
static int read_number(reader *r, int bytes, uint64_t *number)
{
    const uint8_t *from = bite(r, (size_t)bytes);
    if (from == NULL)
        return -1;
    *number = 0;
    for (int i = 0; i < bytes; i++)
        *number = *number << 8 | from[i];
    return 0;
}

static PyObject *read_unsigned(reader *r, int bytes)
{
    uint64_t number;
    return read_number(r, bytes, &number) < 0 ? NULL : PyLong_FromUnsignedLongLong(number);
}

static PyObject *read_signed(reader *r, int bytes)
{
    uint64_t number;
    if (read_number(r, bytes, &number) < 0)
        return NULL;
    int unused = 64 - 8 * bytes;
    return PyLong_FromLongLong((int64_t)(number << unused) >> unused);
}

static PyObject *read_float(reader *r, int bytes)
{
    uint64_t number;
    if (read_number(r, bytes, &number) < 0)
        return NULL;
    double value;
    if (bytes == 4) {
        uint32_t low = (uint32_t)number;
        float single;
        memcpy(&single, &low, sizeof single);
        value = single;
    } else {
        memcpy(&value, &number, sizeof value);
    }
    return PyFloat_FromDouble(value);
}

/* The first eight bytes, or fewer, as a number. */
static uint64_t word_of(const uint8_t *text, size_t size)
{
    uint64_t word = 0;
    memcpy(&word, text, size < sizeof word ? size : sizeof word);
    return word;
}

/* The cache slot of a text of at most KNOWN_TEXT_BYTES. A collision only costs a new object. */
static unsigned slot_of(const uint8_t *text, size_t size)
{
    uint64_t hash = size;
    for (size_t done = 0; done < size; done += 8)
        hash = (hash ^ word_of(text + done, size - done)) * UINT64_C(0x9E3779B97F4A7C15);
    return (unsigned)(hash >> 40) % KNOWN_TEXTS;
}

static bool is_ascii(const uint8_t *text, size_t size)
{
    uint64_t all = 0;
    for (; size >= 8; text += 8, size -= 8)
        all |= word_of(text, 8);
    return ((all | word_of(text, size)) & UINT64_C(0x8080808080808080)) == 0;
}

static PyObject *ascii(const uint8_t *text, size_t size)
{
    PyObject *made = PyUnicode_New((Py_ssize_t)size, 127);
    if (made != NULL && size > 0)
        memcpy(PyUnicode_1BYTE_DATA(made), text, size);
    return made;
}

static PyObject *read_text(reader *r, size_t size)
{
    const uint8_t *text = bite(r, size);
    if (text == NULL)
        return NULL;
    if (!is_ascii(text, size))
        return PyUnicode_DecodeUTF8((const char *)text, (Py_ssize_t)size, "surrogatepass");
    if (size > KNOWN_TEXT_BYTES)
        return ascii(text, size);
    PyObject **known = &r->known[slot_of(text, size)];
    if (*known != NULL && (size_t)PyUnicode_GET_LENGTH(*known) == size
        && memcmp(PyUnicode_1BYTE_DATA(*known), text, size) == 0)
        return Py_NewRef(*known);
    PyObject *made = ascii(text, size);
    if (made != NULL)
        Py_XSETREF(*known, Py_NewRef(made));
    return made;
}

static PyObject *read_bytes(reader *r, size_t size)
{
    const uint8_t *from = bite(r, size);
    return from == NULL ? NULL : PyBytes_FromStringAndSize((const char *)from, (Py_ssize_t)size);
}

static PyObject *read_list(reader *r, size_t count)
{
    if (count > (size_t)(r->end - r->at)) /* each item takes at least a byte */
        return cut_short();
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = read_value(r);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, item);
    }
    return list;
}

static PyObject *read_dict(reader *r, size_t count)
{
    if (count > (size_t)(r->end - r->at) / 2)
        return cut_short();
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict != NULL && i < count; i++) {
        PyObject *key = read_value(r), *item = key == NULL ? NULL : read_value(r);
        if (item == NULL || PyDict_SetItem(dict, key, item) < 0) {
            if (PyErr_ExceptionMatches(PyExc_TypeError))
                PyErr_Format(PyExc_ValueError, "packed: a `%T` cannot be a dict's key", key);
            Py_CLEAR(dict);
        }
        Py_XDECREF(key);
        Py_XDECREF(item);
    }
    return dict;
}

static PyObject *read_nested(reader *r, size_t count, PyObject *(*read)(reader *, size_t))
{
    if (r->depth == DEPTH_MAX) {
        PyErr_Format(PyExc_ValueError, "packed: nested deeper than %d levels", DEPTH_MAX);
        return NULL;
    }
    r->depth++;
    PyObject *value = read(r, count);
    r->depth--;
    return value;
}

/* Reads a value that begins with its number of bytes or items, which is `bytes` bytes long. */
static PyObject *read_counted(reader *r, int bytes, PyObject *(*read)(reader *, size_t), bool nested)
{
    uint64_t count;
    if (read_number(r, bytes, &count) < 0)
        return NULL;
    return nested ? read_nested(r, count, read) : read(r, count);
}

static PyObject *read_value(reader *r)
{
    const uint8_t *from = bite(r, 1);
    if (from == NULL)
        return NULL;
    uint8_t first = *from;
    if (first < 0x80)
        return PyLong_FromLong(first);
    if (first < 0x90)
        return read_nested(r, first & 0x0F, read_dict);
    if (first < 0xA0)
        return read_nested(r, first & 0x0F, read_list);
    if (first < 0xC0)
        return read_text(r, first & 0x1F);
    if (first >= 0xE0)
        return PyLong_FromLong((int8_t)first);
    switch (first) {
    case 0xC0: Py_RETURN_NONE;
    case 0xC2: Py_RETURN_FALSE;
    case 0xC3: Py_RETURN_TRUE;
    case 0xC4: return read_counted(r, 1, read_bytes, false);
    case 0xC5: return read_counted(r, 2, read_bytes, false);
    case 0xC6: return read_counted(r, 4, read_bytes, false);
    case 0xCA: return read_float(r, 4);
    case 0xCB: return read_float(r, 8);
    case 0xCC: return read_unsigned(r, 1);
    case 0xCD: return read_unsigned(r, 2);
    case 0xCE: return read_unsigned(r, 4);
    case 0xCF: return read_unsigned(r, 8);
    case 0xD0: return read_signed(r, 1);
    case 0xD1: return read_signed(r, 2);
    case 0xD2: return read_signed(r, 4);
    case 0xD3: return read_signed(r, 8);
    case 0xD9: return read_counted(r, 1, read_text, false);
    case 0xDA: return read_counted(r, 2, read_text, false);
    case 0xDB: return read_counted(r, 4, read_text, false);
    case 0xDC: return read_counted(r, 2, read_list, true);
    case 0xDD: return read_counted(r, 4, read_list, true);
    case 0xDE: return read_counted(r, 2, read_dict, true);
    case 0xDF: return read_counted(r, 4, read_dict, true);
    default:
        PyErr_Format(PyExc_ValueError,
                     "packed: byte %d begins no value that can cross; expected msgpack without extension types",
                     (int)first);
        return NULL;
    }
}

PyObject *vmh_packed_value(const uint8_t *data, size_t size)
{
    reader r = {.at = data, .end = data + size};
    PyObject *value = read_value(&r);
    if (value != NULL && r.at != r.end) {
        PyErr_Format(PyExc_ValueError, "packed: %zd bytes follow the value", (Py_ssize_t)(r.end - r.at));
        Py_CLEAR(value);
    }
    for (int i = 0; i < KNOWN_TEXTS; i++)
        Py_XDECREF(r.known[i]);
    return value;
}
