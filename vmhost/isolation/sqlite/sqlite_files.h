/* The files of tasks' databases. SQLite opens, checks and removes files by itself, at any time while a connection is
 * open. Its system calls on a VM's thread need the task's permissions; those on the host's threads are unchanged.
 *
 * No file is mapped for a VM: one that shrinks under its map would kill the process. So VMs cannot share a write-ahead
 * log between connections (`PRAGMA journal_mode=WAL` has no effect); only an exclusive one, whose index is in memory.
 */
#ifndef VMH_SQLITE_FILES_H
#define VMH_SQLITE_FILES_H

#include <stdbool.h>

/* Finds the functions of the SQLite in the open library `handle`. False: it hides them. */
bool vmh_sqlite_files_find(void *handle);
/* Call before a VM's connection is opened. False: its files cannot be kept within the permissions. */
bool vmh_sqlite_files_install(void);
/* Call after it was opened, before it is used: prevents mapping. An SQLite status. */
int vmh_sqlite_files_unmapped(void *connection);

#endif
