/* The modules that an interpreter imports while it is being made (the codecs of its text streams), as frozen ones.
 *
 * CPython would look for them on the file system for each VM, listing folders, reading and checking files: a tenth of a boot, and
 * a path of the host in every VM.
 */
#ifndef VMH_FROZEN_H
#define VMH_FROZEN_H

#include "image.h"

/* Interpreters that are made from here on, until vmh_frozen_hide, take them from `system`, or, when an image was shown before, from
 * that one: its code is copied and stays. Nothing happens where the process has frozen modules of its own (PyImport_FrozenModules),
 * or without memory. Calls are serialised by the caller, each is followed by vmh_frozen_hide. */
void vmh_frozen_show(vmh_image *system);
void vmh_frozen_hide(void);

#endif
