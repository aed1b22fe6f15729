/* Operators of features: each allocation fails once and is told; windows of nothing, of one event, and of odd numbers.
 */
#include <math.h>
#include <string.h>

#include "check.h"
#include "core/operators.h"

static const double parameters[] = {0, 1, 0.25, -1, 3600, 1e300};
enum { PARAMETERS = sizeof parameters / sizeof *parameters };

/* All operators over the items; whether a pass had no memory. */
static bool all_of(const vmf_item *items, size_t count)
{
    vmf_window window = {.items = items, .count = count, .at_ms = 1800000000000, .span_ms = 86400000};
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

int main(void)
{
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
    printf("test_features: passed, %ld allocations failed once each\n", after);
    return 0;
}
