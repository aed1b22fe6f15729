"""Serves the platform's application with uvicorn, on the calling thread or on one of its own."""

import contextlib
import ssl
import threading

import uvicorn

from vmhost import web_server
from vmhost.deployment.cloud.web import application
from vmhost.deployment.errors import DeploymentError

_KEEP_ALIVE_S = 75  # longer than the interval of devices' requests, so that these reuse connections


def _server(platform, tls):
    config = web_server.config(
        application(platform),
        log_level="warning",
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=5,
        **({"ssl_certfile": tls[0], "ssl_keyfile": tls[1]} if tls else {}),
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise DeploymentError(
            f"{tls[0]}, {tls[1]}: cannot be used for TLS: {error}; expected a certificate and its key, both in PEM"
        ) from error
    return uvicorn.Server(config)


def serve(platform, listening, tls=None):
    """Serves until Ctrl-C or SIGTERM. `tls`: paths of a certificate and its key. DeploymentError if they are
    unusable."""
    server = _server(platform, tls)
    platform.start_ticking()
    server.run(sockets=[listening])


@contextlib.contextmanager
def serving(platform, host="127.0.0.1", port=0, tls=None):
    """Within the block, serves on a thread of its own; yields the address. `tls` as for `serve`."""
    server = _server(platform, tls)
    with contextlib.closing(web_server.listening(host, port)) as listening:
        platform.start_ticking()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="platform-server")
        thread.start()
        try:
            yield f"{'https' if tls else 'http'}://{host}:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
