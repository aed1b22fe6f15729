/* Philox's blocks for sequential drawing: random.c generates them, distributions.c consumes them. */
#ifndef VME_RANDOM_PARTS_H
#define VME_RANDOM_PARTS_H

#include "runtime/internal.h"
#include "vme_random.h"

enum { VME_PHILOX_WORDS = 64 };
/* Generates the words of the 16 blocks after `counter`. */
void vme_philox_blocks(const uint64_t key[2], const uint64_t counter[4], uint64_t words[VME_PHILOX_WORDS]);
/* Adds `blocks` to the 256-bit counter. */
void vme_philox_advance(uint64_t counter[4], uint64_t blocks);

#endif
