/* Shared declarations of `vmhost.pipeline.features._features`. */
#ifndef VMF_FEATURES_H
#define VMF_FEATURES_H

#include <Python.h>

#include "core/operators.h"
#include "core/sketch.h"

/* How a step of a plan gets its number. BASIC: an operator over a window; SKETCHED: an operator over a sketch; the
 * others: from two earlier steps. */
enum { BASIC, RATIO, DIFFERENCE, TOTAL, PRODUCT, LARGER, SMALLER, BOTH, SKETCHED, KINDS };

/* The events in a window at a time. SLIDING: those of the last `window_ms`. TUMBLING: those since the last whole
 * multiple of `window_ms`, in local time; PREVIOUS: those of the multiple before. SESSION: those of the current
 * session, at most its last `most_ms`; a session ends `window_ms` after its last event. */
enum { SLIDING, TUMBLING, PREVIOUS, SESSION, SHAPES };

typedef struct {
    int shape;
    int64_t window_ms, most_ms;
} vmf_shape;

typedef struct {
    int kind;
    int left, right; /* indices of earlier steps. BASIC, SKETCHED: column and operator */
    vmf_shape shape;
    int64_t fresh_ms; /* maximum age of the last event; < 0: any */
    int written;      /* as of the last event: index of its number in a history; -1: as of the time of reading */
    double parameter, fallback;
} vmf_step;

typedef struct {
    PyObject_HEAD
    Py_ssize_t count, columns, written; /* steps; what a history must have at least */
    vmf_step *steps;
    Py_ssize_t asked; /* numbers that are read: those of all steps, or those in `order`, indices of steps */
    Py_ssize_t *order;
    int64_t offset_ms;
} vmf_plan;

extern PyTypeObject vmf_plan_type, vmf_history_type;

/* A time in milliseconds of either sign, of up to 53 bits, so that sums of a few stay far from 64 bits. -1 and an
 * exception otherwise. */
int vmf_to_time(PyObject *object, int64_t *time_ms);

/* A number from two others, by a kind from RATIO to BOTH. NAN: there is none. */
double vmf_derived(int kind, double a, double b);

#define VMF_MOST_MS (1LL << 53)

#endif
