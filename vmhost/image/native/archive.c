#include "archive.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tomcrypt.h>
#include <unistd.h>

static const char ADVICE[] = "make the image again with `vmhost image`, or copy it again";

/* Maps the file. An image is installed like a program; its files must not be modified while it runs. */
static const uint8_t *map(const char *path, size_t *size)
{
    struct stat found;
    const uint8_t *data = NULL;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &found) != 0) {
        fprintf(stderr, "vmrun: %s: cannot be read: %s; %s\n", path, strerror(errno), ADVICE);
    } else if (!S_ISREG(found.st_mode)) {
        fprintf(stderr, "vmrun: %s: expected a file; %s\n", path, ADVICE);
    } else if (found.st_size == 0) {
        fprintf(stderr, "vmrun: %s: is empty; %s\n", path, ADVICE);
    } else if ((data = mmap(NULL, (size_t)found.st_size, PROT_READ, MAP_PRIVATE, file, 0)) == MAP_FAILED) {
        fprintf(stderr, "vmrun: %s: cannot be mapped: %s\n", path, strerror(errno));
        data = NULL;
    }
    if (file >= 0)
        close(file);
    *size = data == NULL ? 0 : (size_t)found.st_size;
    return data;
}

char *vmrun_file_read(const char *path, size_t *size)
{
    const uint8_t *data = map(path, size);
    char *copy = data == NULL ? NULL : malloc(*size + 1);
    if (copy != NULL) {
        memcpy(copy, data, *size);
        copy[*size] = 0;
    }
    if (data != NULL)
        munmap((void *)data, *size);
    return copy;
}

/* Two sums over the 64-bit words of a file, modulo 2^64, as in folder.py: of the words, and of the prefix sums. The
 * first detects a changed word, the second also swapped words; a CRC-32 of the same bytes takes twenty times as long.
 * */
typedef struct {
    uint64_t words, sums;
} checksum;

static checksum checksum_of(const uint8_t *data, size_t size)
{
    checksum found = {0, 0};
    uint64_t word; /* little-endian, as on all supported machines */
    for (; size >= sizeof word; data += sizeof word, size -= sizeof word) {
        memcpy(&word, data, sizeof word);
        found.words += word;
        found.sums += found.words;
    }
    if (size > 0) {
        word = 0;
        memcpy(&word, data, size);
        found.words += word;
        found.sums += found.words;
    }
    return found;
}

bool vmrun_manifest_check(const char *path, const char *manifest, size_t size)
{
    enum { END_BYTES = 4 + 32 + 1 }; /* "end ", the checksum of all before it, a newline */
    char expected[END_BYTES + 1];
    checksum sum = checksum_of((const uint8_t *)manifest, size < END_BYTES ? 0 : size - END_BYTES);
    snprintf(expected, sizeof expected, "end %016" PRIx64 "%016" PRIx64 "\n", sum.words, sum.sums);
    bool right = size >= END_BYTES && memcmp(manifest + size - END_BYTES, expected, END_BYTES) == 0;
    if (!right)
        fprintf(stderr, "vmrun: %s: altered or damaged: its last line is not the checksum of the others; %s\n", path,
                ADVICE);
    return right;
}

typedef struct {
    char sha256[65];
    checksum sum;
    size_t size;
} promise;

/* Finds `file SHA256 CHECKSUM SIZE name` in the manifest. */
static bool promised(const char *manifest, const char *name, promise *found)
{
    size_t length = strlen(name);
    for (const char *line = manifest; line != NULL && *line != 0;) {
        int at = 0;
        if (sscanf(line, "file %64[0-9a-f] %16" SCNx64 "%16" SCNx64 " %zu %n", found->sha256, &found->sum.words,
                   &found->sum.sums, &found->size, &at)
                == 4
            && at > 0 && strncmp(line + at, name, length) == 0
            && (line[at + (int)length] == '\n' || line[at + (int)length] == 0))
            return true;
        line = strchr(line, '\n');
        line = line == NULL ? NULL : line + 1;
    }
    return false;
}

static bool check(const char *path, const char *name, const uint8_t *data, size_t size, const char *manifest,
                  bool thoroughly)
{
    char sha256[65];
    uint8_t digest[32];
    promise expected;
    hash_state state;
    if (!promised(manifest, name, &expected)) {
        fprintf(stderr, "vmrun: %s: the image's manifest does not name it; %s\n", path, ADVICE);
        return false;
    }
    if (size != expected.size) {
        fprintf(stderr, "vmrun: %s: altered or damaged: expected %zu bytes, got %zu; %s\n", path, expected.size, size,
                ADVICE);
        return false;
    }
    if (!thoroughly) {
        checksum sum = checksum_of(data, size);
        if (sum.words == expected.sum.words && sum.sums == expected.sum.sums)
            return true;
    }
    sha256_init(&state);
    sha256_process(&state, data, size);
    sha256_done(&state, digest);
    for (int i = 0; i < 32; i++)
        snprintf(sha256 + 2 * i, 3, "%02x", digest[i]);
    if (strcmp(sha256, expected.sha256) != 0) {
        fprintf(stderr, "vmrun: %s: altered or damaged: expected SHA-256 %.16s…, got %.16s…; %s\n", path,
                expected.sha256, sha256, ADVICE);
        return false;
    }
    return true;
}

bool vmrun_file_check(const char *path, const char *name, const char *manifest, bool thoroughly)
{
    size_t size;
    const uint8_t *data = map(path, &size);
    bool right = data != NULL && check(path, name, data, size, manifest, thoroughly);
    if (data != NULL)
        munmap((void *)data, size);
    return right;
}

/* ---- the zip ---- */

enum { LOCAL_BYTES = 30, CENTRAL_BYTES = 46, END_BYTES = 22, PYC_HEADER_BYTES = 16 };

static uint32_t number(const uint8_t *at, int bytes)
{
    uint32_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint32_t)at[i] << 8 * i;
    return value;
}

static bool ends_with(const char *text, size_t length, const char *end)
{
    size_t size = strlen(end);
    return length >= size && memcmp(text + length - size, end, size) == 0;
}

/* The list's name for the path `text`; false: no memory. */
static bool name_entry(vmrun_entry *entry, const char *text, size_t length)
{
    const char *slash = length > 5 && memcmp(text, "code/", 5) == 0 ? memchr(text + 5, '/', length - 5) : NULL;
    if (slash != NULL && ends_with(text, length, ".pyc") && entry->size >= PYC_HEADER_BYTES) {
        entry->data += PYC_HEADER_BYTES;
        entry->size -= PYC_HEADER_BYTES;
        length -= 4 + (size_t)(slash + 1 - text);
        text = slash + 1;
        entry->is_package = ends_with(text, length, "/__init__");
        if (entry->is_package)
            length -= strlen("/__init__");
        entry->name = strndup(text, length);
        for (char *at = entry->name; at != NULL && *at != 0; at++)
            if (*at == '/')
                *at = '.';
        return entry->name != NULL;
    }
    bool is_text = length > 6 && memcmp(text, "texts/", 6) == 0, is_file = length > 6 && memcmp(text, "files/", 6) == 0;
    size_t skipped = is_text || is_file ? 6 : 0;
    entry->name = malloc(length - skipped + 2);
    if (entry->name == NULL)
        return false;
    entry->name[0] = is_text ? '#' : '/';
    memcpy(entry->name + 1, text + skipped, length - skipped);
    entry->name[1 + length - skipped] = 0;
    return true;
}

/* The digest of the whole file was verified, so it is as our own writer made it; this only checks bounds. */
static bool list(vmrun_archive *archive, const uint8_t *data, size_t size)
{
    if (size < END_BYTES || number(data + size - END_BYTES, 4) != 0x06054b50)
        return false;
    size_t count = number(data + size - 12, 2), at = number(data + size - 6, 4);
    archive->entries = calloc(count, sizeof *archive->entries);
    if (archive->entries == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        if (at + CENTRAL_BYTES > size)
            return false;
        size_t stored = number(data + at + 24, 4), name_bytes = number(data + at + 28, 2),
               local = number(data + at + 42, 4);
        size_t begins = local + LOCAL_BYTES + name_bytes;
        if (at + CENTRAL_BYTES + name_bytes > size || begins + stored > size)
            return false;
        archive->entries[i] = (vmrun_entry){.data = data + begins, .size = stored};
        if (!name_entry(&archive->entries[i], (const char *)data + at + CENTRAL_BYTES, name_bytes))
            return false;
        at += CENTRAL_BYTES + name_bytes;
    }
    archive->count = count;
    return true;
}

bool vmrun_archive_open(vmrun_archive *archive, const char *folder, const char *name, const char *manifest)
{
    char path[4096];
    size_t size;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) {
        fprintf(stderr, "vmrun: %s: the path is too long\n", folder);
        return false;
    }
    const uint8_t *data = map(path, &size);
    if (data == NULL || !check(path, name, data, size, manifest, false))
        return false;
    if (!list(archive, data, size)) {
        fprintf(stderr, "vmrun: %s: not a bundle, or no memory to list it; %s\n", path, ADVICE);
        return false;
    }
    archive->mapped = data;
    archive->mapped_bytes = size;
    vmrun_archive_rest(archive);
    return true;
}

void vmrun_archive_rest(const vmrun_archive *archive) { vmrun_pages_rest(archive->mapped, archive->mapped_bytes); }

void vmrun_pages_rest(const void *begin, size_t size)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = ((uintptr_t)begin + page - 1) & ~(page - 1),
              to = ((uintptr_t)begin + size) & ~(page - 1);
    if (to > from)
        madvise((void *)from, to - from, MADV_DONTNEED);
}
