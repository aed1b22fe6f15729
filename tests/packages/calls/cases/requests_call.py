# requires: requests
import requests


def run(value):
    prepared = requests.Request(
        "POST", "https://example.org/a b", params={"q": "ä"}, json={"x": 1}, auth=("u", "p")
    ).prepare()
    return [prepared.url, sorted(prepared.headers.items()), prepared.body.decode()]
