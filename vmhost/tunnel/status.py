"""The state of a server's processes, and what waits in its store."""

import json
import os
import socket

from vmhost.tunnel import pushes

_PATIENCE_S = 2.0


def of_processes(store):
    """The `statistics()` of each process that serves the store; [] if there are none."""
    folder = pushes.processes_folder(store)
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".status"))
    except OSError:
        return []
    found = []
    for name in names:
        try:
            with pushes.short_address(folder, name) as address, socket.socket(socket.AF_UNIX) as asking:
                asking.settimeout(_PATIENCE_S)
                asking.connect(address)
                answer = b""
                while data := asking.recv(65_536):
                    answer += data
            found.append(json.loads(answer))
        except OSError, ValueError:
            continue  # ended, or does not answer
    return found


def kind_of(database):
    """ "server", "device" or None: the owner of the store."""
    with database.reader() as connection:
        names = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if "tunnel_pushes" in names:
        return "server"
    return "device" if "outbox_entries" in names else None


def _known(connection):
    """[(device, messages dropped by their numbers, by their ids)], of the devices with the most."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'tunnel_known'").fetchone():
        return []  # no server of this version has opened the store yet
    return connection.execute(
        "SELECT peer, numbers, ids FROM tunnel_known ORDER BY ids DESC, numbers DESC LIMIT 1000"
    ).fetchall()


def of_outbox(database):
    """For a device: [(channel, number of waiting messages, bytes, when the oldest was put, ms since 1970)]."""
    with database.reader() as connection:
        return connection.execute(
            "SELECT channel, count(*), sum(length(body)), min(time_ms) FROM outbox_entries GROUP BY channel"
        ).fetchall()


def of_store(database):
    """For a server, a dict: number of `devices` seen, waiting `pushes`, number of `refused` messages, ..."""
    with database.reader() as connection:

        def rows(query):
            return connection.execute(query).fetchall()

        return {
            "devices": rows("SELECT count(DISTINCT peer) FROM tunnel_received")[0][0],
            "pushes": rows(
                "SELECT device, channel, count(*), sum(length(body)) FROM tunnel_pushes GROUP BY device, channel"
            ),
            "known": _known(connection),
            "refused": rows("SELECT count(*) FROM tunnel_refused")[0][0],
            "dictionaries": rows("SELECT number, channel, length(data) FROM tunnel_dictionaries"),
            "counters": dict(rows("SELECT name, value FROM store_counters")),
        }
