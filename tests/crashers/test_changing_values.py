"""Values whose own code runs while they cross, and changes what holds them: the encoder walked freed memory."""

from tests.hosts import in_a_process

# For the host and the guest: a value, of each shape, that changes itself at each moment when code of it runs.
VALUES = '''
class Item:
    """Lends a few bytes, and acts at one of the moments when the encoder has its code run."""

    def __init__(self, act, moment="__buffer__"):
        self.act, self.moment = act, moment

    def at(self, moment):
        if self.moment == moment:
            self.act()

    def __buffer__(self, flags):
        self.at("__buffer__")
        return memoryview(b"item")

    def __release_buffer__(self, view):
        self.at("__release_buffer__")

    def __getattr__(self, name):
        if name in ("__array_interface__", "__dlpack__"):
            self.at(name)
        raise AttributeError(name)

    def __del__(self):
        self.at("__del__")


MOMENTS = ["__buffer__", "__release_buffer__", "__array_interface__", "__dlpack__", "__del__"]


def list_cleared(moment):
    made = []
    made += [Item(made.clear, moment), *(["text %d" % n] for n in range(100))]
    return made

def list_longer(moment):
    made = []
    made += [Item(lambda: made.extend(range(100_000)), moment), *(["text %d" % n] for n in range(100))]
    return made

def list_other(moment):
    made = []
    made += [Item(lambda: made.__setitem__(slice(None), [[n] for n in range(101)]), moment),
             *(["text %d" % n] for n in range(100))]
    return made

def inner_list(moment):
    made = []
    def act():
        made.clear()
        [bytes(5000) for _ in range(1000)]
    made.append([[[Item(act, moment), *(["text %d" % n] for n in range(100))]]])
    return made

def dict_cleared(moment):
    made = {}
    made["first"] = Item(made.clear, moment)
    made |= {"key %d" % n: ["text %d" % n] for n in range(100)}
    return made

def dict_longer(moment):
    made = {}
    made["first"] = Item(lambda: made.update(dict.fromkeys(range(10_000))), moment)
    made |= {"key %d" % n: ["text %d" % n] for n in range(100)}
    return made

def dict_turned(moment):
    made = {}
    def act():
        for key in list(made):
            made[key + "!"] = made.pop(key)
    made["first"] = Item(act, moment)
    made |= {"key %d" % n: ["text %d" % n] for n in range(100)}
    return made

def key_that_clears(moment):
    made = {}
    made[Item(made.clear, moment)] = ["text"]
    made |= {n: ["text %d" % n] for n in range(100)}
    return made

def set_cleared(moment):
    made = set()
    made |= {Item(made.clear, moment), *(("text %d" % n,) for n in range(100))}
    return made

def tuple_of_all(moment):
    return list_cleared(moment), dict_cleared(moment), ("x" * 100_000, b"y" * 100_000, Item(lambda: None, moment))

SHAPES = [list_cleared, list_longer, list_other, inner_list, dict_cleared, dict_longer, dict_turned, key_that_clears,
          set_cleared, tuple_of_all]
'''

GUEST = (
    VALUES
    + """
from vmhost.guest import host

def run(which):
    shape, moment = which
    return SHAPES[shape](MOMENTS[moment])

def through_a_function(which):
    shape, moment = which
    return host.take(SHAPES[shape](MOMENTS[moment]))

def take(value):
    return len(value)

def anything(value):
    return None
"""
)


def test_what_changes_while_it_crosses_is_refused_or_whole():
    done = in_a_process("""
        from tests.crashers.test_changing_values import GUEST, VALUES
        exec(VALUES)

        def tried(name, act):
            for shape in range(len(SHAPES)):
                for moment in range(len(MOMENTS)):
                    try:
                        act(shape, moment)
                        said = "crossed"
                    except vmhost.VMHostError as error:
                        text = str(error)
                        said = ("refused" if "changed while" in text
                                or "as a dict's key or a set's item" in text else text)
                    print(name, SHAPES[shape].__name__, MOMENTS[moment], said, flush=True)

        never = Policy(task=TaskPolicy(breaker=BreakerPolicy(enabled=False)))
        with vmhost.Host(allow_unsigned=True, functions={"take": len}, policy=never) as host:
            task = host.load(bundle(GUEST, permissions={"host": ["take"]}))
            tried("result", lambda *which: task(which))
            tried("function", lambda *which: task(which, entry="main:through_a_function"))
            tried("argument", lambda shape, moment: task(SHAPES[shape](MOMENTS[moment]), entry="main:take"))
            lane = task._current.lane
            tried("map", lambda shape, moment: lane.map(SHAPES[shape](MOMENTS[moment]), entry="main:anything"))
            tried("submit_many",
                  lambda shape, moment: [call.result() for call in lane.submit_many(SHAPES[shape](MOMENTS[moment]),
                                                                                    entry="main:anything")])
            print(task((9, 4))[2][:2] == ("x" * 100_000, b"y" * 100_000))
    """)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, whole = done.stdout.splitlines()
    assert whole == "True" and len(lines) == 250
    outcomes = {tuple(line.split(None, 3)[:3]): line.split(None, 3)[3] for line in lines}
    assert set(outcomes.values()) == {"crossed", "refused"}
    for crossing in "result", "function", "argument", "map", "submit_many":
        assert (
            outcomes[crossing, "list_cleared", "__buffer__"]
            == outcomes[crossing, "inner_list", "__buffer__"]
            == "refused"
        )
    for crossing in "result", "function", "argument":
        for shape in "list_longer", "dict_cleared", "dict_longer":
            for moment in "__buffer__", "__release_buffer__", "__array_interface__", "__dlpack__":
                # memory lent by the host is returned later, when a change does no harm
                crosses = crossing == "argument" and moment == "__release_buffer__"
                assert outcomes[crossing, shape, moment] == ("crossed" if crosses else "refused"), (
                    crossing,
                    shape,
                    moment,
                )
