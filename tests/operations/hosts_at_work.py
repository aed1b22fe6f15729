"""A task folder whose calls succeed and fail as asked, and readers of the dashboard's answers."""

import http.client

import vmhost
from vmhost.compiler import compile_folder

SOURCE = """
from vmhost.guest import log

def run(value):
    if value == "fail":
        raise RuntimeError("asked to")
    log.warning("called with %s", value)
    return value
"""


def bundle(folder, name="worker", version="1.0.0", source=SOURCE, more=""):
    """The bytes of a bundle of a task that runs `source`, made in `folder`; `more`: further lines of its task.yaml."""
    task = folder / f"{name}-{version}"
    task.mkdir()
    (task / "main.py").write_text(source)
    (task / "task.yaml").write_text(f'name: {name}\nversion: {version}\nentry: main:run\npython: "3.14"\n{more}')
    return compile_folder(task).to_bytes(None)


def host(**policy):
    return vmhost.Host(allow_unsigned=True, policy=vmhost.Policy(**policy))


def ask(dashboard, path, token=None, method="GET", **headers):
    """(status, headers, text) of a request; `token` goes as Bearer; header names have _ for -."""
    connection = http.client.HTTPConnection(dashboard.address, dashboard.port, timeout=60)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    try:
        connection.request(method, path, headers=sent)
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()
    finally:
        connection.close()
