/* Gates of `mmap`: anonymous maps only. A file that shrinks under its map would kill every VM of the process. */
#include "gates.h"

#include "meter.h"

#include <stdlib.h>

static _Atomic(newfunc) mmap_new;
static _Atomic(destructor) mmap_dealloc;

static PyObject *mmap_new_gate(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    vmh_seal *seal = vmh_seal_here();
    PyObject *fileno = PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0)
                       : kwargs == NULL           ? NULL
                                                  : vmh_dict_get(kwargs, "fileno");
    PyObject *length = PyTuple_GET_SIZE(args) > 1 ? PyTuple_GET_ITEM(args, 1)
                       : kwargs == NULL           ? NULL
                                                  : vmh_dict_get(kwargs, "length");
    if (PyErr_Occurred())
        return NULL;
    if (seal == NULL || fileno == NULL || !PyLong_CheckExact(fileno) || PyLong_AsInt(fileno) != -1 || length == NULL
        || !PyLong_CheckExact(length)) {
        PyErr_Clear();
        return vmh_deny("a task maps anonymous memory only (fileno -1, an int as length)", "mmap");
    }
    size_t bytes = PyLong_AsSize_t(length);
    if (PyErr_Occurred())
        return NULL;
    vmh_map *charge = malloc(sizeof *charge);
    if (charge == NULL || !vmh_meter_charge(vmh_vm_meter(seal->vm), bytes)) {
        free(charge);
        return PyErr_NoMemory();
    }
    unsigned before = vmh_pass_set(vmh_pass_get() | VMH_PASS_GATE);
    PyObject *result = atomic_load(&mmap_new)(type, args, kwargs);
    vmh_pass_set(before);
    if (result == NULL) {
        vmh_meter_release(vmh_vm_meter(seal->vm), bytes);
        free(charge);
        return NULL;
    }
    *charge = (vmh_map){ .next = seal->maps, .object = result, .bytes = bytes };
    seal->maps = charge;
    return result;
}

/* The charge lasts as long as the object, though it may be closed before. */
static void mmap_dealloc_gate(PyObject *self)
{
    vmh_seal *seal = vmh_seal_here();
    vmh_map **link = seal == NULL ? NULL : &seal->maps;
    while (link != NULL && *link != NULL && (*link)->object != self)
        link = &(*link)->next;
    if (link != NULL && *link != NULL) {
        vmh_map *charge = *link;
        *link = charge->next;
        vmh_meter_release(vmh_vm_meter(seal->vm), charge->bytes);
        free(charge);
    }
    atomic_load(&mmap_dealloc)(self);
}

#define GATES(G) G(mmap, mmap, resize, vmh_gate_refuse, 0, NULL)

GATES(VMH_GATE_DEFINE)
vmh_gate *const vmh_gates_mmap[] = { GATES(VMH_GATE_ADDRESS) NULL };

int vmh_mmap_finish(PyObject *dict)
{
    PyTypeObject *type = (PyTypeObject *)vmh_dict_get(dict, "mmap");
    if (type == NULL || type->tp_new == mmap_new_gate)
        return PyErr_Occurred() ? -1 : 0;
    atomic_store(&mmap_new, type->tp_new);
    atomic_store(&mmap_dealloc, type->tp_dealloc);
    type->tp_dealloc = mmap_dealloc_gate;
    return vmh_slot_replace(type, "__new__", (void **)&type->tp_new, (void *)mmap_new_gate);
}
