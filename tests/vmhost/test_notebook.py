"""A notebook of twenty cells, run by nbclient in a kernel of IPython: what users type, and change, between submits."""

import base64
import os
import sys

import pytest

from tests.hosts import ROOT

pytestmark = pytest.mark.notebook

# (cell, the text of its result or of its last printed line; None: it has none)
CELLS = (
    ("import vmhost\npool = vmhost.VMExecutor(max_workers=2)", None),
    ("def square(x):\n    return x * x\npool.submit(square, 7).result()", "49"),
    ("list(pool.map(square, range(5)))", "[0, 1, 4, 9, 16]"),
    ("n = 100\ndef outer(n):\n    def add(x):\n        return x + n\n    return add\nadd2 = outer(2)", None),
    ("pool.submit(add2, 3).result()", "5"),
    (
        "k = 1000\ndef make(k):\n    return lambda x: x * k\nscale = make(2)\ndef g(x):\n    return scale(x)\n"
        "pool.submit(g, 3).result()",
        "6",
    ),
    ("scale = make(5)\npool.submit(g, 3).result()", "15"),
    ("def square(x):\n    return f'{x} squared'\npool.submit(square, 7).result()", "'7 squared'"),
    ("N = 1\ndef plus(x, n=N):\n    return x + n\nN = 50\npool.submit(plus, 0).result()", "1"),
    ("def with_global(x):\n    return x + N\npool.submit(with_global, 1).result()", "51"),
    ("N = 60\npool.submit(with_global, 1).result()", "61"),
    (
        "import re\nWORD = re.compile(r'[a-z]+', re.I)\ndef words(text):\n    return WORD.findall(text)\n"
        "pool.submit(words, 'Many small VMs').result()",
        "['Many', 'small', 'VMs']",
    ),
    (
        "from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: int\n    y: int\n"
        "def mirrored(p):\n    return Point(p.y, p.x)\npool.submit(mirrored, Point(1, 2)).result()",
        "Point(x=2, y=1)",
    ),
    ("pool.submit(mirrored, Point(1, 2)).result() == Point(2, 1)", "True"),
    (
        "@dataclass\nclass Point:\n    x: int\n    y: int\n    z: int = 9\npool.submit(mirrored, Point(1, 2)).result()",
        "Point(x=2, y=1, z=9)",
    ),
    (
        "import logging, pathlib, zoneinfo, enum\nLOG, HERE = logging.getLogger('cells'), pathlib.Path('a/b')\n"
        "ZONE = zoneinfo.ZoneInfo('Europe/Berlin')\nclass Colour(enum.Enum):\n    RED = 1\nRED = Colour.RED\n"
        "def of_all():\n    return LOG.name, HERE.name, str(ZONE), RED.name\npool.submit(of_all).result()",
        "('cells', 'b', 'Europe/Berlin', 'RED')",
    ),
    ("def told(x):\n    print('in a VM', x)\n    return x\npool.submit(told, 8).result()", "8"),
    ("future = pool.submit(lambda: 1 / 0)\ntype(future.exception()).__name__", "'ZeroDivisionError'"),
    (
        "import matplotlib\nfrom matplotlib import pyplot\nfrom IPython.display import Image, display\nimport io\n"
        "pyplot.plot(list(pool.map(lambda x: x * x, range(20))))\ndata = io.BytesIO()\n"
        "pyplot.savefig(data, format='png')\ndisplay(Image(data.getvalue()))",
        None,
    ),
    (
        "pool.shutdown()\nwith vmhost.VMExecutor(max_workers=1) as other:\n"
        "    again = other.submit(square, 3).result()\nagain",
        "'3 squared'",
    ),
)


@pytest.fixture(scope="module")
def cells():
    import nbformat
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpec
    from nbclient import NotebookClient

    class Manager(AsyncKernelManager):
        @property
        def kernel_spec(self):
            command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=command, env={"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}, language="python")

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source, _ in CELLS])
    NotebookClient(notebook, timeout=300, kernel_manager_class=Manager, allow_errors=True).execute(env=dict(os.environ))
    return notebook.cells


def outputs(cell, kind):
    return [output for output in cell.outputs if output.output_type == kind]


@pytest.mark.parametrize("number", range(len(CELLS)))
def test_each_cell_gives_what_python_gives(cells, number):
    cell, (source, expected) = cells[number], CELLS[number]
    assert not outputs(cell, "error"), "\n".join(outputs(cell, "error")[0].traceback)
    results = [output.data["text/plain"] for output in outputs(cell, "execute_result")]
    assert results == ([] if expected is None else [expected]) or "pyplot" in source


def test_what_a_vm_prints_is_seen_below_its_cell(cells):
    [number] = [number for number, (source, _) in enumerate(CELLS) if "told(x)" in source]
    printed = "".join(output.text for cell in cells[number:] for output in outputs(cell, "stream"))
    assert "in a VM 8" in printed


def test_a_plot_is_an_image(cells):
    [cell] = [cell for cell in cells if "pyplot" in cell.source]
    images = [output.data["image/png"] for output in outputs(cell, "display_data") if "image/png" in output.data]
    assert images and all(base64.b64decode(each).startswith(b"\x89PNG") for each in images)
