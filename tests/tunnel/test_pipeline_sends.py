"""A pipeline that sends its tables' outgoing rows, and its tasks that use channels, by the commands."""

import json

import msgpack
import pytest

from tests.pipeline.stream_tasks import WAIT_S, clicks, open_pipeline, stream_task
from tests.tunnel.conftest import rows
from vmhost.cli import main
from vmhost.tunnel import Device

SOURCE = """
from vmhost.guest import host


def run(value):
    host.tunnel_log({"send": value["visit"].encode(), "id": "log-" + value["visit"]})
    answer = host.tunnel_double({"ask": len(value["events"]), "timeout_s": 20})
    return {"visit": value["visit"], "count": answer["answer"]}
"""
TABLE = "columns: {visit: text, count: {type: integer, leaves: true}}"
WITHOUT_CHANNELS = 'def run(value):\n    return {"visit": value["visit"], "count": 1}\n'


@pytest.fixture
def events(tmp_path):
    path = tmp_path / "events.jsonl"
    events = ({"name": "click", "time_ms": 1_790_000_000_000 + n, "visit": f"v{n}", "key": "k"} for n in range(20))
    path.write_text("".join(json.dumps(each) + "\n" for each in events))
    return path


def run_command(capfd, *arguments):
    capfd.readouterr()
    code = main([*map(str, arguments)])
    return code, *capfd.readouterr()


def sent(store):
    return [(device, channel, id, msgpack.unpackb(body)) for device, channel, id, body in rows(store)]


def test_rows_leave_while_the_pipeline_runs_each_once(make_server, keys, events, tmp_path, capfd):
    """The second run is of a device that lost its store: its positions begin anew, and its rows are new ones."""
    bundle = tmp_path / "clicks.vmb"
    bundle.write_bytes(stream_task(tmp_path, WITHOUT_CHANNELS, table=TABLE))
    with make_server().running() as address:
        to = ("--tunnel", address.replace("127.0.0.1", "localhost"), "--tunnel-keys", keys, "--device", "ann")
        for run in range(2):
            code, out, err = run_command(
                capfd,
                "pipeline",
                "run",
                tmp_path / f"shop-{run}",
                bundle,
                "--allow-unsigned",
                "--events",
                events,
                *to,
                "--json",
            )
            assert code == 0, err
            assert json.loads(out)["tunnel"] == {"sent": 20, "left": 0}
    found = sent(tmp_path / "cloud.sqlite")
    assert [(device, channel) for device, channel, _, _ in found] == [("ann", "clicks")] * 40
    assert len({id for _, _, id, _ in found}) == 40 and all(id.startswith("clicks/") for _, _, id, _ in found)


def test_a_wait_for_what_is_sent_covers_rows_that_are_in_memory_only(make_server, settings_of, tmp_path):
    bundle = stream_task(tmp_path, WITHOUT_CHANNELS, table=TABLE)
    with make_server().running() as address, open_pipeline(tmp_path, bundle, batch_ms=60_000) as pipeline:
        with Device(address.replace("127.0.0.1", "localhost"), pipeline.database, **settings_of("ann")) as device:
            device.wait_connected(WAIT_S)
            pipeline.append_many(clicks(*map(str, range(20))))
            assert pipeline.wait(WAIT_S)
            assert device.wait_sent(WAIT_S)
            assert len(sent(tmp_path / "cloud.sqlite")) == 20


def test_what_cannot_leave_waits_for_the_next_run(make_server, keys, events, tmp_path, capfd):
    bundle, shop = tmp_path / "clicks.vmb", tmp_path / "shop"
    bundle.write_bytes(stream_task(tmp_path, WITHOUT_CHANNELS, table=TABLE))
    run = ("pipeline", "run", shop, bundle, "--allow-unsigned", "--tunnel-keys", keys, "--device", "ann", "--tunnel")
    code, _, err = run_command(capfd, *run, "localhost:1", "--events", events)
    assert code == 0 and "20 rows wait in the outbox for the next run" in err
    with make_server().running() as address:
        to = address.replace("127.0.0.1", "localhost")
        code, out, _ = run_command(
            capfd, "tunnel", "send", shop, "--keys", keys, "--device", "ann", "--to", to, "--json"
        )
        assert code == 0 and json.loads(out)["counts"]["acknowledged"] == 20
    assert len(sent(tmp_path / "cloud.sqlite")) == 20


def test_tasks_of_a_pipeline_use_channels(make_server, keys, events, tmp_path, capfd):
    bundle = tmp_path / "clicks.vmb"
    spec = stream_task(tmp_path, SOURCE, table=TABLE, functions="tunnel_log, tunnel_double")
    bundle.write_bytes(spec)
    server = make_server()
    server.answer("double", lambda request: request.value * 2)
    with server.running() as address:
        port = address.rpartition(":")[2]
        (tmp_path / "pipeline.yaml").write_text(
            f"folder: shop\nbundles: [clicks.vmb]\nallow_unsigned: true\nsources: {{log: {{file: events.jsonl}}}}\n"
            f"tunnel: {{to: 'localhost:{port}', keys: {keys}, device: ann, channels: [log, double],"
            " batch_time: 5 ms}\n"
        )
        code, out, err = run_command(capfd, "pipeline", "run", tmp_path / "pipeline.yaml", "--json")
        assert code == 0, err
        assert json.loads(out)["tunnel"] == {"sent": 40, "left": 0}
    found = rows(tmp_path / "cloud.sqlite")
    assert sorted(id for _, channel, id, _ in found if channel == "log") == sorted(f"log-v{n}" for n in range(20))
    counts = [msgpack.unpackb(body)["count"] for _, channel, _, body in found if channel == "clicks"]
    assert counts == [2] * 20


@pytest.mark.parametrize(
    ("tunnel", "text"),
    [
        ("{keys: KEYS, device: ann}", "tunnel"),
        ("{to: 'localhost:1', keys: KEYS}", "expected device or token_file"),
        ("{to: 'localhost:1', device: ann}", "names a certificate in the folder `keys`, which is missing"),
        ("{to: 'localhost:1', keys: nowhere, device: ann}", "nowhere"),
        ("{to: 'localhost:1', keys: KEYS, device: ann, channels: ['a-b']}", "letters, digits and _"),
    ],
)
def test_a_wrong_tunnel_in_a_pipeline_yaml(keys, tmp_path, capfd, tunnel, text):
    tunnel = tunnel.replace("KEYS", str(keys))
    (tmp_path / "pipeline.yaml").write_text(f"folder: shop\nbundles: []\nallow_unsigned: true\ntunnel: {tunnel}\n")
    code, _, err = run_command(capfd, "pipeline", "run", tmp_path / "pipeline.yaml")
    assert code != 0 and text in err and err.startswith("error: "), err
