# requires: oauthlib
from oauthlib.oauth1 import Client


def run(value):
    client = Client("key", client_secret="secret", nonce="n", timestamp="1")
    return sorted(client.sign("https://example.org/a?b=1")[1].items())
