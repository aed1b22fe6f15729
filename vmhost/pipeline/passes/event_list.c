/* `EventList`: events as tasks get them, in msgpack (https://github.com/msgpack/msgpack/blob/master/spec.md).
 *
 * Each event is written once, when it is added and still in the processor's caches. The whole list is then a bytes
 * object that a call gets without a copy. */
#include "passes.h"

#include <string.h>

/* The array's head is written last, when the count is known. */
enum { HEAD = 5, FIRST_BYTES = 4096 - 64 };

typedef struct {
    int64_t position, time_ms;
    Py_ssize_t end; /* offset in `bytes`; the entry before has the begin */
    PyObject *key;  /* whose event it is: exact or subclass of str; owned */
} entry;

typedef struct {
    PyObject_HEAD
    PyObject *bytes; /* of `capacity` bytes, owned; shared once `packed` has returned it. NULL: none yet */
    Py_ssize_t size, capacity;
    entry *entries;
    Py_ssize_t count, entry_capacity;
    bool sorted; /* by time, then by position */
} event_list;

/* ---- writing */

/* Makes room for `more` bytes, in an object that is not shared. */
static int reserve(event_list *list, Py_ssize_t more)
{
    if (more > PY_SSIZE_T_MAX / 2 - list->size) {
        PyErr_NoMemory();
        return -1;
    }
    if (list->bytes != NULL && Py_REFCNT(list->bytes) == 1 && more <= list->capacity - list->size)
        return 0;
    Py_ssize_t capacity = list->bytes == NULL && more < FIRST_BYTES - HEAD ? FIRST_BYTES : (list->size + more) * 2;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, capacity);
    if (bytes == NULL)
        return -1;
    if (list->bytes != NULL)
        memcpy(PyBytes_AS_STRING(bytes), PyBytes_AS_STRING(list->bytes), (size_t)list->size);
    Py_XSETREF(list->bytes, bytes);
    list->capacity = capacity;
    return 0;
}

/* These functions write into room made by `reserve`, and return the position after it. */

static uint8_t *put_number(uint8_t *at, uint8_t first, int bytes, uint64_t number)
{
    *at++ = first;
    while (bytes-- > 0)
        *at++ = (uint8_t)(number >> 8 * bytes);
    return at;
}

static uint8_t *put_text(uint8_t *at, const char *text, Py_ssize_t size)
{
    if (size < 32)
        *at++ = (uint8_t)(0xA0 | size);
    else if (size <= UINT8_MAX)
        at = put_number(at, 0xD9, 1, (uint64_t)size);
    else if (size <= UINT16_MAX)
        at = put_number(at, 0xDA, 2, (uint64_t)size);
    else
        at = put_number(at, 0xDB, 4, (uint64_t)size);
    memcpy(at, text, (size_t)size);
    return at + size;
}

/* The attributes of a stored event. */
typedef struct {
    PyObject *event, *packed, *fields[COLUMNS]; /* owned */
    const char *texts[COLUMNS];                 /* UTF-8; NULL: None, or not a text */
    Py_ssize_t sizes[COLUMNS];
    int64_t position, time_ms;
} event_fields;

static void forget(event_fields *t)
{
    Py_XDECREF(t->event);
    Py_XDECREF(t->packed);
    for (int field = 0; field < COLUMNS; field++)
        Py_XDECREF(t->fields[field]);
}

static int read_number(PyObject *value, const char *name, int64_t *number)
{
    if (!PyLong_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s: expected an `int`, got `%T`", name, value);
        return -1;
    }
    *number = PyLong_AsLongLong(value);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static int read_fields(const module_state *state, event_fields *t)
{
    for (int field = 0; field < COLUMNS; field++) {
        PyObject *value = t->fields[field] = passes_get(&state->fields[field], t->event);
        if (value == NULL)
            return -1;
        if (field == TIME_MS) {
            if (read_number(value, "time_ms", &t->time_ms) < 0)
                return -1;
        } else if (PyUnicode_Check(value)) {
            if ((t->texts[field] = PyUnicode_AsUTF8AndSize(value, &t->sizes[field])) == NULL)
                return -1;
            if (t->sizes[field] > UINT32_MAX)
                return PyErr_Format(PyExc_ValueError, "%U: too long for msgpack", state->fields[field].name), -1;
        } else if (field != ID || value != Py_None) {
            return PyErr_Format(PyExc_TypeError, "%U: expected a `str`, got `%T`", state->fields[field].name, value),
                   -1;
        }
    }
    return 0;
}

static int read_stored(const module_state *state, PyObject *stored, event_fields *t)
{
    PyObject *position = passes_get(&state->position, stored);
    int rc = position == NULL ? -1 : read_number(position, "position", &t->position);
    Py_XDECREF(position);
    if (rc < 0 || (t->event = passes_get(&state->event, stored)) == NULL
        || (t->packed = passes_get(&state->packed, stored)) == NULL)
        return -1;
    if (!PyBytes_CheckExact(t->packed)) {
        PyErr_Format(PyExc_ValueError, "packed: expected the contents as bytes, got `%T`", t->packed);
        return -1;
    }
    return read_fields(state, t);
}

/* Fields in the order of Event's. */
static uint8_t *put_event(uint8_t *at, const event_fields *t)
{
#define PUT_KEY(name) at = put_text(at, name, sizeof name - 1)
    *at++ = 0x87;
    PUT_KEY("name");
    at = put_text(at, t->texts[NAME], t->sizes[NAME]);
    PUT_KEY("time_ms");
    at = put_number(at, 0xD3, 8, (uint64_t)t->time_ms);
    PUT_KEY("page");
    at = put_text(at, t->texts[PAGE], t->sizes[PAGE]);
    PUT_KEY("visit");
    at = put_text(at, t->texts[VISIT], t->sizes[VISIT]);
    PUT_KEY("contents");
    memcpy(at, PyBytes_AS_STRING(t->packed), (size_t)PyBytes_GET_SIZE(t->packed));
    at += PyBytes_GET_SIZE(t->packed);
    PUT_KEY("id");
    if (t->texts[ID] == NULL)
        *at++ = 0xC0;
    else
        at = put_text(at, t->texts[ID], t->sizes[ID]);
    PUT_KEY("key");
    return put_text(at, t->texts[KEY], t->sizes[KEY]);
#undef PUT_KEY
}

static int reserve_entry(event_list *list)
{
    if (list->count < list->entry_capacity)
        return 0;
    Py_ssize_t capacity = list->entry_capacity * 2 + 24;
    entry *entries = PyMem_Realloc(list->entries, (size_t)capacity * sizeof *entries);
    if (entries == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    list->entries = entries;
    list->entry_capacity = capacity;
    return 0;
}

static bool is_before(const entry *a, const entry *b)
{
    return a->time_ms != b->time_ms ? a->time_ms < b->time_ms : a->position < b->position;
}

/* Adds an event of `size` bytes that are written already, where `reserve_entry` made room. */
static void add_entry(event_list *list, int64_t position, int64_t time_ms, PyObject *key, Py_ssize_t size)
{
    list->size += size;
    entry *new = &list->entries[list->count++];
    *new = (entry){position, time_ms, list->size, Py_NewRef(key)};
    if (list->count > 1 && is_before(new, new - 1))
        list->sorted = false;
}

static PyObject *append(PyObject *self, PyTypeObject *type, PyObject *const *args, Py_ssize_t given,
                        PyObject *Py_UNUSED(keywords))
{
    event_list *list = (event_list *)self;
    if (given != 1)
        return PyErr_Format(PyExc_TypeError, "append() takes one StoredEvent, got %zd arguments", given);
    event_fields t = {0};
    PyObject *result = NULL;
    if (read_stored(passes_state_of(type), args[0], &t) < 0)
        goto done;
    Py_ssize_t most = 128 + PyBytes_GET_SIZE(t.packed);
    for (int field = 0; field < COLUMNS; field++)
        most += t.sizes[field];
    if (list->count == 0)
        list->size = HEAD;
    if (reserve(list, most) < 0 || reserve_entry(list) < 0)
        goto done;
    uint8_t *begin = (uint8_t *)PyBytes_AS_STRING(list->bytes) + list->size;
    add_entry(list, t.position, t.time_ms, t.fields[KEY], put_event(begin, &t) - begin);
    result = Py_NewRef(Py_None);
done:
    forget(&t);
    return result;
}

/* ---- reading */

static void drop_entries(event_list *list)
{
    for (Py_ssize_t i = 0; i < list->count; i++)
        Py_DECREF(list->entries[i].key);
    list->count = 0;
}

static Py_ssize_t begin_of(const event_list *list, Py_ssize_t index)
{
    return index == 0 ? HEAD : list->entries[index - 1].end;
}

static int compare(const void *a, const void *b)
{
    const entry *one = *(const entry *const *)a, *other = *(const entry *const *)b;
    return is_before(one, other) ? -1 : is_before(other, one);
}

static void put_head(uint8_t *at, Py_ssize_t count) { put_number(at, 0xDD, 4, (uint64_t)count); }

/* The events in [first, last), in order, as bytes of their own. */
static PyObject *copy(const event_list *list, Py_ssize_t first, Py_ssize_t last)
{
    Py_ssize_t count = last - first, size = HEAD + (count == 0 ? 0 : begin_of(list, last) - begin_of(list, first));
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, size);
    if (bytes == NULL)
        return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AS_STRING(bytes);
    put_head(at, count);
    at += HEAD;
    if (count == 0)
        return bytes;
    const uint8_t *from = (const uint8_t *)PyBytes_AS_STRING(list->bytes);
    if (list->sorted) {
        memcpy(at, from + begin_of(list, first), (size_t)(size - HEAD));
        return bytes;
    }
    const entry **order = PyMem_Malloc((size_t)count * sizeof *order);
    if (order == NULL) {
        Py_DECREF(bytes);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++)
        order[i] = &list->entries[first + i];
    qsort(order, (size_t)count, sizeof *order, compare);
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t begin = begin_of(list, order[i] - list->entries);
        memcpy(at, from + begin, (size_t)(order[i]->end - begin));
        at += order[i]->end - begin;
    }
    PyMem_Free(order);
    return bytes;
}

/* Events at positions in (after, until]. They were added in order of position. */
static PyObject *packed(PyObject *self, PyObject *args)
{
    event_list *list = (event_list *)self;
    long long after = 0, until = INT64_MAX;
    if (!PyArg_ParseTuple(args, "|LL:packed", &after, &until))
        return NULL;
    Py_ssize_t first = 0, last = list->count;
    while (first < last && list->entries[first].position <= after)
        first++;
    while (last > first && list->entries[last - 1].position > until)
        last--;
    if (last - first > UINT32_MAX)
        return PyErr_Format(PyExc_ValueError, "too many events for msgpack: %zd", last - first);
    if (first > 0 || last < list->count || last == 0 || !list->sorted || Py_REFCNT(list->bytes) > 1)
        return copy(list, first, last);
    if (list->capacity > list->size) {
        PyObject *bytes = list->bytes;
        int rc = _PyBytes_Resize(&bytes, list->size);
        list->bytes = bytes;
        if (rc < 0) { /* the bytes are lost; shrinking in place needs no memory, so this hardly happens */
            drop_entries(list);
            return NULL;
        }
        list->capacity = list->size;
    }
    put_head((uint8_t *)PyBytes_AS_STRING(list->bytes), list->count);
    return Py_NewRef(list->bytes);
}

/* ---- the type */

static PyObject *without(PyObject *self, PyTypeObject *type, PyObject *const *args, Py_ssize_t given,
                         PyObject *Py_UNUSED(keywords))
{
    const event_list *list = (event_list *)self;
    if (given != 1 || !PyUnicode_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "without() takes a key, a `str`");
    event_list *other = (event_list *)type->tp_alloc(type, 0);
    if (other == NULL)
        return NULL;
    other->sorted = true;
    other->size = HEAD;
    for (Py_ssize_t i = 0; i < list->count; i++) {
        const entry *each = &list->entries[i];
        if (PyUnicode_Equal(each->key, args[0]) == 1)
            continue;
        Py_ssize_t begin = begin_of(list, i), size = each->end - begin;
        if (reserve(other, size) < 0 || reserve_entry(other) < 0) {
            Py_DECREF(other);
            return NULL;
        }
        memcpy(PyBytes_AS_STRING(other->bytes) + other->size, PyBytes_AS_STRING(list->bytes) + begin, (size_t)size);
        add_entry(other, each->position, each->time_ms, each->key, size);
    }
    return (PyObject *)other;
}

static PyObject *event_list_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, ":EventList", names))
        return NULL;
    event_list *list = (event_list *)type->tp_alloc(type, 0);
    if (list != NULL) {
        list->sorted = true;
        list->size = HEAD;
    }
    return (PyObject *)list;
}

static void event_list_dealloc(PyObject *self)
{
    event_list *list = (event_list *)self;
    PyTypeObject *type = Py_TYPE(self);
    drop_entries(list);
    PyMem_Free(list->entries);
    Py_XDECREF(list->bytes);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t event_list_length(PyObject *self) { return ((event_list *)self)->count; }

static PyMethodDef event_list_methods[] = {
    {"append", (PyCFunction)(void (*)(void))append, METH_METHOD | METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("append(stored_event)\n--\n\nIts position is above that of the one before. ValueError where its "
               "contents are not `packed`.")},
    {"packed", packed, METH_VARARGS,
     PyDoc_STR("packed(after=0, until=…) -> bytes\n--\n\n"
               "msgpack's array of the events at positions above `after`, up to `until`, as maps, in order of time, "
               "those of one time by position.")},
    {"without", (PyCFunction)(void (*)(void))without, METH_METHOD | METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("without(key) -> EventList\n--\n\nAnother one, without the events of this key.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot event_list_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("EventList()\n--\n\nEvents in the form in which tasks are given them. One thread at "
                                  "a time.")},
    {Py_tp_new, event_list_new},
    {Py_tp_dealloc, event_list_dealloc},
    {Py_tp_methods, event_list_methods},
    {Py_sq_length, event_list_length},
    {0, NULL},
};

PyType_Spec passes_event_list_spec = {
    "vmhost.pipeline.passes.EventList",
    sizeof(event_list),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    event_list_slots,
};
