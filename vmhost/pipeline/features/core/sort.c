#include "core/sort.h"

#include <string.h>

enum { FEW = 256, RUN = 12, BITS = 8, DIGITS = 64 / BITS, RANGE = 1 << BITS }; /* FEW: below it merge sort is faster */

static void insert(vmf_key *keys, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        const vmf_key here = keys[i];
        size_t at = i;
        for (; at > 0 && keys[at - 1].key > here.key; at--)
            keys[at] = keys[at - 1];
        keys[at] = here;
    }
}

static void merge_two(const vmf_key *left, size_t left_count, const vmf_key *right, size_t right_count, vmf_key *to)
{
    const vmf_key *const left_end = left + left_count, *const right_end = right + right_count;
    while (left < left_end && right < right_end)
        *to++ = right->key < left->key ? *right++ : *left++;
    memcpy(to, left, (size_t)(left_end - left) * sizeof *to);
    memcpy(to + (left_end - left), right, (size_t)(right_end - right) * sizeof *to);
}

static void sort_few(vmf_key *keys, vmf_key *room, size_t count)
{
    for (size_t at = 0; at < count; at += RUN)
        insert(keys + at, count - at < RUN ? count - at : RUN);
    vmf_key *from = keys, *to = room;
    for (size_t size = RUN; size < count; size *= 2) {
        for (size_t at = 0; at < count; at += 2 * size) {
            const size_t left = count - at < size ? count - at : size;
            const size_t right = count - at - left < size ? count - at - left : size;
            merge_two(from + at, left, from + at + left, right, to + at);
        }
        vmf_key *swapped = from;
        from = to;
        to = swapped;
    }
    if (from != keys)
        memcpy(keys, from, count * sizeof *keys);
}

/* Radix sort from the lowest digit to the highest, each pass stable. A digit that all keys share is skipped. */
void vmf_sort(vmf_key *keys, vmf_key *room, size_t count)
{
    if (count < FEW) {
        sort_few(keys, room, count);
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
