/* The two bundles of an image, read-only in memory: held against the image's manifest, listed, never unpacked.
 *
 * A bundle is a zip without compression (docs/bundle.md), so each entry is used where it lies. What is wrong is told in
 * one sentence on stderr. No Python in here.
 */
#ifndef VMRUN_ARCHIVE_H
#define VMRUN_ARCHIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *name; /* dotted name of a module; '#' and the digest in hex of a text; '/' and the path of a file */
    bool is_package;
    const uint8_t *data; /* of a module: its marshalled code */
    size_t size;
} vmrun_entry;

typedef struct {
    vmrun_entry *entries;
    size_t count;
    const uint8_t *mapped;
    size_t mapped_bytes;
} vmrun_archive;

/* Maps `folder/name` and checks its size and checksum against its line in `manifest`. False: told on stderr. */
bool vmrun_archive_open(vmrun_archive *archive, const char *folder, const char *name, const char *manifest);

/* Pages of an open archive, or of any other mapped file, leave the process until they are read again. */
void vmrun_archive_rest(const vmrun_archive *archive);
void vmrun_pages_rest(const void *begin, size_t size);

/* The whole file, with a NUL behind it; NULL: told on stderr. */
char *vmrun_file_read(const char *path, size_t *size);

/* True if the manifest, as read from `path`, ends with the checksum of what it says; otherwise told on stderr. */
bool vmrun_manifest_check(const char *path, const char *manifest, size_t size);

/* True if `path` has the size and the checksum (`thoroughly`: the SHA-256) that the manifest says of `name`; otherwise
 * told on stderr. */
bool vmrun_file_check(const char *path, const char *name, const char *manifest, bool thoroughly);

#endif
