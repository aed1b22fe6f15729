"""Listening is a permission of its own: others can reach the addresses that `listen` names, and nothing else of a
task."""

import socket
import threading

import pytest

import vmhost
from vmhost.bytecode.compiler import compile_sources

SOURCE = """
import socket
import vmhost.guest

def run(asked):
    name, *args = asked
    try:
        return globals()[name](*args)
    except vmhost.guest.PermissionDenied as error:
        return f"denied: {error.args[1]}"

def listen(host=None, port=0, family=socket.AF_INET):
    with socket.socket(family) as listening:
        if host is not None:
            listening.bind((host, port))
        listening.listen()
        return listening.getsockname()[:2]

def bind(host, port, kind="SOCK_STREAM", family=socket.AF_INET):
    with socket.socket(family, getattr(socket, kind)) as bound:
        bound.bind((host, port))
        return bound.getsockname()[:2]

def bind_odd(host, port):
    class Text(str):
        def encode(self, *args):
            return b"0.0.0.0"
    class Number(int):
        def __index__(self):
            return 1
        __int__ = __index__
    class Pair(tuple):
        def __getitem__(self, at):
            return ("0.0.0.0", 1)[at]
        def __iter__(self):
            return iter(("0.0.0.0", 1))
    with socket.socket() as bound:
        bound.bind(Pair((Text(host), Number(port))))
        return bound.getsockname()

def listen_with_another(host, port):
    '''The socket becomes another one while its argument is asked for.'''
    with socket.socket() as listening:
        class Backlog:
            def __index__(self):
                bound = listening.fileno()
                super(socket.socket, listening).__init__(socket.AF_INET, socket.SOCK_STREAM, 0,
                                                         socket.socket().detach())
                socket.close(bound)
                return 1
        listening.bind((host, port))
        listening.listen(Backlog())
        return listening.getsockname()

def fetch(port, source):
    with socket.create_connection(("127.0.0.1", port), timeout=10, source_address=source) as connection:
        return connection.recv(5)

def datagram(port):
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        sender.sendto(b"question", ("127.0.0.1", port))
        sender.settimeout(10)
        return sender.recvfrom(10)[0]

def hears(server, bound, how, first=0):
    '''What a socket reads once it has sent to `server`, whom others heed.'''
    import io, os
    family = socket.AF_INET6 if ":" in server[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        if bound:
            asking.bind((server[0], 0))
        asking.settimeout(10)
        for port in range(first, first + 40 if first else 0):
            asking.sendto(b"", ("127.0.0.1", port))
        if how == "connect":
            asking.connect(tuple(server))
            asking.send(b"question")
        elif how == "sendmsg":
            asking.sendmsg([b"question"], [], 0, tuple(server))
        else:
            asking.sendto(b"question", tuple(server))
        if how == "read":
            asking.setblocking(True)
            return os.read(os.dup(asking.fileno()), 10)
        if how == "file":
            asking.setblocking(True)
            return io.FileIO(asking.fileno(), closefd=False).read(10)
        return asking.recv(10)

def hears_what_came_before(server):
    with socket.socket(type=socket.SOCK_DGRAM) as late, socket.socket(type=socket.SOCK_DGRAM) as asking:
        late.bind(("127.0.0.1", 0))
        asking.sendto(b"%d" % late.getsockname()[1], tuple(server))
        asking.settimeout(10)
        asking.recv(10)
        late.settimeout(10)
        late.connect(tuple(server))
        late.send(b"question")
        return late.recv(10)

def hears_asyncio(server):
    import asyncio
    async def main():
        heard = asyncio.get_running_loop().create_future()
        class Protocol(asyncio.DatagramProtocol):
            def datagram_received(self, data, address):
                heard.done() or heard.set_result(data)
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Protocol, local_addr=("127.0.0.1", 0))
        transport.sendto(b"question", tuple(server))
        try:
            return await asyncio.wait_for(heard, 10)
        finally:
            transport.close()
    return asyncio.run(main())

def option(family, level, name, data):
    with socket.socket(family, socket.SOCK_DGRAM) as asked:
        asked.setsockopt(level, name, data)
        return asked.getsockopt(level, name)

def asyncio_server(port):
    import asyncio
    async def answer(reader, writer):
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()
        done.set()
    async def main():
        global done
        done = asyncio.Event()
        async with await asyncio.start_server(answer, "127.0.0.1", port):
            vmhost.guest.host.ready(None)
            await asyncio.wait_for(done.wait(), 20)
    asyncio.run(main())

def socketserver_server(port):
    import socketserver
    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            self.wfile.write(self.rfile.readline().upper())
    socketserver.TCPServer.allow_reuse_address = True
    with socketserver.TCPServer(("127.0.0.1", port), Handler) as server:
        vmhost.guest.host.ready(None)
        server.handle_request()

def http_server(port):
    import http.server
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.path.upper().encode())
        def log_message(self, *args):
            pass
    with http.server.HTTPServer(("localhost", port), Handler) as server:
        vmhost.guest.host.ready(None)
        server.handle_request()
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@pytest.fixture(scope="module")
def port():
    return free_port()


@pytest.fixture(scope="module")
def asked(port):
    """ask(kind of permissions, function, *args); `ready` is set by the guest's host function of that name."""
    ready = threading.Event()
    kinds = {
        "net": {"net": ["127.0.0.1:*", "localhost:*", "[::1]:*", "[::ffff:127.0.0.1]:*"]},
        "both": {"net": ["127.0.0.1:*"], "listen": ["127.0.0.1:*"]},
        "listen": {"listen": [f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"], "host": ["ready"]},
        "name": {"listen": [f"localhost:{port}"]},
        "any port": {"listen": ["127.0.0.1:*"]},
        "any": {"listen": ["*:*"]},
        "none": {},
    }
    with vmhost.Host(allow_unsigned=True, functions={"ready": lambda _: ready.set()}) as host:
        tasks = {
            kind: host.load(
                compile_sources(
                    {"main": (SOURCE, "main.py", False)},
                    entry="main:run",
                    name="l" + kind.replace(" ", "-"),
                    version="1",
                    permissions=permissions,
                    limits={"concurrency": 1, "wall_time_s": 60.0},
                )
            )
            for kind, permissions in kinds.items()
        }

        def ask(kind, *call):
            return tasks[kind](call)

        ask.tasks, ask.ready = tasks, ready
        yield ask


def denied(answer, kind="listen"):
    return isinstance(answer, str) and answer.startswith("denied: ") and f"{{{kind}: " in answer


def test_connecting_is_no_listening(asked, port):
    assert denied(asked("net", "listen")), "without bind(), the kernel binds to all addresses"
    for host in ("127.0.0.1", "", "localhost", "0.0.0.0"):
        assert denied(asked("net", "listen", host, port)), host
        assert denied(asked("net", "listen", host, 0)), host
        assert denied(asked("net", "bind", host, port, "SOCK_DGRAM")), host


def test_a_client_may_ask_for_a_free_port(asked):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            with server.accept()[0] as connection:
                connection.sendall(b"hello")

        answering = threading.Thread(target=answer)
        answering.start()
        try:
            assert asked("net", "fetch", server.getsockname()[1], ("127.0.0.1", 0)) == b"hello"
        finally:
            server.shutdown(socket.SHUT_RDWR)  # if no client came
            answering.join()
    assert asked("net", "bind", "", 0, "SOCK_DGRAM")[0] == "0.0.0.0"
    assert denied(asked("net", "bind", "example.org", 0)), "that would ask for a name that nothing grants"


def test_an_unbound_datagram_socket_is_answered(asked):
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def answer():
            server.sendto(b"answer", server.recvfrom(10)[1])

        answering = threading.Thread(target=answer)
        answering.start()
        try:
            assert asked("net", "datagram", server.getsockname()[1]) == b"answer"
        finally:
            with socket.socket(type=socket.SOCK_DGRAM) as last:  # where none came
                last.sendto(b"", server.getsockname())
            answering.join()


@pytest.fixture
def server():
    """The port of a server of datagrams; another socket sends to the asker, or a named port, before each answer."""
    with (
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as answering,
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as stranger,
    ):
        for each in (answering, stranger):
            each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            each.bind(("::", 0))

        def answer():
            while (question := answering.recvfrom(10))[0] != b"end":
                who = question[1] if not question[0].isdigit() else (question[1][0], int(question[0]))
                stranger.sendto(b"stranger", who)
                answering.sendto(b"answer", question[1])

        thread = threading.Thread(target=answer)
        thread.start()
        port = answering.getsockname()[1]
        yield port
        stranger.sendto(b"end", ("::1", port))
        thread.join()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("how", ["recv", "sendmsg", "connect", "read", "file"])
def test_a_datagram_socket_hears_those_that_it_asked_only(asked, server, how, bound):
    for host in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        assert asked("net", "hears", (host, server), bound, how) == b"answer", host
    assert asked("net", "hears", ("localhost", server), False, how) == b"answer"
    assert asked("both", "hears", ("127.0.0.1", server), True, how) == (b"answer" if how == "connect" else b"stranger")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_what_came_before_a_connect_is_not_heard(asked, server):
    assert asked("net", "hears_what_came_before", ("127.0.0.1", server)) == b"answer"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_who_asks_many_hears_the_last(asked, server):
    assert asked("net", "hears", ("127.0.0.1", server), False, "recv", 50000) == b"answer"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_asyncios_datagrams_are_answered(asked, server):
    assert asked("net", "hears_asyncio", ("127.0.0.1", server)) == b"answer"


IP, IPV6 = int(socket.IPPROTO_IP), int(socket.IPPROTO_IPV6)


@pytest.mark.parametrize(
    ("family", "level", "name", "data"),
    [
        (socket.AF_INET, IP, 4, bytes([0x83, 7, 4, 127, 0, 0, 2, 0])),  # IP_OPTIONS: sends by another machine
        (socket.AF_INET, IP, 19, bytes(4)),  # IP_TRANSPARENT
        (socket.AF_INET, IP, 35, socket.inet_aton("224.0.0.251") + socket.inet_aton("127.0.0.1")),  # joins a group
        (socket.AF_INET, IP, 42, bytes(136)),  # MCAST_JOIN_GROUP
        (socket.AF_INET, IP, 16, bytes(8)),  # IP_IPSEC_POLICY
        (socket.AF_INET6, IPV6, 57, bytes(24)),  # IPV6_RTHDR
        (socket.AF_INET6, IPV6, 20, socket.inet_pton(socket.AF_INET6, "ff02::fb") + bytes(4)),  # IPV6_JOIN_GROUP
        (socket.AF_INET6, IPV6, 1, bytes(4)),  # IPV6_ADDRFORM
    ],
)
def test_options_that_join_groups_or_choose_routes_are_refused(asked, family, level, name, data):
    answer = asked("net", "option", int(family), level, name, data)
    assert answer == f"denied: socket.setsockopt({level}, {name}): no task can have this option"


def test_options_of_packets_are_let_through(asked):
    assert asked("net", "option", int(socket.AF_INET), IP, int(socket.IP_TTL), 3) == 3
    assert asked("net", "option", int(socket.AF_INET), IP, int(socket.IP_MULTICAST_TTL), 2) == 2
    assert asked("net", "option", int(socket.AF_INET6), IPV6, int(socket.IPV6_TCLASS), 8) == 8


def test_what_listen_names_is_bound_and_nothing_else(asked, port):
    assert asked("listen", "listen", "127.0.0.1", port) == ("127.0.0.1", port)
    assert asked("listen", "listen", "localhost", port) == ("127.0.0.1", port)
    assert asked("listen", "bind", "127.0.0.1", port, "SOCK_DGRAM") == ("127.0.0.1", port)
    for host in ("", "0.0.0.0", "127.0.0.2", "127.1", "localhost."):
        assert denied(asked("listen", "listen", host, port)), host
    assert denied(asked("listen", "listen", "127.0.0.1", port + 1 if port < 65535 else 1024))
    assert denied(asked("listen", "listen", "127.0.0.1", 0)), "the kernel's port is not the one that is named"
    assert denied(asked("listen", "listen"))
    assert denied(asked("listen", "fetch", port, None), "net"), "listening is no connecting"
    assert denied(asked("none", "listen"), "net") and denied(asked("none", "bind", "127.0.0.1", 0), "net")


def test_a_name_stands_for_the_number_that_it_has_once_it_is_bound(asked, port):
    assert denied(asked("name", "bind", "127.0.0.1", port))
    assert asked("name", "listen", "localhost", port) == ("127.0.0.1", port)
    assert denied(asked("name", "listen", "127.0.0.2", port))


def test_a_star_stands_for_all_ports_or_addresses(asked):
    assert asked("any port", "listen", "127.0.0.1", 0)[0] == "127.0.0.1"
    assert denied(asked("any port", "listen", "0.0.0.0", 0))
    assert asked("any", "listen")[0] == "0.0.0.0"
    assert asked("any", "listen", "", 0)[0] == "0.0.0.0"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_an_ipv6_number_is_the_same_however_it_is_written(asked, port):
    for host in ("::1", "0:0:0:0:0:0:0:1"):
        assert asked("listen", "listen", host, port, int(socket.AF_INET6)) == ("::1", port)
    assert denied(asked("listen", "listen", "::", port, int(socket.AF_INET6)))


def test_what_was_checked_is_what_is_bound(asked, port):
    assert asked("listen", "bind_odd", "127.0.0.1", port) == ("127.0.0.1", port)


def test_what_was_checked_is_what_listens(asked, port):
    assert denied(asked("listen", "listen_with_another", "127.0.0.1", port))


@pytest.mark.parametrize("server", ["asyncio_server", "socketserver_server", "http_server"])
def test_the_standard_librarys_servers_answer(asked, port, server):
    asked.ready.clear()
    call = asked.tasks["listen"].submit((server, port))
    assert asked.ready.wait(30), call.result(timeout=30)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"GET /hello HTTP/1.0\r\n\r\n" if server == "http_server" else b"hello\n")
        answer = b""
        while more := connection.recv(1000):
            answer += more
    assert answer.endswith(b"/HELLO" if server == "http_server" else b"HELLO\n")
    call.result(timeout=30)
