#include "core/sort.h"

#include <stdlib.h>
#include <string.h>

enum { FEW = 192, BITS = 8, DIGITS = 64 / BITS, RANGE = 1 << BITS }; /* FEW: below it, comparing is faster */

static int by_key(const void *a, const void *b)
{
    const vmf_key *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return (x->place > y->place) - (x->place < y->place);
}

/* From the lowest digit to the highest, each pass stable. A digit that all keys share needs none. */
void vmf_sort(vmf_key *keys, vmf_key *room, size_t count)
{
    if (count < FEW) {
        qsort(keys, count, sizeof *keys, by_key);
        return;
    }
    size_t counts[DIGITS][RANGE] = {0};
    for (size_t i = 0; i < count; i++)
        for (int digit = 0; digit < DIGITS; digit++)
            counts[digit][keys[i].key >> digit * BITS & (RANGE - 1)]++;
    vmf_key *from = keys, *to = room;
    for (int digit = 0; digit < DIGITS; digit++) {
        size_t *at = counts[digit], before = 0;
        if (at[keys[0].key >> digit * BITS & (RANGE - 1)] == count)
            continue;
        for (int value = 0; value < RANGE; value++) {
            const size_t here = at[value];
            at[value] = before;
            before += here;
        }
        for (size_t i = 0; i < count; i++)
            to[at[from[i].key >> digit * BITS & (RANGE - 1)]++] = from[i];
        vmf_key *swapped = from;
        from = to;
        to = swapped;
    }
    if (from != keys)
        memcpy(keys, from, count * sizeof *keys);
}

uint64_t vmf_key_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits >> 63 ? ~bits : bits | UINT64_C(1) << 63;
}

double vmf_value_of(uint64_t key)
{
    const uint64_t bits = key >> 63 ? key & ~(UINT64_C(1) << 63) : ~key;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
