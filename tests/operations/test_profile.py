"""Sampling profiles of VMs: whose time they show, how they are written, and how the dashboard and commands show
them."""

import gzip
import json
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import vmhost
from tests.operations.hosts_at_work import ask, bundle, host
from vmhost.cli import main
from vmhost.compiler import compile_folder
from vmhost.operations import Dashboard, flames
from vmhost.operations.profile_pages import self_times

ROOT = Path(__file__).resolve().parents[2]
SHARES = """
import threading, time

def work(rounds):
    for _ in range(rounds // 100):  # equal pieces: a sum that grows takes longer to add to
        total = 0
        for i in range(100):
            total += i * i
    return total

def seventy():
    work(7_000)

def twenty():
    work(2_000)

def ten():
    work(1_000)

def sleeping(seconds):
    time.sleep(seconds)

def threaded(seconds):
    thread = threading.Thread(target=run, args=(seconds,))
    thread.start()
    thread.join()

def größe(seconds):
    run(seconds)

def run(value):
    if isinstance(value, list):
        return globals()[value[0]](value[1])
    end = time.monotonic() + value
    while time.monotonic() < end:
        seventy()
        twenty()
        ten()
"""
NAMES = ("seventy", "twenty", "ten")


@pytest.fixture(scope="module")
def shares(tmp_path_factory):
    with host(warm=2, max_vms=4) as running:
        yield running, running.load(bundle(tmp_path_factory.mktemp("shares"), "shares", source=SHARES))


def profile_of(running, task, values, hz=100):
    """Of calls that were sampled more than five times: a busy machine leaves a profile few samples."""
    for _ in range(8):
        with running.profile(hz) as profiling:
            for call in [task.submit(value) for value in values]:
                call.result()
        if sum(node.samples for _, node in profiling.profile.stacks()) > 5:
            break
    return profiling.profile


def functions_in(profile, names, measure="cpu"):
    """The share of each of these functions in the time of all of them, in percent, and the number of their samples."""
    spent, samples = dict.fromkeys(names, 0.0), 0
    for stack, node in profile.stacks():
        for frame in stack:
            if frame.name in spent:
                spent[frame.name] += node.cpu_s if measure == "cpu" else node.wall_s
                samples += node.samples
    total = sum(spent.values())
    return {name: 100 * share / total for name, share in spent.items()}, samples


def test_four_vms_at_once_have_the_shares_that_they_should_have(shares):
    """It takes a tenth of the stress test's samples: the bounds are five standard errors for that number."""
    for _ in range(8):  # a busy machine leaves a profile few samples
        profile = profile_of(*shares, [0.8] * 4, hz=300)
        found, samples = functions_in(profile, NAMES)
        if samples > 100:
            break
    # a stack may be unreadable: a thread that the machine lets wait right then
    assert samples > 100 and profile.unreadable < samples / 50 and not profile.full
    for name, share in zip(NAMES, (70, 20, 10), strict=True):
        error = 100 * (share / 100 * (1 - share / 100) / samples) ** 0.5
        assert abs(found[name] - share) < 5 * error + 2, (found, samples)


@pytest.mark.stress
def test_shares_are_within_two_points_at_four_thousand_samples(shares):
    profile = profile_of(*shares, [30.0] * 4, hz=200)
    found, samples = functions_in(profile, NAMES)
    assert samples >= 4000
    for name, share in zip(NAMES, (70, 20, 10), strict=True):
        assert abs(found[name] - share) <= 2, (found, samples)


def test_stacks_have_the_task_its_callers_and_the_line(shares):
    profile = profile_of(*shares, [0.4])
    assert profile.tasks == ("shares@1.0.0",)
    stack, _ = max(profile.stacks(), key=lambda item: item[1].samples)
    assert [frame.name for frame in stack[:2]] == ["shares@1.0.0", "run"] and stack[-1].name == "work"
    assert stack[1].file == "shares@1.0.0/main.py"
    lines = SHARES.splitlines()
    for stack, _ in profile.stacks():
        for caller, called in zip(stack[1:-1], stack[2:], strict=True):
            assert f"{called.name}(" in lines[caller.line - 1], (caller, called)


def test_waiting_is_wall_time_and_no_cpu_time(shares):
    profile = profile_of(*shares, [["sleeping", 0.6]])
    spent = {frame.name: 0.0 for frame, _ in self_times(profile, "wall")}
    for stack, node in profile.stacks():
        spent[stack[-1].name] += node.wall_s
    cpu = sum(node.cpu_s for node in profile.nodes)
    assert spent["sleeping"] > 0.3 and cpu < 0.1


def test_threads_of_a_task_are_seen(shares):
    profile = profile_of(*shares, [["threaded", 0.5]])
    names = {tuple(frame.name for frame in stack[1:]) for stack, _ in profile.stacks()}
    assert any("work" in stack for stack in names)
    assert any("threaded" in stack for stack in names)


def test_a_name_in_another_alphabet(shares):
    profile = profile_of(*shares, [["größe", 0.3]])
    assert any(frame.name == "größe" for stack, _ in profile.stacks() for frame in stack)
    assert "größe (shares@1.0.0/main.py)" in flames.flame_graph(profile)


def test_vms_that_come_and_go_while_they_are_looked_at(tmp_path):
    """Stacks are read while their interpreters are made and ended."""
    source = "import json, random\ndef run(value):\n    return len(json.dumps(list(range(value))))\n"
    with host(warm=1, max_vms=3) as running:
        for version in range(12):
            task = running.load(bundle(tmp_path, "brief", f"1.0.{version}", source))
            with running.profile(5000) as profiling:
                assert len({task(3000) for _ in range(5)}) == 1
                running.unload(task)
            assert set(profiling.profile.tasks) <= {f"brief@1.0.{version}"}


def test_deep_recursion_keeps_the_innermost_frames(tmp_path):
    source = """
def down(n, work):
    return down(n - 1, work) if n else sum(range(work))

def run(value):
    for _ in range(30):
        down(400, 300_000)
"""
    with host(warm=1) as running:
        task = running.load(bundle(tmp_path, "deep", source=source))
        profile = profile_of(running, task, [None])
    longest = max((stack for stack, _ in profile.stacks()), key=len)
    assert len(longest) == 1 + 128 and all(frame.name == "down" for frame in longest[1:])


def test_a_models_operators_are_below_the_python_that_runs_it():
    picture = {"image": [8] * 64}
    with host(warm=1) as running:
        task = running.load(compile_folder(ROOT / "tasks" / "digits_cnn").to_bytes(None))
        found = set()
        for _ in range(100):  # calls take some 100 us: until one is sampled inside an operator
            with running.profile(2000) as profiling:
                list(task.map([picture] * 300))
            stacks = [stack for stack, _ in profiling.profile.stacks()]
            found.update(stack[-1].name for stack in stacks if stack[-1].file == "engine" and stack[1].name == "run")
            if any(name.startswith("Conv") for name in found):
                return
    raise AssertionError(found)


def test_operators_of_arrays_are_below_the_python_that_calls_them(tmp_path):
    source = """
import vmhost.engine.numpy as np

def run(value):
    a = np.ones((300, 300), dtype="float32")
    return float(spread(product(a)).sum())

def product(a):
    for _ in range(20):
        b = a @ a
    return b

def spread(a):
    for _ in range(60):
        b = np.exp(-a)
    return b
"""
    with host(warm=1) as running:
        task = running.load(bundle(tmp_path, "arrays", source=source))
        found = set()
        for _ in range(100):  # until each is sampled inside an operator
            with running.profile(2000) as profiling:
                list(task.map([None] * 20))
            stacks = [stack for stack, _ in profiling.profile.stacks()]
            found.update((stack[-2].name, stack[-1].name) for stack in stacks if stack[-1].file == "engine")
            if {("product", "matmul"), ("spread", "exp")} <= found:
                break
        else:
            raise AssertionError(found)
        assert not {("product", "exp"), ("spread", "matmul")} & found


def test_an_operator_is_over_for_its_profile_when_it_ends(tmp_path):
    """Also where two threads of a task compute at once, of which each knew the other's operator as the one before."""
    source = """
import threading
import vmhost.engine.numpy as np

def compute():
    a = np.ones((200, 200), dtype="float32")
    for _ in range(30):
        a = np.exp(a @ a * 0)

def run(value):
    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    only_python(value)

def only_python(rounds):
    for _ in range(rounds):
        pass
"""
    with host(warm=1) as running:
        task = running.load(bundle(tmp_path, "over", source=source))
        stacks = []
        for _ in range(20):  # until it is met behind an operator: a busy machine leaves a profile few samples
            with running.profile(2000) as profiling:
                list(task.map([300_000] * 30))
            stacks += [stack for stack, _ in profiling.profile.stacks()]
            if any(frame.name == "only_python" for stack in stacks for frame in stack):
                break
        assert any(stack[-1].name == "only_python" for stack in stacks)
        assert not [stack for stack in stacks if stack[-1].file == "engine" and stack[-2].name == "only_python"]


def test_one_profile_at_a_time(shares):
    running, _ = shares
    for _ in range(20):
        with running.profile() as first:
            with pytest.raises(RuntimeError, match="one at a time"):
                running.profile()
        assert first.profile.span_s >= 0
    assert running.profile().stop().span_s >= 0


@pytest.mark.parametrize("hz", [0, -1, 0.01, 1e9, float("nan")])
def test_rates_that_are_refused(shares, hz):
    with pytest.raises(ValueError, match=r"hz: expected 0\.1 to 10000"):
        shares[0].profile(hz)


def test_stopping_twice_gives_the_same_profile(shares):
    profiling = shares[0].profile()
    first = profiling.stop()
    assert profiling.stop() is first and profiling.profile is first


def test_a_host_that_closes_under_the_profile(tmp_path):
    running = host(warm=1)
    task = running.load(bundle(tmp_path, "shares", source=SHARES))
    with running.profile(1000) as profiling:
        call = task.submit(60)
        while not running.statistics().tasks["shares"].running:
            time.sleep(0.001)
        running.close(drain=False)
        with pytest.raises(vmhost.ClosedError):
            call.result()
    assert profiling.profile.span_s > 0


# ---- files


@pytest.fixture(scope="module")
def profile(shares):
    return profile_of(*shares, [0.5, 0.5])


def test_folded_stacks_add_up(profile):
    lines = [line.rpartition(" ") for line in flames.folded(profile).splitlines()]
    assert all(stack.startswith("shares@1.0.0") for stack, _, _ in lines)
    total = sum(node.cpu_s for node in profile.nodes)
    assert sum(int(spent) for _, _, spent in lines) == pytest.approx(total * 1e6, abs=len(lines))


def test_speedscope_names_each_frame_once(profile):
    document = json.loads(flames.speedscope(profile))
    frames = document["shared"]["frames"]
    assert len({json.dumps(frame) for frame in frames}) == len(frames)
    cpu, wall = document["profiles"]
    assert cpu["endValue"] == pytest.approx(sum(cpu["weights"])) and len(wall["samples"]) == len(wall["weights"])
    assert {frames[stack[0]]["name"] for stack in wall["samples"]} == {"shares@1.0.0"}


def fields_of(data):
    """(number, value) of each field of a message in the wire format of protocol buffers."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            assert key & 7 == 2
            size = varint()
            yield key >> 3, data[at : at + size]
            at += size


def test_pprof_holds_what_profile_proto_asks_for(profile):
    message = list(fields_of(gzip.decompress(flames.pprof(profile))))
    texts = [value.decode() for number, value in message if number == 6]
    assert texts[0] == "" and len(set(texts)) == len(texts)
    samples = [dict(fields_of(value)) for number, value in message if number == 2]
    assert len(samples) == sum(1 for _ in profile.stacks())
    locations = {dict(fields_of(value))[1] for number, value in message if number == 4}
    functions = {dict(fields_of(value))[1]: dict(fields_of(value)) for number, value in message if number == 5}
    assert {texts[function[2]] for function in functions.values()} >= {"run", "work"}
    for sample in samples:
        assert {number for number in sample[1]} <= locations  # below 128 locations a varint is a byte
        label = dict(fields_of(sample[3]))
        assert (texts[label[1]], texts[label[2]]) == ("task", "shares@1.0.0")
    kinds = [dict(fields_of(value)) for number, value in message if number == 1]
    assert [(texts[kind[1]], texts[kind[2]]) for kind in kinds] == [
        ("samples", "count"),
        ("cpu", "nanoseconds"),
        ("wall", "nanoseconds"),
    ]


@pytest.mark.parametrize("measure", ["cpu", "wall"])
def test_a_flame_graph_is_svg_whose_rows_fit_into_their_callers(profile, measure):
    root = ElementTree.fromstring(flames.flame_graph(profile, measure))
    groups = root.findall("{*}g")
    boxes = [group.find("{*}rect") for group in groups]
    widths = {}
    for box in boxes:
        widths.setdefault(int(box.get("y")), []).append(float(box.get("width")))
    rows = [sum(widths[y]) for y in sorted(widths)]
    assert rows[0] > 1190 and all(below <= above + 1 for above, below in zip(rows, rows[1:], strict=False))
    assert any("seventy" in group.find("{*}title").text for group in groups)


def test_an_empty_profile_can_be_drawn_and_written(shares, tmp_path):
    empty = shares[0].profile().stop()
    for name in ("a.svg", "a.json", "a.pb.gz", "a.folded"):
        flames.write(empty, tmp_path / name)
    ElementTree.parse(tmp_path / "a.svg")
    with pytest.raises(ValueError, match=r"expected a name that ends in one of \.svg"):
        flames.write(empty, tmp_path / "a.png")


# ---- the dashboard and the commands


def test_the_dashboard_takes_a_profile_and_gives_its_files(shares):
    running, task = shares
    with Dashboard(running, "127.0.0.1:0") as dashboard:
        token = dashboard.token
        assert "No profile was taken yet" in ask(dashboard, "/profile", token)[2]
        assert ask(dashboard, "/profile/profile.svg", token)[0] == 404
        call = task.submit(1.0)
        status, _, part = ask(dashboard, "/part/profile?seconds=0.5", token)
        call.result()
        assert status == 200 and "<svg" in part and "seventy (shares@1.0.0/main.py)" in part
        assert "shares@1.0.0" in ask(dashboard, "/part/profile?measure=wall&task=shares%401.0.0", token)[2]
        for name, kind in (("profile.svg", "image/svg+xml"), ("profile.speedscope.json", "application/json")):
            status, headers, text = ask(dashboard, f"/profile/{name}", token)
            assert status == 200 and headers["content-type"] == kind and "seventy" in text
        assert ask(dashboard, "/profile/other", token)[0] == 404
        for wrong in ("seconds=0", "seconds=61", "seconds=nan", "seconds=x", "seconds="):
            assert "seconds: expected 0.1 to 60" in ask(dashboard, f"/part/profile?{wrong}", token)[2]
            assert ask(dashboard, f"/profile/profile.svg?{wrong}", token)[0] == 409
        assert ask(dashboard, "/part/profile?seconds=1")[0] == 401
        with running.profile():
            assert "one at a time" in ask(dashboard, "/part/profile?seconds=1", token)[2]


def test_run_writes_a_profile(tmp_path, capfd):
    path = tmp_path / "shares.vmb"
    path.write_bytes(bundle(tmp_path, "shares", source=SHARES))
    graph = tmp_path / "graph.svg"
    arguments = ["run", str(path), "--allow-unsigned", "--input", "0.5", "--profile", str(graph)]
    assert main(arguments) == 0
    assert "seventy" in graph.read_text()
    assert main([*arguments[:-1], str(tmp_path / "graph.png")]) == 2
    assert "expected a name that ends in one of" in capfd.readouterr().err
    assert main([*arguments[:-1], str(tmp_path / "absent" / "graph.svg")]) != 0
    assert "--profile" in capfd.readouterr().err


def test_top_prints_a_table_of_a_running_host(shares, capfd):
    running, task = shares
    task(0.01)
    with Dashboard(running, "127.0.0.1:0") as dashboard:
        assert main(["top", dashboard.url, "--once"]) == 0
        assert "shares" in capfd.readouterr().out
        assert main(["top", dashboard.url, "--json", "--by", "p99"]) == 0
        values = json.loads(capfd.readouterr().out)
        assert [row["name"] for row in values["tasks"]] == ["shares"] and values["tasks"][0]["calls"] >= 1
        assert main(["top", f"127.0.0.1:{dashboard.port}"]) == 2
        assert "asks for a token" in capfd.readouterr().err
        address = f"http://127.0.0.1:{dashboard.port}/"
    assert main(["top", address]) != 0
    assert "no dashboard answers" in capfd.readouterr().err
    for wrong in ("", "ftp://x/", "http://:70000/", "http://x:99999/"):
        assert main(["top", wrong]) == 2
