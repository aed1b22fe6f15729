"""`vmhost explain`: the steps of a model with their algorithms and times, from ONNX, a model file or a bundle."""

import json

import pytest

from tests import networks
from vmhost.engine.onnx import compile_model, compiled


@pytest.fixture
def onnx(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(networks.small())
    return path


def test_a_table_tells_of_every_step(vmhost, onnx):
    code, out, err = vmhost("explain", onnx, "--runs", "2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "net: input float32[1, 3, 32, 32] -> output float32[1, 10]"
    assert lines[1] == f"compiled: {compiled(onnx.read_bytes(), 'net').savings}" and " fused (" in lines[1]
    (stem,) = (line.split() for line in lines if " stem " in line)
    assert stem[:5] == ["Conv", "direct", "stem", "1x4x16x16", "0.2"]
    assert lines[-1].split()[0] == "all" and float(lines[-1].split()[2]) > 0


def test_json_holds_the_same_and_sums_up(vmhost, tmp_path, onnx):
    path = tmp_path / "net.vmm"
    path.write_bytes(compile_model(onnx.read_bytes(), "net"))
    code, out, _ = vmhost("explain", path, "--runs", "1", "--threads", "1", "--search", "fixed", "--json")
    document = json.loads(out)
    (model,) = document["models"]
    assert (code, document["search"], document["threads"]) == (0, "fixed", 1)
    assert model["inputs"] == [{"name": "input", "dtype": "float32", "shape": [1, 3, 32, 32]}]
    assert model["ms"] == pytest.approx(sum(step["ms"] for step in model["steps"]))
    assert (
        model["expected_ms"] == pytest.approx(sum(step["expected_ms"] for step in model["steps"]))
        and model["expected_ms"] > 0
    )
    assert {step["kind"] for step in model["steps"]} >= {"Input", "Conv", "MaxPool", "Gemm", "Output"}
    assert model["lowering"] is None  # only ONNX tells what compiling it saved
    idle = [step for step in model["steps"] if step["algorithm"] == "nothing"]
    assert (
        model["in_place"] == {"steps": len(idle), "bytes": sum(step["bytes"] for step in idle)} and len(idle) == 1
    )  # the Flatten of a pixel
    document = json.loads(vmhost("explain", onnx, "--runs", "1", "--json")[1])
    assert document["models"][0]["lowering"] == compiled(onnx.read_bytes(), "net").savings.plain()


@pytest.fixture
def fonts():
    """Matplotlib keeps the font files open that it has read."""
    yield
    from matplotlib import font_manager

    font_manager._get_font.cache_clear()


def test_models_of_a_bundle_and_a_picture(vmhost, bundle, tmp_path, onnx, fonts):
    (tmp_path / "sample").mkdir()
    onnx.rename(tmp_path / "sample" / "net.onnx")
    path = bundle("def run(value):\n    return value\n", more="models: {first: net.onnx, second: net.onnx}\n")
    picture = tmp_path / "steps.svg"
    code, out, err = vmhost("explain", path, "--runs", "1", "--picture", picture)
    assert (code, out.count(" stem ")) == (0, 2) and "written: " in err
    assert "<svg" in picture.read_text()[:500]
    code, out, _ = vmhost("explain", path, "--runs", "1", "--model", "second", "--json")
    assert (code, [model["name"] for model in json.loads(out)["models"]]) == (0, ["second"])
    code, _, err = vmhost("explain", path, "--model", "third")
    assert code == 2 and "there is no model 'third'; there are first, second" in err
    code, _, err = vmhost("explain", path, "--runs", "1", "--picture", tmp_path / "no folder" / "steps.svg")
    assert code == 2 and "the picture cannot be written here" in err


def test_what_is_no_model_is_refused(vmhost, bundle, tmp_path):
    code, _, err = vmhost("explain", tmp_path / "absent.onnx")
    assert code == 2 and "no such file" in err
    (tmp_path / "damaged.vmm").write_bytes(b"VMEMODEL" + bytes(200))
    code, _, err = vmhost("explain", tmp_path / "damaged.vmm")
    assert code == 3 and "not a model file" in err
    code, _, err = vmhost("explain", bundle("def run(value):\n    return value\n"))
    assert code == 2 and "has no models" in err


def test_open_sizes_are_chosen(vmhost, tmp_path):
    path = tmp_path / "images.onnx"
    path.write_bytes(networks.images())
    code, out, _ = vmhost("explain", path, "--runs", "1", "--json", "--size", "batch=3")
    [model] = json.loads(out)["models"]
    assert (
        code == 0
        and model["inputs"][0]["shape"] == ["batch", 3, 32, 32]
        and model["steps"][0]["shape"] == [3, 3, 32, 32]
    )
    assert json.loads(vmhost("explain", path, "--runs", "1", "--json")[1])["models"][0]["steps"][0]["shape"] == [
        1,
        3,
        32,
        32,
    ]
    code, _, err = vmhost("explain", path, "--size", "n=3")
    assert code != 0 and "there is no open size 'n'; expected 'batch'" in err
    code, _, err = vmhost("explain", path, "--size", "batch")
    assert code != 0 and "--size: expected NAME=N, N 1 or more, got 'batch'" in err
