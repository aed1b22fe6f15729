/* Which datagrams a socket receives on an address that `listen` does not grant: only answers. The kernel limits a
 * connected socket to its peer's datagrams; an unconnected one receives everybody's, which would be listening.
 * Datagrams can be read in many ways (recv, read, sendfile, a duplicate descriptor), so a kernel filter (BPF) decides:
 * it drops all that do not come from an address to which the socket has sent or been connected. The filter is also the
 * only record of these addresses: SO_GET_FILTER returns it. All functions require the VM's GIL. */
#include "seal/sealing.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* Offsets from the packet's IP header for the kernel's filter. Plain offsets start at the UDP header. */
#define IP_AT(offset) ((unsigned)SKF_NET_OFF + (offset))

enum {
    PEERS_MAX = 32, /* per socket; then the oldest address is removed */
    PEER_SIZE = 14, /* instructions per peer, at most */
    FILTER_SIZE = PEERS_MAX * PEER_SIZE + 1,
};

typedef struct filter {
    struct sock_filter code[FILTER_SIZE];
    unsigned short size;
} filter;

static void put(filter *f, struct sock_filter instruction) { f->code[f->size++] = instruction; }
static void load(filter *f, unsigned short width, unsigned at)
{
    put(f, (struct sock_filter)BPF_STMT(BPF_LD | BPF_ABS | width, at));
}

/* Continues if the loaded value is `value`, else jumps to the end of this peer's instructions, which are `size` from
 * `start`. */
static void expect(filter *f, unsigned value, unsigned start, unsigned size)
{
    put(f,
        (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, (unsigned char)(start + size - f->size - 1)));
}

/* Appends instructions that accept a packet from this address. The UDP header begins with the source port. */
static void put_peer(filter *f, const unsigned char *number, unsigned words, unsigned port)
{
    const unsigned start = f->size, size = 6 + 2 * words;
    load(f, BPF_B, IP_AT(0));
    put(f, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xF0));
    expect(f, words == 1 ? 0x40 : 0x60, start, size);
    for (unsigned i = 0; i < words; i++) {
        uint32_t word;
        memcpy(&word, number + 4 * i, sizeof word);
        load(f, BPF_W, IP_AT((words == 1 ? 12 : 8) + 4 * i));
        expect(f, ntohl(word), start, size);
    }
    load(f, BPF_H, 0);
    expect(f, port, start, size);
    put(f, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0xFFFFFFFF));
}

static int attach(int fd, filter *f)
{
    put(f, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0));
    struct sock_fprog program = {.len = f->size, .filter = f->code};
    if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0)
        return 0;
    PyErr_SetFromErrno(PyExc_OSError);
    return -1;
}

int vmh_answers_only(int fd)
{
    filter none = {.size = 0};
    return attach(fd, &none);
}

void vmh_answers_and_others(int fd) { setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &(int){0}, sizeof(int)); }

/* Adds the receiver of a datagram to the accepted peers. */
static int add_peer(int fd, filter *f, const struct sockaddr *peer)
{
    static const unsigned char mapped[12] = {[10] = 0xFF, [11] = 0xFF}, any[16] = {0}, loopback[16] = {[15] = 1};
    const struct sockaddr_in *four = (const struct sockaddr_in *)peer;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)peer;
    filter added = {.size = 0};
    unsigned char number[16];
    unsigned words = 4, port = ntohs(four->sin_port); /* at the same offset in both structures */
    if (peer->sa_family == AF_INET) {
        memcpy(number, &four->sin_addr, 4);
        words = 1;
    } else if (memcmp(&six->sin6_addr, mapped, sizeof mapped) == 0) {
        memcpy(number, (const unsigned char *)&six->sin6_addr + 12, 4);
        words = 1;
    } else
        memcpy(number, &six->sin6_addr, 16);
    if (memcmp(number, any, 4 * (size_t)words) == 0) /* the unspecified address means this machine */
        memcpy(number, words == 1 ? (const unsigned char *)"\x7F\0\0\1" : loopback, 4 * (size_t)words);
    put_peer(&added, number, words, port);
    unsigned peers = 0;
    f->size--; /* remove the final instruction, which drops */
    for (unsigned at = 0, size; at < f->size; at += size, peers++) {
        size = f->code[at + 2].k == 0x40 ? 8 : 14;
        if (size == added.size && memcmp(&f->code[at], added.code, size * sizeof *added.code) == 0)
            return 0;
    }
    if (peers == PEERS_MAX) {
        unsigned size = f->code[2].k == 0x40 ? 8 : 14;
        f->size = (unsigned short)(f->size - size);
        memmove(f->code, f->code + size, f->size * sizeof *f->code);
    }
    memcpy(f->code + f->size, added.code, added.size * sizeof *added.code);
    f->size = (unsigned short)(f->size + added.size);
    return attach(fd, f);
}

/* False: a stream socket, or one that accepts every datagram. */
static bool filter_of(int fd, filter *f)
{
    socklen_t size = FILTER_SIZE; /* in instructions */
    bool found = getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, f->code, &size) == 0 && size > 0;
    f->size = found ? (unsigned short)size : 0;
    return found;
}

/* The exact address with the IP address `number` as its host. */
static PyObject *with_number(PyObject *address, const char *number)
{
    PyObject *items = PySequence_List(address), *host = PyBytes_FromString(number), *whole = NULL;
    if (items != NULL && host != NULL && PyList_SetItem(items, 0, Py_NewRef(host)) == 0)
        whole = PyList_AsTuple(items);
    Py_XDECREF(items);
    Py_XDECREF(host);
    return whole;
}

PyObject *vmh_answers_of(int fd, PyObject *address)
{
    filter f;
    if (!filter_of(fd, &f))
        return Py_NewRef(address);
    int family = AF_UNSPEC, rc;
    socklen_t room = sizeof family;
    char port[16], number[NI_MAXHOST];
    const char *host = vmh_host_text(PyTuple_GET_ITEM(address, 0));
    snprintf(port, sizeof port, "%ld", PyLong_AsLong(PyTuple_GET_ITEM(address, 1)));
    getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &room);
    const struct addrinfo hints = {.ai_family = family, .ai_socktype = SOCK_DGRAM};
    struct addrinfo *found = NULL;
    if (host[0] == 0)
        host = family == AF_INET ? "0.0.0.0" : "::";
    else if (family == AF_INET && strcmp(host, "<broadcast>") == 0)
        host = "255.255.255.255";
    PyThreadState *ts = PyEval_SaveThread(); /* a name lookup may take long */
    rc = getaddrinfo(host, port, &hints, &found);
    PyEval_RestoreThread(ts);
    if (rc != 0)
        return Py_NewRef(address); /* the original function reports the error */
    PyObject *whole = NULL;
    if (!filter_of(fd, &f)) /* removed meanwhile */
        whole = Py_NewRef(address);
    else if (getnameinfo(found->ai_addr, found->ai_addrlen, number, sizeof number, NULL, 0, NI_NUMERICHOST) != 0)
        PyErr_SetString(PyExc_OSError, "the address cannot be expressed in numbers");
    else if (add_peer(fd, &f, found->ai_addr) == 0)
        whole = with_number(address, number); /* send to the very address that was looked up */
    freeaddrinfo(found);
    return whole;
}
