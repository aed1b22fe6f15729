/* The rules for a task's SQLite connections, enforced by callbacks that need no GIL.
 *
 * SQLite calls an authorizer or a progress handler while it holds the connection's mutex. A Python callback would wait
 * for the VM's GIL there, which another guest thread may hold while it waits for that mutex.
 *
 * A stop reaches a query in two ways: by our progress handler, and by sqlite3_interrupt, because a task may replace or
 * remove our handler.
 */
#ifndef VMH_SQLITE_RULES_H
#define VMH_SQLITE_RULES_H

#include <stdbool.h>

#include "lanes/vm.h"

enum { VMH_SQLITE_PROGRESS_STEPS = 20000 }; /* between two checks whether the VM is stopped */
enum { VMH_SQLITE_LIMIT_ATTACHED = 7, VMH_SQLITE_CONFIG_FTS3_TOKENIZER = 1004, VMH_SQLITE_CONFIG_DEFENSIVE = 1010 };
#define VMH_SQLITE_TEMPORARY "PRAGMA temp_store=MEMORY"

/* One opening of a connection, on the stack of the opening thread. */
typedef struct vmh_sqlite_opening {
    struct vmh_sqlite_opening *outer;
    bool ruled; /* the connection was opened with our rules */
} vmh_sqlite_opening;

/* Finds the functions of the SQLite that the native module in the file `path` (NULL: built in) uses, when the core is
 * loaded; call after vmh_sqlite_memory_install. */
void vmh_sqlite_rules_install(const char *path);
/* False if SQLite hides its functions: then connections get their rules through Python. */
bool vmh_sqlite_rules_native(void);

/* A connection that this thread opens between begin and end has the rules before anyone can use it. begin: false if out
 * of memory; otherwise end must follow. */
bool vmh_sqlite_opening_begin(vmh_sqlite_opening *opening);
void vmh_sqlite_opening_end(vmh_sqlite_opening *opening);

/* SQLite does not check the stack in its recursion: over nested SQL, chains of tables, the wildcards of a pattern. A
 * VM's thread may call it only with VMH_SQLITE_STACK bytes of stack left; below VMH_SQLITE_STACK_END its allocations
 * fail. */
enum { VMH_SQLITE_STACK = 512 << 10, VMH_SQLITE_STACK_END = 160 << 10 };
/* Connection limits (sqlite3_limit) that keep the recursion within that. A task may set lower ones. */
typedef struct {
    int category, max;
} vmh_sqlite_depth;
enum { VMH_SQLITE_DEPTHS = 4 };
extern const vmh_sqlite_depth vmh_sqlite_depths[VMH_SQLITE_DEPTHS];
/* The maximum of a limit; -1: it is not one of them. */
int vmh_sqlite_depth_max(int category);

/* The rules. `first` and `second` as passed to SQLite's authorizer; may be NULL. Need no GIL. */
bool vmh_sqlite_refuses(int action, const char *first, const char *second);
bool vmh_sqlite_stopping(void);

/* Makes running statements of `vm` fail with SQLITE_INTERRUPT at SQLite's next check. Any thread, no GIL; repeated
 * while a stop lasts, since a statement that has not begun is not affected. Does nothing if the rules are not native.
 */
void vmh_sqlite_interrupt(vmh_vm *vm);

#endif
