"""`vmhost compile` and `vmhost inspect`: one makes bundles, the other shows them."""

import json
import zipfile

import pytest

from tests.hosts import ROOT
from vmhost.cli import failures


def test_compile_and_inspect_agree(vmhost, task_folder, tmp_path):
    vmhost("keys", "new", "me", "--trust")
    path = tmp_path / "made here" / "greet.vmb"
    code, out, _ = vmhost("compile", task_folder, "-o", path, "--sign", "me", "--json")
    (compiled,) = json.loads(out)["bundles"]
    assert code == 0 and compiled["path"] == str(path) and compiled["bytes"] == path.stat().st_size

    code, out, _ = vmhost("inspect", path, "--verify", "--json")
    seen = json.loads(out)
    assert code == 0
    assert seen["digest"] == compiled["digest"]
    assert [module["name"] for module in seen["modules"]] == ["main", "other"]
    assert [file["name"] for file in seen["files"]] == ["words.txt"]
    assert seen["limits"] == {"memory_bytes": 32 << 20, "wall_time_s": 2.0}
    assert seen["signature"]["trusted_as"] == "me"

    code, out, _ = vmhost("inspect", path)
    for word in (
        "greet 1.0.0",
        "main:run",
        "memory 32.0 MiB, wall time 2 s",
        "trusted as me",
        "words.txt",
        seen["digest"],
    ):
        assert word in out


def test_inspect_says_who_signed_what_nobody_trusts(vmhost, task_folder, tmp_path):
    path = tmp_path / "greet.vmb"
    vmhost("keys", "new", "stranger")
    vmhost("compile", task_folder, "-o", path, "--sign", "stranger")
    signature = json.loads(vmhost("inspect", path, "--json")[1])["signature"]
    assert signature["trusted_as"] is None and signature["fingerprint"].startswith("SHA256:")
    vmhost("compile", task_folder, "-o", path)
    assert json.loads(vmhost("inspect", path, "--json")[1])["signature"] is None


def test_an_output_that_ends_in_a_slash_is_a_folder(vmhost, task_folder, tmp_path):
    code, _, _ = vmhost("compile", task_folder, "-o", f"{tmp_path}/served/")
    assert code == 0 and (tmp_path / "served" / "greet.vmb").is_file()


def test_several_folders_go_into_one(vmhost, task_folder, tmp_path):
    code, out, _ = vmhost("compile", task_folder, ROOT / "tasks" / "runaway", "-o", tmp_path / "out")
    assert code == 0 and len(out.splitlines()) == 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["greet.vmb", "runaway.vmb"]
    assert vmhost("compile", task_folder, task_folder, "-o", task_folder / "main.py")[0] == failures.WRONG_INPUT


def test_a_failed_compile_leaves_the_old_bundle(vmhost, task_folder, tmp_path):
    path = tmp_path / "greet.vmb"
    vmhost("compile", task_folder, "-o", path)
    before = path.read_bytes()
    (task_folder / "other.py").write_text("def greet(value)\n")
    code, out, err = vmhost("compile", task_folder, "-o", path)
    assert code == failures.REFUSED and "other.py:1" in err and "SyntaxError" in err
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.glob("*greet.vmb*")] == ["greet.vmb"]


def test_a_bundle_that_cannot_be_put_in_place_leaves_nothing_half_written(vmhost, task_folder, tmp_path):
    (tmp_path / "out" / "greet.vmb").mkdir(parents=True)
    code, _, err = vmhost("compile", task_folder, "-o", tmp_path / "out")
    assert code == failures.WRONG_INPUT and "cannot write the bundle: Is a directory" in err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["greet.vmb"]


def test_an_altered_bundle_is_refused(vmhost, task_folder, tmp_path):
    path = tmp_path / "greet.vmb"
    vmhost("compile", task_folder, "-o", path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"hello", b"jello", 1))
    code, _, err = vmhost("inspect", path)
    assert code == failures.REFUSED and err.startswith(f"error: {path}")


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_nothing_is_cut_off_on_a_narrow_terminal(vmhost, task_folder, tmp_path, monkeypatch, columns):
    path = tmp_path / "greet.vmb"
    vmhost("compile", task_folder, "-o", path)
    digest = json.loads(vmhost("inspect", path, "--json")[1])["digest"]
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = vmhost("inspect", path)
    assert digest in out and "words.txt" in out and "…" not in out


def test_bundle_contents_can_be_listed_by_any_zip_tool(vmhost, task_folder, tmp_path):
    vmhost("compile", task_folder, "-o", tmp_path / "greet.vmb")
    with zipfile.ZipFile(tmp_path / "greet.vmb") as archive:
        assert archive.testzip() is None and "manifest.msgpack" in archive.namelist()
