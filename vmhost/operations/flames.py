"""A profile in common formats: flame graphs (SVG), speedscope's JSON, pprof's protocol buffers, and folded stacks, one
per line.

All of them show CPU time or wall time: `measure` is "cpu" or "wall".
"""

import gzip
import json
import zlib
from html import escape
from pathlib import Path

MEASURES = {"cpu": "CPU time", "wall": "time in calls"}
_WIDTH, _ROW, _CHARACTER = 1200, 18, 6.6  # pixels; of the graph, a row, and a character
_MIN_WIDTH = 0.4  # pixels of width; narrower frames are not drawn


def folded(profile, measure="cpu"):
    """One line per stack: "task@version;function (file:line);... MICROSECONDS", for flamegraph.pl and others."""
    lines = {}
    for stack, node in profile.stacks():
        key = ";".join(_label(frame).replace(";", ":") for frame in stack)
        lines[key] = lines.get(key, 0) + _time(node, measure)
    return "".join(f"{key} {round(spent * 1e6)}\n" for key, spent in sorted(lines.items()))


def speedscope(profile):
    """The JSON file for speedscope.app: one profile each for CPU and wall time."""
    numbers, frames = {}, []
    for node in profile.nodes:
        if node.frame not in numbers:
            numbers[node.frame] = len(frames)
            known = {"name": node.frame.name, "file": node.frame.file, "line": node.frame.line}
            frames.append({key: value for key, value in known.items() if value})
    stacks = [([numbers[frame] for frame in stack], node) for stack, node in profile.stacks()]
    profiles = []
    for measure, title in MEASURES.items():
        weights = [_time(node, measure) for _, node in stacks]
        profiles.append(
            {
                "type": "sampled",
                "name": title,
                "unit": "seconds",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": [stack for stack, _ in stacks],
                "weights": weights,
            }
        )
    schema = "https://www.speedscope.app/file-format-schema.json"
    document = {"$schema": schema, "shared": {"frames": frames}, "profiles": profiles, "exporter": "vmhost"}
    return json.dumps(document)


def pprof(profile):
    """The bytes of a file for `go tool pprof` and others: profile.proto, compressed; samples, CPU and wall time in
    nanoseconds, and the task's version as the label "task"."""
    texts, functions, locations = {"": 0}, {}, {}
    text = lambda value: texts.setdefault(value, len(texts))
    parts = []
    for kind, unit in (("samples", "count"), ("cpu", "nanoseconds"), ("wall", "nanoseconds")):
        parts.append(_field(1, _field(1, text(kind)) + _field(2, text(unit))))
    for stack, node in profile.stacks():
        numbers = []
        for frame in reversed(stack):
            function = functions.setdefault((frame.name, frame.file), len(functions) + 1)
            numbers.append(locations.setdefault((function, frame.line), len(locations) + 1))
        values = (node.samples, round(node.cpu_s * 1e9), round(node.wall_s * 1e9))
        label = _field(1, text("task")) + _field(2, text(stack[0].name))
        parts.append(_field(2, _field(1, _packed(numbers)) + _field(2, _packed(values)) + _field(3, label)))
    for (function, line), number in locations.items():
        parts.append(_field(4, _field(1, number) + _field(4, _field(1, function) + _field(2, line))))
    for (name, file), number in functions.items():
        parts.append(
            _field(5, _field(1, number) + _field(2, text(name)) + _field(3, text(name)) + _field(4, text(file)))
        )
    parts.append(_field(10, round(profile.span_s * 1e9)))
    parts.append(_field(14, text("cpu")))
    parts.extend(_field(6, value.encode()) for value in texts)
    return gzip.compress(b"".join(parts), mtime=0)


def flame_graph(profile, measure="cpu", task=None, *, links=None):
    """A flame graph as SVG text, callers above callees; the width of a frame is its time. `task`: only this
    "task@version". `links`: a function from the frames of a stack to the address that its frame links to."""
    root = _merged(profile, measure, task)
    total = root.time
    drawn, depth = [], 0
    waiting = [(root, 0.0, 0, ())]
    while waiting:
        node, left, level, path = waiting.pop()
        depth = max(depth, level)
        drawn.append((node, left, level, path))
        for child in sorted(node.children.values(), key=lambda child: child.label):
            width = child.time / total * _WIDTH if total else 0
            if width >= _MIN_WIDTH:
                waiting.append((child, left, level + 1, (*path, child.label)))
            left += width
    height = (depth + 1) * _ROW + 8
    shares = "".join(_rectangle(*item, total, links) for item in drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'font-family="ui-monospace, monospace" font-size="11" role="img" '
        f'aria-label="Flame graph of {MEASURES[measure]}, {total:.3g} s">\n'
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>\n{shares}</svg>\n'
    )


def form_of(path):
    """The writer for the format that a file name asks for: .svg, .json or .speedscope (speedscope), .pb.gz or .pprof
    (pprof), .txt or .folded (folded stacks). ValueError for another name."""
    name = Path(path).name.lower()
    for ends, writer in _FORMS.items():
        if name.endswith(ends):
            return writer
    known = ", ".join(end for ends in _FORMS for end in ends)
    raise ValueError(f"{path}: expected a name that ends in one of {known}")


def write(profile, path, measure="cpu"):
    """Writes the profile to `path`, in the format of form_of()."""
    data = form_of(path)(profile, measure)
    Path(path).write_bytes(data if isinstance(data, bytes) else data.encode())


_FORMS = {
    (".svg",): flame_graph,
    (".json", ".speedscope"): lambda profile, measure: speedscope(profile),
    (".pb.gz", ".pprof"): lambda profile, measure: pprof(profile),
    (".txt", ".folded"): folded,
}


class _Node:
    __slots__ = ("children", "label", "time")

    def __init__(self, label):
        self.label, self.time, self.children = label, 0.0, {}


def _merged(profile, measure, task):
    """The tree of drawn frames; lines of one function are one frame."""
    root = _Node("all tasks" if task is None else task)
    for stack, node in profile.stacks():
        if task is not None and stack[0].name != task:
            continue
        spent = _time(node, measure)
        if spent <= 0:
            continue
        at = root
        at.time += spent
        for frame in stack if task is None else stack[1:]:
            label = f"{frame.name} ({frame.file})" if frame.file else frame.name
            at = at.children.setdefault(label, _Node(label))
            at.time += spent
    return root


def _rectangle(node, left, level, path, total, links):
    width = node.time / total * _WIDTH if total else _WIDTH
    share = node.time / total if total else 0
    text = escape(node.label)
    fits = int((width - 6) / _CHARACTER)
    shown = "" if fits < 3 else escape(node.label if len(node.label) <= fits else node.label[: fits - 1] + "…")
    hue = zlib.crc32(node.label.encode()) % 60
    top = level * _ROW + 4
    drawn = (
        f"<g><title>{text}: {node.time:.3g} s, {share:.1%}</title>"
        f'<rect x="{left:.2f}" y="{top}" width="{max(width - 0.5, 0.3):.2f}" height="{_ROW - 1}" rx="2" '
        f'fill="hsl({hue}, 75%, {72 if level else 85}%)"/>'
        f'<text x="{left + 3:.2f}" y="{top + 12}" fill="#1c2430">{shown}</text></g>'
    )
    if links is not None:
        drawn = f'<a href="{escape(links(path))}">{drawn}</a>'
    return drawn + "\n"


def _time(node, measure):
    return node.cpu_s if measure == "cpu" else node.wall_s


def _label(frame):
    return f"{frame.name} ({frame.file}:{frame.line})" if frame.file else frame.name


# ---- protocol buffers' wire format, as far as profile.proto needs it


def _varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number, value):
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    return _varint(number << 3) + _varint(value)


def _packed(values):
    return b"".join(map(_varint, values))
