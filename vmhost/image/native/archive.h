/* The two bundles of an image, mapped read-only: verified against the image's manifest, listed, never unpacked.  A
 * bundle is an uncompressed zip (docs/bundle.md), so entries are used in place. Errors are reported in one sentence on
 * stderr. No Python in here.
 */
#ifndef VMRUN_ARCHIVE_H
#define VMRUN_ARCHIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *name; /* dotted name of a module; '#' and the digest in hex of a text; '/' and the path of a file */
    bool is_package;
    const uint8_t *data; /* for a module: its marshalled code */
    size_t size;
} vmrun_entry;

typedef struct {
    vmrun_entry *entries;
    size_t count;
    const uint8_t *mapped;
    size_t mapped_bytes;
} vmrun_archive;

/* Maps `folder/name`, and checks size and checksum against its line in `manifest`. False: error reported on stderr. */
bool vmrun_archive_open(vmrun_archive *archive, const char *folder, const char *name, const char *manifest);

/* Evicts the pages of an open archive, or of any other mapped file, from the process until they are read again. */
void vmrun_archive_rest(const vmrun_archive *archive);
void vmrun_pages_rest(const void *begin, size_t size);

/* The whole file, NUL-terminated; NULL: error reported on stderr. */
char *vmrun_file_read(const char *path, size_t *size);

/* True if the manifest, as read from `path`, ends with the checksum of its contents; otherwise reports on stderr. */
bool vmrun_manifest_check(const char *path, const char *manifest, size_t size);

/* True if `path` has the size and the checksum (`thoroughly`: the SHA-256) that the manifest has for `name`; otherwise
 * reports on stderr. */
bool vmrun_file_check(const char *path, const char *name, const char *manifest, bool thoroughly);

#endif
