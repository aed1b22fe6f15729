"""docs/reference/json.md: documents of commands have no key that the page does not list, and errors have its shape."""

import json
import re
from pathlib import Path

import pytest

from vmhost.cli import main

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "json.md"
# In this order: each uses what earlier ones made. `init` of two examples and `compile` come first.
COMMANDS = (
    "keys new me --trust",
    "keys list",
    "inspect build/digits.vmb",
    "run build/digits.vmb --input digits/image.json",
    "doctor",
    "pipeline run data build/visits.vmb --events visits/events.jsonl",
    "pipeline status data",
    "pipeline tables data",
    "pipeline events data --limit 1",
    "pipeline explain-trigger data build/visits.vmb",
    "pipeline forget data ann --yes",
    "tunnel certificates keys --device ann",
    "crashes data",
)


def listed():
    """{command: the words in code of its row}."""
    found = {}
    for commands, text in re.findall(r"^\| ((?:`vmhost [^|]*`)+[^|]*) \| (.*) \|$", PAGE.read_text(), re.MULTILINE):
        for command in re.findall(r"`vmhost ([^`]*)`", commands):
            found[command] = set(re.findall(r"`(\w+)`", text))
    return found


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """{command: its document}."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("json"))
        patch.setenv("VMHOST_KEYS", "own")

        def run(line):
            written = []
            patch.setattr("vmhost.lines.stdout.write_json", lambda plain, indent=None: written.append(plain))
            code = main([*line.split(), "--json"])
            [found[line]] = [json.loads(json.dumps(one)) for one in written]
            return code

        for line in (
            "init visits --example stream",
            "init digits --example digits",
            *COMMANDS[:2],
            "compile visits digits -o build/ --sign me",
            *COMMANDS[2:],
        ):
            assert run(line) == 0 or line == "doctor", found[line]
        assert run("run missing.vmb") == 2
    return found


def keys_of(document):
    document = document[0] if isinstance(document, list) else document
    return set(document)


@pytest.mark.parametrize("line", ["init digits --example digits", *COMMANDS])
def test_the_page_lists_the_keys(line, documents):
    rows = listed()
    [command] = [one for one in (" ".join(line.split()[:2]), line.split()[0]) if one in rows][:1]
    assert keys_of(documents[line]) - rows[command] == set()


def test_the_page_lists_the_keys_of_bundles(documents):
    [*_, bundle] = documents["compile visits digits -o build/ --sign me"]["bundles"]
    rows = listed()
    assert set(bundle) - rows["compile"] - rows["inspect"] == set()


def test_an_error_has_the_shape_on_the_page(documents):
    [shown] = re.findall(r'^\{"error": .*\}$', PAGE.read_text(), re.MULTILINE)
    assert set(documents["run missing.vmb"]["error"]) == set(json.loads(shown)["error"])
    assert documents["run missing.vmb"]["error"]["type"] == json.loads(shown)["error"]["type"]
