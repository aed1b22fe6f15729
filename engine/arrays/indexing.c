/* Indexing: basic keys (ints, slices, ellipsis, newaxis) make views; integer arrays and boolean masks gather and
 * scatter.
 *
 * A key is parsed into items; boolean masks become the integer arrays of their true positions. The basic items make a
 * view in which every advanced item is one dimension; the engine's gather and scatter then work on that view, with the
 * advanced dimensions adjacent (moved to the front if the key has basic items between them, as in NumPy). */
#include "methods.h"

enum item_kind { ITEM_INT, ITEM_SLICE, ITEM_ELLIPSIS, ITEM_NEW_AXIS, ITEM_ARRAY, ITEM_FALSE_AXIS };

typedef struct item {
    enum item_kind kind;
    int64_t value;   /* ITEM_INT; ITEM_ARRAY: the mask's size in that dimension, or -1 */
    PyObject *slice; /* ITEM_SLICE; borrowed from the key */
    array *indices;  /* ITEM_ARRAY: int64; ITEM_FALSE_AXIS: the positions in a new dimension of size 1. Owned. */
} item;

typedef struct index_key {
    int count, used, advanced; /* numbers of items, of dimensions that they index, and of array items */
    bool ellipsis;
    int mask_true; /* 1: the key is a single mask */
    item items[2 * VME_RANK_MAX + 1];
} index_key;

static void index_clear(index_key *key)
{
    for (int i = 0; i < key->count; i++)
        Py_XDECREF(key->items[i].indices);
}

static item *item_new(index_key *key, enum item_kind kind)
{
    if (key->count == 2 * VME_RANK_MAX + 1) {
        PyErr_SetString(PyExc_IndexError, "too many indices for array");
        return NULL;
    }
    key->items[key->count] = (item){.kind = kind};
    return &key->items[key->count++];
}

static const char wrong_kind[] =
    "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or boolean arrays "
    "are valid indices";

static int add_mask(index_key *key, array *self, array *mask)
{
    array_state *state = self->state;
    if (mask->t.rank == 0) { /* a new dimension with one position or none */
        int64_t shape[1] = {*mask->t.data != 0};
        item *result = item_new(key, ITEM_FALSE_AXIS);
        if (result == NULL || (result->indices = array_new(state, VME_INT64, 1, shape, true)) == NULL)
            return -1;
        key->advanced++;
        return 0;
    }
    int64_t indices;
    if (array_check_status(state, OPERATOR(state->context, "nonzero", mask->size,
                                           vme_nonzero(state->context, &mask->t, &indices, NULL)))
        < 0)
        return -1;
    const vme_tensor *tensors[VME_RANK_MAX];
    int first = key->count;
    for (int i = 0; i < mask->t.rank; i++) {
        item *result = item_new(key, ITEM_ARRAY);
        if (result == NULL || (result->indices = array_new(state, VME_INT64, 1, &indices, false)) == NULL)
            return -1;
        tensors[i] = &key->items[first + i].indices->t;
        result->value = mask->t.shape[i];
        key->advanced++;
        key->used++;
    }
    return array_check_status(state, OPERATOR(state->context, "nonzero", mask->size,
                                              vme_nonzero(state->context, &mask->t, &indices, tensors)));
}

static int add_item(index_key *key, array *self, PyObject *object)
{
    item *created;
    if (PyLong_Check(object) && !PyBool_Check(object)) {
        created = item_new(key, ITEM_INT);
        if (created == NULL)
            return -1;
        key->used++;
        created->value = PyNumber_AsSsize_t(object, PyExc_IndexError);
        if (created->value != -1 || !PyErr_Occurred())
            return 0;
        PyErr_SetString(PyExc_IndexError, wrong_kind); /* NumPy's message for an int that is not an index */
        return -1;
    }
    if (PySlice_Check(object)) {
        created = item_new(key, ITEM_SLICE);
        if (created == NULL)
            return -1;
        created->slice = object;
        key->used++;
        return 0;
    }
    if (object == Py_None)
        return item_new(key, ITEM_NEW_AXIS) == NULL ? -1 : 0;
    if (object == Py_Ellipsis) {
        if (key->ellipsis) {
            PyErr_SetString(PyExc_IndexError, "an index can only have a single ellipsis ('...')");
            return -1;
        }
        key->ellipsis = true;
        return item_new(key, ITEM_ELLIPSIS) == NULL ? -1 : 0;
    }
    if (is_array(object) && ((array *)object)->t.rank == 0 && dtype_is_integer(((array *)object)->t.dtype)) {
        PyObject *number = array_item_value((array *)object);
        int result = number == NULL ? -1 : add_item(key, self, number);
        Py_XDECREF(number);
        return result;
    }
    if (!is_array(object) && !PyBool_Check(object) && PyIndex_Check(object)) {
        PyObject *number = PyNumber_Index(object);
        int result = number == NULL ? -1 : add_item(key, self, number);
        Py_XDECREF(number);
        return result;
    }
    if (!array_is_operand(object) || PyFloat_Check(object) || PyComplex_Check(object)) {
        PyErr_SetString(PyExc_IndexError, wrong_kind);
        return -1;
    }
    array *indices = array_from_any(self->state, object, -1);
    if (indices == NULL)
        return -1;
    if (indices->size == 0 && !is_array(object)) /* an empty list has no dtype of its own */
        Py_SETREF(indices, array_cast(indices, VME_INT64));
    if (indices == NULL)
        return -1;
    int result = -1;
    if (indices->t.dtype == VME_BOOL) {
        result = add_mask(key, self, indices);
        Py_DECREF(indices);
        return result;
    }
    if (!dtype_is_integer(indices->t.dtype)) {
        PyErr_SetString(PyExc_IndexError, "arrays used as indices must be of integer (or boolean) type");
        Py_DECREF(indices);
        return -1;
    }
    if (indices->t.dtype != VME_INT64)
        Py_SETREF(indices, array_cast(indices, VME_INT64));
    created = indices == NULL ? NULL : item_new(key, ITEM_ARRAY);
    if (created == NULL) {
        Py_XDECREF(indices);
        return -1;
    }
    created->indices = indices;
    created->value = -1;
    key->used++;
    key->advanced++;
    return 0;
}

static int index_read(index_key *key, array *self, PyObject *object)
{
    key->count = key->used = key->advanced = 0;
    key->ellipsis = false;
    int result = 0;
    if (PyTuple_Check(object)) {
        for (Py_ssize_t i = 0; result == 0 && i < PyTuple_GET_SIZE(object); i++)
            result = add_item(key, self, PyTuple_GET_ITEM(object, i));
    } else
        result = add_item(key, self, object);
    if (result == 0 && key->used > self->t.rank) {
        PyErr_Format(PyExc_IndexError, "too many indices for array: array is %d-dimensional, but %d were indexed",
                     self->t.rank, key->used);
        result = -1;
    }
    if (result == 0 && !key->ellipsis && key->used < self->t.rank)
        result = item_new(key, ITEM_ELLIPSIS) == NULL ? -1 : 0;
    if (result < 0)
        index_clear(key);
    return result;
}

static int bound(array *self, int64_t *value, int dimension)
{
    int64_t size = self->t.shape[dimension];
    if (*value < -size || *value >= size) {
        PyErr_Format(PyExc_IndexError, "index %lld is out of bounds for axis %d with size %lld", (long long)*value,
                     dimension, (long long)size);
        return -1;
    }
    *value += *value < 0 ? size : 0;
    return 0;
}

/* A key applied to one array: a view, and its dimensions that index arrays select from. */
typedef struct selection {
    vme_tensor view;
    int first; /* the first indexed dimension of `view`; they are adjacent */
    int count; /* 0: a plain view */
    const vme_tensor *indices[VME_RANK_MAX];
    array *owned[VME_RANK_MAX]; /* index arrays that replace ints */
    int owned_count;
    int64_t shape[VME_RANK_MAX], strides[VME_RANK_MAX];
    bool all_ints; /* the key selects one element, by ints only */
} selection;

static int select_view(array *self, index_key *key, selection *chosen)
{
    int rank = 0, dimension = 0, picked[VME_RANK_MAX], runs = 0;
    char *data = self->t.data;
    bool in_run = false;
    chosen->count = chosen->owned_count = 0;
    chosen->all_ints = key->advanced == 0;
    for (int i = 0; i < key->count; i++) {
        item *at = &key->items[i];
        int skipped = at->kind == ITEM_ELLIPSIS ? self->t.rank - key->used : 0;
        if (rank + skipped >= VME_RANK_MAX && at->kind != ITEM_INT
            && !(at->kind == ITEM_ELLIPSIS && rank + skipped == VME_RANK_MAX)) {
            PyErr_Format(PyExc_IndexError, "number of dimensions must be within [0, %d], indexing result would have %d",
                         VME_RANK_MAX, rank + skipped + 1);
            return -1;
        }
        bool advanced =
            at->kind == ITEM_ARRAY || at->kind == ITEM_FALSE_AXIS || (at->kind == ITEM_INT && key->advanced > 0);
        runs += advanced && !in_run;
        in_run = advanced;
        if (at->kind != ITEM_INT && !(at->kind == ITEM_ELLIPSIS && i == key->count - 1 && dimension == self->t.rank))
            chosen->all_ints = false;
        switch (at->kind) {
        case ITEM_INT:
            if (bound(self, &at->value, dimension) < 0)
                return -1;
            if (key->advanced == 0) {
                data += at->value * self->t.strides[dimension++];
                break;
            }
            array *index = array_new_scalar(self->state, VME_INT64);
            if (index == NULL)
                return -1;
            memcpy(index->t.data, &at->value, sizeof at->value);
            chosen->owned[chosen->owned_count++] = index;
            chosen->indices[chosen->count] = &index->t;
            picked[chosen->count++] = rank;
            chosen->shape[rank] = self->t.shape[dimension];
            chosen->strides[rank++] = self->t.strides[dimension++];
            break;
        case ITEM_SLICE: {
            Py_ssize_t start, stop, step;
            if (PySlice_Unpack(at->slice, &start, &stop, &step) < 0)
                return -1;
            Py_ssize_t length = PySlice_AdjustIndices(self->t.shape[dimension], &start, &stop, step);
            if (length > 0)
                data += start * self->t.strides[dimension];
            chosen->shape[rank] = length;
            int64_t stride;
            chosen->strides[rank++] =
                __builtin_mul_overflow(self->t.strides[dimension], (int64_t)step, &stride) ? 0 : stride;
            dimension++;
            break;
        }
        case ITEM_ELLIPSIS:
            for (int d = 0; d < skipped; d++, dimension++) {
                chosen->shape[rank] = self->t.shape[dimension];
                chosen->strides[rank++] = self->t.strides[dimension];
            }
            break;
        case ITEM_NEW_AXIS:
            chosen->shape[rank] = 1;
            chosen->strides[rank++] = 0;
            break;
        case ITEM_ARRAY:
        case ITEM_FALSE_AXIS:
            if (at->kind == ITEM_ARRAY && at->value > 0 && at->value != self->t.shape[dimension]) {
                PyErr_Format(
                    PyExc_IndexError,
                    "boolean index did not match indexed array along axis %d; size of axis is %lld but size of "
                    "corresponding boolean axis is %lld",
                    dimension, (long long)self->t.shape[dimension], (long long)at->value);
                return -1;
            }
            chosen->indices[chosen->count] = &at->indices->t;
            picked[chosen->count++] = rank;
            chosen->shape[rank] = at->kind == ITEM_ARRAY ? self->t.shape[dimension] : 1;
            chosen->strides[rank++] = at->kind == ITEM_ARRAY ? self->t.strides[dimension++] : 0;
            break;
        }
    }
    if (runs > 1) { /* moves the indexed dimensions to the front */
        int64_t shape[VME_RANK_MAX], strides[VME_RANK_MAX];
        int to = 0;
        for (int i = 0; i < chosen->count; i++, to++) {
            shape[to] = chosen->shape[picked[i]];
            strides[to] = chosen->strides[picked[i]];
        }
        for (int i = 0, next = 0; i < rank; i++) {
            if (next < chosen->count && picked[next] == i) {
                next++;
                continue;
            }
            shape[to] = chosen->shape[i];
            strides[to++] = chosen->strides[i];
        }
        memcpy(chosen->shape, shape, (size_t)rank * sizeof *shape);
        memcpy(chosen->strides, strides, (size_t)rank * sizeof *strides);
        chosen->first = 0;
    } else
        chosen->first = chosen->count > 0 ? picked[0] : 0;
    chosen->view = (vme_tensor){self->t.buffer, data, chosen->shape, chosen->strides, rank, self->t.dtype};
    return 0;
}

static void selection_clear(selection *chosen)
{
    for (int i = 0; i < chosen->owned_count; i++)
        Py_DECREF(chosen->owned[i]);
}

/* The shape of a gather's result: the dimensions before, the broadcast shape of the index arrays, the dimensions after.
 */
static int gathered_shape(array_state *state, const selection *chosen, int *rank, int64_t *shape)
{
    int64_t common[VME_RANK_MAX];
    int common_rank;
    vme_status status = vme_shape_broadcast(chosen->count, chosen->indices, &common_rank, common);
    if (status != VME_OK) {
        PyErr_Format(PyExc_IndexError, "shape mismatch: indexing arrays could not be broadcast together with shapes %s",
                     strstr(vme_message(), "shapes ") != NULL ? strstr(vme_message(), "shapes ") + 7 : "");
        return -1;
    }
    int after = chosen->view.rank - chosen->first - chosen->count;
    *rank = chosen->first + common_rank + after;
    if (*rank > VME_RANK_MAX) {
        PyErr_Format(PyExc_IndexError, "number of dimensions must be within [0, %d], indexing result would have %d",
                     VME_RANK_MAX, *rank);
        return -1;
    }
    memcpy(shape, chosen->shape, (size_t)chosen->first * sizeof *shape);
    memcpy(shape + chosen->first, common, (size_t)common_rank * sizeof *shape);
    memcpy(shape + chosen->first + common_rank, chosen->shape + chosen->first + chosen->count,
           (size_t)after * sizeof *shape);
    return 0;
}

static PyObject *scalar_at(array *self, const char *data)
{
    array *result = array_new_scalar(self->state, self->t.dtype);
    if (result == NULL)
        return NULL;
    switch (vme_dtype_size((vme_dtype)self->t.dtype)) { /* of a known size, memcpy is one instruction */
    case 1: memcpy(result->t.data, data, 1); break;
    case 2: memcpy(result->t.data, data, 2); break;
    case 4: memcpy(result->t.data, data, 4); break;
    case 8: memcpy(result->t.data, data, 8); break;
    default: memcpy(result->t.data, data, 16);
    }
    return array_as_scalar(result);
}

PyObject *array_item_at(array *self, int64_t at)
{
    char *data = self->t.data + at * self->t.strides[0];
    if (self->t.rank == 1)
        return scalar_at(self, data);
    return (PyObject *)array_view_of(self, self->t.dtype, self->t.rank - 1, self->t.shape + 1, self->t.strides + 1,
                                     data);
}

/* a[mask] with a mask of a's shape, both in C order: treated as one dimension, so that one list of positions suffices.
 */
static bool is_mask_of(const array *self, const array *mask)
{
    return mask->t.dtype == VME_BOOL && self->t.rank > 1 && mask->t.rank == self->t.rank
           && (self->flags & mask->flags & ARRAY_CONTIGUOUS)
           && memcmp(self->t.shape, mask->t.shape, (size_t)self->t.rank * sizeof *self->t.shape) == 0;
}

static PyObject *masked(array *self, array *mask)
{
    int64_t size[1] = {self->size}, step[1] = {vme_dtype_size((vme_dtype)self->t.dtype)}, mask_step[1] = {1};
    array *flat = array_view_of(self, self->t.dtype, 1, size, step, self->t.data);
    array *flat_mask = flat == NULL ? NULL : array_view_of(mask, VME_BOOL, 1, size, mask_step, mask->t.data);
    PyObject *result = flat_mask == NULL ? NULL : array_subscript((PyObject *)flat, (PyObject *)flat_mask);
    Py_XDECREF(flat_mask);
    Py_XDECREF(flat);
    return result;
}

PyObject *array_subscript(PyObject *object, PyObject *key)
{
    array *self = (array *)object;
    if (PyLong_CheckExact(key) && self->t.rank > 0) {
        int64_t at = PyLong_AsSsize_t(key);
        if (at == -1 && PyErr_Occurred()) {
            PyErr_SetString(PyExc_IndexError, wrong_kind);
            return NULL;
        }
        return bound(self, &at, 0) < 0 ? NULL : array_item_at(self, at);
    }
    if (PyTuple_CheckExact(key) && PyTuple_GET_SIZE(key) == self->t.rank
        && self->t.rank > 0) { /* one element selected by ints */
        const char *data = self->t.data;
        int i = 0, ints = 0;
        while (ints < self->t.rank && PyLong_CheckExact(PyTuple_GET_ITEM(key, ints)))
            ints++;
        for (; ints == self->t.rank && i < ints; i++) {
            int64_t at = PyNumber_AsSsize_t(PyTuple_GET_ITEM(key, i), PyExc_IndexError);
            if ((at == -1 && PyErr_Occurred()) || bound(self, &at, i) < 0)
                return NULL;
            data += at * self->t.strides[i];
        }
        if (i == self->t.rank)
            return scalar_at(self, data);
    }
    if (is_array(key) && is_mask_of(self, (array *)key))
        return masked(self, (array *)key);
    index_key read;
    selection chosen;
    array *created = NULL;
    if (index_read(&read, self, key) < 0)
        return NULL;
    PyObject *result = NULL;
    if (select_view(self, &read, &chosen) < 0)
        goto done;
    if (chosen.count == 0) {
        if (chosen.all_ints && chosen.view.rank == 0 && !read.ellipsis && key != Py_Ellipsis)
            result = scalar_at(self, chosen.view.data);
        else
            result = (PyObject *)array_view_of(self, self->t.dtype, chosen.view.rank, chosen.shape, chosen.strides,
                                               chosen.view.data);
        goto done;
    }
    int rank;
    int64_t shape[VME_RANK_MAX];
    if (gathered_shape(self->state, &chosen, &rank, shape) < 0)
        goto done;
    created = array_new(self->state, self->t.dtype, rank, shape, false);
    if (created != NULL
        && array_check_status(self->state, OPERATOR(self->state->context, "gather", created->size * 4,
                                                    vme_gather(self->state->context, &chosen.view, chosen.first,
                                                               chosen.count, chosen.indices, &created->t)))
               < 0)
        Py_CLEAR(created);
    result = array_as_scalar(created);
done:
    selection_clear(&chosen);
    index_clear(&read);
    return result;
}

/* a[mask] = number, with a mask of a's shape: written in place, without a list of positions */
static int assign_masked(array *self, array *mask, PyObject *number)
{
    char element[ARRAY_ELEMENT_BYTES];
    if (element_from_python(self->t.dtype, number, element) < 0)
        return -1;
    vme_tensor scalar = {NULL, element, NULL, NULL, 0, self->t.dtype};
    return array_check_status(self->state,
                              OPERATOR(self->state->context, "where", self->size * 2,
                                       vme_where(self->state->context, &mask->t, &scalar, &self->t, &self->t)));
}

static int assign_gathered(array *self, const index_key *read, const selection *chosen, PyObject *value)
{
    array_state *state = self->state;
    int rank, result = -1;
    int64_t shape[VME_RANK_MAX];
    array *values =
        element_weak(value) != WEAK_NONE
            ? array_scalar_from(state, self->t.dtype, value)
            : array_from_any(state, value, is_array(value) || PyObject_CheckBuffer(value) ? -1 : self->t.dtype);
    if (values == NULL || gathered_shape(state, chosen, &rank, shape) < 0)
        goto done;
    if (values->t.dtype != self->t.dtype) {
        Py_SETREF(values, array_cast(values, self->t.dtype));
        if (values == NULL)
            goto done;
    }
    vme_tensor from = values->t;
    while (from.rank > rank && from.shape[0] == 1) {
        from.shape++;
        from.strides++;
        from.rank--;
    }
    bool fits = from.rank <= rank;
    for (int i = 0; fits && i < from.rank; i++)
        fits = from.shape[i] == 1 || from.shape[i] == shape[rank - from.rank + i];
    if (!fits) {
        PyObject *own = array_shape_text(values->t.rank, values->t.shape), *wanted = array_shape_text(rank, shape);
        if (read->mask_true && from.rank == 1 && rank == 1)
            PyErr_Format(PyExc_ValueError,
                         "NumPy boolean array indexing assignment cannot assign %lld input values to the %lld output "
                         "values where the mask is true",
                         (long long)from.shape[0], (long long)shape[0]);
        else if (own != NULL && wanted != NULL)
            PyErr_Format(
                PyExc_ValueError,
                "shape mismatch: value array of shape %U could not be broadcast to indexing result of shape %U", own,
                wanted);
        Py_XDECREF(own);
        Py_XDECREF(wanted);
        goto done;
    }
    int64_t size = 1;
    for (int i = 0; i < rank; i++)
        size *= shape[i];
    result = array_check_status(state, OPERATOR(state->context, "scatter", size * 4,
                                                vme_scatter(state->context, &from, chosen->first, chosen->count,
                                                            chosen->indices, false, &chosen->view)));
done:
    Py_XDECREF(values);
    return result;
}

static int assign_subscript(PyObject *object, PyObject *key, PyObject *value)
{
    array *self = (array *)object;
    if (value == NULL) {
        PyErr_SetString(PyExc_ValueError, "cannot delete array elements");
        return -1;
    }
    if (array_require_writable(self, "assignment destination is read-only") < 0)
        return -1;
    if (PyLong_CheckExact(key) && self->t.rank == 1 && element_weak(value) != WEAK_NONE) {
        int64_t at = PyNumber_AsSsize_t(key, PyExc_IndexError);
        if (at == -1 && PyErr_Occurred()) {
            PyErr_SetString(PyExc_IndexError, wrong_kind);
            return -1;
        }
        return bound(self, &at, 0) < 0
                   ? -1
                   : element_from_python(self->t.dtype, value, self->t.data + at * self->t.strides[0]);
    }
    if (is_array(key) && ((array *)key)->t.dtype == VME_BOOL && ((array *)key)->t.rank == self->t.rank
        && self->t.rank > 0
        && memcmp(((array *)key)->t.shape, self->t.shape, (size_t)self->t.rank * sizeof *self->t.shape) == 0
        && element_weak(value) != WEAK_NONE)
        return assign_masked(self, (array *)key, value);
    index_key read;
    selection chosen;
    if (index_read(&read, self, key) < 0)
        return -1;
    read.mask_true = is_array(key) && ((array *)key)->t.dtype == VME_BOOL;
    int result = select_view(self, &read, &chosen);
    if (result == 0 && chosen.count > 0)
        result = assign_gathered(self, &read, &chosen, value);
    else if (result == 0) {
        array *target =
            array_view_of(self, self->t.dtype, chosen.view.rank, chosen.shape, chosen.strides, chosen.view.data);
        const vme_tensor *source = is_array(value) ? &((array *)value)->t : NULL;
        if (target == NULL)
            result = -1;
        else if (source != NULL && source->data == target->t.data && source->rank == target->t.rank
                 && source->dtype == target->t.dtype
                 && memcmp(source->shape, target->t.shape, (size_t)source->rank * sizeof *source->shape) == 0
                 && memcmp(source->strides, target->t.strides, (size_t)source->rank * sizeof *source->shape) == 0)
            result = 0; /* `a[1:] += 2` assigns the view that it has already changed */
        else if (chosen.all_ints && !read.ellipsis && element_weak(value) == WEAK_NONE && !PyUnicode_Check(value)
                 && (source != NULL ? source->rank != 0 : PySequence_Check(value) || PyObject_CheckBuffer(value))) {
            PyErr_SetString(PyExc_ValueError, "setting an array element with a sequence.");
            result = -1;
        } else if (chosen.view.rank == 0 && (PyList_Check(value) || PyTuple_Check(value))) {
            PyErr_SetString(PyExc_ValueError,
                            "setting an array element with a sequence. The requested array would exceed the maximum "
                            "number of dimension of 0.");
            result = -1;
        } else
            result = array_assign_python(target, value);
        Py_XDECREF(target);
    }
    selection_clear(&chosen);
    index_clear(&read);
    return result;
}

int array_assign_subscript(PyObject *object, PyObject *key, PyObject *value)
{
    if (value != NULL && array_is_traced(((array *)object)->state, value)) {
        array_refuse_traced();
        return -1;
    }
    return WRITING(((array *)object)->state, assign_subscript(object, key, value));
}

/* ---- take, nonzero, scatter-add */
static const char *const take_names[] = {"a", "indices", "axis", "out", "mode", NULL};
PyObject *array_take(array_state *state, array *self, PyObject **values)
{
    array *out, *over = (array *)Py_NewRef(self), *positions = NULL, *result = NULL;
    int axis = 0;
    int64_t shape[VME_RANK_MAX];
    if (array_argument_out(values[3], &out) < 0)
        goto done;
    if (array_given(values[4])
        && !(PyUnicode_Check(values[4])
             && (PyUnicode_EqualToUTF8(values[4], "raise") || PyUnicode_EqualToUTF8(values[4], "wrap")
                 || PyUnicode_EqualToUTF8(values[4], "clip")))) {
        PyErr_Format(PyExc_ValueError, "clipmode must be one of 'clip', 'raise', or 'wrap' (got %R)", values[4]);
        goto done;
    }
    if (array_given(values[2]) && array_argument_axis_of_one(state, values[2], self->t.rank, &axis) < 0)
        goto done;
    if (!array_given(values[2]) || self->t.rank == 0) {
        shape[0] = self->size;
        Py_SETREF(over, array_reshape(self, 1, shape));
        if (over == NULL)
            goto done;
    }
    positions = array_from_any(state, values[1], -1);
    if (positions == NULL)
        goto done;
    if (positions->size == 0 && !is_array(values[1]))
        Py_SETREF(positions, array_cast(positions, VME_INT64));
    else if (!dtype_can_cast(positions->t.dtype, VME_INT64, CAST_SAME_KIND) || positions->t.dtype == VME_UINT64) {
        PyErr_Format(PyExc_TypeError, "Cannot cast array data from %R to dtype('int64') according to the rule 'safe'",
                     state->dtypes[positions->t.dtype]);
        goto done;
    } else if (positions->t.dtype != VME_INT64)
        Py_SETREF(positions, array_cast(positions, VME_INT64));
    if (positions != NULL && array_given(values[4])
        && !(PyUnicode_Check(values[4]) && PyUnicode_EqualToUTF8(values[4], "raise"))) {
        bool wrap = PyUnicode_Check(values[4]) && PyUnicode_EqualToUTF8(values[4], "wrap");
        PyObject *size = PyLong_FromLongLong(over->t.shape[axis] - !wrap), *zero = PyLong_FromLong(0);
        PyObject *inside = NULL;
        if (size != NULL && zero != NULL) {
            inside = wrap ? array_binary(state, VME_REMAINDER, (PyObject *)positions, size, NULL, -1)
                          : array_binary(state, VME_MINIMUM, (PyObject *)positions, size, NULL, -1);
            if (inside != NULL && !wrap)
                Py_SETREF(inside, array_binary(state, VME_MAXIMUM, inside, zero, NULL, -1));
        }
        Py_XDECREF(size);
        Py_XDECREF(zero);
        Py_SETREF(positions, (array *)inside);
    }
    if (positions == NULL)
        goto done;
    int rank = over->t.rank - 1 + positions->t.rank;
    if (rank > VME_RANK_MAX) {
        PyErr_Format(PyExc_ValueError, "maximum supported dimension for an ndarray is currently %d, found %d",
                     VME_RANK_MAX, rank);
        goto done;
    }
    memcpy(shape, over->t.shape, (size_t)axis * sizeof *shape);
    memcpy(shape + axis, positions->t.shape, (size_t)positions->t.rank * sizeof *shape);
    memcpy(shape + axis + positions->t.rank, over->t.shape + axis + 1,
           (size_t)(over->t.rank - axis - 1) * sizeof *shape);
    if (out != NULL && (out->t.rank != rank || memcmp(out->t.shape, shape, (size_t)rank * sizeof *shape) != 0)) {
        PyErr_SetString(PyExc_ValueError, "output array does not match result of ndarray.take");
        goto done;
    }
    result = array_new(state, self->t.dtype, rank, shape, false);
    const vme_tensor *indices[1] = {&positions->t};
    if (result != NULL && result->size > 0 && over->t.shape[axis] == 0) {
        PyErr_SetString(PyExc_IndexError, "cannot do a non-empty take from an empty axes.");
        Py_CLEAR(result);
    }
    bool any = result != NULL && (result->size > 0 || over->t.shape[axis] > 0); /* as in NumPy, indices are not checked
                                                                                 * otherwise */
    if (any
        && array_check_status(state, OPERATOR(state->context, "gather", result->size * 2,
                                              vme_gather(state->context, &over->t, axis, 1, indices, &result->t)))
               < 0)
        Py_CLEAR(result);
    if (result != NULL && out != NULL) { /* nothing is written if an index is out of bounds */
        if (array_assign(out, result) < 0)
            Py_CLEAR(result);
        else
            Py_SETREF(result, (array *)Py_NewRef(out));
    }
done:
    Py_XDECREF(over);
    Py_XDECREF(positions);
    return out != NULL ? (PyObject *)result : array_as_scalar(result);
}
ARRAY_BOTH_OF(take, take_names, 5, 2, 5, array_take)

static const char *const nonzero_names[] = {"a", NULL};
static PyObject *nonzero(array_state *state, array *self, PyObject **values)
{
    if (self->t.rank == 0)
        return PyErr_Format(PyExc_ValueError,
                            "Calling nonzero on 0d arrays is not allowed. Use np.atleast_1d(scalar).nonzero() instead. "
                            "If the context of this error is of the form `arr[nonzero(cond)]`, just use `arr[cond]`.");
    array *mask = self->t.dtype == VME_BOOL ? (array *)Py_NewRef(self) : array_cast(self, VME_BOOL);
    PyObject *indices = NULL;
    int64_t found;
    if (mask == NULL)
        return NULL;
    if (array_check_status(
            state, OPERATOR(state->context, "nonzero", mask->size, vme_nonzero(state->context, &mask->t, &found, NULL)))
        < 0)
        goto done;
    const vme_tensor *tensors[VME_RANK_MAX];
    indices = PyTuple_New(mask->t.rank);
    for (int i = 0; indices != NULL && i < mask->t.rank; i++) {
        array *of = array_new(state, VME_INT64, 1, &found, false);
        if (of == NULL)
            Py_CLEAR(indices);
        else {
            tensors[i] = &of->t;
            PyTuple_SET_ITEM(indices, i, (PyObject *)of);
        }
    }
    if (indices != NULL
        && array_check_status(state, OPERATOR(state->context, "nonzero", mask->size,
                                              vme_nonzero(state->context, &mask->t, &found, tensors)))
               < 0)
        Py_CLEAR(indices);
done:
    Py_DECREF(mask);
    return indices;
}
ARRAY_BOTH_OF(nonzero, nonzero_names, 1, 1, 1, nonzero)

/* numpy.add.at(target, key, values) */
static PyObject *scatter_add(array_state *state, PyObject *const *values)
{
    PyObject *result = NULL;
    index_key read;
    selection chosen;
    array *added = NULL;
    if (!is_array(values[0]))
        return PyErr_Format(PyExc_TypeError, "first operand must be array");
    array *self = (array *)values[0];
    if (array_require_writable(self, "assignment destination is read-only") < 0
        || index_read(&read, self, values[1]) < 0)
        return NULL;
    if (select_view(self, &read, &chosen) < 0 || (added = array_from_any(state, values[2], self->t.dtype)) == NULL)
        goto done;
    if (chosen.count == 0)
        PyErr_SetString(PyExc_IndexError, "an index array is needed");
    else if (array_check_status(state, OPERATOR(state->context, "scatter", added->size * 4,
                                                vme_scatter(state->context, &added->t, chosen.first, chosen.count,
                                                            chosen.indices, true, &chosen.view)))
             == 0)
        result = Py_NewRef(Py_None);
done:
    Py_XDECREF(added);
    selection_clear(&chosen);
    index_clear(&read);
    return result;
}

PyObject *array_scatter_add(array_state *state, PyObject *const *values)
{
    return WRITING(state, scatter_add(state, values));
}

/* _scatter_add(target, key, values) */
PyObject *array_function__scatter_add(PyObject *module, ARRAY_VECTORCALL)
{
    return array_scatter_add(array_state_of(module), args);
}
