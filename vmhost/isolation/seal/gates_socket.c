/* Gates of `_socket` and `select`: addresses need permissions, descriptors must be the guest's own, and a call that can
 * block first waits together with the VM's stop event. */
#include "seal/gates.h"

#include "lanes/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Originals that are called here without a gate; the same in every VM. */
static _Atomic(initproc) socket_init;
static _Atomic(destructor) socket_dealloc, epoll_dealloc;
static _Atomic(newfunc) epoll_new;
static _Atomic(PyMethodDef *) socket_gettimeout, socket_getdefaulttimeout, epoll_fileno;

static int socket_fd(PyObject *self) { return *vmh_compat_fd(self); }

/* A method of a socket or epoll object: its descriptor is in use until the call is over. */
static int check_socket(vmh_gated *call) { return vmh_gated_self_fd(call) == -2 ? -1 : 0; }

/* 1: the socket blocks, until *deadline_ns; 0: it does not block; -1: error set. */
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

/* 0: ready, or non-blocking; -1: error set. */
static int socket_wait(PyObject *self, short events)
{
    int64_t deadline;
    int blocks = socket_blocks(self, &deadline), fd = socket_fd(self);
    if (blocks <= 0 || fd < 0)
        return blocks < 0 ? -1 : 0;
    struct pollfd fds[2] = {{.fd = fd, .events = events}};
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

/* Checks an address argument with `grant`, and replaces it by the address that was checked. */
static int address_check(vmh_gated *call, PyObject **argument, int (*grant)(const vmh_address *, const char *))
{
    char what[64];
    vmh_address address;
    snprintf(what, sizeof what, "socket.%s", call->gate->name);
    if (vmh_address_read(*argument, socket_family(call->self), what, &address) < 0)
        return -1;
    return vmh_gated_replace(call, argument, address.whole) < 0 ? -1 : grant(&address, what);
}

/* The same for a receiver; a datagram socket accepts its answers from now on. */
static int receiver_check(vmh_gated *call, PyObject **argument)
{
    return address_check(call, argument, vmh_grant_send) < 0
                   || vmh_gated_replace(call, argument, vmh_answers_of(socket_fd(call->self), *argument)) < 0
               ? -1
               : 0;
}

/* --- methods */

static int check_wait(vmh_gated *call)
{
    return check_socket(call) < 0 ? -1 : socket_wait(call->self, (short)call->gate->access);
}

/* A send on a blocking socket would block until all of a large buffer is taken. So this sends without blocking as much
 * as fits, and repeats. */
static int check_send(vmh_gated *call)
{
    int64_t deadline;
    int blocks = check_socket(call) < 0 ? -1 : socket_blocks(call->self, &deadline);
    if (blocks < 0 || call->nargs < 1 || call->nargs > 2 || call->kwnames != NULL)
        return blocks < 0 ? -1 : 0;
    int flags = call->nargs == 2 ? PyLong_AsInt(call->args[1]) : 0;
    if ((flags == -1 && PyErr_Occurred())
        || (call->nargs == 2 && vmh_gated_replace(call, &call->args[1], PyLong_FromLong(flags)) < 0))
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
        ssize_t count =
            send(fd, (char *)data.buf + sent, (size_t)(data.len - sent), flags | MSG_DONTWAIT | MSG_NOSIGNAL);
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
    call->passes = true;
    if (check_socket(call) < 0 || call->nargs < 2 || call->nargs > 3)
        return PyErr_Occurred() ? -1 : 0;
    return receiver_check(call, &call->args[call->nargs - 1]) < 0 || socket_wait(call->self, POLLOUT) < 0 ? -1 : 0;
}

/* sendmsg(buffers, ancillary, flags, address) */
static int check_sendmsg(vmh_gated *call)
{
    call->passes = true;
    if (check_socket(call) < 0)
        return -1;
    if (call->nargs > 1) {
        PyObject *ancillary = PySequence_List(call->args[1]);
        Py_ssize_t count = ancillary == NULL ? -1 : PyList_GET_SIZE(ancillary);
        Py_XDECREF(ancillary);
        if (count < 0)
            return -1;
        if (count > 0) {
            vmh_deny("ancillary data could carry descriptors", "socket.sendmsg");
            return -1;
        }
        /* The original must not call methods of the guest's object again. */
        if (vmh_gated_replace(call, &call->args[1], PyTuple_New(0)) < 0)
            return -1;
    }
    if (call->nargs > 3 && call->args[3] != Py_None && receiver_check(call, &call->args[3]) < 0)
        return -1;
    return socket_wait(call->self, POLLOUT);
}

/* recvmsg(size, ancillary size, …): no descriptor can arrive without room for ancillary data. */
static int check_recvmsg(vmh_gated *call)
{
    if (call->nargs > 1) {
        PyObject *room = PyNumber_Index(call->args[1]);
        int overflow = 0;
        long size = room == NULL ? -1 : PyLong_AsLongAndOverflow(room, &overflow);
        Py_XDECREF(room);
        if (PyErr_Occurred())
            return -1;
        if (size > 0 || overflow > 0) {
            vmh_deny("ancillary data could carry descriptors", "socket.%s", call->gate->name);
            return -1;
        }
        if (vmh_gated_replace(call, &call->args[1], PyLong_FromLong(size)) < 0)
            return -1;
    }
    return check_wait(call);
}

static int check_accept(vmh_gated *call)
{
    if (check_socket(call) < 0 || vmh_fd_room() < 0 || socket_wait(call->self, POLLIN) < 0)
        return -1;
    call->result = vmh_gated_original(call);
    if (call->result != NULL && vmh_fd_own(PyLong_AsInt(PyTuple_GET_ITEM(call->result, 0))) < 0)
        Py_CLEAR(call->result);
    return call->result == NULL ? -1 : 1;
}

static bool is_number(const char *host)
{
    struct in6_addr address;
    return inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
}

static int check_bind(vmh_gated *call)
{
    char number[VMH_ADDRESS_TEXT];
    long port;
    call->passes = true;
    if (call->nargs != 1 || call->kwnames != NULL)
        return 0; /* its own TypeError */
    if (check_socket(call) < 0 || address_check(call, &call->args[0], vmh_grant_bind) < 0
        || (call->result = vmh_gated_original(call)) == NULL)
        return -1;
    /* Record the address that a granted host name resolved to, for listen(). */
    const char *host = vmh_host_text(PyTuple_GET_ITEM(call->args[0], 0));
    if (host[0] != 0 && !is_number(host) && vmh_socket_name(socket_fd(call->self), number, &port)
        && vmh_grant_resolved(host, number) < 0) {
        Py_CLEAR(call->result);
        return -1;
    }
    if (vmh_listens(socket_fd(call->self)))
        vmh_answers_and_others(socket_fd(call->self));
    return 1;
}

/* listen([backlog]). Checks the address of the socket: without bind() the kernel binds it to all addresses of the
 * machine. Done here, because the original first converts the backlog, which may run code, and then reads the object's
 * descriptor again, which may have changed. */
static int check_listen(vmh_gated *call)
{
    if (call->nargs > 1 || call->kwnames != NULL)
        return 0; /* its own TypeError */
    int backlog = call->nargs == 1 ? PyLong_AsInt(call->args[0]) : SOMAXCONN < 128 ? SOMAXCONN : 128;
    if (backlog == -1 && PyErr_Occurred())
        return -1;
    int fd = vmh_gated_self_fd(call);
    if (fd == -2 || (fd >= 0 && vmh_grant_listen(fd, "socket.listen") < 0))
        return -1;
    /* -1 if closed: EBADF NOLINTNEXTLINE(clang-analyzer-unix.StdCLibraryFunctions) */
    if (listen(fd, backlog < 0 ? 0 : backlog) != 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    call->result = Py_NewRef(Py_None);
    return 1;
}

static vmh_gate *settimeout_gate(void);

static int timeout_set(PyObject *self, PyObject *timeout)
{
    PyObject *result = vmh_def_call(atomic_load(&settimeout_gate()->original), self, NULL, &timeout, 1, NULL);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static vmh_gate *connect_ex_gate(void);

/* A blocking connect: started without blocking, then waited for. */
static int check_connect(vmh_gated *call)
{
    int64_t deadline;
    call->passes = true;
    if (call->nargs != 1)
        return 0;
    if (check_socket(call) < 0 || receiver_check(call, &call->args[0]) < 0)
        return -1;
    int blocks = socket_blocks(call->self, &deadline);
    if (blocks <= 0)
        return blocks;
    PyObject *timeout = vmh_def_call(atomic_load(&socket_gettimeout), call->self, NULL, NULL, 0, NULL);
    PyObject *zero = PyFloat_FromDouble(0), *number = NULL;
    int error = -1, rc = -1;
    if (timeout == NULL || zero == NULL || timeout_set(call->self, zero) < 0)
        goto done;
    const char *before = vmh_pass_event(connect_ex_gate()->event);
    number = vmh_def_call(atomic_load(&connect_ex_gate()->original), call->self, call->owner, call->args, 1, NULL);
    vmh_pass_event(before);
    error = number == NULL ? -1 : PyLong_AsInt(number);
    PyObject *raised = PyErr_GetRaisedException();
    int restored = timeout_set(call->self, timeout);
    if (raised != NULL)
        PyErr_SetRaisedException(raised);
    if (error < 0 || restored < 0)
        goto done;
    if (error == EINPROGRESS || error == EAGAIN) {
        struct pollfd fds[2] = {{.fd = socket_fd(call->self), .events = POLLOUT}};
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
    if (call->nargs != 0 || call->kwnames != NULL)
        return 0; /* its own TypeError */
    int error = vmh_fd_release(call->self, true);
    if (error != 0 && error != ECONNRESET) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    call->result = Py_NewRef(Py_None);
    return 1;
}

static int check_detach(vmh_gated *call)
{
    if (call->nargs != 0 || call->kwnames != NULL)
        return 0;
    call->result = PyLong_FromLong(socket_fd(call->self));
    if (call->result != NULL)
        vmh_fd_release(call->self, false);
    return call->result == NULL ? -1 : 1;
}

static bool among(const int *list, size_t count, int option)
{
    for (size_t i = 0; i < count; i++)
        if (option == list[i])
            return true;
    return false;
}

/* Options that are not for tasks: they take or return descriptors and memory addresses, load programs into the kernel,
 * change tables of the machine, join multicast groups or choose another route. The options listed here are allowed. */
static bool option_is_plain(int level, int option)
{
    static const int of_socket[] = {
        SO_DEBUG,       SO_REUSEADDR,    SO_TYPE,      SO_ERROR,      SO_DONTROUTE, SO_BROADCAST, SO_SNDBUF,
        SO_RCVBUF,      SO_KEEPALIVE,    SO_OOBINLINE, SO_PRIORITY,   SO_LINGER,    SO_REUSEPORT, SO_RCVLOWAT,
        SO_SNDLOWAT,    SO_RCVTIMEO,     SO_SNDTIMEO,  SO_ACCEPTCONN, SO_PROTOCOL,  SO_DOMAIN,    SO_TIMESTAMP,
        SO_TIMESTAMPNS, SO_INCOMING_CPU, SO_BUSY_POLL, SO_PEERCRED,
    };
    static const int of_tcp[] = {TCP_USER_TIMEOUT, TCP_FASTOPEN, TCP_NOTSENT_LOWAT, TCP_FASTOPEN_CONNECT};
    static const int of_ip[] = {
        IP_TOS,           IP_TTL,           IP_RECVOPTS,
        IP_PKTINFO,       IP_MTU_DISCOVER,  IP_RECVERR,
        IP_RECVTTL,       IP_RECVTOS,       IP_MTU,
        IP_MULTICAST_IF,  IP_MULTICAST_TTL, IP_MULTICAST_LOOP,
        IP_MULTICAST_ALL, IP_MINTTL,        IP_BIND_ADDRESS_NO_PORT,
    };
    static const int of_ipv6[] = {
        IPV6_UNICAST_HOPS, IPV6_MULTICAST_IF, IPV6_MULTICAST_HOPS, IPV6_MULTICAST_LOOP, IPV6_MTU_DISCOVER,
        IPV6_MTU,          IPV6_RECVERR,      IPV6_V6ONLY,         IPV6_RECVPKTINFO,    IPV6_RECVHOPLIMIT,
        IPV6_RECVTCLASS,   IPV6_TCLASS,       IPV6_DONTFRAG,       IPV6_RECVPATHMTU,
    };
#define AMONG(list) among(list, sizeof(list) / sizeof *(list), option)
    switch (level) {
    case SOL_SOCKET: return AMONG(of_socket);
    case IPPROTO_TCP: return AMONG(of_tcp) || (option > 0 && option <= TCP_CONGESTION);
    case IPPROTO_IP: return AMONG(of_ip);
    case IPPROTO_IPV6: return AMONG(of_ipv6);
    default: return false;
    }
#undef AMONG
}

/* getsockopt(level, option[, size]), setsockopt(level, option, value[, size]) */
static int check_option(vmh_gated *call)
{
    int numbers[2];
    if (call->nargs < 2 || call->kwnames != NULL)
        return 0; /* its own TypeError */
    for (int i = 0; i < 2; i++) {
        numbers[i] = PyLong_AsInt(call->args[i]);
        if ((numbers[i] == -1 && PyErr_Occurred())
            || vmh_gated_replace(call, &call->args[i], PyLong_FromLong(numbers[i])) < 0)
            return -1;
    }
    if (!option_is_plain(numbers[0], numbers[1])) {
        vmh_deny("no task can have this option", "socket.%s(%d, %d)", call->gate->name, numbers[0], numbers[1]);
        return -1;
    }
    return check_socket(call);
}

static void socket_finalize_gate(PyObject *self)
{
    PyObject *raised = PyErr_GetRaisedException();
    if (socket_fd(self) >= 0 && PyErr_ResourceWarning(self, 1, "unclosed %R", self) < 0
        && PyErr_ExceptionMatches(PyExc_Warning))
        PyErr_FormatUnraisable("Exception ignored while finalizing socket %R", self);
    PyErr_Clear();
    vmh_fd_release(self, true);
    PyErr_SetRaisedException(raised);
}

static void socket_dealloc_gate(PyObject *self) { vmh_fd_dealloc(self, atomic_load(&socket_dealloc), false); }

/* --- functions */

static int check_close_fd(vmh_gated *call)
{
    if (call->nargs != 1 || call->kwnames != NULL)
        return 0;
    int fd = vmh_fd_of(call->args[0]);
    if (PyErr_Occurred() || vmh_fd_check(fd, "socket.close") < 0)
        return -1;
    int error = vmh_fd_close(fd);
    if (error != 0 && error != ECONNRESET) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    call->result = Py_NewRef(Py_None);
    return 1;
}

static int check_dup_fd(vmh_gated *call)
{
    if (call->nargs != 1 || call->kwnames != NULL)
        return 0;
    if (vmh_gated_fd(call, &call->args[0]) < 0)
        return -1;
    call->result = vmh_gated_original(call);
    if (call->result != NULL && vmh_fd_own(PyLong_AsInt(call->result)) < 0)
        Py_CLEAR(call->result);
    return call->result == NULL ? -1 : 1;
}

/* Both ends stay in the VM, so no permission is needed; event loops use one to wake themselves. */
static int check_socketpair(vmh_gated *call)
{
    int family = AF_UNIX;
    if (call->nargs > 0) {
        family = PyLong_AsInt(call->args[0]);
        if ((family == -1 && PyErr_Occurred()) || vmh_gated_replace(call, &call->args[0], PyLong_FromLong(family)) < 0)
            return -1;
    }
    if (family != AF_UNIX) {
        vmh_deny("only a pair of AF_UNIX sockets stays inside the VM", "socketpair");
        return -1;
    }
    call->result = vmh_gated_original(call);
    if (call->result == NULL)
        return -1;
    bool owned = true;
    for (Py_ssize_t i = 0; i < 2; i++) {
        PyObject *end = PyTuple_GET_ITEM(call->result, i);
        if (owned && vmh_fd_own(socket_fd(end)) == 0)
            vmh_fd_hold(socket_fd(end), "socketpair");
        else {
            if (!owned)
                close(socket_fd(end));
            *vmh_compat_fd(end) = -1; /* vmh_fd_own has closed it */
            owned = false;
        }
    }
    if (!owned)
        Py_CLEAR(call->result);
    return owned ? 1 : -1;
}

/* CPython's errors for names with empty or long labels, which its codec "idna" raises. -1: one is set. */
static int labels_check(PyObject *host)
{
    if (!PyUnicode_Check(host) || !PyUnicode_IS_ASCII(host))
        return 0;
    const char *text = PyUnicode_AsUTF8(host), *dot;
    if (text == NULL)
        return -1;
    for (int longs = 0; longs <= 1; longs++)
        for (const char *label = text; label != NULL; label = dot == NULL ? NULL : dot + 1) {
            dot = strchr(label, '.');
            const size_t size = dot == NULL ? strlen(label) : (size_t)(dot - label);
            if (longs ? size < 64 : size > 0 || dot == NULL)
                continue;
            const Py_ssize_t start = label - text, end = start + (longs ? (Py_ssize_t)size : 1);
            PyObject *error = PyObject_CallFunction(PyExc_UnicodeEncodeError, "sOnns", "idna", host, start, end,
                                                    longs ? "label too long" : "label empty");
            if (error != NULL)
                PyErr_SetObject(PyExc_UnicodeEncodeError, error);
            Py_XDECREF(error);
            return -1;
        }
    return 0;
}

/* Replaces a host argument by the exact bytes that were checked, which is what the resolver gets: the original would
 * encode a str again, by a codec that the guest can replace. `named`: it is a host name, not an address, and may be
 * resolved. */
static const char *host_check(vmh_gated *call, PyObject **argument, bool *named)
{
    if (labels_check(*argument) < 0)
        return NULL;
    if (vmh_gated_replace(call, argument, vmh_host_exact(*argument, call->gate->name)) < 0)
        return NULL;
    const char *host = vmh_host_text(*argument);
    *named = host[0] != 0 && !is_number(host);
    return *named && vmh_grant_host(host, call->gate->name) < 0 ? NULL : host;
}

/* The addresses of a granted name may be connected to, on the granted ports. */
static int check_getaddrinfo(vmh_gated *call)
{
    PyObject **argument = vmh_gated_argument(call, 0, "host");
    const char *host = NULL;
    bool named = false;
    call->passes = true;
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
    call->passes = true;
    if (call->nargs != 1 || call->kwnames != NULL)
        return 0; /* its own TypeError */
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

/* The default timeout of this VM's new sockets: a float, or None. A new reference; NULL: error set. */
static PyObject *default_timeout(PyObject *socket)
{
    PyTypeObject *type = Py_TYPE(socket);
    while (type->tp_dealloc != socket_dealloc_gate)
        type = type->tp_base;
    PyObject *module = PyType_GetModule(type);
    return module == NULL ? NULL : vmh_def_call(atomic_load(&socket_getdefaulttimeout), module, NULL, NULL, 0, NULL);
}

/* Gives `self` the guest's descriptor `fd`, which is held for this call. Without a default timeout the original keeps
 * the GIL, so no other thread runs between the release of the previous descriptor and the use of this one. With a
 * timeout it would release the GIL, continue with whatever descriptor the object has by then, and on failure close `fd`
 * itself; so the timeout is set afterwards. */
static int socket_take(PyObject *self, int family, int type, int protocol, int fd)
{
    PyObject *timeout = default_timeout(self), *checked = NULL;
    bool later = timeout != NULL && timeout != Py_None && !(type & SOCK_NONBLOCK);
    int rc = -1;
    if (timeout != NULL)
        checked = Py_BuildValue("(iiii)", family, later ? type | SOCK_NONBLOCK : type, protocol, fd);
    if (checked != NULL && vmh_fd_hold(fd, "socket") == 0) {
        vmh_fd_release(self, false); /* if it is initialised again: not closed, as in CPython */
        rc = atomic_load(&socket_init)(self, checked, NULL);
        if (rc < 0)
            vmh_fd_drop(fd);
        else if (later)
            rc = timeout_set(self, timeout);
    }
    Py_XDECREF(checked);
    Py_XDECREF(timeout);
    return rc;
}

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
        if (fd < 0) {
            PyErr_SetString(PyExc_ValueError, "negative file descriptor");
            return -1;
        }
        /* Addresses are parsed by the object's family, but granted by the socket's own: they must agree. */
        int domain = AF_UNSPEC;
        socklen_t size = sizeof domain;
        if (vmh_fd_check(fd, "socket(fileno=...)") < 0)
            return -1;
        int rc = getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
        if (rc != 0 || (family != -1 && family != domain)) {
            errno = rc != 0 ? errno : EAFNOSUPPORT;
            PyErr_SetFromErrno(PyExc_OSError);
            return -1;
        }
        size = sizeof type;
        if (type == -1 && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0) {
            PyErr_SetFromErrno(PyExc_OSError);
            return -1;
        }
        family = domain;
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
    bool opened = fd < 0;
    if (opened) {
        family = family == -1 ? AF_INET : family;
        type = type == -1 ? SOCK_STREAM : type;
        protocol = protocol == -1 ? 0 : protocol;
        Py_BEGIN_ALLOW_THREADS fd = socket(family, type | SOCK_CLOEXEC, protocol);
        Py_END_ALLOW_THREADS if (vmh_fd_own(fd) < 0) return -1;
        if ((type & 0xF) == SOCK_DGRAM && !vmh_listens(fd) && vmh_answers_only(fd) < 0) {
            vmh_fd_close(fd);
            return -1;
        }
    }
    if (vmh_fd_hold(fd, "socket") < 0)
        return -1;
    int rc = socket_take(self, family, type, protocol, fd);
    if (rc < 0 && opened) {
        PyObject *raised = PyErr_GetRaisedException();
        if (socket_fd(self) == fd)
            vmh_fd_release(self, true);
        else
            vmh_fd_close(fd);
        PyErr_SetRaisedException(raised);
    }
    vmh_fd_drop(fd);
    return rc;
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

/* select(readers, writers, exceptional, timeout=None), implemented by poll */
static int check_select(vmh_gated *call)
{
    PyObject *lists[3] = {NULL}, *ready[3] = {NULL};
    struct pollfd *fds = NULL;
    Py_ssize_t held = 0;
    static const short events[3] = {POLLIN, POLLOUT, POLLPRI};
    int64_t deadline = INT64_MAX;
    Py_ssize_t count = 0;
    int rc = -1;
    if (call->nargs < 3 || call->nargs > 4)
        return 0; /* its own TypeError */
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
            fds[at] =
                (struct pollfd){.fd = PyObject_AsFileDescriptor(PyList_GET_ITEM(lists[k], i)), .events = events[k]};
            if (fds[at].fd < 0 || vmh_fd_hold(fds[at].fd, "select") < 0)
                goto done;
            held++;
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
    for (Py_ssize_t i = 0; i < held; i++)
        vmh_fd_drop(fds[i].fd);
    for (int k = 0; k < 3; k++) {
        Py_XDECREF(lists[k]);
        Py_XDECREF(ready[k]);
    }
    PyMem_RawFree(fds);
    return rc;
}

/* poll(timeout=None, maxevents=-1): waits on the epoll descriptor, then polls with timeout 0. */
static int check_epoll_poll(vmh_gated *call)
{
    PyObject **timeout = vmh_gated_argument(call, 0, "timeout");
    int64_t deadline = INT64_MAX;
    int fd = vmh_gated_self_fd(call);
    if (fd == -2)
        return -1;
    if (timeout != NULL && *timeout != Py_None) {
        double seconds = PyFloat_AsDouble(*timeout);
        if (seconds == -1.0 && PyErr_Occurred())
            return -1;
        if (seconds >= 0 && seconds < 9e9)
            deadline = vmh_after_ns(vmh_now_ns(), (int64_t)(seconds * 1e9));
    }
    if (fd >= 0) {
        struct pollfd fds[2] = {{.fd = fd, .events = POLLIN}};
        if (vmh_wait_fds(fds, 1, deadline) < 0)
            return -1;
    }
    if (timeout == NULL) {
        if (call->nargs + (call->kwnames == NULL ? 0 : PyTuple_GET_SIZE(call->kwnames)) >= VMH_GATED_ARGS_MAX)
            return 0;
        memmove(call->args + 1, call->args, sizeof *call->args * (VMH_GATED_ARGS_MAX - 1));
        call->nargs++;
        timeout = &call->args[0];
    }
    return vmh_gated_replace(call, timeout, PyLong_FromLong(0));
}

static int check_epoll_fd(vmh_gated *call)
{
    PyObject **argument = vmh_gated_argument(call, 0, "fd");
    if (argument == NULL || *vmh_compat_fd(call->self) < 0
        || (PyLong_CheckExact(*argument) && PyLong_IsNegative(*argument)))
        return 0; /* its own error */
    return check_socket(call) < 0 || vmh_gated_fildes(call, argument) < 0 ? -1 : 0;
}

static int check_epoll_close(vmh_gated *call)
{
    if (call->nargs != 0 || call->kwnames != NULL)
        return 0;
    int error = vmh_fd_release(call->self, true);
    if (error != 0) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    call->result = Py_NewRef(Py_None);
    return 1;
}

static PyObject *epoll_new_gate(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (vmh_seal_here() == NULL)
        return vmh_deny("this thread is not one of the task's", "epoll");
    PyObject *object = atomic_load(&epoll_new)(type, args, kwargs);
    if (object == NULL)
        return NULL;
    if (vmh_fd_field_check(object, atomic_load(&epoll_fileno)) < 0) {
        Py_DECREF(object);
        return NULL;
    }
    int fd = *vmh_compat_fd(object);
    if (vmh_fd_own(fd) == 0 && vmh_fd_hold(fd, "epoll") == 0)
        return object;
    *vmh_compat_fd(object) = -1; /* already closed */
    Py_DECREF(object);
    return NULL;
}

static void epoll_dealloc_gate(PyObject *self)
{
    PyObject *raised = PyErr_GetRaisedException();
    vmh_fd_release(self, true);
    PyErr_SetRaisedException(raised);
    atomic_load (&epoll_dealloc)(self);
}

#define GATES(G) \
    G(_socket, , socketpair, check_socketpair, 0, NULL) \
    G(_socket, , close, check_close_fd, 0, NULL) \
    G(_socket, , dup, check_dup_fd, 0, NULL) \
    G(_socket, , getaddrinfo, check_getaddrinfo, 0, "host") \
    G(_socket, , gethostbyname, check_gethostbyname, 0, NULL) \
    G(_socket, , gethostbyname_ex, check_gethostbyname, 0, NULL) \
    G(_socket, , gethostname, check_gethostname, 0, NULL) \
    G(_socket, socket, recv, check_wait, POLLIN, NULL) \
    G(_socket, socket, recv_into, check_wait, POLLIN, NULL) \
    G(_socket, socket, recvfrom, check_wait, POLLIN, NULL) \
    G(_socket, socket, recvfrom_into, check_wait, POLLIN, NULL) \
    G(_socket, socket, recvmsg, check_recvmsg, POLLIN, NULL) \
    G(_socket, socket, recvmsg_into, check_recvmsg, POLLIN, NULL) \
    G(_socket, socket, send, check_send, 0, NULL) \
    G(_socket, socket, sendall, check_send, 0, NULL) \
    G(_socket, socket, sendto, check_sendto, 0, NULL) \
    G(_socket, socket, sendmsg, check_sendmsg, 0, NULL) \
    G(_socket, socket, sendmsg_afalg, vmh_gate_refuse, 0, NULL) \
    G(_socket, socket, _accept, check_accept, 0, NULL) \
    G(_socket, socket, bind, check_bind, 0, NULL) \
    G(_socket, socket, listen, check_listen, 0, NULL) \
    G(_socket, socket, connect, check_connect, 0, NULL) \
    G(_socket, socket, connect_ex, check_connect, 0, NULL) \
    G(_socket, socket, close, check_close_method, 0, NULL) \
    G(_socket, socket, detach, check_detach, 0, NULL) \
    G(_socket, socket, getpeername, check_socket, 0, NULL) \
    G(_socket, socket, getsockname, check_socket, 0, NULL) \
    G(_socket, socket, setblocking, check_socket, 0, NULL) \
    G(_socket, socket, settimeout, check_socket, 0, NULL) \
    G(_socket, socket, shutdown, check_socket, 0, NULL) \
    G(_socket, socket, getsockopt, check_option, 0, NULL) \
    G(_socket, socket, setsockopt, check_option, 0, NULL) \
    G(select, , select, check_select, 0, NULL) \
    G(select, epoll, poll, check_epoll_poll, 0, "timeout") \
    G(select, epoll, register, check_epoll_fd, 0, "fd") \
    G(select, epoll, modify, check_epoll_fd, 0, "fd") \
    G(select, epoll, unregister, check_epoll_fd, 0, "fd") \
    G(select, epoll, close, check_epoll_close, 0, NULL) \
    G(select, epoll, fromfd, vmh_gate_refuse, 0, NULL)

GATES(VMH_GATE_DEFINE)
vmh_gate *const vmh_gates_socket[] = {GATES(VMH_GATE_ADDRESS) NULL};

static vmh_gate *connect_ex_gate(void) { return &gate__socket_socket_connect_ex; }

static vmh_gate *settimeout_gate(void) { return &gate__socket_socket_settimeout; }

int vmh_socket_finish(PyObject *dict, PyObject *Py_UNUSED(module))
{
    PyTypeObject *type = (PyTypeObject *)vmh_dict_get(dict, "socket");
    if (type == NULL || !PyType_Check((PyObject *)type) || type->tp_init == socket_init_gate)
        return PyErr_Occurred() ? -1 : 0;
    PyMethodDef *fileno_def = vmh_method_def(type, "fileno"), *gettimeout_def = vmh_method_def(type, "gettimeout");
    PyObject *getdefaulttimeout = vmh_dict_get(dict, "getdefaulttimeout");
    if (fileno_def == NULL || gettimeout_def == NULL)
        return -1;
    if (getdefaulttimeout == NULL || !PyCFunction_CheckExact(getdefaulttimeout)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_SystemError, "_socket.getdefaulttimeout is missing in this Python");
        return -1;
    }
    PyObject *none = PyTuple_New(0), *probe = none == NULL ? NULL : type->tp_new(type, none, NULL);
    int rc = probe == NULL ? -1 : vmh_fd_field_check(probe, fileno_def);
    Py_XDECREF(probe);
    Py_XDECREF(none);
    if (rc < 0)
        return -1;
    atomic_store(&socket_gettimeout, gettimeout_def);
    atomic_store(&socket_getdefaulttimeout, ((PyCFunctionObject *)getdefaulttimeout)->m_ml);
    atomic_store(&socket_init, type->tp_init);
    atomic_store(&socket_dealloc, type->tp_dealloc);
    type->tp_dealloc = socket_dealloc_gate;
    if (vmh_slot_replace(type, "__del__", (void **)&type->tp_finalize, (void *)socket_finalize_gate) < 0)
        return -1;
    return vmh_slot_replace(type, "__init__", (void **)&type->tp_init, (void *)socket_init_gate);
}

bool vmh_is_socket(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    while (type != NULL && type->tp_dealloc != socket_dealloc_gate)
        type = type->tp_base;
    return type != NULL;
}

int vmh_select_finish(PyObject *dict, PyObject *Py_UNUSED(module))
{
    PyTypeObject *type = (PyTypeObject *)vmh_dict_get(dict, "epoll");
    if (type == NULL || type->tp_new == epoll_new_gate)
        return PyErr_Occurred() ? -1 : 0;
    PyMethodDef *fileno_def = vmh_method_def(type, "fileno");
    if (fileno_def == NULL)
        return -1;
    atomic_store(&epoll_fileno, fileno_def);
    atomic_store(&epoll_new, type->tp_new);
    atomic_store(&epoll_dealloc, type->tp_dealloc);
    type->tp_dealloc = epoll_dealloc_gate;
    return vmh_slot_replace(type, "__new__", (void **)&type->tp_new, (void *)epoll_new_gate);
}
