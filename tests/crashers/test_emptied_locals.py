"""CPython 3.14: a handler that used `text` after `text += more` had run out of memory crashed the process.

The addition leaves `text` without a value, and the compiler takes it for assigned.
"""

import re

from tests.hosts import in_a_process

# A stop follows the MemoryError: a variant can crash only before its next jump back or call of Python code.
GUEST = """
def run(name):
    more = "x" * (20 << 20)
    return VARIANTS[name]("a", ["b"] * 40 + [more] * 20)    # specialised before the long ones come

def in_the_handler(text, parts):
    try:
        for part in parts:
            text += part
    except MemoryError:
        kept = text
        return [kept]

def written_out(text, parts):
    try:
        for part in parts:
            text = text + part
    except MemoryError:
        return text.upper()

def of_another_local(text, parts):
    made = ""
    try:
        for part in parts:
            made = text
            made = made + part
            text = made
    except MemoryError:
        return made.upper()

def two_at_once(text, parts):
    try:
        for part in parts:
            text += part
    except MemoryError:
        return parts, text

def after_the_statement(text, parts):
    try:
        for part in parts:
            text += part
    except MemoryError:
        pass
    return text.upper()

def in_a_finally(text, parts):
    try:
        for part in parts:
            text += part
    finally:
        text.upper()

def around_the_loop(text, parts):
    while True:
        try:
            for part in parts:
                text += part
        except MemoryError:
            break
    return text.upper()

def around_a_with(text, parts):
    try:
        with memoryview(b""):
            for part in parts:
                text += part
    except MemoryError:
        return text.upper()

def in_a_generator(text, parts):
    def pieces(text):
        try:
            yield None
            for part in parts:
                text += part
        except MemoryError:
            yield text.upper()
    return list(pieces(text))

def in_a_coroutine(text, parts):
    async def added(text):
        try:
            for part in parts:
                text += part
        except MemoryError:
            return text.upper()
    try:
        added(text).send(None)
    except StopIteration as done:
        return done.value

def in_a_group(text, parts):
    try:
        for part in parts:
            text += part
    except* MemoryError:
        text.upper()

def raised_again(text, parts):
    try:
        try:
            for part in parts:
                text += part
        except MemoryError:
            raise
    except MemoryError:
        return text.upper()

def in_a_comprehension(text, parts):
    try:
        for part in parts:
            text += part
    except MemoryError:
        return {text: None for _ in (1,)}

def in_a_closure(text, parts):
    def added(text):
        nonlocal parts
        try:
            for part in parts:
                text += part
        except MemoryError:
            parts = text.upper()
    return added(text)

def of_many_locals(text, parts):
LOCALS
    try:
        for part in parts:
            text += part
    except MemoryError:
        return text.upper()

# these held before: a cell is no fast local, and a frame's variables are looked up one by one

def in_a_cell(text, parts):
    def inner():
        return text
    try:
        for part in parts:
            text += part
    except MemoryError:
        return inner()

def in_another_frame(text, parts):
    def added(text):
        for part in parts:
            text += part
    try:
        added(text)
    except MemoryError as error:
        return dict(error.__traceback__.tb_next.tb_frame.f_locals)

VARIANTS = {name: value for name, value in globals().items() if name != "run" and callable(value)}
""".replace("LOCALS", "\n".join(f"    local{n} = {n}" for n in range(80)))

NAMES = [
    line[4 : line.index("(")] for line in GUEST.splitlines() if line.startswith("def ") and line != "def run(name):"
]


def test_a_handler_that_uses_an_emptied_local_does_not_crash():
    script = """
        from tests.crashers.test_emptied_locals import GUEST, NAMES
        for name in NAMES:
            print(name, flush=True)
            with vmhost.Host(allow_unsigned=True) as host:
                task = host.load(bundle(GUEST, limits={"memory": "128 MiB"}))
                try:
                    task(name)
                except vmhost.VMHostError:
                    pass
    """
    done = in_a_process(script, PYTHONFAULTHANDLER="1")
    begun = re.findall(r"^\w+$", done.stdout, re.MULTILINE)
    assert done.returncode == 0, f"status {done.returncode} in {begun[-1:]}\n{done.stderr}"
    assert begun == NAMES
