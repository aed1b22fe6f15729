"""Deltas of any files, and of bundles; a delta that does not fit is refused."""

import os
import random

import msgpack
import pytest

from vmhost.bytecode import signing
from vmhost.bytecode.compiler import compile_task
from vmhost.deployment import bundle_form, delta
from vmhost.deployment.errors import DamagedError

DATA = os.urandom(30_000)
KEY = signing.generate_key()


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """{version: bytes}: 1.0.0, and versions with two modules edited, whose names are longer and longer."""
    folder = tmp_path_factory.mktemp("task")
    edited = {
        "1.0.0": (),
        "1.0.1": ("part3", "part30"),
        "1.10.0": ("part3", "part30"),
        "10.0.0-rc1": ("part3", "part30"),
    }
    return {version: bundle_of(folder, version, names) for version, names in edited.items()}


def bundle_of(folder, version, edited=()):
    """The bytes of a signed bundle of 40 modules, in some of which a line was added."""
    lines = "".join(f"name_{index} = {index * 7919}\n" for index in range(120))
    modules = {f"part{number}": f"{lines}own = {number}\n" for number in range(40)}
    for name in edited:
        modules[name] += "edited = True\n"
    modules["main"] = "".join(f"import {name}\n" for name in modules) + "def run(value):\n    return value\n"
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "task.yaml").write_text(f'name: big\nversion: {version}\nentry: main:run\npython: "3.14"\n')
    return compile_task(folder).to_bytes(KEY)


def test_two_of_forty_modules_cost_less_than_a_kilobyte_though_every_file_says_its_version(bundles):
    old = bundles["1.0.0"]
    for new in list(bundles.values())[1:]:
        made_of = delta.make(old, new)
        assert len(made_of) < 1000
        assert delta.apply(old, made_of, len(new)) == new
        assert delta.apply(new, delta.make(new, old), len(old)) == old


def test_a_bundle_and_its_other_form_say_the_same(bundles):
    new = bundles["1.0.0"]
    name, form = bundle_form.unfold(new)
    assert name == b"big@1.0.0/" and bundle_form.fold(form) == new and len(form) < len(new)
    for other in (b"", DATA, new[:-1], form):
        with pytest.raises(bundle_form.NotABundleError):
            bundle_form.unfold(other)


def test_damaged_deltas_of_bundles_are_refused_or_make_other_bytes(bundles):
    old, new = bundles["1.0.0"], bundles["1.0.1"]
    made_of = delta.make(old, new)
    chosen = random.Random(20)
    for _ in range(150):
        harmed = bytearray(made_of)
        harmed[chosen.randrange(len(harmed))] ^= 1 << chosen.randrange(8)
        if chosen.random() < 0.3:
            del harmed[chosen.randrange(len(harmed)) :]
        try:
            assert len(delta.apply(old, bytes(harmed), len(new))) == len(new)
        except DamagedError:
            pass
    with pytest.raises(DamagedError):
        delta.apply(DATA, made_of, len(new))


@pytest.mark.parametrize(
    "form", [[], 7, [{}, None, [["a", 5]]], [{}, None, [["a", -1]]], [{}, None, [[1, 0]]], [[], 1, []]]
)
def test_forms_that_are_none_are_refused(form):
    with pytest.raises(bundle_form.NotABundleError):
        bundle_form.fold(msgpack.packb(form))
