/* Distribution of items among slots (pool.h). */
#include "runtime/pool.h"

struct shared {
    vme_context *context;
    vme_slot_body *body;
    void *argument;
    int64_t slots, items;
    atomic_llong next[VME_SLOTS_MAX]; /* the next item of each slot's part */
};
struct vme_items {
    struct shared *of;
    int64_t slot, done; /* done: number of parts found empty, starting with the slot's own */
};

bool vme_item_next(vme_items *items, int64_t *item)
{
    struct shared *of = items->of;
    for (; items->done < of->slots && !vme_stopping(of->context); items->done++) {
        const int64_t part = (items->slot + items->done) % of->slots;
        *item = atomic_fetch_add_explicit(&of->next[part], 1, memory_order_relaxed);
        if (*item < of->items * (part + 1) / of->slots)
            return true;
    }
    return false;
}

static vme_status do_slots(void *argument, int64_t begin, int64_t end)
{
    struct shared *shared = argument;
    for (int64_t slot = begin; slot < end; slot++) {
        vme_items items = {.of = shared, .slot = slot};
        shared->body(shared->argument, slot, &items);
    }
    return VME_OK;
}

vme_status vme_parallel_slots(vme_context *context, int64_t slots, int64_t items, vme_slot_body *body, void *argument)
{
    struct shared shared = {.context = context, .body = body, .argument = argument, .slots = slots, .items = items};
    for (int64_t slot = 0; slot < slots; slot++)
        atomic_init(&shared.next[slot], items * slot / slots);
    return vme_parallel_apart(context, slots, 1, do_slots, &shared);
}
