#include "profile/holdings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lanes/critical.h"

vmh_holdings *vmh_holdings_new(const char *task, const char *version, int64_t interval)
{
    vmh_holdings *holdings = calloc(1, sizeof *holdings);
    if (holdings == NULL)
        return NULL;
    holdings->size = 1024;
    holdings->blocks = calloc(holdings->size, sizeof *holdings->blocks);
    holdings->root = vmh_profile_task(&holdings->tree, task, version);
    if (holdings->blocks == NULL || holdings->root < 0) {
        vmh_profile_clear(&holdings->tree);
        free(holdings->blocks);
        free(holdings);
        return NULL;
    }
    pthread_mutex_init(&holdings->lock, NULL);
    holdings->interval = interval;
    holdings->process = getpid();
    return holdings;
}

void vmh_holdings_free(vmh_holdings *holdings)
{
    if (holdings == NULL)
        return;
    pthread_mutex_destroy(&holdings->lock);
    vmh_profile_clear(&holdings->tree);
    free(holdings->holdings);
    free(holdings->blocks);
    free(holdings);
}

void vmh_holdings_lock(vmh_holdings *holdings) { vmh_mutex_lock(&holdings->lock); }
void vmh_holdings_unlock(vmh_holdings *holdings) { vmh_mutex_unlock(&holdings->lock); }

/* ---- blocks ---- */

static size_t slot_of(const vmh_holdings *holdings, uintptr_t address)
{
    return vmh_holdings_hash((const void *)address) & (holdings->size - 1); /* NOLINT(performance-no-int-to-ptr) */
}

static void place(vmh_holdings *holdings, vmh_held_block block)
{
    size_t at = slot_of(holdings, block.address);
    while (holdings->blocks[at].address != 0)
        at = (at + 1) & (holdings->size - 1);
    holdings->blocks[at] = block;
}

static bool has_room(vmh_holdings *holdings)
{
    if (holdings->used * 2 < holdings->size)
        return true;
    if (holdings->size == VMH_HOLDINGS_FILTER * 2)
        return false; /* hashes have no more bits; and this is a million intervals */
    vmh_held_block *before = holdings->blocks, *larger = calloc(holdings->size * 2, sizeof *larger);
    if (larger == NULL)
        return false;
    holdings->blocks = larger;
    holdings->size *= 2;
    for (size_t i = 0; i < holdings->size / 2; i++)
        if (before[i].address != 0)
            place(holdings, before[i]);
    free(before);
    return true;
}

/* Once a counter is at its maximum it stays there, since its true value is unknown. */
static void count(vmh_holdings *holdings, const void *address, int change)
{
    _Atomic(uint8_t) *counter = &holdings->filter[vmh_holdings_hash(address)];
    uint8_t now = atomic_load_explicit(counter, memory_order_relaxed);
    if (now != UINT8_MAX)
        atomic_store_explicit(counter, (uint8_t)(now + change), memory_order_relaxed);
}

void vmh_holdings_add(vmh_holdings *holdings, const void *address, int64_t bytes, int32_t node)
{
    vmh_holdings_remove(holdings, address); /* a stale record of a block whose free was not seen */
    if (node < 0 || !has_room(holdings))
        return;
    while (holdings->holding_count <= node) {
        vmh_holding *grown =
            vmh_grown(holdings->holdings, &holdings->holding_room, holdings->holding_count, sizeof *grown);
        if (grown == NULL)
            return;
        holdings->holdings = grown;
        grown[holdings->holding_count++] = (vmh_holding){0, 0};
    }
    place(holdings, (vmh_held_block){(uintptr_t)address, bytes, node});
    holdings->used++;
    holdings->holdings[node].bytes += bytes;
    count(holdings, address, 1);
}

void vmh_holdings_remove(vmh_holdings *holdings, const void *address)
{
    if (!vmh_holdings_may_have(holdings, address))
        return;
    size_t at = slot_of(holdings, (uintptr_t)address), mask = holdings->size - 1;
    while (holdings->blocks[at].address != (uintptr_t)address) {
        if (holdings->blocks[at].address == 0)
            return;
        at = (at + 1) & mask;
    }
    vmh_held_block found = holdings->blocks[at];
    /* Blocks behind it move up, so that each can still be found from its own slot. */
    for (size_t next = (at + 1) & mask; holdings->blocks[next].address != 0; next = (next + 1) & mask) {
        size_t own = slot_of(holdings, holdings->blocks[next].address);
        if (((next - own) & mask) >= ((next - at) & mask)) {
            holdings->blocks[at] = holdings->blocks[next];
            at = next;
        }
    }
    holdings->blocks[at] = (vmh_held_block){0};
    holdings->used--;
    holdings->holdings[found.node].bytes -= found.bytes;
    count(holdings, address, -1);
}

/* ---- the mark ---- */

void vmh_holdings_mark(vmh_holdings *holdings, int32_t node, int64_t bytes, bool passed)
{
    if (holdings->passed)
        return;
    holdings->passed = passed;
    holdings->marked = true;
    holdings->asked_node = node;
    holdings->asked_bytes = bytes;
    for (int32_t i = 0; i < holdings->holding_count; i++)
        holdings->holdings[i].marked = holdings->holdings[i].bytes;
}

void vmh_holdings_unmark(vmh_holdings *holdings)
{
    holdings->marked = holdings->passed = false;
    for (int32_t i = 0; i < holdings->holding_count; i++)
        holdings->holdings[i].marked = 0;
}

typedef struct text {
    char *bytes; /* owned */
    size_t size, room;
    bool failed;
} text;

static void put(text *to, const char *bytes, size_t size)
{
    if (to->failed)
        return;
    if (to->size + size + 1 > to->room) {
        size_t room = to->room * 2 + size + 256;
        char *grown = realloc(to->bytes, room);
        if (grown == NULL) {
            to->failed = true;
            return;
        }
        to->bytes = grown;
        to->room = room;
    }
    memcpy(to->bytes + to->size, bytes, size);
    to->size += size;
    to->bytes[to->size] = 0;
}

/* Names come from the bundle: control characters, which separate fields and lines, become '?'. */
static void put_name(text *to, const char *name)
{
    put(to, "\x1f", 1);
    for (; *name != 0; name++)
        put(to, (unsigned char)*name < 0x20 ? "?" : name, 1);
}

static void put_stack(text *to, const vmh_holdings *holdings, const char *kind, int64_t bytes, int32_t node)
{
    char number[64];
    int size = snprintf(number, sizeof number, "%s %lld", kind, (long long)bytes);
    put(to, number, (size_t)size);
    for (; node >= 0 && node != holdings->root; node = holdings->tree.nodes[node].parent) {
        const vmh_profile_node *frame = &holdings->tree.nodes[node];
        const vmh_function *function = &holdings->tree.functions.items[frame->function];
        put_name(to, function->file);
        size = snprintf(number, sizeof number, "\x1f%d", (int)frame->line);
        put(to, number, (size_t)size);
        put_name(to, function->name);
    }
    put(to, "\n", 1);
}

char *vmh_holdings_report(vmh_holdings *holdings)
{
    text report = {0};
    vmh_holdings_lock(holdings);
    if (holdings->marked) {
        put_stack(&report, holdings, "asked", holdings->asked_bytes, holdings->asked_node);
        int64_t other = 0, last = INT64_MAX;
        int32_t last_node = -1;
        for (int n = 0;; n++) { /* in descending order: each step finds the largest one after `last` */
            int32_t found = -1;
            for (int32_t i = 0; i < holdings->holding_count; i++) {
                int64_t bytes = holdings->holdings[i].marked;
                if (bytes > 0 && (bytes < last || (bytes == last && i > last_node))
                    && (found < 0 || bytes > holdings->holdings[found].marked))
                    found = i;
            }
            if (found < 0)
                break;
            last = holdings->holdings[found].marked;
            last_node = found;
            if (n == VMH_HOLDINGS_REPORTED) {
                for (int32_t i = 0; i < holdings->holding_count; i++) {
                    int64_t bytes = holdings->holdings[i].marked;
                    if (bytes < last || (bytes == last && i >= last_node))
                        other += bytes;
                }
                put_stack(&report, holdings, "other", other, -1);
                break;
            }
            put_stack(&report, holdings, "held", last, found);
        }
    }
    vmh_holdings_unlock(holdings);
    if (report.failed) {
        free(report.bytes);
        return NULL;
    }
    return report.bytes;
}
