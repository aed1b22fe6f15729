"""Every public name is on a page of the docs, and whoever makes an object finds what each parameter means.

A module is public if the docs tell readers to import from it; its public names are those of `__all__`, or else what it
defines without an underscore."""

import importlib.metadata
import inspect
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs" / "site"))
import parameters  # noqa: E402

HAS_RAY = "ray" in importlib.metadata.packages_distributions()
MODULES = (
    "vmhost",
    "vmhost.access",
    "vmhost.bytecode.signing",
    "vmhost.compiler",
    "vmhost.dask",
    "vmhost.engine",
    "vmhost.engine.cuda",
    "vmhost.engine.embedding",
    "vmhost.engine.features",
    "vmhost.engine.grad",
    "vmhost.engine.models",
    "vmhost.engine.nn",
    "vmhost.engine.numpy",
    "vmhost.engine.optim",
    "vmhost.engine.runs",
    "vmhost.engine.tokenizers",
    "vmhost.guest",
    "vmhost.guest.cascade",
    "vmhost.guest.metrics",
    "vmhost.guest.stream",
    "vmhost.guest.testing",
    "vmhost.joblib",
    "vmhost.operations",
    "vmhost.pipeline",
    "vmhost.pipeline.control",
    "vmhost.pipeline.features",
    "vmhost.pipeline.patterns",
    "vmhost.pipeline.patterns.builder",
    "vmhost.serving.exports",
    "vmhost.serving.sessions",
    "vmhost.stores",
    "vmhost.training.runs",
    "vmhost.training.samples",
    "vmhost.tunnel",
)
if HAS_RAY:  # only `make ray-tests` brings it
    MODULES += ("vmhost.ray",)
# From this number on, a signature alone does not say enough.
MANY = 5


def public(module):
    """{name: value} of the public names of a module."""
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None)
    if names is None:
        names = [name for name, value in vars(found).items() if getattr(value, "__module__", "") == module]
    return {name: getattr(found, name) for name in names if not name.startswith("_")}


def pages():
    return {path: path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")}


def test_every_public_name_is_on_a_page():
    words = {word for text in pages().values() for word in re.findall(r"\w+", text)}
    assert [f"{module}.{name}" for module in MODULES for name in public(module) if name not in words] == []


def test_every_public_member_is_on_a_page_or_in_the_reference():
    """The reference lists the members of a class with docstrings (`:members:`), or all (`:undoc-members:`)."""
    words = {word for text in pages().values() for word in re.findall(r"\w+", text)}
    text = "\n".join(pages().values())
    with_all = {
        name
        for name, options in re.findall(r"\.\. autoclass:: ([\w.]+)((?:\n +:[\w-]+:.*)*)", text)
        if ":undoc-members:" in options
    }
    missing = []
    for module in MODULES:
        for name, value in public(module).items():
            if inspect.isclass(value) and not issubclass(value, BaseException) and name not in with_all:
                missing += [
                    f"{module}.{name}.{member}"
                    for member, what in vars(value).items()
                    if not member.startswith("_")
                    and isinstance(what, (property, classmethod, staticmethod)) | inspect.isfunction(what)
                    and not inspect.getdoc(getattr(what, "__func__", what))
                    and member not in words
                ]
    assert missing == []


def test_many_parameters_have_a_table():
    missing = {}
    for module in MODULES:
        for name, value in public(module).items():
            known = set(parameters.parameters(value)) if callable(value) else set()
            if len(known) >= MANY and module != "vmhost.engine.numpy" and name not in parameters.MADE_INSIDE:
                _, texts = parameters.described(inspect.getdoc(value) or "", known)
                if lacking := sorted(known - set(texts)):
                    missing[f"{module}.{name}"] = lacking
    assert missing == {}


@pytest.mark.parametrize(
    ("docstring", "rest", "texts"),
    [
        ("Makes one.\n\n`size`: in bytes. `name`: its\nname.", "Makes one.",
         {"size": "in bytes.", "name": "its name."}),
        ("Makes one.\n\nsize: in bytes,\n    at most.\nname: its name.\n\nMore: yes.", "Makes one.\n\nMore: yes.",
         {"size": "in bytes, at most.", "name": "its name."}),
        ("- `size`: in bytes\n- `name`: its name", "", {"size": "in bytes", "name": "its name"}),
        ("Of `size`: no.", "Of `size`: no.", {}),
        ("`size`, `name`: both.", "", {"size": "both.", "name": "both."}),
    ],
)  # fmt: skip
def test_parameters_are_read_from_docstrings(docstring, rest, texts):
    assert parameters.described(docstring, {"size", "name"}) == (rest, texts)
