"""A VM was abandoned in a long C call, which returned while the process exited: the VM began to end, imported modules
for that, and crashed beside CPython's own finalization."""

from tests.hosts import in_a_process

GUEST = """
import time

def setup():
    pass

def run(seconds):
    began = time.perf_counter()
    sum(range(10**6))
    rounds = seconds / (time.perf_counter() - began)
    sum(range(int(10**6 * rounds)))

def teardown():
    open({mark!r}, "w").close()
"""


def test_nothing_of_a_task_runs_beside_the_end_of_the_process(tmp_path):
    mark = tmp_path / "mark"
    script = f"""
        import time
        import vmhost
        from tests.hosts import bundle

        class Slow:
            '''Keeps CPython's end from going on until the VM is out of its C call.'''
            def __init__(self, sleep):
                self.sleep = sleep
            def __del__(self):
                self.sleep(6)

        slow = Slow(time.sleep)
        guest = {GUEST.format(mark=str(mark))!r}
        with vmhost.Host(allow_unsigned=True, policy=vmhost.Policy(grace_s=1e-3)) as host:
            task = host.load(bundle(guest, permissions={{"write": [{str(tmp_path)!r}]}}))
            try:
                task(3, timeout_s=0.2)
            except vmhost.VMHostError as error:
                print(type(error).__name__)
    """
    done = in_a_process(script, PYTHONFAULTHANDLER="1")
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stdout.strip() in ("TimeLimitError", "VMLostError")
    assert not mark.exists(), "the task's teardown ran"
