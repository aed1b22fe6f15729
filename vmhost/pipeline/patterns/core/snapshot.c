/* Snapshots: matches under way as bytes, and back. In this machine's byte order, so a snapshot is valid on this machine
 * only. Everything read is validated before it is used. */
#include "core/machine.h"

#include <string.h>

#define MAGIC UINT64_C(0x32706e53706d56) /* "VmpSnp2" */

/* Layout: the magic and the number of keys; for each key its space, text and number of instances; for each instance its
 * rule's key, fingerprint and shape, its events, its nodes (previous ones first) and its two heaps. References are
 * indices into these lists, from 1. A field of an event is its index among those that the rule keeps, as field numbers
 * differ between engines. */
typedef struct {
    uint32_t space, size, instances;
} key_head;

typedef struct {
    uint64_t fingerprint, shape;
    uint32_t rule_size, events, nodes, under_way, complete, spare;
} instance_head;

typedef struct {
    int64_t id, time_ms;
    uint64_t order;
    uint32_t kept, texts;
} event_head;

typedef struct {
    uint32_t previous, event;
    uint32_t step;
} node_head;

typedef struct {
    uint32_t node, state;
    int64_t start_ms, previous_ms;
    uint64_t order;
} match_head;

/* ---- saving: two arrays as long as the pools map numbers of nodes and events to indices */

typedef struct {
    const vmp_engine *engine;
    vmp_write *write;
    void *context;
    uint32_t *node_places, *event_places; /* 0: not in the instance */
    uint32_t *nodes, *events;             /* those of the instance */
    uint32_t node_count, event_count;
} saving;

static void collect(saving *all, uint32_t node)
{
    uint32_t first = all->node_count;
    for (; node != 0 && all->node_places[node] == 0; node = vmp_node_at(all->engine, node)->previous) {
        all->nodes[all->node_count++] = node;
        all->node_places[node] = UINT32_MAX;
    }
    for (uint32_t low = first, high = all->node_count; low + 1 < high; low++, high--) { /* previous ones first */
        uint32_t other = all->nodes[low];
        all->nodes[low] = all->nodes[high - 1];
        all->nodes[high - 1] = other;
    }
    for (uint32_t i = first; i < all->node_count; i++) {
        uint32_t event = vmp_node_at(all->engine, all->nodes[i])->event;
        all->node_places[all->nodes[i]] = i + 1;
        if (all->event_places[event] == 0) {
            all->events[all->event_count++] = event;
            all->event_places[event] = all->event_count;
        }
    }
}

static bool save_heap(const saving *all, const vmp_heap *heap)
{
    for (uint32_t i = 0; i < heap->count; i++) {
        const vmp_match *match = &heap->matches[i];
        match_head head = {match->node == 0 ? 0 : all->node_places[match->node], match->state, match->start_ms,
                           match->previous_ms, match->order};
        if (!all->write(all->context, &head, sizeof head))
            return false;
    }
    return true;
}

/* The field's index among those that the rule keeps; keep_count: another rule keeps it. */
static uint32_t place_of(const vmp_rule *rule, uint32_t field)
{
    uint32_t place = 0;
    while (place < rule->keep_count && rule->keeps[place] != field)
        place++;
    return place;
}

static bool save_instance(saving *all, const vmp_instance *instance)
{
    const vmp_engine *engine = all->engine;
    const vmp_rule *rule = vmp_rule_at(engine, instance->rule);
    all->node_count = all->event_count = 0;
    for (uint32_t i = 0; i < instance->under_way.count; i++)
        collect(all, instance->under_way.matches[i].node);
    for (uint32_t i = 0; i < instance->complete.count; i++)
        collect(all, instance->complete.matches[i].node);
    instance_head head = {rule->fingerprint,        rule->shape,
                          (uint32_t)rule->key.size, all->event_count,
                          all->node_count,          instance->under_way.count,
                          instance->complete.count, 0};
    bool good =
        all->write(all->context, &head, sizeof head) && all->write(all->context, rule->key.data, rule->key.size);
    for (uint32_t i = 0; good && i < all->event_count; i++) {
        const vmp_taken *event = vmp_taken_at(engine, all->events[i]);
        uint32_t texts = event->kept_size - (uint32_t)(event->kept_count * sizeof(vmp_kept));
        event_head saved = {event->id, event->time_ms, event->order, 0, texts};
        for (uint32_t k = 0; k < event->kept_count; k++)
            saved.kept += place_of(rule, event->kept[k].field) < rule->keep_count;
        good = all->write(all->context, &saved, sizeof saved);
        for (uint32_t k = 0; good && k < event->kept_count; k++) {
            const uint32_t place = place_of(rule, event->kept[k].field);
            if (place == rule->keep_count)
                continue;
            vmp_value value = event->kept[k].value;
            if (value.kind == VMP_TEXT || value.kind == VMP_BYTES) /* its offset in the texts */
                value.natural =
                    value.size == 0 ? 0 : (uint64_t)(value.text - (const char *)(event->kept + event->kept_count));
            uint64_t form[3] = {place, (uint64_t)value.kind << 32 | value.size, 0};
            memcpy(&form[2], &value.natural, sizeof form[2]);
            if (value.kind == VMP_BOOL)
                form[2] = value.truth;
            good = all->write(all->context, form, sizeof form);
        }
        good = good && (texts == 0 || all->write(all->context, event->kept + event->kept_count, texts));
    }
    for (uint32_t i = 0; good && i < all->node_count; i++) {
        const vmp_node *node = vmp_node_at(engine, all->nodes[i]);
        node_head saved = {node->previous == 0 ? 0 : all->node_places[node->previous], all->event_places[node->event],
                           node->step};
        good = all->write(all->context, &saved, sizeof saved);
    }
    good = good && save_heap(all, &instance->under_way) && save_heap(all, &instance->complete);
    for (uint32_t i = 0; i < all->node_count; i++)
        all->node_places[all->nodes[i]] = 0;
    for (uint32_t i = 0; i < all->event_count; i++)
        all->event_places[all->events[i]] = 0;
    return good;
}

vmp_status vmp_save(const vmp_engine *engine, vmp_write *write, void *context)
{
    const vmp_settings *settings = &engine->settings;
    size_t nodes = (size_t)engine->nodes.begun * sizeof(uint32_t),
           events = (size_t)engine->events.begun * sizeof(uint32_t);
    uint32_t *room = settings->allocate(settings->context, NULL, 0, 2 * (nodes + events));
    if (room == NULL)
        return VMP_NO_MEMORY;
    memset(room, 0, 2 * (nodes + events));
    saving all = {engine,
                  write,
                  context,
                  room,
                  room + 2 * engine->nodes.begun,
                  room + engine->nodes.begun,
                  room + 2 * engine->nodes.begun + engine->events.begun,
                  0,
                  0};
    uint64_t head[3] = {MAGIC, engine->keys.live, engine->order};
    bool good = write(context, head, sizeof head);
    for (uint32_t number = engine->oldest; good && number != 0; number = vmp_key_at(engine, number)->newer) {
        const vmp_key *key = vmp_key_at(engine, number);
        key_head owner = {key->space, (uint32_t)key->text.size, key->open_count};
        good = write(context, &owner, sizeof owner)
               && (key->text.size == 0 || write(context, key->text.data, key->text.size));
        for (uint32_t i = 0; good && i < key->open_count; i++)
            good = save_instance(&all, vmp_instance_at(engine, key->open[i].instance));
    }
    settings->allocate(settings->context, room, 2 * (nodes + events), 0);
    return good ? VMP_OK : VMP_NO_MEMORY;
}

/* ---- loading */

typedef struct {
    const char *at;
    size_t left;
} reading;

static bool take(reading *from, void *to, size_t size)
{
    if (size > from->left)
        return false;
    if (size != 0)
        memcpy(to, from->at, size);
    from->at += size;
    from->left -= size;
    return true;
}

static const char *bytes(reading *from, size_t size)
{
    const char *here = from->at;
    if (size > from->left)
        return NULL;
    from->at += size;
    from->left -= size;
    return here;
}

/* `rule`: the event's; NULL: it is gone, the event is only skipped. */
static vmp_status load_event(vmp_engine *engine, reading *from, const vmp_rule *rule, uint32_t *number)
{
    event_head head;
    if (!take(from, &head, sizeof head) || head.kept > from->left / 24 || head.texts > from->left)
        return VMP_BAD;
    if (head.order > engine->order)
        return VMP_BAD;
    uint32_t size = head.kept * (uint32_t)sizeof(vmp_kept) + head.texts;
    vmp_kept *kept = NULL;
    if (size != 0 && (kept = vmp_match_memory(engine, NULL, 0, size)) == NULL)
        return VMP_NO_MEMORY;
    char *texts = (char *)(kept + head.kept);
    bool good = true;
    for (uint32_t k = 0; k < head.kept; k++) {
        uint64_t form[3] = {0};
        good = good && take(from, form, sizeof form) && form[1] >> 32 <= VMP_OTHER;
        good = good && (rule == NULL || form[0] < rule->keep_count);
        vmp_value value = {.kind = (uint8_t)(form[1] >> 32), .size = (uint32_t)form[1]};
        if (value.kind == VMP_TEXT || value.kind == VMP_BYTES) {
            good = good && form[2] <= head.texts && value.size <= head.texts - form[2];
            value.text = good ? texts + form[2] : NULL;
        } else if (value.kind == VMP_BOOL) {
            value.truth = form[2] != 0;
        } else {
            value.natural = form[2];
        }
        kept[k] = (vmp_kept){good && rule != NULL ? rule->keeps[form[0]] : VMP_NO_FIELD, value};
    }
    good = good && take(from, texts, head.texts);
    *number = good ? vmp_match_record(engine, &engine->events) : 0;
    if (*number == 0) {
        if (kept != NULL)
            vmt_resize(&engine->memory, VMT_OF_MATCHES, kept, size, 0);
        return good ? VMP_NO_MEMORY : VMP_BAD;
    }
    *vmp_taken_at(engine, *number) = (vmp_taken){1, head.kept, size, kept, head.id, head.time_ms, head.order};
    return VMP_OK;
}

static vmp_status load_heap(vmp_engine *engine, reading *from, vmp_heap *heap, uint32_t count, const vmp_rule *rule,
                            const uint32_t *nodes, uint32_t node_count, bool begins)
{
    bool begun = false;
    for (uint32_t i = 0; i < count; i++) {
        match_head head;
        if (!take(from, &head, sizeof head) || head.node > node_count || head.state >= rule->state_count)
            return VMP_BAD;
        if (head.node == 0
            && (!begins || begun || head.state != rule->start || head.order != VMP_NO_ORDER
                || head.start_ms != INT64_MAX))
            return VMP_BAD;
        begun |= head.node == 0;
        vmp_match match = {head.node == 0 ? 0 : nodes[head.node - 1], (uint16_t)head.state, head.start_ms,
                           head.previous_ms, head.order};
        if (!vmp_heap_push(engine, heap, &match))
            return VMP_NO_MEMORY;
        vmp_node_keep(engine, match.node);
    }
    return begins && !begun ? VMP_BAD : VMP_OK;
}

static vmp_status load_instance(vmp_engine *engine, reading *from, uint32_t key)
{
    instance_head head;
    const char *name;
    if (!take(from, &head, sizeof head) || (name = bytes(from, head.rule_size)) == NULL
        || head.events > from->left / sizeof(event_head) || head.nodes > from->left / sizeof(node_head)
        || head.under_way > from->left / sizeof(match_head) || head.complete > from->left / sizeof(match_head))
        return VMP_BAD;
    vmt_text text = {0, name, head.rule_size, 1};
    vmp_text_rehash(engine, &text);
    uint32_t rule_number = vmp_rule_find(engine, &text);
    const vmp_rule *rule = rule_number == 0 ? NULL : vmp_rule_at(engine, rule_number);
    bool same = rule != NULL && (rule->fingerprint == head.fingerprint || (rule->goes_on && rule->shape == head.shape));
    bool wanted = same && rule->space == vmp_key_at(engine, key)->space;
    size_t room = ((size_t)head.events + head.nodes + 1) * sizeof(uint32_t);
    uint32_t *events = vmt_resize(&engine->memory, VMT_OF_ENGINE, NULL, 0, room);
    if (events == NULL)
        return VMP_NO_MEMORY;
    memset(events, 0, room);
    uint32_t *nodes = events + head.events;
    vmp_status status = VMP_OK;
    for (uint32_t i = 0; status == VMP_OK && i < head.events; i++)
        status = load_event(engine, from, wanted ? rule : NULL, &events[i]);
    for (uint32_t i = 0; status == VMP_OK && i < head.nodes; i++) {
        node_head node;
        if (!take(from, &node, sizeof node) || node.previous > i || node.event == 0 || node.event > head.events
            || node.step > UINT16_MAX) {
            status = VMP_BAD;
            break;
        }
        uint32_t previous = node.previous == 0 ? 0 : nodes[node.previous - 1];
        uint32_t depth = previous == 0 ? 1 : vmp_node_at(engine, previous)->depth + 1;
        if (!vmp_reserve(engine, VMT_OF_ENGINE, &engine->path, &engine->path_capacity, depth, sizeof *engine->path)
            || (nodes[i] = vmp_match_record(engine, &engine->nodes)) == 0) {
            status = VMP_NO_MEMORY;
            break;
        }
        vmp_node_keep(engine, previous);
        vmp_taken_at(engine, events[node.event - 1])->references++;
        *vmp_node_at(engine, nodes[i]) = (vmp_node){1, previous, events[node.event - 1], (uint16_t)node.step, depth};
    }
    uint32_t number = 0;
    if (status == VMP_OK && wanted && (number = vmp_instance_new(engine, rule_number, key)) == 0)
        status = VMP_NO_MEMORY;
    if (status == VMP_OK && wanted) {
        vmp_instance *instance = vmp_instance_at(engine, number);
        status = load_heap(engine, from, &instance->under_way, head.under_way, rule, nodes, head.nodes, true);
        if (status == VMP_OK)
            status = load_heap(engine, from, &instance->complete, head.complete, rule, nodes, head.nodes, false);
        if (status == VMP_OK)
            vmp_instance_schedule(engine, number);
    } else if (status == VMP_OK) {
        engine->totals.ended += head.under_way - (head.under_way != 0) + head.complete;
        if (bytes(from, ((size_t)head.under_way + head.complete) * sizeof(match_head)) == NULL)
            status = VMP_BAD;
    }
    /* release our references; matches hold theirs, and a damaged instance is dropped with its key */
    for (uint32_t i = head.nodes; i-- > 0;)
        vmp_node_release(engine, nodes[i]);
    for (uint32_t i = 0; i < head.events; i++)
        if (events[i] != 0)
            vmp_event_release(engine, events[i]);
    vmt_resize(&engine->memory, VMT_OF_ENGINE, events, room, 0);
    return status;
}

vmp_status vmp_load(vmp_engine *engine, const void *data, size_t size)
{
    reading from = {data, size};
    uint64_t head[3];
    if (engine->keys.live != 0 || !take(&from, head, sizeof head) || head[0] != MAGIC || head[2] >= VMP_NO_ORDER / 2)
        return VMP_BAD;
    engine->order = head[2] > engine->order ? head[2] : engine->order;
    vmp_status status = VMP_OK;
    for (uint64_t i = 0; status == VMP_OK && i < head[1]; i++) {
        key_head owner;
        const char *text;
        if (!take(&from, &owner, sizeof owner) || (text = bytes(&from, owner.size)) == NULL
            || owner.space >= VMP_SPACES) {
            status = VMP_BAD;
            break;
        }
        vmt_text name = {0, text, owner.size, 1};
        vmp_text_rehash(engine, &name);
        uint32_t key = vmp_key_take(engine, owner.space, &name);
        if (key == 0) {
            status = VMP_NO_MEMORY;
            break;
        }
        engine->busy = key;
        for (uint32_t k = 0; status == VMP_OK && k < owner.instances; k++)
            status = load_instance(engine, &from, key);
        engine->busy = 0;
        vmp_key_free_if_empty(engine, key);
    }
    if (status == VMP_OK && from.left != 0)
        status = VMP_BAD;
    uint64_t ended = 0;
    while (status != VMP_OK && engine->oldest != 0)
        vmp_key_drop(engine, engine->oldest, &ended);
    return status;
}
