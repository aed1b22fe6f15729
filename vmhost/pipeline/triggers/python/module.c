/* `vmhost.pipeline.triggers._triggers`: the trigger engine for Python. Main interpreter only, under its GIL.
 *
 * Engine holds a reference to the key of each condition, which is its token. Texts are passed to the engine in the form
 * that their str objects have (bytes per character). */
#include <Python.h>

#include "core/triggers.h"

typedef struct {
    PyTypeObject *engine_type;
    PyObject *error;
    PyObject *name, *page, *visit, *time_ms, *position, *event; /* attributes of stored events */
} module_state;

typedef struct {
    PyObject_HEAD
    vmt_engine *engine; /* NULL only during construction */
    long long max_matches, max_bytes;
} engine_object;

static struct PyModuleDef triggers_module;

static module_state *state_of(PyTypeObject *type)
{
    PyObject *module = PyType_GetModuleByDef(type, &triggers_module);
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

/* A subclass of str counts as its text; none of its own code runs. */
static int to_text(PyObject *object, const char *what, vmt_text *text)
{
    if (!PyUnicode_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s: expected a `str`, got `%T`", what, object);
        return -1;
    }
    text->hash = (uint64_t)PyUnicode_Type.tp_hash(object);
    text->form = PyUnicode_KIND(object);
    text->data = PyUnicode_DATA(object);
    text->size = (size_t)PyUnicode_GET_LENGTH(object) * text->form;
    return 0;
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

static PyObject *from_text(const vmt_text *text)
{
    return PyUnicode_FromKindAndData((int)text->form, text->data, (Py_ssize_t)(text->size / text->form));
}

/* Raises the exception for the status. */
static PyObject *failed(engine_object *self, vmt_status status, PyObject *key, int64_t position)
{
    module_state *state = state_of(Py_TYPE(self));
    if (state == NULL)
        return NULL;
    switch (status) {
    case VMT_NO_MEMORY: return PyErr_NoMemory();
    case VMT_FULL:
        return PyErr_Format(
            state->error,
            "%R: conditions may take %lld bytes, three quarters of max_bytes, and this one does not fit;"
            " withdraw others or raise max_bytes",
            key, self->max_bytes / 4 * 3);
    case VMT_KNOWN: return PyErr_Format(state->error, "%R: there is a condition with this key; change it", key);
    case VMT_UNKNOWN: return PyErr_Format(state->error, "%R: there is no condition with this key", key);
    case VMT_POSITION:
        return PyErr_Format(state->error, "position: expected more than %lld, the last event's, got %lld",
                            (long long)vmt_engine_statistics(self->engine).position, (long long)position);
    case VMT_OK:
    case VMT_BAD: break;
    }
    return PyErr_Format(state->error, "%R: expected sequences of 1 to %d ids", key, VMT_MAX_IDS);
}

/* ---- conditions */

/* Sequences of (text, page, gap), as tuples of tuples of tuples, in one block of memory; NULL with an error. */
static vmt_sequence *to_sequences(PyObject *listed, size_t *count)
{
    size_t ids = 0;
    if (!PyTuple_CheckExact(listed))
        return PyErr_Format(PyExc_TypeError, "expected a `tuple` of sequences, got `%T`", listed), NULL;
    *count = (size_t)PyTuple_GET_SIZE(listed);
    for (size_t i = 0; i < *count; i++) {
        PyObject *sequence = PyTuple_GET_ITEM(listed, i);
        if (!PyTuple_CheckExact(sequence))
            return PyErr_Format(PyExc_TypeError, "expected a `tuple` of ids, got `%T`", sequence), NULL;
        ids += (size_t)PyTuple_GET_SIZE(sequence);
    }
    vmt_sequence *sequences = PyMem_Malloc(*count * sizeof *sequences + ids * sizeof(vmt_id) + 1);
    if (sequences == NULL)
        return PyErr_NoMemory(), NULL;
    vmt_id *id = (vmt_id *)(sequences + *count);
    for (size_t i = 0; i < *count; i++) {
        PyObject *sequence = PyTuple_GET_ITEM(listed, i);
        sequences[i] = (vmt_sequence){id, (size_t)PyTuple_GET_SIZE(sequence)};
        for (size_t k = 0; k < sequences[i].count; k++, id++) {
            PyObject *text;
            int page, gap;
            if (!PyTuple_Check(PyTuple_GET_ITEM(sequence, k))
                || !PyArg_ParseTuple(PyTuple_GET_ITEM(sequence, k), "Upp", &text, &page, &gap)
                || to_text(text, "id", &id->text) < 0) {
                if (!PyErr_Occurred())
                    PyErr_Format(PyExc_TypeError, "expected (text, page, gap), got `%T`",
                                 PyTuple_GET_ITEM(sequence, k));
                PyMem_Free(sequences);
                return NULL;
            }
            id->page = page;
            id->gap = gap;
        }
    }
    return sequences;
}

static PyObject *put(engine_object *self, PyObject *args, bool change)
{
    PyObject *key, *listed;
    int time_level;
    long long within_ms;
    vmt_condition condition = {.count = 0};
    if (!PyArg_ParseTuple(args, "UO!pL:put", &key, &PyTuple_Type, &listed, &time_level, &within_ms)
        || to_text(key, "key", &condition.key) < 0)
        return NULL;
    vmt_sequence *sequences = to_sequences(listed, &condition.count);
    if (sequences == NULL)
        return NULL;
    condition.sequences = sequences;
    condition.level = time_level ? VMT_TIME : VMT_PAGE;
    condition.within_ms = (uint64_t)within_ms;
    condition.token = key;
    void *old = NULL;
    vmt_status status = change ? vmt_change(self->engine, &condition, &old) : vmt_add(self->engine, &condition);
    PyMem_Free(sequences);
    if (status != VMT_OK)
        return failed(self, status, key, 0);
    Py_INCREF(key);
    Py_XDECREF((PyObject *)old);
    Py_RETURN_NONE;
}

static PyObject *engine_put(PyObject *self, PyObject *args) { return put((engine_object *)self, args, false); }
static PyObject *engine_put_anew(PyObject *self, PyObject *args) { return put((engine_object *)self, args, true); }

static PyObject *engine_remove(PyObject *object, PyObject *key)
{
    engine_object *self = (engine_object *)object;
    vmt_text text;
    void *token;
    if (to_text(key, "key", &text) < 0)
        return NULL;
    vmt_status status = vmt_remove(self->engine, text, &token);
    if (status != VMT_OK)
        return failed(self, status, key, 0);
    release(token);
    Py_RETURN_NONE;
}

/* ---- events */

static PyObject *fired_tuple(const vmt_fired *fired, size_t count)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; tuple != NULL && i < count; i++) {
        PyObject *start = PyLong_FromLongLong(fired[i].start);
        PyObject *pair = start == NULL ? NULL : PyTuple_Pack(2, (PyObject *)fired[i].token, start);
        Py_XDECREF(start);
        if (pair == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, pair);
    }
    return tuple;
}

/* `given`: name, page, visit, time_ms, position. */
static int feed(engine_object *self, PyObject *const *given, const vmt_fired **fired, size_t *count)
{
    vmt_event event;
    if (to_text(given[0], "name", &event.name) < 0 || to_text(given[1], "page", &event.page) < 0
        || to_text(given[2], "visit", &event.visit) < 0 || to_number(given[3], "time_ms", &event.time_ms) < 0
        || to_number(given[4], "position", &event.position) < 0)
        return -1;
    vmt_status status = vmt_feed(self->engine, &event, fired, count);
    if (status == VMT_OK)
        return 0;
    failed(self, status, Py_None, event.position);
    return -1;
}

static PyObject *engine_feed(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    const vmt_fired *fired;
    size_t count;
    if (given != 5)
        return PyErr_Format(PyExc_TypeError, "feed() takes name, page, visit, time_ms and position, got %zd arguments",
                            given);
    return feed((engine_object *)self, args, &fired, &count) < 0 ? NULL : fired_tuple(fired, count);
}

/* Feeds one of many events; appends (position, ((key, start), ...)) to the list where it completes something. */
static int feed_into(engine_object *self, PyObject *const *given, PyObject *list)
{
    const vmt_fired *fired;
    size_t count;
    if (feed(self, given, &fired, &count) < 0)
        return -1;
    if (count == 0)
        return 0;
    PyObject *tuple = fired_tuple(fired, count);
    PyObject *pair = tuple == NULL ? NULL : PyTuple_Pack(2, given[4], tuple);
    int rc = pair == NULL ? -1 : PyList_Append(list, pair);
    Py_XDECREF(tuple);
    Py_XDECREF(pair);
    return rc;
}

static PyObject *engine_feed_columns(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    PyObject *columns[5] = {NULL}, *list = NULL, *result = NULL;
    if (given != 5)
        return PyErr_Format(PyExc_TypeError,
                            "feed_columns() takes names, pages, visits, times_ms and positions, got %zd arguments",
                            given);
    for (int i = 0; i < 5; i++) {
        columns[i] = PySequence_Tuple(args[i]); /* a copy that later code cannot change */
        if (columns[i] == NULL)
            goto done;
        if (PyTuple_GET_SIZE(columns[i]) != PyTuple_GET_SIZE(columns[0])) {
            PyErr_Format(PyExc_ValueError, "expected columns of one length, got %zd and %zd",
                         PyTuple_GET_SIZE(columns[0]), PyTuple_GET_SIZE(columns[i]));
            goto done;
        }
    }
    list = PyList_New(0);
    for (Py_ssize_t i = 0; list != NULL && i < PyTuple_GET_SIZE(columns[0]); i++) {
        PyObject *event[5];
        for (int k = 0; k < 5; k++)
            event[k] = PyTuple_GET_ITEM(columns[k], i);
        if (feed_into((engine_object *)self, event, list) < 0)
            goto done;
    }
    result = Py_XNewRef(list);
done:
    Py_XDECREF(list);
    for (int i = 0; i < 5; i++)
        Py_XDECREF(columns[i]);
    return result;
}

static PyObject *engine_feed_many(PyObject *self, PyObject *events)
{
    module_state *state = state_of(Py_TYPE(self));
    PyObject *all = state == NULL ? NULL : PySequence_Tuple(events);
    PyObject *list = all == NULL ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; list != NULL && i < PyTuple_GET_SIZE(all); i++) {
        PyObject *stored = PyTuple_GET_ITEM(all, i), *given[5] = {NULL};
        PyObject *event = PyObject_GetAttr(stored, state->event);
        bool there = event != NULL && (given[0] = PyObject_GetAttr(event, state->name)) != NULL
                     && (given[1] = PyObject_GetAttr(event, state->page)) != NULL
                     && (given[2] = PyObject_GetAttr(event, state->visit)) != NULL
                     && (given[3] = PyObject_GetAttr(event, state->time_ms)) != NULL
                     && (given[4] = PyObject_GetAttr(stored, state->position)) != NULL;
        if (!there || feed_into((engine_object *)self, given, list) < 0)
            Py_CLEAR(list);
        for (int k = 0; k < 5; k++)
            Py_XDECREF(given[k]);
        Py_XDECREF(event);
    }
    Py_XDECREF(all);
    return list;
}

static PyObject *engine_end_visit(PyObject *self, PyObject *visit)
{
    vmt_text text;
    if (to_text(visit, "visit", &text) < 0)
        return NULL;
    vmt_end_visit(((engine_object *)self)->engine, text);
    Py_RETURN_NONE;
}

static PyObject *engine_advance(PyObject *self, PyObject *time_ms)
{
    int64_t time;
    if (to_number(time_ms, "time_ms", &time) < 0)
        return NULL;
    vmt_advance(((engine_object *)self)->engine, time);
    Py_RETURN_NONE;
}

/* ---- statistics and explanations */

static PyObject *engine_statistics(PyObject *self, PyObject *Py_UNUSED(unused))
{
    vmt_statistics totals = vmt_engine_statistics(((engine_object *)self)->engine);
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {
        {"conditions", totals.conditions},
        {"sequences", totals.sequences},
        {"nodes", totals.nodes},
        {"ids", totals.symbols},
        {"visits", totals.visits},
        {"matches", totals.matches},
        {"condition_bytes", totals.condition_bytes},
        {"match_bytes", totals.match_bytes},
        {"bytes", totals.bytes},
        {"events", totals.events},
        {"outside", totals.outside},
        {"fired", totals.fired},
        {"expired", totals.expired},
        {"ended", totals.ended},
        {"withdrawn", totals.withdrawn},
        {"dropped", totals.dropped},
        {"clock_sets", totals.clock_sets},
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

static int append_step(void *context, const vmt_step *step)
{
    PyObject *text = from_text(&step->text);
    PyObject *row = text == NULL
                        ? NULL
                        : Py_BuildValue("nNOOKKK", (Py_ssize_t)step->sequence, text, step->page ? Py_True : Py_False,
                                        step->gap ? Py_True : Py_False, (unsigned long long)step->waiting,
                                        (unsigned long long)step->conditions, (unsigned long long)step->next);
    int rc = row == NULL ? -1 : PyList_Append(context, row);
    Py_XDECREF(row);
    return rc;
}

static PyObject *engine_steps(PyObject *object, PyObject *key)
{
    engine_object *self = (engine_object *)object;
    vmt_text text;
    vmt_about about;
    PyObject *list = to_text(key, "key", &text) < 0 ? NULL : PyList_New(0);
    if (list == NULL)
        return NULL;
    vmt_status status = vmt_explain(self->engine, text, &about, append_step, list);
    if (status != VMT_OK || PyErr_Occurred()) {
        Py_DECREF(list);
        return status != VMT_OK ? failed(self, status, key, 0) : NULL;
    }
    return Py_BuildValue("OKKN", about.level == VMT_TIME ? Py_True : Py_False, (unsigned long long)about.within_ms,
                         (unsigned long long)about.fired, list);
}

/* ---- the type and the module */

static PyObject *engine_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"max_matches", "max_bytes", "max_back_ms", "seed", NULL};
    long long max_matches, max_bytes, max_back_ms;
    unsigned long long seed;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "LLLK:Engine", names, &max_matches, &max_bytes, &max_back_ms,
                                     &seed))
        return NULL;
    if (max_matches < 1 || max_bytes < 1 || max_back_ms < 0) {
        PyErr_SetString(PyExc_ValueError, "max_matches and max_bytes: expected 1 or more, max_back_ms: 0 or more");
        return NULL;
    }
    engine_object *self = (engine_object *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    vmt_settings settings = {.max_matches = (size_t)max_matches,
                             .max_bytes = (size_t)max_bytes,
                             .max_back_ms = max_back_ms,
                             .seed = seed,
                             .allocate = allocate};
    self->max_matches = max_matches;
    self->max_bytes = max_bytes;
    self->engine = vmt_engine_new(&settings);
    if (self->engine == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void engine_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    engine_object *self = (engine_object *)object;
    if (self->engine != NULL)
        vmt_engine_free(self->engine, release);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMethodDef engine_methods[] = {
    {"put", engine_put, METH_VARARGS,
     PyDoc_STR("put(key, sequences, time_level, within_ms): sequences of (text, page, gap), all tuples; 0: no limit.")},
    {"put_anew", engine_put_anew, METH_VARARGS, PyDoc_STR("put_anew(key, sequences, time_level, within_ms)")},
    {"remove", engine_remove, METH_O,
     PyDoc_STR("remove(key): withdraws the condition. TriggerError where there is none.")},
    {"feed", _PyCFunction_CAST(engine_feed), METH_FASTCALL,
     PyDoc_STR("feed(name, page, visit, time_ms, position) -> ((key, start_position), ...): the conditions that the "
               "event completes,\n"
               "each once, with the latest position at which a match of it began. Positions grow; TriggerError where "
               "one does not.")},
    {"feed_columns", _PyCFunction_CAST(engine_feed_columns), METH_FASTCALL,
     PyDoc_STR("feed_columns(names, pages, visits, times_ms, positions) -> [(position, ((key, start_position), ...)), "
               "...]:\n"
               "feeds many events, given by columns of one length, and tells of those that complete conditions. Where "
               "one is bad, those\n"
               "before it have been fed.")},
    {"feed_many", engine_feed_many, METH_O,
     PyDoc_STR("feed_many(events) -> [(position, ((key, start_position), ...)), ...]: the same for `StoredEvent`s.")},
    {"end_visit", engine_end_visit, METH_O,
     PyDoc_STR("end_visit(visit): its matches under way are given up. A visit that is not known is no error.")},
    {"advance", engine_advance, METH_O,
     PyDoc_STR("advance(time_ms): moves the clock on, and drops matches that are too old: of 10,000 visits a call, in "
               "turn.")},
    {"statistics", engine_statistics, METH_NOARGS, PyDoc_STR("statistics() -> dict of counts: see TriggerEngine.")},
    {"steps", engine_steps, METH_O,
     PyDoc_STR("steps(key) -> (time_level, within_ms, fired, [(sequence, text, page, gap, waiting, conditions, next), "
               "...])")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot engine_slots[] = {
    {Py_tp_doc, PyDoc_STR("Engine(max_matches, max_bytes, max_back_ms, seed): what TriggerEngine is made of.")},
    {Py_tp_new, engine_new},
    {Py_tp_dealloc, engine_dealloc},
    {Py_tp_methods, engine_methods},
    {0, NULL},
};

static PyType_Spec engine_spec = {
    .name = "vmhost.pipeline.triggers._triggers.Engine",
    .basicsize = sizeof(engine_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = engine_slots,
};

static int module_exec(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    state->engine_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &engine_spec, NULL);
    state->error = PyErr_NewExceptionWithDoc("vmhost.pipeline.triggers.TriggerError",
                                             "A condition that is bad, unknown, known already or does not fit, or an "
                                             "event out of order.",
                                             PyExc_ValueError, NULL);
    state->name = PyUnicode_InternFromString("name");
    state->page = PyUnicode_InternFromString("page");
    state->visit = PyUnicode_InternFromString("visit");
    state->time_ms = PyUnicode_InternFromString("time_ms");
    state->position = PyUnicode_InternFromString("position");
    state->event = PyUnicode_InternFromString("event");
    if (state->engine_type == NULL || state->error == NULL || state->name == NULL || state->page == NULL
        || state->visit == NULL || state->time_ms == NULL || state->position == NULL || state->event == NULL)
        return -1;
    if (PyModule_AddObjectRef(module, "TriggerError", state->error) < 0)
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
    Py_CLEAR(state->name);
    Py_CLEAR(state->page);
    Py_CLEAR(state->visit);
    Py_CLEAR(state->time_ms);
    Py_CLEAR(state->position);
    Py_CLEAR(state->event);
    return 0;
}

static void module_free(void *module) { module_clear(module); }

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
    {0, NULL},
};

static struct PyModuleDef triggers_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "vmhost.pipeline.triggers._triggers",
    .m_doc = PyDoc_STR("The trigger engine."),
    .m_size = sizeof(module_state),
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__triggers(void);
PyMODINIT_FUNC PyInit__triggers(void) { return PyModuleDef_Init(&triggers_module); }
