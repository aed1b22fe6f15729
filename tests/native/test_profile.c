/* The data of a profile: each allocation fails once, its bounds are reached, and time is counted where it belongs. */
#include <stdlib.h>

#include "check.h"
#include "profile/profile.h"

static unsigned char *some_lines(void) { return calloc(4, 1); }

/* Some functions and stacks; if anything fails, the profile stays consistent, and all time is counted. */
static void fill(vmh_profile *profile)
{
    int64_t added = 0, found = 0;
    for (uint64_t i = 0; i < 300; i++) {
        char name[32];
        snprintf(name, sizeof name, "function%d", (int)(i % 150));
        int32_t node = vmh_profile_task(profile, "task", i < 200 ? "1" : "2");
        int32_t function = vmh_profile_code(profile, i, i + 1, i + 2);
        CHECK(function < 0);
        function = vmh_profile_learn(profile, i, i + 1, i + 2, "main.py", name, 7, some_lines(), 4);
        CHECK(function < profile->functions.count);
        if (node < 0 || function < 0)
            continue;
        for (int line = 0; line < 3; line++)
            node = vmh_profile_node_of(profile, node, function, line);
        vmh_profile_add(profile, node, 10, 1);
        added += 10;
    }
    for (int32_t i = 0; i < profile->node_count; i++) {
        CHECK(profile->nodes[i].parent < i && profile->nodes[i].function < profile->functions.count);
        found += profile->nodes[i].wall_ns;
    }
    CHECK(found == added);
}

static void failing_allocations(void)
{
    for (long after = 0;; after++) {
        vmh_profile profile = {0};
        failing_malloc(after);
        fill(&profile);
        bool failed = failing_malloc(-1);
        CHECK(failed || !profile.full);
        if (!failed) {
            CHECK(profile.functions.count == 2 + 150 && vmh_profile_code(&profile, 4, 5, 6) >= 0);
            CHECK(vmh_profile_code(&profile, 4, 5, 7) < 0);
        }
        vmh_profile_clear(&profile);
        CHECK(profile.nodes == NULL && profile.node_count == 0);
        if (!failed)
            break;
    }
}

static void bounds(void)
{
    vmh_profile profile = {0};
    int32_t root = vmh_profile_task(&profile, "task", "1");
    for (int32_t line = 0; line < VMH_PROFILE_NODES + 10; line++)
        vmh_profile_add(&profile, vmh_profile_node_of(&profile, root, 0, line), 1, 1);
    CHECK(profile.node_count == VMH_PROFILE_NODES && profile.full);
    CHECK(profile.nodes[root].samples == 11); /* samples that had no room */
    vmh_profile_add(&profile, -1, 1, 1);
    vmh_profile_clear(&profile);
}

int main(void)
{
    failing_allocations();
    bounds();
    printf("test_profile: passed\n");
    return 0;
}
