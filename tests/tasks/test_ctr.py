"""The task ctr: its command from Parquet to served answers, resuming after kill -9, and what the task refuses."""

import gc
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import onnxruntime
import pyarrow
import pytest

import vmhost
from tasks.ctr import __main__ as command
from vmhost.compiler import compile_folder
from vmhost.engine import runs
from vmhost.engine.embedding import safe_embedding_lookup_sparse, save
from vmhost.engine.features import FeatureSpec
from vmhost.serving.exports import publish
from vmhost.serving.sessions import SessionGroup
from vmhost.training import shards
from vmhost.training.runs import Run
from vmhost.training.samples import ParquetSamples

pyarrow.array(range(1000))  # here, since its allocator keeps the thread that it starts now
ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--examples", "16000", "--epochs", "4", "--every", "10"]


def same_examples(folder, other):
    """Copies what the command has drawn and written in `other`: it writes only files that are missing."""
    folder.mkdir()
    for path in other.glob("*.parquet"):
        shutil.copy(path, folder)


@pytest.fixture(autouse=True)
def nothing_waits_to_be_collected():
    yield
    gc.collect()


def test_from_parquet_to_served_answers_on_tables(tmp_path, capsys):
    assert command.main([str(tmp_path), "--examples", "64000", "--epochs", "2"]) == 0
    output = capsys.readouterr().out
    own, best = map(float, re.search(r"AUC: ([\d.]+) of .*best possible: ([\d.]+)", output).groups())
    assert best == pytest.approx(0.834, abs=0.006) and 0.72 < own < best
    assert "trained: 250 steps of 512, " in output and "user 300 rows" in output
    # again: it was whole, so nothing is trained, and the answers are the same
    model = (tmp_path / "served/version-000001/network.vmm").read_bytes()
    assert command.main([str(tmp_path), "--examples", "64000", "--epochs", "2"]) == 0
    again = capsys.readouterr().out
    assert "250 steps of 512, from step 250 on" in again and again.splitlines()[-3:] == output.splitlines()[-3:]
    assert (tmp_path / "served/version-000002/network.vmm").read_bytes() == model
    assert len(list((tmp_path / "served/tables").iterdir())) == 1  # both versions name the same save


def test_a_run_that_was_killed_ends_with_the_same_bytes(tmp_path):
    ends = []
    for name, kill in (("whole", False), ("killed", True)):
        asked = [sys.executable, "-m", "tasks.ctr", str(tmp_path / name), *SMALL]
        if kill:
            same_examples(tmp_path / name, tmp_path / "whole")
            with subprocess.Popen(asked, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as run:
                assert any("step 100:" in line for line in run.stderr)  # some ten checkpoints lie behind it
                run.kill()
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
        if kill:
            assert int(re.search(r"goes on at step (\d+)", done.stderr)[1]) >= 90
        model = tmp_path / name / "served/version-000001/network.vmm"
        ends.append((model.read_bytes(), done.stdout.splitlines()[-3:]))
    assert ends[0] == ends[1]


def test_shards_that_were_killed_go_on_at_the_same_checkpoint(tmp_path):
    ends = []
    for name, kill in (("whole", False), ("killed", True)):
        arguments = [str(tmp_path / name), "--examples", "32000", "--epochs", "2", "--every", "10", "--shards", "2"]
        asked = [sys.executable, "-m", "tasks.ctr", *arguments]
        if kill:
            same_examples(tmp_path / name, tmp_path / "whole")
            with subprocess.Popen(asked, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as run:
                assert any("step 100:" in line for line in run.stderr)  # some ten checkpoints lie behind it
                run.kill()
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        if kill:
            assert int(re.search(r"goes on at step (\d+)", done.stderr)[1]) >= 80
        assert "steps of 512 by 2 processes, " in done.stdout
        model = tmp_path / name / "served/version-000001/network.vmm"
        ends.append((model.read_bytes(), done.stdout.splitlines()[-3:]))
    assert ends[0] == ends[1]
    folder = tmp_path / "killed/run-32000-2-by-2"
    assert sorted(path.name for path in folder.iterdir()) == ["shard-0-of-2", "shard-1-of-2"]
    with pytest.raises(runs.RunError, match="has states of shard-0-of-2: go on with as many shards"):
        Run(folder, None, {}, shard=shards.Shard(0, 3, None))


def asked(batches, value, state=None):
    left, saved = iter(batches), []
    functions = shards.alone().functions | {
        "batch": lambda _: next(left, None),
        "checkpoint": saved.append,
        "resume": lambda _: state,
    }
    tables = command.new_tables(FeatureSpec.read((command.HERE / "features.json").read_bytes()))
    with vmhost.Host(allow_unsigned=True, functions=functions, tables=tables) as host:
        return host.load(compile_folder(command.HERE).to_bytes())(value), tables, saved


def test_what_is_served_is_what_onnx_runtime_makes_of_the_exported_network(tmp_path):
    path, spec = tmp_path / "some.parquet", FeatureSpec.read((command.HERE / "features.json").read_bytes())
    command.write(path, 2048, seed=5)
    with ParquetSamples(path, 512, spec=spec, labels=["click"]) as samples:
        batches = list(samples)
    answer, tables, saved = asked(batches, {"steps": 4, "every": 3})
    assert answer["steps"] == 4 and answer["resumed"] == 0 and len(saved) == 2  # at step 3, and at the end
    save(tables, tmp_path / "saves")
    publish(tmp_path / "served", answer["onnx"], answer["lookups"], spec, tables)
    inputs = spec.transform(batches[0])
    fed = {"numbers": numpy.asarray(inputs.numbers)}
    for name, table, _, ids, _, combiner, default_id in answer["lookups"]:
        keys = inputs.ids[ids.removeprefix("ids.")]
        fed[name] = numpy.asarray(safe_embedding_lookup_sparse(tables[table], keys, None, combiner, default_id))
    [expected] = onnxruntime.InferenceSession(answer["onnx"]).run(None, fed)
    with SessionGroup(tmp_path / "served") as group:
        assert numpy.allclose(group(batches[0])["click"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("batches", "value", "message"),
    [([], {"steps": 1}, "the host has no clicks"), ([], {"steps": 1, "every": 0}, "every: expected a whole number")],
)
def test_the_task_names_what_it_cannot_use(batches, value, message):
    with pytest.raises(vmhost.TaskError, match=message):
        asked(batches, value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--examples", "5"], "--examples: at least 512, --epochs and --every: at least 1"),
        (["--epochs", "0"], "--examples: at least 512, --epochs and --every: at least 1"),
        (["--every", "0"], "--examples: at least 512, --epochs and --every: at least 1"),
        (["--shards", "9"], "--shards: 1 to 8, with --examples of at least 16000 for each"),
        (["--shards", "2", "--examples", "16000"], "--shards: 1 to 8, with --examples of at least 16000 for each"),
    ],
)
def test_the_command_of_ctr_says_what_it_takes(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit):
        command.main([str(tmp_path / "new"), *arguments])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
