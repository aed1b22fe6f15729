/* The limit of row lookups on this machine: sums of bags of rows, from a plain table, and by keys through the simplest
 * hash table, both with prefetching. No locks, no growth, no checks. Compiled by bench/training_lookups.py.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { AHEAD = 64 };

typedef struct probe {
    int64_t rows, dim, mask;
    float *table;
    struct slot {
        int64_t key, row;
    } *slots;
} probe;

static void *huge(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 2 << 20, bytes) != 0)
        abort();
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

static uint64_t mixed(uint64_t h)
{
    h ^= h >> 32;
    h *= UINT64_C(0xd6e8feb86659fd93);
    return h ^ h >> 32;
}

probe *probe_new(int64_t rows, int64_t dim, const int64_t *keys)
{
    probe *p = calloc(1, sizeof *p);
    p->rows = rows;
    p->dim = dim;
    for (p->mask = 1; p->mask < 2 * rows; p->mask *= 2)
        ;
    p->mask--;
    p->table = huge((size_t)(rows * dim) * sizeof(float));
    p->slots = huge((size_t)(p->mask + 1) * sizeof *p->slots);
    for (int64_t i = 0; i < rows * dim; i++)
        p->table[i] = (float)(i % 7);
    for (int64_t i = 0; i <= p->mask; i++)
        p->slots[i].row = -1;
    for (int64_t i = 0; i < rows; i++) {
        uint64_t at = mixed((uint64_t)keys[i]) & (uint64_t)p->mask;
        while (p->slots[at].row >= 0)
            at = (at + 1) & (uint64_t)p->mask;
        p->slots[at].key = keys[i];
        p->slots[at].row = i;
    }
    return p;
}

void probe_free(probe *p)
{
    free(p->table);
    free(p->slots);
    free(p);
}

/* `each` ids per bag; hashed: ids are keys, all of them present. */
void probe_bags(const probe *p, int64_t bags, int64_t each, const int64_t *ids, int hashed, float *restrict out)
{
    const int64_t dim = p->dim, many = each > AHEAD ? 1 : AHEAD / each;
    const float *rows[AHEAD > 1024 ? AHEAD : 1024];
    uint64_t at[AHEAD > 1024 ? AHEAD : 1024];
    for (int64_t bag = 0; bag < bags; bag += many) {
        const int64_t n = (bags - bag < many ? bags - bag : many) * each;
        const int64_t *keys = ids + bag * each;
        if (hashed)
            for (int64_t i = 0; i < n; i++) {
                at[i] = mixed((uint64_t)keys[i]) & (uint64_t)p->mask;
                __builtin_prefetch(&p->slots[at[i]]);
            }
        for (int64_t i = 0; i < n; i++) {
            int64_t row = keys[i];
            if (hashed) {
                while (p->slots[at[i]].key != keys[i])
                    at[i] = (at[i] + 1) & (uint64_t)p->mask;
                row = p->slots[at[i]].row;
            }
            rows[i] = p->table + row * dim;
            for (int64_t line = 0; line < dim; line += 16)
                __builtin_prefetch(rows[i] + line);
        }
        for (int64_t i = 0; i < n; i += each) {
            float *sum = out + (bag + i / each) * dim;
            memcpy(sum, rows[i], (size_t)dim * sizeof *sum);
            for (int64_t k = 1; k < each; k++)
                for (int64_t d = 0; d < dim; d++)
                    sum[d] += rows[i + k][d];
        }
    }
}
