/* Conditions: symbols, the nodes of the trie, and the ends of sequences. Failed changes are undone. No Python in
 * here. */
#include "core/engine.h"

#include <string.h>

static vmt_status no_memory(const vmt_engine *engine) { return engine->memory.bound_met ? VMT_FULL : VMT_NO_MEMORY; }

static uint64_t text_hash(const vmt_text *text) { return text->hash + text->form; }

static bool same(const char *own, uint32_t size, unsigned form, const vmt_text *text)
{
    return size == text->size && form == text->form && (size == 0 || memcmp(own, text->data, size) == 0);
}

/* A copy owned by the engine; never of size 0, so that NULL means failure. */
static char *copy_of(vmt_engine *engine, const vmt_text *text)
{
    char *copy = vmt_resize(&engine->memory, VMT_OF_CONDITIONS, NULL, 0, text->size + 1);
    if (copy != NULL && text->size != 0)
        memcpy(copy, text->data, text->size);
    return copy;
}

static void copy_free(vmt_engine *engine, char *copy, uint32_t size)
{
    vmt_resize(&engine->memory, VMT_OF_CONDITIONS, copy, (size_t)size + 1, 0);
}

/* ---- symbols */

uint32_t vmt_symbol_find(const vmt_engine *engine, const vmt_text *text, bool page)
{
    uint64_t hash = text_hash(text) * 2 + page;
    uint32_t number = vmt_table_first(&engine->symbols_by_text, vmt_fold(hash));
    while (number != 0) {
        const vmt_symbol *symbol = vmt_symbol_at(engine, number);
        if (symbol->hash == hash && symbol->page == page && same(symbol->text, symbol->size, symbol->form, text))
            return number;
        number = symbol->linked.next;
    }
    return 0;
}

static uint32_t symbol_new(vmt_engine *engine, const vmt_text *text, bool page)
{
    char *copy = copy_of(engine, text);
    uint32_t number = copy == NULL ? 0 : vmt_pool_take(&engine->symbols, &engine->memory);
    if (number == 0) {
        if (copy != NULL)
            copy_free(engine, copy, (uint32_t)text->size);
        return 0;
    }
    vmt_symbol *symbol = vmt_symbol_at(engine, number);
    *symbol = (vmt_symbol){.hash = text_hash(text) * 2 + page,
                           .text = copy,
                           .size = (uint32_t)text->size,
                           .form = (uint16_t)text->form,
                           .page = page};
    symbol->linked.hash = vmt_fold(symbol->hash);
    vmt_table_put(&engine->symbols_by_text, &engine->symbols, &engine->memory, number);
    return number;
}

static void symbol_drop_unused(vmt_engine *engine, uint32_t number)
{
    vmt_symbol *symbol = vmt_symbol_at(engine, number);
    if (symbol->uses != 0)
        return;
    vmt_table_take(&engine->symbols_by_text, &engine->symbols, number);
    copy_free(engine, symbol->text, symbol->size);
    vmt_pool_give(&engine->symbols, number);
}

/* ---- nodes */

static uint32_t node_new(vmt_engine *engine, uint32_t parent, uint32_t symbol_number, bool gap, vmt_level level)
{
    uint32_t number = vmt_pool_take(&engine->nodes, &engine->memory);
    if (number == 0)
        return 0;
    vmt_symbol *symbol = vmt_symbol_at(engine, symbol_number);
    vmt_node *node = vmt_node_at(engine, number);
    *node = (vmt_node){.parent = parent, .symbol = symbol_number, .gap = gap, .level = (uint8_t)level};
    symbol->uses++;
    if (parent == 0) {
        symbol->root[level] = number;
        return number;
    }
    node->linked.hash = vmt_edge_hash(parent, symbol_number, gap);
    vmt_table_put(&engine->nodes_by_edge, &engine->nodes, &engine->memory, number);
    vmt_node *above = vmt_node_at(engine, parent);
    if (gap) {
        above->gap_children++;
        above->gap_mask |= vmt_bit(symbol_number);
        node->gap_next = symbol->gap_nodes[level];
        if (node->gap_next != 0)
            vmt_node_at(engine, node->gap_next)->gap_previous = number;
        symbol->gap_nodes[level] = number;
        symbol->gap_node_count[level]++;
    } else {
        above->strict_children++;
        above->strict_mask |= vmt_bit(symbol_number);
    }
    return number;
}

static void node_drop(vmt_engine *engine, uint32_t number)
{
    vmt_node *node = vmt_node_at(engine, number);
    uint32_t symbol_number = node->symbol;
    vmt_symbol *symbol = vmt_symbol_at(engine, symbol_number);
    if (node->parent == 0) {
        symbol->root[node->level] = 0;
    } else {
        vmt_table_take(&engine->nodes_by_edge, &engine->nodes, number);
        vmt_node *above = vmt_node_at(engine, node->parent);
        if (node->gap) {
            if (--above->gap_children == 0)
                above->gap_mask = 0;
            if (node->gap_next != 0)
                vmt_node_at(engine, node->gap_next)->gap_previous = node->gap_previous;
            if (node->gap_previous != 0)
                vmt_node_at(engine, node->gap_previous)->gap_next = node->gap_next;
            else
                symbol->gap_nodes[node->level] = node->gap_next;
            symbol->gap_node_count[node->level]--;
        } else if (--above->strict_children == 0) {
            above->strict_mask = 0;
        }
    }
    *node = (vmt_node){.parent = 0}; /* matches at this node find neither children nor outputs */
    symbol->uses--;
    vmt_pool_give(&engine->nodes, number);
    symbol_drop_unused(engine, symbol_number);
}

/* Frees the node and its ancestors, as far as they are unused. */
static void prune(vmt_engine *engine, uint32_t number)
{
    while (number != 0) {
        const vmt_node *node = vmt_node_at(engine, number);
        if (node->outputs != 0 || node->strict_children != 0 || node->gap_children != 0)
            return;
        uint32_t above = node->parent;
        node_drop(engine, number);
        number = above;
    }
}

/* ---- sequences */

static void output_drop(vmt_engine *engine, uint32_t number)
{
    vmt_output *output = vmt_output_at(engine, number);
    uint32_t next = output->linked.next, node = output->node;
    if (next != 0)
        vmt_output_at(engine, next)->previous = output->previous;
    if (output->previous != 0)
        vmt_output_at(engine, output->previous)->linked.next = next;
    else
        vmt_node_at(engine, node)->outputs = next;
    vmt_pool_give(&engine->outputs, number);
    prune(engine, node);
}

static bool sequence_add(vmt_engine *engine, const vmt_sequence *sequence, vmt_level level, uint32_t condition)
{
    uint32_t node = 0;
    for (size_t i = 0; i < sequence->count; i++) {
        const vmt_id *id = &sequence->ids[i];
        bool gap = id->gap && node != 0; /* a gap before the first id is redundant */
        uint32_t symbol = vmt_symbol_find(engine, &id->text, id->page);
        if (symbol == 0)
            symbol = symbol_new(engine, &id->text, id->page);
        if (symbol == 0)
            goto failed;
        uint32_t child = node == 0 ? vmt_symbol_at(engine, symbol)->root[level] : vmt_child(engine, node, symbol, gap);
        if (child == 0)
            child = node_new(engine, node, symbol, gap, level);
        if (child == 0) {
            symbol_drop_unused(engine, symbol);
            goto failed;
        }
        node = child;
    }
    uint32_t number = vmt_pool_take(&engine->outputs, &engine->memory);
    if (number == 0)
        goto failed;
    vmt_record *record = vmt_record_at(engine, condition);
    vmt_output *output = vmt_output_at(engine, number);
    vmt_node *last = vmt_node_at(engine, node);
    *output = (vmt_output){
        .linked = {.next = last->outputs}, .node = node, .condition = condition, .of_condition = record->outputs};
    if (last->outputs != 0)
        vmt_output_at(engine, last->outputs)->previous = number;
    last->outputs = number;
    record->outputs = number;
    record->output_count++;
    uint32_t within_ms =
        record->within_ms == 0 || record->within_ms >= VMT_NO_LIMIT ? VMT_NO_LIMIT : (uint32_t)record->within_ms;
    for (; node != 0; node = vmt_node_at(engine, node)->parent)
        if (vmt_node_at(engine, node)->within_ms < within_ms)
            vmt_node_at(engine, node)->within_ms = within_ms;
    return true;
failed:
    prune(engine, node);
    return false;
}

/* ---- conditions */

uint32_t vmt_condition_find(const vmt_engine *engine, const vmt_text *key)
{
    uint64_t hash = text_hash(key);
    uint32_t number = vmt_table_first(&engine->conditions_by_key, vmt_fold(hash));
    while (number != 0) {
        const vmt_record *record = vmt_record_at(engine, number);
        if (record->hash == hash && same(record->key, record->size, record->form, key))
            return number;
        number = record->linked.next;
    }
    return 0;
}

static bool sound(const vmt_condition *condition)
{
    if (condition->count == 0 || condition->count > UINT32_MAX || condition->key.size >= UINT32_MAX)
        return false;
    for (size_t i = 0; i < condition->count; i++) {
        const vmt_sequence *sequence = &condition->sequences[i];
        if (sequence->count == 0 || sequence->count > VMT_MAX_IDS)
            return false;
        for (size_t k = 0; k < sequence->count; k++)
            if (sequence->ids[k].text.size >= UINT32_MAX)
                return false;
    }
    return true;
}

/* Makes room for all that one event can fire, so that feeding needs no memory. */
static bool fired_reserve(vmt_engine *engine)
{
    if (engine->conditions.live <= engine->fired_capacity)
        return true;
    uint32_t capacity = engine->fired_capacity == 0 ? 16 : engine->fired_capacity * 2;
    vmt_fired *fired = vmt_resize(&engine->memory, VMT_OF_CONDITIONS, NULL, 0, (size_t)capacity * sizeof *fired);
    if (fired == NULL)
        return false;
    vmt_resize(&engine->memory, VMT_OF_CONDITIONS, engine->fired, engine->fired_capacity * sizeof *fired, 0);
    engine->fired = fired;
    engine->fired_capacity = capacity;
    engine->fired_count = 0;
    return true;
}

static void sequences_drop(vmt_engine *engine, uint32_t output)
{
    while (output != 0) {
        uint32_t next = vmt_output_at(engine, output)->of_condition;
        output_drop(engine, output);
        output = next;
    }
}

static bool sequences_add(vmt_engine *engine, const vmt_condition *condition, uint32_t number)
{
    for (size_t i = condition->count; i-- > 0;)
        if (!sequence_add(engine, &condition->sequences[i], condition->level, number))
            return false;
    return true;
}

vmt_status vmt_add(vmt_engine *engine, const vmt_condition *condition)
{
    if (!sound(condition))
        return VMT_BAD;
    if (vmt_condition_find(engine, &condition->key) != 0)
        return VMT_KNOWN;
    char *key = copy_of(engine, &condition->key);
    uint32_t number = key == NULL ? 0 : vmt_pool_take(&engine->conditions, &engine->memory);
    vmt_status status = VMT_OK;
    if (number == 0)
        goto failed;
    vmt_record *record = vmt_record_at(engine, number);
    *record = (vmt_record){.hash = text_hash(&condition->key),
                           .within_ms = condition->within_ms,
                           .since = engine->totals.position,
                           .token = condition->token,
                           .key = key,
                           .size = (uint32_t)condition->key.size,
                           .form = (uint16_t)condition->key.form,
                           .level = (uint8_t)condition->level};
    record->linked.hash = vmt_fold(record->hash);
    if (!fired_reserve(engine) || !sequences_add(engine, condition, number))
        goto failed;
    vmt_table_put(&engine->conditions_by_key, &engine->conditions, &engine->memory, number);
    engine->level_conditions[condition->level]++;
    engine->totals.sequences += condition->count;
    return VMT_OK;
failed:
    status = no_memory(engine);
    if (number != 0) {
        sequences_drop(engine, vmt_record_at(engine, number)->outputs);
        *vmt_record_at(engine, number) = (vmt_record){.key = NULL};
        vmt_pool_give(&engine->conditions, number);
    }
    if (key != NULL)
        copy_free(engine, key, (uint32_t)condition->key.size);
    return status;
}

vmt_status vmt_change(vmt_engine *engine, const vmt_condition *condition, void **old_token)
{
    if (!sound(condition))
        return VMT_BAD;
    uint32_t number = vmt_condition_find(engine, &condition->key);
    if (number == 0)
        return VMT_UNKNOWN;
    vmt_record *record = vmt_record_at(engine, number);
    vmt_record before = *record;
    /* The new sequences exist beside the old ones until all of them are added. */
    record->within_ms = condition->within_ms;
    record->outputs = record->output_count = 0;
    if (!sequences_add(engine, condition, number)) {
        vmt_status status = no_memory(engine);
        sequences_drop(engine, record->outputs);
        *record = before;
        return status;
    }
    sequences_drop(engine, before.outputs);
    engine->totals.sequences += condition->count - before.output_count;
    engine->level_conditions[before.level]--;
    engine->level_conditions[condition->level]++;
    record->level = (uint8_t)condition->level;
    record->since = engine->totals.position;
    record->token = condition->token;
    *old_token = before.token;
    return VMT_OK;
}

vmt_status vmt_remove(vmt_engine *engine, vmt_text key, void **token)
{
    uint32_t number = vmt_condition_find(engine, &key);
    if (number == 0)
        return VMT_UNKNOWN;
    vmt_record *record = vmt_record_at(engine, number);
    *token = record->token;
    vmt_table_take(&engine->conditions_by_key, &engine->conditions, number);
    sequences_drop(engine, record->outputs);
    engine->totals.sequences -= record->output_count;
    engine->level_conditions[record->level]--;
    copy_free(engine, record->key, record->size);
    *record = (vmt_record){.key = NULL};
    vmt_pool_give(&engine->conditions, number);
    return VMT_OK;
}

/* ---- explanations */

static void count_waiting(vmt_engine *engine, vmt_visit *visit)
{
    const vmt_match *matches = vmt_matches(visit);
    for (uint32_t i = 0; i < visit->gap_count; i++)
        vmt_node_at(engine, matches[i].node)->waiting++;
    for (uint32_t i = visit->capacity - visit->strict_count; i < visit->capacity; i++) {
        const vmt_node *node = vmt_node_at(engine, matches[i].node);
        if (node->gap_children == 0) /* otherwise it is also counted as a gap match */
            vmt_node_at(engine, matches[i].node)->waiting++;
    }
}

static uint64_t outputs_at(const vmt_engine *engine, const vmt_node *node)
{
    uint64_t count = 0;
    for (uint32_t output = node->outputs; output != 0; output = vmt_output_at(engine, output)->linked.next)
        count++;
    return count;
}

vmt_status vmt_explain(vmt_engine *engine, vmt_text key, vmt_about *about,
                       int (*callback)(void *context, const vmt_step *), void *context)
{
    uint32_t number = vmt_condition_find(engine, &key);
    if (number == 0)
        return VMT_UNKNOWN;
    const vmt_record *record = vmt_record_at(engine, number);
    *about = (vmt_about){.level = record->level,
                         .within_ms = record->within_ms,
                         .fired = record->fired,
                         .since = record->since,
                         .sequences = record->output_count};
    for (uint32_t output = record->outputs; output != 0; output = vmt_output_at(engine, output)->of_condition)
        for (uint32_t at = vmt_output_at(engine, output)->node; at != 0; at = vmt_node_at(engine, at)->parent)
            vmt_node_at(engine, at)->waiting = 0;
    count_waiting(engine, &engine->all);
    for (uint32_t visit = engine->oldest; visit != 0; visit = vmt_visit_at(engine, visit)->newer)
        count_waiting(engine, vmt_visit_at(engine, visit));
    size_t sequence = 0;
    for (uint32_t output = record->outputs; output != 0; output = vmt_output_at(engine, output)->of_condition) {
        uint32_t path[VMT_MAX_IDS];
        size_t length = 0;
        for (uint32_t at = vmt_output_at(engine, output)->node; at != 0; at = vmt_node_at(engine, at)->parent)
            path[length++] = at;
        for (size_t i = 0; i < length; i++) {
            const vmt_node *node = vmt_node_at(engine, path[length - 1 - i]);
            const vmt_symbol *symbol = vmt_symbol_at(engine, node->symbol);
            vmt_step step = {.sequence = sequence,
                             .number = i,
                             .text = {.data = symbol->text, .size = symbol->size, .form = symbol->form},
                             .page = symbol->page,
                             .gap = node->gap,
                             .waiting = node->waiting,
                             .conditions = outputs_at(engine, node),
                             .next = (uint64_t)node->strict_children + node->gap_children};
            if (callback(context, &step) != 0)
                return VMT_OK;
        }
        sequence++;
    }
    return VMT_OK;
}
