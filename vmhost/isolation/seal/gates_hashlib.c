/* Gate of `_hashlib`: the memory that scrypt needs is known in advance, so too much is refused with MemoryError. If
 * OpenSSL's memory is not charged when it is allocated (library_memory.c), it is charged here during the call. */
#include "seal/gates.h"

#include "memory/library_memory.h"
#include "lanes/meter.h"

/* An argument as a size; it is replaced by an exact int. 0 if it is not a size: the original reports the error. -1:
 * error set. */
static int size_argument(vmh_gated *call, const char *keyword, size_t *size)
{
    PyObject **argument = vmh_gated_argument(call, call->nargs, keyword);
    *size = 0;
    if (argument == NULL || !PyIndex_Check(*argument))
        return 0;
    if (vmh_gated_replace(call, argument, PyNumber_Index(*argument)) < 0)
        return -1;
    *size = PyLong_AsSize_t(*argument);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        *size = 0;
    }
    return 0;
}

static int charge_scrypt(vmh_gated *call)
{
    vmh_meter *meter = vmh_vm_meter(call->seal->vm);
    size_t n, r, p, blocks, bytes;
    if (size_argument(call, "n", &n) < 0 || size_argument(call, "r", &r) < 0 || size_argument(call, "p", &p) < 0)
        return -1;
    /* RFC 7914: a table of n blocks, one block for each of p, and two to work with; a block is 128 * r bytes. */
    if (__builtin_add_overflow(n, p, &blocks) || __builtin_add_overflow(blocks, (size_t)2, &blocks)
        || __builtin_mul_overflow(blocks, (size_t)128, &bytes) || __builtin_mul_overflow(bytes, r, &bytes))
        return 0; /* OpenSSL refuses it */
    if (!vmh_meter_charge(meter, bytes)) {
        PyErr_NoMemory();
        return -1;
    }
    bool counted = vmh_library_memory_counted("_hashlib");
    if (counted)
        vmh_meter_release(meter, bytes);
    call->result = vmh_gated_original(call);
    if (!counted)
        vmh_meter_release(meter, bytes);
    return call->result == NULL ? -1 : 1;
}

#define GATES(G) G(_hashlib, , scrypt, charge_scrypt, 0, NULL)

GATES(VMH_GATE_DEFINE)
vmh_gate *const vmh_gates_hashlib[] = {GATES(VMH_GATE_ADDRESS) NULL};
