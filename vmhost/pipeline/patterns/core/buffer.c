/* The shared buffer: events taken by matches and the paths through them, reference-counted.
 */
#include "core/machine.h"

#include <string.h>

/* The key without an event for longest, except the one being processed, gives up its matches. */
static bool give_up_oldest(vmp_engine *engine)
{
    uint32_t key = engine->oldest;
    if (key != 0 && key == engine->busy)
        key = vmp_key_at(engine, key)->newer;
    if (key == 0)
        return false;
    vmp_key_drop(engine, key, &engine->totals.dropped);
    return true;
}

void *vmp_match_memory(vmp_engine *engine, void *old, size_t old_size, size_t new_size)
{
    for (;;) {
        void *given = vmt_resize(&engine->memory, VMT_OF_MATCHES, old, old_size, new_size);
        if (given != NULL || new_size == 0 || !engine->memory.bound_met || !give_up_oldest(engine))
            return given;
    }
}

uint32_t vmp_match_record(vmp_engine *engine, vmt_pool *pool)
{
    for (;;) {
        uint32_t number = vmt_pool_take(pool, &engine->memory);
        if (number != 0 || !engine->memory.bound_met || !give_up_oldest(engine))
            return number;
    }
}

/* The record of the current event, with the fields that rules look back at; 0: no memory. */
static uint32_t take_event(vmp_engine *engine)
{
    if (engine->taken != 0)
        return engine->taken;
    uint32_t number = vmp_match_record(engine, &engine->events);
    if (number == 0)
        return 0;
    uint32_t count = 0, texts = 0;
    for (uint32_t i = 0; i < engine->kept_count; i++) {
        vmp_value value = vmp_field(engine, engine->kept_fields[i]);
        count += value.kind != VMP_NONE;
        texts += value.kind == VMP_TEXT || value.kind == VMP_BYTES ? value.size : 0;
    }
    uint32_t size = (uint32_t)(count * sizeof(vmp_kept)) + texts;
    vmp_kept *kept = NULL;
    if (size != 0 && (kept = vmp_match_memory(engine, NULL, 0, size)) == NULL) {
        vmt_pool_give(&engine->events, number);
        return 0;
    }
    char *text = (char *)(kept + count);
    vmp_kept *to = kept;
    for (uint32_t i = 0; i < engine->kept_count; i++) {
        vmp_value value = vmp_field(engine, engine->kept_fields[i]);
        if (value.kind == VMP_NONE)
            continue;
        if ((value.kind == VMP_TEXT || value.kind == VMP_BYTES) && value.size != 0) {
            memcpy(text, value.text, value.size);
            value.text = text;
            text += value.size;
        }
        *to++ = (vmp_kept){engine->kept_fields[i], value};
    }
    *vmp_taken_at(engine, number) = (vmp_taken){.references = 0,
                                                .kept_count = count,
                                                .kept_size = size,
                                                .kept = kept,
                                                .id = engine->event->id,
                                                .time_ms = engine->event->time_ms,
                                                .order = engine->order};
    return engine->taken = number;
}

void vmp_event_release(vmp_engine *engine, uint32_t number)
{
    vmp_taken *event = vmp_taken_at(engine, number);
    if (--event->references != 0)
        return;
    if (event->kept != NULL)
        vmt_resize(&engine->memory, VMT_OF_MATCHES, event->kept, event->kept_size, 0);
    if (engine->taken == number)
        engine->taken = 0;
    vmt_pool_give(&engine->events, number);
}

uint32_t vmp_node_new(vmp_engine *engine, uint32_t previous, uint16_t step)
{
    uint32_t depth = previous == 0 ? 1 : vmp_node_at(engine, previous)->depth + 1;
    if (!vmp_reserve(engine, VMT_OF_ENGINE, &engine->path, &engine->path_capacity, depth, sizeof *engine->path))
        return 0;
    uint32_t event = take_event(engine);
    if (event == 0)
        return 0;
    vmp_taken_at(engine, event)->references++;
    uint32_t number = vmp_match_record(engine, &engine->nodes);
    if (number == 0) {
        vmp_event_release(engine, event);
        return 0;
    }
    if (previous != 0)
        vmp_node_at(engine, previous)->references++;
    *vmp_node_at(engine, number) = (vmp_node){1, previous, event, step, depth};
    return number;
}

void vmp_node_keep(vmp_engine *engine, uint32_t node)
{
    if (node != 0)
        vmp_node_at(engine, node)->references++;
}

void vmp_node_release(vmp_engine *engine, uint32_t number)
{
    while (number != 0) {
        vmp_node *node = vmp_node_at(engine, number);
        if (--node->references != 0)
            return;
        uint32_t previous = node->previous;
        vmp_event_release(engine, node->event);
        vmt_pool_give(&engine->nodes, number);
        number = previous;
    }
}
