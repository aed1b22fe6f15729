/* What a task's SQLite connections may not do, kept by callbacks that need no GIL.
 *
 * SQLite calls an authorizer or a progress handler while it holds the connection's mutex. One written in Python would
 * wait there for the VM's GIL, which another thread of the guest may hold while it waits for that very mutex.
 *
 * A stop reaches a query twice: by our progress handler, and by sqlite3_interrupt. A task may put its own handler in
 * the place of ours, or none.
 */
#ifndef VMH_SQLITE_RULES_H
#define VMH_SQLITE_RULES_H

#include <stdbool.h>

#include "lanes/vm.h"

enum { VMH_SQLITE_PROGRESS_STEPS = 20000 }; /* between two looks at whether the VM is stopped */
enum { VMH_SQLITE_LIMIT_ATTACHED = 7, VMH_SQLITE_CONFIG_FTS3_TOKENIZER = 1004, VMH_SQLITE_CONFIG_DEFENSIVE = 1010 };
#define VMH_SQLITE_TEMPORARY "PRAGMA temp_store=MEMORY"

/* One opening of a connection, on the stack of the thread that opens it. */
typedef struct vmh_sqlite_opening {
    struct vmh_sqlite_opening *outer;
    bool ruled; /* the connection was opened, and has our rules */
} vmh_sqlite_opening;

/* Finds the functions of the SQLite that the native module in the file `path` (NULL: built in) uses, when the core is
 * loaded; after vmh_sqlite_memory_install. */
void vmh_sqlite_rules_install(const char *path);
/* False where SQLite hides its functions: connections take their rules through Python then. */
bool vmh_sqlite_rules_native(void);

/* The connection that this thread opens in between has the rules before anybody can use it. begin gives false when
 * memory runs out; else end must follow. */
bool vmh_sqlite_opening_begin(vmh_sqlite_opening *opening);
void vmh_sqlite_opening_end(vmh_sqlite_opening *opening);

/* SQLite's recursion knows no end of the stack: with what SQL nests, with chains of tables and the stars of a pattern.
 * A thread of a VM calls it only with so many bytes of its stack left, and gets no memory for it with so few. */
enum { VMH_SQLITE_STACK = 512 << 10, VMH_SQLITE_STACK_END = 160 << 10 };
/* Limits of connections (of sqlite3_limit) that keep it within that. A task may set lower ones. */
typedef struct {
    int category, max;
} vmh_sqlite_depth;
enum { VMH_SQLITE_DEPTHS = 4 };
extern const vmh_sqlite_depth vmh_sqlite_depths[VMH_SQLITE_DEPTHS];
/* -1: it is none of them. */
int vmh_sqlite_depth_max(int category);

/* The rules themselves. `first` and `second` as SQLite's authorizer gets them; may be NULL. Need no GIL. */
bool vmh_sqlite_refuses(int action, const char *first, const char *second);
bool vmh_sqlite_stopping(void);

/* What the connections of `vm` do now ends with SQLITE_INTERRUPT as soon as SQLite looks. Any thread, no GIL; again and
 * again while a stop lasts, as a statement that has not begun is not hit. Does nothing where the rules are not native.
 */
void vmh_sqlite_interrupt(vmh_vm *vm);

#endif
