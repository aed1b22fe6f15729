#include "profile/profile.h"

#include <stdio.h>
#include <stdlib.h>

void vmh_profile_clear(vmh_profile *profile)
{
    vmh_functions_clear(&profile->functions);
    free(profile->nodes);
    free(profile->codes.slots);
    free(profile->children.slots);
    *profile = (vmh_profile){0};
}

int32_t vmh_profile_code(const vmh_profile *profile, uint64_t a, uint64_t b, uint64_t c)
{
    return vmh_index_find(&profile->codes, (const uint64_t[3]){a, b, c});
}

int32_t vmh_profile_learn(vmh_profile *profile, uint64_t a, uint64_t b, uint64_t c, const char *file, const char *name,
                          int first_line, unsigned char *lines, size_t lines_size)
{
    int32_t function = vmh_function_of(&profile->functions, file, name, first_line, &lines, lines_size);
    free(lines);
    if (function < 0 || profile->codes.used >= 4 * (size_t)VMH_FUNCTIONS_MAX
        || !vmh_index_insert(&profile->codes, (const uint64_t[3]){a, b, c}, function))
        profile->full = true;
    return function;
}

int32_t vmh_profile_task(vmh_profile *profile, const char *task, const char *version)
{
    char name[256];
    unsigned char *lines = NULL;
    snprintf(name, sizeof name, "%s@%s", task, version);
    int32_t function = vmh_function_of(&profile->functions, "", name, 0, &lines, 0);
    if (function < 0) {
        profile->full = true;
        return -1;
    }
    return vmh_profile_node_of(profile, -1, function, 0);
}

int32_t vmh_profile_node_of(vmh_profile *profile, int32_t parent, int32_t function, int32_t line)
{
    const uint64_t key[3] = {(uint64_t)(int64_t)parent, (uint64_t)function, (uint64_t)(int64_t)line};
    int32_t found = vmh_index_find(&profile->children, key);
    if (found >= 0)
        return found;
    vmh_profile_node *nodes = profile->node_count == VMH_PROFILE_NODES
                                  ? NULL
                                  : vmh_grown(profile->nodes, &profile->node_room, profile->node_count, sizeof *nodes);
    if (nodes != NULL)
        profile->nodes = nodes;
    if (nodes == NULL || !vmh_index_insert(&profile->children, key, profile->node_count)) {
        profile->full = true;
        return parent;
    }
    profile->nodes[profile->node_count] = (vmh_profile_node){.parent = parent, .function = function, .line = line};
    return profile->node_count++;
}

void vmh_profile_add(vmh_profile *profile, int32_t node, int64_t wall_ns, int64_t cpu_ns)
{
    if (node < 0)
        return;
    profile->nodes[node].samples++;
    profile->nodes[node].wall_ns += wall_ns;
    profile->nodes[node].cpu_ns += cpu_ns;
}
