/* Rows of a table that lie on disk: an append-only log for each shard, all in one file without a name.
 *
 * The file is cut into segments of equal size, which shards take in turns: segment k of shard s begins at byte
 * (k * SHARDS + s) * segment_bytes. Records are appended to a shard's active segment, by way of a buffer, and never
 * change. A segment counts its live records: when none is left its bytes go back to the file system, and it may be
 * taken again. Once most of a log is dead, the live records of its emptiest segment are appended anew.
 *
 * The log is no state: it holds what did not fit into memory, its file has no name, and is gone with its process
 * however that ends. What survives is what was saved. So nothing is synced to the disk; a record carries a check sum,
 * by which one that the disk lost or damaged is an error.
 *
 * Locks: a log belongs to its shard's lock. Records that are in the file may be read without it by who holds their
 * segment (`readers`), since a held segment is not taken again. */
#ifndef VME_EMBEDDING_LOG_H
#define VME_EMBEDDING_LOG_H

#include "embedding/table.h"

typedef struct log_record {
    int64_t key, version;
    uint32_t freq, changed, epoch; /* as of row_note */
    uint32_t check;                /* of all else */
    float numbers[];               /* weights, then slots */
} log_record;

/* VME_IO_ERROR: no file can be made there. VME_BAD_VALUE: memory or quota are too small for rows of this size. */
vme_status embedding_log_start(vme_embedding *table, const vme_embedding_options *options);
void embedding_log_end(vme_embedding *table);
/* Under the shard's lock, alone. VME_NO_MEMORY: the quota of the disk is full; VME_IO_ERROR; nothing changed but for
 * the places of other records. `record`: its number. */
vme_status embedding_log_append(vme_embedding *table, embedding_shard *shard, const row_note *note,
                                const float *numbers, uint32_t *record);
/* Whether there is room for one key more, beside what cleaning the log takes. VME_NO_MEMORY: the quota of the disk. */
vme_status embedding_log_admits(const vme_embedding *table, const embedding_shard *shard);
/* Nothing points to the record any more. */
void embedding_log_drop(vme_embedding *table, embedding_shard *shard, uint32_t record);
/* Under the shard's lock, shared or alone. VME_IO_ERROR: it cannot be read, or is damaged. */
vme_status embedding_log_read(vme_embedding *table, const embedding_shard *shard, uint32_t record, log_record *to);
/* The same in two parts: `hold` under the shard's lock, `read_held` after that without it, or, where `hold` gave true
 * (the record was in the buffer), not at all. Until it is let go, the record's number stands for no other record. */
bool embedding_log_hold(vme_embedding *table, embedding_shard *shard, uint32_t record, log_record *to);
vme_status embedding_log_read_held(vme_embedding *table, const embedding_shard *shard, uint32_t record, log_record *to);
void embedding_log_let_go(vme_embedding *table, embedding_shard *shard, uint32_t record);
/* Room for one record, for who has the shard's lock alone, until the next append. */
log_record *embedding_log_room(vme_embedding *table, embedding_shard *shard);
/* Bytes of the file that segments in use take. */
int64_t embedding_log_bytes(const vme_embedding *table);

#endif
