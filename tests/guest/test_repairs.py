"""Types that VMs repair process-wide are in the host what they were."""

from tests.hosts import in_a_process

SCRIPT = """
class Before(StopIteration):
    pass

def results():
    class Own(StopIteration):
        def __new__(cls, *values):
            return super().__new__(cls, *values)

    class Within(Before):
        def __new__(cls, *values):
            return super().__new__(cls, *values)

    def told(make):
        try:
            return repr(make()), make().value
        except Exception as error:
            return type(error).__name__

    return [told(make) for make in (
        lambda: StopIteration(3), lambda: StopIteration.__new__(StopIteration, 3),
        lambda: Own(3), lambda: Own.__new__(Own),
        lambda: Before(3), lambda: Before.__new__(Before), lambda: Within(3), lambda: StopIteration.__new__(Before, 3),
        lambda: StopIteration.__new__(), lambda: StopIteration.__new__(int), lambda: type("Made", (Before,), {})(3))]

def plain():
    def numbers():
        yield 1
        return 2
    def outer():
        return (yield from numbers())
    return list(outer()), super(Before, Before(1)).args

before = results(), plain()
for _ in range(2):
    with vmhost.Host(allow_unsigned=True) as host:
        assert host.load(bundle("def run(value): return value"))(1) == 1
print((results(), plain()) == before, before[0][1], before[0][3], (results(), plain()), sep="\\n")
"""


def test_stop_iteration_is_in_the_host_what_it_was():
    done = in_a_process(SCRIPT)
    assert done.stdout.splitlines()[:3] == ["True", "('StopIteration(3)', None)", "('Own()', None)"], (
        done.stdout + done.stderr
    )
