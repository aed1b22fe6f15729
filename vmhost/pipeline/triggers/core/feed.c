/* Creating and freeing an engine, and the processing of an event. No Python in here. */
#include "core/engine.h"

#include <string.h>

vmt_engine *vmt_engine_new(const vmt_settings *settings)
{
    vmt_engine *engine = settings->allocate(settings->context, NULL, 0, sizeof *engine);
    if (engine == NULL)
        return NULL;
    memset(engine, 0, sizeof *engine);
    engine->settings = *settings;
    engine->memory.allocate = settings->allocate;
    engine->memory.context = settings->context;
    engine->memory.bytes[VMT_OF_ENGINE] = sizeof *engine;
    engine->memory.bounds[VMT_OF_ENGINE] = UINT64_MAX;
    engine->memory.bounds[VMT_OF_CONDITIONS] = settings->max_bytes / 4 * 3;
    engine->memory.bounds[VMT_OF_MATCHES] = settings->max_bytes / 4;
    engine->visit_limit = (uint32_t)(engine->memory.bounds[VMT_OF_MATCHES] / 2 / (sizeof(vmt_visit) + 8)) + 1;
    engine->totals.position = INT64_MIN;
    engine->all.level = VMT_TIME;
    vmt_pool_begin(&engine->symbols, sizeof(vmt_symbol), VMT_OF_CONDITIONS);
    vmt_pool_begin(&engine->nodes, sizeof(vmt_node), VMT_OF_CONDITIONS);
    vmt_pool_begin(&engine->outputs, sizeof(vmt_output), VMT_OF_CONDITIONS);
    vmt_pool_begin(&engine->conditions, sizeof(vmt_record), VMT_OF_CONDITIONS);
    vmt_pool_begin(&engine->visits, sizeof(vmt_visit), VMT_OF_MATCHES);
    vmt_memory *memory = &engine->memory;
    if (!vmt_table_begin(&engine->symbols_by_text, memory, VMT_OF_CONDITIONS, 2)
        || !vmt_table_begin(&engine->nodes_by_edge, memory, VMT_OF_CONDITIONS, 4)
        || !vmt_table_begin(&engine->conditions_by_key, memory, VMT_OF_CONDITIONS, 2)
        || !vmt_table_begin(&engine->visits_by_id, memory, VMT_OF_MATCHES, 2)) {
        vmt_engine_free(engine, NULL);
        return NULL;
    }
    return engine;
}

void vmt_engine_free(vmt_engine *engine, void (*release)(void *token))
{
    vmt_memory *memory = &engine->memory;
    while (engine->oldest != 0)
        vmt_visit_drop(engine, engine->oldest);
    vmt_visit_free(engine, &engine->all);
    for (uint32_t i = 1; i < engine->conditions.begun; i++) {
        const vmt_record *record = vmt_record_at(engine, i);
        if (record->key == NULL)
            continue;
        release(record->token);
        vmt_resize(memory, VMT_OF_CONDITIONS, record->key, (size_t)record->size + 1, 0);
    }
    for (uint32_t i = 1; i < engine->symbols.begun; i++) {
        const vmt_symbol *symbol = vmt_symbol_at(engine, i);
        if (symbol->uses != 0)
            vmt_resize(memory, VMT_OF_CONDITIONS, symbol->text, (size_t)symbol->size + 1, 0);
    }
    vmt_resize(memory, VMT_OF_CONDITIONS, engine->fired, engine->fired_capacity * sizeof *engine->fired, 0);
    vmt_resize(memory, VMT_OF_MATCHES, engine->reached, engine->reached_capacity * sizeof *engine->reached, 0);
    vmt_table_end(&engine->visits_by_id, memory);
    vmt_table_end(&engine->conditions_by_key, memory);
    vmt_table_end(&engine->nodes_by_edge, memory);
    vmt_table_end(&engine->symbols_by_text, memory);
    vmt_pool_end(&engine->visits, memory);
    vmt_pool_end(&engine->conditions, memory);
    vmt_pool_end(&engine->outputs, memory);
    vmt_pool_end(&engine->nodes, memory);
    vmt_pool_end(&engine->symbols, memory);
    engine->settings.allocate(engine->settings.context, engine, sizeof *engine, 0);
}

/* The clock never goes back: an earlier time counts as the latest. One that is far behind means that the device's clock
 * was set; the engine's continues from where it is. Only differences are used, so it may wrap. */
static void clock_move(vmt_engine *engine, int64_t time_ms)
{
    uint64_t time = (uint64_t)time_ms + engine->ahead;
    int64_t forward = (int64_t)(time - engine->clock);
    if (engine->totals.events == 0 && engine->clock == 0) {
        engine->clock = time;
    } else if (forward >= 0) {
        engine->clock = time;
    } else if (forward < -engine->settings.max_back_ms) {
        engine->ahead += 0 - (uint64_t)forward;
        engine->totals.clock_sets++;
    }
}

static void fire(vmt_engine *engine, const vmt_node *node, int64_t start, uint64_t begun)
{
    for (uint32_t number = node->outputs; number != 0;) {
        const vmt_output *output = vmt_output_at(engine, number);
        vmt_record *record = vmt_record_at(engine, output->condition);
        number = output->linked.next;
        if (start <= record->since || (record->within_ms != 0 && vmt_too_old(engine, begun, record->within_ms)))
            continue;
        if (record->last_event == engine->totals.events) {
            vmt_fired *before = &engine->fired[record->place];
            if (before->start < start)
                before->start = start;
            continue;
        }
        record->last_event = engine->totals.events;
        record->fired++;
        record->place = engine->fired_count;
        engine->fired[engine->fired_count++] = (vmt_fired){record->token, start};
    }
}

static void reached_add(vmt_engine *engine, uint32_t node, int64_t start, uint64_t begun)
{
    if (engine->reached_count == engine->reached_capacity) {
        uint32_t capacity = engine->reached_capacity == 0 ? 64 : engine->reached_capacity * 2;
        vmt_reached *reached = vmt_resize(&engine->memory, VMT_OF_MATCHES, engine->reached,
                                          engine->reached_capacity * sizeof *reached, capacity * sizeof *reached);
        if (reached == NULL) {
            engine->totals.dropped++;
            return;
        }
        engine->reached = reached;
        engine->reached_capacity = capacity;
    }
    engine->reached[engine->reached_count++] = (vmt_reached){node, start, begun};
}

/* Moves a match to the node. */
static inline void reach(vmt_engine *engine, uint32_t number, int64_t start, uint64_t begun)
{
    const vmt_node *node = vmt_node_at(engine, number);
    if (node->within_ms != VMT_NO_LIMIT && vmt_too_old(engine, begun, node->within_ms))
        return;
    if (node->outputs != 0)
        fire(engine, node, start, begun);
    if (node->strict_children != 0 || node->gap_children != 0)
        reached_add(engine, number, start, begun);
}

/* Moves the visit's matches along the symbol. Gap matches are tested one by one, by their masks; if there are many more
 * of them than nodes that the symbol leads to, these nodes are looked up instead. */
static void follow(vmt_engine *engine, vmt_visit *visit, uint32_t symbol_number)
{
    const vmt_match *matches = vmt_matches(visit), *end = matches + visit->capacity;
    uint32_t bit = vmt_bit(symbol_number), child;
    for (const vmt_match *match = end - visit->strict_count; match < end; match++)
        if ((match->mask & bit) != 0 && (child = vmt_child(engine, match->node, symbol_number, false)) != 0)
            reach(engine, child, match->start, match->begun);
    const vmt_symbol *symbol = vmt_symbol_at(engine, symbol_number);
    if (symbol->gap_node_count[visit->level] == 0)
        return;
    if (visit->capacity >= VMT_INDEXED && visit->gap_count / 8 > symbol->gap_node_count[visit->level]) {
        for (uint32_t node = symbol->gap_nodes[visit->level]; node != 0; node = vmt_node_at(engine, node)->gap_next) {
            uint32_t place = vmt_match_find(visit, vmt_node_at(engine, node)->parent);
            if (place != UINT32_MAX)
                reach(engine, node, matches[place].start, matches[place].begun);
        }
        return;
    }
    end = matches + visit->gap_count;
    for (const vmt_match *match = matches; match < end; match++)
        if ((match->mask & bit) != 0 && (child = vmt_child(engine, match->node, symbol_number, true)) != 0)
            reach(engine, child, match->start, match->begun);
}

static void step_page(vmt_engine *engine, const vmt_event *event, uint32_t name, uint32_t page)
{
    /* Without a visit under way or a sequence that begins here there is nothing to do. */
    uint32_t begins[] = {name == 0 ? 0 : vmt_symbol_at(engine, name)->root[VMT_PAGE],
                         page == 0 ? 0 : vmt_symbol_at(engine, page)->root[VMT_PAGE]};
    if (engine->oldest == 0 && begins[0] == 0 && begins[1] == 0)
        return;
    vmt_fingerprint id = vmt_fingerprint_of(engine, &event->visit);
    uint32_t number = vmt_visit_find(engine, id);
    vmt_visit *visit = number == 0 ? NULL : vmt_visit_at(engine, number);
    if (visit != NULL) {
        if (name != 0)
            follow(engine, visit, name);
        if (page != 0)
            follow(engine, visit, page);
    }
    for (int i = 0; i < 2; i++)
        if (begins[i] != 0)
            reach(engine, begins[i], event->position, engine->clock);
    if (visit == NULL) {
        if (engine->reached_count == 0)
            return;
        number = vmt_visit_new(engine, id);
        if (number == 0) {
            engine->totals.dropped += engine->reached_count;
            return;
        }
        visit = vmt_visit_at(engine, number);
    } else {
        vmt_visit_touch(engine, number);
    }
    vmt_visit_settle(engine, visit, number);
    if (visit->gap_count + visit->strict_count == 0)
        vmt_visit_drop(engine, number);
}

static void step_time(vmt_engine *engine, const vmt_event *event, uint32_t name, uint32_t page)
{
    uint32_t symbols[] = {name, page};
    for (int i = 0; i < 2; i++)
        if (symbols[i] != 0 && engine->all.capacity != 0)
            follow(engine, &engine->all, symbols[i]);
    for (int i = 0; i < 2; i++) {
        uint32_t begin = symbols[i] == 0 ? 0 : vmt_symbol_at(engine, symbols[i])->root[VMT_TIME];
        if (begin != 0)
            reach(engine, begin, event->position, engine->clock);
    }
    vmt_visit_settle(engine, &engine->all, 0);
}

vmt_status vmt_feed(vmt_engine *engine, const vmt_event *event, const vmt_fired **fired, size_t *count)
{
    if (event->position <= engine->totals.position)
        return VMT_POSITION;
    clock_move(engine, event->time_ms);
    engine->totals.position = event->position;
    engine->totals.events++;
    engine->fired_count = 0;
    uint32_t name = vmt_symbol_find(engine, &event->name, false);
    uint32_t page = event->page.size == 0 ? 0 : vmt_symbol_find(engine, &event->page, true);
    if (event->visit.size == 0)
        engine->totals.outside++;
    else if (engine->level_conditions[VMT_PAGE] != 0 || engine->oldest != 0) {
        engine->reached_count = 0;
        step_page(engine, event, name, page);
    }
    if (engine->level_conditions[VMT_TIME] != 0 || engine->all.gap_count + engine->all.strict_count != 0) {
        engine->reached_count = 0;
        step_time(engine, event, name, page);
    }
    engine->totals.fired += engine->fired_count;
    *fired = engine->fired;
    *count = engine->fired_count;
    return VMT_OK;
}

void vmt_end_visit(vmt_engine *engine, vmt_text text)
{
    uint32_t number = vmt_visit_find(engine, vmt_fingerprint_of(engine, &text));
    if (number == 0)
        return;
    const vmt_visit *visit = vmt_visit_at(engine, number);
    engine->totals.ended += visit->gap_count + visit->strict_count;
    vmt_visit_drop(engine, number);
}

/* Visits per call: well below a millisecond. */
enum { SWEPT = 10000 };

void vmt_advance(vmt_engine *engine, int64_t time_ms)
{
    clock_move(engine, time_ms);
    vmt_visit_sweep(engine, &engine->all);
    for (int i = 0; i < SWEPT && engine->hand < engine->visits.begun; i++, engine->hand++) {
        if (engine->hand == 0)
            continue;
        vmt_visit *visit = vmt_visit_at(engine, engine->hand);
        if (visit->capacity == 0)
            continue;
        vmt_visit_sweep(engine, visit);
        if (visit->gap_count + visit->strict_count == 0)
            vmt_visit_drop(engine, engine->hand);
    }
    if (engine->hand >= engine->visits.begun)
        engine->hand = 0;
}

vmt_statistics vmt_engine_statistics(const vmt_engine *engine)
{
    vmt_statistics totals = engine->totals;
    totals.conditions = engine->conditions.live;
    totals.nodes = engine->nodes.live;
    totals.symbols = engine->symbols.live;
    totals.visits = engine->visits.live;
    totals.matches = engine->matches;
    totals.condition_bytes = engine->memory.bytes[VMT_OF_CONDITIONS];
    totals.match_bytes = engine->memory.bytes[VMT_OF_MATCHES];
    for (int kind = 0; kind < VMT_KINDS; kind++)
        totals.bytes += engine->memory.bytes[kind];
    return totals;
}
