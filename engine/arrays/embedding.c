/* Embedding tables for Python, used by engine/embedding. A table is a capsule (vme_python.h), as is a snapshot of one.
 *
 * In a VM the host determines which tables there are (VME_TABLES_CAPSULE), and whether they may be trained. Tables that
 * a program makes belong to it, in a VM or not. */
#include "kinds.h"
#include "methods.h"

#include "vme_embedding.h"
#include "vme_python.h"

/* ---- tables */
static void handle_free(PyObject *capsule)
{
    struct vme_python_embedding *handle = PyCapsule_GetPointer(capsule, VME_EMBEDDING_CAPSULE);
    vme_embedding_unref(handle->table);
    PyMem_Free(handle);
}

/* Steals the reference to `table`, even on failure. */
static PyObject *handle_new(vme_embedding *table, bool trains, bool owns)
{
    struct vme_python_embedding *handle = PyMem_Malloc(sizeof *handle);
    PyObject *capsule = NULL;
    if (handle == NULL)
        PyErr_NoMemory();
    else {
        *handle = (struct vme_python_embedding){table, trains, owns};
        capsule = PyCapsule_New(handle, VME_EMBEDDING_CAPSULE, handle_free);
    }
    if (capsule == NULL) {
        PyMem_Free(handle);
        vme_embedding_unref(table);
    }
    return capsule;
}

enum { READS, TRAINS, OWNS };

static vme_embedding *table_of(PyObject *capsule, int right)
{
    const struct vme_python_embedding *handle = PyCapsule_GetPointer(capsule, VME_EMBEDDING_CAPSULE);
    if (handle == NULL)
        return NULL;
    if (right == OWNS && !handle->owns) {
        PyErr_SetString(PyExc_PermissionError,
                        "the embedding table is the host's, which alone saves it, restores it and "
                        "evicts from it");
        return NULL;
    }
    if (right == TRAINS && !handle->trains) {
        PyErr_SetString(PyExc_PermissionError,
                        "the embedding table was granted for reading; to train it, task.yaml's permissions.tables says "
                        "NAME:write");
        return NULL;
    }
    return handle->table;
}

static int double_of(PyObject *value, double absent, double *result)
{
    *result = value == NULL ? absent : PyFloat_AsDouble(value);
    return *result == -1 && PyErr_Occurred() ? -1 : 0;
}

/* NULL: an error is set, or no host grants tables to this interpreter. */
static const struct vme_python_tables *tables_here(void)
{
    PyObject *owned = PyInterpreterState_GetDict(PyInterpreterState_Get()); /* borrowed */
    PyObject *capsule = owned == NULL ? NULL : PyDict_GetItemString(owned, VME_TABLES_CAPSULE);
    return capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, VME_TABLES_CAPSULE);
}

/* _embedding_new(dim, optimizer, defaults, ...): a table of the program; options as in vme_embedding.h, defaults is a
 * float32 array of rows */
PyObject *array_function__embedding_new(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    PyObject *folder = NULL;
    int64_t optimizer, cache;
    double no_permission, slot_initial, threshold;
    vme_embedding_options options = {0};
    if (array_argument_int(args[0], 0, &options.dim) < 0 || array_argument_int(args[1], 0, &optimizer) < 0
        || array_argument_int(args[3], 0, &options.filter_freq) < 0
        || array_argument_int(args[4], 0, &options.bloom_elements) < 0
        || double_of(args[5], 0.01, &options.bloom_error) < 0 || double_of(args[6], 0, &no_permission) < 0
        || double_of(args[7], 0, &slot_initial) < 0 || array_argument_int(args[8], 0, &options.steps_to_live) < 0
        || double_of(args[9], 0, &threshold) < 0 || array_argument_int(args[10], 0, &options.quota_bytes) < 0
        || array_argument_int(args[12], 0, &options.disk_memory_bytes) < 0
        || array_argument_int(args[13], 0, &options.disk_quota_bytes) < 0
        || array_argument_int(args[14], 0, &cache) < 0)
        return NULL;
    const bool on_disk = array_given(args[11]);
    if (on_disk) {
        if (tables_here() != NULL) /* the engine would open files without passing the VM's gates */
            PyErr_SetString(PyExc_PermissionError, "a task's own embedding table has all its rows in memory: rows on "
                                                   "disk are for tables of the host");
        if (PyErr_Occurred())
            return NULL;
    }
    array *given = (array *)args[2];
    if (given->t.rank != 2 || given->t.shape[1] != options.dim)
        return PyErr_Format(PyExc_ValueError, "defaults: expected an array of rows of %lld numbers",
                            (long long)options.dim);
    if (on_disk && !PyUnicode_FSConverter(args[11], &folder))
        return NULL;
    array *defaults = array_contiguous(given, VME_FLOAT32);
    if (defaults == NULL) {
        Py_XDECREF(folder);
        return NULL;
    }
    options.disk_folder = folder == NULL ? NULL : PyBytes_AS_STRING(folder);
    options.disk_cache = (int32_t)cache;
    options.optimizer = (int32_t)optimizer;
    options.no_permission = (float)no_permission;
    options.slot_initial = (float)slot_initial;
    options.l2_weight_threshold = (float)threshold;
    options.default_rows = defaults->t.shape[0];
    options.defaults = (const float *)(const void *)defaults->t.data;
    vme_embedding *table = NULL;
    vme_status status = vme_embedding_new(state->context, &options, &table);
    Py_DECREF(defaults);
    Py_XDECREF(folder);
    return status == VME_OK ? handle_new(table, true, true) : array_fail(state, status);
}

static int add_granted(const char *name, void *list)
{
    PyObject *text = PyUnicode_FromString(name);
    int rc = text == NULL ? -1 : PyList_Append(list, text);
    Py_XDECREF(text);
    return rc;
}

/* _embedding_names(): the tables granted to this VM's task, as "NAME:read" and "NAME:write"; None outside of VMs */
PyObject *array_function__embedding_names(PyObject *module, ARRAY_VECTORCALL)
{
    (void)module, (void)args, (void)count, (void)keywords;
    const struct vme_python_tables *here = tables_here();
    if (here == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    PyObject *list = PyList_New(0);
    if (list == NULL || here->visit(add_granted, list) != 0 || PyList_Sort(list) < 0)
        Py_CLEAR(list);
    return list;
}

/* _embedding_open(name): the host's table with that name */
PyObject *array_function__embedding_open(PyObject *module, ARRAY_VECTORCALL)
{
    (void)module;
    Py_ssize_t length; /* a name with NUL is no table's */
    const char *name = PyUnicode_AsUTF8AndSize(args[0], &length);
    const struct vme_python_tables *here = name == NULL ? NULL : tables_here();
    if (here == NULL && PyErr_Occurred())
        return NULL;
    bool trains = false;
    vme_embedding *table = here == NULL || strlen(name) != (size_t)length ? NULL : here->find(name, &trains);
    if (table == NULL)
        return PyErr_Format(PyExc_LookupError, "no embedding table %R was granted", args[0]);
    return handle_new(vme_embedding_ref(table), trains, false);
}

/* _embedding_statistics(table): a dict of its options and counts */
PyObject *array_function__embedding_statistics(PyObject *module, ARRAY_VECTORCALL)
{
    (void)module;
    const struct vme_python_embedding *handle = PyCapsule_GetPointer(args[0], VME_EMBEDDING_CAPSULE);
    vme_embedding_statistics counts;
    if (handle == NULL)
        return NULL;
    PyThreadState *thread = PyEval_SaveThread(); /* it waits for locks */
    vme_embedding_statistics_of(handle->table, &counts);
    PyEval_RestoreThread(thread);
    return Py_BuildValue("{sLsLsLsLsLsLsLsLsLsLsLsisisOsO}", "disk_rows", (long long)counts.disk_rows, "disk_bytes",
                         (long long)counts.disk_bytes, "memory_hits", (long long)counts.memory_hits, "disk_hits",
                         (long long)counts.disk_hits, "rows", (long long)counts.rows, "waiting",
                         (long long)counts.waiting, "changed", (long long)counts.changed, "bytes",
                         (long long)counts.bytes, "step", (long long)counts.step, "bloom_counters",
                         (long long)counts.bloom_counters, "dim", (long long)vme_embedding_dim(handle->table), "slots",
                         vme_embedding_slots(handle->table), "optimizer", vme_embedding_optimizer_of(handle->table),
                         "trains", handle->trains ? Py_True : Py_False, "owns", handle->owns ? Py_True : Py_False);
}

/* ---- lookups and gradient steps */
/* The argument as a contiguous array of this dtype: a new reference, to itself if it already is. */
static array *dense_of(const char *name, PyObject *value, int dtype)
{
    if (is_array(value) && (dtype != VME_INT64 || dtype_is_integer(((array *)value)->t.dtype)))
        return array_contiguous((array *)value, dtype);
    PyErr_Format(PyExc_TypeError, "%s: expected an array of %s", name,
                 dtype == VME_INT64 ? "whole numbers" : "float32");
    return NULL;
}

/* _embedding_lookup(table, ids): the rows, in an array of the ids' shape followed by `dim` */
PyObject *array_function__embedding_lookup(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    vme_embedding *table = table_of(args[0], READS);
    array *ids = table == NULL ? NULL : dense_of("ids", args[1], VME_INT64);
    if (ids == NULL)
        return NULL;
    int64_t shape[VME_RANK_MAX + 1];
    memcpy(shape, ids->t.shape, (size_t)ids->t.rank * sizeof *shape);
    shape[ids->t.rank] = vme_embedding_dim(table);
    array *out = ids->t.rank == VME_RANK_MAX
                     ? PyErr_Format(PyExc_ValueError, "ids: expected at most %d dimensions", VME_RANK_MAX - 1)
                     : (void *)array_new(state, VME_FLOAT32, ids->t.rank + 1, shape, false);
    if (out != NULL
        && array_check_status(state, OPERATOR(state->context, "embedding_lookup", out->size + 64 * ids->size,
                                              vme_embedding_lookup(state->context, table, &ids->t, &out->t)))
               < 0)
        Py_CLEAR(out);
    Py_DECREF(ids);
    return (PyObject *)out;
}

/* Sets of bags, and the references that keep them alive. */
typedef struct bag_sets {
    int count;
    int64_t work, bags, width; /* elements read; bags of each set if all sets have the same number, else -1; sum of all
                                * dims */
    vme_embedding_bags *sets;
    vme_tensor *tensors;
    PyObject *held;
    PyObject *offsets;   /* of the previous set, borrowed, ... */
    array *offsets_copy; /* ... and their copy, borrowed: sets with the same offsets array share it */
} bag_sets;

static void sets_free(bag_sets *sets)
{
    PyMem_Free(sets->sets);
    PyMem_Free(sets->tensors);
    Py_XDECREF(sets->held);
}

static int hold(bag_sets *sets, array *part)
{
    int rc = part == NULL ? -1 : PyList_Append(sets->held, (PyObject *)part);
    Py_XDECREF(part);
    return rc;
}

static int check_plain(const array *rows)
{
    if (rows->t.dtype == VME_FLOAT32 && rows->t.rank == 2 && rows->t.shape[1] > 0
        && (rows->t.shape[1] == 1 || rows->t.strides[1] == sizeof(float))
        && rows->t.strides[0] % (int64_t)sizeof(float) == 0)
        return 0;
    PyErr_SetString(
        PyExc_ValueError,
        "table: expected an EmbeddingVariable, or an array of float32 of shape [rows, dim], with contiguous "
        "rows");
    return -1;
}

static int read_set(array_state *state, bag_sets *sets, PyObject *item, int right)
{
    vme_embedding_bags *set = &sets->sets[sets->count];
    PyObject *ids_object, *offsets_object, *weights_object, *gradient_object = NULL;
    PyObject *capsule;
    long long default_id;
    int combiner;
    if (!PyArg_ParseTuple(item, right == TRAINS ? "OOOOLiO" : "OOOOLi", &capsule, &ids_object, &offsets_object,
                          &weights_object, &default_id, &combiner, &gradient_object))
        return -1;
    array *plain = right == READS && is_array(capsule) ? (array *)Py_NewRef(capsule) : NULL;
    if (plain != NULL && (hold(sets, plain) < 0 || check_plain(plain) < 0))
        return -1;
    vme_embedding *table = plain != NULL ? NULL : table_of(capsule, right);
    if (plain == NULL && table == NULL)
        return -1;
    array *ids = dense_of("ids", ids_object, VME_INT64), *offsets = NULL, *weights = NULL, *gradient = NULL;
    if (hold(sets, ids) < 0)
        return -1;
    /* a copy: what was checked cannot change, even if other threads of the program write to it */
    if (!is_array(offsets_object) || !dtype_is_integer(((array *)offsets_object)->t.dtype)) {
        PyErr_SetString(PyExc_TypeError, "offsets: expected an array of whole numbers");
        return -1;
    }
    offsets = sets->offsets == offsets_object ? (array *)Py_NewRef(sets->offsets_copy)
                                              : array_cast((array *)offsets_object, VME_INT64);
    if (hold(sets, offsets) < 0)
        return -1;
    sets->offsets = offsets_object;
    sets->offsets_copy = offsets;
    if (weights_object != Py_None) {
        weights = dense_of("weights", weights_object, VME_FLOAT32);
        if (hold(sets, weights) < 0)
            return -1;
    }
    if (right == TRAINS) {
        if (is_array(gradient_object) && ((array *)gradient_object)->t.dtype == VME_FLOAT32
            && ((array *)gradient_object)->t.rank == 2 && ((array *)gradient_object)->t.strides[1] == sizeof(float)
            && ((array *)gradient_object)->t.strides[0] % (int64_t)sizeof(float) == 0)
            gradient = (array *)Py_NewRef(gradient_object);
        else
            gradient = dense_of("gradient", gradient_object, VME_FLOAT32);
        if (hold(sets, gradient) < 0)
            return -1;
    }
    const int64_t dim = plain != NULL ? plain->t.shape[1] : vme_embedding_dim(table),
                  bags = offsets->t.rank == 1 ? offsets->t.shape[0] - 1 : -1;
    (void)state;
    if (sets->count == 0)
        sets->bags = bags;
    else if (sets->bags != bags)
        sets->bags = -1;
    sets->width += dim;
    sets->work += (ids->size + bags) * (dim + 32);
    *set = (vme_embedding_bags){table,
                                &ids->t,
                                &offsets->t,
                                weights == NULL ? NULL : &weights->t,
                                default_id,
                                combiner,
                                gradient == NULL ? NULL : &gradient->t,
                                plain == NULL ? NULL : &plain->t};
    sets->count++;
    return 0;
}

static int sets_read(array_state *state, PyObject *items, int right, bag_sets *sets)
{
    *sets = (bag_sets){0};
    const Py_ssize_t n = PyTuple_GET_SIZE(items);
    sets->sets = PyMem_Calloc((size_t)n + 1, sizeof *sets->sets);
    sets->tensors = PyMem_Calloc((size_t)n + 1, sizeof *sets->tensors);
    sets->held = PyList_New(0);
    int rc = sets->sets == NULL || sets->tensors == NULL ? (PyErr_NoMemory(), -1) : sets->held == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; i < n && rc == 0; i++)
        rc = read_set(state, sets, PyTuple_GET_ITEM(items, i), right);
    if (rc < 0)
        sets_free(sets);
    return rc;
}

/* The destinations of the sums: columns of one new array, `*out`, or, if `apart`, arrays of their own in a new list. */
static int sums_of(array_state *state, bag_sets *sets, int64_t (*shapes)[2], bool apart, PyObject **out)
{
    array *all = NULL;
    if (!apart && (all = array_new(state, VME_FLOAT32, 2, (int64_t[]){sets->bags, sets->width}, false)) == NULL)
        return -1;
    *out = apart ? PyList_New(sets->count) : (PyObject *)all;
    for (int64_t i = 0, column = 0; *out != NULL && i < sets->count; i++) {
        const vme_embedding_bags *set = &sets->sets[i];
        shapes[i][0] = sets->bags;
        shapes[i][1] = set->table == NULL ? set->plain->shape[1] : vme_embedding_dim(set->table);
        array *own = apart ? array_new(state, VME_FLOAT32, 2, shapes[i], false) : all;
        if (own == NULL) {
            Py_CLEAR(*out);
            break;
        }
        if (apart)
            PyList_SET_ITEM(*out, i, (PyObject *)own);
        sets->tensors[i] = own->t;
        if (!apart) {
            sets->tensors[i].data += column * (int64_t)sizeof(float);
            sets->tensors[i].shape = shapes[i];
        }
        sets->sets[i].dense = &sets->tensors[i];
        column += shapes[i][1];
    }
    return *out == NULL ? -1 : 0;
}

/* _embedding_bags(sets, apart): the sums of bags for each set of (table or plain array, ids, offsets, weights or None,
 * default id, combiner): side by side in one array [bags, sum of dims], or, if `apart`, in a list of arrays [bags, dim]
 */
PyObject *array_function__embedding_bags(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    bag_sets sets;
    const bool apart = args[1] == Py_True;
    if (sets_read(state, args[0], READS, &sets) < 0)
        return NULL;
    PyObject *out = NULL;
    int64_t (*shapes)[2] = PyMem_Calloc((size_t)sets.count + 1, sizeof *shapes);
    if (sets.count == 0 || sets.bags < 0)
        PyErr_SetString(PyExc_ValueError,
                        "offsets: expected as many bags of each table, and one offset more than bags");
    else if (shapes == NULL)
        PyErr_NoMemory();
    else if (sums_of(state, &sets, shapes, apart, &out) == 0
             && array_check_status(state, OPERATOR(state->context, "embedding_lookup_bags", sets.work,
                                                   vme_embedding_lookup_bags(state->context, sets.count, sets.sets)))
                    < 0)
        Py_CLEAR(out);
    PyMem_Free(shapes);
    sets_free(&sets);
    return out;
}

static int rates_of(PyObject *tuple, vme_embedding_rates *rates)
{
    long long updates, step;
    if (!PyArg_ParseTuple(tuple, "dddddddLL", &rates->learning_rate, &rates->eps, &rates->beta1, &rates->beta2,
                          &rates->l1, &rates->l2, &rates->beta, &updates, &step))
        return -1;
    rates->updates = updates;
    rates->step = step;
    return 0;
}

/* _embedding_update_bags(sets, rates): a gradient step for what _embedding_bags read; each set has its gradient as a
 * seventh item */
PyObject *array_function__embedding_update_bags(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    vme_embedding_rates rates;
    bag_sets sets;
    if (rates_of(args[1], &rates) < 0 || sets_read(state, args[0], TRAINS, &sets) < 0)
        return NULL;
    int rc =
        array_check_status(state, OPERATOR(state->context, "embedding_update_bags", 2 * sets.work,
                                           vme_embedding_update_bags(state->context, sets.count, sets.sets, &rates)));
    sets_free(&sets);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

/* _embedding_update(table, rates, ids, gradients) */
PyObject *array_function__embedding_update(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    vme_embedding_rates rates;
    vme_embedding *table = table_of(args[0], TRAINS);
    if (table == NULL || rates_of(args[1], &rates) < 0)
        return NULL;
    array *ids = dense_of("ids", args[2], VME_INT64),
          *gradients = ids == NULL ? NULL : dense_of("gradients", args[3], VME_FLOAT32);
    int rc = gradients == NULL
                 ? -1
                 : array_check_status(
                       state, OPERATOR(state->context, "embedding_update", 2 * gradients->size + 64 * ids->size,
                                       vme_embedding_update(state->context, table, &rates, &ids->t, &gradients->t)));
    Py_XDECREF(ids);
    Py_XDECREF(gradients);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- saving */
/* _embedding_evict(table, step): the number of evicted keys */
PyObject *array_function__embedding_evict(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    int64_t step, evicted = 0;
    vme_embedding *table = table_of(args[0], OWNS);
    if (table == NULL || array_argument_int(args[1], 0, &step) < 0
        || array_check_status(state, OPERATOR(state->context, "embedding_evict", ARRAY_WORK_RELEASE,
                                              vme_embedding_evict(state->context, table, step, &evicted)))
               < 0)
        return NULL;
    return PyLong_FromLongLong(evicted);
}

typedef struct python_snapshot {
    vme_embedding_snapshot *of; /* NULL: it has ended */
    vme_embedding *table;       /* a reference */
    bool used;                  /* in use by a thread without the GIL */
} python_snapshot;

static void snapshot_free(PyObject *capsule)
{
    python_snapshot *snapshot = PyCapsule_GetPointer(capsule, ARRAY_SNAPSHOT_CAPSULE);
    vme_embedding_snapshot_end(snapshot->of, false);
    vme_embedding_unref(snapshot->table);
    PyMem_Free(snapshot);
}

static python_snapshot *snapshot_of(PyObject *capsule)
{
    python_snapshot *snapshot = PyCapsule_GetPointer(capsule, ARRAY_SNAPSHOT_CAPSULE);
    if (snapshot == NULL || (snapshot->of != NULL && !snapshot->used))
        return snapshot;
    PyErr_SetString(PyExc_ValueError, snapshot->used ? "another thread reads this snapshot" : "the snapshot has ended");
    return NULL;
}

/* Calls the engine without the GIL, with exclusive use of the snapshot. */
#define SNAPSHOT(snapshot, call) \
    ({ \
        (snapshot)->used = true; \
        vme_status snapshot_status = ENGINE(ARRAY_WORK_RELEASE, call); \
        (snapshot)->used = false; \
        snapshot_status; \
    })

/* _embedding_snapshot(tables, incremental): a list of snapshots of the same moment */
PyObject *array_function__embedding_snapshot(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    const bool incremental = args[1] == Py_True;
    const Py_ssize_t n = PyTuple_GET_SIZE(args[0]);
    vme_embedding **tables = PyMem_Calloc((size_t)n + 1, sizeof *tables);
    vme_embedding_snapshot **snapshots = PyMem_Calloc((size_t)n + 1, sizeof *snapshots);
    PyObject *list = tables == NULL || snapshots == NULL ? PyErr_NoMemory() : PyList_New(n);
    for (Py_ssize_t i = 0; list != NULL && i < n;
         i++) { /* capsules first, so that nothing can fail after the snapshots were made */
        tables[i] = table_of(PyTuple_GET_ITEM(args[0], i), OWNS);
        python_snapshot *own = tables[i] == NULL ? NULL : PyMem_Calloc(1, sizeof *own);
        PyObject *capsule = own == NULL ? NULL : PyCapsule_New(own, ARRAY_SNAPSHOT_CAPSULE, snapshot_free);
        if (capsule == NULL) {
            if (!PyErr_Occurred())
                PyErr_NoMemory();
            PyMem_Free(own);
            Py_CLEAR(list);
        } else {
            own->table = vme_embedding_ref(tables[i]);
            PyList_SET_ITEM(list, i, capsule);
        }
    }
    if (list != NULL
        && array_check_status(
               state, OPERATOR(state->context, "embedding_snapshot_new", ARRAY_WORK_RELEASE,
                               vme_embedding_snapshot_new(state->context, (int)n, tables, incremental, snapshots)))
               < 0)
        Py_CLEAR(list);
    for (Py_ssize_t i = 0; list != NULL && i < n; i++)
        ((python_snapshot *)PyCapsule_GetPointer(PyList_GET_ITEM(list, i), ARRAY_SNAPSHOT_CAPSULE))->of = snapshots[i];
    PyMem_Free(tables);
    PyMem_Free(snapshots);
    return list;
}

/* _embedding_snapshot_rows(snapshot) */
PyObject *array_function__embedding_snapshot_rows(PyObject *module, ARRAY_VECTORCALL)
{
    (void)module;
    python_snapshot *snapshot = snapshot_of(args[0]);
    return snapshot == NULL ? NULL : PyLong_FromLongLong(vme_embedding_snapshot_rows(snapshot->of));
}

/* _embedding_snapshot_read(snapshot, room): (count, keys, freqs, versions, values, slots), arrays with room for `room`
 * rows */
PyObject *array_function__embedding_snapshot_read(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    int64_t room, read = 0;
    python_snapshot *snapshot = array_argument_int(args[1], 0, &room) < 0 ? NULL : snapshot_of(args[0]);
    if (snapshot == NULL)
        return NULL;
    const int64_t dim = vme_embedding_dim(snapshot->table),
                  shape[2][2] = {{room, dim}, {room, dim * vme_embedding_slots(snapshot->table)}};
    array *parts[5] = {0};
    for (int i = 0; i < 5; i++)
        if ((parts[i] = array_new(state, i < 3 ? VME_INT64 : VME_FLOAT32, i < 3 ? 1 : 2, shape[i == 4], false)) == NULL)
            break;
    int rc =
        parts[4] == NULL
            ? -1
            : array_check_status(state, SNAPSHOT(snapshot, vme_embedding_snapshot_read(
                                                               state->context, snapshot->of, &parts[0]->t, &parts[1]->t,
                                                               &parts[2]->t, &parts[3]->t, &parts[4]->t, &read)));
    PyObject *result =
        rc < 0 ? NULL : Py_BuildValue("(LOOOOO)", (long long)read, parts[0], parts[1], parts[2], parts[3], parts[4]);
    for (int i = 0; i < 5; i++)
        Py_XDECREF(parts[i]);
    return result;
}

/* _embedding_snapshot_waiting(snapshot, room): (count, keys, freqs, versions) */
PyObject *array_function__embedding_snapshot_waiting(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    int64_t room, read = 0;
    python_snapshot *snapshot = array_argument_int(args[1], 0, &room) < 0 ? NULL : snapshot_of(args[0]);
    if (snapshot == NULL)
        return NULL;
    array *parts[3] = {0};
    for (int i = 0; i < 3; i++)
        if ((parts[i] = array_new(state, VME_INT64, 1, &room, false)) == NULL)
            break;
    int rc =
        parts[2] == NULL
            ? -1
            : array_check_status(
                  state, SNAPSHOT(snapshot, vme_embedding_snapshot_waiting(state->context, snapshot->of, &parts[0]->t,
                                                                           &parts[1]->t, &parts[2]->t, &read)));
    PyObject *result = rc < 0 ? NULL : Py_BuildValue("(LOOO)", (long long)read, parts[0], parts[1], parts[2]);
    for (int i = 0; i < 3; i++)
        Py_XDECREF(parts[i]);
    return result;
}

/* _embedding_snapshot_bloom(snapshot): the Bloom filter's counters */
PyObject *array_function__embedding_snapshot_bloom(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    python_snapshot *snapshot = snapshot_of(args[0]);
    if (snapshot == NULL)
        return NULL;
    vme_embedding_statistics counts;
    vme_embedding_statistics_of(snapshot->table, &counts);
    array *counters = array_new(state, VME_UINT16, 1, &counts.bloom_counters, false);
    if (counters != NULL
        && array_check_status(
               state, SNAPSHOT(snapshot, vme_embedding_snapshot_bloom(state->context, snapshot->of, &counters->t)))
               < 0)
        Py_CLEAR(counters);
    return (PyObject *)counters;
}

/* _embedding_snapshot_end(snapshot, saved) */
PyObject *array_function__embedding_snapshot_end(PyObject *module, ARRAY_VECTORCALL)
{
    (void)module;
    const bool saved = args[1] == Py_True;
    python_snapshot *snapshot = snapshot_of(args[0]);
    if (snapshot == NULL)
        return NULL;
    vme_embedding_snapshot *of = snapshot->of;
    snapshot->of = NULL;
    PyThreadState *thread = PyEval_SaveThread();
    vme_embedding_snapshot_end(of, saved);
    PyEval_RestoreThread(thread);
    Py_RETURN_NONE;
}

/* _embedding_put(table, keys, freqs, versions, values, slots): restores rows of a snapshot; with values and slots None,
 * waiting keys; with keys None, the Bloom filter's counters, passed as freqs */
PyObject *array_function__embedding_put(PyObject *module, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"keys", "freqs", "versions", "values", "slots"};
    array_state *state = array_state_of(module);
    vme_embedding *table = table_of(args[0], OWNS);
    if (table == NULL)
        return NULL;
    const bool bloom = args[1] == Py_None, rows = args[4] != Py_None;
    array *parts[5] = {0};
    int rc = 0;
    for (int i = 0; i < 5 && rc == 0; i++) {
        if (bloom ? i != 1 : !rows && i >= 3)
            continue;
        parts[i] = bloom && is_array(args[2]) ? array_contiguous((array *)args[2], VME_UINT16)
                                              : dense_of(names[i], args[1 + i], i < 3 ? VME_INT64 : VME_FLOAT32);
        rc = parts[i] == NULL ? -1 : 0;
    }
    if (rc == 0) {
        vme_status status;
        if (bloom)
            status = OPERATOR(state->context, "embedding_put_bloom", ARRAY_WORK_RELEASE,
                              vme_embedding_put_bloom(state->context, table, &parts[1]->t));
        else if (!rows)
            status =
                OPERATOR(state->context, "embedding_put_waiting", ARRAY_WORK_RELEASE,
                         vme_embedding_put_waiting(state->context, table, &parts[0]->t, &parts[1]->t, &parts[2]->t));
        else
            status = OPERATOR(state->context, "embedding_put", ARRAY_WORK_RELEASE,
                              vme_embedding_put(state->context, table, &parts[0]->t, &parts[1]->t, &parts[2]->t,
                                                &parts[3]->t, &parts[4]->t));
        rc = array_check_status(state, status);
    }
    for (int i = 0; i < 5; i++)
        Py_XDECREF(parts[i]);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}
