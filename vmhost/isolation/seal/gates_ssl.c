/* Gate of `_ssl` for sockets: a TLS connection stores the number of its socket's descriptor, and uses it whatever
 * happens to the socket object. So the number is in use as long as the connection lives. */
#include "seal/gates.h"

#include <errno.h>
#include <stdlib.h>

static _Atomic(destructor) connection_dealloc;

/* _wrap_socket(sock, server_side, server_hostname=None, *, owner=None, session=None) */
static int check_wrap_socket(vmh_gated *call)
{
    PyObject **socket = vmh_gated_argument(call, 0, "sock");
    if (socket == NULL || !vmh_is_socket(*socket))
        return 0; /* its own TypeError */
    int fd = *vmh_compat_fd(*socket);
    vmh_fd_use *use = malloc(sizeof *use);
    if (use == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (vmh_fd_hold(fd, "_wrap_socket") < 0) {
        free(use);
        return -1;
    }
    vmh_fd_init taking;
    vmh_fd_init_begin(call->seal, &taking, *socket);
    call->result = vmh_gated_original(call);
    vmh_fd_init_end(call->seal, &taking);
    if (call->result != NULL && taking.released) { /* it is unknown which descriptor the connection took */
        Py_CLEAR(call->result);
        errno = EBADF;
        PyErr_SetFromErrno(PyExc_OSError);
    }
    if (call->result == NULL) {
        vmh_fd_drop(fd);
        free(use);
        return -1;
    }
    *use = (vmh_fd_use){.next = call->seal->fd_uses, .object = call->result, .fd = fd};
    call->seal->fd_uses = use;
    return 1;
}

static void connection_dealloc_gate(PyObject *self)
{
    vmh_seal *seal = vmh_seal_here();
    vmh_fd_use **link = seal == NULL ? NULL : &seal->fd_uses, *use = NULL;
    while (link != NULL && *link != NULL && (*link)->object != self)
        link = &(*link)->next;
    if (link != NULL && *link != NULL) {
        use = *link;
        *link = use->next;
    }
    atomic_load (&connection_dealloc)(self);
    if (use != NULL) {
        vmh_fd_drop(use->fd);
        free(use);
    }
}

#define GATES(G) G(_ssl, _SSLContext, _wrap_socket, check_wrap_socket, 0, NULL)

GATES(VMH_GATE_DEFINE)
vmh_gate *const vmh_gates_ssl[] = {GATES(VMH_GATE_ADDRESS) NULL};

int vmh_ssl_finish(PyObject *dict, PyObject *Py_UNUSED(module))
{
    PyTypeObject *type = (PyTypeObject *)vmh_dict_get(dict, "_SSLSocket");
    if (type == NULL && !PyErr_Occurred() && vmh_dict_get(dict, "_SSLContext") != NULL)
        PyErr_SetString(PyExc_SystemError, "_ssl._SSLSocket is missing in this Python");
    if (type == NULL || type->tp_dealloc == connection_dealloc_gate)
        return PyErr_Occurred() ? -1 : 0; /* the module has no types yet, or was gated before */
    atomic_store(&connection_dealloc, type->tp_dealloc);
    type->tp_dealloc = connection_dealloc_gate;
    return 0;
}
