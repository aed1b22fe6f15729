/* Rows of a table on disk: an append-only log for each shard, all in one unnamed file.
 *
 * The file is divided into segments of equal size, interleaved by shard: segment k of shard s begins at byte
 * (k * SHARDS + s) * segment_bytes. Records are appended to a shard's active segment through a buffer, and never
 * change. Each segment counts its live records. When none is left, its blocks are returned to the file system (a hole
 * is punched) and it may be reused. When most records of a log are dead, or few segments are free, the live records of
 * the emptiest segment are appended again.
 *
 * The log is not persistent: it contains the rows that do not fit in memory. Its file is unnamed, so it disappears with
 * the process even after a crash. Only saves persist. So nothing is synced to disk. Each record has a checksum, by
 * which lost or damaged records are detected.
 *
 * Locks: a shard's lock guards its log. A thread that holds a segment (`readers`) may read its records from the file
 * without the lock, because a held segment is not reused. */
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
/* Appends a record; `record` receives its number. Under the shard's exclusive lock. VME_NO_MEMORY: the disk quota is
 * full; VME_IO_ERROR: it cannot be written. On failure nothing but the positions of other records has changed. */
vme_status embedding_log_append(vme_embedding *table, embedding_shard *shard, const row_note *note,
                                const float *numbers, uint32_t *record);
/* Checks that one more key fits, without using the reserve for cleaning. VME_NO_MEMORY: the disk quota is full. */
vme_status embedding_log_admits(const vme_embedding *table, const embedding_shard *shard);
/* Marks the record as dead. No entry and no row may refer to it any more. */
void embedding_log_drop(vme_embedding *table, embedding_shard *shard, uint32_t record);
/* Reads a record. Under the shard's lock, shared or exclusive. VME_IO_ERROR: it cannot be read, or is damaged. */
vme_status embedding_log_read(vme_embedding *table, const embedding_shard *shard, uint32_t record, log_record *to);
/* The same in two parts, so that no lock is held while the file is read: `hold` under the shard's lock, then
 * `read_held` without it. `hold` returns true if it has read the record from the buffer: then `read_held` is not
 * needed. The record's number is not reused until `let_go`. */
bool embedding_log_hold(vme_embedding *table, embedding_shard *shard, uint32_t record, log_record *to);
vme_status embedding_log_read_held(vme_embedding *table, const embedding_shard *shard, uint32_t record, log_record *to);
void embedding_log_let_go(vme_embedding *table, embedding_shard *shard, uint32_t record);
/* Memory for one record. Valid while the shard's exclusive lock is held, until the next append. */
log_record *embedding_log_room(vme_embedding *table, embedding_shard *shard);
/* Bytes of the segments that have records. */
int64_t embedding_log_bytes(const vme_embedding *table);

#endif
