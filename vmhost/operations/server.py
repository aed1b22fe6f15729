"""Serves a host's pages and metrics from a thread of the host's process."""

import contextlib
import os
import secrets
import threading
from collections.abc import Callable, Iterable

from vmhost import ConfigurationError
from vmhost.addresses import parsed
from vmhost.masking import CurrentMasking
from vmhost.operations.crash_reports import CrashFolder
from vmhost.operations.log_tail import LogTail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal, Self

    from vmhost import Host

DEFAULT_LISTEN = "127.0.0.1:9464"  # the port of OpenTelemetry's exporters for Prometheus
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def checked(listen: str, token: "str | Literal[False] | None") -> tuple[str, int]:
    """(host, port) of the address of a Dashboard with this token. ConfigurationError."""
    host, port = parsed(listen)
    if token is False and host not in _LOOPBACK:
        raise ConfigurationError(
            f"{listen}: pages without a token are for loopback addresses, such as {DEFAULT_LISTEN}"
        )
    return host, port


class Dashboard:
    """Pages and metrics of a host, at `url` while the context manager is open; the address includes the token.

    `host`: is neither opened nor closed. `listen`: "ADDRESS:PORT", port 0 for a free one. `token`: required in
    requests, as `Authorization: Bearer`, or once in the address; None: a new one; False: none, for loopback addresses
    only. `names`: further names that browsers may use for this machine. `consent`: as for `debugging.Debugging`, which
    starts here if the host's policy allows it. `sources`: folders of tasks as they were compiled, for the coverage
    page.

    Only `/healthz` and `/readyz` need no token. ConfigurationError; ImportError without the extra `operations`.
    """

    def __init__(
        self,
        host: "Host",
        listen: str = DEFAULT_LISTEN,
        *,
        token: "str | Literal[False] | None" = None,
        names: Iterable[str] = (),
        consent: "Callable[[Any], Any] | None" = None,
        sources: "Iterable[str | os.PathLike[str]]" = (),
    ) -> None:
        try:
            from vmhost import web_server
            from vmhost.operations.application import application
            from vmhost.operations.history import History
        except ModuleNotFoundError as error:
            raise ImportError(
                f"the dashboard needs the package {error.name}: pip install 'vmhost[operations]'", name=error.name
            ) from error
        address, port = checked(listen, token)
        self.token = None if token is False else token or secrets.token_urlsafe(24)
        masking = CurrentMasking(lambda: host.policy)
        if host.state is not None:
            CrashFolder(host.state, masking=masking).collect()
        self._history = History(host.statistics)
        self._logs = LogTail(masking=masking)
        allowed = {*names, address, *(_LOOPBACK if address in _LOOPBACK else ())}
        self.debugging = None
        with contextlib.ExitStack() as undo:  # undone when a later step fails
            self._listening = web_server.listening(address, port)
            undo.callback(self._listening.close)
            self.address, self.port = address, self._listening.getsockname()[1]
            if host.policy.debugging.consent == "ask":
                from vmhost.operations.debugging import Debugging

                self.debugging = Debugging(host, consent=consent, logs=self._logs)
                undo.callback(self.debugging.ledger.close)
                self.debugging.ledger.set_address(self.url.partition("?")[0].rstrip("/"))
            self._application = application(
                host, self._history, self._logs, self.token, allowed, self.port, self.debugging, sources
            )
            undo.pop_all()
        self._server = self._thread = None

    @property
    def url(self) -> str:
        """The address to open in a browser."""
        name = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{name}:{self.port}/" + (f"?token={self.token}" if self.token else "")

    def __enter__(self) -> "Self":
        import uvicorn

        from vmhost import web_server

        config = web_server.config(self._application, log_level="critical", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._server.install_signal_handlers = lambda: None
        self._logs.__enter__()
        self._history.start()
        if self.debugging is not None:
            self.debugging.__enter__()
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listening]}, name="vmhost-dashboard", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        if self.debugging is not None:
            self.debugging.__exit__(*_)
        self._thread.join()
        self._listening.close()
        self._history.stop()
        self._logs.__exit__(*_)
