/* Rows of a table on disk: an append-only log for each shard, all in one unnamed file.
 *
 * The file is divided into segments of equal size, which are interleaved by shard: segment k of shard s begins at byte
 * (k * SHARDS + s) * segment_bytes. Records are appended to a shard's active segment through a buffer, and never
 * change. A segment counts its live records: when none is left, its bytes return to the file system and it may be
 * reused. When most of a log is dead, the live records of its emptiest segment are appended again.
 *
 * The log is not persistent: it holds what does not fit in memory, its file has no name and disappears with the
 * process, however that ends. Only saves persist. So nothing is synced to disk; each record has a checksum, so that a
 * record that the disk lost or damaged is reported.
 *
 * Locks: a log is guarded by its shard's lock. Records in the file may be read without the lock by a thread that holds
 * their segment (`readers`), because a held segment is not reused. */
#ifndef VME_EMBEDDING_LOG_H
#define VME_EMBEDDING_LOG_H

#include "embedding/table.h"

typedef struct log_record {
    int64_t key, version;
    uint32_t freq, changed, epoch; /* as in row_note */
    uint32_t check;                /* checksum of everything else */
    float numbers[];               /* weights, then slots */
} log_record;

/* VME_IO_ERROR: the file cannot be created. VME_BAD_VALUE: memory or quota are too small for rows of this size. */
vme_status embedding_log_start(vme_embedding *table, const vme_embedding_options *options);
void embedding_log_end(vme_embedding *table);
/* Under the shard's exclusive lock. VME_NO_MEMORY: the disk quota is full; VME_IO_ERROR. On failure only the positions
 * of other records may have changed. `record`: the new record's number. */
vme_status embedding_log_append(vme_embedding *table, embedding_shard *shard, const row_note *note,
                                const float *numbers, uint32_t *record);
/* Whether there is room for one more key, beyond the reserve for cleaning. VME_NO_MEMORY: the disk quota is full. */
vme_status embedding_log_admits(const vme_embedding *table, const embedding_shard *shard);
/* Marks the record dead; nothing may refer to it any more. */
void embedding_log_drop(vme_embedding *table, embedding_shard *shard, uint32_t record);
/* Under the shard's lock, shared or exclusive. VME_IO_ERROR: it cannot be read, or is damaged. */
vme_status embedding_log_read(vme_embedding *table, const embedding_shard *shard, uint32_t record, log_record *to);
/* The same in two parts: `hold` under the shard's lock, then `read_held` without it; if `hold` returned true (the
 * record was in the buffer), `read_held` is not needed. Until `let_go`, the record's number is not reused. */
bool embedding_log_hold(vme_embedding *table, embedding_shard *shard, uint32_t record, log_record *to);
vme_status embedding_log_read_held(vme_embedding *table, const embedding_shard *shard, uint32_t record, log_record *to);
void embedding_log_let_go(vme_embedding *table, embedding_shard *shard, uint32_t record);
/* Memory for one record, for the holder of the shard's exclusive lock, until the next append. */
log_record *embedding_log_room(vme_embedding *table, embedding_shard *shard);
/* Bytes of the file used by segments with records. */
int64_t embedding_log_bytes(const vme_embedding *table);

#endif
