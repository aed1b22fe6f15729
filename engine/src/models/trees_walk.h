/* Walks through decision trees, for keys of one size: trees.c includes this file for each KEY, LINK (unsigned, of the
 * same size) and FEATURE_BITS; NAME(x) prefixes the names defined here.
 *
 * Lanes are independent walks: one step takes some thirteen cycles of latency, in which a core can run eight of them. A
 * walk that has reached a leaf stays there. */

/* Goes right if the feature's key is above the node's. A leaf compares the key that is below all others, and its
 * children are the leaf itself. */
typedef struct NAME(node) {
    KEY key;
    LINK link; /* distance in nodes to the left child, which the right one follows; the feature in the low bits */
} NAME(node);

static inline const NAME(node) * NAME(next)(const NAME(node) * node, const KEY *keys, int lanes)
{
    const LINK feature = node->link & (((LINK)1 << FEATURE_BITS) - 1);
    return node + (node->link >> FEATURE_BITS) + (keys[(int64_t)feature * lanes] > node->key);
}

/* Takes all walks to their leaves: first `min_depth` steps without a check, then until the last walk has arrived.
 * `keys[w]` are the keys of lane w. */
static inline void NAME(walk)(vme_context *context, const NAME(node) * *lane_nodes, const KEY *const *keys, int lanes,
                              int min_depth)
{
    for (int level = 0; level < min_depth; level++)
#pragma GCC unroll 8
        for (int w = 0; w < LANES; w++)
            lane_nodes[w] = NAME(next)(lane_nodes[w], keys[w], lanes);
    for (int level = 0;; level++) {
        uintptr_t moved = 0;
#pragma GCC unroll 8
        for (int w = 0; w < LANES; w++) {
            const NAME(node) *to = NAME(next)(lane_nodes[w], keys[w], lanes);
            moved |= (uintptr_t)to ^ (uintptr_t)lane_nodes[w];
            lane_nodes[w] = to;
        }
        if (moved == 0 || (level % STOP_INTERVAL == STOP_INTERVAL - 1 && vme_stopping(context)))
            return;
    }
}

/* Adds a leaf's values to the totals of a row. */
static inline void NAME(add_leaf)(const trees *job, const NAME(node) * leaf, int32_t target, double *total)
{
    if (job->values == NULL) {
        NUMBER value;
        memcpy(&value, &leaf->key, sizeof value);
        total[target] = combine(job->combine, total[target], (double)value);
        return;
    }
    const char *values = job->values + (int64_t)leaf->key * job->targets * job->value_bytes;
    for (int64_t t = 0; t < job->targets; t++)
        total[t] = combine(job->combine, total[t],
                           job->value_bytes == 4 ? (double)((const float *)values)[t] : ((const double *)values)[t]);
}

/* LANES rows at a time, through one tree after the other: their keys are [feature][row]. */
static void NAME(rows_together)(const trees *job, const KEY *keys, int64_t groups, double *totals)
{
    const NAME(node) *nodes = (const NAME(node) *)job->nodes;
    for (int64_t tree = 0; tree < job->trees && !vme_stopping(job->context); tree++) {
        const tree_record *record = &job->tree[tree];
        for (int64_t group = 0; group < groups; group++) {
            const NAME(node) * lane_nodes[LANES];
            const KEY *lane_keys[LANES];
            for (int w = 0; w < LANES; w++) {
                lane_nodes[w] = nodes + record->root;
                lane_keys[w] = keys + group * job->keys * LANES + w;
            }
            NAME(walk)(job->context, lane_nodes, lane_keys, LANES, record->min_depth);
            for (int w = 0; w < LANES; w++)
                NAME(add_leaf)(job, lane_nodes[w], record->target, totals + (group * LANES + w) * job->targets);
        }
    }
}

/* One row through LANES trees at a time. */
static void NAME(trees_together)(const trees *job, const KEY *keys, double *totals)
{
    const NAME(node) *nodes = (const NAME(node) *)job->nodes;
    for (int64_t tree = 0; tree < job->trees && !vme_stopping(job->context); tree += LANES) {
        const NAME(node) * lane_nodes[LANES];
        const KEY *lane_keys[LANES];
        int min_depth = INT32_MAX;
        const int count = (int)min(LANES, job->trees - tree);
        for (int w = 0; w < LANES; w++) {
            const tree_record *record = &job->tree[tree + min(w, count - 1)];
            lane_nodes[w] = nodes + record->root;
            lane_keys[w] = keys;
            min_depth = record->min_depth < min_depth ? record->min_depth : min_depth;
        }
        NAME(walk)(job->context, lane_nodes, lane_keys, 1, min_depth);
        for (int w = 0; w < count; w++)
            NAME(add_leaf)(job, lane_nodes[w], job->tree[tree + w].target, totals);
    }
}

/* Maps numbers to integers in the same order, with -0 and 0 equal; NaN becomes `nan_key`. */
static inline KEY NAME(key)(NUMBER number, KEY nan_key)
{
    KEY bits;
    const NUMBER zeroed = number + 0;
    memcpy(&bits, &zeroed, sizeof bits);
    bits ^= (KEY)((LINK)(bits >> (sizeof bits * 8 - 1)) >> 1);
    return number != number ? nan_key : bits;
}

/* The keys of a row, `lanes` apart: of all features, with NaN above all, or below, or first one and then the other;
 * then the key that is below all others. */
static void NAME(keys_of)(const trees *job, const char *row, KEY *keys, int lanes)
{
    const KEY lowest = (KEY)((LINK)1 << (sizeof lowest * 8 - 1)), highest = (KEY)~lowest;
    for (int variant = 0; variant < 2; variant++)
        if (job->nan_keys >> variant & 1)
            for (int64_t f = 0; f < job->features; f++, keys += lanes)
                *keys = NAME(key)(job->number_bytes == 4 ? (NUMBER)((const float *)row)[f]
                                                         : (NUMBER)((const double *)row)[f],
                                  variant == 0 ? highest : lowest);
    *keys = lowest;
}

static void NAME(block)(const trees *job, int64_t begin, int64_t end, void *keys, double *totals)
{
    const int64_t groups = (end - begin) / LANES;
    for (int64_t i = 0; i < groups * LANES; i++)
        NAME(keys_of)(job, job->rows + (begin + i) * job->row_bytes,
                      (KEY *)keys + i / LANES * job->keys * LANES + i % LANES, LANES);
    NAME(rows_together)(job, keys, groups, totals);
    for (int64_t i = groups * LANES; i < end - begin; i++) {
        NAME(keys_of)(job, job->rows + (begin + i) * job->row_bytes, keys, 1);
        NAME(trees_together)(job, keys, totals + i * job->targets);
    }
}

/* Checks that every walk ends: children come after their parents, and a leaf is recognized by its feature. */
static bool NAME(are_trees)(const trees *job, int64_t count)
{
    const NAME(node) *nodes = (const NAME(node) *)job->nodes;
    for (int64_t i = 0; i < count; i++) {
        const LINK feature = nodes[i].link & (((LINK)1 << FEATURE_BITS) - 1), left = nodes[i].link >> FEATURE_BITS;
        const bool leaf = left == 0;
        if (leaf != (feature == (LINK)job->keys - 1) || feature >= (LINK)job->keys
            || (!leaf && left >= (LINK)(count - i) - 1)
            || (leaf && job->values != NULL && (nodes[i].key < 0 || nodes[i].key >= job->leaves)))
            return false;
    }
    return true;
}
