"""The task ctr: its command from Parquet to served answers, resuming after kill -9, and what the task refuses."""

import re
import subprocess
import sys
from pathlib import Path

import numpy
import onnxruntime
import pyarrow
import pytest

import vmhost
from tasks.ctr import __main__ as command
from tasks.deepfm import clicks
from vmhost import engine
from vmhost.compiler import compile_folder
from vmhost.engine.features import FeatureSpec
from vmhost.training.samples import ParquetSamples

pyarrow.array(range(1000))  # here, since its allocator keeps the thread that it starts now
ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--examples", "16000", "--epochs", "6", "--every", "10"]


def test_from_parquet_to_served_answers_on_tables(tmp_path, capsys):
    assert command.main([str(tmp_path), "--examples", "64000", "--epochs", "2"]) == 0
    said = capsys.readouterr().out
    own, best = map(float, re.search(r"AUC: ([\d.]+) of .*best possible: ([\d.]+)", said).groups())
    assert best == pytest.approx(0.834, abs=0.006) and 0.72 < own < best
    assert "trained: 250 steps of 512, " in said and "user 300 rows" in said
    # again: it was whole, so nothing is trained, and the answers are the same
    model = (tmp_path / "ctr.vmm").read_bytes()
    assert command.main([str(tmp_path), "--examples", "64000", "--epochs", "2"]) == 0
    again = capsys.readouterr().out
    assert "250 steps of 512, from step 250 on" in again and again.splitlines()[-3:] == said.splitlines()[-3:]
    assert (tmp_path / "ctr.vmm").read_bytes() == model


def test_a_run_that_was_killed_ends_with_the_same_bytes(tmp_path):
    ends = []
    for name, kill in (("whole", False), ("killed", True)):
        asked = [sys.executable, "-m", "tasks.ctr", str(tmp_path / name), *SMALL]
        if kill:
            with subprocess.Popen(asked, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as run:
                assert any("step 100:" in line for line in run.stderr)  # some ten checkpoints lie behind it
                run.kill()
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
        if kill:
            assert int(re.search(r"goes on at step (\d+)", done.stderr)[1]) >= 90
        ends.append(((tmp_path / name / "ctr.vmm").read_bytes(), done.stdout.splitlines()[-3:]))
    assert ends[0] == ends[1]


def asked(batches, value, state=None):
    left, saved = iter(batches), []
    functions = {"batch": lambda _: next(left, None), "checkpoint": saved.append, "resume": lambda _: state}
    tables = command.new_tables(FeatureSpec.read((command.HERE / "features.json").read_bytes()))
    with vmhost.Host(allow_unsigned=True, functions=functions, tables=tables) as host:
        return host.load(compile_folder(command.HERE).to_bytes())(value), tables, saved


def test_the_exported_network_gives_in_onnx_runtime_what_the_engine_gives(tmp_path):
    path, spec = tmp_path / "some.parquet", FeatureSpec.read((command.HERE / "features.json").read_bytes())
    command.write(path, 2048, seed=5)
    with ParquetSamples(path, 512, spec=spec, labels=["click"]) as samples:
        batches = list(samples)
    answer, tables, saved = asked(batches, {"steps": 4, "every": 3})
    assert answer["steps"] == 4 and answer["resumed"] == 0 and len(saved) == 2  # at step 3, and at the end
    session, fed = onnxruntime.InferenceSession(answer["onnx"]), {}

    def network(inputs):
        fed.update(inputs)
        return {"click": session.run(None, {name: numpy.asarray(one) for name, one in inputs.items()})[0]}

    one = command.predicted(network, answer["lookups"], tables, spec.transform(batches[0]))
    model = tmp_path / "ctr.vmm"
    model.write_bytes(command.compile_model(answer["onnx"], "ctr.onnx"))
    assert numpy.allclose(one, engine.load(str(model))(fed)["click"], atol=1e-5)
    assert set(clicks.NUMBERS) == set(spec.numbers)


@pytest.mark.parametrize(
    ("batches", "value", "says"),
    [([], {"steps": 1}, "the host has no clicks"), ([], {"steps": 1, "every": 0}, "every: expected a whole number")],
)
def test_the_task_names_what_it_cannot_use(batches, value, says):
    with pytest.raises(vmhost.TaskError, match=says):
        asked(batches, value)


@pytest.mark.parametrize("arguments", [["--examples", "5"], ["--epochs", "0"], ["--every", "0"]])
def test_the_command_of_ctr_says_what_it_takes(tmp_path, capsys, arguments):
    with pytest.raises(SystemExit):
        command.main([str(tmp_path / "new"), *arguments])
    assert "--examples: at least 512, --epochs and --every: at least 1" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
