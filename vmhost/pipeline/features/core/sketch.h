/* Sketches of a window: how many events, how many different values, and their quantiles, in a bounded room, whatever
 * number of events comes. No Python in here.
 *
 * A window is cut into VMF_PANES panes, which begin at whole multiples of their length since 1970; one more is there
 * for the window's begin. A pane counts wholly as long as any of it is in the window: a sketch's window is up to one
 * part in VMF_PANES longer than it says. A pane holds the same whatever the order in which its events came.
 *
 * Different values: HyperLogLog (Flajolet and others, 2007) with 1024 registers, standard error 3.25 %; few values are
 * counted without registers and almost exactly. Quantiles: counts of values in bins, each 2 % wider than the one before
 * (DDSketch; Masson, Rim and Lee, 2019): the answer is within 1 % of the value. A pane has at most VMF_BINS bins;
 * beyond that its lowest are put together.
 */
#ifndef VMF_SKETCH_H
#define VMF_SKETCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/operators.h"

enum { VMF_PANES = 24, VMF_REGISTERS = 1024, VMF_BINS = 512 };

typedef struct vmf_bin {
    int32_t place; /* grows with the value; 0: of zero */
    uint32_t count;
} vmf_bin;

typedef struct vmf_pane {
    int64_t number; /* its begin over the panes' length */
    uint64_t events;
    uint16_t *marks; /* owned: register << 6 | rank, sorted; a register's highest alone. NULL: `registers`, or none */
    uint8_t *registers; /* owned, VMF_REGISTERS; NULL: there are few */
    vmf_bin *bins;      /* owned, sorted */
    uint32_t mark_count, mark_room, bin_count, bin_room;
} vmf_pane;

/* Of one stream and window. */
typedef struct vmf_sketch {
    int64_t pane_ms;
    bool distinct, quantiles; /* what is kept */
    vmf_pane panes[VMF_PANES + 2];
    size_t count; /* sorted by number */
} vmf_sketch;

/* Takes an event; `latest_ms`: the latest of all that came, this one included. Panes that no read at `latest_ms` or
 * after wants go. -1: no memory, and nothing has changed but for panes that went. */
int vmf_sketch_add(vmf_sketch *sketch, const vmf_item *item, int64_t latest_ms);

/* Of the panes that the window that ends at `at_ms` touches. NAN: of nothing. *failed is set where there is no memory.
 */
typedef double vmf_sketch_operator(const vmf_sketch *sketch, int64_t at_ms, double parameter, bool *failed);

typedef struct vmf_sketch_entry {
    const char *name;
    vmf_sketch_operator *compute;
    bool wants, distinct, quantiles; /* a parameter; what the sketch must keep */
    const char *says;
} vmf_sketch_entry;

extern const vmf_sketch_entry vmf_sketch_entries[];
extern const size_t vmf_sketch_entry_count;

size_t vmf_sketch_bytes(const vmf_sketch *sketch);
void vmf_sketch_clear(vmf_sketch *sketch);

#endif
