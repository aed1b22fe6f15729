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

enum { PAGE = 4096, PATH_LONGEST = 4096, PIECE = 4 << 20 };
static const char magic[8] = "VMEKEPT6";

typedef struct kept_header {
    char magic[8];
    uint64_t model_bytes, packed_bytes, steps, backend, sum;
} kept_header;

static size_t packed_at(uint64_t steps) { return (sizeof(kept_header) + (size_t)steps + PAGE - 1) / PAGE * PAGE; }

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

/* Continues the checksum `sum`; the size is included. */
static uint64_t sum_of(uint64_t sum, const char *bytes, size_t size)
{
    uint64_t lane[LANES], word[LANES];
    size_t at = 0;
    for (int i = 0; i < LANES; i++)
        lane[i] = sum + (uint64_t)i + size;
    for (; at + BLOCK <= size; at += BLOCK) { /* nearly as fast as memory can be read */
        memcpy(word, bytes + at, BLOCK);
        mix(lane, word);
    }
    if (at < size) {
        memset(word, 0, sizeof word);
        memcpy(word, bytes + at, size - at);
        mix(lane, word);
    }
    for (int i = 0; i < LANES; i++)
        sum = (sum ^ lane[i]) * UINT64_C(0xff51afd7ed558ccd);
    return sum ^ sum >> 32;
}

/* The checksum of the choices and the packed block. `leave`: drops each piece of the mapping from the process after
 * use; it stays in the page cache. The model's own file may still be in memory at that time. */
static uint64_t sum_of_all(const char *choices, size_t count, const char *packed, size_t size, bool leave)
{
    uint64_t sum = sum_of(0, choices, count);
    for (size_t at = 0; at < size; at += PIECE) {
        const size_t piece = size - at < PIECE ? size - at : PIECE;
        if (leave)
            madvise((void *)(uintptr_t)(packed + at), piece, MADV_POPULATE_READ);
        sum = sum_of(sum, packed + at, piece);
        if (leave)
            madvise((void *)(uintptr_t)(packed + at), piece, MADV_DONTNEED);
    }
    return sum;
}

static uint64_t with_backend(uint64_t sum, uint64_t backend)
{
    return (sum ^ (backend + 1)) * UINT64_C(0x9e3779b97f4a7c15);
}

void kept_open(model_preparation *preparation, const char *path, size_t size)
{
    const bool leave = preparation->release_begin != NULL;
    struct stat found;
    kept_header head;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* O_NONBLOCK: does not wait on a pipe */
    if (file < 0)
        return;
    if (fstat(file, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == geteuid()
        && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0 && pread(file, &head, sizeof head, 0) == (ssize_t)sizeof head
        && memcmp(head.magic, magic, sizeof magic) == 0 && head.model_bytes == size
        && head.backend < (uint64_t)vme_backend_count() && vme_backend_available((int)head.backend)
        && (!vme_backend_forced() || (int)head.backend == vme_backend_current())
        && head.steps == (uint64_t)preparation->model->max_steps && head.packed_bytes <= (uint64_t)found.st_size
        && packed_at(head.steps) + head.packed_bytes == (uint64_t)found.st_size) {
        void *map =
            mmap(NULL, (size_t)found.st_size, PROT_READ, leave ? MAP_PRIVATE : MAP_PRIVATE | MAP_POPULATE, file, 0);
        const char *packed = map == MAP_FAILED ? NULL : (const char *)map + packed_at(head.steps);
        if (map != MAP_FAILED
            && with_backend(sum_of_all((const char *)map + sizeof head, packed_at(head.steps) - sizeof head, packed,
                                       head.packed_bytes, leave),
                            head.backend)
                   != head.sum)
            munmap(map, (size_t)found.st_size);
        else if (map != MAP_FAILED) {
            preparation->model->map = map;
            preparation->model->map_bytes = (size_t)found.st_size;
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
               ? (char *)preparation->model->map + packed_at(head.steps)
               : NULL;
}

void kept_load(const model_preparation *preparation)
{
    if (preparation->model->map != NULL && preparation->release_begin != NULL)
        madvise(preparation->model->map, preparation->model->map_bytes, MADV_POPULATE_READ);
}

static bool put(int file, const char *bytes, size_t count)
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
    char unfinished[PATH_LONGEST];
    const size_t room = packed_at((uint64_t)model->max_steps);
    if (snprintf(unfinished, sizeof unfinished, "%s.XXXXXX", path) >= (int)sizeof unfinished)
        return;
    char *front = calloc(1, room);
    int file = front == NULL ? -1 : mkostemp(unfinished, O_CLOEXEC);
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
    head.sum = with_backend(
        sum_of_all(front + sizeof head, room - sizeof head, model->packed, model->packed_bytes, false), head.backend);
    memcpy(front, &head, sizeof head);
    /* synced before the rename: after a power loss there is the whole file or no file */
    bool whole = put(file, front, room) && put(file, model->packed, model->packed_bytes) && fsync(file) == 0;
    whole = close(file) == 0 && whole;
    if (!whole || rename(unfinished, path) != 0)
        unlink(unfinished);
    free(front);
}
