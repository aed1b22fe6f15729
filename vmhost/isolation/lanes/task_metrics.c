#include "lanes/task_metrics.h"

#include <stdlib.h>
#include <string.h>

vmh_task_metrics *vmh_task_metrics_new(void)
{
    vmh_task_metrics *metrics = calloc(1, sizeof *metrics);
    if (metrics != NULL && pthread_mutex_init(&metrics->lock, NULL) != 0) {
        free(metrics);
        return NULL;
    }
    return metrics;
}

void vmh_task_metrics_free(vmh_task_metrics *metrics)
{
    if (metrics == NULL)
        return;
    for (int i = 0; i < atomic_load(&metrics->count); i++) {
        free(metrics->items[i]->key);
        free(metrics->items[i]);
    }
    pthread_mutex_destroy(&metrics->lock);
    free(metrics);
}

static bool is_same(const vmh_task_metric *metric, enum vmh_metric_kind kind, const double *bounds, int bound_count)
{
    return metric->kind == kind && metric->bound_count == bound_count
           && (bound_count == 0 || memcmp(metric->bounds, bounds, (size_t)bound_count * sizeof *bounds) == 0);
}

static vmh_task_metric *metric_new(enum vmh_metric_kind kind, const char *key, const double *bounds, int bound_count)
{
    vmh_task_metric *metric = calloc(1, sizeof *metric);
    if (metric == NULL || (metric->key = strdup(key)) == NULL) {
        free(metric);
        return NULL;
    }
    metric->kind = kind;
    metric->bound_count = bound_count;
    if (bound_count > 0)
        memcpy(metric->bounds, bounds, (size_t)bound_count * sizeof *bounds);
    return metric;
}

int vmh_task_metrics_find(vmh_task_metrics *metrics, enum vmh_metric_kind kind, const char *key, const double *bounds,
                          int bound_count)
{
    int index = -3;
    pthread_mutex_lock(&metrics->lock);
    int count = atomic_load(&metrics->count);
    for (int i = 0; i < count; i++)
        if (strcmp(metrics->items[i]->key, key) == 0) {
            index = is_same(metrics->items[i], kind, bounds, bound_count) ? i : -2;
            goto done;
        }
    if (count == VMH_TASK_METRICS_MAX) {
        atomic_fetch_add(&metrics->left_out, 1);
        index = -1;
        goto done;
    }
    if ((metrics->items[count] = metric_new(kind, key, bounds, bound_count)) != NULL) {
        atomic_store(&metrics->count, count + 1);
        index = count;
    }
done:
    pthread_mutex_unlock(&metrics->lock);
    return index;
}

vmh_task_metric *vmh_task_metrics_at(vmh_task_metrics *metrics, long index)
{
    return index < 0 || index >= atomic_load(&metrics->count) ? NULL : metrics->items[index];
}

void vmh_task_metric_add(vmh_task_metric *metric, double value)
{
    double before = atomic_load_explicit(&metric->value, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(&metric->value, &before, before + value))
        ;
}

void vmh_task_metric_observe(vmh_task_metric *metric, double value)
{
    int at = 0;
    while (at < metric->bound_count && !(value <= metric->bounds[at]))
        at++;
    vmh_task_metric_add(metric, value);
    atomic_fetch_add_explicit(&metric->counts[at], 1, memory_order_relaxed);
}
