/* The files of tasks' databases. SQLite opens, looks for and removes files by itself, at any time while a connection
 * is open: what it asks the system for on a thread of a VM goes by the task's permissions. Its calls on the host's own
 * threads are left as they are.
 *
 * No file is mapped for a VM: one that shrinks under its map would kill the process. So VMs have no write-ahead logs
 * that several connections share (`PRAGMA journal_mode=WAL` changes nothing), only exclusive ones, whose index is in
 * memory.
 */
#ifndef VMH_SQLITE_FILES_H
#define VMH_SQLITE_FILES_H

#include <stdbool.h>

/* Finds the functions of the SQLite in the open library `handle`. False: it hides them. */
bool vmh_sqlite_files_find(void *handle);
/* Before a connection of a VM is opened. False: its files can't be kept within the permissions. */
bool vmh_sqlite_files_install(void);
/* When it has been opened, before it is used. An SQLite status. */
int vmh_sqlite_files_unmapped(void *connection);

#endif
