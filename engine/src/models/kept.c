/* Prepared models in files: the backend, the chosen algorithms and the packed weights, so that the next process neither
 * chooses nor packs, and processes share the memory. Everything else is rebuilt from the model's own file, which is
 * cheap.
 *
 * Only files of this user that nobody else can write are mapped: anyone who can truncate a mapped file can end the
 * process. The caller guarantees that the path belongs to this model file, engine, backend and CPU. Sizes and counts
 * are checked against the model all the same, and no content of the packed block can make a run access memory outside
 * it. A checksum of everything after the header detects damage by a disk or a crash. It is no cryptographic digest,
 * because anyone who can write here can write the engine, and takes a tenth of the time. Little-endian, for this
 * machine only:
 *
 *   kept_header, an algorithm's number for each step (a byte), zeros to a multiple of PAGE, the packed block */
#include "models/kept.h"
#include "models/model.h"
#include "models/preparation.h"
#include "models/step.h"
#include "runtime/internal.h"

#include "vme_search.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, PATH_SIZE = 4096, PIECE = 4 << 20 };
static const char magic[8] = "VMEKEPT6";

typedef struct kept_header {
    char magic[8];
    uint64_t model_bytes, packed_bytes, steps, backend, checksum;
} kept_header;

static size_t packed_offset(uint64_t steps) { return (sizeof(kept_header) + (size_t)steps + PAGE - 1) / PAGE * PAGE; }

enum { LANES = 8, BLOCK = LANES * 8 };

/* Mixes each word into a lane of its own by a bijective product, so that a change of one word always changes the lane.
 */
static inline void mix(uint64_t *lane, const uint64_t *word)
{
    for (int i = 0; i < LANES; i++) {
        lane[i] = (lane[i] ^ word[i]) * UINT64_C(0x9e3779b97f4a7c15);
        lane[i] ^= lane[i] >> 32;
    }
}

/* Continues a checksum; the size is included. */
static uint64_t checksum_of(uint64_t checksum, const char *bytes, size_t size)
{
    uint64_t lane[LANES], word[LANES];
    size_t offset = 0;
    for (int i = 0; i < LANES; i++)
        lane[i] = checksum + (uint64_t)i + size;
    for (; offset + BLOCK <= size; offset += BLOCK) { /* nearly as fast as memory can be read */
        memcpy(word, bytes + offset, BLOCK);
        mix(lane, word);
    }
    if (offset < size) {
        memset(word, 0, sizeof word);
        memcpy(word, bytes + offset, size - offset);
        mix(lane, word);
    }
    for (int i = 0; i < LANES; i++)
        checksum = (checksum ^ lane[i]) * UINT64_C(0xff51afd7ed558ccd);
    return checksum ^ checksum >> 32;
}

/* The checksum of the choices and the packed block. `drop_pages`: drops the pages of each
 * piece from the process after use, because the model's own file may still be in memory; they stay in the page cache.
 */
static uint64_t checksum_of_all(const char *choices, size_t count, const char *packed, size_t size, bool drop_pages)
{
    uint64_t checksum = checksum_of(0, choices, count);
    for (size_t offset = 0; offset < size; offset += PIECE) {
        const size_t piece = size - offset < PIECE ? size - offset : PIECE;
        if (drop_pages)
            madvise((void *)(uintptr_t)(packed + offset), piece, MADV_POPULATE_READ);
        checksum = checksum_of(checksum, packed + offset, piece);
        if (drop_pages)
            madvise((void *)(uintptr_t)(packed + offset), piece, MADV_DONTNEED);
    }
    return checksum;
}

static uint64_t with_backend(uint64_t checksum, uint64_t backend)
{
    return (checksum ^ (backend + 1)) * UINT64_C(0x9e3779b97f4a7c15);
}

void kept_open(model_preparation *preparation, const char *path, size_t size)
{
    const bool drop_pages = preparation->release_begin != NULL;
    struct stat file_status;
    kept_header head;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* O_NONBLOCK: does not wait on a pipe */
    if (file < 0)
        return;
    if (fstat(file, &file_status) == 0 && S_ISREG(file_status.st_mode) && file_status.st_uid == geteuid()
        && (file_status.st_mode & (S_IWGRP | S_IWOTH)) == 0
        && pread(file, &head, sizeof head, 0) == (ssize_t)sizeof head && memcmp(head.magic, magic, sizeof magic) == 0
        && head.model_bytes == size && head.backend < (uint64_t)vme_backend_count()
        && vme_backend_available((int)head.backend)
        && (!vme_backend_forced() || (int)head.backend == vme_backend_current())
        && head.steps == (uint64_t)preparation->model->max_steps && head.packed_bytes <= (uint64_t)file_status.st_size
        && packed_offset(head.steps) + head.packed_bytes == (uint64_t)file_status.st_size) {
        void *map = mmap(NULL, (size_t)file_status.st_size, PROT_READ,
                         drop_pages ? MAP_PRIVATE : MAP_PRIVATE | MAP_POPULATE, file, 0);
        const char *packed = map == MAP_FAILED ? NULL : (const char *)map + packed_offset(head.steps);
        if (map != MAP_FAILED
            && with_backend(checksum_of_all((const char *)map + sizeof head, packed_offset(head.steps) - sizeof head,
                                            packed, head.packed_bytes, drop_pages),
                            head.backend)
                   != head.checksum)
            munmap(map, (size_t)file_status.st_size);
        else if (map != MAP_FAILED) {
            preparation->model->map = map;
            preparation->model->map_bytes = (size_t)file_status.st_size;
            preparation->model->kernels = vme_kernels_of((int)head.backend);
            preparation->kept = (const char *)map + sizeof head;
        }
    }
    close(file);
}

char *kept_packed(const model_preparation *preparation)
{
    if (preparation->kept == NULL)
        return NULL;
    kept_header head;
    memcpy(&head, preparation->model->map, sizeof head);
    for (int s = 0; s < preparation->model->steps; s++) /* algorithms may have been forced since */
        if (preparation->model->step[s].kind == STEP_CONV
            && preparation->model->step[s].algorithm != (model_algorithm)preparation->kept[s])
            return NULL;
    return head.packed_bytes == preparation->model->packed_bytes
               ? (char *)preparation->model->map + packed_offset(head.steps)
               : NULL;
}

void kept_load(const model_preparation *preparation)
{
    if (preparation->model->map != NULL && preparation->release_begin != NULL)
        madvise(preparation->model->map, preparation->model->map_bytes, MADV_POPULATE_READ);
}

static bool write_all(int file, const char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t written = write(file, bytes, count);
        if (written <= 0)
            return false;
        bytes += written;
        count -= (size_t)written;
    }
    return true;
}

void kept_write(const vme_model *model, const char *path, size_t size)
{
    char temporary[PATH_SIZE];
    const size_t front_bytes = packed_offset((uint64_t)model->max_steps);
    if (snprintf(temporary, sizeof temporary, "%s.XXXXXX", path) >= (int)sizeof temporary)
        return;
    char *front = calloc(1, front_bytes);
    int file = front == NULL ? -1 : mkostemp(temporary, O_CLOEXEC);
    if (file < 0) {
        free(front);
        return;
    }
    kept_header head = {.model_bytes = size,
                        .packed_bytes = model->packed_bytes,
                        .steps = (uint64_t)model->max_steps,
                        .backend = (uint64_t)vme_model_backend(model)};
    memcpy(head.magic, magic, sizeof magic);
    for (int s = 0; s < model->steps; s++)
        front[sizeof head + (size_t)s] = (char)model->step[s].algorithm;
    head.checksum = with_backend(
        checksum_of_all(front + sizeof head, front_bytes - sizeof head, model->packed, model->packed_bytes, false),
        head.backend);
    memcpy(front, &head, sizeof head);
    /* synced before the rename: after a power loss there is the whole file or no file */
    bool complete =
        write_all(file, front, front_bytes) && write_all(file, model->packed, model->packed_bytes) && fsync(file) == 0;
    complete = close(file) == 0 && complete;
    if (!complete || rename(temporary, path) != 0)
        unlink(temporary);
    free(front);
}
