/* What a task's permissions name of the network: patterns "host:port", where host is a name, "*.name" or "*", and port a
 * number or "*". */
#include "sealing.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

static bool host_matches(const char *pattern, size_t size, const char *host)
{
    if (size == 1 && pattern[0] == '*')
        return true;
    if (size > 2 && pattern[0] == '*' && pattern[1] == '.') {
        size_t length = strlen(host);
        return length > size - 1 && strncasecmp(host + length - (size - 1), pattern + 1, size - 1) == 0;
    }
    return strlen(host) == size && strncasecmp(host, pattern, size) == 0;
}

static const char *port_of(const char *pattern)
{
    const char *colon = strrchr(pattern, ':');
    return colon == NULL ? "*" : colon + 1;
}

static size_t host_size(const char *pattern)
{
    const char *colon = strrchr(pattern, ':');
    return colon == NULL ? strlen(pattern) : (size_t)(colon - pattern);
}

static bool port_matches(const char *pattern, long port)
{
    const char *text = port_of(pattern);
    return strcmp(text, "*") == 0 || strtol(text, NULL, 10) == port;
}

int vmh_grant_host(const char *host, const char *what, const char **pattern)
{
    vmh_seal *seal = vmh_seal_here();
    for (size_t i = 0; seal != NULL && i < seal->net.count; i++)
        if (host_matches(seal->net.items[i], host_size(seal->net.items[i]), host)) {
            *pattern = seal->net.items[i];
            return 0;
        }
    vmh_deny("not granted; a task that may use it names it in task.yaml, permissions: {net: [\"host:port\"]}",
             "%s('%s')", what, host);
    return -1;
}

int vmh_grant_resolved(const char *address, const char *pattern)
{
    vmh_seal *seal = vmh_seal_here();
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

int vmh_grant_address(PyObject *address, int family, const char *what)
{
    vmh_seal *seal = vmh_seal_here();
    if (family != AF_INET && family != AF_INET6) {
        vmh_deny("only internet addresses can be granted", "%s", what);
        return -1;
    }
    if (!PyTuple_Check(address) || PyTuple_GET_SIZE(address) < 2)
        return 0;       /* the socket raises its own TypeError */
    PyObject *host = PyTuple_GET_ITEM(address, 0), *number = PyTuple_GET_ITEM(address, 1);
    const char *name = PyUnicode_CheckExact(host) ? PyUnicode_AsUTF8(host)
                       : PyBytes_CheckExact(host) ? PyBytes_AS_STRING(host)
                                                  : NULL;
    if (name == NULL || !PyLong_CheckExact(number)) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "%s: expected an address (str, int), got %R", what, address);
        return -1;
    }
    long port = PyLong_AsLong(number);
    if (port == -1 && PyErr_Occurred())
        return -1;
    for (size_t i = 0; seal != NULL && i < seal->net.count; i++)
        if (host_matches(seal->net.items[i], host_size(seal->net.items[i]), name)
            && port_matches(seal->net.items[i], port))
            return 0;
    for (vmh_resolved *known = seal == NULL ? NULL : seal->resolved; known != NULL; known = known->next)
        if (strcmp(known->address, name) == 0 && port_matches(known->pattern, port))
            return 0;
    vmh_deny("not granted; a task that may use it names it in task.yaml, permissions: {net: [\"host:port\"]}",
             "%s('%s:%ld')", what, name, port);
    return -1;
}
