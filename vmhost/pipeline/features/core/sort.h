/* Sorting by 64-bit keys. */
#ifndef VMF_SORT_H
#define VMF_SORT_H

#include <stddef.h>
#include <stdint.h>

typedef struct vmf_key {
    uint64_t key;
    size_t place; /* index of the key's item */
} vmf_key;

/* Sorts by key, then by place; the input is in order of place. `room`: scratch for `count` more keys. */
void vmf_sort(vmf_key *keys, vmf_key *room, size_t count);

/* A key whose order is that of the values (no NaN), and back. */
uint64_t vmf_key_of(double value);
double vmf_value_of(uint64_t key);

#endif
