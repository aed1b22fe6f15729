"""A secret in all its forms goes through a host that records, logs, shows pages and crashes: nothing that is kept or
shown has it in a readable form."""

import html
import json
import signal
import urllib.parse

from tests.hosts import in_a_process
from tests.vmhost.test_masking_forms import DATA, INSIDE, NAMED, PLACES, SECRET, WRITTEN
from vmhost.operations.crash_reports import CrashFolder

TASK = """
import threading
from vmhost.guest import host, log

def run(value):
    if "say" in value:
        log.warning(value["say"])
        raise RuntimeError("cannot do " + value["say"])
    if "go" in value:
        return host.go(threading.get_native_id())
    return {"heard": host.hear(value), "given": value}
"""
SAID = """
    import ctypes, http.client
    from tests.operations.test_secrets_everywhere import FORMS, NAMED, PAGES, SECRET, TASK
    from vmhost.operations import Dashboard
    from vmhost.operations.otlp import _LogLines

    folder = sys.argv[1]
    record = vmhost.RecordPolicy(folder + "/records", share=1.0, mask_fields=("password",))
    policy = Policy(task=TaskPolicy(record=record, breaker=BreakerPolicy(enabled=False)))
    functions = {"hear": lambda value: value, "go": lambda thread: ctypes.CDLL(None).tgkill(os.getpid(), thread, 11)}
    host = vmhost.Host(allow_unsigned=True, state=folder + "/state", functions=functions, policy=policy)
    task = host.load(bundle(TASK, "worker", permissions={"host": ["hear", "go"]}))
    with Dashboard(host, "127.0.0.1:0") as dashboard:
        for form in FORMS:
            task({"form": form})
        for line in NAMED.values():
            try:
                task({"say": line})
            except vmhost.TaskError as error:
                assert "cannot do" in str(error)
        with open(folder + "/pages", "w") as shown:
            for page in PAGES:
                connection = http.client.HTTPConnection(dashboard.address, dashboard.port, timeout=60)
                connection.request("GET", page, headers={"Authorization": "Bearer " + dashboard.token})
                answer = connection.getresponse()
                assert answer.status == 200, page
                shown.write(answer.read().decode())
                connection.close()
    task({"go": 1, "password": SECRET})
    time.sleep(60)
"""
FORMS = [place(text) for place in PLACES.values() for text in WRITTEN.values()]
FORMS += [value for name, value in INSIDE.items() if name != "packed junk"]  # which crosses no wall
PAGES = ("/", "/log", "/part/log", "/tasks/worker", "/part/tasks/worker", "/tasks.json", "/vms", "/settings")
READABLE = {text.strip("\"'").partition("a=")[2] or text.strip("\"'") for text in WRITTEN.values()}
READABLE |= {SECRET[:5], "wo\\rd/7", "ss wo", urllib.parse.quote(SECRET)[-8:], DATA.hex()[4:]}


def readable(text):
    return {form for form in READABLE if form in text}


def test_no_form_of_a_secret_is_readable(tmp_path):
    assert len(FORMS) >= 48
    done = in_a_process(SAID, tmp_path)
    assert done.returncode == -signal.SIGSEGV, done.stderr
    crashes = CrashFolder(tmp_path / "state")
    crashes.take_dump()
    (report,) = crashes.collect()
    pages = html.unescape((tmp_path / "pages").read_text())
    assert pages.count("masked-") > len(NAMED) and readable(pages) == set()
    assert any("masked-" in line for line in report.log)
    kept = [path for name in ("records", "state") for path in (tmp_path / name).rglob("*") if path.is_file()]
    assert {path.suffix for path in kept} >= {".baseline", ".json"}
    for path in kept:
        content = path.read_bytes().decode(errors="backslashreplace")
        assert readable(content) == set(), path
        if path.suffix == ".json":
            assert readable(json.dumps(json.loads(content), ensure_ascii=False)) == set(), path
