"""The task deepfm: from Parquet to a served model, by its command; the generator; what the task refuses."""

import re

import numpy
import onnxruntime
import pyarrow
import pytest

import vmhost
from tasks.deepfm import __main__ as command
from tasks.deepfm import clicks
from vmhost import engine
from vmhost.compiler import compile_folder
from vmhost.engine import nn

pyarrow.array(range(1000))  # here, since its allocator keeps the thread that it starts now
LIMITED = pytest.approx(0.834, abs=0.006)  # the generator's best AUC, on any sample of this size


def test_from_parquet_to_a_served_model(tmp_path, capsys):
    assert command.main([str(tmp_path), "--examples", "48000", "--epochs", "2"]) == 0
    output = capsys.readouterr().out
    own, best = map(float, re.search(r"AUC: ([\d.]+) of .*best possible: ([\d.]+)", output).groups())
    assert best == LIMITED and 0.70 < own < best
    assert re.search(r"trained: 186 steps of 512", output)
    # the engine's model and ONNX Runtime give the same answers for the same network
    batch = next(clicks.batches(tmp_path / "test.parquet", 100))
    inputs = {"ids": batch["ids"], "numbers": batch["numbers"]}
    served = engine.load(str(tmp_path / "deepfm.vmm"))(inputs)["click"]
    [onnx] = onnxruntime.InferenceSession(str(tmp_path / "deepfm.onnx")).run(None, inputs)
    assert numpy.allclose(served, onnx, atol=1e-5)


def test_clicks_are_the_same_for_a_seed_and_drawn_with_their_probability(tmp_path):
    one, same, other = clicks.generate(48_000, 1), clicks.generate(48_000, 1), clicks.generate(48_000, 2)
    assert all((one[name] == same[name]).all() for name in one) and (one["user"] != other["user"]).any()
    for columns in (one, other):
        assert nn.auc(columns["click"], columns["probability"]) == LIMITED
        assert columns["click"].mean() == pytest.approx(columns["probability"].mean(), abs=0.01)
    clicks.write(tmp_path / "some.parquet", one)
    seen = [batch for batch in clicks.batches(tmp_path / "some.parquet", 1000, seed=1)]
    assert sum(batch["clicks"].sum() for batch in seen) == one["click"].sum()  # each once, in another order
    assert not (seen[0]["clicks"] == one["click"][:1000]).all()


def asked(batches, value):
    left = iter(batches)
    with vmhost.Host(allow_unsigned=True, functions={"batch": lambda _: next(left, None)}) as host:
        return host.load(compile_folder(command.HERE).to_bytes())(value)


def batch(ids):
    return {
        "ids": numpy.array(ids, "int64"),
        "numbers": numpy.zeros((len(ids), 2), "float32"),
        "clicks": numpy.zeros(len(ids), "float32"),
    }


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "the host has no clicks"),
        ([batch([[0, 9], [1, 10]])], "ids from 0 to 9, got 0 to 10"),
        ([batch([[0, 1], [2, 3]]), batch([[0, -1], [2, 3]])], "ids from 0 to 9, got -1 to 3"),
        ([batch([[0, 1]])], "at least 2, got shapes"),
    ],
)
def test_wrong_batches_are_named(batches, message):
    with pytest.raises(vmhost.TaskError, match=message):
        asked(batches, {"rows": 10, "steps": 10})


def test_the_same_batches_give_the_same_network():
    batches = [batch([[k % 5, 5 + k % 3], [k % 4, 7]]) for k in range(20)]
    one, again = (asked(batches, {"rows": 10, "steps": 20}) for _ in range(2))
    other = asked(batches, {"rows": 10, "steps": 20, "seed": 1})
    assert one["onnx"] == again["onnx"] != other["onnx"] and one["steps"] == 20


@pytest.mark.parametrize("arguments", [["--examples", "5"], ["--epochs", "0"]])
def test_the_command_says_what_it_takes(tmp_path, capsys, arguments):
    with pytest.raises(SystemExit):
        command.main([str(tmp_path / "new"), *arguments])
    assert "--examples: at least 512, --epochs: at least 1" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
