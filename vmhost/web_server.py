"""How our HTTP servers treat connections, in one place: uvicorn's HTTP/1.1 protocol with bounds on who may hold them.

A connection that asks nothing costs a descriptor, so it must not last: its first request has to come within
`FIRST_REQUEST_S`, each further one to be whole that long after it began. Per address, and in total, there may be a
bounded number of connections; beyond it the oldest idle one is closed, and only where none is idle the new one. Idle
connections do not count as busy: a request is refused with 503 where `max_busy` others are being answered. A TLS
handshake counts as idle, and has to end within `FIRST_REQUEST_S` too. Who does not read an answer for `STALLED_S` is
left.

Addresses of trusted proxies (those that uvicorn believes, FORWARDED_ALLOW_IPS, by default 127.0.0.1) have no bound of
their own: everybody behind them comes from there.
"""

import os
import resource
import socket

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from vmhost import ConfigurationError
from vmhost.addresses import parsed  # noqa: F401  (servers name it by this module)

FIRST_REQUEST_S = 10.0
STALLED_S = 60.0
MAX_CONNECTIONS = 4096
MAX_PER_ADDRESS = 256
_KEPT_DESCRIPTORS = 64  # for files, stores and sockets of the process itself
_MAX_HEADER_BYTES = 16 << 10


def listening(host, port):
    """A listening socket; port 0: any free one. ConfigurationError."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(1024)
    except (OSError, OverflowError) as error:
        bound.close()
        raise ConfigurationError(
            f"{host}:{port}: cannot listen: {getattr(error, 'strerror', None) or error}; choose another address, or "
            "port 0"
        ) from error
    except BaseException:
        bound.close()
        raise
    return bound


def config(app, *, max_busy=None, first_request_s=FIRST_REQUEST_S, **options):
    """The uvicorn.Config of a server of `app`. `options`: further ones of uvicorn.Config."""
    return _Config(
        app,
        http=_protocol_for(_Connections(), max_busy, first_request_s),
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        **options,
    )


def max_connections():
    """How many connections this process can hold beside its own files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(8, min(MAX_CONNECTIONS, soft - _KEPT_DESCRIPTORS))


class _Config(uvicorn.Config):
    """`tls`: the SSLContext, or None. uvicorn gets none: its sockets would count from the end of the handshake only."""

    tls = None

    def load(self):
        super().load()
        self.tls, self.ssl = self.ssl, None


class _Connections:
    """The open connections of one server, the oldest first. Used on its loop."""

    def __init__(self):
        trusted = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")
        self._proxies = frozenset(each.strip() for each in trusted.split(","))
        self._max = max_connections()
        self._max_per_address = min(MAX_PER_ADDRESS, max(4, self._max // 4))
        self._addresses = {}  # protocol -> address
        self._numbers = {}  # address -> number of its connections

    def add(self, protocol, address):
        """Whether the connection may stay; makes room for it where an older one is idle."""
        number = self._numbers.get(address, 0)
        if number >= self._max_per_address and address not in self._proxies and "*" not in self._proxies:
            if not self._close_idle(address):
                return False
        elif len(self._addresses) >= self._max and not self._close_idle(None):
            return False
        self._addresses[protocol] = address
        self._numbers[address] = self._numbers.get(address, 0) + 1
        return True

    def remove(self, protocol):
        address = self._addresses.pop(protocol, None)
        if address is None:
            return
        self._numbers[address] -= 1
        if not self._numbers[address]:
            del self._numbers[address]

    def _close_idle(self, address):
        for protocol, its in self._addresses.items():
            if address in (None, its) and protocol.is_idle:
                self.remove(protocol)
                protocol.transport.abort()
                return True
        return False


def _protocol_for(connections, max_busy, first_request_s):
    class BoundedProtocol(H11Protocol):
        """One connection. `limit_concurrency` of uvicorn counts idle connections too, so it is not used."""

        _timer = _stalled = _own_app = None
        _early = b""  # of the request, come before the handshake's end was seen

        @property
        def is_idle(self):
            return self.cycle is None or self.cycle.response_complete

        def connection_made(self, transport):
            connected = transport.get_extra_info("socket")
            if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
                # asyncio sets it for sockets with an explicit protocol only; without it an answer may wait 40 ms.
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.transport = transport  # for `_close_idle`
            peer = transport.get_extra_info("peername")
            if not connections.add(self, peer[0] if isinstance(peer, tuple) else ""):
                transport.abort()
            elif self.config.tls is None:
                self._begin(transport)
            else:
                self._handshake = self.loop.create_task(self._shake_hands(transport))

        async def _shake_hands(self, transport):
            try:
                secured = await self.loop.start_tls(
                    transport, self, self.config.tls, server_side=True, ssl_handshake_timeout=first_request_s
                )
            except OSError:  # of TLS and time-outs too
                secured = None
            if secured is None:  # also where the client went just after it
                connections.remove(self)
                transport.abort()
                return
            self._begin(secured)
            if self._early:
                self.data_received(self._early)

        def _begin(self, transport):
            super().connection_made(transport)
            self._own_app = self.app
            self._timer = self.loop.call_later(first_request_s, transport.abort)

        def pause_writing(self):
            self._stalled = self.loop.call_later(STALLED_S, self.transport.abort)
            super().pause_writing()

        def resume_writing(self):
            self._stop_waiting()
            super().resume_writing()

        def data_received(self, data):
            if self._own_app is None:
                self._early += data
                return
            if self.is_idle and self._timer is None:
                self._timer = self.loop.call_later(first_request_s, self.transport.abort)
            self.app = _busy if max_busy is not None and len(self.tasks) >= max_busy else self._own_app
            super().data_received(data)
            if not self.is_idle:
                self._stop_timer()

        def connection_lost(self, error):
            self._stop_timer()
            self._stop_waiting()
            connections.remove(self)
            if self._own_app is not None:
                super().connection_lost(error)

        def _stop_waiting(self):
            if self._stalled is not None:
                self._stalled.cancel()
                self._stalled = None

        def _stop_timer(self):
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return BoundedProtocol


async def _busy(scope, receive, send):
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"retry-after", b"1"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": b"too many requests are being answered; try again later\n"})
