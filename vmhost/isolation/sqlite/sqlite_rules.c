/* The rules are installed by an automatic extension: SQLite calls `rule` for each connection that is opened in the
 * process, on the opening thread. A VM's thread has announced before that it opens one; the host's own connections are
 * left alone.
 *
 * The list of open connections, for sqlite3_interrupt, is maintained by an unused collation: SQLite calls its
 * destructor when a connection is really freed, after any statements that outlived its closing. It is registered for
 * UTF-16, since Python creates collations for UTF-8: so a task's collation cannot replace it.
 */
#include "sqlite/sqlite_rules.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "lanes/critical.h"
#include "memory/memory.h"
#include "memory/overflow.h"
#include "seal/sealing.h"
#include "sqlite/sqlite_files.h"

/* As in sqlite3.h, which is not needed to build. */
enum { SQLITE_OK_ = 0, SQLITE_DENY_ = 1, SQLITE_ERROR_ = 1, SQLITE_NOMEM_ = 7, SQLITE_UTF16LE_ = 2 };
enum { SQLITE_PRAGMA_ = 19, SQLITE_ATTACH_ = 24, SQLITE_FUNCTION_ = 31 };

typedef struct {
    int (*auto_extension)(void (*)(void));
    int (*set_authorizer)(void *, int (*)(void *, int, const char *, const char *, const char *, const char *), void *);
    void (*progress_handler)(void *, int, int (*)(void *), void *);
    int (*exec)(void *, const char *, int (*)(void *, int, char **, char **), void *, char **);
    int (*limit)(void *, int, int);
    int (*db_config)(void *, int, ...);
    int (*create_collation)(void *, const char *, int, void *, int (*)(void *, int, const void *, int, const void *),
                            void (*)(void *));
    void (*interrupt)(void *);
} sqlite;

typedef struct opened {
    struct opened *next, **link;
    const vmh_vm *vm; /* compared by address only: connections that the guest leaks outlive it */
    void *connection;
} opened;

static sqlite library; /* written once, before the first VM */
static bool native;
static _Thread_local vmh_sqlite_opening *opening_here;
static pthread_mutex_t opened_lock = PTHREAD_MUTEX_INITIALIZER;
static opened *opened_first; /* guarded by opened_lock, under which SQLite takes no lock */

bool vmh_sqlite_rules_native(void) { return native; }

/* ---- the stack
 *
 *   high  | Python | chains of triggers, foreign keys, views | levels of one statement  | chains that are read | low
 *                  | VMH_SQLITE_STACK ...                    | INSIDE ...               | VMH_SQLITE_STACK_END ...
 *
 * A statement begins with VMH_SQLITE_STACK bytes. Compiling each trigger, foreign key or view of a chain calls the
 * authorizer at each level, which refuses below INSIDE. SQLite limits the nesting within one statement; the bytes per
 * level were measured with 3.53: 1011, 394, 696, 67 (JSON has its own limit at 250 KiB). Reading a chain of views or
 * common table expressions allocates memory at each level, which fails near the end.
 */
enum { INSIDE = VMH_SQLITE_STACK - (64 << 10), BASE = 24 << 10 };

const vmh_sqlite_depth vmh_sqlite_depths[VMH_SQLITE_DEPTHS] = {
    {2, (INSIDE - BASE) / 1050}, /* SQLITE_LIMIT_COLUMN, as generated columns may depend on each other */
    {3, (INSIDE - BASE) / 600},  /* SQLITE_LIMIT_EXPR_DEPTH */
    {4, (INSIDE - BASE) / 900},  /* SQLITE_LIMIT_COMPOUND_SELECT */
    {8, (INSIDE - BASE) / 90},   /* SQLITE_LIMIT_LIKE_PATTERN_LENGTH */
};

int vmh_sqlite_depth_max(int category)
{
    for (int i = 0; i < VMH_SQLITE_DEPTHS; i++)
        if (vmh_sqlite_depths[i].category == category)
            return vmh_sqlite_depths[i].max;
    return -1;
}

bool vmh_sqlite_refuses(int action, const char *first, const char *second)
{
    static const char *const refused[] = {"data_store_directory", "hard_heap_limit", "mmap_size",
                                          "soft_heap_limit",      "temp_store",      "temp_store_directory",
                                          "writable_schema",      "load_extension",  "fts3_tokenizer"};
    if (action == SQLITE_ATTACH_ || vmh_overflow_left() < INSIDE)
        return true;
    /* A log whose index is mapped, unless mapping is prevented otherwise (sqlite_files.h). */
    if (!native && action == SQLITE_PRAGMA_ && first != NULL && second != NULL && strcasecmp(first, "journal_mode") == 0
        && strcasecmp(second, "wal") == 0)
        return true;
    const char *name = action == SQLITE_PRAGMA_ ? first : action == SQLITE_FUNCTION_ ? second : NULL;
    for (size_t i = 0; name != NULL && i < sizeof refused / sizeof *refused; i++)
        if (strcasecmp(name, refused[i]) == 0)
            return true;
    return false;
}

bool vmh_sqlite_stopping(void)
{
    vmh_seal *seal = vmh_seal_here();
    return seal != NULL && vmh_vm_stopping(seal->vm);
}

static int authorize(void *Py_UNUSED(context), int action, const char *first, const char *second,
                     const char *Py_UNUSED(database), const char *Py_UNUSED(trigger))
{
    return vmh_sqlite_refuses(action, first, second) ? SQLITE_DENY_ : SQLITE_OK_;
}

static int progress(void *Py_UNUSED(context)) { return vmh_sqlite_stopping(); }

static int configure(void *connection, int option, int wanted)
{
    int is = !wanted, status = library.db_config(connection, option, wanted, &is);
    return status != SQLITE_OK_ ? status : is == wanted ? SQLITE_OK_ : SQLITE_ERROR_;
}

static int compare(void *Py_UNUSED(context), int size, const void *bytes, int other_size, const void *other_bytes)
{
    int order = memcmp(bytes, other_bytes, (size_t)(size < other_size ? size : other_size));
    return order != 0 ? order : (size > other_size) - (size < other_size);
}

static void forget(void *context)
{
    opened *node = context;
    vmh_mutex_lock(&opened_lock);
    *node->link = node->next;
    if (node->next != NULL)
        node->next->link = node->link;
    free(node);
    vmh_mutex_unlock(&opened_lock);
}

/* Records `connection` until it is closed. */
static int remember(void *connection)
{
    vmh_seal *seal = vmh_seal_here();
    if (seal == NULL)
        return SQLITE_ERROR_;
    vmh_mutex_lock(&opened_lock);
    opened *node = malloc(sizeof *node);
    if (node != NULL) {
        *node = (opened){opened_first, &opened_first, seal->vm, connection};
        if (node->next != NULL)
            node->next->link = &node->next;
        opened_first = node;
    }
    vmh_mutex_unlock(&opened_lock);
    if (node == NULL)
        return SQLITE_NOMEM_;
    int status = library.create_collation(connection, "vmhost", SQLITE_UTF16LE_, node, compare, forget);
    if (status != SQLITE_OK_)
        forget(node); /* unlike its other functions, SQLite does not call the destructor on failure here */
    return status;
}

void vmh_sqlite_interrupt(vmh_vm *vm)
{
    vmh_mutex_lock(&opened_lock);
    for (opened *node = opened_first; node != NULL; node = node->next)
        if (node->vm == vm)
            library.interrupt(node->connection);
    vmh_mutex_unlock(&opened_lock);
}

/* The entry point of an SQLite extension: a status other than SQLITE_OK makes the opening fail. */
static int rule(void *connection, char **Py_UNUSED(message), const void *Py_UNUSED(routines))
{
    vmh_sqlite_opening *opening = opening_here;
    if (opening == NULL)
        return SQLITE_OK_;
    int status = library.exec(connection, VMH_SQLITE_TEMPORARY, NULL, NULL, NULL);
    if (status == SQLITE_OK_)
        status = configure(connection, VMH_SQLITE_CONFIG_FTS3_TOKENIZER, 0);
    if (status == SQLITE_OK_)
        status = configure(connection, VMH_SQLITE_CONFIG_DEFENSIVE, 1);
    if (status == SQLITE_OK_)
        status = vmh_sqlite_files_unmapped(connection);
    if (status == SQLITE_OK_)
        status = remember(connection);
    if (status != SQLITE_OK_)
        return status;
    library.limit(connection, VMH_SQLITE_LIMIT_ATTACHED, 0);
    for (int i = 0; i < VMH_SQLITE_DEPTHS; i++) /* SQLite lowers values above its own maximum */
        library.limit(connection, vmh_sqlite_depths[i].category, vmh_sqlite_depths[i].max);
    library.progress_handler(connection, VMH_SQLITE_PROGRESS_STEPS, progress, NULL);
    status = library.set_authorizer(connection, authorize, NULL);
    opening->ruled = status == SQLITE_OK_;
    return status;
}

/* Adding it again has no effect, unless the list was emptied meanwhile. The list belongs to the process. */
static int add_rule(void)
{
    vmh_meter *payer = vmh_memory_payer();
    vmh_memory_bind(NULL);
    vmh_critical_enter();
    int status = vmh_sqlite_files_install() ? library.auto_extension((void (*)(void))rule) : SQLITE_ERROR_;
    vmh_critical_leave();
    vmh_memory_bind(payer);
    return status;
}

void vmh_sqlite_rules_install(const char *path)
{
    void *handle = native ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL); /* kept open: its functions are in use */
    if (handle == NULL)
        return;
    *(void **)&library.auto_extension = dlsym(handle, "sqlite3_auto_extension");
    *(void **)&library.set_authorizer = dlsym(handle, "sqlite3_set_authorizer");
    *(void **)&library.progress_handler = dlsym(handle, "sqlite3_progress_handler");
    *(void **)&library.exec = dlsym(handle, "sqlite3_exec");
    *(void **)&library.limit = dlsym(handle, "sqlite3_limit");
    *(void **)&library.db_config = dlsym(handle, "sqlite3_db_config");
    *(void **)&library.create_collation = dlsym(handle, "sqlite3_create_collation_v2");
    *(void **)&library.interrupt = dlsym(handle, "sqlite3_interrupt");
    native = library.auto_extension != NULL && library.set_authorizer != NULL && library.progress_handler != NULL
             && library.exec != NULL && library.limit != NULL && library.db_config != NULL
             && library.create_collation != NULL && library.interrupt != NULL && vmh_sqlite_files_find(handle);
}

bool vmh_sqlite_opening_begin(vmh_sqlite_opening *opening)
{
    if (add_rule() != SQLITE_OK_)
        return false;
    *opening = (vmh_sqlite_opening){.outer = opening_here};
    opening_here = opening;
    return true;
}

void vmh_sqlite_opening_end(vmh_sqlite_opening *opening) { opening_here = opening->outer; }
