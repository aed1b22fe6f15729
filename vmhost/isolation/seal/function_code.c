/* Writes code objects from recipes. A sealed VM uses this instead of compiling the text of a method of known shape.
 *
 * A recipe names a function (a dataclass's `__init__`, a named tuple's `__new__`, …) and says which fields it has and
 * where their values come from. Instructions, operands, stack size, flags and line table are written here, so no
 * argument of a caller can produce a code object with contradictory parts. The result equals the compiler's own code
 * for that function, without column positions; the verifier accepts it (tests/guest/test_function_code.py).
 *
 * `renamed_code` changes names and numbers of an existing code object. Its instructions stay as the verifier accepted
 * them, and no two variables get the same name. `relocated_code` changes what tracebacks show: file, name, lines.
 *
 * Callers are guests. Each item of a recipe is checked here: its exact type (str, int, tuple, code: immutable, and
 * checked without running Python), its size, and that names are identifiers. CPython stores values that it trusts under
 * names that are not identifiers. A recipe that violates this raises TypeError or ValueError.
 */
#include "seal/function_code.h"
#include "seal/sealing.h"

#include <string.h>

enum {
    ITEMS_MAX = 65535, /* fields, parameters and variables of one function: all sums fit in an int */
    LINE_NUMBER_MAX = 1 << 24,
    FUSED_LOCALS = 16, /* one instruction can load two of the first 16 variables */
    NO_LINE = -1,
};

typedef struct {
    enum vmh_instruction name;
    bool jumps; /* `operand` is a label until the jumps are resolved */
    unsigned operand;
    int line, label;
} instruction;

/* One function being written. After a failure, which sets a Python error and `failed`, all functions do nothing. */
typedef struct {
    PyObject *locals, *free, *names, *constants; /* dicts: value -> index, in index order */
    instruction *instructions;
    Py_ssize_t count, room;
    Py_ssize_t *labels; /* label -> index of its instruction */
    int label_count, label_room;
    int positional, keyword_only, first_line, line;
    int depth, deepest;
    Py_ssize_t
        borrowed_at; /* the last load of one of the first variables, if it can be fused with the next; < 0: none */
    unsigned borrowed;
    int borrowed_line;
    Py_ssize_t marked_at; /* the last instruction with a label */
    bool failed;
} writer;

/* --- tables */

static void *grown(void *items, Py_ssize_t room, size_t size)
{
    return (size_t)room > (size_t)PY_SSIZE_T_MAX / size ? NULL : PyMem_Realloc(items, (size_t)room * size);
}

/* The index of `value` in a table; a new value is appended. */
static unsigned index_in(writer *w, PyObject *table, PyObject *value)
{
    unsigned index = 0;
    if (w->failed)
        return 0;
    PyObject *found = PyDict_GetItemWithError(table, value);
    if (found != NULL)
        return (unsigned)PyLong_AsLong(found);
    if (!PyErr_Occurred()) {
        index = (unsigned)PyDict_GET_SIZE(table);
        PyObject *number = PyLong_FromLong((long)index);
        if (number == NULL || PyDict_SetItem(table, value, number) < 0)
            w->failed = true;
        Py_XDECREF(number);
    } else
        w->failed = true;
    return index;
}

static unsigned name_index(writer *w, const char *name)
{
    PyObject *text = w->failed ? NULL : PyUnicode_InternFromString(name);
    unsigned index = text == NULL ? 0 : index_in(w, w->names, text);
    w->failed = w->failed || text == NULL;
    Py_XDECREF(text);
    return index;
}

/* --- instructions */

static void emit(writer *w, enum vmh_instruction name, unsigned operand)
{
    if (w->failed)
        return;
    if (w->count == w->room) {
        Py_ssize_t room = w->room == 0 ? 64 : 2 * w->room;
        instruction *more = grown(w->instructions, room, sizeof *more);
        if (more == NULL) {
            w->failed = true;
            PyErr_NoMemory();
            return;
        }
        w->instructions = more;
        w->room = room;
    }
    w->instructions[w->count++] = (instruction){.name = name, .operand = operand, .line = w->line};
    w->depth += vmh_compat_stack_effect(name, (int)operand);
    if (w->depth > w->deepest)
        w->deepest = w->depth;
    if (w->depth < 0) {
        PyErr_SetString(PyExc_SystemError, "a recipe takes more from the stack than there is");
        w->failed = true;
    }
}

/* Pushes a variable by its index. Two of the first ones in a row, on one line, become one instruction. */
static void local(writer *w, unsigned index)
{
    if (w->failed)
        return;
    bool follows = w->borrowed_at >= 0 && w->borrowed_at == w->count - 1 && w->borrowed_line == w->line
                   && w->marked_at != w->count;
    if (index < FUSED_LOCALS && follows) {
        w->count--;
        w->depth--;
        emit(w, VMH_LOAD_FAST_BORROW_LOAD_FAST_BORROW, w->borrowed << 4 | index);
        w->borrowed_at = -1;
        return;
    }
    w->borrowed_at = index < FUSED_LOCALS ? w->count : -1;
    w->borrowed = index;
    w->borrowed_line = w->line;
    emit(w, VMH_LOAD_FAST_BORROW, index);
}

static void constant(writer *w, PyObject *value) { emit(w, VMH_LOAD_CONST, index_in(w, w->constants, value)); }

/* Pushes a constant that the caller has just created; takes over `value`. NULL: creation failed. */
static void constant_made(writer *w, PyObject *value)
{
    w->failed = w->failed || value == NULL;
    if (!w->failed)
        constant(w, value);
    Py_XDECREF(value);
}

/* Pushes a variable of the enclosing function. */
static void variable(writer *w, PyObject *name)
{
    PyObject *index = w->failed ? NULL : PyDict_GetItemWithError(w->free, name);
    if (index == NULL) {
        if (!w->failed && !PyErr_Occurred())
            PyErr_SetString(PyExc_SystemError, "a variable that was not declared");
        w->failed = true;
        return;
    }
    emit(w, VMH_LOAD_DEREF, (unsigned)PyDict_GET_SIZE(w->locals) + (unsigned)PyLong_AsLong(index));
}

static void builtin(writer *w, const char *name, bool is_called)
{
    emit(w, VMH_LOAD_GLOBAL, name_index(w, name) << 1 | is_called);
}

static void attribute(writer *w, const char *name, bool is_called)
{
    emit(w, VMH_LOAD_ATTR, name_index(w, name) << 1 | is_called);
}

static void field_of(writer *w, unsigned owner, PyObject *field)
{
    local(w, owner);
    emit(w, VMH_LOAD_ATTR, index_in(w, w->names, field) << 1);
}

static int label_new(writer *w)
{
    if (w->failed)
        return 0;
    if (w->label_count == w->label_room) {
        int room = w->label_room == 0 ? 8 : 2 * w->label_room;
        Py_ssize_t *more = grown(w->labels, room, sizeof *more);
        if (more == NULL) {
            w->failed = true;
            PyErr_NoMemory();
            return 0;
        }
        w->labels = more;
        w->label_room = room;
    }
    w->labels[w->label_count] = -1;
    return w->label_count++;
}

static void jump(writer *w, enum vmh_instruction name, int label)
{
    emit(w, name, 0);
    if (w->failed)
        return;
    w->instructions[w->count - 1].jumps = true;
    w->instructions[w->count - 1].label = label;
    if (name != VMH_JUMP_FORWARD)
        emit(w, VMH_NOT_TAKEN, 0);
}

/* Binds `label` to the next instruction, which the one before falls through to. */
static void mark(writer *w, int label)
{
    if (!w->failed)
        w->marked_at = w->labels[label] = w->count;
}

/* The same where the instruction before does not fall through: the stack depth there is `depth`. */
static void mark_at_depth(writer *w, int label, int depth)
{
    mark(w, label);
    w->depth = depth;
}

static void return_none(writer *w)
{
    constant(w, Py_None);
    emit(w, VMH_RETURN_VALUE, 0);
}

/* --- the code object */

static int prefixes_of(unsigned operand) { return (operand > 0xFF) + (operand > 0xFFFF) + (operand > 0xFFFFFF); }

/* The size in code units. */
static int size_of(const instruction *one) { return prefixes_of(one->operand) + 1 + vmh_compat_caches(one->name); }

/* A jump's operand may need a prefix, which moves the code behind it: repeats until nothing moves. Returns the code's
 * size in units; < 0: error set. */
static Py_ssize_t resolve_jumps(writer *w)
{
    Py_ssize_t *starts = grown(NULL, w->count + 1, sizeof *starts), total = -1;
    if (starts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < w->count; i++)
        w->instructions[i].operand = w->instructions[i].jumps ? 0 : w->instructions[i].operand;
    for (bool moves = true; moves;) {
        moves = false;
        starts[0] = 0;
        for (Py_ssize_t i = 0; i < w->count; i++)
            starts[i + 1] = starts[i] + size_of(&w->instructions[i]);
        for (Py_ssize_t i = 0; i < w->count; i++) {
            instruction *one = &w->instructions[i];
            if (!one->jumps)
                continue;
            Py_ssize_t target = w->labels[one->label];
            if (target <= i || target >= w->count) {
                PyErr_SetString(PyExc_SystemError, "a jump to nowhere");
                goto done;
            }
            unsigned distance = (unsigned)(starts[target] - starts[i + 1]);
            moves = moves || prefixes_of(distance) != prefixes_of(one->operand);
            one->operand = distance;
        }
    }
    total = starts[w->count];
done:
    PyMem_Free(starts);
    return total;
}

static PyObject *encoded(const writer *w, Py_ssize_t units)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, units * 2);
    unsigned char *to = bytes == NULL ? NULL : (unsigned char *)PyBytes_AS_STRING(bytes);
    for (Py_ssize_t i = 0; to != NULL && i < w->count; i++) {
        const instruction *one = &w->instructions[i];
        for (int prefix = prefixes_of(one->operand); prefix > 0; prefix--) {
            *to++ = vmh_compat_opcode(VMH_EXTENDED_ARG);
            *to++ = (unsigned char)(one->operand >> 8 * prefix);
        }
        *to++ = vmh_compat_opcode(one->name);
        *to++ = (unsigned char)one->operand;
        size_t caches = 2 * (size_t)vmh_compat_caches(one->name);
        memset(to, 0, caches);
        to += caches;
    }
    return bytes;
}

/* The location table (CPython's InternalDocs/code_objects.md): the line of each run of code units, without columns. */
static PyObject *line_table(const writer *w, Py_ssize_t units)
{
    enum { NO_COLUMNS = 13, NO_LOCATION = 15, UNITS_MAX = 8, ENTRY_BYTES_MAX = 7 };
    unsigned char *table = grown(NULL, w->count + units / UNITS_MAX + 1, ENTRY_BYTES_MAX), *to = table;
    int last_line = w->first_line;
    if (table == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < w->count;) {
        int line = w->instructions[i].line, span = 0;
        for (; i < w->count && w->instructions[i].line == line; i++)
            span += size_of(&w->instructions[i]);
        unsigned further = 0;
        if (line != NO_LINE) {
            further = line < last_line ? (unsigned)(last_line - line) << 1 | 1 : (unsigned)(line - last_line) << 1;
            last_line = line;
        }
        while (span > 0) {
            int now = span < UNITS_MAX ? span : UNITS_MAX;
            span -= now;
            *to++ = (unsigned char)(0x80 | (line == NO_LINE ? NO_LOCATION : NO_COLUMNS) << 3 | (now - 1));
            if (line == NO_LINE)
                continue;
            for (; further >= 64; further >>= 6)
                *to++ = (unsigned char)((further & 63) | 64);
            *to++ = (unsigned char)further;
            further = 0;
        }
    }
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)table, to - table);
    PyMem_Free(table);
    return bytes;
}

static PyObject *keys_of(PyObject *dict)
{
    PyObject *keys = PyDict_Keys(dict), *tuple = keys == NULL ? NULL : PyList_AsTuple(keys);
    Py_XDECREF(keys);
    return tuple;
}

/* The code object, or NULL with an error. */
static PyObject *finished(writer *w, const char *name, const char *qualname, int extra_flags)
{
    PyObject *code = NULL;
    if (w->failed)
        return NULL;
    if (PyDict_GET_SIZE(w->constants) == 0)
        index_in(w, w->constants, Py_None);
    Py_ssize_t units = w->failed ? -1 : resolve_jumps(w);
    if (units < 0)
        return NULL;
    PyObject *bytes = encoded(w, units), *lines = bytes == NULL ? NULL : line_table(w, units);
    PyObject *constants = lines == NULL ? NULL : keys_of(w->constants),
             *names = constants == NULL ? NULL : keys_of(w->names);
    PyObject *locals = names == NULL ? NULL : keys_of(w->locals), *free = locals == NULL ? NULL : keys_of(w->free);
    PyObject *nothing = free == NULL ? NULL : PyTuple_New(0),
             *no_handlers = nothing == NULL ? NULL : PyBytes_FromStringAndSize(NULL, 0);
    PyObject *file = no_handlers == NULL ? NULL : PyUnicode_InternFromString("<string>");
    PyObject *short_name = file == NULL ? NULL : PyUnicode_InternFromString(name);
    PyObject *long_name = short_name == NULL ? NULL : PyUnicode_InternFromString(qualname);
    if (long_name != NULL)
        code = (PyObject *)PyUnstable_Code_NewWithPosOnlyArgs(
            w->positional, 0, w->keyword_only, w->positional + w->keyword_only, w->deepest,
            CO_OPTIMIZED | CO_NEWLOCALS | extra_flags, bytes, constants, names, locals, free, nothing, file, short_name,
            long_name, w->first_line, lines, no_handlers);
    Py_XDECREF(bytes);
    Py_XDECREF(lines);
    Py_XDECREF(constants);
    Py_XDECREF(names);
    Py_XDECREF(locals);
    Py_XDECREF(free);
    Py_XDECREF(nothing);
    Py_XDECREF(no_handlers);
    Py_XDECREF(file);
    Py_XDECREF(short_name);
    Py_XDECREF(long_name);
    return code;
}

static void close_writer(writer *w)
{
    Py_CLEAR(w->locals);
    Py_CLEAR(w->free);
    Py_CLEAR(w->names);
    Py_CLEAR(w->constants);
    PyMem_Free(w->instructions);
    PyMem_Free(w->labels);
}

/* --- checks of a caller's arguments. 0, or -1 with an error set. */

static int check_identifier(PyObject *name)
{
    if (!PyUnicode_CheckExact(name)) {
        PyErr_Format(PyExc_TypeError, "a recipe's names are str, got %T", name);
        return -1;
    }
    if (!PyUnicode_IsIdentifier(name)) {
        PyErr_Format(PyExc_ValueError, "%R is no identifier", name);
        return -1;
    }
    return 0;
}

/* A tuple of at most ITEMS_MAX items. */
static int check_tuple(PyObject *value, const char *what)
{
    if (!PyTuple_CheckExact(value)) {
        PyErr_Format(PyExc_TypeError, "%s: expected tuple, got %T", what, value);
        return -1;
    }
    if (PyTuple_GET_SIZE(value) > ITEMS_MAX) {
        PyErr_Format(PyExc_ValueError, "%s: at most %d, got %zd", what, ITEMS_MAX, PyTuple_GET_SIZE(value));
        return -1;
    }
    return 0;
}

static int check_fields(PyObject *fields, bool are_identifiers)
{
    if (check_tuple(fields, "fields") < 0)
        return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(fields); i++) {
        PyObject *field = PyTuple_GET_ITEM(fields, i);
        if (are_identifiers && check_identifier(field) < 0)
            return -1;
        if (!PyUnicode_CheckExact(field)) {
            PyErr_Format(PyExc_TypeError, "fields: expected str, got %T", field);
            return -1;
        }
    }
    return 0;
}

static int check_line(PyObject *value, int min, int *line)
{
    int overflow = 0;
    if (!PyLong_CheckExact(value)) {
        PyErr_Format(PyExc_TypeError, "a line is an int, got %T", value);
        return -1;
    }
    long number = PyLong_AsLongAndOverflow(value, &overflow);
    if (overflow != 0 || number < min || number > LINE_NUMBER_MAX) {
        PyErr_Format(PyExc_ValueError, "lines count from %d to %d and do not go back", min, LINE_NUMBER_MAX);
        return -1;
    }
    *line = (int)number;
    return 0;
}

/* Adds `name` to a table; fails if it is already there. */
static int declare(writer *w, PyObject *table, PyObject *name)
{
    Py_ssize_t before = PyDict_GET_SIZE(table);
    index_in(w, table, name);
    if (!w->failed && PyDict_GET_SIZE(table) == before) {
        PyErr_Format(PyExc_ValueError, "two variables called %R", name);
        w->failed = true;
    }
    return w->failed ? -1 : 0;
}

static int declare_named(writer *w, PyObject *table, const char *name)
{
    PyObject *text = PyUnicode_InternFromString(name);
    int rc = text == NULL ? -1 : declare(w, table, text);
    w->failed = w->failed || text == NULL;
    Py_XDECREF(text);
    return rc;
}

/* --- the start of a function */

static int open_writer(writer *w, int first_line)
{
    *w = (writer){.first_line = first_line, .line = first_line, .borrowed_at = -1, .marked_at = -1};
    w->locals = PyDict_New();
    w->free = PyDict_New();
    w->names = PyDict_New();
    w->constants = PyDict_New();
    w->failed = w->locals == NULL || w->free == NULL || w->names == NULL || w->constants == NULL;
    return w->failed ? -1 : 0;
}

/* Numbers the free variables in order of their names, and writes the prologue. */
static int begin(writer *w)
{
    PyObject *sorted = w->failed ? NULL : PyDict_Keys(w->free);
    if (sorted == NULL || PyList_Sort(sorted) < 0)
        w->failed = true;
    if (!w->failed)
        PyDict_Clear(w->free);
    for (Py_ssize_t i = 0; !w->failed && i < PyList_GET_SIZE(sorted); i++) {
        PyObject *name = PyList_GET_ITEM(sorted, i);
        int is_local = PyDict_Contains(w->locals, name);
        if (is_local > 0)
            PyErr_Format(PyExc_ValueError, "%R is a parameter and a variable of the function around it", name);
        if (is_local != 0 || declare(w, w->free, name) < 0)
            w->failed = true;
    }
    Py_XDECREF(sorted);
    if (!w->failed && PyDict_GET_SIZE(w->free) > 0) {
        w->line = NO_LINE;
        emit(w, VMH_COPY_FREE_VARS, (unsigned)PyDict_GET_SIZE(w->free));
        w->line = w->first_line;
    }
    emit(w, VMH_RESUME, 0);
    return w->failed ? -1 : 0;
}

/* --- named tuples */

static PyObject *namedtuple_code(PyObject *Py_UNUSED(module), PyObject *fields)
{
    writer w;
    PyObject *code = NULL;
    if (check_fields(fields, true) < 0)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(fields);
    if (open_writer(&w, 1) < 0 || declare_named(&w, w.locals, "_cls") < 0)
        goto done;
    for (Py_ssize_t i = 0; i < count; i++)
        if (declare(&w, w.locals, PyTuple_GET_ITEM(fields, i)) < 0)
            goto done;
    w.positional = (int)count + 1;
    if (begin(&w) < 0)
        goto done;
    builtin(&w, "_tuple_new", true);
    local(&w, 0);
    for (Py_ssize_t i = 0; i < count; i++)
        local(&w, (unsigned)i + 1);
    if (count > 0)
        emit(&w, VMH_BUILD_TUPLE, (unsigned)count);
    else
        constant_made(&w, PyTuple_New(0));
    emit(&w, VMH_CALL, 2);
    emit(&w, VMH_RETURN_VALUE, 0);
    code = finished(&w, "<lambda>", "<lambda>", 0);
done:
    close_writer(&w);
    return code;
}

/* --- __init__ of dataclasses */

typedef struct {
    enum { PASS, POST_INIT, FIELD, FROZEN_FIELD } action;
    enum { PARAMETER, VARIABLE, FACTORY, GIVEN } value;
    PyObject *field;   /* all of these are borrowed from the recipe */
    PyObject *name;    /* the parameter or variable that holds the value */
    PyObject *factory; /* the variable that is called for the value if none is given */
    PyObject *passed;  /* arguments of __post_init__ */
} step;

/* The names that dataclasses give two variables of the function that encloses the methods. */
static const char object_variable[] = "__dataclass_builtins_object__",
                  factory_mark[] = "__dataclass_HAS_DEFAULT_FACTORY__";

static bool says(PyObject *word, const char *text)
{
    return PyUnicode_CheckExact(word) && PyUnicode_EqualToUTF8(word, text);
}

static int step_refused(void)
{
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a step that no __init__ has, or that names no parameter");
    return -1;
}

static bool is_parameter(writer *w, PyObject *name)
{
    return PyUnicode_CheckExact(name) && PyDict_Contains(w->locals, name) == 1;
}

/* Reads one step: ("pass",), ("post_init", names), which is last, or ("field" | "frozen", field, *value), where the
 * value is ("parameter", name), ("variable", name), ("factory", name), or ("given", parameter, factory): the factory's
 * value if the parameter was not given. */
static int step_read(writer *w, PyObject *recipe, step *one)
{
    *one = (step){.action = PASS};
    if (!PyTuple_CheckExact(recipe) || PyTuple_GET_SIZE(recipe) == 0) {
        PyErr_Format(PyExc_TypeError, "a step is a tuple that begins with its name, got %T", recipe);
        return -1;
    }
    Py_ssize_t size = PyTuple_GET_SIZE(recipe);
    PyObject *word = PyTuple_GET_ITEM(recipe, 0);
    if (says(word, "pass"))
        return size == 1 ? 0 : step_refused();
    if (says(word, "post_init")) {
        one->action = POST_INIT;
        one->passed = size == 2 ? PyTuple_GET_ITEM(recipe, 1) : Py_None;
        if (check_tuple(one->passed, "post_init") < 0)
            return -1;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(one->passed); i++)
            if (!is_parameter(w, PyTuple_GET_ITEM(one->passed, i)))
                return step_refused();
        return 0;
    }
    bool is_frozen = says(word, "frozen");
    if ((!is_frozen && !says(word, "field")) || size < 4)
        return step_refused();
    one->action = is_frozen ? FROZEN_FIELD : FIELD;
    one->field = PyTuple_GET_ITEM(recipe, 1);
    if (is_frozen ? !PyUnicode_CheckExact(one->field) : check_identifier(one->field) < 0)
        return step_refused();
    PyObject *kind = PyTuple_GET_ITEM(recipe, 2);
    one->name = PyTuple_GET_ITEM(recipe, 3);
    if (says(kind, "given") && size == 5) {
        one->value = GIVEN;
        one->factory = PyTuple_GET_ITEM(recipe, 4);
        return is_parameter(w, one->name) && check_identifier(one->factory) == 0 ? 0 : step_refused();
    }
    if (size != 4)
        return step_refused();
    if (says(kind, "parameter")) {
        one->value = PARAMETER;
        return is_parameter(w, one->name) ? 0 : step_refused();
    }
    if (says(kind, "factory")) {
        one->value = FACTORY;
        one->factory = one->name;
    } else if (says(kind, "variable"))
        one->value = VARIABLE;
    else
        return step_refused();
    return check_identifier(one->name);
}

/* Declares the variables of the enclosing function that a step needs. */
static int step_declare(writer *w, const step *one)
{
    if (one->action == PASS || one->action == POST_INIT)
        return 0;
    if (one->action == FROZEN_FIELD) {
        PyObject *name = PyUnicode_InternFromString(object_variable);
        if (name == NULL)
            return -1;
        index_in(w, w->free, name);
        Py_DECREF(name);
    }
    if (one->value == GIVEN) {
        PyObject *name = PyUnicode_InternFromString(factory_mark);
        if (name == NULL)
            return -1;
        index_in(w, w->free, name);
        Py_DECREF(name);
    }
    if (one->value != PARAMETER)
        index_in(w, w->free, one->value == VARIABLE ? one->name : one->factory);
    return w->failed ? -1 : 0;
}

static void variable_named(writer *w, const char *name)
{
    PyObject *text = w->failed ? NULL : PyUnicode_InternFromString(name);
    if (text != NULL)
        variable(w, text);
    w->failed = w->failed || text == NULL;
    Py_XDECREF(text);
}

static unsigned local_index(writer *w, PyObject *name)
{
    return index_in(w, w->locals, name); /* declared: step_read has checked it */
}

static void write_made(writer *w, PyObject *factory)
{
    variable(w, factory);
    emit(w, VMH_PUSH_NULL, 0);
    emit(w, VMH_CALL, 0);
}

/* Stores the value on top of the stack in the field. */
static void write_assignment(writer *w, const step *one)
{
    if (one->action == FROZEN_FIELD) {
        emit(w, VMH_CALL, 3);
        emit(w, VMH_POP_TOP, 0);
    } else {
        local(w, 0);
        emit(w, VMH_STORE_ATTR, index_in(w, w->names, one->field));
    }
}

/* The parameter, or the factory's value if it was not given. On the last line both branches assign and return, as in
 * the compiler's code. */
static void write_given_or_made(writer *w, const step *one, bool is_last)
{
    int given = label_new(w), done = label_new(w);
    unsigned parameter = local_index(w, one->name);
    local(w, parameter);
    variable_named(w, factory_mark);
    emit(w, VMH_IS_OP, 0);
    jump(w, VMH_POP_JUMP_IF_FALSE, given);
    int depth = w->depth;
    write_made(w, one->factory);
    if (is_last) {
        write_assignment(w, one);
        return_none(w);
    } else
        jump(w, VMH_JUMP_FORWARD, done);
    mark_at_depth(w, given, depth);
    emit(w, VMH_LOAD_FAST, parameter); /* not borrowed: it stays on the stack past a jump */
    if (!is_last)
        mark(w, done);
    write_assignment(w, one);
    if (is_last)
        return_none(w);
}

/* Returns true if it has also written the end of the function. */
static bool write_step(writer *w, const step *one, bool is_last)
{
    if (one->action == PASS)
        return false;
    if (one->action == POST_INIT) {
        Py_ssize_t count = PyTuple_GET_SIZE(one->passed);
        local(w, 0);
        attribute(w, "__post_init__", true);
        for (Py_ssize_t i = 0; i < count; i++)
            local(w, local_index(w, PyTuple_GET_ITEM(one->passed, i)));
        emit(w, VMH_CALL, (unsigned)count);
        emit(w, VMH_POP_TOP, 0);
        return false;
    }
    if (one->action == FROZEN_FIELD) {
        variable_named(w, object_variable);
        attribute(w, "__setattr__", true);
        if (one->value == GIVEN)
            emit(w, VMH_LOAD_FAST, 0);
        else
            local(w, 0);
        constant(w, one->field);
    }
    if (one->value == GIVEN) {
        write_given_or_made(w, one, is_last);
        return is_last;
    }
    if (one->value == PARAMETER)
        local(w, local_index(w, one->name));
    else if (one->value == VARIABLE)
        variable(w, one->name);
    else
        write_made(w, one->factory);
    write_assignment(w, one);
    return false;
}

/* details: parameters, the number of positional ones, steps. */
static void write_init(writer *w, int body_line, PyObject *const *details)
{
    PyObject *parameters = details[0], *steps = details[2];
    int positional, overflow = 0;
    step one;
    w->failed = check_fields(parameters, true) < 0 || check_tuple(steps, "steps") < 0;
    if (w->failed)
        return;
    long number = PyLong_CheckExact(details[1]) ? PyLong_AsLongAndOverflow(details[1], &overflow) : 0;
    if (overflow != 0 || number < 1 || number > PyTuple_GET_SIZE(parameters) || PyTuple_GET_SIZE(steps) == 0) {
        PyErr_SetString(PyExc_ValueError, "an __init__ has a first parameter by position, and a body");
        w->failed = true;
        return;
    }
    positional = (int)number;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parameters); i++)
        if (declare(w, w->locals, PyTuple_GET_ITEM(parameters, i)) < 0)
            return;
    w->positional = positional;
    w->keyword_only = (int)PyTuple_GET_SIZE(parameters) - positional;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(steps); i++)
        if (step_read(w, PyTuple_GET_ITEM(steps, i), &one) < 0 || step_declare(w, &one) < 0
            || (one.action == POST_INIT && i + 1 < PyTuple_GET_SIZE(steps) && step_refused() < 0)) {
            w->failed = true;
            return;
        }
    if (begin(w) < 0)
        return;
    bool has_ended = false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(steps) && !w->failed; i++) {
        if (step_read(w, PyTuple_GET_ITEM(steps, i), &one) < 0) {
            w->failed = true;
            return;
        }
        w->line = body_line + (int)i;
        has_ended = write_step(w, &one, i + 1 == PyTuple_GET_SIZE(steps));
    }
    if (!has_ended)
        return_none(w);
}

/* --- the other methods of dataclasses; details are the names of the fields */

static void declare_parameters(writer *w, const char *second, const char *third)
{
    if (declare_named(w, w->locals, "self") < 0 || (second != NULL && declare_named(w, w->locals, second) < 0)
        || (third != NULL && declare_named(w, w->locals, third) < 0))
        return;
    w->positional = 1 + (second != NULL) + (third != NULL);
}

/* `shown`: the fields as spelled in the class; the compiler normalises some letters (NFKC). */
static void write_repr(writer *w, PyObject *fields, PyObject *shown)
{
    Py_ssize_t count = PyTuple_GET_SIZE(fields);
    local(w, 0);
    attribute(w, "__class__", false);
    attribute(w, "__qualname__", false);
    emit(w, VMH_FORMAT_SIMPLE, 0);
    for (Py_ssize_t i = 0; i < count && !w->failed; i++) {
        PyObject *field = PyTuple_GET_ITEM(fields, i);
        constant_made(w, PyUnicode_FromFormat("%s%U=", i == 0 ? "(" : ", ", PyTuple_GET_ITEM(shown, i)));
        field_of(w, 0, field);
        emit(w, VMH_CONVERT_VALUE, FVC_REPR);
        emit(w, VMH_FORMAT_SIMPLE, 0);
    }
    constant_made(w, PyUnicode_FromString(count > 0 ? ")" : "()"));
    emit(w, VMH_BUILD_STRING, 2 * (unsigned)count + 2);
    emit(w, VMH_RETURN_VALUE, 0);
}

static void write_same_class_or_skip(writer *w, int skip)
{
    local(w, 1);
    attribute(w, "__class__", false);
    local(w, 0);
    attribute(w, "__class__", false);
    emit(w, VMH_IS_OP, 0);
    jump(w, VMH_POP_JUMP_IF_FALSE, skip);
}

static void write_not_implemented(writer *w, int label)
{
    mark_at_depth(w, label, 0);
    builtin(w, "NotImplemented", false);
    emit(w, VMH_RETURN_VALUE, 0);
}

static void write_eq(writer *w, PyObject *fields)
{
    int different = label_new(w), other_class = label_new(w), decided = label_new(w);
    local(w, 0);
    local(w, 1);
    emit(w, VMH_IS_OP, 0);
    jump(w, VMH_POP_JUMP_IF_FALSE, different);
    w->line++;
    constant(w, Py_True);
    emit(w, VMH_RETURN_VALUE, 0);
    w->line++;
    mark_at_depth(w, different, 0);
    write_same_class_or_skip(w, other_class);
    w->line++;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(fields) && !w->failed; i++) {
        PyObject *field = PyTuple_GET_ITEM(fields, i);
        if (i > 0) {
            emit(w, VMH_COPY, 1);
            emit(w, VMH_TO_BOOL, 0);
            jump(w, VMH_POP_JUMP_IF_FALSE, decided);
            emit(w, VMH_POP_TOP, 0);
        }
        field_of(w, 0, field);
        field_of(w, 1, field);
        emit(w, VMH_COMPARE_OP, (unsigned)vmh_compat_comparison(Py_EQ));
    }
    if (PyTuple_GET_SIZE(fields) == 0)
        constant(w, Py_True);
    mark(w, decided);
    emit(w, VMH_RETURN_VALUE, 0);
    w->line++;
    write_not_implemented(w, other_class);
}

static void write_tuple(writer *w, unsigned owner, PyObject *fields)
{
    Py_ssize_t count = PyTuple_GET_SIZE(fields);
    for (Py_ssize_t i = 0; i < count && !w->failed; i++)
        field_of(w, owner, PyTuple_GET_ITEM(fields, i));
    if (count > 0)
        emit(w, VMH_BUILD_TUPLE, (unsigned)count);
    else
        constant_made(w, PyTuple_New(0));
}

static void write_order(writer *w, PyObject *fields, int comparison)
{
    int other_class = label_new(w);
    write_same_class_or_skip(w, other_class);
    w->line++;
    write_tuple(w, 0, fields);
    write_tuple(w, 1, fields);
    emit(w, VMH_COMPARE_OP, (unsigned)vmh_compat_comparison(comparison));
    emit(w, VMH_RETURN_VALUE, 0);
    w->line++;
    write_not_implemented(w, other_class);
}

static void write_hash(writer *w, PyObject *fields)
{
    builtin(w, "hash", true);
    write_tuple(w, 0, fields);
    emit(w, VMH_CALL, 1);
    emit(w, VMH_RETURN_VALUE, 0);
}

/* `__setattr__` and `__delattr__` of a frozen class: they raise for the class itself and for its fields. */
static void write_frozen(writer *w, PyObject *fields, const char *name, const char *verb, int arguments)
{
    int refuse = label_new(w), pass_on = label_new(w);
    builtin(w, "type", true);
    local(w, 0);
    emit(w, VMH_CALL, 1);
    variable_named(w, "__class__");
    emit(w, VMH_IS_OP, 0);
    if (PyTuple_GET_SIZE(fields) > 0) {
        jump(w, VMH_POP_JUMP_IF_TRUE, refuse);
        local(w, 1);
        constant_made(w, PyFrozenSet_New(fields));
        emit(w, VMH_CONTAINS_OP, 0);
    }
    jump(w, VMH_POP_JUMP_IF_FALSE, pass_on);
    mark(w, refuse);
    w->line++;
    variable_named(w, "FrozenInstanceError");
    emit(w, VMH_PUSH_NULL, 0);
    constant_made(w, PyUnicode_FromFormat("cannot %s field ", verb));
    local(w, 1);
    emit(w, VMH_CONVERT_VALUE, FVC_REPR);
    emit(w, VMH_FORMAT_SIMPLE, 0);
    emit(w, VMH_BUILD_STRING, 2);
    emit(w, VMH_CALL, 1);
    emit(w, VMH_RAISE_VARARGS, 1);
    mark_at_depth(w, pass_on, 0);
    w->line++;
    builtin(w, "super", false);
    variable_named(w, "__class__");
    local(w, 0);
    emit(w, VMH_LOAD_SUPER_ATTR, name_index(w, name) << 2 | 3); /* a method, of super() with arguments */
    for (int i = 1; i <= arguments; i++)
        local(w, (unsigned)i);
    emit(w, VMH_CALL, (unsigned)arguments);
    emit(w, VMH_POP_TOP, 0);
    return_none(w);
}

static const struct method {
    const char *name, *qualname;
    enum { INIT, REPR, EQ, ORDER, HASH, SETATTR, DELATTR } kind;
    int comparison;
} known_methods[] = {
#define METHOD(NAME, KIND, COMPARISON) {NAME, "__create_fn__.<locals>." NAME, KIND, COMPARISON}
    METHOD("__init__", INIT, 0),       METHOD("__repr__", REPR, 0),    METHOD("__eq__", EQ, 0),
    METHOD("__lt__", ORDER, Py_LT),    METHOD("__le__", ORDER, Py_LE), METHOD("__gt__", ORDER, Py_GT),
    METHOD("__ge__", ORDER, Py_GE),    METHOD("__hash__", HASH, 0),    METHOD("__setattr__", SETATTR, 0),
    METHOD("__delattr__", DELATTR, 0),
#undef METHOD
};

static void write_method(writer *w, const struct method *method, int body_line, PyObject *const *details)
{
    PyObject *fields = details[0];
    w->failed = check_fields(fields, method->kind != SETATTR && method->kind != DELATTR) < 0
                || (method->kind == REPR && check_fields(details[1], false) < 0);
    if (!w->failed && method->kind == REPR && PyTuple_GET_SIZE(details[1]) != PyTuple_GET_SIZE(fields)) {
        PyErr_SetString(PyExc_ValueError, "__repr__: as many fields as are shown");
        w->failed = true;
    }
    if (w->failed)
        return;
    switch (method->kind) {
    case EQ:
    case ORDER: declare_parameters(w, "other", NULL); break;
    case SETATTR: declare_parameters(w, "name", "value"); break;
    case DELATTR: declare_parameters(w, "name", NULL); break;
    default: declare_parameters(w, NULL, NULL);
    }
    if ((method->kind == SETATTR || method->kind == DELATTR)
        && (declare_named(w, w->free, "__class__") < 0 || declare_named(w, w->free, "FrozenInstanceError") < 0))
        return;
    if (begin(w) < 0)
        return;
    w->line = body_line;
    switch (method->kind) {
    case REPR: write_repr(w, fields, details[1]); break;
    case EQ: write_eq(w, fields); break;
    case ORDER: write_order(w, fields, method->comparison); break;
    case HASH: write_hash(w, fields); break;
    case SETATTR: write_frozen(w, fields, method->name, "assign to", 2); break;
    default: write_frozen(w, fields, method->name, "delete", 1);
    }
}

static PyObject *method_code(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    int first_line, body_line;
    writer w;
    const struct method *method = NULL;
    if (count < 4 || !PyUnicode_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "method_code(name, first_line, body_line, *details)");
        return NULL;
    }
    for (size_t i = 0; i < sizeof known_methods / sizeof *known_methods; i++)
        if (PyUnicode_EqualToUTF8(args[0], known_methods[i].name))
            method = &known_methods[i];
    if (method == NULL)
        return PyErr_Format(PyExc_ValueError, "there is no recipe for %R", args[0]);
    if (count != (method->kind == INIT ? 6 : method->kind == REPR ? 5 : 4))
        return PyErr_Format(PyExc_TypeError, "%s: wrong number of details, %zd", method->name, count - 3);
    if (check_line(args[1], 1, &first_line) < 0 || check_line(args[2], first_line, &body_line) < 0
        || open_writer(&w, first_line) < 0)
        return NULL;
    if (method->kind == INIT)
        write_init(&w, body_line, args + 3);
    else
        write_method(&w, method, body_line, args + 3);
    PyObject *code = finished(&w, method->name, method->qualname, CO_NESTED);
    close_writer(&w);
    return code;
}

/* --- types.coroutine */

/* The code of a generator function, changed so that its generators can be awaited. */
static PyObject *coroutine_code(PyObject *Py_UNUSED(module), PyObject *generator)
{
    const int kinds = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;
    if (!Py_IS_TYPE(generator, &PyCode_Type))
        return PyErr_Format(PyExc_TypeError, "coroutine_code: expected a code object, got %T", generator);
    PyCodeObject *code = (PyCodeObject *)generator;
    if ((code->co_flags & kinds) != CO_GENERATOR)
        return PyErr_Format(PyExc_ValueError, "%U is no generator function", code->co_qualname);
    PyObject *bytes = PyCode_GetCode(code), *locals = bytes == NULL ? NULL : PyCode_GetVarnames(code);
    PyObject *cells = locals == NULL ? NULL : PyCode_GetCellvars(code),
             *free = cells == NULL ? NULL : PyCode_GetFreevars(code);
    PyObject *coroutine = NULL;
    if (free != NULL)
        coroutine = (PyObject *)PyUnstable_Code_NewWithPosOnlyArgs(
            code->co_argcount, code->co_posonlyargcount, code->co_kwonlyargcount, code->co_nlocals, code->co_stacksize,
            code->co_flags | CO_ITERABLE_COROUTINE, bytes, code->co_consts, code->co_names, locals, free, cells,
            code->co_filename, code->co_name, code->co_qualname, code->co_firstlineno, code->co_linetable,
            code->co_exceptiontable);
    Py_XDECREF(bytes);
    Py_XDECREF(locals);
    Py_XDECREF(cells);
    Py_XDECREF(free);
    return coroutine;
}

/* --- the code of a text that differs from a recorded one only in generated names and numbers */

/* `value` under its new name, or itself if `renames` does not have it. A new reference. */
static PyObject *renamed(PyObject *renames, PyObject *value)
{
    PyObject *other = PyDict_GetItemWithError(renames, value);
    return other != NULL ? Py_NewRef(other) : PyErr_Occurred() ? NULL : Py_NewRef(value);
}

/* Renames each part of a qualified name such as "outer_1.<locals>.inner_2". */
static PyObject *renamed_path(PyObject *renames, PyObject *path)
{
    PyObject *dot = PyUnicode_FromString("."), *components = dot == NULL ? NULL : PyUnicode_Split(path, dot, -1);
    PyObject *result = NULL;
    for (Py_ssize_t i = 0; components != NULL && i < PyList_GET_SIZE(components); i++) {
        PyObject *part = renamed(renames, PyList_GET_ITEM(components, i));
        if (part == NULL || PyList_SetItem(components, i, part) < 0)
            Py_CLEAR(components);
    }
    if (components != NULL)
        result = PyUnicode_Join(dot, components);
    Py_XDECREF(components);
    Py_XDECREF(dot);
    return result;
}

static PyObject *renamed_code(PyObject *renames, PyCodeObject *code);

/* Renames a constant: text and integers, also within tuples and code objects. The body of a class has its qualified
 * name among its constants. */
static PyObject *renamed_constant(PyObject *renames, PyObject *value)
{
    if (PyUnicode_CheckExact(value) && PyUnicode_FindChar(value, '<', 0, PyUnicode_GET_LENGTH(value), 1) >= 0)
        return renamed_path(renames, value);
    if (PyUnicode_CheckExact(value) || PyLong_CheckExact(value))
        return renamed(renames, value);
    if (!PyTuple_CheckExact(value) && !Py_IS_TYPE(value, &PyCode_Type))
        return Py_NewRef(value);
    if (Py_EnterRecursiveCall(" in the constants of a code object"))
        return NULL;
    PyObject *result = NULL;
    if (Py_IS_TYPE(value, &PyCode_Type)) {
        result = renamed_code(renames, (PyCodeObject *)value);
    } else {
        result = PyTuple_New(PyTuple_GET_SIZE(value));
        for (Py_ssize_t i = 0; result != NULL && i < PyTuple_GET_SIZE(value); i++) {
            PyObject *item = renamed_constant(renames, PyTuple_GET_ITEM(value, i));
            if (item == NULL)
                Py_CLEAR(result);
            else
                PyTuple_SET_ITEM(result, i, item);
        }
    }
    Py_LeaveRecursiveCall();
    return result;
}

static PyObject *renamed_names(PyObject *renames, PyObject *names)
{
    PyObject *result = PyTuple_New(PyTuple_GET_SIZE(names));
    for (Py_ssize_t i = 0; result != NULL && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = renamed(renames, PyTuple_GET_ITEM(names, i));
        if (name == NULL)
            Py_CLEAR(result);
        else
            PyTuple_SET_ITEM(result, i, name);
    }
    return result;
}

/* The number of different names in the tuples; -1 with an error set. */
static Py_ssize_t distinct(PyObject *first, PyObject *second, PyObject *third)
{
    PyObject *some = PySequence_Concat(first, second), *all = some == NULL ? NULL : PySequence_Concat(some, third);
    PyObject *set = all == NULL ? NULL : PySet_New(all);
    Py_ssize_t count = set == NULL ? -1 : PySet_GET_SIZE(set);
    Py_XDECREF(some);
    Py_XDECREF(all);
    Py_XDECREF(set);
    return count;
}

/* The names of a code object's local variables, cells and free variables. */
typedef struct {
    PyObject *locals, *cells, *free;
} variables;

static void variables_drop(variables *these)
{
    Py_CLEAR(these->locals);
    Py_CLEAR(these->cells);
    Py_CLEAR(these->free);
}

/* Renames the variables of `code`. No two may get the same name: CPython finds by name which cells are arguments, and
 * so each variable's slot. 0, or -1 with an error set. */
static int renamed_variables(PyObject *renames, PyCodeObject *code, variables *result)
{
    variables old = {PyCode_GetVarnames(code), PyCode_GetCellvars(code), PyCode_GetFreevars(code)};
    int rc = -1;
    *result = (variables){NULL, NULL, NULL};
    if (old.locals != NULL && old.cells != NULL && old.free != NULL
        && (result->locals = renamed_names(renames, old.locals)) != NULL
        && (result->cells = renamed_names(renames, old.cells)) != NULL
        && (result->free = renamed_names(renames, old.free)) != NULL) {
        Py_ssize_t before = distinct(old.locals, old.cells, old.free);
        Py_ssize_t after = before < 0 ? -1 : distinct(result->locals, result->cells, result->free);
        if (after >= 0 && after == before)
            rc = 0;
        else if (after >= 0)
            PyErr_SetString(PyExc_ValueError, "renamed_code: two variables of a function would have one name");
    }
    if (rc < 0)
        variables_drop(result);
    variables_drop(&old);
    return rc;
}

static PyObject *renamed_code(PyObject *renames, PyCodeObject *code)
{
    variables own;
    PyObject *result = NULL;
    if (renamed_variables(renames, code, &own) < 0)
        return NULL;
    PyObject *bytes = PyCode_GetCode(code), *names = bytes == NULL ? NULL : renamed_names(renames, code->co_names);
    PyObject *constants = names == NULL ? NULL : renamed_constant(renames, code->co_consts);
    PyObject *name = constants == NULL ? NULL : renamed(renames, code->co_name);
    PyObject *path = name == NULL ? NULL : renamed_path(renames, code->co_qualname);
    if (path != NULL)
        result = (PyObject *)PyUnstable_Code_NewWithPosOnlyArgs(
            code->co_argcount, code->co_posonlyargcount, code->co_kwonlyargcount, code->co_nlocals, code->co_stacksize,
            code->co_flags, bytes, constants, names, own.locals, own.free, own.cells, code->co_filename, name, path,
            code->co_firstlineno, code->co_linetable, code->co_exceptiontable);
    variables_drop(&own);
    Py_XDECREF(bytes);
    Py_XDECREF(names);
    Py_XDECREF(constants);
    Py_XDECREF(name);
    Py_XDECREF(path);
    return result;
}

/* Names such as `__class__`: CPython itself creates and reads variables of that form. None of them has a digit. */
static bool is_reserved(PyObject *name)
{
    Py_ssize_t size = PyUnicode_GET_LENGTH(name);
    const Py_ssize_t underscores[] = {0, 1, size - 2, size - 1};
    for (int i = 0; i < 4; i++)
        if (size < 4 || PyUnicode_READ_CHAR(name, underscores[i]) != '_')
            return false;
    for (Py_ssize_t i = 0; i < size; i++) {
        Py_UCS4 character = PyUnicode_READ_CHAR(name, i);
        if (character >= '0' && character <= '9')
            return false;
    }
    return true;
}

/* Checks one of `renames`: identifier to identifier, neither reserved, or int to int. 0, or -1 with an error set. */
static int check_rename(PyObject *old, PyObject *new)
{
    if (PyLong_CheckExact(old) && PyLong_CheckExact(new))
        return 0;
    if (check_identifier(old) < 0 || check_identifier(new) < 0)
        return -1;
    if (is_reserved(old) || is_reserved(new)) {
        PyErr_Format(PyExc_ValueError, "renamed_code: %R and %R: names of Python's own stay", old, new);
        return -1;
    }
    return 0;
}

/* renamed_code(code, renames): `renames` is a dict, which is copied before it is checked. */
static PyObject *code_renamed(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !Py_IS_TYPE(args[0], &PyCode_Type) || !PyDict_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "renamed_code(code, renames): expected a code object and a dict");
        return NULL;
    }
    PyObject *renames = PyDict_New(), *given = PyDict_Items(args[1]), *made = NULL;
    Py_ssize_t size = given == NULL ? -1 : PyList_GET_SIZE(given);
    bool valid = renames != NULL && size >= 0 && size <= ITEMS_MAX;
    for (Py_ssize_t i = 0; valid && i < size; i++) {
        PyObject *pair = PyList_GET_ITEM(given, i), *old = PyTuple_GET_ITEM(pair, 0), *new = PyTuple_GET_ITEM(pair, 1);
        valid = check_rename(old, new) == 0 && PyDict_SetItem(renames, old, new) == 0;
    }
    if (valid)
        made = renamed_code(renames, (PyCodeObject *)args[0]);
    else if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "renamed_code: at most %d names", ITEMS_MAX);
    Py_XDECREF(renames);
    Py_XDECREF(given);
    return made;
}

/* The changes that relocated_code makes. Borrowed; NULL: unchanged. `name` and `path` apply to the outermost code only.
 */
typedef struct {
    PyObject *file, *name, *path;
    long lines; /* added to the first line */
    bool inner; /* also relocates the code objects among the constants */
} location;

static PyObject *relocated(PyCodeObject *code, const location *to);

/* The constants of a code object, with code objects among them relocated. */
static PyObject *relocated_constants(PyObject *constants, const location *to)
{
    const location inner = {to->file, NULL, NULL, to->lines, true};
    if (!to->inner)
        return Py_NewRef(constants);
    PyObject *made = PyTuple_New(PyTuple_GET_SIZE(constants));
    for (Py_ssize_t i = 0; made != NULL && i < PyTuple_GET_SIZE(constants); i++) {
        PyObject *item = PyTuple_GET_ITEM(constants, i);
        if (!Py_IS_TYPE(item, &PyCode_Type)) {
            PyTuple_SET_ITEM(made, i, Py_NewRef(item));
            continue;
        }
        item = Py_EnterRecursiveCall(" in the constants of a code object") ? NULL : relocated((void *)item, &inner);
        if (item == NULL) {
            Py_CLEAR(made);
        } else {
            Py_LeaveRecursiveCall();
            PyTuple_SET_ITEM(made, i, item);
        }
    }
    return made;
}

static PyObject *relocated(PyCodeObject *code, const location *to)
{
    variables old = {PyCode_GetVarnames(code), PyCode_GetCellvars(code), PyCode_GetFreevars(code)};
    PyObject *bytes = NULL, *constants = NULL, *result = NULL;
    long first = code->co_firstlineno + to->lines;
    if (first < 0 || first > LINE_NUMBER_MAX)
        PyErr_Format(PyExc_ValueError, "relocated_code: a first line of 0 to %d", LINE_NUMBER_MAX);
    else if (old.locals != NULL && old.cells != NULL && old.free != NULL && (bytes = PyCode_GetCode(code)) != NULL
             && (constants = relocated_constants(code->co_consts, to)) != NULL)
        result = (PyObject *)PyUnstable_Code_NewWithPosOnlyArgs(
            code->co_argcount, code->co_posonlyargcount, code->co_kwonlyargcount, code->co_nlocals, code->co_stacksize,
            code->co_flags, bytes, constants, code->co_names, old.locals, old.free, old.cells,
            to->file != NULL ? to->file : code->co_filename, to->name != NULL ? to->name : code->co_name,
            to->path != NULL ? to->path : code->co_qualname, (int)first, code->co_linetable, code->co_exceptiontable);
    variables_drop(&old);
    Py_XDECREF(bytes);
    Py_XDECREF(constants);
    return result;
}

/* relocated_code(code, file, name, path, lines, inner): texts are exact str, or None. */
static PyObject *code_relocated(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    location to = {0};
    PyObject **texts[] = {&to.file, &to.name, &to.path};
    bool valid = count == 6 && Py_IS_TYPE(args[0], &PyCode_Type) && PyLong_CheckExact(args[4]) && PyBool_Check(args[5]);
    for (int i = 0; valid && i < 3; i++) {
        valid = args[i + 1] == Py_None || PyUnicode_CheckExact(args[i + 1]);
        *texts[i] = args[i + 1] == Py_None ? NULL : args[i + 1];
    }
    if (!valid) {
        PyErr_SetString(PyExc_TypeError,
                        "relocated_code(code, file, name, path, lines, inner): expected a code object, "
                        "three texts or None, an int and a bool");
        return NULL;
    }
    int overflow;
    to.lines = PyLong_AsLongAndOverflow(args[4], &overflow);
    to.inner = args[5] == Py_True;
    if (overflow || to.lines < -LINE_NUMBER_MAX || to.lines > LINE_NUMBER_MAX) {
        PyErr_Format(PyExc_ValueError, "relocated_code: at most %d lines", LINE_NUMBER_MAX);
        return NULL;
    }
    vmh_seal *seal = to.file == NULL ? NULL : vmh_seal_here();
    if (seal != NULL && vmh_seal_is_library(seal, (PyCodeObject *)args[0]))
        return vmh_deny("code of the standard library keeps the name of its file", "relocated_code");
    return relocated((PyCodeObject *)args[0], &to);
}

PyMethodDef vmh_function_code_methods[] = {
    {"namedtuple_code", namedtuple_code, METH_O,
     PyDoc_STR("namedtuple_code(fields) -> the code of a named tuple's __new__")},
    {"method_code", (PyCFunction)(void (*)(void))method_code, METH_FASTCALL,
     PyDoc_STR(
         "method_code(name, first_line, body_line, fields) -> the code of a dataclass's method. __repr__ also takes "
         "the fields as displayed. __init__ takes, in place of the fields: parameters, number of positional ones, "
         "steps")},
    {"coroutine_code", coroutine_code, METH_O,
     PyDoc_STR("coroutine_code(code) -> the same code, with awaitable generators")},
    {"renamed_code", (PyCFunction)(void (*)(void))code_renamed, METH_FASTCALL,
     PyDoc_STR(
         "renamed_code(code, renames) -> the same code with other names of variables, globals and attributes, and "
         "other integers among its constants; renames: a dict of identifiers and ints")},
    {"relocated_code", (PyCFunction)(void (*)(void))code_relocated, METH_FASTCALL,
     PyDoc_STR("relocated_code(code, file, name, path, lines, inner) -> the same code with another file, name and "
               "qualified name (None: unchanged), `lines` lines further down; inner: also the code within it")},
    {NULL, NULL, 0, NULL},
};
