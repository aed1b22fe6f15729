#include "profile/functions.h"

#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

static size_t start(const vmh_index *index, const uint64_t key[3])
{
    return mix(key[0] ^ mix(key[1] ^ mix(key[2] + 1))) & (index->size - 1);
}

int32_t vmh_index_find(const vmh_index *index, const uint64_t key[3])
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

static void place(vmh_index *index, const uint64_t key[3], int32_t value)
{
    size_t i = start(index, key);
    while (index->slots[i].value >= 0)
        i = (i + 1) & (index->size - 1);
    memcpy(index->slots[i].key, key, sizeof index->slots[i].key);
    index->slots[i].value = value;
    index->used++;
}

bool vmh_index_insert(vmh_index *index, const uint64_t key[3], int32_t value)
{
    if (index->used * 2 >= index->size) {
        vmh_index larger = {.size = index->size == 0 ? 64 : index->size * 2};
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

void *vmh_grown(void *items, size_t *room, int32_t count, size_t size)
{
    if ((size_t)count < *room)
        return items;
    size_t more = *room == 0 ? 64 : *room * 2;
    void *moved = realloc(items, more * size);
    if (moved != NULL)
        *room = more;
    return moved;
}

static uint64_t hash_text(const char *text)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *text != 0; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return hash;
}

int32_t vmh_function_of(vmh_functions *functions, const char *file, const char *name, int first_line,
                        unsigned char **lines, size_t lines_size)
{
    const uint64_t key[3] = {hash_text(file), hash_text(name), (uint64_t)(int64_t)first_line};
    int32_t found = vmh_index_find(&functions->names, key);
    if (found >= 0)
        return found;
    if (functions->count == VMH_FUNCTIONS_MAX)
        return -1;
    vmh_function *items = vmh_grown(functions->items, &functions->room, functions->count, sizeof *items);
    if (items == NULL)
        return -1;
    functions->items = items;
    vmh_function made = {.file = strdup(file), .name = strdup(name), .first_line = first_line};
    if (made.file == NULL || made.name == NULL || !vmh_index_insert(&functions->names, key, functions->count)) {
        free(made.file);
        free(made.name);
        return -1;
    }
    made.lines = *lines;
    made.lines_size = lines_size;
    *lines = NULL;
    items[functions->count] = made;
    return functions->count++;
}

void vmh_functions_clear(vmh_functions *functions)
{
    for (int32_t i = 0; i < functions->count; i++) {
        free(functions->items[i].file);
        free(functions->items[i].name);
        free(functions->items[i].lines);
    }
    free(functions->items);
    free(functions->names.slots);
    *functions = (vmh_functions){0};
}
