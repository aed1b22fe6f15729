/* Matches under way, by visit. Visits are in order of their last event: where a bound is reached, the one without an
 * event for longest gives up its matches. No Python in here. */
#include "core/engine.h"

#include <string.h>

/* ---- fingerprints: 128 bits stand for a visit's id, so that its length costs no memory */

static uint64_t multiplied(uint64_t a, uint64_t b)
{
    __extension__ unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t read_up_to_8(const unsigned char *data, size_t size)
{
    uint64_t value = 0;
    if (size >= 8) {
        memcpy(&value, data, 8);
    } else if (size >= 4) {
        uint32_t low, high;
        memcpy(&low, data, 4);
        memcpy(&high, data + size - 4, 4);
        value = (uint64_t)high << 32 | low;
    } else if (size > 0) {
        value = (uint64_t)data[0] << 16 | (uint64_t)data[size / 2] << 8 | data[size - 1];
    }
    return value;
}

/* One half is the caller's hash, the other is computed as in wyhash (Wang Yi, public domain). */
vmt_fingerprint vmt_fingerprint_of(const vmt_engine *engine, const vmt_text *visit)
{
    static const uint64_t one = UINT64_C(0xa0761d6478bd642f), two = UINT64_C(0xe7037ed1a0b428db);
    const unsigned char *data = visit->data;
    size_t left = visit->size;
    uint64_t value = engine->settings.seed ^ multiplied(visit->size ^ one, visit->form + two);
    for (; left > 16; data += 16, left -= 16) {
        uint64_t a, b;
        memcpy(&a, data, 8);
        memcpy(&b, data + 8, 8);
        value = multiplied(a ^ one, b ^ value);
    }
    uint64_t a = read_up_to_8(data, left), b = left > 8 ? read_up_to_8(data + 8, left - 8) : 0;
    value = multiplied(a ^ two, b ^ value);
    return (vmt_fingerprint){visit->hash, multiplied(value ^ one, engine->settings.seed ^ two)};
}

/* ---- visits */

uint32_t vmt_visit_find(const vmt_engine *engine, vmt_fingerprint id)
{
    uint32_t number = vmt_table_first(&engine->visits_by_id, vmt_fold(id.first));
    while (number != 0) {
        const vmt_visit *visit = vmt_visit_at(engine, number);
        if (visit->first == id.first && visit->second == id.second)
            return number;
        number = visit->linked.next;
    }
    return 0;
}

static void unlink_by_age(vmt_engine *engine, const vmt_visit *visit)
{
    if (visit->older != 0)
        vmt_visit_at(engine, visit->older)->newer = visit->newer;
    else
        engine->oldest = visit->newer;
    if (visit->newer != 0)
        vmt_visit_at(engine, visit->newer)->older = visit->older;
    else
        engine->newest = visit->older;
}

static void link_newest(vmt_engine *engine, uint32_t number)
{
    vmt_visit *visit = vmt_visit_at(engine, number);
    visit->older = engine->newest;
    visit->newer = 0;
    if (engine->newest != 0)
        vmt_visit_at(engine, engine->newest)->newer = number;
    else
        engine->oldest = number;
    engine->newest = number;
}

void vmt_visit_touch(vmt_engine *engine, uint32_t number)
{
    if (engine->newest == number)
        return;
    unlink_by_age(engine, vmt_visit_at(engine, number));
    link_newest(engine, number);
}

static size_t index_bytes(uint32_t capacity) { return capacity < VMT_INDEXED ? 0 : 2 * sizeof(uint32_t) * capacity; }

void vmt_visit_free(vmt_engine *engine, vmt_visit *visit)
{
    engine->matches -= visit->gap_count + visit->strict_count;
    if (visit->capacity > 1) {
        if (visit->capacity >= VMT_INDEXED)
            vmt_resize(&engine->memory, VMT_OF_MATCHES, visit->many.index, index_bytes(visit->capacity), 0);
        vmt_resize(&engine->memory, VMT_OF_MATCHES, visit->many.matches, visit->capacity * sizeof(vmt_match), 0);
    }
    visit->capacity = visit->gap_count = visit->strict_count = 0;
}

void vmt_visit_drop(vmt_engine *engine, uint32_t number)
{
    vmt_visit *visit = vmt_visit_at(engine, number);
    unlink_by_age(engine, visit);
    vmt_table_take(&engine->visits_by_id, &engine->visits, number);
    vmt_visit_free(engine, visit);
    vmt_pool_give(&engine->visits, number);
}

/* Gives up the oldest visit, unless it is the current one. */
static bool make_room(vmt_engine *engine, uint32_t current)
{
    uint32_t victim = engine->oldest;
    if (victim == 0 || victim == current)
        return false;
    const vmt_visit *visit = vmt_visit_at(engine, victim);
    engine->totals.dropped += visit->gap_count + visit->strict_count;
    vmt_visit_drop(engine, victim);
    return true;
}

uint32_t vmt_visit_new(vmt_engine *engine, vmt_fingerprint id)
{
    if (engine->visits.live >= engine->visit_limit)
        make_room(engine, 0);
    uint32_t number = vmt_pool_take(&engine->visits, &engine->memory);
    if (number == 0 && make_room(engine, 0))
        number = vmt_pool_take(&engine->visits, &engine->memory);
    if (number == 0)
        return 0;
    vmt_visit *visit = vmt_visit_at(engine, number);
    *visit = (vmt_visit){.linked = {.hash = vmt_fold(id.first)},
                         .first = id.first,
                         .second = id.second,
                         .capacity = 1,
                         .level = VMT_PAGE};
    vmt_table_put(&engine->visits_by_id, &engine->visits, &engine->memory, number);
    link_newest(engine, number);
    return number;
}

/* ---- the index of large visits: open addressing, at most half full */

static uint32_t index_begin(uint32_t node, uint32_t capacity) { return (node * 0x9E3779B1u >> 7) & (2 * capacity - 1); }

static void index_put(vmt_visit *visit, uint32_t place)
{
    uint32_t last = 2 * visit->capacity - 1, at = index_begin(visit->many.matches[place].node, visit->capacity);
    while (visit->many.index[at] != 0)
        at = (at + 1) & last;
    visit->many.index[at] = place + 1;
}

static void index_again(vmt_visit *visit)
{
    memset(visit->many.index, 0, index_bytes(visit->capacity));
    for (uint32_t i = 0; i < visit->gap_count; i++)
        index_put(visit, i);
}

uint32_t vmt_match_find(vmt_visit *visit, uint32_t node)
{
    const vmt_match *matches = vmt_matches(visit);
    if (visit->capacity < VMT_INDEXED) {
        for (uint32_t i = 0; i < visit->gap_count; i++)
            if (matches[i].node == node)
                return i;
        return UINT32_MAX;
    }
    uint32_t last = 2 * visit->capacity - 1, at = index_begin(node, visit->capacity);
    for (; visit->many.index[at] != 0; at = (at + 1) & last)
        if (matches[visit->many.index[at] - 1].node == node)
            return visit->many.index[at] - 1;
    return UINT32_MAX;
}

/* ---- growing */

/* Limit of visits dropped to make room, which bounds the time of an event. */
enum { VICTIMS = 64 };

static void *resize_for(vmt_engine *engine, uint32_t current, void *old, size_t old_size, size_t new_size)
{
    for (int i = 0;; i++) {
        void *given = vmt_resize(&engine->memory, VMT_OF_MATCHES, old, old_size, new_size);
        if (given != NULL || i == VICTIMS || !make_room(engine, current))
            return given;
    }
}

static bool grow(vmt_engine *engine, vmt_visit *visit, uint32_t number)
{
    uint32_t before = visit->capacity, capacity = before <= 1 ? 4 : before * 2;
    if (before >= VMT_VISIT_MATCHES)
        return false;
    uint32_t *index = NULL;
    if (capacity >= VMT_INDEXED) {
        index = resize_for(engine, number, NULL, 0, index_bytes(capacity));
        if (index == NULL)
            return false;
    }
    vmt_match *matches = resize_for(engine, number, NULL, 0, capacity * sizeof *matches);
    if (matches == NULL) {
        if (index != NULL)
            vmt_resize(&engine->memory, VMT_OF_MATCHES, index, index_bytes(capacity), 0);
        return false;
    }
    const vmt_match *old = vmt_matches(visit);
    if (visit->gap_count != 0)
        memcpy(matches, old, visit->gap_count * sizeof *matches);
    if (visit->strict_count != 0)
        memcpy(matches + capacity - visit->strict_count, old + before - visit->strict_count,
               visit->strict_count * sizeof *matches);
    if (before > 1) {
        if (before >= VMT_INDEXED)
            vmt_resize(&engine->memory, VMT_OF_MATCHES, visit->many.index, index_bytes(before), 0);
        vmt_resize(&engine->memory, VMT_OF_MATCHES, visit->many.matches, before * sizeof *matches, 0);
    }
    visit->capacity = capacity;
    visit->many.matches = matches;
    visit->many.index = index;
    if (index != NULL)
        index_again(visit);
    return true;
}

static bool reserve(vmt_engine *engine, vmt_visit *visit, uint32_t number)
{
    while (engine->matches >= engine->settings.max_matches)
        if (!make_room(engine, number))
            return false;
    return visit->gap_count + visit->strict_count < visit->capacity || grow(engine, visit, number);
}

void vmt_visit_settle(vmt_engine *engine, vmt_visit *visit, uint32_t number)
{
    engine->matches -= visit->strict_count;
    visit->strict_count = 0;
    for (uint32_t i = 0; i < engine->reached_count; i++) {
        const vmt_reached *reached = &engine->reached[i];
        const vmt_node *node = vmt_node_at(engine, reached->node);
        if (node->gap_children != 0) {
            uint32_t place = vmt_match_find(visit, reached->node);
            bool fresh = place == UINT32_MAX;
            if (fresh && !reserve(engine, visit, number)) {
                engine->totals.dropped++;
            } else {
                vmt_match *matches = vmt_matches(visit);
                if (fresh)
                    place = visit->gap_count;
                /* A match that reaches a node later began later, or at the same event. */
                matches[place] = (vmt_match){reached->node, node->gap_mask, reached->start, reached->begun};
                if (fresh) {
                    visit->gap_count++;
                    engine->matches++;
                    if (visit->capacity >= VMT_INDEXED)
                        index_put(visit, place);
                }
            }
        }
        if (node->strict_children != 0) {
            if (!reserve(engine, visit, number)) {
                engine->totals.dropped++;
                continue;
            }
            visit->strict_count++;
            engine->matches++;
            vmt_matches(visit)[visit->capacity - visit->strict_count] =
                (vmt_match){reached->node, node->strict_mask, reached->start, reached->begun};
        }
    }
}

void vmt_visit_sweep(vmt_engine *engine, vmt_visit *visit)
{
    vmt_match *matches = vmt_matches(visit);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < visit->gap_count; i++) {
        const vmt_node *node = vmt_node_at(engine, matches[i].node);
        if (node->gap_children == 0)
            engine->totals.withdrawn++;
        else if (node->within_ms != VMT_NO_LIMIT && vmt_too_old(engine, matches[i].begun, node->within_ms))
            engine->totals.expired++;
        else
            matches[kept++] = matches[i];
    }
    if (kept == visit->gap_count)
        return;
    engine->matches -= visit->gap_count - kept;
    visit->gap_count = kept;
    if (visit->capacity >= VMT_INDEXED)
        index_again(visit);
}
