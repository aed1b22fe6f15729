/* Gates of `_socket`, `select` and `_ssl`: addresses go by the permissions, descriptors must be the guest's own, and
 * what can block waits beside the VM's stop event first. */
#include "gates.h"

#include "clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Originals that are not gated but called here; the same in every VM. */
static _Atomic(initproc) socket_init;
static _Atomic(PyMethodDef *) socket_fileno, socket_gettimeout, socket_settimeout, epoll_fileno;

static int object_fd(PyMethodDef *fileno_def, PyObject *object, PyTypeObject *owner)
{
    PyObject *number = vmh_def_call(fileno_def, object, owner, NULL, 0, NULL);
    int fd = number == NULL ? -1 : PyLong_AsInt(number);
    Py_XDECREF(number);
    PyErr_Clear();
    return fd;
}

static int socket_fd(PyObject *self)
{
    return object_fd(atomic_load(&socket_fileno), self, NULL);
}

/* 1: it blocks, until *deadline_ns; 0: it does not block; -1: error set. */
static int socket_blocks(PyObject *self, int64_t *deadline_ns)
{
    PyObject *timeout = vmh_def_call(atomic_load(&socket_gettimeout), self, NULL, NULL, 0, NULL);
    int rc = -1;
    if (timeout == NULL)
        return -1;
    *deadline_ns = INT64_MAX;
    if (timeout == Py_None)
        rc = 1;
    else {
        double seconds = PyFloat_AsDouble(timeout);
        if (!PyErr_Occurred()) {
            rc = seconds > 0;
            if (seconds < 9e9)
                *deadline_ns = vmh_after_ns(vmh_now_ns(), (int64_t)(seconds * 1e9));
        }
    }
    Py_DECREF(timeout);
    return rc;
}

/* 0: ready, or a socket that does not block; -1: error set. */
static int socket_wait(PyObject *self, short events)
{
    int64_t deadline;
    int blocks = socket_blocks(self, &deadline), fd = socket_fd(self);
    if (blocks <= 0 || fd < 0)
        return blocks < 0 ? -1 : 0;
    struct pollfd fds[2] = {{ .fd = fd, .events = events }};
    int ready = vmh_wait_fds(fds, 1, deadline);
    if (ready == 0)
        PyErr_SetString(PyExc_TimeoutError, "timed out");
    return ready > 0 ? 0 : -1;
}

static int socket_family(PyObject *self)
{
    int domain = -1;
    socklen_t size = sizeof domain;
    getsockopt(socket_fd(self), SOL_SOCKET, SO_DOMAIN, &domain, &size);
    return domain;
}

/* Checks an argument that is an address by `grant`, and puts what was checked in its place. */
static int address_check(vmh_gated *call, PyObject **argument, int (*grant)(const vmh_address *, const char *))
{
    char what[64];
    vmh_address address;
    snprintf(what, sizeof what, "socket.%s", call->gate->name);
    if (vmh_address_read(*argument, socket_family(call->self), what, &address) < 0)
        return -1;
    return vmh_gated_replace(call, argument, address.whole) < 0 ? -1 : grant(&address, what);
}

/* --- methods */

static int check_wait(vmh_gated *call)
{
    call->pass = VMH_PASS_GATE;
    return socket_wait(call->self, (short)call->gate->access);
}

/* A send to a blocking socket would block until all of a large buffer is taken; so it is asked for what fits, and
 * again. */
static int check_send(vmh_gated *call)
{
    int64_t deadline;
    int blocks = socket_blocks(call->self, &deadline);
    if (blocks < 0 || call->nargs < 1 || call->nargs > 2 || call->kwnames != NULL)
        return blocks < 0 ? -1 : 0;
    int flags = call->nargs == 2 ? PyLong_AsInt(call->args[1]) : 0;
    if (flags == -1 && PyErr_Occurred())
        return -1;
    if (blocks == 0)
        return 0;
    bool all = strcmp(call->gate->name, "sendall") == 0;
    Py_buffer data;
    if (PyObject_GetBuffer(call->args[0], &data, PyBUF_SIMPLE) < 0)
        return -1;
    Py_ssize_t sent = 0;
    int rc = -1;
    while (true) {
        if (socket_wait(call->self, POLLOUT) < 0)
            goto done;
        int fd = socket_fd(call->self);
        PyThreadState *ts = PyEval_SaveThread();
        ssize_t count = send(fd, (char *)data.buf + sent, (size_t)(data.len - sent),
                             flags | MSG_DONTWAIT | MSG_NOSIGNAL);
        int error = errno;
        PyEval_RestoreThread(ts);
        if (count < 0 && error != EAGAIN && error != EINTR) {
            errno = error;
            PyErr_SetFromErrno(PyExc_OSError);
            goto done;
        }
        if (count >= 0)
            sent += count;
        if (count >= 0 && (!all || sent >= data.len))
            break;
    }
    call->result = all ? Py_NewRef(Py_None) : PyLong_FromSsize_t(sent);
    rc = call->result == NULL ? -1 : 1;
done:
    PyBuffer_Release(&data);
    return rc;
}

/* sendto(data, [flags,] address) */
static int check_sendto(vmh_gated *call)
{
    call->pass = VMH_PASS_GATE;
    if (call->nargs < 2 || call->nargs > 3)
        return 0;
    return address_check(call, &call->args[call->nargs - 1], vmh_grant_send) < 0 || socket_wait(call->self, POLLOUT) < 0 ? -1 : 0;
}

/* sendmsg(buffers, ancillary, flags, address) */
static int check_sendmsg(vmh_gated *call)
{
    call->pass = VMH_PASS_GATE;
    if (call->nargs > 1) {
        Py_ssize_t count = PyObject_Size(call->args[1]);
        if (count < 0)
            return -1;
        if (count > 0) {
            vmh_deny("ancillary data could carry descriptors", "socket.sendmsg");
            return -1;
        }
        /* the original must not ask an object of the guest again */
        if (vmh_gated_replace(call, &call->args[1], PyTuple_New(0)) < 0)
            return -1;
    }
    if (call->nargs > 3 && call->args[3] != Py_None && address_check(call, &call->args[3], vmh_grant_send) < 0)
        return -1;
    return socket_wait(call->self, POLLOUT);
}

/* recvmsg(size, ancillary size, …): without room for ancillary data no descriptor can arrive */
static int check_recvmsg(vmh_gated *call)
{
    if (call->nargs > 1) {
        vmh_deny("ancillary data could carry descriptors", "socket.%s", call->gate->name);
        return -1;
    }
    return check_wait(call);
}

static int check_accept(vmh_gated *call)
{
    if (socket_wait(call->self, POLLIN) < 0)
        return -1;
    call->result = vmh_gated_original(call);
    if (call->result == NULL || vmh_fd_own(PyLong_AsInt(PyTuple_GET_ITEM(call->result, 0))) < 0) {
        Py_CLEAR(call->result);
        return -1;
    }
    return 1;
}

static int check_bind(vmh_gated *call)
{
    char number[VMH_ADDRESS_TEXT];
    long port;
    call->pass = VMH_PASS_GATE;
    if (call->nargs != 1 || call->kwnames != NULL)
        return 0;       /* its own TypeError */
    if (address_check(call, &call->args[0], vmh_grant_bind) < 0 || (call->result = vmh_gated_original(call)) == NULL)
        return -1;
    /* the number of a host that the permissions name, for listen() */
    const char *host = vmh_host_text(PyTuple_GET_ITEM(call->args[0], 0));
    if (host != NULL && vmh_socket_name(socket_fd(call->self), number, &port) && vmh_grant_resolved(host, number) == 0)
        return 1;
    Py_CLEAR(call->result);
    return -1;
}

/* By where the socket is: without bind() the kernel binds it to all addresses of the machine. */
static int check_listen(vmh_gated *call)
{
    return vmh_grant_listen(socket_fd(call->self), "socket.listen");
}

static int timeout_set(PyObject *self, PyObject *timeout)
{
    PyObject *result = vmh_def_call(atomic_load(&socket_settimeout), self, NULL, &timeout, 1, NULL);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static vmh_gate *connect_ex_gate(void);

/* A blocking connect: begun without blocking, then waited for. */
static int check_connect(vmh_gated *call)
{
    int64_t deadline;
    call->pass = VMH_PASS_GATE;
    if (call->nargs != 1)
        return 0;
    if (address_check(call, &call->args[0], vmh_grant_send) < 0)
        return -1;
    int blocks = socket_blocks(call->self, &deadline);
    if (blocks <= 0)
        return blocks;
    PyObject *timeout = vmh_def_call(atomic_load(&socket_gettimeout), call->self, NULL, NULL, 0, NULL);
    PyObject *zero = PyFloat_FromDouble(0), *number = NULL;
    int error = -1, rc = -1;
    if (timeout == NULL || zero == NULL || timeout_set(call->self, zero) < 0)
        goto done;
    unsigned before = vmh_pass_set(vmh_pass_get() | VMH_PASS_GATE);
    number = vmh_def_call(atomic_load(&connect_ex_gate()->original), call->self, call->owner, call->args, 1, NULL);
    vmh_pass_set(before);
    error = number == NULL ? -1 : PyLong_AsInt(number);
    PyObject *raised = PyErr_GetRaisedException();
    int restored = timeout_set(call->self, timeout);
    if (raised != NULL)
        PyErr_SetRaisedException(raised);
    if (error < 0 || restored < 0)
        goto done;
    if (error == EINPROGRESS || error == EAGAIN) {
        struct pollfd fds[2] = {{ .fd = socket_fd(call->self), .events = POLLOUT }};
        int ready = vmh_wait_fds(fds, 1, deadline);
        if (ready < 0)
            goto done;
        socklen_t size = sizeof error;
        error = ETIMEDOUT;
        if (ready > 0 && getsockopt(fds[0].fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
            error = errno;
        if (ready == 0 && strcmp(call->gate->name, "connect") == 0) {
            PyErr_SetString(PyExc_TimeoutError, "timed out");
            goto done;
        }
        if (ready == 0)
            error = EAGAIN;
    }
    if (strcmp(call->gate->name, "connect_ex") == 0)
        call->result = PyLong_FromLong(error);
    else if (error == 0)
        call->result = Py_NewRef(Py_None);
    else {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
    }
    rc = call->result == NULL ? -1 : 1;
done:
    Py_XDECREF(timeout);
    Py_XDECREF(zero);
    Py_XDECREF(number);
    return rc;
}

static int check_close_method(vmh_gated *call)
{
    int fd = socket_fd(call->self);
    call->result = vmh_gated_original(call);
    vmh_fd_closed(fd);
    return call->result == NULL ? -1 : 1;
}

/* --- functions */

/* close(fd) and dup(fd): the number is read once, so that what is checked is what is used. */
static int own_fd(vmh_gated *call)
{
    int fd = vmh_gated_fd(call, call->args[0]);
    return fd < 0 || vmh_gated_replace(call, &call->args[0], PyLong_FromLong(fd)) < 0 ? -1 : fd;
}

static int check_close_fd(vmh_gated *call)
{
    if (call->nargs != 1)
        return 0;
    int fd = own_fd(call);
    if (fd < 0)
        return -1;
    call->result = vmh_gated_original(call);
    vmh_fd_closed(fd);
    return call->result == NULL ? -1 : 1;
}

static int check_dup_fd(vmh_gated *call)
{
    if (call->nargs != 1)
        return 0;
    if (own_fd(call) < 0)
        return -1;
    call->result = vmh_gated_original(call);
    if (call->result == NULL || vmh_fd_own(PyLong_AsInt(call->result)) < 0) {
        Py_CLEAR(call->result);
        return -1;
    }
    return 1;
}

/* Both ends stay in the VM, so it needs no permission; event loops wake themselves with one. */
static int check_socketpair(vmh_gated *call)
{
    int family = AF_UNIX;
    if (call->nargs > 0)
        family = PyLong_Check(call->args[0]) ? PyLong_AsInt(call->args[0]) : -1;
    if (family != AF_UNIX) {
        PyErr_Clear();
        vmh_deny("only a pair of AF_UNIX sockets stays inside the VM", "socketpair");
        return -1;
    }
    call->pass = VMH_PASS_GATE;
    call->result = vmh_gated_original(call);
    if (call->result == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < 2; i++)
        if (vmh_fd_own(socket_fd(PyTuple_GET_ITEM(call->result, i))) < 0) {
            Py_CLEAR(call->result);
            return -1;
        }
    return 1;
}

static bool is_number(const char *host)
{
    struct in6_addr address;
    return inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
}

/* Puts the host that was looked at in the place of an argument, in the form that the resolver takes; `named`: it is not a number, and
 * its name may be resolved. */
static const char *host_check(vmh_gated *call, PyObject **argument, bool *named)
{
    if (vmh_gated_replace(call, argument, vmh_host_exact(*argument, call->gate->name)) < 0)
        return NULL;
    const char *host = vmh_host_text(*argument);
    *named = host[0] != 0 && !is_number(host);
    return *named && vmh_grant_host(host, call->gate->name) < 0 ? NULL : host;
}

/* What a granted name resolves to may be connected to, on the granted ports. */
static int check_getaddrinfo(vmh_gated *call)
{
    PyObject **argument = vmh_gated_argument(call, 0, "host");
    const char *host = NULL;
    bool named = false;
    call->pass = VMH_PASS_GATE;
    if (argument != NULL && *argument != Py_None && (host = host_check(call, argument, &named)) == NULL)
        return -1;
    call->result = vmh_gated_original(call);
    if (call->result == NULL)
        return -1;
    for (Py_ssize_t i = 0; named && PyList_Check(call->result) && i < PyList_GET_SIZE(call->result); i++) {
        PyObject *address = PyTuple_GetItem(PyList_GET_ITEM(call->result, i), 4),
                 *first = address == NULL ? NULL : PyTuple_GetItem(address, 0);
        const char *text = first != NULL && PyUnicode_Check(first) ? PyUnicode_AsUTF8(first) : NULL;
        if (text == NULL || vmh_grant_resolved(host, text) < 0) {
            Py_CLEAR(call->result);
            return -1;
        }
    }
    return 1;
}

static int check_gethostbyname(vmh_gated *call)
{
    bool named = false;
    call->pass = VMH_PASS_GATE;
    if (call->nargs != 1 || call->kwnames != NULL)
        return 0;       /* its own TypeError */
    const char *host = host_check(call, &call->args[0], &named);
    if (host == NULL || (call->result = vmh_gated_original(call)) == NULL)
        return -1;
    const char *address = named && PyUnicode_Check(call->result) ? PyUnicode_AsUTF8(call->result) : NULL;
    if (address != NULL && vmh_grant_resolved(host, address) < 0) {
        Py_CLEAR(call->result);
        return -1;
    }
    return 1;
}

static int check_gethostname(vmh_gated *call)
{
    call->result = PyUnicode_FromString("localhost");
    return call->result == NULL ? -1 : 1;
}

/* --- creation */

static int socket_init_gate(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"family", "type", "proto", "fileno", NULL};
    int family = -1, type = -1, protocol = -1, fd = -1;
    PyObject *fileno_argument = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|iiiO:socket", names, &family, &type, &protocol, &fileno_argument))
        return -1;
    vmh_seal *seal = vmh_seal_here();
    if (seal == NULL) {
        vmh_deny("this thread is not one of the task's", "socket");
        return -1;
    }
    if (fileno_argument != Py_None) {
        PyObject *number = PyNumber_Index(fileno_argument);
        fd = number == NULL ? -1 : PyLong_AsInt(number);
        Py_XDECREF(number);
        if (PyErr_Occurred())
            return -1;
        if (fd >= 0 && vmh_fd_check(fd, "socket(fileno=...)") < 0)
            return -1;
    } else {
        if (family != -1 && family != AF_INET && family != AF_INET6) {
            vmh_deny("only internet sockets can be granted", "socket(family=%d)", family);
            return -1;
        }
        if (type != -1 && (type & 0xF) != SOCK_STREAM && (type & 0xF) != SOCK_DGRAM) {
            vmh_deny("only stream and datagram sockets can be granted", "socket(type=%d)", type);
            return -1;
        }
        if (seal->net.count == 0 && seal->listen.count == 0) {
            vmh_deny("not granted; a task that may use the network names addresses in task.yaml, permissions: {net: "
                     "[\"host:port\"]}, and those where others reach it, {listen: [\"host:port\"]}",
                     "socket");
            return -1;
        }
    }
    PyObject *checked = fileno_argument == Py_None ? Py_BuildValue("(iii)", family, type, protocol)
                                                   : Py_BuildValue("(iiii)", family, type, protocol, fd);
    if (checked == NULL)
        return -1;
    unsigned before = vmh_pass_set(vmh_pass_get() | VMH_PASS_GATE);
    int rc = atomic_load(&socket_init)(self, checked, NULL);
    vmh_pass_set(before);
    Py_DECREF(checked);
    return rc == 0 ? vmh_fd_own(socket_fd(self)) : rc;
}

/* --- select */

static PyObject *ready_list(PyObject *items, struct pollfd *fds, short wanted)
{
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list != NULL && i < PyList_GET_SIZE(items); i++)
        if ((fds[i].revents & wanted) && PyList_Append(list, PyList_GET_ITEM(items, i)) < 0)
            Py_CLEAR(list);
    return list;
}

/* select(readers, writers, exceptional, timeout=None), by poll */
static int check_select(vmh_gated *call)
{
    PyObject *lists[3] = { NULL }, *ready[3] = { NULL };
    struct pollfd *fds = NULL;
    static const short events[3] = { POLLIN, POLLOUT, POLLPRI };
    int64_t deadline = INT64_MAX;
    Py_ssize_t count = 0;
    int rc = -1;
    if (call->nargs < 3 || call->nargs > 4)
        return 0;       /* its own TypeError */
    if (call->nargs == 4 && call->args[3] != Py_None) {
        double seconds = PyFloat_AsDouble(call->args[3]);
        if (seconds == -1.0 && PyErr_Occurred())
            return -1;
        if (seconds < 0) {
            PyErr_SetString(PyExc_ValueError, "timeout must be non-negative");
            return -1;
        }
        if (seconds < 9e9)
            deadline = vmh_after_ns(vmh_now_ns(), (int64_t)(seconds * 1e9));
    }
    for (int k = 0; k < 3; k++) {
        if ((lists[k] = PySequence_List(call->args[k])) == NULL)
            goto done;
        count += PyList_GET_SIZE(lists[k]);
    }
    fds = PyMem_RawCalloc((size_t)count + 1, sizeof *fds);
    if (fds == NULL || count > 65536) {
        PyErr_NoMemory();
        goto done;
    }
    Py_ssize_t at = 0;
    for (int k = 0; k < 3; k++)
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(lists[k]); i++, at++) {
            fds[at] = (struct pollfd){ .fd = PyObject_AsFileDescriptor(PyList_GET_ITEM(lists[k], i)),
                                       .events = events[k] };
            if (fds[at].fd < 0 || vmh_fd_check(fds[at].fd, "select") < 0)
                goto done;
        }
    if (vmh_wait_fds(fds, (int)count, deadline) < 0)
        goto done;
    at = 0;
    for (int k = 0; k < 3; k++) {
        short wanted = (short)(k == 0 ? POLLIN | POLLHUP | POLLERR : k == 1 ? POLLOUT | POLLERR : POLLPRI);
        if ((ready[k] = ready_list(lists[k], fds + at, wanted)) == NULL)
            goto done;
        at += PyList_GET_SIZE(lists[k]);
    }
    call->result = PyTuple_Pack(3, ready[0], ready[1], ready[2]);
    rc = call->result == NULL ? -1 : 1;
done:
    for (int k = 0; k < 3; k++) {
        Py_XDECREF(lists[k]);
        Py_XDECREF(ready[k]);
    }
    PyMem_RawFree(fds);
    return rc;
}

/* poll(timeout=None, maxevents=-1): waits on the epoll descriptor, then asks without waiting. */
static int check_epoll_poll(vmh_gated *call)
{
    PyObject **timeout = vmh_gated_argument(call, 0, "timeout");
    int64_t deadline = INT64_MAX;
    if (timeout != NULL && *timeout != Py_None) {
        double seconds = PyFloat_AsDouble(*timeout);
        if (seconds == -1.0 && PyErr_Occurred())
            return -1;
        if (seconds >= 0 && seconds < 9e9)
            deadline = vmh_after_ns(vmh_now_ns(), (int64_t)(seconds * 1e9));
    }
    int fd = object_fd(atomic_load(&epoll_fileno), call->self, call->owner);
    if (fd >= 0) {
        struct pollfd fds[2] = {{ .fd = fd, .events = POLLIN }};
        if (vmh_wait_fds(fds, 1, deadline) < 0)
            return -1;
    }
    if (timeout == NULL) {
        if (call->nargs + (call->kwnames == NULL ? 0 : PyTuple_GET_SIZE(call->kwnames)) >= VMH_GATED_ARGS_MOST)
            return 0;
        memmove(call->args + 1, call->args, sizeof *call->args * (VMH_GATED_ARGS_MOST - 1));
        call->nargs++;
        timeout = &call->args[0];
    }
    return vmh_gated_replace(call, timeout, PyLong_FromLong(0));
}

static int check_epoll_fd(vmh_gated *call)
{
    PyObject **argument = vmh_gated_argument(call, 0, "fd");
    if (argument == NULL)
        return 0;
    int fd = vmh_gated_fd(call, *argument);
    return fd < 0 ? -1 : vmh_gated_replace(call, argument, PyLong_FromLong(fd));
}

/* --- _ssl: certificates come from files that may be read */

static int check_ssl_paths(vmh_gated *call)
{
    const char *second = strcmp(call->gate->name, "load_verify_locations") == 0 ? "capath" : "keyfile";
    PyObject **arguments[2] = { vmh_gated_argument(call, 0, call->gate->keyword),
                                strcmp(call->gate->name, "load_dh_params") == 0 ? NULL
                                                                                : vmh_gated_argument(call, 1, second) };
    for (int i = 0; i < 2; i++) {
        PyObject *path = NULL;
        if (arguments[i] == NULL || *arguments[i] == Py_None)
            continue;
        if (vmh_grant_path(*arguments[i], VMH_READ, false, call->gate->name, &path) < 0
                || vmh_gated_replace(call, arguments[i], path) < 0)
            return -1;
    }
    return 0;
}

#define GATES(G)                                                                \
    G(_socket, , socketpair, check_socketpair, 0, NULL)                         \
    G(_socket, , close, check_close_fd, 0, NULL)                                \
    G(_socket, , dup, check_dup_fd, 0, NULL)                                    \
    G(_socket, , getaddrinfo, check_getaddrinfo, 0, "host")                     \
    G(_socket, , gethostbyname, check_gethostbyname, 0, NULL)                   \
    G(_socket, , gethostbyname_ex, check_gethostbyname, 0, NULL)                \
    G(_socket, , gethostname, check_gethostname, 0, NULL)                       \
    G(_socket, socket, recv, check_wait, POLLIN, NULL)                          \
    G(_socket, socket, recv_into, check_wait, POLLIN, NULL)                     \
    G(_socket, socket, recvfrom, check_wait, POLLIN, NULL)                      \
    G(_socket, socket, recvfrom_into, check_wait, POLLIN, NULL)                 \
    G(_socket, socket, recvmsg, check_recvmsg, POLLIN, NULL)                    \
    G(_socket, socket, recvmsg_into, check_recvmsg, POLLIN, NULL)               \
    G(_socket, socket, send, check_send, 0, NULL)                               \
    G(_socket, socket, sendall, check_send, 0, NULL)                            \
    G(_socket, socket, sendto, check_sendto, 0, NULL)                           \
    G(_socket, socket, sendmsg, check_sendmsg, 0, NULL)                         \
    G(_socket, socket, sendmsg_afalg, vmh_gate_refuse, 0, NULL)                 \
    G(_socket, socket, _accept, check_accept, 0, NULL)                          \
    G(_socket, socket, bind, check_bind, 0, NULL)                               \
    G(_socket, socket, listen, check_listen, 0, NULL)                           \
    G(_socket, socket, connect, check_connect, 0, NULL)                         \
    G(_socket, socket, connect_ex, check_connect, 0, NULL)                      \
    G(_socket, socket, close, check_close_method, 0, NULL)                      \
    G(_socket, socket, detach, check_close_method, 0, NULL)                     \
    G(select, , select, check_select, 0, NULL)                                  \
    G(select, epoll, poll, check_epoll_poll, 0, "timeout")                      \
    G(select, epoll, register, check_epoll_fd, 0, "fd")                         \
    G(select, epoll, modify, check_epoll_fd, 0, "fd")                           \
    G(select, epoll, fromfd, vmh_gate_refuse, 0, NULL)                          \
    G(_ssl, _SSLContext, load_verify_locations, check_ssl_paths, 0, "cafile")   \
    G(_ssl, _SSLContext, load_cert_chain, check_ssl_paths, 0, "certfile")       \
    G(_ssl, _SSLContext, load_dh_params, check_ssl_paths, 0, "path")

GATES(VMH_GATE_DEFINE)
vmh_gate *const vmh_gates_socket[] = { GATES(VMH_GATE_ADDRESS) NULL };

static vmh_gate *connect_ex_gate(void)
{
    return &gate__socket_socket_connect_ex;
}

int vmh_socket_finish(PyObject *dict)
{
    PyTypeObject *type = (PyTypeObject *)vmh_dict_get(dict, "socket");
    if (type == NULL || !PyType_Check((PyObject *)type) || type->tp_init == socket_init_gate)
        return PyErr_Occurred() ? -1 : 0;
    PyMethodDef *fileno_def = vmh_method_def(type, "fileno"), *gettimeout_def = vmh_method_def(type, "gettimeout"),
                *settimeout_def = vmh_method_def(type, "settimeout");
    if (fileno_def == NULL || gettimeout_def == NULL || settimeout_def == NULL)
        return -1;
    atomic_store(&socket_fileno, fileno_def);
    atomic_store(&socket_gettimeout, gettimeout_def);
    atomic_store(&socket_settimeout, settimeout_def);
    atomic_store(&socket_init, type->tp_init);
    return vmh_slot_replace(type, "__init__", (void **)&type->tp_init, (void *)socket_init_gate);
}

int vmh_select_finish(PyObject *dict)
{
    PyTypeObject *type = (PyTypeObject *)vmh_dict_get(dict, "epoll");
    PyMethodDef *fileno_def = type == NULL ? NULL : vmh_method_def(type, "fileno");
    if (fileno_def != NULL)
        atomic_store(&epoll_fileno, fileno_def);
    return PyErr_Occurred() ? -1 : 0;
}
