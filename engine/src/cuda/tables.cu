/* Embedding tables in GPU memory: the same operations with the same results as engine/src/embedding.
 *
 * Keys are in one open-addressing table with buckets of four entries, at most half full. To grow, it is rehashed into
 * one of at least twice the size. Rows are in chunks that never move; a row's slots follow its weights, and its note is
 * separate. A change of a table holds its lock exclusively until the GPU is done, so a lookup sees each row before or
 * after a gradient step.
 *
 * The host prepares a gradient step: the unique keys, and for each the positions of its gradients, in order. Then one
 * kernel finds or creates each key's row, sums the gradients and makes the optimizer's step. So the order of summation
 * is fixed. Products and sums are compiled without contraction (fused multiply-add), as in the CPU's kernels. */
#include "tables.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

enum { THREADS = 256, SHARD_BITS = 3, CHUNK_BYTES = 64 << 10, CHUNK_BITS_MIN = 5, FIRST_BUCKETS = 64 };
enum { SGD, ADAGRAD, ADAM, FTRL, OPTIMIZERS };
enum { SUM, MEAN, SQRTN };
#define VERSION_MAX 0x7ffffffeu

struct row_note {
    int64_t key, version;
    uint32_t freq, changed; /* changed: number of the first save that contains the last change */
    uint32_t live, reserved;
};

struct table_counters {
    int32_t row_count, free_count; /* row numbers assigned, and how many of these are free */
    int32_t entries, waiting;      /* keys, and how many of these wait for admission */
    int32_t found, gone;           /* results of one kernel (clear_findings) */
};

/* The data of kernels that change a table; passed by value. */
struct table_work {
    table_view view;
    row_note *const *notes;
    uint32_t *free_rows;
    table_counters *counters;
    uint32_t sequence;
    int32_t slots;
};

struct table_state {
    device_memory entries, chunk_list, note_list, free_rows;
    std::vector<std::unique_ptr<device_memory>> slabs;
    std::vector<float *> chunks;
    std::vector<row_note *> notes;
    uint64_t buckets = 0;
    int64_t bytes = 0, step = 0;
    table_counters counters{}; /* a copy of the GPU's counters, valid while the lock is held */
    uint32_t sequence = 1, committed = 0;
    bool saving = false;
    pinned_memory pinned;
    device_memory scratch;
};

struct optimizer_factors {
    int kind;
    float rate, eps, l1, l2, beta, root, keep1, add1, keep2, add2, slot_initial;
};

struct scratch {
    std::mutex lock;
    pinned_memory pinned;
    device_memory memory;
};

/* ---- keys and rows, on the GPU */
static __host__ __device__ __forceinline__ uint64_t mixed(uint64_t h)
{
    h ^= h >> 32;
    h *= UINT64_C(0xd6e8feb86659fd93);
    h ^= h >> 32;
    h *= UINT64_C(0xd6e8feb86659fd93);
    return h ^ h >> 32;
}
static __device__ __forceinline__ key_entry *bucket_of(const table_view &view, uint64_t number)
{
    return view.entries + (number & view.bucket_mask) * BUCKET;
}
static __device__ __forceinline__ uint64_t first_bucket(const table_view &view, int64_t key)
{
    return mixed((uint64_t)key ^ view.seed) >> SHARD_BITS;
}
static __device__ __forceinline__ const float *default_row(const table_view &view, int64_t key)
{
    int64_t row = key % view.default_rows;
    return view.defaults + (row < 0 ? row + view.default_rows : row) * view.dim;
}
static __device__ __forceinline__ float *row_at(const table_view &view, uint32_t row)
{
    return view.chunks[row >> view.chunk_bits] + (int64_t)(row & ((1u << view.chunk_bits) - 1)) * view.stride;
}
static __device__ __forceinline__ row_note *note_at(const table_work &work, uint32_t row)
{
    return work.notes[row >> work.view.chunk_bits] + (row & ((1u << work.view.chunk_bits) - 1));
}

/* The address of the key's row, for kernels that run while the table does not change. NULL: all elements are
 * no_permission. */
static __device__ __forceinline__ const float *row_of(const table_view &view, int64_t key)
{
    for (uint64_t number = first_bucket(view, key);; number++) {
        const longlong2 *bucket = reinterpret_cast<const longlong2 *>(bucket_of(view, number));
        for (int i = 0; i < BUCKET; i++) {
            const longlong2 entry = bucket[i];
            const uint32_t where = (uint32_t)entry.y;
            if (where == ENTRY_EMPTY || entry.x == key)
                return where < ENTRY_WAITING ? row_at(view, where) : view.filters ? nullptr : default_row(view, key);
        }
    }
}

/* NULL: not present. Other threads may insert other keys meanwhile. */
static __device__ key_entry *find_entry(const table_view &view, int64_t key)
{
    for (uint64_t number = first_bucket(view, key);; number++) {
        key_entry *bucket = bucket_of(view, number);
        for (int i = 0; i < BUCKET; i++) {
            const uint32_t where = *(volatile uint32_t *)&bucket[i].where;
            if (where == ENTRY_EMPTY)
                return nullptr;
            __threadfence(); /* the key was written before `where` */
            if (where != ENTRY_CLAIMED && *(volatile int64_t *)&bucket[i].key == key)
                return &bucket[i];
        }
    }
}
/* Claims an entry for a key that is not present. give_entry publishes it. */
static __device__ key_entry *claim_entry(const table_view &view, int64_t key)
{
    for (uint64_t number = first_bucket(view, key);; number++) {
        key_entry *bucket = bucket_of(view, number);
        for (int i = 0; i < BUCKET; i++)
            if (atomicCAS(&bucket[i].where, ENTRY_EMPTY, ENTRY_CLAIMED) == ENTRY_EMPTY)
                return &bucket[i];
    }
}
static __device__ __forceinline__ void give_entry(key_entry *entry, int64_t key, uint32_t where, uint32_t count)
{
    entry->key = key;
    entry->count = count;
    __threadfence();
    *(volatile uint32_t *)&entry->where = where;
}
static __device__ uint32_t take_row(const table_work &work)
{
    const int left = atomicSub(&work.counters->free_count, 1);
    if (left > 0)
        return work.free_rows[left - 1];
    atomicAdd(&work.counters->free_count, 1);
    return (uint32_t)atomicAdd(&work.counters->row_count, 1);
}
static __device__ __forceinline__ uint32_t sum_of_counts(uint32_t a, uint32_t b)
{
    return a > UINT32_MAX - b ? UINT32_MAX : a + b;
}

/* ---- lookups: `lanes` threads read one bag. Each finds the row of one key, then they sum these rows together, each
 * thread its own columns. */
template <int VECTOR> struct numbers {
    float at[VECTOR];
};
template <int VECTOR> static __device__ __forceinline__ numbers<VECTOR> load(const float *from)
{
    numbers<VECTOR> x;
    if (VECTOR == 4)
        *reinterpret_cast<float4 *>(x.at) = *reinterpret_cast<const float4 *>(from);
    else
        x.at[0] = *from;
    return x;
}
template <int VECTOR>
static __device__ void read_bag(const lookup_view &of, const table_view &view, int64_t bag, uint32_t lane,
                                uint32_t mask)
{
    const int64_t begin = of.offsets[bag], end = of.offsets[bag + 1];
    int kept = 0;
    double sum = 0;
    float *out = of.out + bag * of.step;
    for (int32_t column = (int32_t)lane * VECTOR; column - (int32_t)lane * VECTOR < view.dim;
         column += of.lanes * VECTOR) {
        const bool inside = column < view.dim;
        const bool counts = column == (int32_t)lane * VECTOR; /* counts ids only once, with the first columns */
        numbers<VECTOR> all{};
        for (int64_t from = begin; from < end; from += of.lanes) {
            const int64_t place = from + lane;
            const float *row = nullptr;
            float weight = 0;
            bool used = false;
            if (place < end) {
                const int64_t key = of.ids[place];
                weight = of.weights == nullptr ? 1 : of.weights[place];
                used = of.plain || (key >= 0 && weight > 0);
                if (used)
                    row = row_of(view, key);
            }
            const int there = end - from < of.lanes ? (int)(end - from) : of.lanes;
            for (int k = 0; k < there; k++) {
                const float *read = reinterpret_cast<const float *>(
                    __shfl_sync(mask, reinterpret_cast<unsigned long long>(row), k, of.lanes));
                const float by = __shfl_sync(mask, weight, k, of.lanes);
                if (!__shfl_sync(mask, (int)used, k, of.lanes))
                    continue;
                if (counts) {
                    kept++;
                    sum += of.combiner == SQRTN ? (double)by * (double)by : (double)by;
                }
                if (!inside)
                    continue;
                numbers<VECTOR> x;
                if (read == nullptr)
                    for (int v = 0; v < VECTOR; v++)
                        x.at[v] = view.no_permission;
                else
                    x = load<VECTOR>(read + column);
                for (int v = 0; v < VECTOR; v++)
                    all.at[v] += of.weights == nullptr ? x.at[v] : x.at[v] * by;
            }
        }
        if (kept == 0 && of.default_id >= 0 && inside) {
            const float *row = row_of(view, of.default_id);
            for (int v = 0; v < VECTOR; v++)
                all.at[v] = row == nullptr ? view.no_permission : row[column + v];
        } else if (kept > 0 && of.combiner != SUM) {
            const float factor = (float)(1 / (of.combiner == MEAN ? sum : sqrt(sum)));
            for (int v = 0; v < VECTOR; v++)
                all.at[v] *= factor;
        }
        if (!inside)
            continue;
        if (VECTOR == 4)
            *reinterpret_cast<float4 *>(out + column) = *reinterpret_cast<const float4 *>(all.at);
        else
            out[column] = all.at[0];
    }
}

static __device__ __forceinline__ uint32_t mask_of(int lanes)
{
    return lanes == 32 ? ~0u : ((1u << lanes) - 1) << (threadIdx.x % 32 / (uint32_t)lanes * (uint32_t)lanes);
}

static __global__ void lookups_kernel(const lookup_view *lookups, int64_t bags)
{
    const lookup_view of = lookups[blockIdx.y];
    const table_view view = *of.table;
    const uint32_t lane = threadIdx.x % (uint32_t)of.lanes, mask = mask_of(of.lanes);
    const int64_t all = (int64_t)gridDim.x * (THREADS / of.lanes);
    for (int64_t bag = (int64_t)blockIdx.x * (THREADS / of.lanes) + threadIdx.x / (uint32_t)of.lanes; bag < bags;
         bag += all)
        if (of.vector == 4)
            read_bag<4>(of, view, bag, lane, mask);
        else
            read_bag<1>(of, view, bag, lane, mask);
}

void cuda_lookup_shape(lookup_view *lookup, int dim, int table_stride)
{
    lookup->vector = dim % 4 == 0 && table_stride % 4 == 0 && lookup->step % 4 == 0
                             && reinterpret_cast<uintptr_t>(lookup->out) % 16 == 0
                         ? 4
                         : 1;
    lookup->lanes = 1;
    while (lookup->lanes < 32 && lookup->lanes * lookup->vector < dim)
        lookup->lanes *= 2;
}

cudaError_t cuda_launch_lookups(cudaStream_t stream, const lookup_view *lookups, int count, int64_t bags, int lanes_max)
{
    if (bags == 0 || count == 0)
        return cudaSuccess;
    const int64_t each = THREADS / lanes_max, blocks = (bags + each - 1) / each;
    lookups_kernel<<<dim3((unsigned)(blocks > 4096 ? 4096 : blocks), (unsigned)count), THREADS, 0, stream>>>(lookups,
                                                                                                             bags);
    return cudaGetLastError();
}

/* ---- gradient steps */
struct step_job {
    table_work work;
    optimizer_factors factors;
    int64_t version, filter_freq;
    int64_t count; /* number of keys */
    const int64_t *keys;
    const uint32_t *first;  /* count + 1: index of each key's first occurrence */
    const uint32_t *places; /* for each occurrence: its row of `gradients` */
    const float *by;        /* for each occurrence: the factor of its gradient */
    const float *gradients;
    int32_t lanes;
};

static __device__ __forceinline__ uint32_t waiting_version(int64_t version)
{
    return version < 0 ? 0 : version > VERSION_MAX ? VERSION_MAX : (uint32_t)version;
}

/* Counts the key, and admits it if its count is high enough. Returns its row, or ROWS_MAX if it waits. `made`: whether
 * the row is new. */
static __device__ uint32_t admit(const step_job &job, int64_t key, uint32_t count, bool *made)
{
    const table_work &work = job.work;
    key_entry *entry = find_entry(work.view, key);
    *made = false;
    if (entry != nullptr && entry->where < ENTRY_WAITING)
        return entry->where;
    const uint32_t freq = sum_of_counts(entry == nullptr ? 0 : entry->count, count);
    const bool admitted = !work.view.filters || (int64_t)freq >= job.filter_freq, fresh = entry == nullptr;
    if (fresh) {
        entry = claim_entry(work.view, key);
        atomicAdd(&work.counters->entries, 1);
    }
    if (!admitted) {
        if (fresh)
            atomicAdd(&work.counters->waiting, 1);
        give_entry(entry, key, ENTRY_WAITING | waiting_version(job.version), freq);
        return ROWS_MAX;
    }
    if (!fresh)
        atomicSub(&work.counters->waiting, 1);
    const uint32_t row = take_row(work);
    *note_at(work, row) = row_note{key, job.version, freq - count, 0, 1, 0};
    give_entry(entry, key, row, 0);
    *made = true;
    return row;
}

static __device__ void start_number(const step_job &job, const float *initial, float *row, int d)
{
    const int dim = job.work.view.dim;
    row[d] = initial[d];
    for (int slot = 0; slot < job.work.slots; slot++)
        row[(slot + 1) * dim + d] = 0;
    if (job.factors.kind == ADAGRAD)
        row[dim + d] = job.factors.slot_initial;
}

static __device__ float sign_of(float number) { return (float)((number > 0) - (number < 0)); }

static __device__ void step_number(const optimizer_factors &f, float g, float *w, float *first, float *second)
{
    if (f.kind == SGD)
        *w = *w - g * f.rate;
    else if (f.kind == ADAGRAD) {
        *first = *first + g * g;
        *w = *w - g * f.rate / (sqrtf(*first) + f.eps);
    } else if (f.kind == ADAM) {
        *first = *first * f.keep1 + g * f.add1;
        *second = *second * f.keep2 + g * g * f.add2;
        *w = *w - *first * f.rate / (sqrtf(*second) / f.root + f.eps);
    } else {
        *second = *second + g * g;
        const float scaled = (sqrtf(*second) + f.beta) / f.rate + f.l2;
        const float z = *w == 0 ? *first + g : g - sign_of(*w) * f.l1 - scaled * *w;
        *first = z;
        *w = fabsf(z) <= f.l1 ? 0 : (sign_of(z) * f.l1 - z) / scaled;
    }
}

static __global__ void step_kernel(const __grid_constant__ step_job job)
{
    const int lanes = job.lanes, dim = job.work.view.dim;
    const uint32_t lane = threadIdx.x % (uint32_t)lanes, mask = mask_of(lanes);
    const int64_t all = (int64_t)gridDim.x * (THREADS / lanes);
    for (int64_t i = (int64_t)blockIdx.x * (THREADS / lanes) + threadIdx.x / (uint32_t)lanes; i < job.count; i += all) {
        const uint32_t begin = job.first[i], end = job.first[i + 1];
        uint32_t number = ROWS_MAX;
        bool made = false;
        if (lane == 0)
            number = admit(job, job.keys[i], end - begin, &made);
        number = __shfl_sync(mask, number, 0, lanes);
        made = __shfl_sync(mask, (int)made, 0, lanes);
        if (number == ROWS_MAX)
            continue;
        float *row = row_at(job.work.view, number);
        const float *initial = default_row(job.work.view, job.keys[i]);
        for (int d = (int)lane; d < dim; d += lanes) {
            float sum = 0;
            for (uint32_t k = begin; k < end; k++) {
                const float g = job.gradients[(int64_t)job.places[k] * dim + d];
                sum += job.by[k] == 1 ? g : g * job.by[k];
            }
            if (made)
                start_number(job, initial, row, d);
            step_number(job.factors, sum, row + d, row + dim + d, row + 2 * dim + d);
        }
        if (lane == 0) {
            row_note *note = note_at(job.work, number);
            note->freq = sum_of_counts(note->freq, end - begin);
            note->version = job.version;
            note->changed = job.work.sequence;
        }
    }
}

/* Counts keys without an entry (`found`) and keys without a row (`gone`). */
static __global__ void missing_kernel(const __grid_constant__ table_work work, const int64_t *keys, int64_t count)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count)
        return;
    const key_entry *entry = find_entry(work.view, keys[i]);
    if (entry == nullptr)
        atomicAdd(&work.counters->found, 1);
    if (entry == nullptr || entry->where >= ENTRY_WAITING)
        atomicAdd(&work.counters->gone, 1);
}

/* ---- growing, saving, restoring */
/* Copies all entries to an empty table. */
static __global__ void rehash_kernel(const key_entry *from, int64_t count, const __grid_constant__ table_view to)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count && from[i].where != ENTRY_EMPTY)
        give_entry(claim_entry(to, from[i].key), from[i].key, from[i].where, from[i].count);
}

/* The same, except for evicted keys: counts them (`gone`) and frees their rows. */
static __global__ void evict_kernel(const key_entry *from, int64_t count, const __grid_constant__ table_work work,
                                    const __grid_constant__ table_view to, int64_t step, int64_t steps_to_live,
                                    float threshold)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count || from[i].where == ENTRY_EMPTY)
        return;
    const uint32_t where = from[i].where;
    bool goes = false;
    if (where >= ENTRY_WAITING)
        goes = steps_to_live > 0 && step - (int64_t)(where & ~ENTRY_WAITING) > steps_to_live;
    else {
        const int64_t version = note_at(work, where)->version;
        goes = steps_to_live > 0 && step > version && (uint64_t)step - (uint64_t)version > (uint64_t)steps_to_live;
        if (!goes && threshold > 0) {
            const float *row = row_at(work.view, where);
            double squares = 0;
            for (int d = 0; d < work.view.dim; d++)
                squares += (double)row[d] * (double)row[d];
            goes = squares / 2 < (double)threshold;
        }
    }
    if (!goes) {
        give_entry(claim_entry(to, from[i].key), from[i].key, where, from[i].count);
        return;
    }
    atomicAdd(&work.counters->gone, 1);
    atomicSub(&work.counters->entries, 1);
    if (where >= ENTRY_WAITING)
        atomicSub(&work.counters->waiting, 1);
    else {
        note_at(work, where)->live = 0;
        work.free_rows[atomicAdd(&work.counters->free_count, 1)] = where;
    }
}

/* Counts (`found`) and lists the live rows that changed after the save `after`; with `all`, all live rows. `selected`
 * NULL: only counts. */
static __global__ void select_kernel(const __grid_constant__ table_work work, int64_t count, uint32_t after, int all,
                                     uint32_t *selected)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count)
        return;
    const row_note *note = note_at(work, (uint32_t)i);
    if (note->live && (all || note->changed > after)) {
        const int place = atomicAdd(&work.counters->found, 1);
        if (selected != nullptr)
            selected[place] = (uint32_t)i;
    }
}
/* Copies rows to contiguous arrays. `width`: elements of a row, including its slots. */
static __global__ void gather_kernel(const __grid_constant__ table_work work, const uint32_t *rows, int64_t count,
                                     int width, int64_t *keys, int64_t *freqs, int64_t *versions, float *numbers)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count * width)
        return;
    const int64_t number = i / width;
    const int column = (int)(i - number * width);
    const uint32_t row = rows[number];
    numbers[i] = row_at(work.view, row)[column];
    if (column == 0) {
        const row_note *note = note_at(work, row);
        keys[number] = note->key;
        freqs[number] = note->freq;
        versions[number] = note->version;
    }
}
/* Counts (`found`) and lists keys that wait for admission. */
static __global__ void waiting_kernel(const __grid_constant__ table_work work, int64_t count, int64_t *keys,
                                      int64_t *freqs, int64_t *versions)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count || work.view.entries[i].where == ENTRY_EMPTY || work.view.entries[i].where < ENTRY_WAITING)
        return;
    const int place = atomicAdd(&work.counters->found, 1);
    keys[place] = work.view.entries[i].key;
    freqs[place] = work.view.entries[i].count;
    versions[place] = work.view.entries[i].where & ~ENTRY_WAITING;
}
struct put_job {
    table_work work;
    int64_t count;
    const int64_t *keys, *freqs, *versions;
    const float *numbers; /* NULL: waiting keys; otherwise [count, dim + slots * dim] */
    int32_t width;
};
static __global__ void put_kernel(const __grid_constant__ put_job job)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= job.count)
        return;
    const int64_t key = job.keys[i], freq = job.freqs[i];
    const uint32_t count = freq < 0 ? 0 : freq > UINT32_MAX ? UINT32_MAX : (uint32_t)freq;
    key_entry *entry = find_entry(job.work.view, key);
    const bool fresh = entry == nullptr;
    if (!fresh && entry->where < ENTRY_WAITING && job.numbers == nullptr)
        return;
    if (fresh) {
        entry = claim_entry(job.work.view, key);
        atomicAdd(&job.work.counters->entries, 1);
    }
    if (job.numbers == nullptr) {
        if (fresh)
            atomicAdd(&job.work.counters->waiting, 1);
        give_entry(entry, key, ENTRY_WAITING | waiting_version(job.versions[i]), count);
        return;
    }
    uint32_t row;
    if (fresh || entry->where >= ENTRY_WAITING) {
        if (!fresh)
            atomicSub(&job.work.counters->waiting, 1);
        row = take_row(job.work);
        give_entry(entry, key, row, 0);
    } else
        row = entry->where;
    *note_at(job.work, row) = row_note{key, job.versions[i], count, 0, 1, 0};
    float *to = row_at(job.work.view, row);
    for (int d = 0; d < job.width; d++)
        to[d] = job.numbers[i * job.width + d];
}

static unsigned blocks_of(int64_t count) { return (unsigned)((count + THREADS - 1) / THREADS); }
static int64_t rounded(int64_t bytes) { return (bytes + 15) / 16 * 16; }

/* ---- tables, on the host */
static int slots_of(int optimizer) { return optimizer == SGD ? 0 : optimizer == ADAGRAD ? 1 : 2; }

/* Allocates GPU memory and charges it to the table's quota. */
static vme_cuda_status take_memory(vme_cuda_table *table, int64_t bytes, device_memory *memory)
{
    table_state *state = table->state;
    if (table->options.quota_bytes > 0 && state->bytes + bytes > table->options.quota_bytes)
        return cuda_fail(VME_CUDA_NO_MEMORY, "the embedding table's quota of %lld bytes is reached: %lld are in use",
                         (long long)table->options.quota_bytes, (long long)state->bytes);
    VME_TRY(memory->take(table->device, bytes));
    state->bytes += bytes;
    return VME_CUDA_OK;
}
/* Swaps two pieces of memory. */
static void exchange(device_memory *to, device_memory *from)
{
    std::swap(to->device, from->device);
    std::swap(to->at, from->at);
    std::swap(to->bytes, from->bytes);
}

static table_work work_of(const vme_cuda_table *table)
{
    const table_state *state = table->state;
    table_work work{};
    work.view.entries = state->entries.as<key_entry>();
    work.view.bucket_mask = state->buckets - 1;
    work.view.chunks = state->chunk_list.as<float *>();
    work.view.defaults = table->defaults.as<float>();
    work.view.default_rows = table->options.default_rows;
    work.view.seed = table->options.seed;
    work.view.chunk_bits = table->chunk_bits;
    work.view.dim = (int32_t)table->options.dim;
    work.view.stride = table->stride;
    work.view.no_permission = table->options.no_permission;
    work.view.filters = table->options.filter_freq > 1;
    work.notes = state->note_list.as<row_note *>();
    work.free_rows = state->free_rows.as<uint32_t>();
    work.counters = table->counters.as<table_counters>();
    work.sequence = state->sequence;
    work.slots = table->slots;
    return work;
}

static vme_cuda_status write_view(vme_cuda_table *table)
{
    const table_view view = work_of(table).view;
    CUDA_TRY(cudaMemcpyAsync(table->view.at, &view, sizeof view, cudaMemcpyHostToDevice, table->stream));
    CUDA_TRY(cudaStreamSynchronize(table->stream));
    return VME_CUDA_OK;
}
/* Waits for the GPU and copies its counters to the host. */
static vme_cuda_status read_counters(vme_cuda_table *table)
{
    CUDA_TRY(cudaMemcpyAsync(&table->state->counters, table->counters.at, sizeof table->state->counters,
                             cudaMemcpyDeviceToHost, table->stream));
    CUDA_TRY(cudaStreamSynchronize(table->stream));
    return VME_CUDA_OK;
}
/* Sets `found` and `gone` to 0, on the host and on the GPU. */
static vme_cuda_status clear_findings(vme_cuda_table *table)
{
    table->state->counters.found = table->state->counters.gone = 0;
    CUDA_TRY(cudaMemcpyAsync(table->counters.at, &table->state->counters, sizeof table->state->counters,
                             cudaMemcpyHostToDevice, table->stream));
    CUDA_TRY(cudaStreamSynchronize(table->stream));
    return VME_CUDA_OK;
}

/* Makes room for `more` additional keys. */
static vme_cuda_status reserve_keys(vme_cuda_table *table, int64_t more)
{
    table_state *state = table->state;
    uint64_t buckets = std::max<uint64_t>(state->buckets, FIRST_BUCKETS);
    while ((int64_t)(buckets * BUCKET / 2) < state->counters.entries + more)
        buckets *= 2;
    if (buckets == state->buckets)
        return VME_CUDA_OK;
    device_memory made;
    VME_TRY(take_memory(table, (int64_t)(buckets * BUCKET * sizeof(key_entry)), &made));
    vme_cuda_status status = VME_CUDA_OK;
    cudaError_t error = cudaMemsetAsync(made.at, 0xff, (size_t)made.bytes, table->stream);
    if (error == cudaSuccess && state->buckets > 0) {
        table_view to = work_of(table).view;
        const int64_t count = (int64_t)state->buckets * BUCKET;
        to.entries = made.as<key_entry>();
        to.bucket_mask = buckets - 1;
        rehash_kernel<<<blocks_of(count), THREADS, 0, table->stream>>>(state->entries.as<key_entry>(), count, to);
        error = cudaGetLastError();
    }
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(table->stream);
    if (error != cudaSuccess)
        status = cuda_failed(error, "growing a table");
    else {
        exchange(&state->entries, &made);
        state->buckets = buckets;
    }
    state->bytes -= made.bytes; /* `made` is freed: the old entries, or after a failure the new ones */
    VME_TRY(status);
    return write_view(table);
}

/* Grows an array in GPU memory to at least `bytes`, and keeps its contents. */
static vme_cuda_status grow_list(vme_cuda_table *table, int64_t bytes, device_memory *list)
{
    if (bytes <= list->bytes)
        return VME_CUDA_OK;
    device_memory made;
    VME_TRY(take_memory(table, std::max(bytes, 2 * list->bytes), &made));
    if (list->bytes > 0)
        CUDA_TRY(cudaMemcpyAsync(made.at, list->at, (size_t)list->bytes, cudaMemcpyDeviceToDevice, table->stream));
    CUDA_TRY(cudaStreamSynchronize(table->stream));
    exchange(list, &made);
    table->state->bytes -= made.bytes;
    return VME_CUDA_OK;
}

/* Makes room for `more` additional rows. */
static vme_cuda_status reserve_rows(vme_cuda_table *table, int64_t more)
{
    table_state *state = table->state;
    const int64_t each = INT64_C(1) << table->chunk_bits, have = (int64_t)state->chunks.size();
    const int64_t rows = state->counters.row_count + std::max<int64_t>(more - state->counters.free_count, 0);
    if (rows >= (int64_t)ROWS_MAX)
        return cuda_fail(VME_CUDA_NO_MEMORY, "an embedding table in GPU memory has at most %u rows", ROWS_MAX);
    const int64_t needed = (rows + each - 1) / each - have;
    if (needed <= 0)
        return VME_CUDA_OK;
    const int64_t chunk_bytes = each * table->stride * 4, note_bytes = each * (int64_t)sizeof(row_note);
    std::unique_ptr<device_memory> slab(new (std::nothrow) device_memory);
    if (!slab)
        return cuda_fail(VME_CUDA_NO_MEMORY, "out of memory");
    int64_t count = std::max(needed, have / 2);
    vme_cuda_status grown = grow_list(table, (have + count) * (int64_t)sizeof(void *), &state->chunk_list);
    if (grown == VME_CUDA_OK)
        grown = grow_list(table, (have + count) * (int64_t)sizeof(void *), &state->note_list);
    if (grown == VME_CUDA_OK)
        grown = grow_list(table, (have + count) * each * (int64_t)sizeof(uint32_t), &state->free_rows);
    VME_TRY(write_view(table)); /* also after a failure, because some of the lists may have moved */
    if (grown != VME_CUDA_OK)
        return cuda_fail(grown, "the embedding table's quota, or the GPU's memory, has no room for more rows");
    if (take_memory(table, count * (chunk_bytes + note_bytes), slab.get()) != VME_CUDA_OK) {
        count = needed;
        VME_TRY(take_memory(table, count * (chunk_bytes + note_bytes), slab.get()));
    }
    CUDA_TRY(cudaMemsetAsync(slab->at, 0, (size_t)slab->bytes, table->stream));
    for (int64_t i = 0; i < count; i++) {
        state->chunks.push_back(reinterpret_cast<float *>(slab->as<char>() + i * chunk_bytes));
        state->notes.push_back(reinterpret_cast<row_note *>(slab->as<char>() + count * chunk_bytes + i * note_bytes));
    }
    state->slabs.push_back(std::move(slab));
    CUDA_TRY(cudaMemcpyAsync(state->chunk_list.at, state->chunks.data(), state->chunks.size() * sizeof(void *),
                             cudaMemcpyHostToDevice, table->stream));
    CUDA_TRY(cudaMemcpyAsync(state->note_list.at, state->notes.data(), state->notes.size() * sizeof(void *),
                             cudaMemcpyHostToDevice, table->stream));
    return write_view(table);
}

static vme_cuda_status check_options(const vme_cuda_table_options *o)
{
    if (o->dim < 1 || o->dim > 65536)
        return cuda_fail(VME_CUDA_BAD_VALUE, "dim: expected 1 to 65536, got %lld", (long long)o->dim);
    if (o->optimizer < 0 || o->optimizer >= OPTIMIZERS)
        return cuda_fail(VME_CUDA_BAD_VALUE, "optimizer: unknown number %d", o->optimizer);
    if (o->filter_freq < 0 || o->steps_to_live < 0 || o->quota_bytes < 0)
        return cuda_fail(VME_CUDA_BAD_VALUE, "filter_freq, steps_to_live and quota: expected numbers from 0 on");
    if (o->default_rows < 1 || o->defaults == nullptr)
        return cuda_fail(VME_CUDA_BAD_VALUE, "default_rows: expected 1 or more");
    return VME_CUDA_OK;
}

static vme_cuda_status start_table(vme_cuda_table *table)
{
    const vme_cuda_table_options &o = table->options;
    table->slots = slots_of(o.optimizer);
    table->stride = (int)((o.dim * (1 + table->slots) + 3) / 4 * 4);
    table->chunk_bits = CHUNK_BITS_MIN;
    while ((INT64_C(2) << table->chunk_bits) * table->stride * 4 <= CHUNK_BYTES)
        table->chunk_bits++;
    CUDA_TRY(cudaStreamCreateWithFlags(&table->stream, cudaStreamNonBlocking));
    VME_TRY(take_memory(table, o.default_rows * o.dim * 4, &table->defaults));
    VME_TRY(take_memory(table, sizeof(table_view), &table->view));
    VME_TRY(take_memory(table, sizeof(table_counters), &table->counters));
    CUDA_TRY(cudaMemcpyAsync(table->defaults.at, o.defaults, (size_t)(o.default_rows * o.dim * 4),
                             cudaMemcpyHostToDevice, table->stream));
    CUDA_TRY(cudaStreamSynchronize(table->stream));
    table->options.defaults = nullptr; /* it belongs to the caller */
    VME_TRY(clear_findings(table));
    return reserve_keys(table, 1);
}

vme_cuda_status vme_cuda_table_new(vme_cuda_device *device, const vme_cuda_table_options *options,
                                   vme_cuda_table **table)
{
    *table = nullptr;
    VME_TRY(check_options(options));
    VME_TRY(cuda_enter(device));
    vme_cuda_table *made = new (std::nothrow) vme_cuda_table;
    if (made == nullptr || (made->state = new (std::nothrow) table_state) == nullptr) {
        delete made;
        return cuda_fail(VME_CUDA_NO_MEMORY, "out of memory");
    }
    made->device = cuda_device_ref(device);
    made->options = *options;
    const vme_cuda_status status = start_table(made);
    if (status != VME_CUDA_OK) {
        vme_cuda_table_unref(made);
        return status;
    }
    *table = made;
    return VME_CUDA_OK;
}

void cuda_table_ref(vme_cuda_table *table) { table->references.fetch_add(1); }

void vme_cuda_table_unref(vme_cuda_table *table)
{
    if (table == nullptr || table->references.fetch_sub(1) != 1)
        return;
    vme_cuda_device *device = table->device;
    (void)cudaSetDevice(device->number);
    if (table->stream != nullptr)
        (void)cudaStreamDestroy(table->stream);
    delete table->state;
    delete table;
    vme_cuda_device_unref(device);
}

/* Holds a table's lock exclusively until the end of the scope. */
struct alone {
    vme_cuda_table *table;
    explicit alone(vme_cuda_table *of) : table(of) { table->lock.lock(); }
    ~alone() { table->lock.unlock(); }
    alone(const alone &) = delete;
    alone &operator=(const alone &) = delete;
};

void vme_cuda_table_facts_of(vme_cuda_table *table, vme_cuda_table_facts *facts)
{
    const alone whole(table);
    table_state *state = table->state;
    *facts = vme_cuda_table_facts{};
    facts->rows = state->counters.row_count - state->counters.free_count;
    facts->waiting = state->counters.waiting;
    facts->bytes = state->bytes;
    facts->step = state->step;
    if (state->counters.row_count > 0 && cuda_enter(table->device) == VME_CUDA_OK
        && clear_findings(table) == VME_CUDA_OK) {
        select_kernel<<<blocks_of(state->counters.row_count), THREADS, 0, table->stream>>>(
            work_of(table), state->counters.row_count, state->committed, 0, nullptr);
        if (read_counters(table) == VME_CUDA_OK)
            facts->changed = state->counters.found;
    }
}

/* ---- lookups with ids on the host. One scratch memory serves all of them, so they run one at a time. */
static scratch *scratch_of_lookups()
{
    static scratch *one = new scratch; /* never freed: threads may look up until the process ends */
    return one;
}

static vme_cuda_status look_up(int count, int64_t bag_count, const vme_cuda_bags *bags, bool plain)
{
    if (count == 0 || bag_count == 0)
        return VME_CUDA_OK;
    vme_cuda_device *device = bags[0].table->device;
    int64_t ids = 0, numbers = 0;
    bool weighted = false;
    std::vector<vme_cuda_table *> tables;
    for (int i = 0; i < count; i++) {
        const vme_cuda_bags &of = bags[i];
        if (of.table->device != device)
            return cuda_fail(VME_CUDA_BAD_VALUE, "lookup %d: its table is another GPU's", i);
        if (of.combiner < SUM || of.combiner > SQRTN)
            return cuda_fail(VME_CUDA_BAD_VALUE, "combiner: unknown number %d", of.combiner);
        int64_t before = 0;
        for (int64_t bag = 0; bag <= bag_count; bag++) {
            if (of.offsets[bag] < before || (bag == 0 && of.offsets[bag] != 0))
                return cuda_fail(VME_CUDA_BAD_VALUE, "lookup %d: offsets: expected 0 first, never decreasing", i);
            before = of.offsets[bag];
        }
        if (before != of.ids_count)
            return cuda_fail(VME_CUDA_BAD_VALUE, "lookup %d: offsets: expected the number of ids last", i);
        ids += of.ids_count;
        numbers += bag_count * of.table->options.dim;
        weighted = weighted || of.weights != nullptr;
        tables.push_back(of.table);
    }
    std::sort(tables.begin(), tables.end());
    tables.erase(std::unique(tables.begin(), tables.end()), tables.end());
    VME_TRY(cuda_enter(device));
    scratch *all = scratch_of_lookups();
    const std::lock_guard<std::mutex> one_call(all->lock);
    const int64_t views_at = 0, offsets_at = rounded(count * (int64_t)sizeof(lookup_view));
    const int64_t ids_at = offsets_at + count * (bag_count + 1) * 8, weights_at = ids_at + ids * 8;
    const int64_t in = rounded(weights_at + (weighted ? ids * 4 : 0)), out = numbers * 4;
    if (all->pinned.bytes < in + out)
        VME_TRY(all->pinned.take(2 * (in + out)));
    if (all->memory.bytes < in + out || all->memory.device != device) {
        vme_cuda_device *before = all->memory.at == nullptr ? nullptr : all->memory.device;
        all->memory.release();
        VME_TRY(all->memory.take(device, 2 * (in + out)));
        cuda_device_ref(device); /* the scratch memory holds the reference */
        vme_cuda_device_unref(before);
    }
    char *pinned = all->pinned.as<char>(), *base = all->memory.as<char>();
    lookup_view *views = reinterpret_cast<lookup_view *>(pinned + views_at);
    int64_t ids_done = 0, numbers_done = 0;
    int lanes_max = 1;
    for (int i = 0; i < count; i++) {
        const vme_cuda_bags &of = bags[i];
        lookup_view &view = views[i];
        memcpy(pinned + offsets_at + i * (bag_count + 1) * 8, of.offsets, (size_t)(bag_count + 1) * 8);
        memcpy(pinned + ids_at + ids_done * 8, of.ids, (size_t)of.ids_count * 8);
        if (of.weights != nullptr)
            memcpy(pinned + weights_at + ids_done * 4, of.weights, (size_t)of.ids_count * 4);
        view = lookup_view{};
        view.table = of.table->view.as<table_view>();
        view.ids = reinterpret_cast<const int64_t *>(base + ids_at) + ids_done;
        view.offsets = reinterpret_cast<const int64_t *>(base + offsets_at) + i * (bag_count + 1);
        view.weights = of.weights == nullptr ? nullptr : reinterpret_cast<const float *>(base + weights_at) + ids_done;
        view.out = reinterpret_cast<float *>(base + in) + numbers_done;
        view.step = of.table->options.dim;
        view.default_id = of.default_id;
        view.combiner = of.combiner;
        view.plain = plain;
        cuda_lookup_shape(&view, (int)of.table->options.dim, of.table->stride);
        lanes_max = std::max(lanes_max, (int)view.lanes);
        ids_done += of.ids_count;
        numbers_done += bag_count * view.step;
    }
    for (vme_cuda_table *table : tables)
        table->lock.lock_shared();
    cudaStream_t stream = device->copies;
    cudaError_t error = cudaMemcpyAsync(base, pinned, (size_t)in, cudaMemcpyHostToDevice, stream);
    if (error == cudaSuccess)
        error =
            cuda_launch_lookups(stream, reinterpret_cast<lookup_view *>(base + views_at), count, bag_count, lanes_max);
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(pinned + in, base + in, (size_t)out, cudaMemcpyDeviceToHost, stream);
    const cudaError_t ended = cudaStreamSynchronize(stream);
    for (vme_cuda_table *table : tables)
        table->lock.unlock_shared();
    if (error != cudaSuccess || ended != cudaSuccess)
        return cuda_failed(error != cudaSuccess ? error : ended, "a lookup");
    const float *from = reinterpret_cast<const float *>(pinned + in);
    for (int i = 0; i < count; i++) {
        const int64_t dim = bags[i].table->options.dim;
        for (int64_t bag = 0; bag < bag_count; bag++, from += dim)
            memcpy(bags[i].dense + bag * bags[i].step, from, (size_t)dim * 4);
    }
    return VME_CUDA_OK;
}

vme_cuda_status vme_cuda_lookup_bags(int count, int64_t bag_count, const vme_cuda_bags *bags)
{
    return look_up(count, bag_count, bags, false);
}

vme_cuda_status vme_cuda_table_lookup(vme_cuda_table *table, int64_t n, const int64_t *ids, float *out)
{
    std::vector<int64_t> offsets((size_t)n + 1);
    for (int64_t i = 0; i <= n; i++)
        offsets[(size_t)i] = i;
    vme_cuda_bags bags{};
    bags.table = table;
    bags.ids_count = n;
    bags.ids = ids;
    bags.offsets = offsets.data();
    bags.default_id = -1;
    bags.combiner = SUM;
    bags.dense = out;
    bags.step = table->options.dim;
    return look_up(1, n, &bags, true);
}

/* ---- gradient steps */
/* The unique keys in order of first occurrence, and all occurrences in order. */
struct unique_keys {
    std::vector<int64_t> keys;
    std::vector<uint32_t> counts, of; /* of: for each occurrence the index of its key */
    std::vector<uint32_t> places;     /* an open-addressing table of key indices plus 1; 0: empty */
    std::vector<uint32_t> rows;       /* for each occurrence: its row of gradients */
    std::vector<float> by;            /* for each occurrence: the factor of its gradient */
    uint64_t seed;
    unique_keys(size_t occurrences, uint64_t table_seed) : seed(table_seed)
    {
        size_t room = 16;
        while (room < 2 * occurrences)
            room *= 2;
        places.assign(room, 0);
    }
    /* The index of the key, which is added if it is new. */
    uint32_t number(int64_t key)
    {
        for (uint64_t at = mixed((uint64_t)key ^ seed) >> SHARD_BITS;; at++) {
            uint32_t &place = places[at & (places.size() - 1)];
            if (place == 0) {
                keys.push_back(key);
                counts.push_back(0);
                place = (uint32_t)keys.size();
            }
            if (keys[place - 1] == key)
                return place - 1;
        }
    }
    void add(int64_t key, uint32_t row, float factor)
    {
        const uint32_t found = number(key);
        counts[found]++;
        of.push_back(found);
        rows.push_back(row);
        by.push_back(factor);
    }
};

static vme_cuda_status factors_of(const vme_cuda_table *table, const vme_cuda_rates *rates, optimizer_factors *factors)
{
    if (!(rates->learning_rate > 0) || std::isinf(rates->learning_rate))
        return cuda_fail(VME_CUDA_BAD_VALUE, "learning_rate: expected a number above 0, got %g", rates->learning_rate);
    *factors = optimizer_factors{};
    factors->kind = table->options.optimizer;
    factors->rate = (float)rates->learning_rate;
    factors->eps = (float)rates->eps;
    factors->l1 = (float)rates->l1;
    factors->l2 = (float)rates->l2;
    factors->beta = (float)rates->beta;
    if (factors->kind == ADAM) {
        if (rates->updates < 1)
            return cuda_fail(VME_CUDA_BAD_VALUE, "updates: expected 1 or more, got %lld", (long long)rates->updates);
        const double done = (double)rates->updates;
        factors->rate = (float)(rates->learning_rate / (1 - pow(rates->beta1, done)));
        factors->root = (float)sqrt(1 - pow(rates->beta2, done));
        factors->keep1 = (float)rates->beta1;
        factors->add1 = (float)(1 - rates->beta1);
        factors->keep2 = (float)rates->beta2;
        factors->add2 = (float)(1 - rates->beta2);
    }
    factors->slot_initial = table->options.slot_initial;
    return VME_CUDA_OK;
}

/* Pinned and GPU scratch memory for a change of the table. */
static vme_cuda_status take_scratch(vme_cuda_table *table, int64_t bytes)
{
    if (table->state->pinned.bytes < bytes)
        VME_TRY(table->state->pinned.take(bytes + bytes / 2));
    if (table->state->scratch.bytes < bytes)
        VME_TRY(table->state->scratch.take(table->device, bytes + bytes / 2));
    return VME_CUDA_OK;
}

/* Makes room for entries and rows of `keys`, an array in GPU memory. First tries to make room for all of them, which
 * needs no kernel; if that fails, counts the missing ones and makes room for these. */
static vme_cuda_status reserve(vme_cuda_table *table, const int64_t *keys, int64_t count)
{
    if (reserve_keys(table, count) == VME_CUDA_OK && reserve_rows(table, count) == VME_CUDA_OK)
        return VME_CUDA_OK;
    VME_TRY(clear_findings(table));
    missing_kernel<<<blocks_of(count), THREADS, 0, table->stream>>>(work_of(table), keys, count);
    CUDA_TRY(cudaGetLastError());
    VME_TRY(read_counters(table));
    const int64_t keyless = table->state->counters.found, rowless = table->state->counters.gone;
    VME_TRY(reserve_keys(table, keyless));
    return reserve_rows(table, rowless);
}

/* Makes one gradient step of a table. `fill` writes `gradient_rows` rows of gradients to its argument. */
template <typename Fill>
static vme_cuda_status step_table(vme_cuda_table *table, const vme_cuda_rates *rates, const unique_keys &unique,
                                  int64_t gradient_rows, Fill fill)
{
    step_job job{};
    const int64_t count = (int64_t)unique.keys.size(), occurrences = (int64_t)unique.of.size();
    VME_TRY(factors_of(table, rates, &job.factors));
    VME_TRY(cuda_enter(table->device));
    const alone whole(table);
    table_state *state = table->state;
    state->step = std::max(state->step, rates->step);
    if (count == 0)
        return VME_CUDA_OK;
    const int64_t dim = table->options.dim, first_at = count * 8, places_at = first_at + (count + 1) * 4,
                  by_at = places_at + occurrences * 4, gradients_at = rounded(by_at + occurrences * 4),
                  bytes = gradients_at + gradient_rows * dim * 4;
    VME_TRY(take_scratch(table, bytes));
    char *pinned = state->pinned.as<char>(), *base = state->scratch.as<char>();
    uint32_t *first = reinterpret_cast<uint32_t *>(pinned + first_at),
             *places = reinterpret_cast<uint32_t *>(pinned + places_at);
    float *by = reinterpret_cast<float *>(pinned + by_at);
    memcpy(pinned, unique.keys.data(), (size_t)count * 8);
    first[0] = 0;
    for (int64_t i = 0; i < count; i++)
        first[i + 1] = first[i] + unique.counts[(size_t)i];
    std::vector<uint32_t> next(first, first + count);
    for (int64_t i = 0; i < occurrences; i++) {
        const uint32_t place = next[unique.of[(size_t)i]]++;
        places[place] = unique.rows[(size_t)i];
        by[place] = unique.by[(size_t)i];
    }
    fill(reinterpret_cast<float *>(pinned + gradients_at));
    CUDA_TRY(cudaMemcpyAsync(base, pinned, (size_t)bytes, cudaMemcpyHostToDevice, table->stream));
    VME_TRY(reserve(table, reinterpret_cast<const int64_t *>(base), count));
    job.work = work_of(table);
    job.version = rates->step;
    job.filter_freq = table->options.filter_freq;
    job.count = count;
    job.keys = reinterpret_cast<const int64_t *>(base);
    job.first = reinterpret_cast<const uint32_t *>(base + first_at);
    job.places = reinterpret_cast<const uint32_t *>(base + places_at);
    job.by = reinterpret_cast<const float *>(base + by_at);
    job.gradients = reinterpret_cast<const float *>(base + gradients_at);
    job.lanes = 1;
    while (job.lanes < 32 && job.lanes < dim)
        job.lanes *= 2;
    const int64_t blocks = (count * job.lanes + THREADS - 1) / THREADS;
    step_kernel<<<(unsigned)std::min<int64_t>(blocks, 4096), THREADS, 0, table->stream>>>(job);
    CUDA_TRY(cudaGetLastError());
    return read_counters(table);
}

vme_cuda_status vme_cuda_table_update(vme_cuda_table *table, const vme_cuda_rates *rates, int64_t n, const int64_t *ids,
                                      const float *gradients)
{
    if (n > INT32_MAX)
        return cuda_fail(VME_CUDA_BAD_VALUE, "a gradient of %lld rows is too large: take smaller batches",
                         (long long)n);
    unique_keys unique((size_t)n, table->options.seed);
    for (int64_t i = 0; i < n; i++)
        unique.add(ids[i], (uint32_t)i, 1);
    return step_table(table, rates, unique, n,
                      [&](float *to) { memcpy(to, gradients, (size_t)(n * table->options.dim) * 4); });
}

/* Adds the keys of a set of bags; bag 0's gradient is row `row`, and the others follow. */
static void add_bags(const vme_cuda_bags &of, int64_t bag_count, uint32_t row, unique_keys *unique)
{
    for (int64_t bag = 0; bag < bag_count; bag++, row++) {
        int64_t kept = 0;
        double sum = 0;
        for (int64_t i = of.offsets[bag]; i < of.offsets[bag + 1]; i++) {
            const float weight = of.weights == nullptr ? 1 : of.weights[i];
            if (of.ids[i] >= 0 && weight > 0) {
                kept++;
                sum += of.combiner == SQRTN ? (double)weight * (double)weight : (double)weight;
            }
        }
        if (kept == 0) {
            if (of.default_id >= 0)
                unique->add(of.default_id, row, 1);
            continue;
        }
        const float factor = of.combiner == SUM ? 1.0f : (float)(1 / (of.combiner == MEAN ? sum : sqrt(sum)));
        for (int64_t i = of.offsets[bag]; i < of.offsets[bag + 1]; i++) {
            const float weight = of.weights == nullptr ? 1 : of.weights[i];
            if (of.ids[i] >= 0 && weight > 0)
                unique->add(of.ids[i], row, weight * factor);
        }
    }
}

vme_cuda_status vme_cuda_update_bags(int count, int64_t bag_count, const vme_cuda_bags *bags,
                                     const vme_cuda_rates *rates)
{
    for (int i = 0; i < count; i++) {
        int64_t before = 0;
        for (int64_t bag = 0; bag <= bag_count; bag++) {
            if (bags[i].offsets[bag] < before || (bag == 0 && bags[i].offsets[bag] != 0))
                return cuda_fail(VME_CUDA_BAD_VALUE, "lookup %d: offsets: expected 0 first, never decreasing", i);
            before = bags[i].offsets[bag];
        }
        if (before != bags[i].ids_count)
            return cuda_fail(VME_CUDA_BAD_VALUE, "lookup %d: offsets: expected the number of ids last", i);
    }
    for (int i = 0; i < count; i++) {
        vme_cuda_table *table = bags[i].table;
        const auto same = [&](int k) { return bags[k].table == table; };
        bool earlier = false;
        int64_t occurrences = 0, rows = 0;
        for (int k = 0; k < count; k++)
            if (same(k)) {
                earlier = earlier || k < i;
                occurrences += bags[k].ids_count + bag_count;
                rows += bag_count;
            }
        if (earlier)
            continue;
        if (occurrences > INT32_MAX)
            return cuda_fail(VME_CUDA_BAD_VALUE, "a gradient of %lld rows is too large: take smaller batches",
                             (long long)occurrences);
        unique_keys unique((size_t)occurrences, table->options.seed);
        uint32_t row = 0;
        for (int k = i; k < count; k++)
            if (same(k)) {
                add_bags(bags[k], bag_count, row, &unique);
                row += (uint32_t)bag_count;
            }
        const int64_t dim = table->options.dim;
        VME_TRY(step_table(table, rates, unique, rows, [&](float *to) {
            for (int k = i; k < count; k++)
                for (int64_t bag = 0; same(k) && bag < bag_count; bag++, to += dim)
                    memcpy(to, bags[k].dense + bag * bags[k].step, (size_t)dim * 4);
        }));
    }
    return VME_CUDA_OK;
}

/* ---- eviction, snapshots, restoring */
static vme_cuda_status begin_saving(vme_cuda_table *table)
{
    if (table->state->saving)
        return cuda_fail(VME_CUDA_BAD_VALUE,
                         "the embedding table is being saved already: wait until that save has ended");
    table->state->saving = true;
    return VME_CUDA_OK;
}

static vme_cuda_status evict(vme_cuda_table *table, int64_t step)
{
    table_state *state = table->state;
    device_memory made;
    VME_TRY(clear_findings(table));
    VME_TRY(take_memory(table, state->entries.bytes, &made));
    state->bytes -= made.bytes; /* the old entries are freed at the end, so only one of the two is charged */
    CUDA_TRY(cudaMemsetAsync(made.at, 0xff, (size_t)made.bytes, table->stream));
    const table_work work = work_of(table);
    table_view to = work.view;
    to.entries = made.as<key_entry>();
    const int64_t count = (int64_t)state->buckets * BUCKET;
    evict_kernel<<<blocks_of(count), THREADS, 0, table->stream>>>(state->entries.as<key_entry>(), count, work, to, step,
                                                                  table->options.steps_to_live,
                                                                  table->options.l2_weight_threshold);
    CUDA_TRY(cudaGetLastError());
    VME_TRY(read_counters(table));
    exchange(&state->entries, &made);
    return write_view(table);
}

vme_cuda_status vme_cuda_table_evict(vme_cuda_table *table, int64_t step, int64_t *evicted)
{
    *evicted = 0;
    VME_TRY(cuda_enter(table->device));
    const alone whole(table);
    if (table->state->saving)
        return begin_saving(table);
    if (table->options.steps_to_live <= 0 && !(table->options.l2_weight_threshold > 0))
        return VME_CUDA_OK;
    VME_TRY(evict(table, step));
    *evicted = table->state->counters.gone;
    return VME_CUDA_OK;
}

struct vme_cuda_snapshot {
    vme_cuda_table *table = nullptr;
    uint32_t sequence = 0;
    int64_t read = 0, waiting_read = 0;
    std::vector<int64_t> keys, freqs, versions, waiting_keys, waiting_freqs, waiting_versions;
    std::vector<float> numbers;
};

template <typename T>
static vme_cuda_status copy_out(vme_cuda_table *table, const device_memory &from, int64_t offset, int64_t count,
                                std::vector<T> *to)
{
    const size_t before = to->size();
    to->resize(before + (size_t)count);
    CUDA_TRY(cudaMemcpyAsync(to->data() + before, from.as<char>() + offset, (size_t)count * sizeof(T),
                             cudaMemcpyDeviceToHost, table->stream));
    return VME_CUDA_OK;
}

static vme_cuda_status copy_rows(vme_cuda_table *table, bool incremental, vme_cuda_snapshot *to)
{
    table_state *state = table->state;
    const int64_t rows = state->counters.row_count;
    if (rows == 0)
        return VME_CUDA_OK;
    device_memory selected, piece;
    VME_TRY(selected.take(table->device, rows * 4));
    VME_TRY(clear_findings(table));
    const table_work work = work_of(table);
    select_kernel<<<blocks_of(rows), THREADS, 0, table->stream>>>(work, rows, state->committed, !incremental,
                                                                  selected.as<uint32_t>());
    CUDA_TRY(cudaGetLastError());
    VME_TRY(read_counters(table));
    const int64_t count = state->counters.found, width = table->options.dim * (1 + table->slots);
    const int64_t room = std::min<int64_t>(std::max<int64_t>((64 << 20) / (width * 4), 1), std::max<int64_t>(count, 1));
    VME_TRY(piece.take(table->device, room * (24 + width * 4)));
    for (auto *list : {&to->keys, &to->freqs, &to->versions})
        list->reserve((size_t)count);
    to->numbers.reserve((size_t)(count * width));
    int64_t *keys = piece.as<int64_t>();
    float *numbers = reinterpret_cast<float *>(keys + 3 * room);
    for (int64_t at = 0, n; at < count; at += n) {
        n = std::min(room, count - at);
        gather_kernel<<<blocks_of(n * width), THREADS, 0, table->stream>>>(
            work, selected.as<uint32_t>() + at, n, (int)width, keys, keys + room, keys + 2 * room, numbers);
        CUDA_TRY(cudaGetLastError());
        VME_TRY(copy_out(table, piece, 0, n, &to->keys));
        VME_TRY(copy_out(table, piece, room * 8, n, &to->freqs));
        VME_TRY(copy_out(table, piece, room * 16, n, &to->versions));
        VME_TRY(copy_out(table, piece, room * 24, n * width, &to->numbers));
        CUDA_TRY(cudaStreamSynchronize(table->stream));
    }
    return VME_CUDA_OK;
}

static vme_cuda_status copy_waiting(vme_cuda_table *table, vme_cuda_snapshot *to)
{
    const int64_t count = table->state->counters.waiting, entries = (int64_t)table->state->buckets * BUCKET;
    if (count == 0)
        return VME_CUDA_OK;
    device_memory found;
    VME_TRY(found.take(table->device, count * 24));
    VME_TRY(clear_findings(table));
    waiting_kernel<<<blocks_of(entries), THREADS, 0, table->stream>>>(
        work_of(table), entries, found.as<int64_t>(), found.as<int64_t>() + count, found.as<int64_t>() + 2 * count);
    CUDA_TRY(cudaGetLastError());
    VME_TRY(copy_out(table, found, 0, count, &to->waiting_keys));
    VME_TRY(copy_out(table, found, count * 8, count, &to->waiting_freqs));
    VME_TRY(copy_out(table, found, count * 16, count, &to->waiting_versions));
    CUDA_TRY(cudaStreamSynchronize(table->stream));
    return VME_CUDA_OK;
}

vme_cuda_status vme_cuda_snapshot_new(int count, vme_cuda_table *const *tables, int incremental,
                                      vme_cuda_snapshot **snapshots)
{
    std::vector<vme_cuda_table *> sorted(tables, tables + count);
    std::sort(sorted.begin(), sorted.end());
    for (int i = 0; i < count; i++)
        snapshots[i] = nullptr;
    if (std::unique(sorted.begin(), sorted.end()) != sorted.end())
        return cuda_fail(VME_CUDA_BAD_VALUE, "a table occurs twice");
    for (vme_cuda_table *table : sorted)
        table->lock.lock();
    vme_cuda_status status = VME_CUDA_OK;
    int begun = 0;
    try {
        for (; begun < count && status == VME_CUDA_OK; begun++) {
            vme_cuda_table *table = tables[begun];
            if ((status = begin_saving(table)) != VME_CUDA_OK)
                break;
            vme_cuda_snapshot *made = snapshots[begun] = new vme_cuda_snapshot;
            made->table = table;
            cuda_table_ref(table);
            status = cuda_enter(table->device);
            if (status == VME_CUDA_OK)
                status = copy_rows(table, incremental, made);
            if (status == VME_CUDA_OK && !incremental)
                status = copy_waiting(table, made);
        }
    } catch (const std::bad_alloc &) {
        status = cuda_fail(VME_CUDA_NO_MEMORY, "no memory for a snapshot");
        if (snapshots[begun] == nullptr)
            tables[begun]->state->saving = false;
    }
    for (int i = 0; i < count && status == VME_CUDA_OK; i++)
        snapshots[i]->sequence = tables[i]->state->sequence++;
    for (vme_cuda_table *table : sorted)
        table->lock.unlock();
    for (int i = 0; i < count && status != VME_CUDA_OK; i++) {
        vme_cuda_snapshot_end(snapshots[i], 0);
        snapshots[i] = nullptr;
    }
    return status;
}

int64_t vme_cuda_snapshot_rows(const vme_cuda_snapshot *snapshot) { return (int64_t)snapshot->keys.size(); }

vme_cuda_status vme_cuda_snapshot_read(vme_cuda_snapshot *snapshot, int64_t room, int64_t *keys, int64_t *freqs,
                                       int64_t *versions, float *values, float *slots, int64_t *read)
{
    const int64_t dim = snapshot->table->options.dim, beside = dim * snapshot->table->slots, width = dim + beside;
    const int64_t n = std::min(room, (int64_t)snapshot->keys.size() - snapshot->read);
    for (int64_t i = 0; i < n; i++) {
        const size_t at = (size_t)(snapshot->read + i);
        const float *numbers = snapshot->numbers.data() + (int64_t)at * width;
        keys[i] = snapshot->keys[at];
        freqs[i] = snapshot->freqs[at];
        versions[i] = snapshot->versions[at];
        memcpy(values + i * dim, numbers, (size_t)dim * 4);
        if (beside > 0)
            memcpy(slots + i * beside, numbers + dim, (size_t)beside * 4);
    }
    snapshot->read += n;
    *read = n;
    return VME_CUDA_OK;
}

vme_cuda_status vme_cuda_snapshot_waiting(vme_cuda_snapshot *snapshot, int64_t room, int64_t *keys, int64_t *freqs,
                                          int64_t *versions, int64_t *read)
{
    const int64_t n = std::min(room, (int64_t)snapshot->waiting_keys.size() - snapshot->waiting_read);
    for (int64_t i = 0; i < n; i++) {
        const size_t at = (size_t)(snapshot->waiting_read + i);
        keys[i] = snapshot->waiting_keys[at];
        freqs[i] = snapshot->waiting_freqs[at];
        versions[i] = snapshot->waiting_versions[at];
    }
    snapshot->waiting_read += n;
    *read = n;
    return VME_CUDA_OK;
}

void vme_cuda_snapshot_end(vme_cuda_snapshot *snapshot, int saved)
{
    if (snapshot == nullptr)
        return;
    vme_cuda_table *table = snapshot->table;
    table->lock.lock();
    table->state->saving = false;
    if (saved)
        table->state->committed = snapshot->sequence;
    table->lock.unlock();
    vme_cuda_table_unref(table);
    delete snapshot;
}

/* Restores rows, or with `values` NULL waiting keys. `slots` may be NULL if rows have none. */
static vme_cuda_status put(vme_cuda_table *table, int64_t n, const int64_t *keys, const int64_t *freqs,
                           const int64_t *versions, const float *values, const float *slots)
{
    VME_TRY(cuda_enter(table->device));
    const alone whole(table);
    if (table->state->saving)
        return begin_saving(table);
    if (n == 0)
        return VME_CUDA_OK;
    const int64_t dim = table->options.dim, beside = dim * table->slots, width = values == nullptr ? 0 : dim + beside;
    unique_keys unique((size_t)n, table->options.seed); /* the last occurrence of a key counts */
    std::vector<int64_t> last;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t number = unique.number(keys[i]);
        if (number == last.size())
            last.push_back(i);
        else
            last[number] = i;
    }
    const int64_t count = (int64_t)last.size(), bytes = count * (24 + width * 4);
    VME_TRY(take_scratch(table, bytes));
    int64_t *to = table->state->pinned.as<int64_t>();
    float *numbers = reinterpret_cast<float *>(to + 3 * count);
    int64_t step = table->state->step;
    for (int64_t i = 0; i < count; i++) {
        const int64_t from = last[(size_t)i];
        to[i] = keys[from];
        to[count + i] = freqs[from];
        to[2 * count + i] = versions[from];
        if (values == nullptr)
            continue;
        step = std::max(step, versions[from]);
        memcpy(numbers + i * width, values + from * dim, (size_t)dim * 4);
        if (beside > 0)
            memcpy(numbers + i * width + dim, slots + from * beside, (size_t)beside * 4);
    }
    const int64_t *base = table->state->scratch.as<int64_t>();
    CUDA_TRY(cudaMemcpyAsync(table->state->scratch.at, to, (size_t)bytes, cudaMemcpyHostToDevice, table->stream));
    VME_TRY(reserve(table, base, count));
    put_job job{};
    job.work = work_of(table);
    job.count = count;
    job.keys = base;
    job.freqs = base + count;
    job.versions = base + 2 * count;
    job.numbers = values == nullptr ? nullptr : reinterpret_cast<const float *>(base + 3 * count);
    job.width = (int32_t)width;
    put_kernel<<<blocks_of(count), THREADS, 0, table->stream>>>(job);
    CUDA_TRY(cudaGetLastError());
    VME_TRY(read_counters(table));
    table->state->step = step;
    return VME_CUDA_OK;
}

vme_cuda_status vme_cuda_table_put(vme_cuda_table *table, int64_t n, const int64_t *keys, const int64_t *freqs,
                                   const int64_t *versions, const float *values, const float *slots)
{
    return put(table, n, keys, freqs, versions, values, slots);
}

vme_cuda_status vme_cuda_table_put_waiting(vme_cuda_table *table, int64_t n, const int64_t *keys, const int64_t *freqs,
                                           const int64_t *versions)
{
    return put(table, n, keys, freqs, versions, nullptr, nullptr);
}
