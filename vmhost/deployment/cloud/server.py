"""Serves the platform's application with uvicorn, in the calling thread or in one of its own."""

import contextlib
import socket
import threading

import uvicorn

from vmhost.deployment.cloud.web import application
from vmhost.deployment.errors import DeploymentError

_KEEP_ALIVE_S = 75  # longer than devices wait between requests, which then need no new connection


def listen(host, port):
    """A socket that listens; port 0: any that is free. DeploymentError."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise DeploymentError(
            f"{host}:{port}: cannot be listened on: {error.strerror}; choose another --port"
        ) from error
    return listening


def _server(platform):
    config = uvicorn.Config(
        application(platform),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=5,
    )
    return uvicorn.Server(config)


def serve(platform, listening):
    """Until Ctrl-C or SIGTERM."""
    platform.start_ticking()
    _server(platform).run(sockets=[listening])


@contextlib.contextmanager
def serving(platform, host="127.0.0.1", port=0):
    """The address of a server that runs on a thread for the block."""
    listening = listen(host, port)
    server = _server(platform)
    platform.start_ticking()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="platform-server")
    thread.start()
    try:
        yield f"http://{host}:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
