"""The application of Celery in servers.py: messages and results are files in $PROBE_FOLDER."""

import os

from celery import Celery

from tests.environments.servers import service

_FOLDER = os.environ["PROBE_FOLDER"]
app = Celery("probe", broker="filesystem://", backend=f"file://{_FOLDER}/results")
for name in ("in", "results", "control"):
    os.makedirs(f"{_FOLDER}/{name}", exist_ok=True)
app.conf.broker_transport_options = {
    "data_folder_in": f"{_FOLDER}/in",
    "data_folder_out": f"{_FOLDER}/in",
    "control_folder": f"{_FOLDER}/control",
}


@app.task
def answer(path):
    return service.answer(path)
