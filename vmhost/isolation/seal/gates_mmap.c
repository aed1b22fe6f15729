/* Gates of `mmap`: only anonymous, readable maps. A file that shrinks under its map would kill every VM of the process,
 * and so would reading memory that was mapped without PROT_READ. */
#include "seal/gates.h"

#include "lanes/meter.h"

#include <stdlib.h>
#include <sys/mman.h>

static _Atomic(newfunc) mmap_new;
static _Atomic(destructor) mmap_dealloc;

/* Map flags with which the memory stays readable at any time. Others fix the address (MAP_FIXED), let the map grow, or
 * have special page rules (MAP_HUGETLB, MAP_DROPPABLE, MAP_LOCKED). */
enum {
    FLAGS = MAP_SHARED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_NORESERVE | MAP_STACK | MAP_DENYWRITE
        | MAP_EXECUTABLE,
    ADVICE_MAX = 21, /* MADV_PAGEOUT: higher ones can remove pages for good (hardware poison, guards) */
};

/* The arguments as exact numbers for the original: it uses the very values that were checked. NULL: error set. */
static PyObject *checked_arguments(PyObject *args, PyObject *kwargs, size_t *bytes)
{
    static char *names[] = {"fileno", "length", "flags", "prot", "access", "offset", "trackfd", NULL};
    int fileno, flags = MAP_SHARED, prot = PROT_READ | PROT_WRITE, access = 0, trackfd = 1;
    Py_ssize_t length;
    long long offset = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "in|iiiL$p:mmap", names, &fileno, &length, &flags, &prot, &access,
                                     &offset, &trackfd))
        return NULL;
    if (fileno != -1)
        return vmh_deny("a task maps anonymous memory only (fileno -1)", "mmap");
    if ((flags & ~FLAGS) != 0)
        return vmh_deny("a task maps plain shared or private memory", "mmap(flags=%d)", flags);
    if ((prot & ~(PROT_READ | PROT_WRITE)) != 0 || !(prot & PROT_READ)) /* CPython reads any map */
        return vmh_deny("a task maps memory that can be read, and written if it likes", "mmap(prot=%d)", prot);
    if (length < 0)
        return PyErr_Format(PyExc_OverflowError, "memory mapped length must be positive");
    *bytes = (size_t)length;
    return Py_BuildValue("(iniiiL)", fileno, length, flags, prot, access, offset);
}

static PyObject *mmap_new_gate(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    vmh_seal *seal = vmh_seal_here();
    if (seal == NULL)
        return vmh_deny("this thread is not one of the task's", "mmap");
    size_t bytes = 0;
    PyObject *checked = checked_arguments(args, kwargs, &bytes), *result = NULL;
    if (checked == NULL)
        return NULL;
    vmh_map *charge = malloc(sizeof *charge);
    if (charge == NULL || !vmh_meter_charge(vmh_vm_meter(seal->vm), bytes)) {
        free(charge);
        Py_DECREF(checked);
        return PyErr_NoMemory();
    }
    const char *before = vmh_pass_event("mmap.__new__");
    result = atomic_load(&mmap_new)(type, checked, NULL);
    vmh_pass_event(before);
    Py_DECREF(checked);
    if (result == NULL) {
        vmh_meter_release(vmh_vm_meter(seal->vm), bytes);
        free(charge);
        return NULL;
    }
    *charge = (vmh_map){.next = seal->maps, .object = result, .bytes = bytes};
    seal->maps = charge;
    return result;
}

/* The charge lasts as long as the object, even if the map is closed earlier. */
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
    atomic_load (&mmap_dealloc)(self);
}

static int check_madvise(vmh_gated *call)
{
    if (call->nargs == 0)
        return 0; /* its own TypeError */
    int option = PyLong_AsInt(call->args[0]);
    if (option == -1 && PyErr_Occurred())
        return -1;
    if (option < 0 || option > ADVICE_MAX) {
        vmh_deny("a task keeps the pages of its maps", "mmap.madvise(%d)", option);
        return -1;
    }
    return vmh_gated_replace(call, &call->args[0], PyLong_FromLong(option));
}

#define GATES(G) \
    G(mmap, mmap, madvise, check_madvise, 0, NULL) \
    G(mmap, mmap, resize, vmh_gate_refuse, 0, NULL)

GATES(VMH_GATE_DEFINE)
vmh_gate *const vmh_gates_mmap[] = {GATES(VMH_GATE_ADDRESS) NULL};

int vmh_mmap_finish(PyObject *dict, PyObject *Py_UNUSED(module))
{
    PyTypeObject *type = (PyTypeObject *)vmh_dict_get(dict, "mmap");
    if (type == NULL || type->tp_new == mmap_new_gate)
        return PyErr_Occurred() ? -1 : 0;
    atomic_store(&mmap_new, type->tp_new);
    atomic_store(&mmap_dealloc, type->tp_dealloc);
    type->tp_dealloc = mmap_dealloc_gate;
    return vmh_slot_replace(type, "__new__", (void **)&type->tp_new, (void *)mmap_new_gate);
}
