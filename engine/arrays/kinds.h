/* The kinds of arguments that private functions of the module take, and the check at their entry.
 *
 * Guests reach these functions without the Python above them. So each argument is first made exact (an int for what has
 * __index__, a float, a bool, a tuple of ints), which may run code of the program; then all are checked, and the
 * function is called. From the check on no code of the program runs, except where a function itself calls some
 * (KIND_ANY, writable buffers), so what was checked stays true. */
#ifndef ENGINE_KINDS_H
#define ENGINE_KINDS_H

#include "arrays.h"

enum {
    KIND_ANY,      /* the function checks it */
    KIND_ARRAY,    /* an array */
    KIND_OUT,      /* a writable array */
    KIND_LIKE,     /* made an array */
    KIND_ARRAYS,   /* a tuple of arrays and None */
    KIND_INTEGER,  /* made an int of 64 bits; between the bounds if there are any */
    KIND_REAL,     /* made a float */
    KIND_TRUTH,    /* made a bool */
    KIND_NUMBER,   /* made an int, float or complex */
    KIND_NUMBERS,  /* a tuple of such */
    KIND_SIZES,    /* an int or a sequence of ints of 64 bits: made a tuple, of at most VME_RANK_MAX */
    KIND_SETS,     /* a list or tuple of tuples of arrays, capsules, ints and None: made tuples */
    KIND_TEXT,     /* a str */
    KIND_PATH,     /* made a str or bytes */
    KIND_BYTES,    /* bytes */
    KIND_DICT,     /* a dict */
    KIND_LIST,     /* a list */
    KIND_TUPLE,    /* a tuple */
    KIND_SESSION,  /* a capsule: of a model's session, */
    KIND_TABLE,    /* an embedding table, */
    KIND_SNAPSHOT, /* a snapshot of one */
    KIND_TYPE,     /* a type */
    KIND_CALLABLE, /* what can be called */
    KIND_COUNT,
    KIND_NONE = 64, /* or None */
};

#define ARRAY_SESSION_CAPSULE  "vmhost.engine.session"
#define ARRAY_SNAPSHOT_CAPSULE "vmhost.engine.embedding.snapshot"

enum { ARRAY_PARAMETERS_MAX = 16, ARRAY_ROOM_MAX = 1 << 24 };

typedef struct array_parameter {
    const char *name, *absent; /* "=0": may be absent */
    int kind;
    int64_t bounds[2]; /* both 0: none */
} array_parameter;

typedef struct array_private {
    const char *name;
    const array_parameter *parameters;
    int count, required;
    PyObject *(*function)(PyObject *module, ARRAY_VECTORCALL);
} array_private;

/* Calls the function with a value for each of its parameters, exact and checked; NULL: absent. */
PyObject *array_call_checked(PyObject *module, const array_private *of, ARRAY_VECTORCALL);
/* The parameters as a tuple of (name, kind, or None, bounds or None, whether it may be absent). */
PyObject *array_parameters(const array_private *of);

#endif
