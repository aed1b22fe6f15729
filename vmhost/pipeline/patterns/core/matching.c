/* Matches under way: how an event, or time, changes them. Matches of equal begin are visited in the order of a binary
 * heap as java.util.PriorityQueue keeps it, so that results equal Flink's. */
#include "core/machine.h"

#include <string.h>

/* ---- heaps ordered by the first event */

bool vmp_heap_push(vmp_engine *engine, vmp_heap *heap, const vmp_match *match)
{
    bool work = heap == &engine->next || heap == &engine->found || heap == &engine->complete;
    if (!vmp_reserve(engine, work ? VMT_OF_ENGINE : VMT_OF_MATCHES, &heap->matches, &heap->capacity, heap->count + 1,
                     sizeof *heap->matches))
        return false;
    uint32_t place = heap->count++;
    while (place > 0) {
        uint32_t parent = (place - 1) / 2;
        if (!vmp_earlier(match, &heap->matches[parent]))
            break;
        heap->matches[place] = heap->matches[parent];
        place = parent;
    }
    heap->matches[place] = *match;
    return true;
}

static void sift_down(vmp_heap *heap, uint32_t place, vmp_match match)
{
    while (place < heap->count / 2) {
        uint32_t child = 2 * place + 1;
        if (child + 1 < heap->count && vmp_earlier(&heap->matches[child + 1], &heap->matches[child]))
            child++;
        if (!vmp_earlier(&heap->matches[child], &match))
            break;
        heap->matches[place] = heap->matches[child];
        place = child;
    }
    heap->matches[place] = match;
}

static vmp_match heap_pop(vmp_heap *heap)
{
    vmp_match first = heap->matches[0], last = heap->matches[--heap->count];
    if (heap->count != 0)
        sift_down(heap, 0, last);
    return first;
}

static void heap_free(vmp_engine *engine, vmp_heap *heap)
{
    for (uint32_t i = 0; i < heap->count; i++)
        vmp_node_release(engine, heap->matches[i].node);
    vmt_resize(&engine->memory, VMT_OF_MATCHES, heap->matches, heap->capacity * sizeof *heap->matches, 0);
    *heap = (vmp_heap){0};
}

static void heap_release(vmp_engine *engine, vmp_heap *heap)
{
    for (uint32_t i = 0; i < heap->count; i++)
        vmp_node_release(engine, heap->matches[i].node);
    heap->count = 0;
}

/* ---- timers: a heap by deadline */

static void timer_place(vmp_engine *engine, uint32_t place, vmp_timer timer)
{
    engine->timers[place] = timer;
    vmp_instance_at(engine, timer.instance)->timer = place + 1;
}

static void timer_settle(vmp_engine *engine, uint32_t place, vmp_timer timer)
{
    const vmp_timer *timers = engine->timers;
    while (place > 0) {
        uint32_t parent = (place - 1) / 2;
        if (timers[parent].deadline <= timer.deadline)
            break;
        timer_place(engine, place, timers[parent]);
        place = parent;
    }
    for (;;) {
        uint32_t child = 2 * place + 1;
        if (child >= engine->timer_count)
            break;
        if (child + 1 < engine->timer_count && timers[child + 1].deadline < timers[child].deadline)
            child++;
        if (timers[child].deadline >= timer.deadline)
            break;
        timer_place(engine, place, timers[child]);
        place = child;
    }
    timer_place(engine, place, timer);
}

/* When the time of a match is up: after the window since its last event, or that since its first. */
static int64_t deadline_of(const vmp_rule *rule, const vmp_match *match)
{
    int64_t deadline = VMP_NEVER, at, window = rule->states[match->state].window_ms;
    if (match->node == 0)
        return VMP_NEVER;
    if (rule->within_ms > 0 && !__builtin_add_overflow(match->start_ms, rule->within_ms, &at))
        deadline = at;
    if (window > 0 && !__builtin_add_overflow(match->previous_ms, window, &at) && at < deadline)
        deadline = at;
    return deadline;
}

/* Cannot fail: room for an instance's timer is made with the instance. */
void vmp_instance_schedule(vmp_engine *engine, uint32_t number)
{
    vmp_instance *instance = vmp_instance_at(engine, number);
    const vmp_rule *rule = vmp_rule_at(engine, instance->rule);
    int64_t deadline = VMP_NEVER;
    for (uint32_t i = 0; i < instance->under_way.count; i++) {
        int64_t at = deadline_of(rule, &instance->under_way.matches[i]);
        deadline = at < deadline ? at : deadline;
    }
    if (deadline != instance->deadline) {
        instance->deadline = deadline;
        timer_settle(engine, instance->timer - 1, (vmp_timer){deadline, number});
    }
}

static void timer_remove(vmp_engine *engine, uint32_t number)
{
    vmp_instance *instance = vmp_instance_at(engine, number);
    vmp_timer last = engine->timers[--engine->timer_count];
    if (last.instance != number)
        timer_settle(engine, instance->timer - 1, last);
    instance->timer = 0;
}

/* ---- keys and instances */

uint32_t vmp_key_find(const vmp_engine *engine, unsigned space, const vmt_text *text)
{
    uint32_t number = vmt_table_first(&engine->keys_by_text, vmp_text_hash(text) + space);
    while (number != 0) {
        const vmp_key *key = vmp_key_at(engine, number);
        if (key->space == space && vmp_text_equal(&key->text, text))
            return number;
        number = key->linked.next;
    }
    return 0;
}

static void key_unlink(vmp_engine *engine, vmp_key *key)
{
    *(key->older == 0 ? &engine->oldest : &vmp_key_at(engine, key->older)->newer) = key->newer;
    *(key->newer == 0 ? &engine->newest : &vmp_key_at(engine, key->newer)->older) = key->older;
}

static void key_link(vmp_engine *engine, uint32_t number)
{
    vmp_key *key = vmp_key_at(engine, number);
    key->older = engine->newest;
    key->newer = 0;
    *(key->older == 0 ? &engine->oldest : &vmp_key_at(engine, key->older)->newer) = number;
    engine->newest = number;
}

uint32_t vmp_key_take(vmp_engine *engine, unsigned space, const vmt_text *text)
{
    uint32_t number = vmp_key_find(engine, space, text);
    if (number != 0) {
        if (engine->newest != number) {
            key_unlink(engine, vmp_key_at(engine, number));
            key_link(engine, number);
        }
        return number;
    }
    number = vmp_match_record(engine, &engine->keys);
    if (number == 0)
        return 0;
    vmp_key *key = vmp_key_at(engine, number);
    memset(key, 0, sizeof *key);
    if (!vmp_text_copy(engine, VMT_OF_MATCHES, &key->text, text)) {
        vmt_pool_give(&engine->keys, number);
        return 0;
    }
    key->space = (uint8_t)space;
    key->linked.hash = vmp_text_hash(text) + space;
    vmt_table_put(&engine->keys_by_text, &engine->keys, &engine->memory, number);
    key_link(engine, number);
    return number;
}

void vmp_key_free_if_empty(vmp_engine *engine, uint32_t number)
{
    vmp_key *key = vmp_key_at(engine, number);
    if (key->open_count != 0)
        return;
    vmt_table_take(&engine->keys_by_text, &engine->keys, number);
    key_unlink(engine, key);
    vmp_text_free(engine, VMT_OF_MATCHES, &key->text);
    vmt_resize(&engine->memory, VMT_OF_MATCHES, key->open, key->open_capacity * sizeof *key->open, 0);
    key->open = NULL;
    vmt_pool_give(&engine->keys, number);
}

void vmp_key_drop(vmp_engine *engine, uint32_t number, uint64_t *counter)
{
    vmp_key *key = vmp_key_at(engine, number);
    while (key->open_count != 0)
        vmp_instance_drop(engine, key->open[key->open_count - 1].instance, counter);
    vmp_key_free_if_empty(engine, number);
}

uint32_t vmp_instance_new(vmp_engine *engine, uint32_t rule, uint32_t of)
{
    vmp_key *key = vmp_key_at(engine, of);
    if (!vmp_reserve(engine, VMT_OF_MATCHES, &key->open, &key->open_capacity, key->open_count + 1, sizeof *key->open)
        || !vmp_reserve(engine, VMT_OF_ENGINE, &engine->timers, &engine->timer_capacity, engine->timer_count + 1,
                        sizeof *engine->timers))
        return 0;
    uint32_t number = vmp_match_record(engine, &engine->instances);
    if (number == 0)
        return 0;
    vmp_instance *instance = vmp_instance_at(engine, number);
    *instance = (vmp_instance){.rule = rule, .key = of, .slot = key->open_count, .deadline = VMP_NEVER};
    key->open[key->open_count++] = (vmp_open){vmp_rule_at(engine, rule)->mask, number, rule};
    vmp_rule_at(engine, rule)->instances++;
    timer_place(engine, engine->timer_count++, (vmp_timer){VMP_NEVER, number});
    return number;
}

/* Counts its matches in `counter`. The key stays. */
void vmp_instance_drop(vmp_engine *engine, uint32_t number, uint64_t *counter)
{
    vmp_instance *instance = vmp_instance_at(engine, number);
    vmp_key *key = vmp_key_at(engine, instance->key);
    for (uint32_t i = 0; i < instance->under_way.count; i++)
        *counter += instance->under_way.matches[i].node != 0;
    *counter += instance->complete.count;
    heap_free(engine, &instance->under_way);
    heap_free(engine, &instance->complete);
    timer_remove(engine, number);
    vmp_rule_at(engine, instance->rule)->instances--;
    vmp_open last = key->open[--key->open_count];
    key->open[instance->slot] = last;
    vmp_instance_at(engine, last.instance)->slot = instance->slot;
    instance->rule = 0;
    vmt_pool_give(&engine->instances, number);
}

/* ---- results */

static bool add_result(vmp_engine *engine, const vmp_rule *rule, const vmp_match *match, bool timed_out, int64_t at_ms)
{
    uint32_t depth = match->node == 0 ? 0 : vmp_node_at(engine, match->node)->depth;
    if (!vmp_reserve(engine, VMT_OF_ENGINE, &engine->results, &engine->result_capacity, engine->result_count + 1,
                     sizeof *engine->results)
        || !vmp_reserve(engine, VMT_OF_ENGINE, &engine->items, &engine->item_capacity, engine->item_count + depth,
                        sizeof *engine->items))
        return false;
    uint32_t place = engine->item_count + depth;
    for (uint32_t node = match->node; node != 0; node = vmp_node_at(engine, node)->previous) {
        const vmp_node *here = vmp_node_at(engine, node);
        engine->items[--place] = (vmp_item){here->step, vmp_taken_at(engine, here->event)->id};
    }
    engine->results[engine->result_count++] = (vmp_result){rule->token, timed_out, at_ms, engine->item_count, depth};
    engine->item_count += depth;
    *(timed_out ? &engine->totals.timed_out : &engine->totals.matched) += 1;
    return true;
}

/* ---- after a match */

typedef struct {
    int64_t time_ms;
    uint64_t order;
    bool there;
} moment;

static int moment_order(int64_t time_ms, uint64_t order, const moment *other)
{
    if (time_ms != other->time_ms)
        return time_ms < other->time_ms ? -1 : 1;
    return (order > other->order) - (order < other->order);
}

/* Finds the moment up to which the rule's skip gives up matches by their begin: those before `until`, and for TO_NEXT
 * and PAST_LAST also those at it. VMP_MISSED where the step is not in the match, or begins it, and the rule is loud. */
static vmp_status skip_to(vmp_engine *engine, const vmp_rule *rule, const vmp_match *match, moment *until)
{
    moment first = {0}, wanted = {0};
    for (uint32_t node = match->node; node != 0; node = vmp_node_at(engine, node)->previous) { /* last to first */
        const vmp_node *here = vmp_node_at(engine, node);
        const vmp_taken *event = vmp_taken_at(engine, here->event);
        moment now = {event->time_ms, event->order, true};
        if (!first.there || moment_order(now.time_ms, now.order, &first) < 0)
            first = now;
        if (rule->skip == VMP_PAST_LAST) { /* latest by time, not necessarily the last to arrive */
            if (!wanted.there || moment_order(now.time_ms, now.order, &wanted) > 0)
                wanted = now;
        } else if (here->step == rule->skip_step && (rule->skip == VMP_TO_FIRST || !wanted.there)) {
            wanted = now;
        }
    }
    if (rule->skip == VMP_TO_NEXT)
        wanted = first;
    *until = wanted;
    if (rule->loud && (rule->skip == VMP_TO_FIRST || rule->skip == VMP_TO_LAST)
        && (!wanted.there || (first.there && moment_order(first.time_ms, first.order, &wanted) == 0)))
        return VMP_MISSED;
    return VMP_OK;
}

static void prune(vmp_engine *engine, const vmp_rule *rule, vmp_heap *heap, const moment *until)
{
    int highest = rule->skip == VMP_TO_NEXT || rule->skip == VMP_PAST_LAST ? 0 : -1;
    uint32_t left = 0;
    for (uint32_t i = 0; i < heap->count; i++) {
        vmp_match *match = &heap->matches[i];
        if (match->node != 0 && moment_order(match->start_ms, match->order, until) <= highest)
            vmp_node_release(engine, match->node);
        else
            heap->matches[left++] = *match;
    }
    if (left == heap->count)
        return;
    heap->count = left;
    for (uint32_t place = left / 2; place-- > 0;)
        sift_down(heap, place, heap->matches[place]);
}

/* ---- one instance */

/* Where the current event leads a match: `outcomes`, each with a reference to its node. The match keeps its own. */
static bool next_of(vmp_engine *engine, vmp_rule *rule, const vmp_match *match)
{
    uint32_t ways = 0, looks = 1;
    engine->outcome_count = 0;
    engine->looks[0] = match->state;
    while (looks != 0) {
        uint16_t state = engine->looks[--looks];
        for (uint32_t e = rule->first_edge[state]; e < rule->first_edge[state + 1]; e++) {
            uint32_t code = rule->first_code[e];
            if (!vmp_holds(engine, rule, rule->codes + code, rule->first_code[e + 1] - code, match->node))
                continue;
            if (rule->edges[e].action == VMP_PROCEED)
                engine->looks[looks++] = rule->edges[e].target;
            else
                engine->ways[ways++] = e;
        }
    }
    for (uint32_t w = 0; w < ways; w++) {
        const vmp_edge *edge = &rule->edges[engine->ways[w]];
        vmp_match *outcome = &engine->outcomes[engine->outcome_count];
        if (edge->action == VMP_IGNORE) {
            if (match->node == 0)
                continue;
            *outcome = *match;
            outcome->state = edge->target;
            vmp_node_keep(engine, match->node);
            engine->outcome_count++;
            continue;
        }
        uint32_t node = vmp_node_new(engine, match->node, rule->takes[engine->ways[w]]);
        if (node == 0)
            return false;
        *outcome = (vmp_match){.node = node, .state = edge->target, .previous_ms = engine->event->time_ms};
        outcome->start_ms = match->node == 0 ? engine->event->time_ms : match->start_ms;
        outcome->order = match->node == 0 ? engine->order : match->order;
        engine->outcome_count++;
        /* the rest of the pattern may be optional */
        looks = 1;
        engine->looks[0] = edge->target;
        while (looks != 0) {
            uint16_t state = engine->looks[--looks];
            for (uint32_t e = rule->first_edge[state]; e < rule->first_edge[state + 1]; e++) {
                uint32_t code = rule->first_code[e];
                const vmp_edge *on = &rule->edges[e];
                if (on->action != VMP_PROCEED
                    || !vmp_holds(engine, rule, rule->codes + code, rule->first_code[e + 1] - code, match->node))
                    continue;
                if (rule->states[on->target].kind == VMP_FINAL) {
                    engine->outcomes[engine->outcome_count] = *outcome;
                    engine->outcomes[engine->outcome_count++].state = on->target;
                    vmp_node_keep(engine, node);
                    looks = 0;
                    break;
                }
                engine->looks[looks++] = on->target;
            }
        }
    }
    return true;
}

static void outcomes_release(vmp_engine *engine)
{
    for (uint32_t i = 0; i < engine->outcome_count; i++)
        vmp_node_release(engine, engine->outcomes[i].node);
    engine->outcome_count = 0;
}

/* Reports complete matches that no match under way precedes, and gives up matches as `skip` says. Works on the engine's
 * `next`, `found` and `complete`. VMP_NO_MEMORY: only matches in these may be lost. */
static vmp_status settle_complete(vmp_engine *engine, const vmp_rule *rule)
{
    vmp_heap *found = &engine->found, *complete = &engine->complete, *next = &engine->next;
    for (uint32_t i = 0; i < found->count; i++) {
        if (!vmp_heap_push(engine, complete, &found->matches[i])) {
            memmove(found->matches, found->matches + i, (found->count - i) * sizeof *found->matches);
            found->count -= i;
            return VMP_NO_MEMORY;
        }
    }
    found->count = 0;
    while (complete->count != 0) {
        if (rule->skip != VMP_NO_SKIP && next->count != 0 && vmp_earlier(&next->matches[0], &complete->matches[0]))
            break;
        vmp_match match = heap_pop(complete);
        /* what ends with an absence is complete at the end of the window */
        int64_t at_ms = rule->states[match.state].kind == VMP_PENDING ? deadline_of(rule, &match) : 0;
        vmp_status status = add_result(engine, rule, &match, false, at_ms) ? VMP_OK : VMP_NO_MEMORY;
        if (status == VMP_OK && rule->skip != VMP_NO_SKIP) {
            moment until;
            status = skip_to(engine, rule, &match, &until);
            if (status == VMP_MISSED) { /* reported as an error, not as a match */
                engine->item_count = engine->results[--engine->result_count].first;
                engine->totals.matched--;
            } else if (until.there) {
                prune(engine, rule, next, &until);
                prune(engine, rule, complete, &until);
            }
        }
        vmp_node_release(engine, match.node);
        if (status != VMP_OK)
            return status;
    }
    return VMP_OK;
}

/* Copies a scratch heap into the instance's; false if out of memory. */
static bool keep_heap(vmp_engine *engine, vmp_heap *to, const vmp_heap *from)
{
    if (!vmp_reserve(engine, VMT_OF_MATCHES, &to->matches, &to->capacity, from->count, sizeof *to->matches))
        return false;
    if (from->count != 0)
        memcpy(to->matches, from->matches, from->count * sizeof *to->matches);
    to->count = from->count;
    /* give back memory after a burst; if that fails, keep it */
    if (to->capacity > 64 && to->count < to->capacity / 8) {
        uint32_t capacity = to->capacity / 4;
        void *less = vmt_resize(&engine->memory, VMT_OF_MATCHES, to->matches, to->capacity * sizeof *to->matches,
                                capacity * sizeof *to->matches);
        if (less != NULL) {
            to->matches = less;
            to->capacity = capacity;
        }
    }
    return true;
}

/* Moves the scratch matches into the instance; drops the instance where that fails or nothing is left. */
static vmp_status put_back(vmp_engine *engine, uint32_t number, vmp_status status)
{
    vmp_instance *instance = vmp_instance_at(engine, number);
    while (status == VMP_OK && engine->next.count - 1 > engine->settings.max_matches) {
        vmp_node_release(engine, heap_pop(&engine->next).node);
        engine->totals.dropped++;
    }
    if (status == VMP_OK && engine->next.count == 1 && engine->complete.count == 0) {
        engine->next.count = 0;
        instance->under_way.count = instance->complete.count = 0;
        vmp_instance_drop(engine, number, &engine->totals.dropped);
        return VMP_OK;
    }
    if (status == VMP_OK && keep_heap(engine, &instance->under_way, &engine->next)) {
        engine->next.count = 0;
        if (keep_heap(engine, &instance->complete, &engine->complete)) {
            engine->complete.count = 0;
            vmp_instance_schedule(engine, number);
            return VMP_OK;
        }
        status = VMP_NO_MEMORY;
    } else {
        instance->under_way.count = 0; /* the scratch heaps own their nodes */
        status = status == VMP_OK ? VMP_NO_MEMORY : status;
    }
    instance->complete.count = 0;
    uint64_t given_up = engine->found.count + engine->complete.count;
    for (uint32_t i = 0; i < engine->next.count; i++)
        given_up += engine->next.matches[i].node != 0;
    if (status == VMP_MISSED)
        engine->totals.missed++;
    else
        engine->totals.dropped += given_up;
    heap_release(engine, &engine->next);
    heap_release(engine, &engine->found);
    heap_release(engine, &engine->complete);
    vmp_instance_drop(engine, number, &engine->totals.dropped);
    return status;
}

static bool load_complete(vmp_engine *engine, const vmp_instance *instance)
{
    if (!vmp_reserve(engine, VMT_OF_ENGINE, &engine->complete.matches, &engine->complete.capacity,
                     instance->complete.count, sizeof(vmp_match)))
        return false;
    if (instance->complete.count != 0)
        memcpy(engine->complete.matches, instance->complete.matches, instance->complete.count * sizeof(vmp_match));
    engine->complete.count = instance->complete.count;
    return true;
}

/* Ends matches whose time is up. May free the instance. */
static vmp_status pass_time(vmp_engine *engine, uint32_t number, int64_t time_ms)
{
    vmp_instance *instance = vmp_instance_at(engine, number);
    if (instance->deadline > time_ms)
        return VMP_OK;
    vmp_rule *rule = vmp_rule_at(engine, instance->rule);
    vmp_status status = VMP_OK;
    engine->next.count = engine->found.count = engine->complete.count = 0;
    if (!load_complete(engine, instance)) { /* tried again when time moves on */
        return VMP_NO_MEMORY;
    }
    for (uint32_t i = 0; i < instance->under_way.count; i++) {
        vmp_match match = instance->under_way.matches[i];
        int64_t by_last = VMP_NEVER, by_first = VMP_NEVER, window = rule->states[match.state].window_ms;
        if (match.node != 0) {
            if (window > 0 && __builtin_add_overflow(match.previous_ms, window, &by_last))
                by_last = VMP_NEVER;
            if (rule->within_ms > 0 && __builtin_add_overflow(match.start_ms, rule->within_ms, &by_first))
                by_first = VMP_NEVER;
        }
        bool late =
            match.node != 0 && ((window > 0 && by_last <= time_ms) || (rule->within_ms > 0 && by_first <= time_ms));
        bool kept = status == VMP_OK;
        if (kept && late && rule->states[match.state].kind != VMP_PENDING) {
            if (rule->quiet)
                engine->totals.timed_out++;
            else
                kept = add_result(engine, rule, &match, true, window > 0 && by_last <= time_ms ? by_last : by_first);
            if (kept)
                vmp_node_release(engine, match.node);
        } else if (kept) {
            kept = vmp_heap_push(engine, late ? &engine->found : &engine->next, &match);
        }
        if (!kept) {
            status = VMP_NO_MEMORY;
            engine->totals.dropped += match.node != 0;
            vmp_node_release(engine, match.node);
        }
    }
    instance->under_way.count = instance->complete.count = 0; /* the scratch heaps own their nodes */
    if (status == VMP_OK)
        status = settle_complete(engine, rule);
    return put_back(engine, number, status);
}

/* Tests the event against all matches of the instance. May free the instance. */
static vmp_status hold_against(vmp_engine *engine, uint32_t number)
{
    vmp_instance *instance = vmp_instance_at(engine, number);
    vmp_rule *rule = vmp_rule_at(engine, instance->rule);
    engine->next.count = engine->found.count = engine->complete.count = 0;
    engine->totals.looked_at++;
    bool changed = false;
    vmp_status status = VMP_OK;
    if (!load_complete(engine, instance))
        return VMP_NO_MEMORY;
    for (uint32_t i = 0; i < instance->under_way.count; i++) {
        vmp_match match = instance->under_way.matches[i];
        if (status != VMP_OK) {
            engine->totals.dropped += match.node != 0;
            vmp_node_release(engine, match.node);
            continue;
        }
        if (!next_of(engine, rule, &match)) {
            status = VMP_NO_MEMORY;
            outcomes_release(engine);
            engine->totals.dropped += match.node != 0;
            vmp_node_release(engine, match.node);
            continue;
        }
        changed |= match.node == 0 ? engine->outcome_count != 0
                                   : engine->outcome_count != 1 || engine->outcomes[0].node != match.node
                                         || engine->outcomes[0].state != match.state;
        bool stopped = false;
        for (uint32_t k = 0; k < engine->outcome_count; k++)
            stopped |= rule->states[engine->outcomes[k].state].kind == VMP_STOP;
        engine->started |= match.node == 0 && engine->outcome_count != 0 && engine->event->time_ms > 0;
        uint32_t k = 0;
        for (; k < engine->outcome_count && status == VMP_OK; k++) {
            const vmp_match *outcome = &engine->outcomes[k];
            unsigned kind = rule->states[outcome->state].kind;
            if (kind == VMP_STOP || (stopped && kind != VMP_FINAL))
                vmp_node_release(engine, outcome->node);
            else if (!vmp_heap_push(engine, kind == VMP_FINAL ? &engine->found : &engine->next, outcome)) {
                status = VMP_NO_MEMORY;
                break;
            }
        }
        for (; k < engine->outcome_count; k++)
            vmp_node_release(engine, engine->outcomes[k].node);
        if (match.node == 0 && status == VMP_OK && !vmp_heap_push(engine, &engine->next, &match))
            status = VMP_NO_MEMORY;
        vmp_node_release(engine, match.node);
    }
    if (!changed && status == VMP_OK) { /* all matches are as they were */
        engine->next.count = engine->complete.count = 0;
        if (instance->under_way.count <= 1 && instance->complete.count == 0)
            vmp_instance_drop(engine, number, &engine->totals.dropped);
        return VMP_OK;
    }
    instance->under_way.count = instance->complete.count = 0;
    if (status == VMP_OK)
        status = settle_complete(engine, rule);
    return put_back(engine, number, status);
}

/* ---- events */

static void worse(vmp_status *status, vmp_status other)
{
    if (other != VMP_OK)
        *status = other;
}

static void begin_results(vmp_engine *engine) { engine->result_count = engine->item_count = 0; }

static void give_results(vmp_engine *engine, vmp_results *results)
{
    *results = (vmp_results){engine->results, engine->items, engine->result_count, engine->started};
}

/* The event may begin a match of the rule: makes an instance for it, and drops it again if none begins. */
static vmp_status try_begin(vmp_engine *engine, uint32_t rule_number, unsigned space)
{
    vmp_rule *rule = vmp_rule_at(engine, rule_number);
    uint32_t state = rule->start;
    bool may = false; /* test the edges first: most events of a name fail the conditions */
    for (uint32_t e = rule->first_edge[state]; e < rule->first_edge[state + 1] && !may; e++) {
        uint32_t code = rule->first_code[e];
        may = rule->edges[e].action != VMP_IGNORE
              && vmp_holds(engine, rule, rule->codes + code, rule->first_code[e + 1] - code, 0);
    }
    if (!may)
        return VMP_OK;
    uint32_t key = engine->busy;
    if (key == 0 && (key = engine->busy = vmp_key_take(engine, space, &engine->event->keys[space])) == 0) {
        engine->totals.dropped++;
        return VMP_NO_MEMORY;
    }
    uint32_t number = vmp_instance_new(engine, rule_number, key);
    vmp_match start = {.state = rule->start, .start_ms = INT64_MAX, .order = VMP_NO_ORDER};
    if (number == 0) {
        engine->totals.dropped++;
        return VMP_NO_MEMORY;
    }
    if (!vmp_heap_push(engine, &vmp_instance_at(engine, number)->under_way, &start)) {
        engine->totals.dropped++;
        vmp_instance_drop(engine, number, &engine->totals.dropped);
        return VMP_NO_MEMORY;
    }
    return hold_against(engine, number);
}

/* Instances come and go in the key's list during the loop; `stamp` marks the rules that were processed. */
static vmp_status feed_space(vmp_engine *engine, unsigned space)
{
    const vmp_event *event = engine->event;
    vmp_status status = VMP_OK;
    uint64_t bit = engine->name == 0 ? 0 : vmp_bit(engine->name);
    uint32_t number = vmp_key_find(engine, space, &event->keys[space]);
    engine->busy = number;
    if (number != 0) {
        vmp_key_take(engine, space, &event->keys[space]); /* marks it as the newest */
        for (uint32_t i = vmp_key_at(engine, number)->open_count; i-- > 0;) {
            const vmp_key *key = vmp_key_at(engine, number);
            if (i >= key->open_count)
                continue;
            vmp_open open = key->open[i];
            if ((open.mask & bit) == 0 && open.mask != ~UINT64_C(0))
                continue;
            vmp_rule *rule = vmp_rule_at(engine, open.rule);
            rule->stamp = engine->order;
            if (!event->still)
                worse(&status, pass_time(engine, open.instance, event->time_ms));
            /* if its time was up, it is gone: a new one gets the event, below */
            if (vmp_instance_at(engine, open.instance)->rule == open.rule
                && vmp_instance_at(engine, open.instance)->key == number)
                worse(&status, hold_against(engine, open.instance));
            else
                rule->stamp = 0;
        }
    }
    uint32_t count = engine->name == 0 ? 0 : vmp_name_at(engine, engine->name)->begin_count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t rule = vmp_name_at(engine, engine->name)->begins[i];
        if (vmp_rule_at(engine, rule)->space == space && vmp_rule_at(engine, rule)->stamp != engine->order)
            worse(&status, try_begin(engine, rule, space));
    }
    for (uint32_t i = 0; i < engine->any_count; i++) {
        uint32_t rule = engine->any_begins[i];
        if (vmp_rule_at(engine, rule)->space == space && vmp_rule_at(engine, rule)->stamp != engine->order)
            worse(&status, try_begin(engine, rule, space));
    }
    if (engine->busy != 0)
        vmp_key_free_if_empty(engine, engine->busy);
    engine->busy = 0;
    return status;
}

vmp_status vmp_feed(vmp_engine *engine, const vmp_event *given, vmp_results *results)
{
    vmp_status status = VMP_OK;
    vmp_event hashed = *given, *event = &hashed;
    vmp_text_rehash(engine, &event->name);
    for (unsigned space = 0; space < VMP_SPACES; space++)
        if (engine->space_rules[space] != 0)
            vmp_text_rehash(engine, &event->keys[space]);
    begin_results(engine);
    engine->order++;
    engine->event = event;
    engine->taken = 0;
    engine->started = false;
    engine->totals.fed++;
    engine->name = vmp_name_find(engine, &event->name);
    for (unsigned space = 0; space < VMP_SPACES; space++)
        if (engine->space_rules[space] != 0 && (space <= 1 || event->keys[space].size != 0))
            worse(&status, feed_space(engine, space));
    engine->event = NULL;
    engine->taken = 0;
    give_results(engine, results);
    return status;
}

bool vmp_concerns(const vmp_engine *engine, vmt_text name)
{
    if (engine->any_listens != 0)
        return true;
    vmp_text_rehash(engine, &name);
    return vmp_name_find(engine, &name) != 0;
}

void vmp_pass_over(vmp_engine *engine) { engine->totals.fed++; }

/* ---- time */

vmp_status vmp_advance(vmp_engine *engine, int64_t time_ms, vmp_results *results)
{
    vmp_status status = VMP_OK;
    begin_results(engine);
    engine->started = false;
    engine->order++;
    while (engine->timer_count != 0 && status != VMP_NO_MEMORY) {
        vmp_timer first = engine->timers[0];
        if (first.deadline > time_ms || first.deadline == VMP_NEVER)
            break;
        uint32_t number = first.instance, key = vmp_instance_at(engine, number)->key;
        engine->busy = key;
        worse(&status, pass_time(engine, number, time_ms));
        engine->busy = 0;
        vmp_key_free_if_empty(engine, key);
    }
    give_results(engine, results);
    return status;
}

vmp_status vmp_advance_key(vmp_engine *engine, unsigned space, vmt_text key, int64_t time_ms, vmp_results *results)
{
    vmp_status status = VMP_OK;
    begin_results(engine);
    engine->started = false;
    vmp_text_rehash(engine, &key);
    uint32_t number = vmp_key_find(engine, space, &key);
    engine->busy = number;
    for (uint32_t i = number == 0 ? 0 : vmp_key_at(engine, number)->open_count; i-- > 0;)
        if (i < vmp_key_at(engine, number)->open_count)
            worse(&status, pass_time(engine, vmp_key_at(engine, number)->open[i].instance, time_ms));
    engine->busy = 0;
    if (number != 0)
        vmp_key_free_if_empty(engine, number);
    give_results(engine, results);
    return status;
}

void vmp_forget(vmp_engine *engine, unsigned space, vmt_text key)
{
    vmp_text_rehash(engine, &key);
    uint32_t number = vmp_key_find(engine, space, &key);
    if (number != 0)
        vmp_key_drop(engine, number, &engine->totals.ended);
}

int64_t vmp_next_ms(const vmp_engine *engine)
{
    return engine->timer_count == 0 ? VMP_NEVER : engine->timers[0].deadline;
}

vmp_status vmp_matches(const vmp_engine *engine, vmt_text rule, vmp_match_callback *callback, void *context)
{
    vmp_text_rehash(engine, &rule);
    uint32_t wanted = vmp_rule_find(engine, &rule);
    if (wanted == 0)
        return VMP_UNKNOWN;
    for (uint32_t i = 1; i < engine->instances.begun; i++) {
        const vmp_instance *instance = vmp_instance_at(engine, i);
        if (instance->rule != wanted)
            continue;
        for (uint32_t k = 0; k < instance->under_way.count; k++) {
            const vmp_match *match = &instance->under_way.matches[k];
            if (match->node != 0)
                callback(context, match->state, vmp_key_at(engine, instance->key)->text,
                         vmp_node_at(engine, match->node)->depth, match->start_ms);
        }
    }
    return VMP_OK;
}

vmp_value vmp_evaluate(vmp_engine *engine, vmt_text key, uint32_t predicate, const vmp_event *event)
{
    vmp_value value = {.kind = VMP_NONE};
    vmp_text_rehash(engine, &key);
    uint32_t number = vmp_rule_find(engine, &key);
    if (number == 0 || predicate >= vmp_rule_at(engine, number)->test_count)
        return value;
    const vmp_rule *rule = vmp_rule_at(engine, number);
    const vmp_test *test = &rule->tests[predicate];
    vmt_text name = event->name;
    vmp_text_rehash(engine, &name);
    engine->order++;
    engine->event = event;
    engine->name = vmp_name_find(engine, &name);
    value = test->named ? (vmp_value){.kind = VMP_BOOL, .truth = test->name == engine->name}
                        : vmp_run(engine, rule, test, 0);
    engine->event = NULL;
    return value;
}
