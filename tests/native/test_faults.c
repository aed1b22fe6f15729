/* Each allocation of the core's plain C parts fails once: an error comes back, nothing leaks, nothing crashes. */
#include <limits.h>
#include <string.h>

#include "check.h"
#include "lanes/clock.h"
#include "fake_vm.h"
#include "lanes/lane.h"

/* All of it once; 0 if everything succeeded, -1 if an allocation failed and was reported. */
static int everything(void)
{
    int rc = -1;
    vmh_lane *lane = NULL;
    vmh_call *call = NULL;
    vmh_storage *storage = NULL;
    vmh_meter *meter = NULL;
    vmh_code_store *store = vmh_code_store_new();
    vmh_events *events = vmh_events_new();
    if (store == NULL || events == NULL)
        goto done;
    for (int i = 0; i < 300; i++) {
        char name[32];
        snprintf(name, sizeof name, "module%d", i);
        if (vmh_code_store_add(store, name, false, (const uint8_t *)"code", 4) != 0)
            goto done;
        CHECK(vmh_code_store_find(store, name) != NULL);
    }
    CHECK(vmh_code_store_add(store, "module0", false, (const uint8_t *)"other", 5) != 0);
    lane = vmh_lane_new("task", "1", "main:run", store, events);
    call = lane == NULL ? NULL : vmh_call_new(lane);
    meter = vmh_meter_new();
    storage = meter == NULL ? NULL : vmh_storage_new(1000, meter);
    if (call == NULL || storage == NULL)
        goto done;
    vmh_blob_charge(&call->request, meter);
    if (!vmh_blob_reserve(&call->request, 5000))
        goto done;
    for (int i = 0; i < 10; i++)
        if (!vmh_blob_add_storage(&call->request, storage))
            goto done;
    CHECK(atomic_load(&storage->refs) == 11);
    vmh_blob_move(&call->reply, &call->request);
    CHECK(call->reply.storage_count == 10 && call->request.storage_count == 0);
    CHECK(atomic_load(&meter->live) >= 1000 + 5000 + 10 * 8);
    atomic_store(&meter->hard, 20000);
    CHECK(!vmh_blob_reserve(&call->reply, 1 << 20) && call->reply.storage_count == 10);
    atomic_store(&meter->hard, LLONG_MAX);
    call->record = malloc(sizeof *call->record); /* what a recorded call carries goes with it */
    if (call->record == NULL)
        goto done;
    vmh_blob_init(call->record);
    if (!vmh_blob_reserve(call->record, 5000))
        goto done;
    vmh_task_metrics *metrics = vmh_lane_metrics(lane);
    if (metrics == NULL)
        goto done;
    CHECK(vmh_lane_metrics(lane) == metrics);
    const double bounds[] = {1, 10};
    for (int i = 0; i < VMH_TASK_METRICS_MAX; i++) {
        char key[32];
        snprintf(key, sizeof key, "metric%d", i);
        int found = vmh_task_metrics_find(metrics, VMH_METRIC_HISTOGRAM, key, bounds, 2);
        if (found == -3)
            goto done;
        CHECK(found == i && vmh_task_metrics_find(metrics, VMH_METRIC_HISTOGRAM, key, bounds, 2) == i);
    }
    CHECK(vmh_task_metrics_find(metrics, VMH_METRIC_GAUGE, "metric0", NULL, 0) == -2);
    CHECK(vmh_task_metrics_find(metrics, VMH_METRIC_GAUGE, "more", NULL, 0) == -1
          && atomic_load(&metrics->left_out) == 1);
    CHECK(vmh_task_metrics_at(metrics, -1) == NULL && vmh_task_metrics_at(metrics, VMH_TASK_METRICS_MAX) == NULL);
    vmh_task_metric *metric = vmh_task_metrics_at(metrics, 7);
    vmh_task_metric_observe(metric, 1);
    vmh_task_metric_observe(metric, 5);
    vmh_task_metric_observe(metric, 50);
    CHECK(atomic_load(&metric->value) == 56 && atomic_load(&metric->counts[0]) == 1
          && atomic_load(&metric->counts[1]) == 1 && atomic_load(&metric->counts[2]) == 1);
    rc = 0;
done:
    if (call != NULL)
        vmh_call_unref(call);
    if (storage != NULL)
        vmh_storage_unref(storage);
    if (meter != NULL) {
        CHECK(atomic_load(&meter->live) == 0 && atomic_load(&meter->refs) == 1);
        vmh_meter_unref(meter);
    }
    if (lane != NULL)
        vmh_lane_unref(lane);
    if (store != NULL)
        vmh_code_store_unref(store);
    if (events != NULL)
        vmh_events_unref(events);
    return rc;
}

static void meters(void)
{
    vmh_meter *meter = vmh_meter_new();
    CHECK(meter != NULL);
    const long long mib = 1 << 20;
    atomic_store(&meter->soft, 8 * mib);
    atomic_store(&meter->hard, 10 * mib);
    CHECK(vmh_meter_charge(meter, 7 * mib) && !atomic_load(&meter->over));
    CHECK(!vmh_meter_charge(meter, 20 * mib)
          && !atomic_load(&meter->over)); /* alone beyond the limit: refused, no stop */
    CHECK(vmh_meter_charge(meter, 2 * mib) && atomic_load(&meter->over));
    CHECK(!vmh_meter_charge(meter, 2 * mib));
    CHECK(atomic_load(&meter->live) == 9 * mib && atomic_load(&meter->refused) == 2
          && atomic_load(&meter->peak) == 9 * mib);
    vmh_meter_rearm(meter);
    long long small = 9 * mib;
    while (vmh_meter_charge(meter, 16 * 1024)) /* small requests have a reserve, which ends too */
        small += 16 * 1024;
    CHECK(atomic_load(&meter->over) && small == 42 * mib && atomic_load(&meter->live) == small);
    CHECK(!vmh_meter_charge(meter, 16 * 1024 + 1));
    vmh_meter_release(meter, (size_t)small);
    CHECK(vmh_storage_new(20 * mib, meter) == NULL);
    CHECK(vmh_storage_new(SIZE_MAX - 10, NULL) == NULL);
    CHECK(atomic_load(&meter->live) == 0);
    vmh_meter_unref(meter);
}

int main(void)
{
    meters();
    long at = 0;
    int told = 0;
    for (;; at++) {
        failing_malloc(at);
        int rc = everything();
        if (!failing_malloc(-1)) {
            CHECK(rc == 0);
            break;
        }
        told += rc != 0;
    }
    /* untold: a table that cannot grow (code_store.c) is no error, and the three of a module that is refused anyway */
    CHECK(at > 600 && told == at - 4);
    printf("test_faults: passed, %ld allocations failed once each, %d told\n", at, told);
    return 0;
}
