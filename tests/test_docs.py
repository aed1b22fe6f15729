"""The README and the pages in docs/: every block of code and every command in them runs as it is printed. Pages that
need nothing else are followed from top to bottom (test_guides.py); `make pages` follows all of them from a wheel.

`BLOCKS` names the check of each block, by the block's first words. A block without an entry fails, so a new block needs
a check. The check prepares what a block presupposes (pixels, a task folder, a key); the block itself is run
unchanged."""

import ast
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path

import numpy
import pytest
import yaml

import vmhost
from tests import pages, warm
from tests.images import device_tools
from tests.test_guides import SELF_CONTAINED
from tests.wheels import folder_of_wheels, write_wheel
from vmhost.bytecode.compiler import compile_sources
from vmhost.bytecode.errors import TaskSpecError
from vmhost.bytecode.spec import read_task
from vmhost.cli import main
from vmhost.pipeline import Pipeline
from vmhost.pipeline.configuration import read_pipeline_yaml
from vmhost.pipeline.sources import Sources

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
# Guides are followed from top to bottom (test_guides.py).
ALL_PAGES = sorted(
    {*PAGES, "tasks/README.md", *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))}
)


def blocks(page):
    return pages.blocks((ROOT / page).read_text(encoding="utf-8"))


def block(page, first):
    [text] = [text for _, text in blocks(page) if text.startswith(first)]
    return text


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A folder like a reader's checkout: tasks/, tools/, and build/digits.vmb signed with the key `signer`, in
    keys/. Copied by each test."""
    made = tmp_path_factory.mktemp("checkout")
    for name in ("tasks", "tools"):
        (made / name).symlink_to(ROOT / name)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.chdir(made)
        patch.setenv("VMHOST_KEYS", str(made / "own"))
        assert main(["keys", "new", "signer", "--trust"]) == 0
        assert main(["compile", "tasks/digits", "-o", "build/digits.vmb", "--sign", "signer"]) == 0
    (made / "keys").symlink_to("own/trusted")
    return made


@pytest.fixture
def folder(checkout, tmp_path, monkeypatch):
    """The current folder, made like a reader's checkout."""
    shutil.copytree(checkout, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VMHOST_KEYS", str(tmp_path / "own"))
    return tmp_path


def run_script(folder, text):
    """Runs `text` as a script in `folder`; what it printed."""
    (folder / "script.py").write_text(text)
    done = warm.run("script.py", cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_commands(text, capfd):
    """Runs each line that is a `vmhost` command, in this process; what the last one printed on stdout."""
    for line in text.strip().splitlines():
        program, *arguments = shlex.split(line)
        assert program == "vmhost"
        capfd.readouterr()
        assert main(arguments) == 0, capfd.readouterr().err
    return capfd.readouterr().out


def a_runaway_call(text, folder, capfd):
    assert run_script(folder, text) == block("README.md", "[2.0, 5.0]")


def a_task_in_a_host(text, folder, capfd):
    assert re.fullmatch(r"\d \d \d\n", run_script(folder, text))


def arrays_in_tasks(text, folder, capfd):
    samples = numpy.random.default_rng(0).random((50, 3)).astype("float32")
    task = compile_sources({"main": (text, "main.py", False)}, entry="main:run", name="mean", version="1")
    plain = {}
    exec(compile(text, "main.py", "exec"), plain)
    with vmhost.Host(allow_unsigned=True) as host:
        for run in (host.load(task), plain["run"]):
            got = numpy.asarray(run(samples))
            numpy.testing.assert_allclose(
                got, (samples - samples.mean(axis=0)) / samples.std(axis=0), rtol=1e-3, atol=1e-5
            )


def engine_settings(text, folder, capfd):
    script = f"{text}\nprint([backend[0] for backend in library.backends()] if library.backends() else '')"
    if "avx2" not in Path("/proc/cpuinfo").read_text():
        script = script.replace('"avx2"', '"portable"')
    assert "portable" in run_script(folder, script)


def compile_cloud(text, folder, capfd):
    command = re.sub(r" \[.*", "", text.strip())
    program, script, *arguments = shlex.split(command)
    assert program == "python"
    done = warm.run(ROOT / script, *arguments, cwd=folder, timeout=60)
    assert done.returncode == 0, done.stderr
    options = warm.run(ROOT / script, "--help", timeout=60).stdout
    assert [option for option in re.findall(r"--[a-z]+", text) if option not in options] == []


def executor(text, folder, capfd):
    assert run_script(folder, text) == "7.0\n[5.0, 9.0]\n"


def with_joblib(text, folder, capfd):
    assert run_script(folder, text) == "[5, 25]\n"


def with_dask(text, folder, capfd):
    text = text.replace("dask.compute(", "print(dask.compute(").rstrip() + ")\n"
    main = f"if __name__ == '__main__':\n    rows = [1, 2]\n{textwrap.indent(text, '    ')}"
    program = f"import dask\nimport vmhost.dask\n\n\ndef score(row):\n    return row + 1\n\n\n{main}"
    assert run_script(folder, program) == "(2, 3)\n"


def own_classes(text, folder, capfd):
    classes = """
import dataclasses
@dataclasses.dataclass
class Order:
    number: int
class Money:
    pass
"""
    task = folder / "orders"
    task.mkdir()
    (task / "task.yaml").write_text('name: orders\nversion: 1.0.0\nentry: main:run\npython: "3.14"\n')
    (task / "main.py").write_text(f"{classes}def run(order):\n    return Order(order.number + 1)\n")
    assert main(["compile", "orders", "-o", "build/orders.vmb"]) == 0
    to_plain = "to_plain = from_plain = lambda value: value\n"
    assert run_script(folder, f"import vmhost\n{classes}{to_plain}{text}\nprint(order)\n") == "Order(number=2)\n"


def host_yaml(text, folder, capfd):
    (folder / "host.yaml").write_text(text)
    (folder / "shop").mkdir()
    (folder / "shop" / "prices.py").write_text("def lookup(value):\n    return value\n")
    output = run_script(
        folder,
        "import vmhost\nwith vmhost.Host.from_file('host.yaml') as host:\n"
        "    task = host.task('digits')\n"
        "    print(task({'image': [0] * 64}))\n",
    )
    assert re.fullmatch(r"\d\n", output)


def task_yaml(text, folder, capfd):
    if "permissions: {read: []," not in text:
        text = 'name: digits\nversion: 1.2.0\nentry: main:run\npython: "3.14"\n' + text
    task = write_digits(folder, text)
    spec = read_task(task)
    assert (spec.name, spec.limits["memory_bytes"]) == ("digits", 64 << 20)
    assert spec.files == ("data/a.csv", "labels.json")


def stream_task_yaml(text, folder, capfd):
    task = write_digits(folder, 'name: digits\nversion: 1.2.0\nentry: main:run\npython: "3.14"\n' + text)
    spec = read_task(task)
    assert spec.trigger.on == (("page:item", "*", "page_exit"),)
    assert spec.table.key == "item"


def tunnel_commands(text, folder, capfd):
    """The server runs in the background, as it does for a reader with two terminals."""
    served, *sent = text.strip().splitlines()
    run_commands("vmhost tunnel certificates build/keys --device ann", capfd)
    program = [sys.executable, "-m", "vmhost", *shlex.split(served)[1:]]
    server = subprocess.Popen(
        program, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    )
    with server:
        try:
            assert "listening on 127.0.0.1:7443" in server.stdout.readline()
            assert run_commands("\n".join(sent), capfd).startswith("2 messages sent")
        finally:
            server.terminate()
    assert server.returncode == 0


def tunnel_in_python(text, folder, capfd):
    run_commands("vmhost tunnel certificates build/keys --device ann", capfd)
    output = run_script(folder, text)
    assert output == "True\n{'label': 7}\n{'label': 0}\nhello ann\n"


def cloud_commands(text, folder, capfd):
    """Set up as the page says, the server for a moment on a port of its own, and the page's next block over its API."""
    from vmhost.deployment.cloud.platform import Platform
    from vmhost.deployment.cloud.server import serving

    init, serve = text.strip().splitlines()
    output = run_commands(init, capfd)
    assert serve == "vmhost cloud serve cloud"
    [token] = [line for line in output.splitlines() if line.startswith("vmh_")]
    with Platform(folder / "cloud") as platform, serving(platform) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("VMHOST_PLATFORM", address)
        patch.setenv("VMHOST_TOKEN", token)
        run_commands(block("docs/deployment.md", "vmhost cloud repository"), capfd)
        assert {each["name"]: each["role"] for each in platform.access.accounts()} == {
            "admin": "admin",
            "ann": "releaser",
            "phones": "fleet",
        }
        assert platform.repositories.names() == ["shop"]


def alert_rules(text, folder, capfd):
    from vmhost.deployment.cloud.alerts import read_rules

    webhook, rules = read_rules(text)
    assert webhook.endswith("/alerts") and [rule.kind for rule in rules] == ["errors", "crashes", "adoption"]


def release_plan(text, folder, capfd):
    from vmhost.deployment.cloud.plan import Plan

    plan = Plan.read(text)
    assert len(plan.steps) == 4 and plan.steps[3].manual and plan.proof["calls"] == 20


def profile_header(text, folder, capfd):
    (folder / "state").mkdir()
    (folder / "state" / "profile").write_text("kitchen-1 abc")
    output = run_script(folder, f"{text}\nprint(headers, store.asked())")
    assert output == "{'vmhost-tasks': 'kitchen-1 abc'} True\n"


def agent_yaml(text, folder, capfd):
    from vmhost.deployment.device import settings

    (folder / "agent.yaml").write_text(text)
    read = settings.read(folder / "agent.yaml")
    assert (read.device, read.disk_bytes, read.folder) == ("kitchen-1", 512 << 20, folder / "state")


def shop_events(folder, capfd):
    """build/ipv.vmb and build/events.jsonl."""
    run_commands("vmhost compile tasks/ipv -o build/ipv.vmb", capfd)
    command = [sys.executable, "-m", "tasks.ipv.sessions", "--seed", "1", "--visits", "100"]
    with open("build/events.jsonl", "wb") as file:
        subprocess.run(command, cwd=ROOT, stdout=file, check=True, timeout=60)


def pipeline_by_http(text, folder, capfd):
    serves, posts = text.strip().splitlines()
    run_commands("vmhost init visits --example stream\nvmhost compile visits -o build/visits.vmb", capfd)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    program, *arguments = shlex.split(serves.replace("8400", port))
    assert program == "vmhost"
    server = subprocess.Popen(
        [sys.executable, "-m", "vmhost", *arguments],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        assert port in server.stderr.readline()
        program, url, _, header, _, body = shlex.split(posts.replace("8400", port))
        assert program == "curl" and posts.count("-H") == posts.count("--data-binary @") == 1
        name, _, value = header.partition(": ")
        request = urllib.request.Request(url, Path(body[1:]).read_bytes())
        request.add_header(name, value)
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["taken"] == 8
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 130
    finally:
        server.kill()
        server.communicate()


def dashboards(text, folder, capfd):
    """Each command prints its address, answers there, and ends: at Ctrl-C, and when no more calls come."""
    for command in text.strip().splitlines():
        arguments = shlex.split(command.replace("9464", "0"), comments=True)[1:]
        if "--dashboard" not in arguments:
            arguments += ["--listen", "127.0.0.1:0"]
        with subprocess.Popen(
            [sys.executable, "-m", "vmhost", *arguments],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        ) as process:
            try:
                url = next(line for line in process.stderr if line.startswith("Dashboard: ")).split()[1]
                request = urllib.request.Request(url.partition("?")[0] + "metrics")
                request.add_header("Authorization", "Bearer " + url.partition("token=")[2])
                with urllib.request.urlopen(request, timeout=60) as answer:
                    assert b'task="digits"' in answer.read()
                if "--dashboard" not in arguments:
                    process.send_signal(signal.SIGINT)
                process.stdin.close()
                for _ in process.stderr:
                    pass
                assert process.wait(60) == (0 if "--dashboard" in arguments else 130)
            finally:
                process.kill()


def dashboard_in_python(text, folder, capfd):
    (folder / "host.yaml").write_text("trust: keys\nload: [build/digits.vmb]\n")
    text = text.replace(":9464", ":0", 1).replace("# the host's work", "import urllib.request as r\n    ask()")
    ask = """
def ask():
    with r.urlopen(dashboard.url) as answer:
        print(b"digits" in answer.read())
"""
    text = text.replace("import vmhost\n", "import vmhost\n" + ask, 1)
    cookies = "r.install_opener(r.build_opener(r.HTTPCookieProcessor()))"
    text = text.replace("    ask()", f"    {cookies}\n    ask()")
    output = run_script(folder, text)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=\S+\nTrue\n", output)


def traces_in_python(text, folder, capfd):
    """There is no collector: calls go on, and this is reported once."""
    (folder / "host.yaml").write_text("trust: keys\nload: [build/digits.vmb]\n")
    text = text.replace("127.0.0.1:4318", "127.0.0.1:1")
    output = run_script(folder, f"pixels = [0] * 64\n{text}    print(future.traceparent)\n")
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01\n", output)


def task_that_counts(text, folder, capfd):
    sources = {"main": (text, "shop@1.0.0/main.py", False)}
    compiled = compile_sources(sources, entry="main:run", name="shop", version="1")
    with vmhost.Host(allow_unsigned=True) as host:
        host.load(compiled)({"kind": "new", "price": 5, "waiting": 2})
        found = {metric.name: metric.value for metric in host.statistics().tasks["shop"].metrics}
    assert found.pop("pricing_seconds") > 0
    assert found == {"orders": 1, "price_euros": 5, "waiting_orders": 2}


def debugging_in_yaml(text, folder, capfd):
    (folder / "host.yaml").write_text(text)
    with vmhost.Host.from_file(folder / "host.yaml") as host:
        assert host.policy.debugging.consent == "ask" and host.state == folder / "state"


def debugging_in_agent_yaml(text, folder, capfd):
    from vmhost.deployment.device.settings import read

    (folder / "agent.yaml").write_text(
        "device: kitchen-1\nplatform: http://127.0.0.1:8470\nfolder: state\nkeys: bundles.pub\n" + text
    )
    policy = read(folder / "agent.yaml").debugging
    assert policy == vmhost.DebugPolicy("ask", keys=str(folder / "debug.pub"))


def debugging_in_python(text, folder, capfd):
    assert run_script(folder, text) == "('config',)\ndigits\n"


def recording_in_yaml(text, folder, capfd):
    (folder / "host.yaml").write_text(text)
    with vmhost.Host.from_file("host.yaml") as host:
        assert host.policy.task.record.mask_patterns == ("email", "card")


def recording_in_python(text, folder, capfd):
    """The host's file is the one above it; the same bundle replays as it was."""
    (folder / "host.yaml").write_text("trust: keys\n")
    run_script(folder, text)
    [baseline] = (folder / "baselines").glob("digits-*.baseline")
    assert main(["replay", str(baseline), "--bundle", "build/digits.vmb", "--trust", "keys"]) == 0
    assert re.search(r"same +1\n", capfd.readouterr().out)


def scrape_configuration(text, folder, capfd):
    [job] = yaml.safe_load(text)["scrape_configs"]
    assert job["static_configs"][0]["targets"] == ["127.0.0.1:9464"]


def pipeline_yaml(text, folder, capfd):
    shop_events(folder, capfd)
    (folder / "pipeline.yaml").write_text(text.replace("8400", "0"))
    (folder / "token").write_text("0123456789abcdef")
    found = read_pipeline_yaml("pipeline.yaml")
    assert [source.name for source in found.sources] == ["log", "web"]
    with Pipeline.from_file("pipeline.yaml") as pipeline, Sources(pipeline, found.sources[:1]) as sources:
        assert sources.wait(60)
        assert pipeline.statistics()["position"] > 100


def outbox_is_drained(text, folder, capfd):
    put = "with Database('shop.db') as database:\n    Outbox(database).put('ipv/1/0', 'ipv', b'\\x80')\n"
    left = "with Database('shop.db') as database:\n    print(len(Outbox(database)))\n"
    output = run_script(folder, f"from vmhost.stores import Database, Outbox\n{put}{text}{left}")
    assert re.fullmatch(r"\[\('ipv/1/0', 'ipv', \d+, \{\}\)\]\n0\n", output)


def write_digits(folder, text):
    task = folder / "digits"
    (task / "data").mkdir(parents=True)
    for name in ("labels.json", "data/a.csv", "digits.onnx"):
        (task / name).touch()
    (task / "main.py").write_text("def run(value): return value\n")
    (task / "task.yaml").write_text(text)
    return task


def task_yaml_errors(text, folder, capfd):
    task = write_digits(
        folder,
        'name: digits\nversion: 1.2.0\nentry: main:run\npython: "3.14"\nlimits: {memory: lots}\n\n\n'
        "permissions:\n  emv: [LANG]\n",
    )
    with pytest.raises(TaskSpecError) as caught:
        read_task(task)
    assert [problem.partition("/task.yaml")[2] for problem in caught.value.problems] == [
        line.partition("/task.yaml")[2] for line in text.splitlines()
    ]


def verifier(text, folder, capfd):
    names = {}
    exec(compile(text, "docs/verifier.md", "exec"), names)
    assert names["code"].co_filename == "main.py"


def set_up(text, folder, capfd):
    namespace = {}
    (folder / "labels.json").write_text('["zero", "one"]')
    exec(compile(text, "docs/writing-tasks.md", "exec"), namespace)
    namespace["setup"]()
    assert namespace["labels"] == ["zero", "one"]


def without_a_vm(text, folder, capfd):
    """The test that the page shows, of the task that it shows above, by pytest and plain Python."""
    (folder / "main.py").write_text(block("docs/writing-tasks.md", "from vmhost.guest import"))
    (folder / "test_main.py").write_text(f"import main\n{text}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_main.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def asks_its_host(text, folder, capfd):
    task = compile_sources(
        {"main": (text, "main.py", False)},
        entry="main:run",
        name="asks",
        version="1",
        files={"table.csv": b"a,b"},
        permissions={"host": ["lookup"]},
    )
    with vmhost.Host(allow_unsigned=True, functions={"lookup": len}) as host:
        assert host.load(task)([1, 2, 3], timeout_s=30) == 3


def model_by_name(text, folder, capfd):
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["compile", "tasks/digits_cnn", "-o", "build/digits_cnn.vmb"]) == 0
    assert run_script(folder, f"{text}\nprint(model.inputs)").startswith("(Port(name='image'")


def shop_module(folder):
    """shop.py, as the page's first block has it; its events."""
    text = block("docs/streams.md", "# shop.py")
    (folder / "shop.py").write_text(text)
    names = {}
    exec(text, names)
    return names["events"]


def stream_of_events(text, folder, capfd):
    shop_module(folder)
    output = run_script(folder, text)
    assert output.splitlines() == [
        f"{key} {start} {start + 300_000} 1" for start in range(-240_000, 60_000, 60_000) for key in "ab"
    ]


def stream_with_state(text, folder, capfd):
    task = compile_sources({"main": (text, "main.py", False)}, entry="main:run", name="visits", version="1")
    with vmhost.Host(allow_unsigned=True) as host:
        run = host.load(task)
        first = run({"events": shop_module(folder), "state": None})
        assert first["rows"] == []
        later = run({"events": [{"name": "click", "time_ms": 4_000_000}], "state": first["state"]})
    assert later["rows"] == [{"began_ms": 1000, "events": 3}]


def two_streams(text, folder, capfd):
    shop_module(folder)
    assert run_script(folder, f"{text}\nprint(after_ms)") == "[3000]\n"


def columns_of_events(text, folder, capfd):
    found = ast.literal_eval(run_script(folder, f"{text}\nprint(means)"))
    assert found == pytest.approx([sum(number**0.5 for number in range(3, 7)) / 4] * 6, rel=0.01)


def make_targets(text, folder, capfd):
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)
    assert targets and [target for target in targets if f"make {target} " not in listed] == []


def device_image(text, folder, capfd):
    device_tools()
    make, run = text.strip().splitlines()
    run_commands(make, capfd)
    done = subprocess.run(shlex.split(run), cwd=folder, capture_output=True, text=True, timeout=120)
    assert re.fullmatch(r"\d\n", done.stdout), done.stderr


def a_gradient(text, folder, capfd):
    assert run_script(folder, f"{text}\nprint(value, gradient)").startswith("1.0 {'w': array([[-2.]")


def a_small_training(text, folder, capfd):
    check = """
import numpy, onnxruntime
(served,) = onnxruntime.InferenceSession(onnx).run(None, {"ids": numpy.asarray(ids)})
print(float(loss), float(abs(numpy.asarray(net(ids)) - served).max()))
"""
    trained, differs = run_script(folder, text + check).split()
    assert float(trained) < 0.5 and float(differs) < 1e-5 and (folder / "net.safetensors").exists()


def training_in_two_processes(text, folder, capfd):
    (one, keys), (other, rest) = ast.literal_eval(run_script(folder, text))
    assert max(one, other) < 0.6 and keys == rest == 64
    assert (folder / "saves/sharded-000001.json").exists()


def a_small_embedding(text, folder, capfd):
    check = "print(float(loss), (again.lookup(np.asarray([7])) == items.lookup(np.asarray([7]))).all(), len(again))"
    loss, same, rows = run_script(folder, f"{text}\n{check}").split()
    assert float(loss) < 0.65 and (same, rows) == ("True", "2")


def samples_of_a_run(text, folder, capfd):
    assert run_script(folder, text) == "(2,) False\n"


def profile_of_a_call(text, folder, capfd):
    (folder / "image.json").write_text(json.dumps({"image": [0] * 64}))
    command = shlex.split(text.splitlines()[0], comments=True)
    with contextlib.chdir(folder):
        assert main(command[1:]) == 0
    assert (folder / "where.svg").read_text().startswith("<svg")


def profile_in_python(text, folder, capfd):
    before = """
import vmhost
from vmhost.operations import flames
host = vmhost.Host(trust="keys")
digits = host.load("build/digits.vmb")
"""
    run_script(folder, before + text.replace("...  #", "digits({'image': [0] * 64})  #"))
    assert (folder / "where.svg").exists()


def coverage_in_python(text, folder, capfd):
    before = """
import vmhost
host = vmhost.Host(trust="keys", policy=vmhost.Policy(task=vmhost.TaskPolicy(coverage=1.0)))
host.load("build/digits.vmb")({'image': [0] * 64})
"""
    run_script(folder, before + text)
    assert '"run"' in (folder / "ran.json").read_text()


def coverage_report(text, folder, capfd):
    (folder / "ran.json").write_text('{"format": "vmhost coverage 1", "full": false, "functions": []}')
    arguments = shlex.split(text.replace("other-host.json", "").replace("tasks/digits", str(ROOT / "tasks" / "digits")))
    with contextlib.chdir(folder):
        assert main(arguments[1:]) == 0
    assert (folder / "report" / "index.html").exists()


def a_small_click_model(text, folder, capfd):
    check = """
state = runs.load("states")
print(state["step"], bool((state["model"]["out.weight"] == model.out.weight).all()))
"""
    assert run_script(folder, text + check) == "1 True\n"


def a_fine_tuned_model(text, folder, capfd):
    """As the body of a task's entry function."""
    import numpy
    from onnx import helper

    from tests import networks
    from vmhost.compiler import compile_folder

    nodes = [
        helper.make_node("Conv", ["image", "stem"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("GlobalAveragePool", ["c"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "fc.weight", "fc.bias"], ["logits"]),
    ]
    weights = {
        "stem": networks.values((4, 1, 3, 3)),
        "fc.weight": networks.values((4, 3)),
        "fc.bias": numpy.zeros(3, "f4"),
    }
    onnx = networks.graph(nodes, {"image": (2, 1, 8, 8)}, {"logits": (2, 3)}, weights)
    (folder / "state").mkdir()
    task = folder / "task"
    task.mkdir()
    (task / "digits.onnx").write_bytes(onnx)
    body = text.replace("\n", "\n    ").replace('"/var/lib/digits"', repr(str(folder / "state")))
    (task / "main.py").write_text(
        f"def run(value):\n    images, labels = value\n    image = images\n    {body}\n    return float(loss)\n"
    )
    (task / "task.yaml").write_text(
        'name: tuned\nversion: 1.0.0\nentry: main:run\npython: "3.14"\nmodels: {digits: digits.onnx}\n'
        f'trainable: {{digits: ["fc.*"]}}\npermissions: {{read: [{folder}/state], write: [{folder}/state]}}\n'
    )
    with vmhost.Host(allow_unsigned=True) as host:
        tuned = host.load(compile_folder(task).to_bytes())
        asked = networks.values((2, 1, 8, 8), 1), numpy.array([2, 0])
        assert tuned(asked) > tuned(asked) > 0


def a_served_version(text, folder, capfd):
    output = run_script(folder, text).splitlines()
    assert output[0].count("0.") == 4 and output[1].startswith("2 Statistics(version=2, calls=(1, 0), updates=1, ")


def tables_of_a_host(text, folder, capfd):
    run_script(folder, text)
    assert (folder / "saves" / "000001-full" / "items.safetensors").exists()


def features_in_yaml(text, folder, capfd):
    from vmhost.pipeline.features import Features, read_feature_file

    (folder / "features.yaml").write_text(text)
    assert list(Features(read_feature_file(folder / "features.yaml")).read("buyer", "ann", 0)) == [0, 0, 0]


def own_feature(text, folder, capfd):
    from vmhost.pipeline.features import read_feature_file

    (folder / "features.yaml").write_text(text)
    assert read_feature_file(folder / "features.yaml").features["spread"].task == "spread"


def features_in_python(text, folder, capfd):
    from vmhost.pipeline.features import Features

    names = {}
    exec(text, names)
    assert list(Features(names["declared"]).read("buyer", "ann", 0)) == [0, 0]


def reaching_people(text, folder, capfd):
    import yaml

    from vmhost.pipeline.reach.audience import audiences
    from vmhost.pipeline.reach.settings import channel_settings, task_settings

    settings = yaml.safe_load(text)
    channels = {name: channel_settings(name, one) for name, one in settings["channels"].items()}
    assert channels["phone"].caps[0].count == 3 and channels["offer"].then == ("layer", "phone")
    found = audiences(settings["audiences"], {"os": "android", "app": 21})
    assert sum(found["spring"].why_not(f"u{n}") is None for n in range(1000)) in range(60, 140)
    assert task_settings("recommend", settings["reach"]["recommend"])["priority"] == 7


def rule_of_patterns(text, folder, capfd):
    from vmhost.pipeline.complex_events import read_rule_file
    from vmhost.pipeline.patterns import PatternEngine

    (folder / "rule.yaml").write_text(text)
    (rule,) = read_rule_file(folder / "rule.yaml")
    assert PatternEngine().add(rule.name, rule.data, rule.by).automaton.within_ms == 600_000


def rule_in_python(text, folder, capfd):
    exec(compile(text, "docs/patterns.md", "exec"), {})
    assert "leaves_the_cart" in capfd.readouterr().out


def shown_only(text, folder, capfd):
    """A drawing, or messages that other tests check."""


def events_on_the_disk(text, folder, capfd):
    rows, ids, forgotten = run_script(folder, text).splitlines()
    assert rows == "[{'item': 'lamp', 'ms': 4200}]" and forgotten == "2 []"
    assert re.fullmatch(r"\['seen/[0-9a-f]{16}/2/0'\]", ids)


def script_with_packages(text, folder, capfd):
    graphs = "path_graph = range\ndef shortest_path(graph, first, last):\n    return list(graph)[first : last + 1]\n"
    with pytest.MonkeyPatch.context() as patched:
        wheels = folder_of_wheels(folder, patched)
        write_wheel(wheels, "networkx", "3.0", {"networkx.py": graphs})
        assert run_script(folder, text) == "[0, 1, 2, 3]\n"
    assert "networkx==3.0" in (folder / "script.requirements.lock").read_text()


BLOCKS = {
    ("README.md", "make demo"): make_targets,
    ("README.md", "import vmhost\n\n\ndef mean"): a_runaway_call,
    ("README.md", "[2.0, 5.0]"): shown_only,  # a_runaway_call
    ("README.md", "pip install"): shown_only,  # tests/test_installed.py
    ("README.md", "import vmhost\n\npixels"): a_task_in_a_host,
    ("docs/overview.md", "import vmhost.engine.numpy as np"): arrays_in_tasks,
    ("docs/architecture.md", "tasks/digits/ ── compile_cloud"): shown_only,
    ("docs/bundle.md", "python tools/compile_cloud.py"): compile_cloud,
    ("docs/bundle.md", "digits.vmb: compiled for Python 3.15"): shown_only,  # tests/bytecode/test_format.py
    ("docs/conformance.md", "make conformance"): make_targets,
    ("docs/gradients.md", "import vmhost.engine.numpy as np"): a_gradient,
    ("docs/training.md", "import vmhost.engine.numpy as np"): a_small_training,
    ("docs/training.md", "from vmhost import engine"): a_fine_tuned_model,
    ("docs/training.md", '"""Two processes'): training_in_two_processes,
    ("docs/embedding.md", "import vmhost.engine.numpy as np"): a_small_embedding,
    ("docs/embedding.md", "import vmhost\n"): tables_of_a_host,
    ("docs/features.md", "import vmhost.engine.numpy as np"): a_small_click_model,
    ("docs/features.md", "import pyarrow"): samples_of_a_run,
    ("docs/serving.md", "import vmhost.engine.numpy as np"): a_served_version,
    ("docs/packages.md", "make packages"): make_targets,
    ("docs/deployment.md", "vmhost cloud demo"): shown_only,  # tests/deployment/test_cloud_demo.py
    ("docs/deployment.md", "vmhost cloud init"): cloud_commands,
    ("docs/deployment.md", "vmhost cloud repository"): shown_only,  # the same trial runs it
    ("docs/deployment.md", "audience:"): release_plan,
    ("docs/deployment.md", "vmhost cloud backup"): shown_only,  # tests/deployment/test_backups.py
    ("docs/deployment.md", "device:"): agent_yaml,
    ("docs/deployment.md", "webhook: https"): alert_rules,
    ("docs/deployment.md", "from vmhost.deployment.device"): profile_header,
    ("docs/device-image.md", "vmhost image"): device_image,
    ("docs/engine.md", "# mean/main.py"): arrays_in_tasks,
    ("docs/engine.md", 'model = engine.load("decoder")'): shown_only,  # tests/engine/test_decoder_caches.py
    ("docs/engine.md", "from vmhost.engine import library"): engine_settings,
    ("docs/executor.md", "import vmhost"): executor,
    ("docs/executor.md", "import joblib"): with_joblib,
    ("docs/executor.md", "with vmhost.dask"): with_dask,
    ("docs/executor.md", "# /// script"): script_with_packages,
    ("docs/executor.md", "vmhost record"): shown_only,  # tests/vmhost/test_executor_packages.py
    ("docs/host-yaml.md", "trust: keys"): host_yaml,
    ("docs/host.md", "Task ------"): shown_only,
    ("docs/host.md", "types ="): own_classes,
    ("docs/features-of-events.md", "# features.yaml"): features_in_yaml,
    (
        "docs/features-of-events.md",
        "from vmhost.guest import host",
    ): shown_only,  # tests/pipeline/test_features_of_events.py
    ("docs/features-of-events.md", "features:\n  spread"): own_feature,
    ("docs/features-of-events.md", "import vmhost.engine.numpy"): shown_only,  # tests/pipeline/test_feature_windows.py
    ("docs/features-of-events.md", "from vmhost.pipeline.features import FeatureSet, feature"): features_in_python,
    ("docs/reach.md", "rules: [shop-rules.yaml]"): reaching_people,
    ("docs/reach.md", "vmhost reach test"): shown_only,  # tests/pipeline/test_reach.py
    ("docs/patterns.md", "name: leaves_the_cart"): rule_of_patterns,
    ("docs/patterns.md", "vmhost pipeline explain-rule"): shown_only,  # tests/pipeline/test_shop_rules.py
    ("docs/patterns.md", "from vmhost.pipeline.patterns.builder import Pattern"): rule_in_python,
    ("docs/pipeline-events.md", "from vmhost.pipeline.events"): events_on_the_disk,
    ("docs/streams.md", "from shop import events\nfrom vmhost.guest.stream import Reduce, Stream"): stream_of_events,
    ("docs/streams.md", "# visits/main.py"): stream_with_state,
    ("docs/streams.md", "from shop import events\nfrom vmhost.guest.stream import Stream, TimeWindow"): two_streams,
    ("docs/streams.md", "import vmhost.engine.numpy as np"): columns_of_events,
    ("docs/tokenizers.md", "# task.yaml"): shown_only,  # tests/engine/test_tokenizers.py, both
    ("docs/tokenizers.md", "import vmhost.engine.numpy as np"): shown_only,
    ("docs/tunnel.md", "vmhost tunnel serve"): tunnel_commands,
    ("docs/tunnel.md", "import threading"): tunnel_in_python,
    ("docs/tunnel.md", "async with AsyncPipeline.from_file"): shown_only,  # tests/tunnel/test_one_object.py
    ("docs/operations.md", "vmhost dashboard"): dashboards,
    ("docs/operations.md", "vmhost run build/digits.vmb"): profile_of_a_call,
    ("docs/operations.md", "with host.profile"): profile_in_python,
    ("docs/operations.md", "import vmhost\nfrom vmhost.operations import Dashboard"): dashboard_in_python,
    ("docs/operations.md", "import vmhost\nfrom vmhost.operations import OtlpExporter"): traces_in_python,
    ("docs/operations.md", "record:"): recording_in_yaml,
    ("docs/operations.md", "from vmhost.guest import metrics"): task_that_counts,
    ("docs/operations.md", "import vmhost\n\n"): recording_in_python,
    ("docs/operations.md", "vmhost serve build --settings"): shown_only,  # tests/operations/test_crash_reports.py
    ("docs/operations.md", "vmhost replay"): shown_only,  # tests/operations/test_baseline_replay.py
    ("docs/operations.md", "What held the memory:"): shown_only,  # tests/operations/test_memory_lines.py
    ("docs/operations.md", "host.coverage()"): coverage_in_python,
    ("docs/operations.md", "vmhost coverage ran.json"): coverage_report,
    ("docs/operations.md", "scrape_configs:"): scrape_configuration,
    ("docs/remote-debugging.md", "trust: keys   "): debugging_in_yaml,
    ("docs/remote-debugging.md", "tunnel: {address"): debugging_in_agent_yaml,
    ("docs/remote-debugging.md", "vmhost cloud debug"): shown_only,  # tests/deployment/test_debugging_by_agents.py
    ("docs/remote-debugging.md", "trust: keys\n"): debugging_in_yaml,
    ("docs/remote-debugging.md", "import vmhost\n"): debugging_in_python,
    # tests/operations/test_debugging_over_http.py runs these
    ("docs/remote-debugging.md", "vmhost serve build --settings"): shown_only,
    ("docs/remote-debugging.md", "vmhost debug open LINK"): shown_only,
    ("docs/remote-debugging.md", "vmhost debug consent state"): shown_only,
    ("docs/pipeline.md", "trigger:"): stream_task_yaml,
    ("docs/pipeline.md", "vmhost pipeline run build/web"): pipeline_by_http,
    ("docs/pipeline-yaml.md", "folder: data/shop"): pipeline_yaml,
    ("docs/pipeline-events.md", "from vmhost.pipeline.values import unpack"): outbox_is_drained,
    ("docs/task-yaml.md", "tasks/x/task.yaml:5:"): task_yaml_errors,
    ("docs/task-yaml.md", "name: digits"): task_yaml,
    ("docs/verifier.md", "import marshal"): verifier,
    ("docs/verifier.md", "digits.vmb: module main: function f"): shown_only,  # tests/bytecode/test_verifier.py
    ("docs/writing-tasks.md", "import json"): set_up,
    ("docs/writing-tasks.md", "limits: {memory"): task_yaml,
    ("docs/writing-tasks.md", "from vmhost.guest import"): asks_its_host,
    ("docs/writing-tasks.md", "from vmhost.guest.testing import"): without_a_vm,
    ("docs/writing-tasks.md", "from vmhost import engine"): model_by_name,
}


@pytest.mark.parametrize(("page", "first"), BLOCKS, ids=[f"{page}:{first[:24]}" for page, first in BLOCKS])
def test_a_block_does_what_it_says(page, first, folder, capfd):
    BLOCKS[page, first](block(page, first), folder, capfd)


def test_no_block_goes_untried():
    followed = {str(path.relative_to(ROOT)) for path in SELF_CONTAINED}
    untried = [
        (page, text.splitlines()[0])
        for page in PAGES
        for kind, text in blocks(page)
        if not (pages.is_followed(kind, text) and (page in followed or kind == "console"))
        and not any(page == known and text.startswith(first) for known, first in BLOCKS)
    ]
    assert untried == []


def test_a_task_runs_without_a_vm_as_the_docs_say():
    [command] = re.findall(
        r"`cd digits && python -c \"(.*?)\"`", (ROOT / "docs/writing-tasks.md").read_text(), re.DOTALL
    )
    done = warm.run("-c", command.replace("\n", " "), cwd=ROOT / "tasks" / "digits", timeout=60)
    assert done.returncode == 0, done.stderr
    assert isinstance(ast.literal_eval(done.stdout), int)


def test_every_page_that_is_named_is_there():
    missing = []
    for page in ALL_PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text(encoding="utf-8")):
            if not (ROOT / page).parent.joinpath(target).exists():
                missing.append((page, target))
    assert missing == []


def test_every_vmhost_command_that_a_page_names_has_its_options(capfd):
    """Commands in running text and tables too: `vmhost run x.vmb --each`."""
    helps, wrong = {}, []
    for page in ALL_PAGES:
        for span in re.findall(r"`(vmhost [a-z][^`\n]*)`", (ROOT / page).read_text(encoding="utf-8")):
            # with the word behind it where that names a command of a group, such as `keys new`
            command = " ".join(re.match(r"vmhost ([a-z]+)(?: ([a-z]+(?:-[a-z]+)*)(?= |$))?", span).groups(""))
            if command not in helps:
                capfd.readouterr()
                main([*command.split(), "--help"])
                helps[command] = capfd.readouterr().out
            options = re.findall(r"(?<![\w-])--[a-z][a-z-]*", span)
            if not helps[command] or [option for option in options if option not in helps[command]]:
                wrong.append((page, span))
    assert len(helps) >= 6 and wrong == []
