/* Sorting by a number of 64 bits. */
#ifndef VMF_SORT_H
#define VMF_SORT_H

#include <stddef.h>
#include <stdint.h>

typedef struct vmf_key {
    uint64_t key;
    size_t place; /* of what the key is of */
} vmf_key;

/* By key, those of one key by place; they come by place. `room`: for as many more, its contents are lost. */
void vmf_sort(vmf_key *keys, vmf_key *room, size_t count);

/* A key in the order of values, which are no NaN, and back. */
uint64_t vmf_key_of(double value);
double vmf_value_of(uint64_t key);

#endif
