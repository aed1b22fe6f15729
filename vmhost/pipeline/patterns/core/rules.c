/* Adding and removing rules: a description is validated, copied into one block, and indexed by names of events.
 */
#include "core/machine.h"

#include <string.h>

static uint64_t mixed(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

void vmp_text_rehash(const vmp_engine *engine, vmt_text *text)
{
    const char *data = text->data;
    uint64_t hash = engine->settings.seed ^ text->size, piece;
    size_t left = text->size;
    for (; left > 8; left -= 8, data += 8) {
        memcpy(&piece, data, 8);
        hash = mixed(hash ^ piece, UINT64_C(0x9E3779B97F4A7C15));
    }
    piece = 0;
    if (left != 0)
        memcpy(&piece, data, left);
    text->hash = mixed(hash ^ piece, UINT64_C(0xD6E8FEB86659FD93));
    text->form = 1;
}

bool vmp_text_equal(const vmt_text *a, const vmt_text *b)
{
    return a->hash == b->hash && a->size == b->size && a->form == b->form
           && (a->size == 0 || memcmp(a->data, b->data, a->size) == 0);
}

bool vmp_text_copy(vmp_engine *engine, vmt_kind kind, vmt_text *to, const vmt_text *from)
{
    *to = *from;
    to->data = NULL;
    if (from->size == 0)
        return true;
    void *given = kind == VMT_OF_MATCHES ? vmp_match_memory(engine, NULL, 0, from->size)
                                         : vmt_resize(&engine->memory, kind, NULL, 0, from->size);
    if (given == NULL)
        return false;
    memcpy(given, from->data, from->size);
    to->data = given;
    return true;
}

void vmp_text_free(vmp_engine *engine, vmt_kind kind, vmt_text *text)
{
    if (text->data != NULL)
        vmt_resize(&engine->memory, kind, (void *)text->data, text->size, 0);
    text->data = NULL;
}

bool vmp_reserve(vmp_engine *engine, vmt_kind kind, void *items, uint32_t *capacity, uint32_t wanted, size_t size)
{
    if (wanted <= *capacity)
        return true;
    uint32_t least = kind == VMT_OF_MATCHES ? 2 : 8;
    uint32_t more = *capacity < least ? least : *capacity > UINT32_MAX / 2 ? UINT32_MAX : *capacity * 2;
    if (more < wanted)
        more = wanted;
    void *old;
    memcpy(&old, items, sizeof old);
    void *given = kind == VMT_OF_MATCHES ? vmp_match_memory(engine, old, *capacity * size, more * size)
                                         : vmt_resize(&engine->memory, kind, old, *capacity * size, more * size);
    if (given == NULL)
        return false;
    memcpy(items, &given, sizeof given);
    *capacity = more;
    return true;
}

/* ---- names */

uint32_t vmp_name_find(const vmp_engine *engine, const vmt_text *text)
{
    uint32_t number = vmt_table_first(&engine->names_by_text, vmp_text_hash(text));
    while (number != 0) {
        const vmp_name *name = vmp_name_at(engine, number);
        if (vmp_text_equal(&name->text, text))
            return number;
        number = name->linked.next;
    }
    return 0;
}

static uint32_t name_use(vmp_engine *engine, const vmt_text *given)
{
    vmt_text hashed = *given, *text = &hashed;
    vmp_text_rehash(engine, text);
    uint32_t number = vmp_name_find(engine, text);
    if (number == 0) {
        number = vmt_pool_take(&engine->names, &engine->memory);
        if (number == 0)
            return 0;
        vmp_name *name = vmp_name_at(engine, number);
        memset(name, 0, sizeof *name);
        if (!vmp_text_copy(engine, VMT_OF_CONDITIONS, &name->text, text)) {
            vmt_pool_give(&engine->names, number);
            return 0;
        }
        name->linked.hash = vmp_text_hash(text);
        vmt_table_put(&engine->names_by_text, &engine->names, &engine->memory, number);
    }
    vmp_name_at(engine, number)->uses++;
    return number;
}

static void name_leave(vmp_engine *engine, uint32_t number)
{
    vmp_name *name = vmp_name_at(engine, number);
    if (--name->uses != 0)
        return;
    vmt_table_take(&engine->names_by_text, &engine->names, number);
    vmp_text_free(engine, VMT_OF_CONDITIONS, &name->text);
    vmt_resize(&engine->memory, VMT_OF_CONDITIONS, name->begins, name->begin_capacity * sizeof *name->begins, 0);
    vmt_pool_give(&engine->names, number);
}

static void listed_out(uint32_t *list, uint32_t *count, uint32_t number)
{
    for (uint32_t i = 0; i < *count; i++) {
        if (list[i] == number) {
            list[i] = list[--*count];
            return;
        }
    }
}

/* ---- descriptions */

enum { MAX_WAYS = 65536 };

/* The number of values that the operation pops; it pushes one. */
static int takes(const vmp_op *op)
{
    switch ((vmp_operation)op->operation) {
    case VMP_CONSTANT:
    case VMP_FIELD:
    case VMP_HAS:
    case VMP_GATHER: return 0;
    case VMP_NEGATE:
    case VMP_NOT:
    case VMP_SIZE:
    case VMP_TO_INT:
    case VMP_TO_UINT:
    case VMP_TO_DOUBLE:
    case VMP_TO_DYN:
    case VMP_KIND_IS: return 1;
    case VMP_CHOOSE: return 3;
    case VMP_IN: return op->a < VMP_STACK ? (int)op->a + 1 : VMP_STACK + 1;
    default: return 2;
    }
}

static bool program_is_good(const vmp_rule_description *rule, const vmp_predicate *predicate)
{
    if (predicate->first > rule->operation_count || predicate->count > rule->operation_count - predicate->first
        || predicate->count == 0)
        return false;
    int depth = 0;
    for (uint32_t i = 0; i < predicate->count; i++) {
        const vmp_op *op = &rule->operations[predicate->first + i];
        if (op->operation >= VMP_OPERATION_COUNT || takes(op) > depth)
            return false;
        if (op->operation == VMP_CONSTANT && op->a >= rule->constant_count)
            return false;
        if ((op->operation == VMP_FIELD || op->operation == VMP_HAS) && op->a >= VMP_NO_FIELD)
            return false;
        if (op->operation == VMP_GATHER && (!predicate->gathers || op->c >= VMP_GATHERS || op->a > VMP_NO_FIELD))
            return false;
        if (op->operation == VMP_COMPARE && op->a > 5)
            return false;
        depth += 1 - takes(op);
        if (depth > VMP_STACK)
            return false;
    }
    return depth == 1;
}

static bool codes_are_good(const vmp_rule_description *rule, const int16_t *codes, size_t count)
{
    int depth = 0;
    for (size_t i = 0; i < count; i++) {
        int needed = codes[i] >= 0 || codes[i] == VMP_TRUE ? 0 : codes[i] == VMP_NEGATE_IT ? 1 : 2;
        if (codes[i] < VMP_EITHER || (codes[i] >= 0 && (size_t)codes[i] >= rule->predicate_count) || needed > depth)
            return false;
        depth += 1 - needed;
        if (depth > VMP_STACK)
            return false;
    }
    return count == 0 || depth == 1;
}

/* For each state, an upper bound of the edges that one event is tested against; returns the largest. 0: states proceed
 * in a cycle, or there are more than MAX_WAYS. */
static uint32_t longest_way(const vmp_rule *rule, uint32_t *ways)
{
    uint32_t left = rule->state_count, longest = 0;
    memset(ways, 0, rule->state_count * sizeof *ways);
    for (uint32_t round = 0; left != 0 && round <= rule->state_count; round++) {
        for (uint32_t s = 0; s < rule->state_count; s++) {
            if (ways[s] != 0)
                continue;
            uint64_t all = 1;
            for (uint32_t e = rule->first_edge[s]; e < rule->first_edge[s + 1]; e++) {
                const vmp_edge *edge = &rule->edges[e];
                all += 1;
                if (edge->action != VMP_PROCEED)
                    continue;
                if (ways[edge->target] == 0) {
                    all = 0;
                    break;
                }
                all += ways[edge->target];
                if (all > MAX_WAYS)
                    return 0;
            }
            if (all != 0) {
                ways[s] = (uint32_t)all;
                longest = all > longest ? (uint32_t)all : longest;
                left--;
            }
        }
    }
    return left == 0 ? longest : 0;
}

static bool description_is_good(const vmp_rule_description *rule)
{
    size_t edges = 0, codes = 0;
    if (rule->state_count == 0 || rule->state_count > UINT16_MAX || rule->start >= rule->state_count
        || rule->space >= VMP_SPACES || rule->skip > VMP_TO_LAST || rule->within_ms < 0
        || rule->predicate_count > INT16_MAX || rule->edge_count > UINT32_MAX || rule->code_count > UINT32_MAX)
        return false;
    for (size_t i = 0; i < rule->state_count; i++) {
        edges += rule->states[i].edges;
        if (rule->states[i].kind > VMP_PENDING || rule->states[i].step >= rule->steps || rule->states[i].window_ms < 0)
            return false;
    }
    if (edges != rule->edge_count)
        return false;
    for (size_t i = 0; i < rule->edge_count; i++) {
        const vmp_edge *edge = &rule->edges[i];
        if (edge->action > VMP_PROCEED || edge->target >= rule->state_count || edge->codes > rule->code_count - codes
            || !codes_are_good(rule, rule->codes + codes, edge->codes))
            return false;
        codes += edge->codes;
    }
    if (codes != rule->code_count)
        return false;
    for (size_t i = 0; i < rule->predicate_count; i++)
        if (!rule->predicates[i].named && !program_is_good(rule, &rule->predicates[i]))
            return false;
    for (size_t i = 0; i < rule->keep_count; i++)
        if (rule->keeps[i] >= VMP_NO_FIELD)
            return false;
    return true;
}

typedef struct {
    char *at; /* NULL while only sizes are counted */
    size_t size;
} block;

/* The next `size` bytes of a block. */
static void *part(block *all, size_t size)
{
    void *here = all->at == NULL ? NULL : all->at + all->size;
    all->size += (size + 7) / 8 * 8;
    return here;
}

static void lay_out(vmp_rule *rule, const vmp_rule_description *description, block *all)
{
    size_t texts = description->key.size;
    for (size_t i = 0; i < description->constant_count; i++)
        if (description->constants[i].kind == VMP_TEXT || description->constants[i].kind == VMP_BYTES)
            texts += description->constants[i].size;
    rule->states = part(all, description->state_count * sizeof *rule->states);
    rule->first_edge = part(all, (description->state_count + 1) * sizeof *rule->first_edge);
    rule->edges = part(all, description->edge_count * sizeof *rule->edges);
    rule->takes = part(all, description->edge_count * sizeof *rule->takes);
    rule->first_code = part(all, (description->edge_count + 1) * sizeof *rule->first_code);
    rule->codes = part(all, description->code_count * sizeof *rule->codes);
    rule->tests = part(all, description->predicate_count * sizeof *rule->tests);
    rule->operations = part(all, description->operation_count * sizeof *rule->operations);
    rule->constants = part(all, description->constant_count * sizeof *rule->constants);
    rule->names = part(all, (description->begin_count + description->listen_count + description->predicate_count)
                                * sizeof *rule->names);
    rule->keeps = part(all, description->keep_count * sizeof *rule->keeps);
    rule->key.data = part(all, texts);
}

static void *copied(void *to, const void *from, size_t size)
{
    if (size != 0)
        memcpy(to, from, size);
    return (char *)to + size;
}

static void fill(vmp_rule *rule, const vmp_rule_description *description)
{
    copied(rule->states, description->states, description->state_count * sizeof *description->states);
    copied(rule->edges, description->edges, description->edge_count * sizeof *description->edges);
    copied(rule->codes, description->codes, description->code_count * sizeof *description->codes);
    copied(rule->operations, description->operations, description->operation_count * sizeof *description->operations);
    copied(rule->constants, description->constants, description->constant_count * sizeof *description->constants);
    copied(rule->keeps, description->keeps, description->keep_count * sizeof *description->keeps);
    rule->first_edge[0] = rule->first_code[0] = 0;
    for (size_t i = 0; i < description->state_count; i++)
        rule->first_edge[i + 1] = rule->first_edge[i] + description->states[i].edges;
    for (size_t i = 0; i < description->state_count; i++)
        for (uint32_t e = rule->first_edge[i]; e < rule->first_edge[i + 1]; e++)
            rule->takes[e] = description->states[i].step;
    for (size_t i = 0; i < description->edge_count; i++)
        rule->first_code[i + 1] = rule->first_code[i] + description->edges[i].codes;
    char *text = copied((void *)rule->key.data, description->key.data, description->key.size);
    for (size_t i = 0; i < description->constant_count; i++) {
        vmp_value *constant = &rule->constants[i];
        if (constant->kind == VMP_TEXT || constant->kind == VMP_BYTES) {
            char *next = copied(text, constant->text, constant->size);
            constant->text = text;
            text = next;
        }
    }
}

/* ---- adding */

static bool keep_fields(vmp_engine *engine, const uint32_t *fields, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t k = 0;
        while (k < engine->kept_count && engine->kept_fields[k] != fields[i])
            k++;
        if (k == engine->kept_count) {
            if (k == sizeof engine->kept_fields / sizeof *engine->kept_fields) {
                while (i-- > 0)
                    for (k = 0; k < engine->kept_count; k++)
                        engine->kept_uses[k] -= engine->kept_fields[k] == fields[i];
                return false;
            }
            engine->kept_fields[k] = fields[i];
            engine->kept_uses[k] = 0;
            engine->kept_count++;
        }
        engine->kept_uses[k]++;
    }
    return true;
}

static void leave_fields(vmp_engine *engine, const vmp_rule *rule)
{
    for (uint32_t i = 0; i < rule->keep_count; i++)
        for (uint32_t k = 0; k < engine->kept_count; k++)
            engine->kept_uses[k] -= engine->kept_fields[k] == rule->keeps[i];
    uint32_t kept = 0;
    for (uint32_t k = 0; k < engine->kept_count; k++) {
        if (engine->kept_uses[k] != 0) {
            engine->kept_fields[kept] = engine->kept_fields[k];
            engine->kept_uses[kept++] = engine->kept_uses[k];
        }
    }
    engine->kept_count = kept;
}

/* Makes room for all fields up to the highest one that the rule uses. */
static bool fields_fit(vmp_engine *engine, const vmp_rule_description *description)
{
    uint32_t wanted = 0;
    for (size_t i = 0; i < description->operation_count; i++) {
        const vmp_op *op = &description->operations[i];
        bool field = op->operation == VMP_FIELD || op->operation == VMP_HAS || op->operation == VMP_GATHER;
        if (field && op->a < VMP_NO_FIELD && op->a >= wanted)
            wanted = op->a + 1;
    }
    for (size_t i = 0; i < description->keep_count; i++)
        wanted = description->keeps[i] >= wanted ? description->keeps[i] + 1 : wanted;
    uint32_t had = engine->field_capacity, capacity = had;
    if (!vmp_reserve(engine, VMT_OF_ENGINE, &engine->fields, &capacity, wanted, sizeof *engine->fields))
        return false;
    if (capacity == had)
        return true;
    uint64_t *seen =
        vmt_resize(&engine->memory, VMT_OF_ENGINE, engine->field_seen, had * sizeof *seen, capacity * sizeof *seen);
    if (seen == NULL) { /* shrink the fields back: both arrays have one capacity */
        void *fields = vmt_resize(&engine->memory, VMT_OF_ENGINE, engine->fields, capacity * sizeof *engine->fields,
                                  had * sizeof *engine->fields);
        if (fields != NULL || had == 0)
            engine->fields = fields;
        else
            engine->memory.bytes[VMT_OF_ENGINE] -= (capacity - had) * sizeof *engine->fields;
        return false;
    }
    memset(seen + had, 0, (capacity - had) * sizeof *seen);
    engine->field_seen = seen;
    engine->field_capacity = capacity;
    return true;
}

static void forget_names(vmp_engine *engine, vmp_rule *rule, uint32_t number)
{
    for (uint32_t i = 0; i < rule->name_count; i++) {
        vmp_name *name = vmp_name_at(engine, rule->names[i]);
        if (i < rule->begin_count)
            listed_out(name->begins, &name->begin_count, number);
        name_leave(engine, rule->names[i]);
    }
    if (rule->begins_any)
        listed_out(engine->any_begins, &engine->any_count, number);
}

static bool use_names(vmp_engine *engine, vmp_rule *rule, uint32_t number, const vmp_rule_description *description)
{
    rule->mask = rule->listens_any ? ~UINT64_C(0) : 0;
    for (size_t i = 0; i < description->begin_count + description->listen_count; i++) {
        bool begins = i < description->begin_count;
        uint32_t used =
            name_use(engine, begins ? &description->begins[i] : &description->listens[i - description->begin_count]);
        if (used == 0)
            return false;
        rule->names[rule->name_count++] = used;
        rule->mask |= vmp_bit(used);
        vmp_name *name = vmp_name_at(engine, used);
        if (begins) {
            rule->begin_count++;
            if (!vmp_reserve(engine, VMT_OF_CONDITIONS, &name->begins, &name->begin_capacity, name->begin_count + 1,
                             sizeof *name->begins))
                return false;
            name->begins[name->begin_count++] = number;
        }
    }
    for (size_t i = 0; i < description->predicate_count; i++) {
        const vmp_predicate *predicate = &description->predicates[i];
        vmp_test *test = &rule->tests[i];
        *test = (vmp_test){predicate->named, predicate->gathers, false, 0, predicate->first, predicate->count, 0};
        if (predicate->named) {
            test->name = name_use(engine, &predicate->name);
            if (test->name == 0)
                return false;
            rule->names[rule->name_count++] = test->name;
        }
    }
    if (rule->begins_any) {
        if (!vmp_reserve(engine, VMT_OF_CONDITIONS, &engine->any_begins, &engine->any_capacity, engine->any_count + 1,
                         sizeof *engine->any_begins))
            return false;
        engine->any_begins[engine->any_count++] = number;
    }
    return true;
}

uint32_t vmp_rule_find(const vmp_engine *engine, const vmt_text *key)
{
    uint32_t number = vmt_table_first(&engine->rules_by_key, vmp_text_hash(key));
    while (number != 0) {
        const vmp_rule *rule = vmp_rule_at(engine, number);
        if (vmp_text_equal(&rule->key, key))
            return number;
        number = rule->linked.next;
    }
    return 0;
}

static vmp_status no_room(const vmp_engine *engine) { return engine->memory.bound_met ? VMP_FULL : VMP_NO_MEMORY; }

vmp_status vmp_add(vmp_engine *engine, const vmp_rule_description *given)
{
    vmp_rule_description hashed = *given, *description = &hashed;
    vmp_text_rehash(engine, &description->key);
    if (!description_is_good(description))
        return VMP_BAD;
    if (vmp_rule_find(engine, &description->key) != 0)
        return VMP_KNOWN;
    engine->memory.bound_met = false;
    uint32_t number = vmt_pool_take(&engine->rules, &engine->memory);
    if (number == 0)
        return no_room(engine);
    vmp_rule *rule = vmp_rule_at(engine, number);
    memset(rule, 0, sizeof *rule);
    block all = {0};
    lay_out(rule, description, &all);
    rule->block_size = all.size;
    rule->block = vmt_resize(&engine->memory, VMT_OF_CONDITIONS, NULL, 0, all.size);
    if (rule->block == NULL) {
        vmt_pool_give(&engine->rules, number);
        return no_room(engine);
    }
    all = (block){rule->block, 0};
    lay_out(rule, description, &all);
    const void *key = rule->key.data;
    rule->key = description->key;
    rule->key.data = key;
    fill(rule, description);
    rule->fingerprint = description->fingerprint;
    rule->shape = description->shape;
    rule->goes_on = description->goes_on;
    rule->token = description->token;
    rule->space = description->space;
    rule->skip = description->skip;
    rule->loud = description->loud;
    rule->quiet = description->quiet;
    rule->begins_any = description->begins_any;
    rule->listens_any = description->listens_any;
    rule->skip_step = description->skip_step;
    rule->start = description->start;
    rule->state_count = (uint32_t)description->state_count;
    rule->test_count = (uint32_t)description->predicate_count;
    rule->keep_count = (uint32_t)description->keep_count;
    rule->within_ms = description->within_ms;
    vmp_status status = VMP_BAD;
    uint32_t *ways = vmt_resize(&engine->memory, VMT_OF_ENGINE, NULL, 0, description->state_count * sizeof *ways);
    uint32_t longest = ways == NULL ? 0 : longest_way(rule, ways);
    vmt_resize(&engine->memory, VMT_OF_ENGINE, ways, description->state_count * sizeof *ways, 0);
    if (longest == 0) {
        status = ways == NULL ? VMP_NO_MEMORY : VMP_BAD;
        goto failed;
    }
    status = VMP_NO_MEMORY;
    /* each edge leads to at most two matches, and the one that has not begun stays */
    if (!vmp_reserve(engine, VMT_OF_ENGINE, &engine->ways, &engine->way_capacity, longest, sizeof *engine->ways)
        || !vmp_reserve(engine, VMT_OF_ENGINE, &engine->looks, &engine->look_capacity, longest + 1,
                        sizeof *engine->looks)
        || !vmp_reserve(engine, VMT_OF_ENGINE, &engine->outcomes, &engine->outcome_capacity, 2 * longest + 1,
                        sizeof *engine->outcomes)
        || !fields_fit(engine, description))
        goto failed;
    if (!use_names(engine, rule, number, description)) {
        status = no_room(engine);
        forget_names(engine, rule, number);
        goto failed;
    }
    if (!keep_fields(engine, description->keeps, description->keep_count)) {
        status = VMP_FULL;
        forget_names(engine, rule, number);
        goto failed;
    }
    rule->linked.hash = vmp_text_hash(&rule->key);
    vmt_table_put(&engine->rules_by_key, &engine->rules, &engine->memory, number);
    engine->space_rules[rule->space]++;
    engine->any_listens += rule->listens_any || rule->begins_any;
    return VMP_OK;
failed:
    vmt_resize(&engine->memory, VMT_OF_CONDITIONS, rule->block, rule->block_size, 0);
    rule->block = NULL;
    vmt_pool_give(&engine->rules, number);
    return status;
}

static void rule_free(vmp_engine *engine, uint32_t number)
{
    vmp_rule *rule = vmp_rule_at(engine, number);
    vmt_table_take(&engine->rules_by_key, &engine->rules, number);
    forget_names(engine, rule, number);
    leave_fields(engine, rule);
    engine->space_rules[rule->space]--;
    engine->any_listens -= rule->listens_any || rule->begins_any;
    vmt_resize(&engine->memory, VMT_OF_CONDITIONS, rule->block, rule->block_size, 0);
    rule->block = NULL;
    vmt_pool_give(&engine->rules, number);
}

vmp_status vmp_remove(vmp_engine *engine, vmt_text key, void **token)
{
    vmp_text_rehash(engine, &key);
    uint32_t number = vmp_rule_find(engine, &key);
    if (number == 0)
        return VMP_UNKNOWN;
    vmp_rule *rule = vmp_rule_at(engine, number);
    *token = rule->token;
    for (uint32_t i = 1; rule->instances != 0 && i < engine->instances.begun; i++)
        if (vmp_instance_at(engine, i)->rule == number) {
            uint32_t of = vmp_instance_at(engine, i)->key;
            vmp_instance_drop(engine, i, &engine->totals.ended);
            vmp_key_free_if_empty(engine, of);
        }
    rule_free(engine, number);
    return VMP_OK;
}

/* ---- engines */

vmp_engine *vmp_engine_new(const vmp_settings *settings)
{
    vmp_engine *engine = settings->allocate(settings->context, NULL, 0, sizeof *engine);
    if (engine == NULL)
        return NULL;
    memset(engine, 0, sizeof *engine);
    engine->settings = *settings;
    engine->memory = (vmt_memory){.allocate = settings->allocate, .context = settings->context};
    engine->memory.bounds[VMT_OF_CONDITIONS] = settings->max_bytes / 4 * 3;
    engine->memory.bounds[VMT_OF_MATCHES] = settings->max_bytes / 4;
    engine->memory.bounds[VMT_OF_ENGINE] = UINT64_MAX;
    vmt_pool_begin(&engine->names, sizeof(vmp_name), VMT_OF_CONDITIONS);
    vmt_pool_begin(&engine->rules, sizeof(vmp_rule), VMT_OF_CONDITIONS);
    vmt_pool_begin(&engine->keys, sizeof(vmp_key), VMT_OF_MATCHES);
    vmt_pool_begin(&engine->instances, sizeof(vmp_instance), VMT_OF_MATCHES);
    vmt_pool_begin(&engine->nodes, sizeof(vmp_node), VMT_OF_MATCHES);
    vmt_pool_begin(&engine->events, sizeof(vmp_taken), VMT_OF_MATCHES);
    if (!vmt_table_begin(&engine->names_by_text, &engine->memory, VMT_OF_ENGINE, 2)
        || !vmt_table_begin(&engine->rules_by_key, &engine->memory, VMT_OF_ENGINE, 1)
        || !vmt_table_begin(&engine->keys_by_text, &engine->memory, VMT_OF_ENGINE, 2)) {
        vmp_engine_free(engine, NULL);
        return NULL;
    }
    return engine;
}

void vmp_engine_free(vmp_engine *engine, void (*release)(void *token))
{
    vmt_memory *memory = &engine->memory;
    uint64_t ended = 0;
    while (engine->oldest != 0)
        vmp_key_drop(engine, engine->oldest, &ended);
    for (uint32_t i = 1; i < engine->rules.begun; i++) {
        vmp_rule *rule = vmp_rule_at(engine, i);
        if (rule->block == NULL)
            continue;
        if (release != NULL)
            release(rule->token);
        rule_free(engine, i);
    }
    struct {
        void *items;
        size_t size;
    } rooms[] = {
        {engine->any_begins, engine->any_capacity * sizeof *engine->any_begins},
        {engine->timers, engine->timer_capacity * sizeof *engine->timers},
        {engine->fields, engine->field_capacity * sizeof *engine->fields},
        {engine->field_seen, engine->field_capacity * sizeof *engine->field_seen},
        {engine->next.matches, engine->next.capacity * sizeof(vmp_match)},
        {engine->found.matches, engine->found.capacity * sizeof(vmp_match)},
        {engine->complete.matches, engine->complete.capacity * sizeof(vmp_match)},
        {engine->outcomes, engine->outcome_capacity * sizeof *engine->outcomes},
        {engine->ways, engine->way_capacity * sizeof *engine->ways},
        {engine->looks, engine->look_capacity * sizeof *engine->looks},
        {engine->path, engine->path_capacity * sizeof *engine->path},
        {engine->results, engine->result_capacity * sizeof *engine->results},
        {engine->items, engine->item_capacity * sizeof *engine->items},
    };
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++)
        vmt_resize(memory, VMT_OF_ENGINE, rooms[i].items, rooms[i].size, 0);
    vmt_table_end(&engine->names_by_text, memory);
    vmt_table_end(&engine->rules_by_key, memory);
    vmt_table_end(&engine->keys_by_text, memory);
    vmt_pool_end(&engine->names, memory);
    vmt_pool_end(&engine->rules, memory);
    vmt_pool_end(&engine->keys, memory);
    vmt_pool_end(&engine->instances, memory);
    vmt_pool_end(&engine->nodes, memory);
    vmt_pool_end(&engine->events, memory);
    engine->settings.allocate(engine->settings.context, engine, sizeof *engine, 0);
}

vmp_statistics vmp_engine_statistics(const vmp_engine *engine)
{
    vmp_statistics totals = engine->totals;
    totals.rules = engine->rules.live;
    totals.names = engine->names.live;
    totals.keys = engine->keys.live;
    totals.events = engine->events.live;
    totals.nodes = engine->nodes.live;
    totals.matches = totals.waiting = 0;
    for (uint32_t i = 1; i < engine->instances.begun; i++) {
        const vmp_instance *instance = vmp_instance_at(engine, i);
        if (instance->rule == 0)
            continue;
        totals.matches += instance->under_way.count - 1;
        totals.waiting += instance->complete.count;
    }
    totals.rule_bytes = engine->memory.bytes[VMT_OF_CONDITIONS];
    totals.match_bytes = engine->memory.bytes[VMT_OF_MATCHES];
    totals.bytes = totals.rule_bytes + totals.match_bytes + engine->memory.bytes[VMT_OF_ENGINE] + sizeof *engine;
    return totals;
}
