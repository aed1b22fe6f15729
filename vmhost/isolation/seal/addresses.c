/* The network part of a task's permissions: patterns "host:port", where host is a name, an IP address, "*.name" or "*",
 * and port a number or "*". `net` grants connecting and sending, `listen` a port that others can reach.
 */
#include "seal/sealing.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

static const char *port_of(const char *pattern)
{
    const char *colon = strrchr(pattern, ':');
    return colon == NULL ? "*" : colon + 1;
}

/* The host of `pattern`, without the brackets of an IPv6 one. */
static const char *host_of(const char *pattern, size_t *size)
{
    const char *colon = strrchr(pattern, ':');
    *size = colon == NULL ? strlen(pattern) : (size_t)(colon - pattern);
    if (*size < 2 || pattern[0] != '[' || pattern[*size - 1] != ']')
        return pattern;
    *size -= 2;
    return pattern + 1;
}

/* Parses an IP address: its family and bytes; 0 for a name. */
static int number_of(const char *text, unsigned char bytes[16])
{
    return inet_pton(AF_INET, text, bytes) == 1 ? AF_INET : inet_pton(AF_INET6, text, bytes) == 1 ? AF_INET6 : 0;
}

static bool host_matches(const char *pattern, const char *host)
{
    size_t size, length = strlen(host);
    unsigned char wanted[16] = {0}, given[16] = {0};
    char number[INET6_ADDRSTRLEN];
    pattern = host_of(pattern, &size);
    if (size == 1 && pattern[0] == '*')
        return true;
    if (size > 2 && pattern[0] == '*' && pattern[1] == '.')
        return length > size - 1 && strncasecmp(host + length - (size - 1), pattern + 1, size - 1) == 0;
    if (length == size && strncasecmp(host, pattern, size) == 0)
        return true;
    if (size >= sizeof number)
        return false;
    memcpy(number, pattern, size);
    number[size] = 0;
    int family = number_of(number, wanted); /* an IPv6 address has several spellings */
    return family != 0 && number_of(host, given) == family && memcmp(wanted, given, sizeof wanted) == 0;
}

static bool port_matches(const char *pattern, long port)
{
    const char *text = port_of(pattern);
    return strcmp(text, "*") == 0 || strtol(text, NULL, 10) == port;
}

static bool list_grants(vmh_seal *seal, const vmh_list *list, const char *host, long port)
{
    atomic_fetch_or(&seal->used, VMH_USED_SOCKETS); /* even if denied: the name may be looked up outside */
    for (size_t i = 0; i < list->count; i++) {
        if (!port_matches(list->items[i], port))
            continue;
        if (host_matches(list->items[i], host))
            return true;
        for (vmh_resolved *known = seal->resolved; known != NULL; known = known->next)
            if (known->pattern == list->items[i] && strcmp(known->address, host) == 0)
                return true;
    }
    return false;
}

static int deny(const char *what, const char *host, long port, bool listen)
{
    vmh_deny(listen ? "not granted; a task that others may reach there names it in task.yaml, permissions: {listen: "
                      "[\"host:port\"]}"
                    : "not granted; a task that may use it names it in task.yaml, permissions: {net: [\"host:port\"]}",
             "%s('%s:%ld')", what, host, port);
    return -1;
}

PyObject *vmh_host_exact(PyObject *host, const char *what)
{
    PyObject *text = NULL, *encoded = NULL;
    if (PyByteArray_Check(host))
        text = PyBytes_FromStringAndSize(PyByteArray_AS_STRING(host), PyByteArray_GET_SIZE(host));
    else if (PyUnicode_Check(host) && !PyUnicode_IS_ASCII(host)) {
        /* The guest may have replaced the codec: it could as well have passed what that returns. */
        if ((encoded = PyUnicode_AsEncodedString(host, "idna", NULL)) != NULL)
            text = PyBytes_FromStringAndSize(PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded));
        Py_XDECREF(encoded);
    } else if (PyUnicode_Check(host))
        text = PyUnicode_AsASCIIString(host);
    else if (PyBytes_Check(host))
        text = PyBytes_FromStringAndSize(PyBytes_AS_STRING(host), PyBytes_GET_SIZE(host));
    else
        PyErr_Format(PyExc_TypeError, "%s: expected a host name (str or bytes), got %T", what, host);
    if (text == NULL || strlen(PyBytes_AS_STRING(text)) == (size_t)PyBytes_GET_SIZE(text))
        return text;
    PyErr_Format(PyExc_ValueError, "%s: a host name without null characters", what);
    Py_DECREF(text);
    return NULL;
}

const char *vmh_host_text(PyObject *host) { return PyBytes_AS_STRING(host); }

int vmh_grant_host(const char *host, const char *what)
{
    vmh_seal *seal = vmh_seal_here();
    const vmh_list *lists[] = {&seal->net, &seal->listen};
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < lists[k]->count; i++)
            if (host_matches(lists[k]->items[i], host))
                return 0;
    vmh_deny("not granted; a task that may use it names it in task.yaml, permissions: {net: [\"host:port\"]}",
             "%s('%s')", what, host);
    return -1;
}

static int resolved_add(vmh_seal *seal, const char *address, const char *pattern)
{
    for (vmh_resolved *known = seal->resolved; known != NULL; known = known->next)
        if (known->pattern == pattern && strcmp(known->address, address) == 0)
            return 0;
    vmh_resolved *resolved = malloc(sizeof *resolved);
    if (resolved == NULL || (resolved->address = strdup(address)) == NULL) {
        free(resolved);
        PyErr_NoMemory();
        return -1;
    }
    resolved->pattern = pattern;
    resolved->next = seal->resolved;
    seal->resolved = resolved;
    return 0;
}

int vmh_grant_resolved(const char *host, const char *address)
{
    vmh_seal *seal = vmh_seal_here();
    const vmh_list *lists[] = {&seal->net, &seal->listen};
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < lists[k]->count; i++)
            if (host_matches(lists[k]->items[i], host) && !host_matches(lists[k]->items[i], address)
                && resolved_add(seal, address, lists[k]->items[i]) < 0)
                return -1;
    return 0;
}

/* One item of an address as an exact int from 0 to `max`; NULL: error set. */
static PyObject *number_exact(PyObject *item, long max, const char *what, const char *name)
{
    PyObject *number = PyNumber_Index(item);
    long value = number == NULL ? -1 : PyLong_AsLong(number);
    Py_XDECREF(number);
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_OverflowError))
        return NULL;
    if (value >= 0 && value <= max)
        return PyLong_FromLong(value);
    PyErr_Clear();
    return PyErr_Format(PyExc_OverflowError, "%s(): %s must be 0-%ld", what, name, max);
}

int vmh_address_read(PyObject *address, int family, const char *what, vmh_address *read)
{
    *read = (vmh_address){.whole = NULL};
    if (family != AF_INET && family != AF_INET6) {
        vmh_deny("only internet addresses can be granted", "%s", what);
        return -1;
    }
    if (!PyTuple_Check(address)) {
        PyErr_Format(PyExc_TypeError, "%s(): %s address must be tuple, not %T", what,
                     family == AF_INET ? "AF_INET" : "AF_INET6", address);
        return -1;
    }
    Py_ssize_t size = PyTuple_GET_SIZE(address);
    if (size < 2 || size > (family == AF_INET ? 2 : 4)) {
        PyErr_SetString(PyExc_TypeError, family == AF_INET
                                             ? "AF_INET address must be a pair (host, port)"
                                             : "AF_INET6 address must be a tuple (host, port[, flowinfo[, scopeid]])");
        return -1;
    }
    static const struct {
        const char *name;
        long max;
    } numbers[] = {{"port", 65535}, {"flowinfo", 0xFFFFF}, {"scopeid", 0xFFFFFFFF}};
    read->whole = PyTuple_New(size);
    for (Py_ssize_t i = 0; read->whole != NULL && i < size; i++) {
        PyObject *item = PyTuple_GET_ITEM(address, i);
        item = i == 0 ? vmh_host_exact(item, what) : number_exact(item, numbers[i - 1].max, what, numbers[i - 1].name);
        if (item == NULL)
            Py_CLEAR(read->whole);
        else
            PyTuple_SET_ITEM(read->whole, i, item);
    }
    if (read->whole == NULL)
        return -1;
    read->host = vmh_host_text(PyTuple_GET_ITEM(read->whole, 0));
    if (read->host[0] == 0)
        read->host = family == AF_INET ? "0.0.0.0" : "::";
    else if (family == AF_INET && strcmp(read->host, "<broadcast>") == 0)
        read->host = "255.255.255.255";
    read->port = PyLong_AsLong(PyTuple_GET_ITEM(read->whole, 1));
    return 0;
}

int vmh_grant_send(const vmh_address *address, const char *what)
{
    vmh_seal *seal = vmh_seal_here();
    return list_grants(seal, &seal->net, address->host, address->port)
               ? 0
               : deny(what, address->host, address->port, false);
}

int vmh_grant_bind(const vmh_address *address, const char *what)
{
    vmh_seal *seal = vmh_seal_here();
    unsigned char bytes[16];
    bool free_port = address->port == 0 && number_of(address->host, bytes) != 0;
    return free_port || list_grants(seal, &seal->listen, address->host, address->port)
               ? 0
               : deny(what, address->host, address->port, true);
}

bool vmh_socket_name(int fd, char text[static VMH_ADDRESS_TEXT], long *port)
{
    struct sockaddr_storage name = {0};
    socklen_t size = sizeof name;
    if (getsockname(fd, (struct sockaddr *)&name, &size) != 0)
        return false;
    const struct sockaddr_in *four = (const struct sockaddr_in *)&name;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)&name;
    *port = name.ss_family == AF_INET ? ntohs(four->sin_port) : name.ss_family == AF_INET6 ? ntohs(six->sin6_port) : -1;
    return *port >= 0
           && inet_ntop(name.ss_family, name.ss_family == AF_INET ? (const void *)&four->sin_addr : &six->sin6_addr,
                        text, VMH_ADDRESS_TEXT)
                  != NULL;
}

int vmh_grant_listen(int fd, const char *what)
{
    vmh_seal *seal = vmh_seal_here();
    char host[VMH_ADDRESS_TEXT];
    long port;
    if (!vmh_socket_name(fd, host, &port)) {
        vmh_deny("only internet sockets listen", "%s", what);
        return -1;
    }
    return list_grants(seal, &seal->listen, host, port) ? 0 : deny(what, host, port, true);
}

bool vmh_listens(int fd)
{
    vmh_seal *seal = vmh_seal_here();
    char host[VMH_ADDRESS_TEXT];
    long port;
    return vmh_socket_name(fd, host, &port) && list_grants(seal, &seal->listen, host, port);
}
