/* `vmhost.pipeline.patterns._patterns`: the pattern matcher for Python. Main interpreter only, under its GIL.
 *
 * Engine holds a reference to the token of each rule, and to the paths of fields: tuples of a root (ROOTS) and of keys
 * into nested dicts. A field is looked up when a condition first needs it. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core/patterns.h"

enum { OF_CONTENTS, OF_NAME, OF_KEY, OF_PAGE, OF_VISIT, OF_TIME, OF_ID, ROOTS };

typedef struct {
    PyTypeObject *engine_type;
    PyObject *error;
    PyObject *attributes[ROOTS]; /* their names in events; OF_ID: `position` of stored events */
    PyObject *event;
} module_state;

typedef struct {
    PyObject_HEAD
    vmp_engine *engine;        /* NULL only during construction */
    PyObject *paths;           /* a list of tuples */
    PyObject *nothing, *begun; /* results of `feed` where nothing was completed */
    long long max_bytes;
    bool busy; /* during a call: calls from callbacks are refused */
} engine_object;

/* The current event. References are borrowed, except for encodings of texts with surrogates. */
typedef struct {
    engine_object *self;
    PyObject *given[ROOTS];
    PyObject *made[4];
    int made_count;
} fed_event;

static struct PyModuleDef patterns_module;

static module_state *state_of(PyTypeObject *type)
{
    PyObject *module = PyType_GetModuleByDef(type, &patterns_module);
    return module == NULL ? NULL : PyModule_GetState(module);
}

static void *allocate(void *Py_UNUSED(context), void *old, size_t Py_UNUSED(old_size), size_t new_size)
{
    if (new_size == 0) {
        PyMem_RawFree(old);
        return NULL;
    }
    return PyMem_RawRealloc(old, new_size);
}

static void release(void *token) { Py_DECREF((PyObject *)token); }

/* ---- conversion from Python */

/* The text's UTF-8, valid as long as `object`. A text with lone surrogates gets a bytes object of its own, in `made`.
 * */
static int to_text(PyObject *object, const char *what, vmt_text *text, PyObject **made, int *made_count)
{
    if (!PyUnicode_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s: expected a `str`, got `%T`", what, object);
        return -1;
    }
    Py_ssize_t size;
    const char *data = PyUnicode_AsUTF8AndSize(object, &size);
    if (data == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
            return -1;
        PyErr_Clear();
        PyObject *bytes = PyUnicode_AsEncodedString(object, "utf-8", "surrogatepass");
        if (bytes == NULL)
            return -1;
        made[(*made_count)++] = bytes;
        data = PyBytes_AS_STRING(bytes);
        size = PyBytes_GET_SIZE(bytes);
    }
    *text = (vmt_text){0, data, (size_t)size, 1};
    return 0;
}

static PyObject *from_text(const vmt_text *text)
{
    return PyUnicode_DecodeUTF8(text->data == NULL ? "" : text->data, (Py_ssize_t)text->size, "surrogatepass");
}

static int to_number(PyObject *object, const char *what, int64_t *number)
{
    if (!PyLong_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s: expected an `int`, got `%T`", what, object);
        return -1;
    }
    int overflow;
    *number = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow != 0) {
        PyErr_Format(PyExc_ValueError, "%s: expected an `int` of up to 64 bits, got a larger one", what);
        return -1;
    }
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

/* A value that borrows its texts from the object. Integers beyond 64 bits become doubles. */
static vmp_value to_value(PyObject *object)
{
    if (object == NULL)
        return (vmp_value){.kind = VMP_NONE};
    if (object == Py_None)
        return (vmp_value){.kind = VMP_NULL};
    if (PyBool_Check(object))
        return (vmp_value){.kind = VMP_BOOL, .truth = object == Py_True};
    if (PyFloat_Check(object))
        return (vmp_value){.kind = VMP_DOUBLE, .real = PyFloat_AS_DOUBLE(object)};
    if (PyLong_Check(object)) {
        int overflow;
        long long whole = PyLong_AsLongLongAndOverflow(object, &overflow);
        if (overflow == 0)
            return (vmp_value){.kind = VMP_INT, .whole = whole};
        double real = PyLong_AsDouble(object);
        if (real == -1.0 && PyErr_Occurred()) {
            PyErr_Clear();
            real = overflow < 0 ? -Py_HUGE_VAL : Py_HUGE_VAL;
        }
        return (vmp_value){.kind = VMP_DOUBLE, .real = real};
    }
    Py_ssize_t size;
    if (PyUnicode_Check(object)) {
        const char *data = PyUnicode_AsUTF8AndSize(object, &size);
        if (data == NULL)
            PyErr_Clear();
        if (data == NULL || (size_t)size > UINT32_MAX)
            return (vmp_value){.kind = VMP_OTHER};
        return (vmp_value){.kind = VMP_TEXT, .size = (uint32_t)size, .text = data};
    }
    if (PyBytes_Check(object) && (size_t)PyBytes_GET_SIZE(object) <= UINT32_MAX)
        return (vmp_value){
            .kind = VMP_BYTES, .size = (uint32_t)PyBytes_GET_SIZE(object), .text = PyBytes_AS_STRING(object)};
    return (vmp_value){.kind = VMP_OTHER};
}

/* Keys of paths and contents are exact texts, so no foreign code runs; the dicts of the contents own what is borrowed.
 * */
static vmp_value field_of(void *context, uint32_t number)
{
    fed_event *fed = context;
    PyObject *path = PyList_GET_ITEM(fed->self->paths, number);
    PyObject *here = fed->given[PyLong_AsLong(PyTuple_GET_ITEM(path, 0))];
    for (Py_ssize_t i = 1; here != NULL && i < PyTuple_GET_SIZE(path); i++) {
        if (!PyDict_CheckExact(here))
            return (vmp_value){.kind = VMP_NONE};
        here = PyDict_GetItemWithError(here, PyTuple_GET_ITEM(path, i));
        if (here == NULL)
            PyErr_Clear();
    }
    return to_value(here);
}

static PyObject *failed(engine_object *self, vmp_status status, PyObject *key)
{
    module_state *state = state_of(Py_TYPE(self));
    if (state == NULL)
        return NULL;
    switch (status) {
    case VMP_NO_MEMORY: return PyErr_NoMemory();
    case VMP_FULL:
        return PyErr_Format(
            state->error,
            "%R: rules may take %lld bytes, three quarters of max_bytes, and look back at 64 fields, and "
            "this one does not fit; withdraw others or raise max_bytes",
            key, self->max_bytes / 4 * 3);
    case VMP_KNOWN: return PyErr_Format(state->error, "%R: there is a rule with this key; remove it first", key);
    case VMP_UNKNOWN: return PyErr_Format(state->error, "%R: there is no rule with this key", key);
    default: return PyErr_Format(state->error, "%R: the rule is too large, or its description is damaged", key);
    }
}

static bool in_use(engine_object *self)
{
    if (self->busy)
        PyErr_SetString(PyExc_RuntimeError, "the engine is in use");
    return self->busy;
}

/* ---- rules */

/* Memory of one description, freed together. */
typedef struct {
    void *blocks[16];
    int count;
    PyObject *made[4];
    int made_count;
    PyObject **texts; /* encodings of names with surrogates */
    size_t text_count;
} description_memory;

static void *room(description_memory *memory, size_t count, size_t size)
{
    void *given = PyMem_Calloc(count + 1, size);
    if (given == NULL)
        return PyErr_NoMemory();
    return memory->blocks[memory->count++] = given;
}

static int name_text(PyObject *object, vmt_text *text)
{
    PyObject *made[1];
    int count = 0;
    if (to_text(object, "name", text, made, &count) < 0)
        return -1;
    if (count != 0) {
        Py_DECREF(made[0]);
        PyErr_SetString(PyExc_ValueError, "name: expected a text without lone surrogates");
        return -1;
    }
    return 0;
}

static vmt_text *to_names(description_memory *memory, PyObject *listed, size_t *count, bool *any)
{
    *any = listed == Py_None;
    *count = *any ? 0 : (size_t)PyTuple_GET_SIZE(listed);
    vmt_text *texts = room(memory, *count, sizeof *texts);
    for (size_t i = 0; texts != NULL && i < *count; i++)
        if (name_text(PyTuple_GET_ITEM(listed, i), &texts[i]) < 0)
            return NULL;
    return texts;
}

/* (kind, step, edges, window_ms), (action, target, codes), codes, (name or None, gathers, first, count),
 * (operation, a, b, c), constants as (kind or None, value) */
static int to_description(description_memory *memory, PyObject *tuple, vmp_rule_description *description)
{
    PyObject *states, *edges, *codes, *predicates, *operations, *constants, *begins, *listens, *keeps;
    unsigned char space, skip;
    unsigned short skip_step, start, steps;
    int loud, quiet;
    long long within_ms;
    unsigned long long fingerprint, shape;
    int goes_on;
    if (!PyArg_ParseTuple(tuple, "KKpbbppHHHLO!O!O!O!O!O!OOO!", &fingerprint, &shape, &goes_on, &space, &skip, &loud,
                          &quiet, &skip_step, &start, &steps, &within_ms, &PyTuple_Type, &states, &PyTuple_Type, &edges,
                          &PyTuple_Type, &codes, &PyTuple_Type, &predicates, &PyTuple_Type, &operations, &PyTuple_Type,
                          &constants, &begins, &listens, &PyTuple_Type, &keeps))
        return -1;
    if ((begins != Py_None && !PyTuple_Check(begins)) || (listens != Py_None && !PyTuple_Check(listens))) {
        PyErr_SetString(PyExc_TypeError, "expected names as a tuple or None");
        return -1;
    }
    description->fingerprint = fingerprint;
    description->shape = shape;
    description->goes_on = goes_on;
    description->space = space;
    description->skip = skip;
    description->loud = loud;
    description->quiet = quiet;
    description->skip_step = skip_step;
    description->start = start;
    description->steps = steps;
    description->within_ms = within_ms;
    description->state_count = (size_t)PyTuple_GET_SIZE(states);
    vmp_state *state = room(memory, description->state_count, sizeof *state);
    description->states = state;
    for (size_t i = 0; state != NULL && i < description->state_count; i++) {
        unsigned char kind;
        long long window_ms;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(states, i), "bHHL", &kind, &state[i].step, &state[i].edges, &window_ms))
            return -1;
        state[i].kind = kind;
        state[i].window_ms = window_ms;
    }
    description->edge_count = (size_t)PyTuple_GET_SIZE(edges);
    vmp_edge *edge = room(memory, description->edge_count, sizeof *edge);
    description->edges = edge;
    for (size_t i = 0; edge != NULL && i < description->edge_count; i++)
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(edges, i), "bHH", &edge[i].action, &edge[i].target, &edge[i].codes))
            return -1;
    description->code_count = (size_t)PyTuple_GET_SIZE(codes);
    int16_t *code = room(memory, description->code_count, sizeof *code);
    description->codes = code;
    for (size_t i = 0; code != NULL && i < description->code_count; i++) {
        code[i] = (int16_t)PyLong_AsLong(PyTuple_GET_ITEM(codes, i));
        if (code[i] == -1 && PyErr_Occurred())
            return -1;
    }
    description->predicate_count = (size_t)PyTuple_GET_SIZE(predicates);
    vmp_predicate *predicate = room(memory, description->predicate_count, sizeof *predicate);
    description->predicates = predicate;
    for (size_t i = 0; predicate != NULL && i < description->predicate_count; i++) {
        PyObject *name;
        int gathers;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(predicates, i), "OpII", &name, &gathers, &predicate[i].first,
                              &predicate[i].count))
            return -1;
        predicate[i].named = name != Py_None;
        predicate[i].gathers = gathers;
        if (predicate[i].named && name_text(name, &predicate[i].name) < 0)
            return -1;
    }
    description->operation_count = (size_t)PyTuple_GET_SIZE(operations);
    vmp_op *op = room(memory, description->operation_count, sizeof *op);
    description->operations = op;
    for (size_t i = 0; op != NULL && i < description->operation_count; i++)
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(operations, i), "bIHb", &op[i].operation, &op[i].a, &op[i].b, &op[i].c))
            return -1;
    description->constant_count = (size_t)PyTuple_GET_SIZE(constants);
    vmp_value *constant = room(memory, description->constant_count, sizeof *constant);
    description->constants = constant;
    for (size_t i = 0; constant != NULL && i < description->constant_count; i++) {
        PyObject *value;
        int is_uint;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(constants, i), "pO", &is_uint, &value))
            return -1;
        constant[i] = to_value(value);
        if (is_uint) {
            constant[i] = (vmp_value){.kind = VMP_UINT, .natural = PyLong_AsUnsignedLongLong(value)};
            if (PyErr_Occurred())
                return -1;
        }
    }
    bool any;
    description->begins = to_names(memory, begins, &description->begin_count, &any);
    description->begins_any = any;
    if (description->begins == NULL)
        return -1;
    description->listens = to_names(memory, listens, &description->listen_count, &any);
    description->listens_any = any;
    description->keep_count = (size_t)PyTuple_GET_SIZE(keeps);
    uint32_t *keep = room(memory, description->keep_count, sizeof *keep);
    description->keeps = keep;
    for (size_t i = 0; keep != NULL && i < description->keep_count; i++)
        keep[i] = (uint32_t)PyLong_AsUnsignedLong(PyTuple_GET_ITEM(keeps, i));
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *engine_put(PyObject *object, PyObject *args)
{
    engine_object *self = (engine_object *)object;
    PyObject *key, *token, *tuple, *result = NULL;
    if (in_use(self) || !PyArg_ParseTuple(args, "UOO!", &key, &token, &PyTuple_Type, &tuple))
        return NULL;
    description_memory memory = {0};
    vmp_rule_description description = {.token = token};
    if (name_text(key, &description.key) == 0 && to_description(&memory, tuple, &description) == 0) {
        for (size_t i = 0; i < description.operation_count; i++) { /* unknown fields must not be looked up */
            const vmp_op *op = &description.operations[i];
            bool field = op->operation == VMP_FIELD || op->operation == VMP_HAS
                         || (op->operation == VMP_GATHER && op->a != VMP_NO_FIELD);
            if (field && op->a >= (size_t)PyList_GET_SIZE(self->paths)) {
                PyErr_Format(PyExc_ValueError, "there is no field %u", op->a);
                goto done;
            }
        }
        for (size_t i = 0; i < description.keep_count; i++) {
            if (description.keeps[i] >= (size_t)PyList_GET_SIZE(self->paths)) {
                PyErr_Format(PyExc_ValueError, "there is no field %u", description.keeps[i]);
                goto done;
            }
        }
        vmp_status status = vmp_add(self->engine, &description);
        if (status == VMP_OK) {
            Py_INCREF(token);
            result = Py_NewRef(Py_None);
        } else {
            result = failed(self, status, key);
        }
    }
done:
    for (int i = 0; i < memory.count; i++)
        PyMem_Free(memory.blocks[i]);
    return result;
}

static PyObject *engine_remove(PyObject *object, PyObject *key)
{
    engine_object *self = (engine_object *)object;
    vmt_text text;
    void *token;
    if (in_use(self) || name_text(key, &text) < 0)
        return NULL;
    vmp_status status = vmp_remove(self->engine, text, &token);
    if (status != VMP_OK)
        return failed(self, status, key);
    release(token);
    Py_RETURN_NONE;
}

/* field(path) -> number; equal paths have the same number */
static PyObject *engine_field(PyObject *object, PyObject *path)
{
    engine_object *self = (engine_object *)object;
    if (!PyTuple_CheckExact(path) || PyTuple_GET_SIZE(path) == 0 || !PyLong_CheckExact(PyTuple_GET_ITEM(path, 0))) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple of a root and of keys");
        return NULL;
    }
    long root = PyLong_AsLong(PyTuple_GET_ITEM(path, 0));
    for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(path); i++)
        if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(path, i)))
            root = -1;
    if (root < 0 || root >= ROOTS) {
        PyErr_SetString(PyExc_ValueError, "expected a root that is known, and texts");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(self->paths); i++) {
        int same = PyObject_RichCompareBool(PyList_GET_ITEM(self->paths, i), path, Py_EQ);
        if (same != 0)
            return same < 0 ? NULL : PyLong_FromSsize_t(i);
    }
    if (PyList_GET_SIZE(self->paths) >= VMP_NO_FIELD)
        return PyErr_Format(PyExc_ValueError, "rules look at more than %d fields", VMP_NO_FIELD);
    if (PyList_Append(self->paths, path) < 0)
        return NULL;
    return PyLong_FromSsize_t(PyList_GET_SIZE(self->paths) - 1);
}

/* ---- results */

static PyObject *result_tuple(const vmp_results *results, const vmp_result *result)
{
    PyObject *items = PyTuple_New((Py_ssize_t)result->count);
    for (uint32_t i = 0; items != NULL && i < result->count; i++) {
        const vmp_item *item = &results->items[result->first + i];
        PyObject *pair = Py_BuildValue("HL", item->step, (long long)item->id);
        if (pair == NULL)
            Py_CLEAR(items);
        else
            PyTuple_SET_ITEM(items, (Py_ssize_t)i, pair);
    }
    if (items == NULL)
        return NULL;
    return Py_BuildValue("OOLN", (PyObject *)result->token, result->timed_out ? Py_True : Py_False,
                         (long long)result->at_ms, items);
}

static PyObject *result_tuples(const vmp_results *results)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)results->count);
    for (size_t i = 0; tuple != NULL && i < results->count; i++) {
        PyObject *one = result_tuple(results, &results->results[i]);
        if (one == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, one);
    }
    return tuple;
}

/* ---- events */

static vmp_status feed(engine_object *self, fed_event *fed, bool still, vmp_results *results)
{
    vmp_event event = {.still = still, .field = field_of, .context = fed};
    if (to_text(fed->given[OF_NAME], "name", &event.name, fed->made, &fed->made_count) < 0
        || to_text(fed->given[OF_KEY], "key", &event.keys[1], fed->made, &fed->made_count) < 0
        || to_text(fed->given[OF_VISIT], "visit", &event.keys[2], fed->made, &fed->made_count) < 0
        || to_text(fed->given[OF_PAGE], "page", &event.keys[3], fed->made, &fed->made_count) < 0
        || to_number(fed->given[OF_TIME], "time_ms", &event.time_ms) < 0
        || to_number(fed->given[OF_ID], "position", &event.id) < 0)
        return VMP_BAD;
    self->busy = true;
    vmp_status status = vmp_feed(self->engine, &event, results);
    self->busy = false;
    return status == VMP_BAD ? VMP_NO_MEMORY : status;
}

static void fed_end(fed_event *fed)
{
    while (fed->made_count > 0)
        Py_DECREF(fed->made[--fed->made_count]);
}

static PyObject *engine_feed(PyObject *object, PyObject *const *args, Py_ssize_t given)
{
    engine_object *self = (engine_object *)object;
    if (in_use(self))
        return NULL;
    if (given != ROOTS + 1)
        return PyErr_Format(PyExc_TypeError,
                            "feed() takes contents, name, key, page, visit, time_ms, position and still, got %zd "
                            "arguments",
                            given);
    fed_event fed = {.self = self};
    for (int i = 0; i < ROOTS; i++)
        fed.given[i] = args[i];
    vmp_results results;
    vmp_status status = feed(self, &fed, args[ROOTS] == Py_True, &results);
    fed_end(&fed);
    if (status == VMP_BAD)
        return NULL;
    if (results.count == 0 && status == VMP_OK)
        return Py_NewRef(results.started ? self->begun : self->nothing);
    PyObject *tuple = result_tuples(&results);
    return tuple == NULL ? NULL : Py_BuildValue("NOi", tuple, results.started ? Py_True : Py_False, (int)status);
}

/* The watermark of a stream: event time is the latest time of an event up to `until_ms` so far; `behind_ms` less is
 * the time that has passed for matches. */
typedef struct {
    int64_t latest_ms, until_ms, behind_ms;
} watermark;

static bool is_due(const engine_object *self, const watermark *mark)
{
    int64_t passed;
    return !__builtin_sub_overflow(mark->latest_ms, mark->behind_ms, &passed) && vmp_next_ms(self->engine) <= passed;
}

/* Feeds the events of a tuple from `*at` on, in order, and adds what they complete to `list` as (position, results).
 * With a watermark it stops before the second event, or a later one, at which something times out. Missing memory is
 * counted as dropped. -1: error. */
static int feed_part(engine_object *self, PyObject *all, Py_ssize_t *at, watermark *mark, PyObject *list)
{
    module_state *state = state_of(Py_TYPE(self));
    int failed_here = state == NULL ? -1 : 0;
    for (Py_ssize_t first = *at; failed_here == 0 && *at < PyTuple_GET_SIZE(all); ++*at) {
        PyObject *stored = PyTuple_GET_ITEM(all, *at), *owned[ROOTS] = {NULL};
        PyObject *event = PyObject_GetAttr(stored, state->event);
        bool there = event != NULL && (owned[OF_NAME] = PyObject_GetAttr(event, state->attributes[OF_NAME])) != NULL;
        bool stop = false, over = false;
        if (there && mark != NULL) {
            int64_t time_ms = 0;
            there = (owned[OF_TIME] = PyObject_GetAttr(event, state->attributes[OF_TIME])) != NULL
                    && to_number(owned[OF_TIME], "time_ms", &time_ms) == 0;
            if (there && time_ms > mark->latest_ms && time_ms <= mark->until_ms)
                mark->latest_ms = time_ms;
            stop = there && *at > first && is_due(self, mark);
        }
        if (there && !stop && PyUnicode_Check(owned[OF_NAME]) && PyUnicode_IS_COMPACT_ASCII(owned[OF_NAME])) {
            Py_ssize_t size;
            vmt_text name = {0, PyUnicode_AsUTF8AndSize(owned[OF_NAME], &size), 0, 1};
            name.size = (size_t)size;
            over = !vmp_concerns(self->engine, name);
            if (over)
                vmp_pass_over(self->engine);
        }
        if (there && !stop && !over) {
            for (int k = 0; there && k < ROOTS; k++)
                there = owned[k] != NULL
                        || (owned[k] = PyObject_GetAttr(k == OF_ID ? stored : event, state->attributes[k])) != NULL;
            fed_event fed = {.self = self};
            memcpy(fed.given, owned, sizeof owned);
            vmp_results results;
            if (!there || feed(self, &fed, false, &results) == VMP_BAD) {
                failed_here = -1;
            } else if (results.count != 0) {
                PyObject *tuples = result_tuples(&results);
                PyObject *pair = tuples == NULL ? NULL : PyTuple_Pack(2, owned[OF_ID], tuples);
                if (pair == NULL || PyList_Append(list, pair) < 0)
                    failed_here = -1;
                Py_XDECREF(pair);
                Py_XDECREF(tuples);
            }
            fed_end(&fed);
        } else if (!there) {
            failed_here = -1;
        }
        for (int k = 0; k < ROOTS; k++)
            Py_XDECREF(owned[k]);
        Py_XDECREF(event);
        if (stop)
            break;
    }
    return failed_here;
}

static PyObject *engine_feed_many(PyObject *object, PyObject *events)
{
    engine_object *self = (engine_object *)object;
    if (in_use(self))
        return NULL;
    Py_ssize_t at = 0;
    PyObject *all = PySequence_Tuple(events), *list = all == NULL ? NULL : PyList_New(0);
    if (list != NULL && feed_part(self, all, &at, NULL, list) < 0)
        Py_CLEAR(list);
    Py_XDECREF(all);
    return list;
}

static PyObject *engine_feed_until(PyObject *object, PyObject *args)
{
    engine_object *self = (engine_object *)object;
    PyObject *all;
    Py_ssize_t at;
    long long latest_ms, until_ms, behind_ms;
    if (in_use(self) || !PyArg_ParseTuple(args, "O!nLLL", &PyTuple_Type, &all, &at, &latest_ms, &until_ms, &behind_ms))
        return NULL;
    if (at < 0 || at > PyTuple_GET_SIZE(all))
        return PyErr_Format(PyExc_ValueError, "at: expected 0 to %zd, got %zd", PyTuple_GET_SIZE(all), at);
    watermark mark = {latest_ms, until_ms, behind_ms};
    PyObject *list = PyList_New(0);
    if (list != NULL && feed_part(self, all, &at, &mark, list) < 0)
        Py_CLEAR(list);
    return list == NULL ? NULL : Py_BuildValue("NnL", list, at, (long long)mark.latest_ms);
}

static PyObject *engine_advance(PyObject *object, PyObject *time_ms)
{
    engine_object *self = (engine_object *)object;
    int64_t time;
    vmp_results results;
    if (in_use(self) || to_number(time_ms, "time_ms", &time) < 0)
        return NULL;
    vmp_advance(self->engine, time, &results);
    return result_tuples(&results);
}

static PyObject *engine_advance_key(PyObject *object, PyObject *args)
{
    engine_object *self = (engine_object *)object;
    PyObject *key, *made[1];
    int space, count = 0;
    long long time_ms;
    vmt_text text;
    vmp_results results;
    if (in_use(self) || !PyArg_ParseTuple(args, "iUL", &space, &key, &time_ms)
        || to_text(key, "key", &text, made, &count) < 0)
        return NULL;
    if (space < 0 || space >= VMP_SPACES)
        return PyErr_Format(PyExc_ValueError, "space: expected 0 to %d, got %d", VMP_SPACES - 1, space);
    vmp_status status = vmp_advance_key(self->engine, (unsigned)space, text, time_ms, &results);
    if (count != 0)
        Py_DECREF(made[0]);
    PyObject *tuple = result_tuples(&results);
    return tuple == NULL ? NULL : Py_BuildValue("Ni", tuple, (int)status);
}

static PyObject *engine_forget(PyObject *object, PyObject *args)
{
    engine_object *self = (engine_object *)object;
    PyObject *key, *made[1];
    int space, count = 0;
    vmt_text text;
    if (in_use(self) || !PyArg_ParseTuple(args, "iU", &space, &key) || to_text(key, "key", &text, made, &count) < 0)
        return NULL;
    if (space < 0 || space >= VMP_SPACES)
        return PyErr_Format(PyExc_ValueError, "space: expected 0 to %d, got %d", VMP_SPACES - 1, space);
    vmp_forget(self->engine, (unsigned)space, text);
    if (count != 0)
        Py_DECREF(made[0]);
    Py_RETURN_NONE;
}

/* ---- statistics and tests of conditions */

static PyObject *engine_statistics(PyObject *object, PyObject *Py_UNUSED(unused))
{
    engine_object *self = (engine_object *)object;
    vmp_statistics totals = vmp_engine_statistics(self->engine);
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {
        {"rules", totals.rules},
        {"names", totals.names},
        {"keys", totals.keys},
        {"matches", totals.matches},
        {"waiting", totals.waiting},
        {"events_held", totals.events},
        {"nodes", totals.nodes},
        {"rule_bytes", totals.rule_bytes},
        {"match_bytes", totals.match_bytes},
        {"bytes", totals.bytes},
        {"events", totals.fed},
        {"looked_at", totals.looked_at},
        {"matched", totals.matched},
        {"timed_out", totals.timed_out},
        {"dropped", totals.dropped},
        {"ended", totals.ended},
        {"missed", totals.missed},
    };
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict != NULL && i < sizeof rows / sizeof *rows; i++) {
        PyObject *value = PyLong_FromUnsignedLongLong(rows[i].value);
        if (value == NULL || PyDict_SetItemString(dict, rows[i].name, value) < 0)
            Py_CLEAR(dict);
        Py_XDECREF(value);
    }
    return dict;
}

static PyObject *engine_next_ms(PyObject *object, PyObject *Py_UNUSED(unused))
{
    int64_t next = vmp_next_ms(((engine_object *)object)->engine);
    if (next == INT64_MAX)
        Py_RETURN_NONE;
    return PyLong_FromLongLong(next);
}

static void tell_match(void *context, uint16_t state, vmt_text key, uint32_t events, int64_t started_ms)
{
    PyObject *list = context, *text = PyErr_Occurred() ? NULL : from_text(&key);
    PyObject *row = text == NULL ? NULL : Py_BuildValue("HNIL", state, text, events, (long long)started_ms);
    if (row != NULL)
        PyList_Append(list, row);
    Py_XDECREF(row);
}

static PyObject *engine_matches(PyObject *object, PyObject *key)
{
    engine_object *self = (engine_object *)object;
    vmt_text text;
    PyObject *list = name_text(key, &text) < 0 ? NULL : PyList_New(0);
    if (list == NULL)
        return NULL;
    vmp_status status = vmp_matches(self->engine, text, tell_match, list);
    if (status != VMP_OK || PyErr_Occurred()) {
        Py_DECREF(list);
        return status != VMP_OK ? failed(self, status, key) : NULL;
    }
    return list;
}

/* evaluate(rule, predicate, contents, name, key, page, visit, time_ms, position) -> (kind, value) */
static PyObject *engine_evaluate(PyObject *object, PyObject *const *args, Py_ssize_t given)
{
    engine_object *self = (engine_object *)object;
    vmt_text rule;
    if (in_use(self))
        return NULL;
    if (given != 2 + ROOTS)
        return PyErr_Format(PyExc_TypeError, "evaluate() takes %d arguments, got %zd", 2 + ROOTS, given);
    fed_event fed = {.self = self};
    vmp_event event = {.field = field_of, .context = &fed};
    int64_t predicate;
    for (int i = 0; i < ROOTS; i++)
        fed.given[i] = args[2 + i];
    PyObject *result = NULL;
    if (name_text(args[0], &rule) == 0 && to_number(args[1], "predicate", &predicate) == 0
        && to_text(fed.given[OF_NAME], "name", &event.name, fed.made, &fed.made_count) == 0) {
        self->busy = true;
        vmp_value value = vmp_evaluate(self->engine, rule, (uint32_t)predicate, &event);
        self->busy = false;
        switch ((vmp_kind)value.kind) {
        case VMP_NULL: result = Py_BuildValue("sO", "null", Py_None); break;
        case VMP_BOOL: result = Py_BuildValue("sO", "bool", value.truth ? Py_True : Py_False); break;
        case VMP_INT: result = Py_BuildValue("sL", "int", (long long)value.whole); break;
        case VMP_UINT: result = Py_BuildValue("sK", "uint", (unsigned long long)value.natural); break;
        case VMP_DOUBLE: result = Py_BuildValue("sd", "double", value.real); break;
        case VMP_TEXT: result = Py_BuildValue("ss#", "string", value.text, (Py_ssize_t)value.size); break;
        case VMP_BYTES: result = Py_BuildValue("sy#", "bytes", value.text, (Py_ssize_t)value.size); break;
        default: result = Py_BuildValue("sO", "error", Py_None); break;
        }
    }
    fed_end(&fed);
    return result;
}

/* ---- snapshots */

typedef struct {
    char *data;
    size_t size, capacity;
} written;

static bool write_bytes(void *context, const void *data, size_t size)
{
    written *to = context;
    if (size > to->capacity - to->size) {
        size_t capacity = to->capacity * 2 > to->size + size ? to->capacity * 2 : to->size + size + 4096;
        char *more = PyMem_RawRealloc(to->data, capacity);
        if (more == NULL)
            return false;
        to->data = more;
        to->capacity = capacity;
    }
    memcpy(to->data + to->size, data, size);
    to->size += size;
    return true;
}

static PyObject *engine_save(PyObject *object, PyObject *Py_UNUSED(unused))
{
    engine_object *self = (engine_object *)object;
    if (in_use(self))
        return NULL;
    written to = {0};
    vmp_status status = vmp_save(self->engine, write_bytes, &to);
    PyObject *bytes = status == VMP_OK ? PyBytes_FromStringAndSize(to.data, (Py_ssize_t)to.size) : PyErr_NoMemory();
    PyMem_RawFree(to.data);
    return bytes;
}

static PyObject *engine_load(PyObject *object, PyObject *data)
{
    engine_object *self = (engine_object *)object;
    Py_buffer buffer;
    if (in_use(self) || PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    vmp_status status = vmp_load(self->engine, buffer.buf, (size_t)buffer.len);
    PyBuffer_Release(&buffer);
    if (status == VMP_OK)
        Py_RETURN_NONE;
    if (status == VMP_BAD) {
        module_state *state = state_of(Py_TYPE(self));
        if (state != NULL)
            PyErr_SetString(state->error, "the snapshot is damaged, or the engine has matches already");
        return NULL;
    }
    return PyErr_NoMemory();
}

/* ---- the type and the module */

static PyObject *engine_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"max_matches", "max_bytes", "seed", NULL};
    long long max_matches, max_bytes;
    unsigned long long seed;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "LLK:Engine", names, &max_matches, &max_bytes, &seed))
        return NULL;
    if (max_matches < 1 || max_matches > 10000000 || max_bytes < 1) {
        PyErr_SetString(PyExc_ValueError, "max_matches: expected 1 to 10,000,000, max_bytes: 1 or more");
        return NULL;
    }
    engine_object *self = (engine_object *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    vmp_settings settings = {
        .max_matches = (size_t)max_matches, .max_bytes = (size_t)max_bytes, .seed = seed, .allocate = allocate};
    self->max_bytes = max_bytes;
    self->paths = PyList_New(0);
    self->nothing = Py_BuildValue("()Oi", Py_False, 0);
    self->begun = Py_BuildValue("()Oi", Py_True, 0);
    self->engine =
        self->paths == NULL || self->nothing == NULL || self->begun == NULL ? NULL : vmp_engine_new(&settings);
    if (self->engine == NULL) {
        Py_DECREF(self);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void engine_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    engine_object *self = (engine_object *)object;
    if (self->engine != NULL)
        vmp_engine_free(self->engine, release);
    Py_XDECREF(self->paths);
    Py_XDECREF(self->nothing);
    Py_XDECREF(self->begun);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMethodDef engine_methods[] = {
    {"put", engine_put, METH_VARARGS,
     PyDoc_STR("put(key, token, description): as lowering.py makes it. PatternError.")},
    {"remove", engine_remove, METH_O, PyDoc_STR("remove(key): PatternError where there is none.")},
    {"field", engine_field, METH_O, PyDoc_STR("field(path) -> number, for descriptions.")},
    {"feed", _PyCFunction_CAST(engine_feed), METH_FASTCALL,
     PyDoc_STR("feed(contents, name, key, page, visit, time_ms, position, still) -> (results, started, status).\n"
               "Still: time was moved already, nothing times out by this event.\n"
               "A result is (token, timed out, at_ms, ((step, position), ...)). Status 0: good, 1: memory lacked, 6: a "
               "match missed the step that its rule skips to.")},
    {"feed_many", engine_feed_many, METH_O,
     PyDoc_STR("feed_many(events) -> [(position, results), ...]: the same for `StoredEvent`s.")},
    {"feed_until", engine_feed_until, METH_VARARGS,
     PyDoc_STR(
         "feed_until(events, at, latest_ms, until_ms, behind_ms) -> ([(position, results), ...], at, latest_ms): "
         "the\nsame for a tuple from the index `at` on, up to an event at which something times out: event time is "
         "the latest time\nof an event so far up to until_ms, and matches end behind_ms later. Nothing times out "
         "before the first one.")},
    {"advance", engine_advance, METH_O, PyDoc_STR("advance(time_ms) -> results: what times out by then.")},
    {"advance_key", engine_advance_key, METH_VARARGS,
     PyDoc_STR("advance_key(space, key, time_ms) -> (results, status)")},
    {"forget", engine_forget, METH_VARARGS, PyDoc_STR("forget(space, key): its matches end.")},
    {"next_ms", engine_next_ms, METH_NOARGS, PyDoc_STR("next_ms() -> when something times out next; None: never.")},
    {"statistics", engine_statistics, METH_NOARGS, PyDoc_STR("statistics() -> dict of counts: see PatternEngine.")},
    {"matches", engine_matches, METH_O, PyDoc_STR("matches(key) -> [(state, key, events, started_ms), ...]")},
    {"evaluate", _PyCFunction_CAST(engine_evaluate), METH_FASTCALL,
     PyDoc_STR(
         "evaluate(rule, predicate, contents, name, key, page, visit, time_ms, position) -> (kind, value): what one "
         "of its conditions\ngives for an event; error: none.")},
    {"save", engine_save, METH_NOARGS, PyDoc_STR("save() -> bytes: all matches under way.")},
    {"load", engine_load, METH_O,
     PyDoc_STR("load(bytes): into an engine without matches. Those of rules that are gone or say something else end.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot engine_slots[] = {
    {Py_tp_doc, PyDoc_STR("Engine(max_matches, max_bytes, seed): what PatternEngine is made of.")},
    {Py_tp_new, engine_new},
    {Py_tp_dealloc, engine_dealloc},
    {Py_tp_methods, engine_methods},
    {0, NULL},
};

static PyType_Spec engine_spec = {
    .name = "vmhost.pipeline.patterns._patterns.Engine",
    .basicsize = sizeof(engine_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = engine_slots,
};

#define NAME_ROW(name) #name,
static const char *const operation_names[] = {VMP_OPERATIONS(NAME_ROW)};

static int module_exec(PyObject *module)
{
    static const char *const attributes[ROOTS] = {"contents", "name", "key", "page", "visit", "time_ms", "position"};
    module_state *state = PyModule_GetState(module);
    state->engine_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &engine_spec, NULL);
    state->error =
        PyErr_NewExceptionWithDoc("vmhost.pipeline.patterns.PatternError",
                                  "A rule that is bad, unknown, known already or does not fit, or a snapshot "
                                  "that is damaged.",
                                  PyExc_ValueError, NULL);
    state->event = PyUnicode_InternFromString("event");
    if (state->engine_type == NULL || state->error == NULL || state->event == NULL)
        return -1;
    for (int i = 0; i < ROOTS; i++)
        if ((state->attributes[i] = PyUnicode_InternFromString(attributes[i])) == NULL)
            return -1;
    PyObject *operations = PyTuple_New(VMP_OPERATION_COUNT);
    for (int i = 0; operations != NULL && i < VMP_OPERATION_COUNT; i++) {
        PyObject *name = PyUnicode_FromString(operation_names[i]);
        if (name == NULL)
            Py_CLEAR(operations);
        else
            PyTuple_SET_ITEM(operations, i, name);
    }
    if (PyModule_Add(module, "OPERATIONS", operations) < 0
        || PyModule_AddObjectRef(module, "PatternError", state->error) < 0)
        return -1;
    return PyModule_AddType(module, state->engine_type);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    module_state *state = PyModule_GetState(module);
    Py_VISIT(state->engine_type);
    Py_VISIT(state->error);
    return 0;
}

static int module_clear(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->engine_type);
    Py_CLEAR(state->error);
    Py_CLEAR(state->event);
    for (int i = 0; i < ROOTS; i++)
        Py_CLEAR(state->attributes[i]);
    return 0;
}

static void module_free(void *module) { module_clear(module); }

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
    {0, NULL},
};

static struct PyModuleDef patterns_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "vmhost.pipeline.patterns._patterns",
    .m_doc = PyDoc_STR("The pattern matcher."),
    .m_size = sizeof(module_state),
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__patterns(void);
PyMODINIT_FUNC PyInit__patterns(void) { return PyModuleDef_Init(&patterns_module); }
