/* The only file besides stack.c that reads CPython's internal structures. */
#define Py_BUILD_CORE 1
#include "cpython/compat.h"
#include "internal/pycore_interp_structs.h"
#include "internal/pycore_intrinsics.h"
#include "internal/pycore_pythonrun.h"
#include "internal/pycore_runtime_structs.h"
#include "internal/pycore_tstate.h"
#include "internal/pycore_code.h"
#include "opcode_ids.h"

/* CPython does not export its instruction tables: this file compiles them again, under names of our own so that a
 * statically linked CPython does not clash with them. */
#define NEED_OPCODE_METADATA      1
#define _PyOpcode_num_popped      vmh_opcode_num_popped
#define _PyOpcode_num_pushed      vmh_opcode_num_pushed
#define _PyOpcode_opcode_metadata vmh_opcode_metadata
#define _PyOpcode_macro_expansion vmh_opcode_macro_expansion
#define _PyOpcode_OpName          vmh_opcode_names
#define _PyOpcode_Caches          vmh_opcode_caches
#define _PyOpcode_Deopt           vmh_opcode_deopt
#define _PyOpcode_PseudoTargets   vmh_opcode_pseudo_targets
#include "internal/pycore_opcode_metadata.h"

PyAPI_DATA(_PyRuntimeState) _PyRuntime;

void vmh_compat_hide_interpreter(PyInterpreterState *interp)
{
    PyMutex_Lock(&_PyRuntime.interpreters.mutex);
    PyInterpreterState **link = &_PyRuntime.interpreters.head;
    while (*link != NULL && *link != interp)
        link = &(*link)->next;
    if (*link != NULL)
        *link = interp->next;
    PyMutex_Unlock(&_PyRuntime.interpreters.mutex);
}

void vmh_compat_show_interpreter(PyInterpreterState *interp)
{
    PyMutex_Lock(&_PyRuntime.interpreters.mutex);
    interp->next = _PyRuntime.interpreters.head;
    _PyRuntime.interpreters.head = interp;
    PyMutex_Unlock(&_PyRuntime.interpreters.mutex);
}

uintptr_t vmh_compat_stack_limit(PyThreadState *ts)
{
    return ((_PyThreadStateImpl *)ts)->c_stack_soft_limit - _PyOS_STACK_MARGIN_BYTES;
}

void vmh_compat_stack_unlimit(PyThreadState *ts)
{
    ((_PyThreadStateImpl *)ts)->c_stack_hard_limit = 1; /* 0 would be computed anew */
}

/* Sets the flag by which tracemalloc leaves out its own allocations on a thread. */
void vmh_compat_untrace_thread(void)
{
    Py_tss_t *key = &_PyRuntime.tracemalloc.reentrant_key;
    if (PyThread_tss_create(key) == 0) /* does nothing if the key exists, as it does in general */
        PyThread_tss_set(key, Py_True);
}

/* The allocator that `outer` calls, if it is one of CPython's own hooks: their context points to it. */
static PyMemAllocatorEx *beneath(const PyMemAllocatorEx *outer)
{
    PyMemAllocatorEx *const traced[] = {&_PyRuntime.tracemalloc.allocators.raw, &_PyRuntime.tracemalloc.allocators.mem,
                                        &_PyRuntime.tracemalloc.allocators.obj};
    debug_alloc_api_t *const debugged[] = {&_PyRuntime.allocators.debug.raw, &_PyRuntime.allocators.debug.mem,
                                           &_PyRuntime.allocators.debug.obj};
    for (int i = 0; i < 3; i++) {
        if (outer->ctx == traced[i])
            return traced[i];
        if (outer->ctx == debugged[i])
            return &debugged[i]->alloc;
    }
    return NULL;
}

/* CPython's mutex of allocators held. */
static PyMemAllocatorEx *innermost(PyMemAllocatorDomain domain)
{
    PyMemAllocatorEx *at = domain == PYMEM_DOMAIN_RAW   ? &_PyRuntime.allocators.standard.raw
                           : domain == PYMEM_DOMAIN_MEM ? &_PyRuntime.allocators.standard.mem
                                                        : &_PyRuntime.allocators.standard.obj;
    for (PyMemAllocatorEx *next; (next = beneath(at)) != NULL;)
        at = next;
    return at;
}

PyMemAllocatorEx vmh_compat_allocator(PyMemAllocatorDomain domain)
{
    PyMutex_Lock(&_PyRuntime.allocators.mutex);
    PyMemAllocatorEx found = *innermost(domain);
    PyMutex_Unlock(&_PyRuntime.allocators.mutex);
    return found;
}

void vmh_compat_allocator_set(PyMemAllocatorDomain domain, const PyMemAllocatorEx *allocator)
{
    PyMutex_Lock(&_PyRuntime.allocators.mutex);
    *innermost(domain) = *allocator;
    PyMutex_Unlock(&_PyRuntime.allocators.mutex);
}

bool vmh_compat_uses_mimalloc(void)
{
    int chosen = _PyRuntime.preconfig.allocator;
    return chosen == PYMEM_ALLOCATOR_MIMALLOC || chosen == PYMEM_ALLOCATOR_MIMALLOC_DEBUG;
}

bool vmh_compat_mutex_locked(PyInterpreterState *interp, int which)
{
    PyMutex *const all[VMH_COMPAT_MUTEXES] = {
        &_PyRuntime.interpreters.mutex,       /* thread states come and go */
        &_PyRuntime.imports.extensions.mutex, /* native modules are imported */
        &_PyRuntime.unicode_state.ids.mutex,  /* an identifier is used for the first time */
        &_PyRuntime.allocators.mutex,         /* hooks are read and set */
        &_PyRuntime.tracemalloc.tables_lock,  /* each allocation, while the host traces them */
        &interp->ceval.pending.mutex,         /* the warden adds a stop */
    };
    return __atomic_load_n(&all[which]->_bits, __ATOMIC_SEQ_CST) & 1;
}

PyObject *vmh_dict_get(PyObject *dict, const char *name)
{
    PyObject *key = PyUnicode_FromString(name);
    PyObject *value = key == NULL ? NULL : PyDict_GetItemWithError(dict, key);
    Py_XDECREF(key);
    return value;
}

bool vmh_compat_has_generics(const void *marshalled, size_t size)
{
    static const uint8_t call[] = {CALL_INTRINSIC_1, INTRINSIC_SUBSCRIPT_GENERIC};
    return memmem(marshalled, size, call, sizeof call) != NULL;
}

void vmh_compat_tame_generics(PyCodeObject *code)
{
    _Py_CODEUNIT *units = _PyCode_CODE(code);
    for (Py_ssize_t at = 0; at < Py_SIZE(code); at += 1 + vmh_opcode_caches[vmh_opcode_deopt[units[at].op.code]])
        if (units[at].op.code == CALL_INTRINSIC_1 && units[at].op.arg == INTRINSIC_SUBSCRIPT_GENERIC)
            units[at].op.arg = INTRINSIC_PRINT; /* calls sys.displayhook; its result is what the call gives */
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_consts); i++)
        if (Py_IS_TYPE(PyTuple_GET_ITEM(code->co_consts, i), &PyCode_Type))
            vmh_compat_tame_generics((PyCodeObject *)PyTuple_GET_ITEM(code->co_consts, i));
}

static const uint8_t opcodes[] = {
#define OPCODE(NAME) [VMH_##NAME] = NAME,
    VMH_INSTRUCTIONS(OPCODE)};

uint8_t vmh_compat_opcode(enum vmh_instruction name) { return opcodes[name]; }

int vmh_compat_caches(enum vmh_instruction name) { return vmh_opcode_caches[opcodes[name]]; }

int vmh_compat_stack_effect(enum vmh_instruction name, int operand)
{
    return vmh_opcode_num_pushed(opcodes[name], operand) - vmh_opcode_num_popped(opcodes[name], operand);
}

int vmh_compat_comparison(int operation)
{
    static const int outcomes[] = {
        [Py_LT] = COMPARISON_LESS_THAN,
        [Py_LE] = COMPARISON_LESS_THAN | COMPARISON_EQUALS,
        [Py_EQ] = COMPARISON_EQUALS,
        [Py_GT] = COMPARISON_GREATER_THAN,
        [Py_GE] = COMPARISON_GREATER_THAN | COMPARISON_EQUALS,
    };
    return operation << 5 | outcomes[operation];
}

bool vmh_compat_locks_import(PyThreadState *ts)
{
    PyObject *before = PyErr_GetRaisedException(), *dict = PyInterpreterState_GetDict(PyInterpreterState_Get());
    PyObject *all = dict == NULL ? NULL : vmh_dict_get(dict, "vmhost.import_code"); /* a tuple of seal.c; borrowed */
    PyFrameObject *frame = all == NULL ? NULL : PyThreadState_GetFrame(ts);
    PyCodeObject *code = frame == NULL ? NULL : PyFrame_GetCode(frame);
    bool found = false;
    for (Py_ssize_t i = 0; code != NULL && i < PyTuple_GET_SIZE(all) && !found; i++)
        found = PyTuple_GET_ITEM(all, i) == (PyObject *)code;
    Py_XDECREF(code);
    Py_XDECREF(frame);
    PyErr_SetRaisedException(before);
    return found;
}

int *vmh_compat_fd(PyObject *of)
{
    return &((struct {
                PyObject_HEAD
                int fd;
            } *)of)
                ->fd;
}
