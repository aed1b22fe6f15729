/* What the parts of `vmhost.pipeline.features._features` share. */
#ifndef VMF_FEATURES_H
#define VMF_FEATURES_H

#include <Python.h>

#include "core/operators.h"
#include "core/sketch.h"

/* How a step of a plan comes to its number. BASIC: an operator over a window; SKETCHED: one of a sketch. The
 * others: of two earlier steps. */
enum { BASIC, RATIO, DIFFERENCE, TOTAL, PRODUCT, LARGER, SMALLER, BOTH, SKETCHED, KINDS };

/* Which events a window has, as of a time. SLIDING: those less than `window_ms` ago. TUMBLING: those since the last
 * whole multiple of `window_ms`, local time; PREVIOUS: those of the multiple before. SESSION: those of a session that
 * goes on, which ends `window_ms` after its last event; at most `most_ms` of it. */
enum { SLIDING, TUMBLING, PREVIOUS, SESSION, SHAPES };

typedef struct {
    int shape;
    int64_t window_ms, most_ms;
} vmf_shape;

typedef struct {
    int kind;
    int left, right; /* places of earlier steps. BASIC, SKETCHED: column and operator */
    vmf_shape shape;
    int64_t fresh_ms; /* < 0: any */
    int written;      /* as of the last event: the place where a history keeps it; -1: as of the time of reading */
    double parameter, fallback;
} vmf_step;

typedef struct {
    PyObject_HEAD
    Py_ssize_t count, columns, written; /* a history has at least so many */
    vmf_step *steps;
    Py_ssize_t asked; /* numbers that are read: all steps', or those of `order`, places of steps */
    Py_ssize_t *order;
    int64_t offset_ms;
} vmf_plan;

extern PyTypeObject vmf_plan_type, vmf_history_type;

/* Milliseconds of either sign that a float has exactly: sums of a few of them are far from the bounds of 64 bits.
 * -1 and an exception where `object` is none. */
int vmf_to_time(PyObject *object, int64_t *time_ms);

/* A number from two others, by a kind of RATIO to BOTH. NAN: there is none. */
double vmf_derived(int kind, double a, double b);

#define VMF_MOST_MS (1LL << 53)

#endif
