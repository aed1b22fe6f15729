/* Every private CPython symbol that the project uses, and nothing else.
 *
 * Include it instead of Python.h. A Python where one of these is missing fails here, at build time, by name.
 */
#ifndef VMH_COMPAT_H
#define VMH_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <stdbool.h>
#include <stdint.h>
#include <Python.h>

#if PY_VERSION_HEX < 0x030E0000
#error \
    "vmhost needs CPython 3.14 or newer: older ones abort when interpreters with their own GIL end on several threads"
#endif
#ifdef Py_GIL_DISABLED
#error "vmhost runs on the default build of CPython: the free-threaded one has no GIL of its own per interpreter"
#endif

/* Include/internal/pycore_ceval.h: the only call that reaches another interpreter without holding its GIL. Exported
 * since 3.13 for the interpreter modules. Declared here so that no internal header (and Py_BUILD_CORE) is needed. */
typedef int (*vmh_pending_func)(void *);
PyAPI_FUNC(int) _PyEval_AddPendingCall(PyInterpreterState *interp, vmh_pending_func func, void *arg, int flags);

/* Include/internal/pycore_pystate.h: the configuration of the calling thread's interpreter. */
PyAPI_FUNC(const PyConfig *) _Py_GetConfig(void);

/* Include/internal/pycore_pymem.h: "pymalloc", "pymalloc_debug", "malloc", …; NULL: unknown. */
PyAPI_FUNC(const char *) _PyMem_GetCurrentAllocatorName(void);

#define VMH_PENDING_ADDED 0

/* dict[name], borrowed; NULL without an error: the key is missing; NULL with an error: the lookup failed.
 * PyDict_GetItemString would report "missing" when memory runs out, and a gate would stay open. */
PyObject *vmh_dict_get(PyObject *dict, const char *name);

/* Takes an interpreter that cannot be ended out of the runtime's list, so that Py_Finalize does not wait for it. */
void vmh_compat_hide_interpreter(PyInterpreterState *interp);
void vmh_compat_show_interpreter(PyInterpreterState *interp);

/* The address below which CPython aborts the process for a stack overflow; no address of the stack: not yet known. */
uintptr_t vmh_compat_stack_limit(PyThreadState *ts);
/* From now on it does not: it raises RecursionError there too. */
void vmh_compat_stack_unlimit(PyThreadState *ts);

/* Makes `code`, which was just read and has not run, call sys.displayhook where it makes a class generic, and all code
 * within it. CPython 3.14 does not check the result of its own intrinsic for a `class C[*Ts]`, and crashes if it
 * raised: for a stop, or for what a task has put into `typing`. boot.py sets the hook. */
void vmh_compat_tame_generics(PyCodeObject *code);
/* Whether marshalled code may have something to tame. */
bool vmh_compat_has_generics(const void *marshalled, size_t size);

/* True if this thread, of the calling interpreter, runs the import system's own code, where it acquires, releases or
 * waits for import locks. An exception injected there may be raised just after a lock was acquired; the lock would
 * never be released, and no stop could end another thread's wait for it. The code of the imported module does not
 * count. Decided by identity: a task chooses the names and files of its code. */
bool vmh_compat_locks_import(PyThreadState *ts);

/* The instructions that function_code.c writes. Their numbers, inline caches (in code units) and stack effects are
 * those of the Python that the core is built for. */
/* clang-format off */
#define VMH_INSTRUCTIONS(X) \
    X(EXTENDED_ARG) X(COPY_FREE_VARS) X(RESUME) X(LOAD_FAST) X(LOAD_FAST_BORROW) X(LOAD_FAST_BORROW_LOAD_FAST_BORROW) \
    X(LOAD_CONST) X(LOAD_DEREF) X(LOAD_GLOBAL) X(LOAD_ATTR) X(LOAD_SUPER_ATTR) X(STORE_ATTR) X(PUSH_NULL) X(CALL) \
    X(COPY) X(POP_TOP) X(IS_OP) X(CONTAINS_OP) X(COMPARE_OP) X(TO_BOOL) X(POP_JUMP_IF_FALSE) X(POP_JUMP_IF_TRUE) \
    X(NOT_TAKEN) X(JUMP_FORWARD) X(BUILD_TUPLE) X(BUILD_STRING) X(CONVERT_VALUE) X(FORMAT_SIMPLE) X(RAISE_VARARGS) \
    X(RETURN_VALUE)
/* clang-format on */
#define VMH_INSTRUCTION_NAME(NAME) VMH_##NAME,
enum vmh_instruction { VMH_INSTRUCTIONS(VMH_INSTRUCTION_NAME) };
uint8_t vmh_compat_opcode(enum vmh_instruction name);
int vmh_compat_caches(enum vmh_instruction name);
int vmh_compat_stack_effect(enum vmh_instruction name, int operand); /* of the path that does not jump */
int vmh_compat_comparison(int operation); /* the operand of COMPARE_OP for Py_LT, …; the result may be any object */

/* The descriptor of a FileIO, a socket or an epoll object, -1 when closed: the first field of all three
 * (Modules/_io/fileio.c, Modules/socketmodule.h, Modules/selectmodule.c). vmh_fd_field_check verifies this; a VM does
 * not boot if it fails. */
int *vmh_compat_fd(PyObject *object);

/* From now on tracemalloc, if the host has enabled it, does not trace allocations of this thread. Needs no GIL. */
void vmh_compat_untrace_thread(void);

/* The innermost allocator of a domain: beneath those of tracemalloc and of the debug mode (PYTHONMALLOC=debug, -X dev),
 * which call it. tracemalloc removes its own when it stops, and everything that was set above it. Other threads may
 * allocate while it is set: they see any mix of old and new functions. */
PyMemAllocatorEx vmh_compat_allocator(PyMemAllocatorDomain domain);
void vmh_compat_allocator_set(PyMemAllocatorDomain domain, const PyMemAllocatorEx *allocator);
/* Whether CPython was started with PYTHONMALLOC=mimalloc. */
bool vmh_compat_uses_mimalloc(void);

/* The mutexes that a thread of `interp` may hold while another interpreter, or the warden, needs them. Returns whether
 * mutex number `which` is held by any thread. Safe in a signal handler. */
enum { VMH_COMPAT_MUTEXES = 6 };
bool vmh_compat_mutex_locked(PyInterpreterState *interp, int which);

#endif
