/* Operators of features: each computes a number from the events of a window. No Python in here.
 *
 * An item is one event: its time, its value (NaN: none) and its identity, by which values are compared. The items of a
 * window are in order of time. All operators of a window share the passes over it. A result of NaN means that there is
 * none, such as the mean of an empty window.
 */
#ifndef VMF_OPERATORS_H
#define VMF_OPERATORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct vmf_item {
    int64_t time_ms;
    double value;
    uint64_t identity;
} vmf_item;

typedef struct vmf_group {
    uint64_t identity;
    size_t count, last; /* last: the index of the group's last item */
    double value;
} vmf_group;

/* Over the events that have a value in both fields. */
typedef struct vmf_moments {
    size_t count;
    double x, y, product; /* sums; x: value, y: other */
    double xx, yy, xy;    /* sums of products of differences from the means */
} vmf_moments;

typedef struct vmf_pair_groups {
    size_t count, groups, most;           /* pairs; distinct pairs; occurrences of the most frequent one */
    double entropy, of_values, of_others; /* bits */
} vmf_pair_groups;

typedef struct vmf_window {
    const vmf_item *items;
    const vmf_item *others; /* the same events by another field; NULL if no operator asks for it */
    size_t count;
    int64_t at_ms, span_ms, offset_ms;    /* time of reading; length; offset of local time from UTC */
    bool summed, sorted, grouped, failed; /* passes that were made; failed: one had no memory */
    size_t valued;                        /* items with a value */
    double sum, mean, m2, m3, m4, least, most, absolute, squares, logs, inverses;
    size_t positive, negative, zero;
    double *order;     /* owned: the values, sorted */
    vmf_group *groups; /* owned: by identity */
    size_t group_count;
    bool crossed, paired; /* whether these passes were made */
    vmf_moments moments;
    vmf_pair_groups pairs;
} vmf_window;

typedef double vmf_operator(vmf_window *window, double parameter);

typedef struct vmf_entry {
    const char *name;
    vmf_operator *compute;
    bool wants, other; /* a parameter; a second field */
    const char *says;
    const char *cost; /* NULL: the cost of the passes that it uses */
} vmf_entry;

extern const vmf_entry vmf_entries[];
extern const size_t vmf_entry_count;

void vmf_window_end(vmf_window *window);

#endif
