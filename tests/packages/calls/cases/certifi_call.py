# requires: certifi
import ssl

import certifi


def run(value):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=certifi.contents())
    with open(certifi.where()) as file:
        lines = sum("BEGIN CERTIFICATE" in line for line in file)
    return [lines, len(context.get_ca_certs()) > 50]
