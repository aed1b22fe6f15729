"""Events by HTTP: how long a request on a kept connection takes, from the client's call to the answer's last byte.

Without TCP_NODELAY on the accepted socket, the answer's body would wait for the acknowledgement of its head: 40 ms.
"""

import http.client
import json
import tempfile
import urllib.parse

from bench.measure import Result, interleaved, per_call_us
from vmhost.pipeline import Pipeline
from vmhost.pipeline.configuration import SourceSettings
from vmhost.pipeline.sources import Sources

REACH_US = 2000


def kept_connection(quick):
    requests, rounds = (50, 2) if quick else (500, 9)
    body = json.dumps({"name": "click", "time_ms": 1_790_000_000_000}).encode()
    settings = SourceSettings("web", http="127.0.0.1:0")
    with (
        tempfile.TemporaryDirectory() as folder,
        Pipeline(folder, []) as pipeline,
        Sources(pipeline, [settings]) as sources,
    ):
        address = urllib.parse.urlsplit(sources.sources["web"].url)
        connection = http.client.HTTPConnection(address.netloc, timeout=60)

        def post():
            connection.request("POST", address.path, body)
            connection.getresponse().read()

        figures = interleaved({"vmhost": lambda: per_call_us(post, requests)}, rounds, "us", "less")
        connection.close()
    (figure,) = figures.values()
    return [
        Result(
            "an event by HTTP, on a kept connection",
            figures,
            promises=((f"under {REACH_US // 1000} ms", figure.median < REACH_US),),
        )
    ]


ROWS = (kept_connection,)
