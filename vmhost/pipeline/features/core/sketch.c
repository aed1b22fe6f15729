#include "core/sketch.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double GAMMA = 1.01 / 0.99; /* ratio of a bin's bounds: a relative error of 1 % */
enum {
    RANK_BITS = 6,
    REGISTER_BITS = 10,
    FEW = 256,                  /* marks of a pane; more of them take as much memory as the registers */
    SHIFT = 37300,              /* added to a bin's number: the smallest double above 0 is in bin -37221 */
    PLACE_OF_INFINITY = 100000, /* beyond all bins of finite values */
};

static int64_t floor_over(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* ---- distinct values */

/* Mixes the bits of an identity, which may be those of a number (the finalizer of MurmurHash3, by Appleby). */
static uint64_t mixed(uint64_t bits)
{
    bits ^= bits >> 33;
    bits *= 0xff51afd7ed558ccdU;
    bits ^= bits >> 33;
    bits *= 0xc4ceb9fe1a85ec53U;
    return bits ^ bits >> 33;
}

static uint16_t mark_of(uint64_t identity)
{
    const uint64_t bits = mixed(identity), rest = bits << REGISTER_BITS;
    const unsigned rank = rest == 0 ? 64 - REGISTER_BITS + 1 : (unsigned)__builtin_clzll(rest) + 1;
    return (uint16_t)(bits >> (64 - REGISTER_BITS) << RANK_BITS | rank);
}

static void raise_register(uint8_t *registers, uint16_t mark)
{
    uint8_t *at = &registers[mark >> RANK_BITS];
    const uint8_t rank = mark & ((1 << RANK_BITS) - 1);
    *at = rank > *at ? rank : *at;
}

/* The index of the first mark of this register or a later one. */
static uint32_t place_of_mark(const vmf_pane *pane, uint16_t mark)
{
    uint32_t low = 0, high = pane->mark_count;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (pane->marks[middle] >> RANK_BITS < mark >> RANK_BITS)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Makes room, so that adding the mark needs no memory. -1: no memory. */
static int room_for_mark(vmf_pane *pane)
{
    if (pane->registers != NULL || pane->mark_count < pane->mark_room)
        return 0;
    if (pane->mark_room == FEW) {
        uint8_t *registers = calloc(VMF_REGISTERS, 1);
        if (registers == NULL)
            return -1;
        for (uint32_t i = 0; i < pane->mark_count; i++)
            raise_register(registers, pane->marks[i]);
        free(pane->marks);
        pane->marks = NULL;
        pane->mark_count = pane->mark_room = 0;
        pane->registers = registers;
        return 0;
    }
    const uint32_t room = pane->mark_room == 0 ? 4 : pane->mark_room * 2;
    uint16_t *marks = realloc(pane->marks, room * sizeof *marks);
    if (marks == NULL)
        return -1;
    pane->marks = marks;
    pane->mark_room = room;
    return 0;
}

static void add_mark(vmf_pane *pane, uint16_t mark)
{
    if (pane->registers != NULL) {
        raise_register(pane->registers, mark);
        return;
    }
    const uint32_t at = place_of_mark(pane, mark);
    if (at < pane->mark_count && pane->marks[at] >> RANK_BITS == mark >> RANK_BITS) {
        pane->marks[at] = mark > pane->marks[at] ? mark : pane->marks[at];
        return;
    }
    memmove(&pane->marks[at + 1], &pane->marks[at], (pane->mark_count - at) * sizeof *pane->marks);
    pane->marks[at] = mark;
    pane->mark_count++;
}

/* ---- quantiles */

static int32_t place_of_value(double value)
{
    const double size = fabs(value);
    if (size == 0)
        return 0;
    const int32_t place = isinf(size) ? PLACE_OF_INFINITY : (int32_t)ceil(log(size) / log(GAMMA)) + SHIFT;
    return value < 0 ? -place : place;
}

/* The geometric middle of a bin. */
static double value_of_place(int32_t place)
{
    if (place == 0)
        return 0;
    const int32_t size = place < 0 ? -place : place;
    const double middle = exp((size - SHIFT) * log(GAMMA) + log(2 / (1 + GAMMA)));
    const double value = size == PLACE_OF_INFINITY ? INFINITY : middle > DBL_MAX ? DBL_MAX : middle;
    return place < 0 ? -value : value;
}

static int room_for_bin(vmf_pane *pane)
{
    if (pane->bin_count < pane->bin_room || pane->bin_count == VMF_BINS)
        return 0;
    const uint32_t room = pane->bin_room == 0 ? 4 : pane->bin_room * 2;
    vmf_bin *bins = realloc(pane->bins, room * sizeof *bins);
    if (bins == NULL)
        return -1;
    pane->bins = bins;
    pane->bin_room = room;
    return 0;
}

static void add_bin(vmf_pane *pane, int32_t place)
{
    uint32_t low = 0, high = pane->bin_count;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (pane->bins[middle].place < place)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0 && pane->bin_count == VMF_BINS) /* lower values share the lowest bin */
        place = pane->bins[0].place;
    if (low < pane->bin_count && pane->bins[low].place == place) {
        pane->bins[low].count += pane->bins[low].count < UINT32_MAX;
        return;
    }
    if (pane->bin_count < VMF_BINS) {
        memmove(&pane->bins[low + 1], &pane->bins[low], (pane->bin_count - low) * sizeof *pane->bins);
        pane->bin_count++;
    } else { /* merge the lowest two; bins below `low` move down */
        const uint64_t sum = (uint64_t)pane->bins[0].count + (low > 1 ? pane->bins[1].count : 0);
        low--;
        if (low > 0) {
            memmove(&pane->bins[0], &pane->bins[1], low * sizeof *pane->bins);
            pane->bins[0].count = sum > UINT32_MAX ? UINT32_MAX : (uint32_t)sum;
        } else {
            pane->bins[0] = (vmf_bin){place, (uint32_t)(sum + 1 > UINT32_MAX ? UINT32_MAX : sum + 1)};
            return;
        }
    }
    pane->bins[low] = (vmf_bin){place, 1};
}

/* ---- panes */

static void clear_pane(vmf_pane *pane)
{
    free(pane->marks);
    free(pane->registers);
    free(pane->bins);
}

/* The number of the first pane that overlaps a window ending at `at_ms`. */
static int64_t first_pane(const vmf_sketch *sketch, int64_t at_ms)
{
    return floor_over(at_ms - VMF_PANES * sketch->pane_ms + 1, sketch->pane_ms);
}

/* The pane of that number, added where it is missing. There is room: at most VMF_PANES + 1 are live. */
static vmf_pane *pane_of(vmf_sketch *sketch, int64_t number)
{
    size_t at = sketch->count;
    while (at > 0 && sketch->panes[at - 1].number >= number)
        at--;
    if (at == sketch->count || sketch->panes[at].number != number) {
        memmove(&sketch->panes[at + 1], &sketch->panes[at], (sketch->count - at) * sizeof *sketch->panes);
        sketch->panes[at] = (vmf_pane){.number = number};
        sketch->count++;
    }
    return &sketch->panes[at];
}

int vmf_sketch_add(vmf_sketch *sketch, const vmf_item *item, int64_t latest_ms)
{
    const int64_t first = first_pane(sketch, latest_ms), number = floor_over(item->time_ms, sketch->pane_ms);
    size_t gone = 0;
    while (gone < sketch->count && sketch->panes[gone].number < first)
        clear_pane(&sketch->panes[gone++]);
    sketch->count -= gone;
    memmove(sketch->panes, sketch->panes + gone, sketch->count * sizeof *sketch->panes);
    if (number < first)
        return 0;
    vmf_pane *pane = pane_of(sketch, number);
    const bool valued = !isnan(item->value);
    if (valued && ((sketch->distinct && room_for_mark(pane) < 0) || (sketch->quantiles && room_for_bin(pane) < 0)))
        return -1;
    pane->events++;
    if (valued && sketch->distinct)
        add_mark(pane, mark_of(item->identity));
    if (valued && sketch->quantiles)
        add_bin(pane, place_of_value(item->value));
    return 0;
}

size_t vmf_sketch_bytes(const vmf_sketch *sketch)
{
    size_t bytes = sizeof *sketch;
    for (size_t i = 0; i < sketch->count; i++) {
        const vmf_pane *pane = &sketch->panes[i];
        bytes += pane->mark_room * sizeof *pane->marks + pane->bin_room * sizeof *pane->bins
                 + (pane->registers != NULL ? VMF_REGISTERS : 0);
    }
    return bytes;
}

void vmf_sketch_clear(vmf_sketch *sketch)
{
    for (size_t i = 0; i < sketch->count; i++)
        clear_pane(&sketch->panes[i]);
    sketch->count = 0;
}

/* ---- operators */

/* For each pane that overlaps the window ending at `at_ms`. */
#define EACH_PANE(sketch, at_ms, pane) \
    for (const vmf_pane *pane = (sketch)->panes, *end_ = pane + (sketch)->count; pane < end_; pane++) \
        if (pane->number >= first_pane(sketch, at_ms) && pane->number <= floor_over(at_ms, (sketch)->pane_ms))

static double approximate_count(const vmf_sketch *sketch, int64_t at_ms, double parameter, bool *failed)
{
    (void)parameter, (void)failed;
    uint64_t events = 0;
    EACH_PANE(sketch, at_ms, pane) events += pane->events;
    return (double)events;
}

static double approximate_distinct(const vmf_sketch *sketch, int64_t at_ms, double parameter, bool *failed)
{
    (void)parameter, (void)failed;
    uint8_t registers[VMF_REGISTERS] = {0};
    EACH_PANE(sketch, at_ms, pane)
    {
        for (uint32_t i = 0; i < pane->mark_count; i++)
            raise_register(registers, pane->marks[i]);
        for (size_t i = 0; pane->registers != NULL && i < VMF_REGISTERS; i++)
            registers[i] = pane->registers[i] > registers[i] ? pane->registers[i] : registers[i];
    }
    double sum = 0;
    unsigned zeros = 0;
    for (size_t i = 0; i < VMF_REGISTERS; i++) {
        sum += ldexp(1, -registers[i]);
        zeros += registers[i] == 0;
    }
    const double m = VMF_REGISTERS, estimate = 0.7213 / (1 + 1.079 / m) * m * m / sum;
    return floor((estimate <= 2.5 * m && zeros > 0 ? m * log(m / zeros) : estimate) + 0.5);
}

static int by_place(const void *a, const void *b)
{
    const vmf_bin *x = a, *y = b;
    return (x->place > y->place) - (x->place < y->place);
}

/* The value at rank floor(q (n - 1)) of n. */
static double approximate_quantile(const vmf_sketch *sketch, int64_t at_ms, double parameter, bool *failed)
{
    size_t count = 0;
    uint64_t values = 0;
    EACH_PANE(sketch, at_ms, pane) count += pane->bin_count;
    if (count == 0 || !(parameter >= 0 && parameter <= 1))
        return NAN;
    vmf_bin *bins = malloc(count * sizeof *bins);
    if (bins == NULL) {
        *failed = true;
        return NAN;
    }
    count = 0;
    EACH_PANE(sketch, at_ms, pane)
    {
        memcpy(bins + count, pane->bins, pane->bin_count * sizeof *bins);
        count += pane->bin_count;
    }
    qsort(bins, count, sizeof *bins, by_place);
    for (size_t i = 0; i < count; i++)
        values += bins[i].count;
    const double rank = floor(parameter * (double)(values - 1));
    uint64_t before = 0;
    size_t at = 0;
    while (at + 1 < count && (double)(before + bins[at].count) <= rank)
        before += bins[at++].count;
    const double found = value_of_place(bins[at].place);
    free(bins);
    return found;
}

const vmf_sketch_entry vmf_sketch_entries[] = {
    {"approximate_count", approximate_count, false, false, false, "events; its window is up to 1/24 longer"},
    {"approximate_distinct", approximate_distinct, false, true, false,
     "different values, with a standard error of 3.25 %; as above"},
    {"approximate_quantile", approximate_quantile, true, false, true,
     "the value at the rank of the parameter, within 1 %; as above"},
};
const size_t vmf_sketch_entry_count = sizeof vmf_sketch_entries / sizeof *vmf_sketch_entries;
