#include "core/operators.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/pairs.h"
#include "core/sort.h"

static const double SECOND = 1e3, HOUR = 36e5, DAY = 864e5; /* milliseconds */

void vmf_window_end(vmf_window *window)
{
    free(window->order);
    free(window->groups);
    window->order = NULL;
    window->groups = NULL;
}

/* ---- passes */

static bool has_value(const vmf_item *item) { return !isnan(item->value); }

static void pass_sums(vmf_window *w)
{
    if (w->summed)
        return;
    w->summed = true;
    w->least = INFINITY;
    w->most = -INFINITY;
    for (size_t i = 0; i < w->count; i++) {
        const double x = w->items[i].value;
        if (isnan(x))
            continue;
        w->valued++;
        w->sum += x;
        w->absolute += fabs(x);
        w->squares += x * x;
        w->least = x < w->least ? x : w->least;
        w->most = x > w->most ? x : w->most;
        w->positive += x > 0;
        w->negative += x < 0;
        w->zero += x == 0;
        if (x > 0) {
            w->logs += log(x);
            w->inverses += 1 / x;
        }
    }
    w->mean = w->valued == 0 ? NAN : w->sum / (double)w->valued;
    for (size_t i = 0; i < w->count; i++)
        if (has_value(&w->items[i])) {
            const double d = w->items[i].value - w->mean;
            w->m2 += d * d;
            w->m3 += d * d * d;
            w->m4 += d * d * d * d;
        }
}

/* Room for `count` keys and for sorting them; the caller frees it. NULL: no memory. */
static vmf_key *keys_for(size_t count) { return malloc((2 * count + 1) * sizeof(vmf_key)); }

/* Ascending. false: no memory. */
static bool sort_values(double *values, size_t count)
{
    vmf_key *keys = keys_for(count);
    if (keys == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        keys[i] = (vmf_key){vmf_key_of(values[i]), i};
    vmf_sort(keys, keys + count, count);
    for (size_t i = 0; i < count; i++)
        values[i] = vmf_value_of(keys[i].key);
    free(keys);
    return true;
}

static void pass_order(vmf_window *w)
{
    pass_sums(w);
    if (w->sorted)
        return;
    w->sorted = true;
    w->order = malloc((w->valued + 1) * sizeof *w->order);
    size_t n = 0;
    for (size_t i = 0; i < w->count && w->order != NULL; i++)
        if (has_value(&w->items[i]))
            w->order[n++] = w->items[i].value;
    if (w->order == NULL || !sort_values(w->order, n)) {
        w->failed = true;
        w->valued = 0;
    }
}

/* Groups items of equal value; items without a value are in no group. */
static void pass_groups(vmf_window *w)
{
    if (w->grouped)
        return;
    w->grouped = true;
    w->groups = malloc((w->count + 1) * sizeof *w->groups);
    vmf_key *keys = keys_for(w->count);
    if (w->groups == NULL || keys == NULL) {
        w->failed = true;
        free(keys);
        return;
    }
    size_t n = 0, made = 0;
    for (size_t i = 0; i < w->count; i++)
        if (has_value(&w->items[i]))
            keys[n++] = (vmf_key){w->items[i].identity, i};
    vmf_sort(keys, keys + n, n);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || keys[i].key != keys[i - 1].key)
            w->groups[made++] = (vmf_group){keys[i].key, 0, 0, w->items[keys[i].place].value};
        w->groups[made - 1].count++;
        w->groups[made - 1].last = keys[i].place;
    }
    free(keys);
    w->group_count = made;
}

static double share(double part, double whole) { return whole == 0 ? NAN : part / whole; }

/* The value at rank q in [0, 1], interpolated between its neighbours (Hyndman and Fan, type 7). */
static double quantile_of(vmf_window *w, double q)
{
    pass_order(w);
    if (w->valued == 0 || !(q >= 0 && q <= 1))
        return NAN;
    const double at = q * (double)(w->valued - 1);
    const size_t below = (size_t)at, above = below + 1 < w->valued ? below + 1 : below;
    return w->order[below] + (w->order[above] - w->order[below]) * (at - (double)below);
}

/* The index of the next item with a value from `i` on; count: none. */
static size_t next_valued(const vmf_window *w, size_t i)
{
    while (i < w->count && !has_value(&w->items[i]))
        i++;
    return i;
}

static size_t last_valued(const vmf_window *w)
{
    size_t i = w->count;
    while (i > 0 && !has_value(&w->items[i - 1]))
        i--;
    return i == 0 ? w->count : i - 1;
}

/* For each pair of successive values: (before, after). */
#define EACH_STEP(w, a, b) \
    for (size_t a = next_valued(w, 0), b = a < (w)->count ? next_valued(w, a + 1) : (w)->count; b < (w)->count; \
         a = b, b = next_valued(w, b + 1))

static double step_of(const vmf_window *w, size_t a, size_t b) { return w->items[b].value - w->items[a].value; }

/* ---- counts */
#define OPERATOR(name) static double op_##name(vmf_window *w, double p)
#define UNUSED         (void)p

OPERATOR(count)
{
    UNUSED;
    return (double)w->count;
}
OPERATOR(valued)
{
    UNUSED;
    pass_sums(w);
    return (double)w->valued;
}
OPERATOR(missing)
{
    UNUSED;
    pass_sums(w);
    return (double)(w->count - w->valued);
}
OPERATOR(any)
{
    UNUSED;
    return w->count > 0;
}
OPERATOR(at_least) { return (double)w->count >= p; }
OPERATOR(positive)
{
    UNUSED;
    pass_sums(w);
    return (double)w->positive;
}
OPERATOR(negative)
{
    UNUSED;
    pass_sums(w);
    return (double)w->negative;
}
OPERATOR(zeros)
{
    UNUSED;
    pass_sums(w);
    return (double)w->zero;
}
OPERATOR(above)
{
    size_t n = 0;
    for (size_t i = 0; i < w->count; i++)
        n += w->items[i].value > p;
    return (double)n;
}
OPERATOR(below)
{
    size_t n = 0;
    for (size_t i = 0; i < w->count; i++)
        n += w->items[i].value < p;
    return (double)n;
}
OPERATOR(equal)
{
    size_t n = 0;
    for (size_t i = 0; i < w->count; i++)
        n += w->items[i].value == p;
    return (double)n;
}
OPERATOR(above_share)
{
    pass_sums(w);
    return share(op_above(w, p), (double)w->valued);
}
OPERATOR(below_share)
{
    pass_sums(w);
    return share(op_below(w, p), (double)w->valued);
}
OPERATOR(equal_share)
{
    pass_sums(w);
    return share(op_equal(w, p), (double)w->valued);
}
OPERATOR(positive_share)
{
    UNUSED;
    pass_sums(w);
    return share((double)w->positive, (double)w->valued);
}
OPERATOR(missing_share)
{
    UNUSED;
    pass_sums(w);
    return share((double)(w->count - w->valued), (double)w->count);
}

/* ---- sums and moments */
OPERATOR(sum)
{
    UNUSED;
    pass_sums(w);
    return w->sum;
}
OPERATOR(mean)
{
    UNUSED;
    pass_sums(w);
    return w->mean;
}
OPERATOR(least)
{
    UNUSED;
    pass_sums(w);
    return w->valued == 0 ? NAN : w->least;
}
OPERATOR(most)
{
    UNUSED;
    pass_sums(w);
    return w->valued == 0 ? NAN : w->most;
}
OPERATOR(range)
{
    UNUSED;
    pass_sums(w);
    return w->valued == 0 ? NAN : w->most - w->least;
}
OPERATOR(midrange)
{
    UNUSED;
    pass_sums(w);
    return w->valued == 0 ? NAN : (w->most + w->least) / 2;
}
OPERATOR(variance)
{
    UNUSED;
    pass_sums(w);
    return share(w->m2, (double)w->valued);
}
OPERATOR(sample_variance)
{
    UNUSED;
    pass_sums(w);
    return w->valued < 2 ? NAN : w->m2 / (double)(w->valued - 1);
}
OPERATOR(deviation) { return sqrt(op_variance(w, p)); }
OPERATOR(sample_deviation) { return sqrt(op_sample_variance(w, p)); }
OPERATOR(variation) { return share(op_deviation(w, p), fabs(w->mean)); }
OPERATOR(skewness)
{
    const double s = op_deviation(w, p);
    return w->valued == 0 || s == 0 ? NAN : w->m3 / (double)w->valued / (s * s * s);
}
OPERATOR(kurtosis)
{
    const double v = op_variance(w, p);
    return w->valued == 0 || v == 0 ? NAN : w->m4 / (double)w->valued / (v * v) - 3;
}
OPERATOR(root_mean_square)
{
    UNUSED;
    pass_sums(w);
    return sqrt(share(w->squares, (double)w->valued));
}
OPERATOR(sum_of_squares)
{
    UNUSED;
    pass_sums(w);
    return w->squares;
}
OPERATOR(absolute_sum)
{
    UNUSED;
    pass_sums(w);
    return w->absolute;
}
OPERATOR(absolute_mean)
{
    UNUSED;
    pass_sums(w);
    return share(w->absolute, (double)w->valued);
}
OPERATOR(geometric_mean)
{
    UNUSED;
    pass_sums(w);
    return w->positive == 0 ? NAN : exp(w->logs / (double)w->positive);
}
OPERATOR(harmonic_mean)
{
    UNUSED;
    pass_sums(w);
    return w->positive == 0 ? NAN : (double)w->positive / w->inverses;
}
OPERATOR(positive_sum)
{
    UNUSED;
    pass_sums(w);
    return (w->absolute + w->sum) / 2;
}
OPERATOR(negative_sum)
{
    UNUSED;
    pass_sums(w);
    return (w->sum - w->absolute) / 2;
}

/* ---- order */
OPERATOR(median)
{
    UNUSED;
    return quantile_of(w, 0.5);
}
OPERATOR(quantile) { return quantile_of(w, p); }
OPERATOR(lower_quartile)
{
    UNUSED;
    return quantile_of(w, 0.25);
}
OPERATOR(upper_quartile)
{
    UNUSED;
    return quantile_of(w, 0.75);
}
OPERATOR(quartile_range)
{
    UNUSED;
    return quantile_of(w, 0.75) - quantile_of(w, 0.25);
}
OPERATOR(percentile_90)
{
    UNUSED;
    return quantile_of(w, 0.9);
}
OPERATOR(percentile_95)
{
    UNUSED;
    return quantile_of(w, 0.95);
}
OPERATOR(percentile_99)
{
    UNUSED;
    return quantile_of(w, 0.99);
}
OPERATOR(trimmed_mean)
{
    pass_order(w);
    if (w->valued == 0 || !(p >= 0 && p < 0.5))
        return NAN;
    const size_t cut = (size_t)(p * (double)w->valued);
    double sum = 0;
    for (size_t i = cut; i < w->valued - cut; i++)
        sum += w->order[i];
    return sum / (double)(w->valued - 2 * cut);
}
OPERATOR(median_deviation)
{
    UNUSED;
    const double middle = quantile_of(w, 0.5);
    double *away = w->valued == 0 || w->failed ? NULL : malloc(w->valued * sizeof *away);
    if (away == NULL) {
        w->failed = w->failed || w->valued > 0;
        return NAN;
    }
    for (size_t i = 0; i < w->valued; i++)
        away[i] = fabs(w->order[i] - middle);
    if (!sort_values(away, w->valued)) {
        w->failed = true;
        free(away);
        return NAN;
    }
    const double at = 0.5 * (double)(w->valued - 1);
    const size_t below = (size_t)at, above = below + 1 < w->valued ? below + 1 : below;
    const double found = away[below] + (away[above] - away[below]) * (at - (double)below);
    free(away);
    return found;
}
OPERATOR(gini)
{
    UNUSED;
    pass_order(w);
    double weighted = 0;
    for (size_t i = 0; i < w->valued; i++)
        weighted += (double)(2 * i + 1) * w->order[i];
    const double n = (double)w->valued;
    return w->valued == 0 || w->sum <= 0 ? NAN : weighted / (n * w->sum) - 1;
}
OPERATOR(top_share)
{
    pass_order(w);
    if (w->valued == 0 || w->sum == 0 || !(p > 0 && p <= 1))
        return NAN;
    const size_t many = (size_t)ceil(p * (double)w->valued);
    double sum = 0;
    for (size_t i = w->valued - many; i < w->valued; i++)
        sum += w->order[i];
    return sum / w->sum;
}

/* ---- sequence */
OPERATOR(first)
{
    UNUSED;
    const size_t i = next_valued(w, 0);
    return i == w->count ? NAN : w->items[i].value;
}
/* The p-th value from the end, 1 being the last. */
OPERATOR(nth_last)
{
    double left = p;
    for (size_t i = w->count; i > 0; i--)
        if (has_value(&w->items[i - 1]) && (left -= 1) < 1)
            return w->items[i - 1].value;
    return NAN;
}
OPERATOR(nth_first)
{
    double left = p;
    for (size_t i = 0; i < w->count; i++)
        if (has_value(&w->items[i]) && (left -= 1) < 1)
            return w->items[i].value;
    return NAN;
}
OPERATOR(last)
{
    UNUSED;
    return op_nth_last(w, 1);
}
OPERATOR(previous)
{
    UNUSED;
    return op_nth_last(w, 2);
}
OPERATOR(change) { return op_last(w, p) - op_first(w, p); }
OPERATOR(last_change) { return op_last(w, p) - op_previous(w, p); }
OPERATOR(relative_change) { return share(op_change(w, p), fabs(op_first(w, p))); }
OPERATOR(absolute_change)
{
    UNUSED;
    double sum = 0;
    EACH_STEP(w, a, b) sum += fabs(step_of(w, a, b));
    return sum;
}
OPERATOR(mean_change)
{
    UNUSED;
    pass_sums(w);
    return w->valued < 2 ? NAN : op_change(w, 0) / (double)(w->valued - 1);
}
OPERATOR(largest_rise)
{
    UNUSED;
    double most = NAN;
    EACH_STEP(w, a, b) most = isnan(most) || step_of(w, a, b) > most ? step_of(w, a, b) : most;
    return most;
}
OPERATOR(largest_fall)
{
    UNUSED;
    double most = NAN;
    EACH_STEP(w, a, b) most = isnan(most) || -step_of(w, a, b) > most ? -step_of(w, a, b) : most;
    return most;
}
OPERATOR(rises)
{
    UNUSED;
    size_t n = 0;
    EACH_STEP(w, a, b) n += step_of(w, a, b) > 0;
    return (double)n;
}
OPERATOR(falls)
{
    UNUSED;
    size_t n = 0;
    EACH_STEP(w, a, b) n += step_of(w, a, b) < 0;
    return (double)n;
}
OPERATOR(longest_rise)
{
    UNUSED;
    size_t run = 0, most = 0;
    EACH_STEP(w, a, b)
    {
        run = step_of(w, a, b) > 0 ? run + 1 : 0;
        most = run > most ? run : most;
    }
    return (double)most;
}
OPERATOR(turns)
{
    UNUSED;
    size_t n = 0;
    double before = 0;
    EACH_STEP(w, a, b)
    {
        const double now = step_of(w, a, b);
        n += now * before < 0;
        before = now != 0 ? now : before;
    }
    return (double)n;
}
OPERATOR(autocorrelation)
{
    UNUSED;
    pass_sums(w);
    double sum = 0;
    EACH_STEP(w, a, b) sum += (w->items[a].value - w->mean) * (w->items[b].value - w->mean);
    return w->valued < 2 || w->m2 == 0 ? NAN : sum / w->m2;
}
OPERATOR(above_mean_share)
{
    UNUSED;
    pass_sums(w);
    return w->valued == 0 ? NAN : op_above(w, w->mean) / (double)w->valued;
}
OPERATOR(records)
{
    UNUSED;
    size_t n = 0;
    double most = -INFINITY;
    for (size_t i = 0; i < w->count; i++)
        if (w->items[i].value > most) {
            most = w->items[i].value;
            n++;
        }
    return (double)n;
}
static double since(const vmf_window *w, double value)
{
    for (size_t i = w->count; i > 0; i--)
        if (w->items[i - 1].value == value)
            return (double)(w->at_ms - w->items[i - 1].time_ms) / SECOND;
    return NAN;
}
OPERATOR(since_most)
{
    UNUSED;
    pass_sums(w);
    return since(w, w->most);
}
OPERATOR(since_least)
{
    UNUSED;
    pass_sums(w);
    return since(w, w->least);
}

/* ---- distinct values */
OPERATOR(distinct)
{
    UNUSED;
    pass_groups(w);
    return (double)w->group_count;
}
OPERATOR(distinct_share)
{
    UNUSED;
    pass_groups(w);
    pass_sums(w);
    return share((double)w->group_count, (double)w->valued);
}
/* The most frequent value; of several, the one that came last. */
static const vmf_group *mode_of(vmf_window *w)
{
    const vmf_group *found = NULL;
    pass_groups(w);
    for (size_t i = 0; i < w->group_count; i++) {
        const vmf_group *each = &w->groups[i];
        if (found == NULL || each->count > found->count || (each->count == found->count && each->last > found->last))
            found = each;
    }
    return found;
}
OPERATOR(mode)
{
    UNUSED;
    const vmf_group *found = mode_of(w);
    return found == NULL ? NAN : found->value;
}
OPERATOR(mode_count)
{
    UNUSED;
    const vmf_group *found = mode_of(w);
    return found == NULL ? 0 : (double)found->count;
}
OPERATOR(mode_share)
{
    pass_sums(w);
    return share(op_mode_count(w, p), (double)w->valued);
}
OPERATOR(entropy)
{
    UNUSED;
    double sum = 0;
    pass_sums(w);
    pass_groups(w);
    for (size_t i = 0; i < w->group_count; i++) {
        const double part = (double)w->groups[i].count / (double)w->valued;
        sum -= part * log2(part);
    }
    return w->valued == 0 ? NAN : sum + 0.0;
}
OPERATOR(repeated)
{
    UNUSED;
    size_t n = 0;
    pass_groups(w);
    for (size_t i = 0; i < w->group_count; i++)
        n += w->groups[i].count > 1;
    return (double)n;
}
OPERATOR(singles)
{
    UNUSED;
    pass_groups(w);
    return (double)w->group_count - op_repeated(w, 0);
}
OPERATOR(same_as_last)
{
    UNUSED;
    const size_t last = last_valued(w);
    size_t n = 0;
    for (size_t i = 0; last < w->count && i < w->count; i++)
        n += has_value(&w->items[i]) && w->items[i].identity == w->items[last].identity;
    return (double)n;
}
OPERATOR(run_length)
{
    UNUSED;
    const size_t last = last_valued(w);
    size_t n = 0;
    for (size_t i = w->count; last < w->count && i > 0; i--)
        if (has_value(&w->items[i - 1])) {
            if (w->items[i - 1].identity != w->items[last].identity)
                break;
            n++;
        }
    return (double)n;
}
OPERATOR(switches)
{
    UNUSED;
    size_t n = 0;
    EACH_STEP(w, a, b) n += w->items[a].identity != w->items[b].identity;
    return (double)n;
}

/* ---- time */
OPERATOR(recency)
{
    UNUSED;
    return w->count == 0 ? NAN : (double)(w->at_ms - w->items[w->count - 1].time_ms) / SECOND;
}
OPERATOR(age)
{
    UNUSED;
    return w->count == 0 ? NAN : (double)(w->at_ms - w->items[0].time_ms) / SECOND;
}
OPERATOR(span)
{
    UNUSED;
    return w->count == 0 ? NAN : (double)(w->items[w->count - 1].time_ms - w->items[0].time_ms) / SECOND;
}
OPERATOR(hourly_rate)
{
    UNUSED;
    return (double)w->count / ((double)w->span_ms / HOUR);
}
OPERATOR(daily_rate)
{
    UNUSED;
    return (double)w->count / ((double)w->span_ms / DAY);
}
static double gap(const vmf_window *w, size_t i)
{
    return (double)(w->items[i].time_ms - w->items[i - 1].time_ms) / SECOND;
}
OPERATOR(mean_gap) { return w->count < 2 ? NAN : op_span(w, p) / (double)(w->count - 1); }
OPERATOR(shortest_gap)
{
    UNUSED;
    double found = NAN;
    for (size_t i = 1; i < w->count; i++)
        found = isnan(found) || gap(w, i) < found ? gap(w, i) : found;
    return found;
}
OPERATOR(longest_gap)
{
    UNUSED;
    double found = NAN;
    for (size_t i = 1; i < w->count; i++)
        found = isnan(found) || gap(w, i) > found ? gap(w, i) : found;
    return found;
}
OPERATOR(gap_deviation)
{
    const double mean = op_mean_gap(w, p);
    double sum = 0;
    for (size_t i = 1; i < w->count; i++)
        sum += (gap(w, i) - mean) * (gap(w, i) - mean);
    return w->count < 2 ? NAN : sqrt(sum / (double)(w->count - 1));
}
OPERATOR(burstiness)
{
    const double mean = op_mean_gap(w, p), deviation = op_gap_deviation(w, p);
    return mean + deviation == 0 ? NAN : (deviation - mean) / (deviation + mean);
}
/* A session ends where no event comes for longer than p seconds. */
OPERATOR(sessions)
{
    size_t n = w->count > 0;
    for (size_t i = 1; i < w->count; i++)
        n += gap(w, i) > p;
    return (double)n;
}
static size_t session_begin(const vmf_window *w, double p)
{
    size_t i = w->count == 0 ? 0 : w->count - 1;
    while (i > 0 && gap(w, i) <= p)
        i--;
    return i;
}
OPERATOR(session_events) { return (double)(w->count - session_begin(w, p)); }
OPERATOR(session_seconds)
{
    return w->count == 0 ? NAN
                         : (double)(w->items[w->count - 1].time_ms - w->items[session_begin(w, p)].time_ms) / SECOND;
}
OPERATOR(mean_session_events) { return share((double)w->count, op_sessions(w, p)); }
OPERATOR(mean_session_seconds)
{
    double sum = 0;
    for (size_t i = 1; i < w->count; i++)
        sum += gap(w, i) > p ? 0 : gap(w, i);
    return share(sum, op_sessions(w, p));
}
static int64_t floor_of(int64_t a, int64_t b) { return a / b - (a % b < 0); }
static int64_t local_of(const vmf_window *w, size_t i, double unit)
{
    return floor_of(w->items[i].time_ms + w->offset_ms, (int64_t)unit);
}
static double hour_of_day(const vmf_window *w, size_t i)
{
    const int64_t hours = local_of(w, i, HOUR);
    return (double)(hours - 24 * floor_of(hours, 24));
}
/* 0 is Monday; 1970-01-01 was a Thursday. */
static double weekday(const vmf_window *w, size_t i)
{
    const int64_t days = local_of(w, i, DAY) + 3;
    return (double)(days - 7 * floor_of(days, 7));
}
static double units(const vmf_window *w, double unit)
{
    size_t n = w->count > 0;
    for (size_t i = 1; i < w->count; i++)
        n += local_of(w, i, unit) != local_of(w, i - 1, unit);
    return (double)n;
}
OPERATOR(active_days)
{
    UNUSED;
    return units(w, DAY);
}
OPERATOR(active_hours)
{
    UNUSED;
    return units(w, HOUR);
}
OPERATOR(hour_share)
{
    size_t n = 0;
    for (size_t i = 0; i < w->count; i++)
        n += hour_of_day(w, i) == p;
    return share((double)n, (double)w->count);
}
OPERATOR(weekday_share)
{
    size_t n = 0;
    for (size_t i = 0; i < w->count; i++)
        n += weekday(w, i) == p;
    return share((double)n, (double)w->count);
}
OPERATOR(weekend_share)
{
    UNUSED;
    return op_weekday_share(w, 5) + op_weekday_share(w, 6);
}
OPERATOR(night_share)
{
    UNUSED;
    size_t n = 0;
    for (size_t i = 0; i < w->count; i++)
        n += hour_of_day(w, i) < 6 || hour_of_day(w, i) >= 22;
    return share((double)n, (double)w->count);
}
/* The hour with most events; of several, the earliest. */
OPERATOR(peak_hour)
{
    UNUSED;
    size_t counts[24] = {0}, found = 0;
    for (size_t i = 0; i < w->count; i++)
        counts[(size_t)hour_of_day(w, i)]++;
    for (size_t i = 1; i < 24; i++)
        found = counts[i] > counts[found] ? i : found;
    return w->count == 0 ? NAN : (double)found;
}
/* Exponential decay; p is the half-life in seconds. */
static double weight(const vmf_window *w, size_t i, double p)
{
    return exp2(-(double)(w->at_ms - w->items[i].time_ms) / SECOND / p);
}
OPERATOR(decayed_count)
{
    double sum = 0;
    for (size_t i = 0; i < w->count; i++)
        sum += weight(w, i, p);
    return sum;
}
OPERATOR(decayed_sum)
{
    double sum = 0;
    for (size_t i = 0; i < w->count; i++)
        sum += has_value(&w->items[i]) ? weight(w, i, p) * w->items[i].value : 0;
    return sum;
}
OPERATOR(decayed_mean)
{
    double sum = 0;
    for (size_t i = 0; i < w->count; i++)
        sum += has_value(&w->items[i]) ? weight(w, i, p) : 0;
    return share(op_decayed_sum(w, p), sum);
}
/* Slope of the least-squares line through the values, per hour; *fit: the share of the variance it explains (R²). */
static double slope_of(vmf_window *w, double *fit)
{
    pass_sums(w);
    double mean = 0, xx = 0, xy = 0;
    for (size_t i = 0; i < w->count; i++)
        mean += has_value(&w->items[i]) ? (double)(w->items[i].time_ms - w->at_ms) / HOUR / (double)w->valued : 0;
    for (size_t i = 0; i < w->count; i++)
        if (has_value(&w->items[i])) {
            const double x = (double)(w->items[i].time_ms - w->at_ms) / HOUR - mean;
            xx += x * x;
            xy += x * (w->items[i].value - w->mean);
        }
    *fit = xx == 0 || w->m2 == 0 ? NAN : xy * xy / (xx * w->m2);
    return xx == 0 ? NAN : xy / xx;
}
OPERATOR(slope)
{
    UNUSED;
    double fit;
    return slope_of(w, &fit);
}
OPERATOR(slope_fit)
{
    UNUSED;
    double fit;
    slope_of(w, &fit);
    return fit;
}
/* The share of events in the last fraction p of the window. */
OPERATOR(recent_share)
{
    size_t n = 0;
    for (size_t i = 0; i < w->count; i++)
        n += (double)(w->at_ms - w->items[i].time_ms) < p * (double)w->span_ms;
    return share((double)n, (double)w->count);
}
OPERATOR(trend)
{
    UNUSED;
    double sums[2] = {0};
    size_t counts[2] = {0};
    for (size_t i = 0; i < w->count; i++)
        if (has_value(&w->items[i])) {
            const size_t newer = 2 * (w->at_ms - w->items[i].time_ms) < w->span_ms;
            sums[newer] += w->items[i].value;
            counts[newer]++;
        }
    return counts[0] == 0 || counts[1] == 0 ? NAN : sums[1] / (double)counts[1] - sums[0] / (double)counts[0];
}
OPERATOR(acceleration)
{
    UNUSED;
    double newer = 0;
    for (size_t i = 0; i < w->count; i++)
        newer += 2 * (w->at_ms - w->items[i].time_ms) < w->span_ms;
    return newer - ((double)w->count - newer);
}
/* Each value is weighted by the time until the next one. */
OPERATOR(time_weighted_mean)
{
    UNUSED;
    double sum = 0, whole = 0;
    for (size_t i = next_valued(w, 0), next; i < w->count; i = next) {
        next = next_valued(w, i + 1);
        const double lasted = (double)((next < w->count ? w->items[next].time_ms : w->at_ms) - w->items[i].time_ms);
        sum += lasted * w->items[i].value;
        whole += lasted;
    }
    return share(sum, whole);
}

#define PLAIN(name, says) {#name, op_##name, false, false, says, NULL}
#define WANTS(name, says) {#name, op_##name, true, false, says, NULL}
#define PAIRS(name, says) {#name, vmf_##name, false, true, says, NULL}
const vmf_entry vmf_entries[] = {
    PLAIN(count, "events"),
    PLAIN(valued, "events with a value"),
    PLAIN(missing, "events without one"),
    PLAIN(any, "1 where there is an event, else 0"),
    WANTS(at_least, "1 where there are so many events, else 0"),
    PLAIN(positive, "values above 0"),
    PLAIN(negative, "values below 0"),
    PLAIN(zeros, "values of 0"),
    WANTS(above, "values above the parameter"),
    WANTS(below, "values below the parameter"),
    WANTS(equal, "values equal to the parameter"),
    WANTS(above_share, "the share of values above the parameter"),
    WANTS(below_share, "the share of values below the parameter"),
    WANTS(equal_share, "the share of values equal to the parameter"),
    PLAIN(positive_share, "the share of values above 0"),
    PLAIN(missing_share, "the share of events without a value"),
    PLAIN(sum, "the sum; 0 of nothing"),
    PLAIN(mean, "the mean"),
    PLAIN(least, "the smallest value"),
    PLAIN(most, "the largest value"),
    PLAIN(range, "largest less smallest"),
    PLAIN(midrange, "the middle of smallest and largest"),
    PLAIN(variance, "the variance, by n"),
    PLAIN(sample_variance, "the variance, by n - 1"),
    PLAIN(deviation, "the standard deviation, by n"),
    PLAIN(sample_deviation, "the standard deviation, by n - 1"),
    PLAIN(variation, "deviation over the mean's size"),
    PLAIN(skewness, "the third standardized moment"),
    PLAIN(kurtosis, "the fourth standardized moment less 3"),
    PLAIN(root_mean_square, "the root of the mean square"),
    PLAIN(sum_of_squares, "the sum of squares"),
    PLAIN(absolute_sum, "the sum of sizes"),
    PLAIN(absolute_mean, "the mean size"),
    PLAIN(geometric_mean, "the geometric mean of values above 0"),
    PLAIN(harmonic_mean, "the harmonic mean of values above 0"),
    PLAIN(positive_sum, "the sum of values above 0"),
    PLAIN(negative_sum, "the sum of values below 0"),
    PLAIN(median, "the median"),
    WANTS(quantile, "the value at the rank of the parameter, 0 to 1, interpolated"),
    PLAIN(lower_quartile, "the quantile 0.25"),
    PLAIN(upper_quartile, "the quantile 0.75"),
    PLAIN(quartile_range, "upper less lower quartile"),
    PLAIN(percentile_90, "the quantile 0.9"),
    PLAIN(percentile_95, "the quantile 0.95"),
    PLAIN(percentile_99, "the quantile 0.99"),
    WANTS(trimmed_mean, "the mean without the share of the parameter, below 0.5, at each end"),
    PLAIN(median_deviation, "the median distance from the median"),
    PLAIN(gini, "Gini's coefficient of values whose sum is above 0"),
    WANTS(top_share, "the share of the sum that the largest values have, the parameter's share of them"),
    PLAIN(first, "the first value"),
    PLAIN(last, "the last value"),
    PLAIN(previous, "the last value but one"),
    WANTS(nth_last, "the n-th value from the end"),
    WANTS(nth_first, "the n-th value"),
    PLAIN(change, "last less first"),
    PLAIN(last_change, "last less the one before"),
    PLAIN(relative_change, "change over the first one's size"),
    PLAIN(mean_change, "the mean of steps from value to value"),
    PLAIN(absolute_change, "the sum of the steps' sizes"),
    PLAIN(largest_rise, "the largest step"),
    PLAIN(largest_fall, "the largest step down"),
    PLAIN(rises, "steps up"),
    PLAIN(falls, "steps down"),
    PLAIN(longest_rise, "the longest run of steps up"),
    PLAIN(turns, "how often steps change their direction"),
    PLAIN(autocorrelation, "the correlation of each value with the one before"),
    PLAIN(above_mean_share, "the share of values above the mean"),
    PLAIN(records, "values larger than all before"),
    PLAIN(since_most, "seconds since the largest value came last"),
    PLAIN(since_least, "seconds since the smallest value came last"),
    PLAIN(distinct, "different values"),
    PLAIN(distinct_share, "different values over values"),
    PLAIN(mode, "the most frequent value, the latest of equals"),
    PLAIN(mode_count, "how often it came"),
    PLAIN(mode_share, "its share of the values"),
    PLAIN(entropy, "the entropy of the values, in bits"),
    PLAIN(repeated, "values that came more than once"),
    PLAIN(singles, "values that came once"),
    PLAIN(same_as_last, "values equal to the last one, itself included"),
    PLAIN(run_length, "the run of equal values at the end"),
    PLAIN(switches, "how often a value differs from the one before"),
    PLAIN(recency, "seconds since the last event"),
    PLAIN(age, "seconds since the first event"),
    PLAIN(span, "seconds from the first event to the last"),
    PLAIN(hourly_rate, "events an hour, over the whole window"),
    PLAIN(daily_rate, "events a day, over the whole window"),
    PLAIN(mean_gap, "mean seconds between events"),
    PLAIN(shortest_gap, "fewest seconds between two events"),
    PLAIN(longest_gap, "most seconds between two events"),
    PLAIN(gap_deviation, "the standard deviation of these"),
    PLAIN(burstiness, "deviation less mean of gaps over their sum: -1 regular, 1 in bursts"),
    WANTS(sessions, "sessions, which end after so many seconds without an event"),
    WANTS(session_events, "events of the last session"),
    WANTS(session_seconds, "its length"),
    WANTS(mean_session_events, "events a session"),
    WANTS(mean_session_seconds, "seconds a session"),
    PLAIN(active_days, "days with an event"),
    PLAIN(active_hours, "hours with an event"),
    WANTS(hour_share, "the share of events in an hour of the day, 0 to 23"),
    WANTS(weekday_share, "the share of events on a day of the week, Monday being 0"),
    PLAIN(weekend_share, "the share of events on Saturdays and Sundays"),
    PLAIN(night_share, "the share of events from 22:00 to 6:00"),
    PLAIN(peak_hour, "the hour of the day with most events, the earliest of equals"),
    WANTS(decayed_count, "events, each worth half as much after so many seconds"),
    WANTS(decayed_sum, "the sum of values that decay so"),
    WANTS(decayed_mean, "the mean of values weighted so"),
    PLAIN(slope, "how much the line through the values rises in an hour"),
    PLAIN(slope_fit, "the part of the variance that this line tells"),
    WANTS(recent_share, "the share of events in the last part of the window, 0 to 1"),
    PLAIN(trend, "the mean of the newer half of the window less that of the older"),
    PLAIN(acceleration, "events in the newer half less those in the older"),
    PLAIN(time_weighted_mean, "the mean, each value weighted by how long it was the latest"),
    {"co_occurrence", vmf_co_occurrence, true, false,
     "pairs of events with different values that came within so many seconds", "sort"},
    {"co_occurrence_share", vmf_co_occurrence_share, true, false, "their share of the pairs of events that came so",
     "sort"},
    PAIRS(weighted_sum, "the sum of value times other"),
    PAIRS(weighted_mean, "the mean of values weighted by the others"),
    PAIRS(covariance, "the covariance of value and other, by n"),
    PAIRS(correlation, "their correlation, -1 to 1"),
    PAIRS(slope_over, "how much the line through the pairs rises for 1 of the other"),
    PAIRS(sum_ratio, "the sum of values over the sum of others"),
    PAIRS(pairs, "different pairs of value and other"),
    PAIRS(pair_mode_count, "how often the most frequent pair came"),
    PAIRS(pair_mode_share, "its share of the pairs"),
    PAIRS(mutual_information, "what one of the two tells of the other, in bits"),
};
const size_t vmf_entry_count = sizeof vmf_entries / sizeof *vmf_entries;
