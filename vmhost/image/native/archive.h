/* The two bundles of an image, read-only in memory: found by their digests in the image's manifest, listed, never unpacked.
 *
 * A bundle is a zip without compression (docs/bundle.md), so each entry is used where it lies. What is wrong is told in one
 * sentence on stderr. No Python in here.
 */
#ifndef VMRUN_ARCHIVE_H
#define VMRUN_ARCHIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *name;             /* dotted name of a module; '#' and the digest in hex of a text; '/' and the path of a file */
    bool is_package;
    const uint8_t *data;    /* of a module: its marshalled code */
    size_t size;
} vmrun_entry;

typedef struct {
    vmrun_entry *entries;
    size_t count;
} vmrun_archive;

/* Maps `folder/name` and checks it against the line `sha256 HEX SIZE name` of `manifest`. False: told on stderr. */
bool vmrun_archive_open(vmrun_archive *archive, const char *folder, const char *name, const char *manifest);

/* The whole file, with a NUL behind it; NULL: told on stderr. */
char *vmrun_file_read(const char *path, size_t *size);

/* True if `path` holds what the manifest says of `name`; otherwise told on stderr. */
bool vmrun_file_check(const char *path, const char *name, const char *manifest);

#endif
