"""The tunnel between device and cloud, against HTTP/2, WebSockets and MQTT. Its rows are in files of their own."""

from bench import tunnel_hostile, tunnel_links, tunnel_load, tunnel_round_trips

ROWS = (*tunnel_round_trips.ROWS, *tunnel_links.ROWS, *tunnel_load.ROWS, *tunnel_hostile.ROWS)


def run(quick):
    return [result for row in ROWS for result in row(quick)]
