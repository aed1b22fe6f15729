/* The log of rows on disk (log.h). */
#include "embedding/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    BUFFER_BYTES = 64 << 10,
    SEGMENT_BYTES_MAX = 4 << 20, /* so that rewriting a segment takes a few milliseconds */
    SEGMENTS_MIN = 8,            /* minimum segments of a shard */
    SEGMENTS_WANTED = 64,        /* segments of a shard, if the quota is large enough for segments of useful size */
    ALIGNMENT = 4096,            /* bytes; of segments, because holes are punched in whole blocks of the file system */
};

typedef struct log_segment {
    uint32_t live, written; /* numbers of records, including those in the buffer */
    atomic_int readers;     /* threads that read a record without the lock */
} log_segment;

struct shard_log {
    log_segment *segments; /* table->log->segments of them */
    char *buffer;          /* the last `buffered` records of the active segment, not written to the file yet */
    log_record *one;       /* memory for one record, for the holder of the shard's exclusive lock */
    uint32_t buffered;
    int32_t active; /* the segment to which records are appended; -1: none yet */
    int32_t used;   /* segments with records */
    int64_t live;   /* live records of all segments */
};

static shard_log *log_of(const vme_embedding *table, const embedding_shard *shard)
{
    return &table->log->shards[shard - table->shards];
}

static off_t offset_of(const vme_embedding *table, const embedding_shard *shard, uint32_t record)
{
    const embedding_log *log = table->log;
    const int64_t segment = record / log->segment_records, at = record % log->segment_records;
    return (off_t)((segment * SHARDS + (shard - table->shards)) * log->segment_bytes + at * log->record_bytes);
}

static uint32_t check_of(const log_record *record, int64_t bytes)
{
    uint64_t sum = UINT64_C(0x9e3779b97f4a7c15), word;
    const int64_t behind = (int64_t)sizeof *record;
    for (int64_t at = 0; at < bytes; at += (int64_t)sizeof word) {
        memcpy(&word, (const char *)record + at, sizeof word);
        if (at == behind - (int64_t)sizeof word) /* `check` is the second half of this word */
            word = record->epoch;
        sum = (sum ^ word) * UINT64_C(0xd6e8feb86659fd93);
        sum ^= sum >> 32;
    }
    return (uint32_t)sum;
}

/* ---- the file */
static vme_status io_error(const vme_embedding *table, const char *what, int error)
{
    char text[128] = "";
    return vme_fail(VME_IO_ERROR, "%s: rows of the embedding table cannot be %s on disk: %s", table->log->folder, what,
                    strerror_r(error, text, sizeof text));
}

static vme_status write_all(const vme_embedding *table, const char *from, size_t bytes, off_t offset)
{
    while (bytes > 0) {
        const ssize_t done = pwrite(table->log->file, from, bytes, offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return io_error(table, "written", done == 0 ? ENOSPC : errno);
        from += done;
        bytes -= (size_t)done;
        offset += done;
    }
    return VME_OK;
}

static vme_status read_all(const vme_embedding *table, char *to, size_t bytes, off_t offset)
{
    while (bytes > 0) {
        const ssize_t done = pread(table->log->file, to, bytes, offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return io_error(table, "read", done == 0 ? EIO : errno);
        to += done;
        bytes -= (size_t)done;
        offset += done;
    }
    return VME_OK;
}

/* Opens an unnamed file; on failure returns -1 and sets errno. */
static int open_unnamed_file(const char *folder)
{
    int file = open(folder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
        return file;
    static const char name[] = "/.vmhost-rows-XXXXXX"; /* the file system does not support O_TMPFILE */
    const size_t size = strlen(folder);
    char *path = malloc(size + sizeof name);
    if (path == NULL) {
        errno = ENOMEM;
        return -1;
    }
    memcpy(path, folder, size + 1);
    memcpy(path + size, name, sizeof name);
    file = mkostemp(path, O_CLOEXEC);
    if (file >= 0)
        unlink(path);
    free(path);
    return file;
}

/* ---- start and end */
static int64_t round_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

static vme_status check_sizes(vme_embedding *table, const vme_embedding_options *o, embedding_log *log)
{
    const int64_t row_bytes =
        table->stride * (int64_t)sizeof(float) + (int64_t)sizeof(row_note) + (int64_t)sizeof(row_tier);
    const int64_t rows_min = (INT64_C(1) << FIRST_ROWS_BITS), memory_min = SHARDS * rows_min * row_bytes;
    if (o->disk_memory_bytes < memory_min)
        return vme_fail(VME_BAD_VALUE, "memory: expected at least %lld bytes for rows of this size, got %lld",
                        (long long)memory_min, (long long)o->disk_memory_bytes);
    const int64_t rows = o->disk_memory_bytes / SHARDS / row_bytes;
    table->rows_max = rows < ROWS_MAX ? (uint32_t)rows : ROWS_MAX;
    log->record_bytes = round_up((int64_t)sizeof(log_record) + table->options.dim * (1 + table->slots) * 4, 8);
    const int64_t smallest =
        round_up(8 * log->record_bytes > BUFFER_BYTES ? 8 * log->record_bytes : BUFFER_BYTES, ALIGNMENT);
    int64_t bytes = o->disk_quota_bytes / SHARDS / SEGMENTS_WANTED / ALIGNMENT * ALIGNMENT;
    bytes = bytes > SEGMENT_BYTES_MAX ? SEGMENT_BYTES_MAX : bytes;
    log->segment_bytes = bytes < smallest ? smallest : bytes;
    if (o->disk_quota_bytes < SHARDS * SEGMENTS_MIN * log->segment_bytes)
        return vme_fail(VME_BAD_VALUE,
                        "quota of the disk: expected at least %lld bytes for rows of this size, got %lld",
                        (long long)(SHARDS * SEGMENTS_MIN * log->segment_bytes), (long long)o->disk_quota_bytes);
    log->segment_records = (uint32_t)(log->segment_bytes / log->record_bytes);
    log->buffer_records = (uint32_t)(BUFFER_BYTES / log->record_bytes < 1 ? 1 : BUFFER_BYTES / log->record_bytes);
    const int64_t segments = o->disk_quota_bytes / SHARDS / log->segment_bytes,
                  numbered = (int64_t)ROWS_MAX / log->segment_records;
    log->segments = (int32_t)(segments < numbered ? segments : numbered);
    return VME_OK;
}

static size_t segments_bytes(const embedding_log *log) { return (size_t)log->segments * sizeof(log_segment); }
static size_t buffer_bytes(const embedding_log *log) { return log->buffer_records * (size_t)log->record_bytes; }

static vme_status start_shard(vme_embedding *table, shard_log *shard)
{
    embedding_log *log = table->log;
    shard->active = -1;
    shard->segments = embedding_memory(table, segments_bytes(log));
    shard->buffer = shard->segments == NULL ? NULL : embedding_memory(table, buffer_bytes(log));
    shard->one = shard->buffer == NULL ? NULL : embedding_memory(table, (size_t)log->record_bytes);
    if (shard->one == NULL)
        return VME_NO_MEMORY;
    for (int32_t i = 0; i < log->segments; i++)
        atomic_init(&shard->segments[i].readers, (shard->segments[i].live = shard->segments[i].written = 0, 0));
    return VME_OK;
}

vme_status embedding_log_start(vme_embedding *table, const vme_embedding_options *options)
{
    if (options->disk_folder == NULL)
        return VME_OK;
    embedding_log *log = calloc(1, sizeof *log);
    shard_log *shards = calloc(SHARDS, sizeof *shards);
    table->log = log;
    if (log != NULL) {
        log->file = -1;
        log->shards = shards;
        log->folder = strdup(options->disk_folder);
    }
    if (log == NULL || shards == NULL || log->folder == NULL) {
        if (log == NULL)
            free(shards);
        return vme_fail(VME_NO_MEMORY, "no memory for an embedding table");
    }
    log->used_most = options->disk_cache == VME_EMBEDDING_LFU;
    vme_status status = check_sizes(table, options, log);
    for (int i = 0; i < SHARDS && status == VME_OK; i++)
        status = start_shard(table, &shards[i]);
    if (status == VME_OK && (log->saved = embedding_memory(table, (size_t)log->record_bytes)) == NULL)
        status = VME_NO_MEMORY;
    if (status == VME_OK && (log->file = open_unnamed_file(log->folder)) < 0)
        status = io_error(table, "kept", errno);
    return status;
}

void embedding_log_end(vme_embedding *table)
{
    embedding_log *log = table->log;
    if (log == NULL)
        return;
    for (int i = 0; log->shards != NULL && i < SHARDS; i++) {
        embedding_memory_free(table, log->shards[i].segments, segments_bytes(log));
        embedding_memory_free(table, log->shards[i].buffer, buffer_bytes(log));
        embedding_memory_free(table, log->shards[i].one, (size_t)log->record_bytes);
    }
    embedding_memory_free(table, log->saved, (size_t)log->record_bytes);
    if (log->file >= 0)
        close(log->file);
    free(log->shards);
    free(log->folder);
    free(log);
    table->log = NULL;
}

/* ---- reading */
static const log_record *buffered(const embedding_log *log, const shard_log *shard, uint32_t record)
{
    if (shard->active < 0 || (int32_t)(record / log->segment_records) != shard->active)
        return NULL;
    const uint32_t at = record % log->segment_records, first = shard->segments[shard->active].written - shard->buffered;
    return at < first ? NULL : (const log_record *)(const void *)(shard->buffer + (at - first) * log->record_bytes);
}

static vme_status read_file(const vme_embedding *table, const embedding_shard *shard, uint32_t record, log_record *to)
{
    const off_t offset = offset_of(table, shard, record);
    vme_status status = read_all(table, (char *)to, (size_t)table->log->record_bytes, offset);
    if (status == VME_OK && to->check != check_of(to, table->log->record_bytes))
        status = vme_fail(VME_IO_ERROR,
                          "%s: a row of the embedding table is damaged on disk (byte %lld): restore the table from its "
                          "last save",
                          table->log->folder, (long long)offset);
    return status;
}

vme_status embedding_log_read(vme_embedding *table, const embedding_shard *shard, uint32_t record, log_record *to)
{
    const log_record *found = buffered(table->log, log_of(table, shard), record);
    if (found == NULL)
        return read_file(table, shard, record, to);
    memcpy(to, found, (size_t)table->log->record_bytes);
    return VME_OK;
}

bool embedding_log_hold(vme_embedding *table, embedding_shard *shard, uint32_t record, log_record *to)
{
    const log_record *found = buffered(table->log, log_of(table, shard), record);
    atomic_fetch_add(&log_of(table, shard)->segments[record / table->log->segment_records].readers, 1);
    if (found != NULL)
        memcpy(to, found, (size_t)table->log->record_bytes);
    return found != NULL;
}

vme_status embedding_log_read_held(vme_embedding *table, const embedding_shard *shard, uint32_t record, log_record *to)
{
    return read_file(table, shard, record, to);
}

void embedding_log_let_go(vme_embedding *table, embedding_shard *shard, uint32_t record)
{
    atomic_fetch_sub(&log_of(table, shard)->segments[record / table->log->segment_records].readers, 1);
}

log_record *embedding_log_room(vme_embedding *table, embedding_shard *shard) { return log_of(table, shard)->one; }

int64_t embedding_log_bytes(const vme_embedding *table)
{
    return table->log == NULL ? 0 : atomic_load(&table->log->segments_used) * table->log->segment_bytes;
}

/* ---- appending */
static vme_status flush(vme_embedding *table, embedding_shard *shard)
{
    shard_log *log = log_of(table, shard);
    if (log->buffered == 0)
        return VME_OK;
    const uint32_t first =
        (uint32_t)log->active * table->log->segment_records + log->segments[log->active].written - log->buffered;
    vme_status status =
        write_all(table, log->buffer, log->buffered * (size_t)table->log->record_bytes, offset_of(table, shard, first));
    if (status == VME_OK)
        log->buffered = 0;
    return status;
}

/* Frees the segment if it has no live records and is not the active one. */
static void release(vme_embedding *table, embedding_shard *shard, int32_t number)
{
    shard_log *log = log_of(table, shard);
    log_segment *segment = &log->segments[number];
    if (segment->live > 0 || number == log->active || segment->written == 0)
        return;
    segment->written = 0;
    log->used--;
    atomic_fetch_sub(&table->log->segments_used, 1);
    if (atomic_load(&segment->readers) == 0) /* a file system without holes keeps the blocks, for later records */
        (void)!fallocate(table->log->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                         offset_of(table, shard, (uint32_t)number * table->log->segment_records),
                         table->log->segment_bytes);
}

void embedding_log_drop(vme_embedding *table, embedding_shard *shard, uint32_t record)
{
    shard_log *log = log_of(table, shard);
    const int32_t number = (int32_t)(record / table->log->segment_records);
    log->segments[number].live--;
    log->live--;
    release(table, shard, number);
}

static vme_status is_full(const vme_embedding *table)
{
    return vme_fail(VME_NO_MEMORY,
                    "the embedding table's rows fill the %lld bytes that it may take on disk: raise the quota of its "
                    "storage, or admit fewer keys (filter_freq) and evict them (steps_to_live)",
                    (long long)table->options.disk_quota_bytes);
}

vme_status embedding_log_admits(const vme_embedding *table, const embedding_shard *shard)
{
    const int64_t rows = (int64_t)(table->log->segments - 2) * table->log->segment_records;
    return shard->on_disk < rows - rows / 8 ? VME_OK : is_full(table);
}

/* Makes a free segment the active one. The last free one is reserved for cleaning (`reserved`). */
static vme_status activate(vme_embedding *table, embedding_shard *shard, bool reserved)
{
    shard_log *log = log_of(table, shard);
    int32_t number = 0;
    while (number < table->log->segments
           && (log->segments[number].written > 0 || atomic_load(&log->segments[number].readers) > 0))
        number++;
    if (number == table->log->segments || (!reserved && log->used + 1 >= table->log->segments))
        return is_full(table);
    const int32_t before = log->active;
    log->active = number;
    log->used++;
    atomic_fetch_add(&table->log->segments_used, 1);
    if (before >= 0)
        release(table, shard, before);
    return VME_OK;
}

static vme_status append(vme_embedding *table, embedding_shard *shard, const log_record *from, bool reserved,
                         uint32_t *record)
{
    shard_log *log = log_of(table, shard);
    vme_status status = VME_OK;
    const bool full = log->active < 0 || log->segments[log->active].written == table->log->segment_records;
    if ((full || log->buffered == table->log->buffer_records) && (status = flush(table, shard)) != VME_OK)
        return status;
    if (full && (status = activate(table, shard, reserved)) != VME_OK)
        return status;
    log_segment *segment = &log->segments[log->active];
    *record = (uint32_t)log->active * table->log->segment_records + segment->written;
    memcpy(log->buffer + log->buffered * (size_t)table->log->record_bytes, from, (size_t)table->log->record_bytes);
    log->buffered++;
    segment->written++;
    segment->live++;
    log->live++;
    return VME_OK;
}

/* Empties a segment: appends records of rows on disk again, and drops records of rows that are in memory. */
static vme_status rewrite(vme_embedding *table, embedding_shard *shard, int32_t number)
{
    shard_log *log = log_of(table, shard);
    log_segment *segment = &log->segments[number];
    const uint32_t each = table->log->buffer_records, first = (uint32_t)number * table->log->segment_records;
    const size_t bytes = buffer_bytes(table->log);
    char *records = vme_scratch_new(table->context, bytes);
    vme_status status = records == NULL ? VME_NO_MEMORY : VME_OK;
    for (uint32_t at = 0; at < segment->written && segment->live > 0 && status == VME_OK; at += each) {
        const uint32_t count = segment->written - at < each ? segment->written - at : each;
        status =
            read_all(table, records, count * (size_t)table->log->record_bytes, offset_of(table, shard, first + at));
        for (uint32_t i = 0; i < count && segment->live > 0 && status == VME_OK; i++) {
            const log_record *one = (const log_record *)(const void *)(records + i * (size_t)table->log->record_bytes);
            const uint64_t hash = embedding_hash(table, one->key);
            uint32_t record = first + at + i;
            key_entry *entry =
                &table->shards[embedding_shard_of(hash)] == shard ? embedding_find(shard, one->key, hash) : NULL;
            if (entry == NULL || entry->where >= ENTRY_WAITING)
                continue;
            row_tier *tier = entry->count & ON_DISK ? NULL : embedding_tier(table, shard, entry->where);
            if ((tier == NULL ? entry->where : tier->record) != record)
                continue;
            if (tier != NULL)
                tier->record = NO_RECORD;
            else if ((status = append(table, shard, one, true, &entry->where)) != VME_OK)
                break;
            embedding_log_drop(table, shard, record);
        }
    }
    if (records != NULL)
        vme_scratch_free(table->context, records, bytes);
    return status;
}

/* Drops the records of all rows that are in memory. */
static void forget_copies(vme_embedding *table, embedding_shard *shard)
{
    for (uint32_t row = 0; row < shard->row_count; row++)
        if (embedding_note(table, shard, row)->live)
            embedding_row_dirty(table, shard, row);
}

/* Called when the active segment is full, before another one is activated. Frees segments if more than half of the
 * records are dead, or if fewer than two segments are free. */
static vme_status clean(vme_embedding *table, embedding_shard *shard)
{
    shard_log *log = log_of(table, shard);
    for (int tries = 0; tries < 4; tries++) {
        const int64_t each = table->log->segment_records;
        const bool short_of = log->used + 2 > table->log->segments,
                   mostly_dead = log->used * each > 2 * log->live + 2 * each;
        int32_t emptiest = -1;
        for (int32_t i = 0; (short_of || mostly_dead) && i < table->log->segments; i++)
            if (i != log->active && log->segments[i].written > 0
                && (emptiest < 0 || log->segments[i].live < log->segments[emptiest].live))
                emptiest = i;
        if (emptiest < 0)
            return VME_OK;
        if (log->segments[emptiest].live > each - each / 16) { /* rewriting it would free too little */
            if (log->live == shard->on_disk)
                return VME_OK;
            forget_copies(table, shard);
            continue;
        }
        vme_status status = rewrite(table, shard, emptiest);
        if (status != VME_OK)
            return status;
    }
    return VME_OK;
}

vme_status embedding_log_append(vme_embedding *table, embedding_shard *shard, const row_note *note,
                                const float *numbers, uint32_t *record)
{
    shard_log *log = log_of(table, shard);
    vme_status status = VME_OK;
    if (log->active >= 0 && log->segments[log->active].written == table->log->segment_records)
        status = clean(table, shard);
    if (status != VME_OK)
        return status;
    log_record *one = log->one;
    const size_t size = (size_t)table->options.dim * (size_t)(1 + table->slots) * sizeof(float);
    memset((char *)one + table->log->record_bytes - 8, 0, 8); /* the padding of the record */
    one->key = note->key;
    one->version = note->version;
    one->freq = note->freq;
    one->changed = note->changed;
    one->epoch = note->epoch;
    memcpy(one->numbers, numbers, size);
    one->check = check_of(one, table->log->record_bytes);
    return append(table, shard, one, false, record);
}
