/* A task's own metrics (vmhost/guest/metrics.py): series shared by all VMs of one task version, which outlive them.
 * Their number is bounded. VMs add without a lock; a reader sees each number whole. No Python in here. */
#ifndef VMH_TASK_METRICS_H
#define VMH_TASK_METRICS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum { VMH_TASK_METRICS_MAX = 200, VMH_METRIC_KEY_MAX = 2048, VMH_METRIC_BOUNDS_MAX = 32 };
enum vmh_metric_kind { VMH_METRIC_COUNTER, VMH_METRIC_GAUGE, VMH_METRIC_HISTOGRAM };

typedef struct vmh_task_metric {
    char *key; /* in the guest runtime's encoding; owned; never changes, like all fields up to `bounds` */
    enum vmh_metric_kind kind;
    int bound_count;
    double bounds[VMH_METRIC_BOUNDS_MAX];
    _Atomic double value;                           /* of a histogram: the sum */
    atomic_llong counts[VMH_METRIC_BOUNDS_MAX + 1]; /* of a histogram: values in (previous bound, bound]; last: above
                                                       all bounds */
} vmh_task_metric;

typedef struct vmh_task_metrics {
    pthread_mutex_t lock; /* for adding a series */
    atomic_int count;
    vmh_task_metric *items[VMH_TASK_METRICS_MAX]; /* valid below `count`; never removed */
    atomic_llong left_out;                        /* series refused beyond the maximum */
} vmh_task_metrics;

vmh_task_metrics *vmh_task_metrics_new(void); /* NULL: no memory */
void vmh_task_metrics_free(vmh_task_metrics *metrics);

/* The index of the series with this key, created on first use. -1: too many series; -2: the key has another kind or
 * other bounds; -3: no memory. */
int vmh_task_metrics_find(vmh_task_metrics *metrics, enum vmh_metric_kind kind, const char *key, const double *bounds,
                          int bound_count);
/* NULL: there is no such series. */
vmh_task_metric *vmh_task_metrics_at(vmh_task_metrics *metrics, long index);

void vmh_task_metric_add(vmh_task_metric *metric, double value);
void vmh_task_metric_observe(vmh_task_metric *metric, double value);

#endif
