#include "core/pairs.h"

#include <math.h>
#include <stdlib.h>

#include "core/sort.h"

static double share(double part, double whole) { return whole == 0 ? NAN : part / whole; }

/* ---- events in quick succession */

/* Pairs of events with values that came within `seconds` of each other: all of them, and those of equal values.
 * O(n log n) for n events, however many pairs there are. */
static void near(vmf_window *w, double seconds, double *all, double *equal)
{
    *all = *equal = 0;
    vmf_key *keys = malloc((2 * w->count + 1) * sizeof *keys);
    size_t *group = malloc((w->count + 1) * sizeof *group);
    size_t *open = calloc(w->count + 1, sizeof *open); /* per group: its events that are still near */
    if (keys == NULL || group == NULL || open == NULL) {
        w->failed = true;
        goto done;
    }
    size_t count = 0, groups = 0, first = 0;
    for (size_t i = 0; i < w->count; i++)
        if (!isnan(w->items[i].value))
            keys[count++] = (vmf_key){w->items[i].identity, i};
    vmf_sort(keys, keys + count, count);
    for (size_t i = 0; i < count; i++) {
        groups += i > 0 && keys[i].key != keys[i - 1].key;
        group[keys[i].place] = groups;
    }
    count = 0;
    for (size_t i = 0; i < w->count; i++) {
        if (isnan(w->items[i].value))
            continue;
        for (; first < i; first++) {
            if (isnan(w->items[first].value))
                continue;
            if ((double)(w->items[i].time_ms - w->items[first].time_ms) <= seconds * 1000)
                break;
            open[group[first]]--;
            count--;
        }
        *all += (double)count++;
        *equal += (double)open[group[i]]++;
    }
done:
    free(keys);
    free(group);
    free(open);
}

double vmf_co_occurrence(vmf_window *w, double parameter)
{
    double all, equal;
    near(w, parameter, &all, &equal);
    return all - equal;
}

double vmf_co_occurrence_share(vmf_window *w, double parameter)
{
    double all, equal;
    near(w, parameter, &all, &equal);
    return share(all - equal, all);
}

/* ---- two fields */

static bool both(const vmf_window *w, size_t i) { return !isnan(w->items[i].value) && !isnan(w->others[i].value); }

static const vmf_moments *pass_moments(vmf_window *w)
{
    if (w->crossed)
        return &w->moments;
    w->crossed = true;
    vmf_moments m = {0};
    for (size_t i = 0; i < w->count; i++)
        if (both(w, i)) {
            m.count++;
            m.x += w->items[i].value;
            m.y += w->others[i].value;
            m.product += w->items[i].value * w->others[i].value;
        }
    for (size_t i = 0; i < w->count; i++)
        if (both(w, i)) {
            const double x = w->items[i].value - m.x / (double)m.count;
            const double y = w->others[i].value - m.y / (double)m.count;
            m.xx += x * x;
            m.yy += y * y;
            m.xy += x * y;
        }
    w->moments = m;
    return &w->moments;
}

#define OF_MOMENTS(name, number) \
    double vmf_##name(vmf_window *w, double parameter) \
    { \
        (void)parameter; \
        const vmf_moments *m = pass_moments(w); \
        return number; \
    }

OF_MOMENTS(weighted_sum, m->product)
OF_MOMENTS(weighted_mean, share(m->product, m->y))
OF_MOMENTS(covariance, share(m->xy, (double)m->count))
OF_MOMENTS(correlation, share(m->xy, sqrt(m->xx) * sqrt(m->yy)))
OF_MOMENTS(slope_over, share(m->xy, m->yy))
OF_MOMENTS(sum_ratio, share(m->x, m->y))

/* ---- pairs of values */

typedef struct {
    uint64_t value, other;
} pair;

static int by_both(const void *a, const void *b)
{
    const pair *x = a, *y = b;
    if (x->value != y->value)
        return x->value < y->value ? -1 : 1;
    return (x->other > y->other) - (x->other < y->other);
}

static int by_other(const void *a, const void *b)
{
    const pair *x = a, *y = b;
    return (x->other > y->other) - (x->other < y->other);
}

static int by_value(const void *a, const void *b)
{
    const pair *x = a, *y = b;
    return (x->value > y->value) - (x->value < y->value);
}

/* The entropy of runs of equal pairs, in bits; *groups and *most are set unless NULL. */
static double entropy_of(const pair *pairs, size_t count, int (*equal)(const void *, const void *), size_t *groups,
                         size_t *most)
{
    double entropy = 0;
    for (size_t begin = 0, end; begin < count; begin = end) {
        for (end = begin + 1; end < count && equal(&pairs[begin], &pairs[end]) == 0; end++)
            ;
        const double part = (double)(end - begin) / (double)count;
        entropy -= part * log2(part);
        if (groups != NULL) {
            ++*groups;
            *most = end - begin > *most ? end - begin : *most;
        }
    }
    return entropy;
}

static const vmf_pair_groups *pass_pairs(vmf_window *w)
{
    if (w->paired)
        return &w->pairs;
    w->paired = true;
    pair *pairs = malloc((w->count + 1) * sizeof *pairs);
    if (pairs == NULL) {
        w->failed = true;
        return &w->pairs;
    }
    vmf_pair_groups found = {0};
    for (size_t i = 0; i < w->count; i++)
        if (both(w, i))
            pairs[found.count++] = (pair){w->items[i].identity, w->others[i].identity};
    qsort(pairs, found.count, sizeof *pairs, by_both);
    found.entropy = entropy_of(pairs, found.count, by_both, &found.groups, &found.most);
    found.of_values = entropy_of(pairs, found.count, by_value, NULL, NULL);
    qsort(pairs, found.count, sizeof *pairs, by_other);
    found.of_others = entropy_of(pairs, found.count, by_other, NULL, NULL);
    free(pairs);
    w->pairs = found;
    return &w->pairs;
}

#define OF_PAIRS(name, number) \
    double vmf_##name(vmf_window *w, double parameter) \
    { \
        (void)parameter; \
        const vmf_pair_groups *p = pass_pairs(w); \
        return number; \
    }

OF_PAIRS(pairs, (double)p->groups)
OF_PAIRS(pair_mode_count, (double)p->most)
OF_PAIRS(pair_mode_share, share((double)p->most, (double)p->count))
OF_PAIRS(mutual_information, p->count == 0 ? NAN : fmax(0, p->of_values + p->of_others - p->entropy))
