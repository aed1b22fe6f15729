/* Sketches of a window: the number of events, the number of distinct values and the values' quantiles, in bounded
 * memory, however many events come. No Python in here.
 *
 * A window is cut into VMF_PANES panes, which begin at whole multiples of their length since 1970, and one more for the
 * begin of the window. A pane counts as a whole while any of it is in the window, so a sketch's window is longer than
 * its nominal length by up to 1/VMF_PANES. A pane's contents do not depend on the order of its events.
 *
 * Distinct values: HyperLogLog (Flajolet and others, 2007) with 1024 registers, standard error 3.25 %; a small number
 * is counted without registers and almost exactly. Quantiles: counts of values in bins, each 2 % wider than the one
 * before (DDSketch; Masson, Rim and Lee, 2019); the result is within 1 % of the value. A pane has at most VMF_BINS
 * bins; beyond that its lowest ones are merged.
 */
#ifndef VMF_SKETCH_H
#define VMF_SKETCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/operators.h"

enum { VMF_PANES = 24, VMF_REGISTERS = 1024, VMF_BINS = 512 };

typedef struct vmf_bin {
    int32_t place; /* ascending with the value; 0: the value 0 */
    uint32_t count;
} vmf_bin;

typedef struct vmf_pane {
    int64_t number; /* its begin divided by the panes' length */
    uint64_t events;
    uint16_t *marks; /* owned: register << 6 | rank, sorted, the highest of each register. NULL: `registers`, or none */
    uint8_t *registers; /* owned, VMF_REGISTERS; NULL: few values, see marks */
    vmf_bin *bins;      /* owned, sorted */
    uint32_t mark_count, mark_room, bin_count, bin_room;
} vmf_pane;

/* The sketch of one stream and window. */
typedef struct vmf_sketch {
    int64_t pane_ms;
    bool distinct, quantiles; /* which of the two are kept */
    vmf_pane panes[VMF_PANES + 2];
    size_t count; /* sorted by number */
} vmf_sketch;

/* Adds an event. `latest_ms`: the latest time of all events so far, this one included; panes that no window ending then
 * or later overlaps are dropped. -1: no memory, and nothing has changed except for dropped panes. */
int vmf_sketch_add(vmf_sketch *sketch, const vmf_item *item, int64_t latest_ms);

/* A result from the panes that the window ending at `at_ms` overlaps. NAN: none. *failed is set where there is no
 * memory.
 */
typedef double vmf_sketch_operator(const vmf_sketch *sketch, int64_t at_ms, double parameter, bool *failed);

typedef struct vmf_sketch_entry {
    const char *name;
    vmf_sketch_operator *compute;
    bool wants, distinct, quantiles; /* takes a parameter; needs these kept */
    const char *says;
} vmf_sketch_entry;

extern const vmf_sketch_entry vmf_sketch_entries[];
extern const size_t vmf_sketch_entry_count;

size_t vmf_sketch_bytes(const vmf_sketch *sketch);
void vmf_sketch_clear(vmf_sketch *sketch);

#endif
