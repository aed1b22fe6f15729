#include "profile/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void vmh_profile_clear(vmh_profile *profile)
{
    for (int32_t i = 0; i < profile->function_count; i++) {
        free(profile->functions[i].file);
        free(profile->functions[i].name);
        free(profile->functions[i].lines);
    }
    free(profile->functions);
    free(profile->nodes);
    free(profile->codes.slots);
    free(profile->names.slots);
    free(profile->children.slots);
    *profile = (vmh_profile){0};
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

static size_t start(const vmh_profile_index *index, const uint64_t key[3])
{
    return mix(key[0] ^ mix(key[1] ^ mix(key[2] + 1))) & (index->size - 1);
}

static int32_t find(const vmh_profile_index *index, const uint64_t key[3])
{
    if (index->size == 0)
        return -1;
    for (size_t i = start(index, key);; i = (i + 1) & (index->size - 1)) {
        if (index->slots[i].value < 0)
            return -1;
        if (memcmp(index->slots[i].key, key, sizeof index->slots[i].key) == 0)
            return index->slots[i].value;
    }
}

static void place(vmh_profile_index *index, const uint64_t key[3], int32_t value)
{
    size_t i = start(index, key);
    while (index->slots[i].value >= 0)
        i = (i + 1) & (index->size - 1);
    memcpy(index->slots[i].key, key, sizeof index->slots[i].key);
    index->slots[i].value = value;
    index->used++;
}

/* `key` is not in it. False: no memory, and nothing has changed. */
static bool insert(vmh_profile_index *index, const uint64_t key[3], int32_t value)
{
    if (index->used * 2 >= index->size) {
        vmh_profile_index larger = {.size = index->size == 0 ? 64 : index->size * 2};
        larger.slots = malloc(larger.size * sizeof *larger.slots);
        if (larger.slots == NULL)
            return false;
        for (size_t i = 0; i < larger.size; i++)
            larger.slots[i].value = -1;
        for (size_t i = 0; i < index->size; i++)
            if (index->slots[i].value >= 0)
                place(&larger, index->slots[i].key, index->slots[i].value);
        free(index->slots);
        *index = larger;
    }
    place(index, key, value);
    return true;
}

/* Items of `size` bytes, with room for one more; NULL: no memory, and they lie where they were. */
static void *grown(void *items, size_t *room, int32_t count, size_t size)
{
    if ((size_t)count < *room)
        return items;
    size_t more = *room == 0 ? 64 : *room * 2;
    void *moved = realloc(items, more * size);
    if (moved != NULL)
        *room = more;
    return moved;
}

int32_t vmh_profile_code(const vmh_profile *profile, uint64_t a, uint64_t b, uint64_t c)
{
    return find(&profile->codes, (const uint64_t[3]){a, b, c});
}

static uint64_t hash_text(const char *text)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *text != 0; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return hash;
}

/* The function of this name, made where it is new; takes `lines` over then. Two whose names have equal hashes of 64
 * bits would count as one. */
static int32_t function_of(vmh_profile *profile, const char *file, const char *name, int first_line,
                           unsigned char **lines, size_t lines_size)
{
    const uint64_t key[3] = {hash_text(file), hash_text(name), (uint64_t)(int64_t)first_line};
    int32_t found = find(&profile->names, key);
    if (found >= 0)
        return found;
    if (profile->function_count == VMH_PROFILE_FUNCTIONS)
        return -1;
    vmh_profile_function *functions =
        grown(profile->functions, &profile->function_room, profile->function_count, sizeof *functions);
    if (functions == NULL)
        return -1;
    profile->functions = functions;
    vmh_profile_function made = {.file = strdup(file), .name = strdup(name), .first_line = first_line};
    if (made.file == NULL || made.name == NULL || !insert(&profile->names, key, profile->function_count)) {
        free(made.file);
        free(made.name);
        return -1;
    }
    made.lines = *lines;
    made.lines_size = lines_size;
    *lines = NULL;
    profile->functions[profile->function_count] = made;
    return profile->function_count++;
}

int32_t vmh_profile_learn(vmh_profile *profile, uint64_t a, uint64_t b, uint64_t c, const char *file, const char *name,
                          int first_line, unsigned char *lines, size_t lines_size)
{
    int32_t function = function_of(profile, file, name, first_line, &lines, lines_size);
    free(lines);
    if (function < 0 || profile->codes.used >= 4 * (size_t)VMH_PROFILE_FUNCTIONS
        || !insert(&profile->codes, (const uint64_t[3]){a, b, c}, function))
        profile->full = true;
    return function;
}

int32_t vmh_profile_task(vmh_profile *profile, const char *task, const char *version)
{
    char name[256];
    unsigned char *lines = NULL;
    snprintf(name, sizeof name, "%s@%s", task, version);
    int32_t function = function_of(profile, "", name, 0, &lines, 0);
    if (function < 0) {
        profile->full = true;
        return -1;
    }
    return vmh_profile_node_of(profile, -1, function, 0);
}

int32_t vmh_profile_node_of(vmh_profile *profile, int32_t parent, int32_t function, int32_t line)
{
    const uint64_t key[3] = {(uint64_t)(int64_t)parent, (uint64_t)function, (uint64_t)(int64_t)line};
    int32_t found = find(&profile->children, key);
    if (found >= 0)
        return found;
    vmh_profile_node *nodes = profile->node_count == VMH_PROFILE_NODES
                                  ? NULL
                                  : grown(profile->nodes, &profile->node_room, profile->node_count, sizeof *nodes);
    if (nodes != NULL)
        profile->nodes = nodes;
    if (nodes == NULL || !insert(&profile->children, key, profile->node_count)) {
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
