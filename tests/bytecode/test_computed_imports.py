"""Packages that import by computed names: what comes along, and what is left out and said to be.

Each package is small and shows one of the tricks of well-known packages, named in a comment.
"""

import json

import pytest

import vmhost
from vmhost.bytecode.closure import computed
from vmhost.bytecode.compiler import compile_task
from vmhost.bytecode.computed_names import ModuleNames, fixed_package, matcher
from vmhost.bytecode.errors import CompileError, TaskSpecError
from vmhost.bytecode.source import nodes_of, parse
from vmhost.cli import main as command_line


@pytest.fixture
def task(tmp_path):
    """task(main, files of packages, more lines of task.yaml, other files of the task) gives the folder of a task and
    that of its packages."""

    def write(main, packages, more="", others=()):
        folder, site = tmp_path / "task", tmp_path / "site-packages"
        site.mkdir(exist_ok=True)
        head = f'name: sample\nversion: "1.0"\nentry: main:run\npython: "3.14"\n{more}'
        for where, files in ((folder, {"task.yaml": head, "main.py": main, **dict(others)}), (site, packages)):
            for path, text in files.items():
                (where / path).parent.mkdir(parents=True, exist_ok=True)
                (where / path).write_text(text)
        return folder, site

    return write


def compiled(folders):
    folder, site = folders
    return compile_task(folder, packages=site)


def call(task, value=None):
    with vmhost.Host(allow_unsigned=True) as host:
        return host.load(task.to_bytes())(value)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("'pkg.x%03x' % n", "pkg.x*"),  # Unidecode
        ("f'pkg._backends._{name}'", "pkg._backends._*"),  # anyio
        ("'pkg.writers.' + name", "pkg.writers.*"),  # docutils
        ("'pkg.{}.{}'.format(a, b)", "pkg.*.*"),
        ("'.'.join([PREFIX, kind, name])", "pkg.rdtypes.*.*"),  # dnspython
        ("__name__ + '.' + name", "pkg.part.*"),
        ("f'{__package__}.{name}'", "pkg.*"),
        ("each", "pkg.one pkg.two"),
        ("chosen", "pkg.a pkg.b"),
        ("f'{json.__name__}.{name}'", "json.*"),
        ("argument", "*"),
        ("counted", "*"),
        ("again", "*"),
        ("name.lower()", "*"),
    ],
)
def test_patterns_of_names(source, expected):
    text = f"""
PREFIX = "pkg.rdtypes"
import json
for each in ("pkg.one", "pkg.two"):
    pass
chosen = "pkg.a" if json else "pkg.b"
again = again
counted = "x"
counted += "y"
def f(argument):
    return {source}
"""
    tree = parse(text.encode(), "x.py")
    names = ModuleNames(nodes_of(tree), "pkg.part", False, {"json": "json"})
    assert " ".join(names.patterns(tree.body[-1].body[0].value)) == expected


def test_patterns_lead_to_packages():
    assert [fixed_package(each) for each in ("a.b.x*", "a.*", "a*", "*", "a.b.c")] == ["a.b", "a", "", "", "a.b"]
    assert matcher("a.x*").fullmatch("a.x04e") and not matcher("a.x*").fullmatch("aXx04e")
    names = ModuleNames(nodes_of(parse(b"", "x.py")), "pkg.sub.part", False, {})
    assert [names.absolute(each) for each in (".x*", "..y", "...z", "....w", "q")] == [
        ("pkg.sub.x*",),
        ("pkg.y",),
        ("*",),
        ("*",),
        ("q",),
    ]
    assert names.absolute(".x", ("other",)) == ("other.x",)


LOADS = """
from importlib import import_module
def load(name):
    return import_module(name).VALUE
"""
TRICKS = {
    # Unidecode: tables named by a number, its ImportError swallowed; more than half a megabyte together
    "letters/__init__.py": "def letter(n):\n    try:\n"
    "        return __import__('letters.x%03x' % n, globals(), locals(), ['data']).VALUE\n"
    "    except ImportError:\n        return ''\n",
    **{f"letters/x{n:03x}.py": f"VALUE = {n}\nPADDING = {'x' * 9000!r}\n" for n in range(100)},
    # phonenumbers: a relative name by the level of __import__
    "phones/__init__.py": "from .data import load\n",
    "phones/data/__init__.py": "def load(code):\n"
    "    return __import__('region_%s' % code, globals(), locals(), fromlist=['VALUE'], level=1).VALUE\n",
    "phones/data/region_CZ.py": "VALUE = 420\n",
    # holidays: the parts of a name travel through a class
    "days/__init__.py": "from .registry import Loader\n",
    "days/registry.py": "import importlib\nclass Loader:\n    def __init__(self, name):\n"
    "        self.name = f'days.countries.{name}'\n"
    "    def get(self):\n        return importlib.import_module(self.name).VALUE\n",
    "days/countries/albania.py": "VALUE = 'AL'\n",
    "days/countries/__init__.py": "",
    # Faker: folders of providers and locales, listed by pkgutil
    "fakes/__init__.py": "",
    "fakes/loading.py": "import pkgutil\nfrom importlib import import_module\ndef names(package):\n"
    "    return [each.name for each in pkgutil.iter_modules(import_module(package).__path__)]\n" + LOADS,
    "fakes/providers/__init__.py": "",
    "fakes/providers/person/__init__.py": "",
    "fakes/providers/person/cs_CZ/__init__.py": "VALUE = 'Jan'\n",
    # anyio, lazy_loader: __getattr__ of a package imports what a table names, by a function of another module
    "lazy/__init__.py": "from attaching import attach\nTABLE = {'eager': '.core._parts.eager'}\n"
    "__getattr__ = attach(__name__, TABLE)\n",
    "attaching.py": "from importlib import import_module\ndef attach(package, table):\n    def get(name):\n"
    "        module, _, attribute = table[name].rpartition('.')\n"
    "        return getattr(import_module(module, package), attribute)\n    return get\n",
    "lazy/core/__init__.py": "",
    "lazy/core/_parts.py": "eager = 'eager'\n",
    # passlib, kombu: a table of whole names, which another package imports
    "resolving.py": "from pkgutil import resolve_name\ndef resolved(name):\n    return resolve_name(name)\n",
    "hashes/__init__.py": "from .registry import get\n",
    "hashes/registry.py": "from resolving import resolved\n"
    "HANDLERS = {'md5': 'hashes.handlers.md5:Handler', 'sha': 'hashes.handlers.sha.Handler'}\n"
    "def get(name):\n    return resolved(HANDLERS[name]).VALUE\n",
    "hashes/handlers/__init__.py": "",
    "hashes/handlers/md5.py": "class Handler:\n    VALUE = 5\n",
    "hashes/handlers/sha.py": "class Handler:\n    VALUE = 256\n",
    # networkx, scientific packages: a module that is executed when it is used
    "late/__init__.py": "import importlib.util, sys\nspec = importlib.util.find_spec('late.big')\n"
    "spec.loader = importlib.util.LazyLoader(spec.loader)\nbig = importlib.util.module_from_spec(spec)\n"
    "sys.modules['late.big'] = big\nspec.loader.exec_module(big)\n",
    "late/big.py": "VALUE = 'late'\n",
    # markdown, pluggy: entry points, of another package
    "marked/__init__.py": "from importlib.metadata import entry_points\ndef extension(name):\n"
    "    return next(each for each in entry_points(group='marked.extensions') if each.name == name).load()\n",
    "marked_tables/ext.py": "def make():\n    return 'tables'\n",
    "marked_tables-1.0.dist-info/METADATA": "Metadata-Version: 2.4\nName: marked-tables\nVersion: 1.0\n",
    "marked_tables-1.0.dist-info/entry_points.txt": "[marked.extensions]\ntables = marked_tables.ext:make\n",
    "marked_tables-1.0.dist-info/RECORD": "marked_tables/ext.py,,\nmarked_tables-1.0.dist-info/METADATA,,\n"
    "marked_tables-1.0.dist-info/entry_points.txt,,\nmarked_tables-1.0.dist-info/RECORD,,\n",
    # pyphen: a folder of files alone, named as a package
    "words/__init__.py": "from importlib import resources\n"
    "def first():\n    return (resources.files('words.lists') / 'cs.txt').read_text()\n",
    "words/lists/cs.txt": "slovo",
    "words-1.0.dist-info/METADATA": "Metadata-Version: 2.4\nName: words\nVersion: 1.0\n",
    "words-1.0.dist-info/RECORD": "words/__init__.py,,\nwords/lists/cs.txt,,\n",
    # stdnum: submodules as attributes of a computed package
    "numbers_of/__init__.py": "def module(country, name):\n"
    "    return getattr(__import__('numbers_of.%s' % country, globals(), locals(), [name]), name)\n",
    "numbers_of/nl/__init__.py": "",
    "numbers_of/nl/bsn.py": "VALUE = 'bsn'\n",
}
USES = {
    "letters.letter(99)": 99,
    "phones.load('CZ')": 420,
    "days.Loader('albania').get()": "AL",
    "fakes.loading.names('fakes.providers')": ["person"],
    "fakes.loading.load('fakes.providers.person.cs_CZ')": "Jan",
    "lazy.eager": "eager",
    "[hashes.get('md5'), hashes.get('sha')]": [5, 256],
    "late.big.VALUE": "late",
    "marked.extension('tables')()": "tables",
    "numbers_of.module('nl', 'bsn').VALUE": "bsn",
    "words.first()": "slovo",
}


def test_packages_that_import_by_computed_names_are_whole(task):
    imported = "letters, phones, days, fakes.loading, lazy, hashes, late, marked, numbers_of, words"
    main = f"import {imported}\ndef run(value):\n    return [{', '.join(USES)}]\n"
    made = compiled(task(main, TRICKS))
    assert call(made) == list(USES.values())
    assert made.warnings == ()
    assert not [each for each in made.absent if each.where], "nothing is left out where names are computed"


def test_the_task_s_own_computed_names_are_followed(task):
    main = (
        "from importlib import import_module\n"
        "def run(value):\n    return [import_module(f'plugins.{each}').VALUE for each in ('one', 'deep.two')]\n"
    )
    others = {"plugins/one.py": "VALUE = 1\n", "plugins/deep/two.py": "VALUE = 2\n", "plugins/tests/x.py": "1/0\n"}
    made = compiled(task(main, {}, others=others))
    assert call(made) == [1, 2]
    assert made.warnings == ()
    assert not [name for name in made.modules if "tests" in name]


LARGE = {
    "large/__init__.py": LOADS,
    **{f"large/part{n}.py": f"VALUE = {n}\nPADDING = {'x' * 4000!r}\n" for n in range(5)},
    "unused.py": "",
}


def test_what_is_too_much_is_left_out_with_size_and_reason(task, monkeypatch, capsys):
    monkeypatch.setattr(computed, "MAX_BYTES", 10_000)
    main = (
        "import large\nfrom importlib import import_module\ndef run(value):\n    said = []\n"
        "    for name in value:\n"
        "        try:\n            said.append(large.load(name))\n"
        "        except ImportError as error:\n            said.append(str(error))\n    return said\n"
    )
    made = compiled(task(main, LARGE))
    left, others = made.absent[1], made.absent[0]
    assert (left.name, left.where, left.names) == (
        "large.*",
        "site-packages/large/__init__.py:4",
        tuple(f"large.part{n}" for n in range(5)),
    )
    reason = (
        "5 of 5 modules (0.0 MB) are left out, since no import names them; list those needed in task.yaml, such as"
        " import: [large.part0], or large.* for all"
    )
    assert left.reason == reason
    assert (others.name, others.names) == ("*", ("unused",))
    assert call(made, ["large.part3", "large.gone", "unused"]) == [
        f"No module named 'large.part3': {reason}",
        "No module named 'large.gone'",
        "No module named 'unused': it is among the task's packages, but no import names it: list it in task.yaml,"
        " import: [...]",
    ]
    named = compiled(task(main, LARGE, "import: [large.part3, unused]\n"))
    assert set(named.modules) == {"main", "large", "large.part3", "unused"}
    assert named.absent[0].names == ("large.part0", "large.part1", "large.part2", "large.part4")
    whole = compiled(task(main, LARGE, 'import: ["large.*"]\n'))
    assert call(whole, ["large.part3"]) == [3]
    assert [each.name for each in whole.absent] == ["*"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("large.gone", "import: large.gone: site-packages/large/__init__.py is of a package that has no Python module"),
        ("gone.*", r"import: gone.\*: neither in the task's folder, nor among its requirements"),
        ("unused.*", r"import: unused.\*: site-packages/unused.py is a module, not a package; leave out the `.\*`"),
        ("numpy", "import: numpy: a VM can't load it"),
    ],
)
def test_names_in_the_description_must_be_there(task, line, expected):
    with pytest.raises(CompileError, match=rf"task\.yaml:6: {expected}"):
        compiled(task("import large\ndef run(value):\n    pass\n", LARGE, f'import:\n- "{line}"\n'))
    with pytest.raises(TaskSpecError, match=r"task\.yaml:5: import\[0\]: expected a module such as plugins\.one"):
        compiled(task("def run(value):\n    pass\n", {}, 'import: ["a b"]\n'))


def test_the_command_lists_what_is_left_out(tmp_path, monkeypatch, capsys, task):
    monkeypatch.setattr(computed, "MAX_BYTES", 10_000)
    folder, site = task("import large\ndef run(value):\n    pass\n", LARGE)
    monkeypatch.setattr("vmhost.bytecode.compiler.installed", lambda requirements: site)
    assert command_line(["compile", str(folder), "-o", str(tmp_path / "out.vmb")]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("absent")]
    assert lines == [
        "absent large.*: 5 of 5 modules (0.0 MB) are left out, since no import names them; list those needed in"
        " task.yaml, such as import: [large.part0], or large.* for all (imported by site-packages/large/__init__.py:4)"
    ]
    assert command_line(["compile", str(folder), "--json", "-o", str(tmp_path / "out.vmb")]) == 0
    told = json.loads(capsys.readouterr().out)["bundles"][0]["absent"]
    assert [each["name"] for each in told] == ["*", "large.*"]


def test_from_a_package_import_a_missing_part_gives_the_reason(task):
    """regex: `from . import _regex`, which is native; without the reason it looks like a circular import."""
    packages = {
        "fast/__init__.py": "try:\n    from fast import _speedups\nexcept ImportError as error:\n"
        "    WHY = [type(error).__name__, error.name, str(error)]\n",
        "fast/_speedups.cpython-314-x86_64-linux-gnu.so": "not really",
    }
    said = call(compiled(task("import fast\ndef run(value):\n    return fast.WHY\n", packages)))
    assert said[:2] == ["ImportError", "fast._speedups"], "not ModuleNotFoundError, as in plain Python"
    assert said[2].startswith("cannot import name '_speedups': a VM can't load it: it is not pure Python")


def test_recording_imports_what_the_bundle_has(task, monkeypatch):
    """A left-out module fails while texts are recorded as it does in a VM."""
    monkeypatch.setattr(computed, "MAX_BYTES", 10_000)
    falls_back = "try:\n    load('large.part%d' % 1)\nexcept ImportError:\n    exec('x = 1')\n"
    files = {**LARGE, "large/__init__.py": LOADS + falls_back}
    made = compiled(task("import large\ndef run(value):\n    return large.x\n", files))
    assert call(made) == 1
