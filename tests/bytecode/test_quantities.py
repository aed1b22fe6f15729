"""Times and sizes have one syntax in every file and on the command line."""

import json
import re

import pytest
from hypothesis import given, strategies

from vmhost import ConfigurationError, limits
from vmhost.bytecode import kinds, quantities
from vmhost.bytecode.either import Milliseconds, time_text
from vmhost.bytecode.spec import read_task
from vmhost.deployment.cloud import audience
from vmhost.guest import stream
from vmhost.pipeline.features import definitions
from vmhost.settings import pages

TIMES = {"us": 1, "ms": 1000, "s": 10**6, "min": 60 * 10**6, "h": 3600 * 10**6, "d": 86_400 * 10**6}
SIZES = {"B": 1, "kB": 1000, "MB": 10**6, "GB": 10**9, "TB": 10**12}
SIZES |= {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def written(units):
    number = strategies.integers(1, 10**4).map(str)
    letters = strategies.sampled_from(sorted(units)).flatmap(
        lambda unit: strategies.sampled_from([unit, unit.lower(), unit.upper()]).map(lambda text: (unit, text))
    )
    return strategies.tuples(number, strategies.sampled_from(["", " ", "  "]), letters)


def task_yaml(tmp_path, limits_text):
    (tmp_path / "main.py").write_text("def run(value):\n    return value\n")
    (tmp_path / "task.yaml").write_text(
        f"name: t\nversion: '1'\nentry: main:run\npython: '3.14'\nlimits: {{{limits_text}}}\n"
    )
    return read_task(tmp_path).limits


def fields(kind):
    """(file and key, reader) of each setting of that kind in the tables of files."""

    def below(section, where):
        for each in section.settings.values():
            inner, key = each.kind.of({}), f"{where} {each.key}"
            inner = getattr(inner, "item", inner)
            if isinstance(inner, kinds.Section):
                yield from below(inner, key)
            elif isinstance(inner, kind):
                yield key, inner

    return {key: found for name, table in pages.TABLES.items() for key, found in below(table.section, name)}


TIME_FIELDS, SIZE_FIELDS = fields(kinds.Time), fields(kinds.Size)
TO_SECONDS = [
    quantities.seconds, limits.seconds
]  # fmt: skip
TO_MS = [
    (quantities.milliseconds, ValueError),
    (stream.milliseconds, stream.StreamError),
    (definitions._Time().given, kinds.Refused),
]  # fmt: skip


@given(written(TIMES))
def test_a_time_means_the_same_to_every_reader(parts):
    number, space, (unit, letters) = parts
    text, microseconds = f"{number}{space}{letters}", int(number) * TIMES[unit]
    assert re.search(quantities.TIME_PATTERN, text)
    for read in TO_SECONDS:
        assert read(text) == microseconds / 10**6
    for key, kind in TIME_FIELDS.items():
        found = microseconds / (1000 if isinstance(kind, Milliseconds) else 10**6)
        found = int(found) if isinstance(kind, Milliseconds) and found == int(found) else found
        if kind.accepts(found):
            assert kind.given(text) == found, key
        else:
            with pytest.raises(kinds.Refused):
                kind.given(text)
    for read, error in TO_MS:
        if microseconds % 1000:
            with pytest.raises(error, match="whole") as refused:
                read(text)
            assert str(refused.value).count("expected") == 1
        else:
            assert read(text) == microseconds // 1000


@given(written(SIZES))
def test_a_size_means_the_same_to_every_reader(parts):
    number, space, (unit, letters) = parts
    text, size = f"{number}{space}{letters}", int(number) * SIZES[unit]
    assert re.search(quantities.SIZE_PATTERN, text)
    for read in (quantities.byte_count, limits.byte_count, audience.size):
        assert read(text) == size
    for key, kind in SIZE_FIELDS.items():
        if kind.accepts(size):
            assert kind.given(text) == size, key
        else:
            with pytest.raises(kinds.Refused):
                kind.given(text)


def test_the_files_with_a_schema_take_the_same(tmp_path):
    found = task_yaml(tmp_path, "memory: 64mib, wall_time: 1500 MS, cpu_time: '0.5d', stack: 2 mb")
    assert found == {
        "memory_bytes": 64 << 20, "wall_time_s": 1.5, "cpu_time_s": 43_200.0, "stack_bytes": 2_000_000
    }  # fmt: skip
    for path in filter(None, (table.schema for table in pages.TABLES.values())):
        patterns = set(re.findall(r'"pattern": ("\^ \*[^\n]*?\$")', path.read_text()))
        assert patterns and {json.loads(one) for one in patterns} <= {quantities.TIME_PATTERN, quantities.SIZE_PATTERN}


@pytest.mark.parametrize(
    "text",
    ["", "5", "s", "5 parsecs", "-5 s", "5 s x", "1e3 s", "٣ s", "5.s", ".5 s", "9" * 1001 + " s", None, [], b"5 s"],
)
def test_what_is_no_quantity_is_none(text):
    assert quantities.seconds(text) is quantities.milliseconds(text) is quantities.byte_count(text) is None
    with pytest.raises(ConfigurationError, match="such as"):
        limits.seconds(text)


@pytest.mark.parametrize(
    ("time_ms", "text"), [(1_800_000, "30 min"), (86_400_000, "1 d"), (90_000, "90 s"), (1500, "1500 ms"), (0, "0 s")]
)
def test_a_time_is_shown_as_a_file_has_it(time_ms, text):
    assert time_text(time_ms) == text
    assert quantities.milliseconds(text) == time_ms
