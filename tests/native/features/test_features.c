/* Operators of features and sketches: each allocation fails once and is told; windows of nothing, of one event, and of
 * odd numbers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "core/operators.h"
#include "core/sketch.h"
#include "core/sort.h"

static const double parameters[] = {0, 1, 0.25, -1, 3600, 1e300};
enum { PARAMETERS = sizeof parameters / sizeof *parameters };

/* All operators over the items; whether a pass had no memory. */
static bool all_of(const vmf_item *items, size_t count)
{
    vmf_window window = {.items = items, .others = items, .count = count, .at_ms = 1800000000000, .span_ms = 86400000};
    for (size_t i = 0; i < vmf_entry_count; i++)
        for (size_t p = 0; p < PARAMETERS; p++)
            (void)vmf_entries[i].compute(&window, parameters[p]);
    bool failed = window.failed;
    vmf_window_end(&window);
    CHECK(window.order == NULL && window.groups == NULL);
    return failed;
}

static vmf_item item(int64_t ago_ms, double value)
{
    vmf_item made = {1800000000000 - ago_ms, value, 0};
    memcpy(&made.identity, &value, sizeof made.identity);
    return made;
}

enum { EVENTS = 3000 };
static const double ordered[] = {-INFINITY, -1e308, -1, -5e-324, 0, 5e-324, 1, 2, INFINITY};

/* Values far apart, some odd, over twice the window, every third one late. How many events found no memory. */
static int sketched(vmf_sketch *sketch, const double *odd, size_t odds)
{
    int failed = 0;
    int64_t latest_ms = INT64_MIN;
    for (int i = 0; i < EVENTS; i++) {
        const double value = i % 7 == 0 ? odd[(size_t)i / 7 % odds] : exp(i % 1400 - 700);
        vmf_item one = item((int64_t)(EVENTS - i) * 2 * VMF_PANES * 1000 / EVENTS + (i % 3 == 0 ? 900 : 0), value);
        one.identity += (uint64_t)i % 2000;
        latest_ms = one.time_ms > latest_ms ? one.time_ms : latest_ms;
        failed += vmf_sketch_add(sketch, &one, latest_ms) < 0;
        CHECK(sketch->count <= VMF_PANES + 1);
    }
    for (uint64_t i = 0; i < 600; i++) { /* more than a list of marks holds */
        const vmf_item one = {latest_ms, 1, i};
        failed += vmf_sketch_add(sketch, &one, latest_ms) < 0;
    }
    for (size_t i = 0; i < vmf_sketch_entry_count; i++)
        for (size_t p = 0; p < PARAMETERS; p++)
            for (int64_t ahead_ms = 0; ahead_ms < 3 * VMF_PANES * 1000; ahead_ms += 7000) {
                bool none = false;
                (void)vmf_sketch_entries[i].compute(sketch, latest_ms + ahead_ms, parameters[p], &none);
                failed += none;
            }
    CHECK(vmf_sketch_bytes(sketch) > sizeof *sketch);
    return failed;
}

/* Against comparing; some digits are common to all keys, some keys are equal. */
static void sorts(size_t count, uint64_t mask)
{
    vmf_key *keys = malloc((2 * count + 1) * sizeof *keys);
    CHECK(keys != NULL);
    uint64_t random = 88172645463325252U;
    for (size_t i = 0; i < count; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        keys[i] = (vmf_key){random & mask, i};
    }
    vmf_sort(keys, keys + count, count);
    for (size_t i = 1; i < count; i++)
        CHECK(keys[i - 1].key < keys[i].key || (keys[i - 1].key == keys[i].key && keys[i - 1].place < keys[i].place));
    free(keys);
}

int main(void)
{
    for (size_t count = 0; count < 1000; count += 1 + count / 4)
        for (int shift = 0; shift < 64; shift += 13)
            sorts(count, UINT64_C(0xff00ff00f0ff0301) >> shift);
    for (size_t i = 1; i < sizeof ordered / sizeof *ordered; i++) {
        CHECK(vmf_key_of(ordered[i - 1]) < vmf_key_of(ordered[i]));
        CHECK(vmf_value_of(vmf_key_of(ordered[i])) == ordered[i]);
    }
    vmf_item items[64];
    static const double odd[] = {0, -0.0, 1, 1, NAN, -3, 1e308, -1e308, INFINITY, 5e-324};
    for (size_t i = 0; i < 64; i++)
        items[i] = item((int64_t)(64 - i) * 1000000, odd[i % (sizeof odd / sizeof *odd)]);
    for (size_t count = 0; count <= 64; count++)
        CHECK(!all_of(items, count));
    items[0] = item(INT64_C(1) << 50, 1); /* long before 1970 */
    CHECK(!all_of(items, 2));
    long after = 0;
    for (;; after++) {
        failing_malloc(after);
        const bool told = all_of(items, 20);
        if (!failing_malloc(-1)) {
            CHECK(!told);
            break;
        }
        CHECK(told);
    }
    CHECK(after >= 3); /* order, groups, distances */
    long sketches = 0;
    for (;; sketches++) {
        vmf_sketch sketch = {.pane_ms = 1000, .distinct = true, .quantiles = true};
        failing_malloc(sketches);
        const int failed = sketched(&sketch, odd, sizeof odd / sizeof *odd);
        const bool met = failing_malloc(-1);
        CHECK(failed == met);
        vmf_sketch_clear(&sketch);
        CHECK(sketch.count == 0);
        if (!met)
            break;
    }
    CHECK(sketches >= 100);
    printf("test_features: passed, %ld and %ld allocations failed once each\n", after, sketches);
    return 0;
}
