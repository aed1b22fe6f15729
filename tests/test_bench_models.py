"""How `vmhost bench models` evaluates times: ratios against the best peer, validity, excluded peers; and that it
runs."""

import json

import pytest

from bench import report
from bench.cases import models
from bench.measure import Figure
from bench.model_engines import MNN, InTheHost, ONNXRuntime, OpenVINO
from bench.model_process import EngineFailed, Runner

TIMES = {
    "in the host": (2.0, 4.0, 9.0),
    "in a VM": (4.0, 5.0, 6.0),
    "ONNX Runtime": (3.0, 9.0, 10.0),
    "OpenVINO": (5.0, 6.0, 7.0),
    "MNN": (1.0, 1.0, 1.0),
}


def judged(left_out=(), worst=1e-6, agree=True):
    figures = {who: Figure(values, "ms", "less") for who, values in TIMES.items()}
    return models._judged(
        "din",
        2,
        figures,
        dict.fromkeys(TIMES, worst),
        agree,
        dict.fromkeys(left_out, "why"),
        {"OpenVINO": {"version": "1"}},
    )


def test_ratios_are_the_best_peers_time_over_ours_by_least_times_and_by_medians():
    result = judged(left_out=["MNN"])
    assert result.name == "din, 2 threads"
    json.dumps(report.as_dict([result]))
    ratios = report.as_dict([result])["ratios"]["din, 2 threads"]
    assert (ratios["minimum"], ratios["median"], ratios["best_peer"]) == (
        1.5,
        1.5,
        {"minimum": "ONNX Runtime", "median": "OpenVINO"},
    )
    assert ratios["in a VM"] == {"minimum": 0.75, "median": 1.2} and ratios["valid"] is True
    assert ratios["engines"] == {"OpenVINO": {"version": "1"}} and ratios["left_out"] == {"MNN": "why"}
    assert result.promises[0] == ("1.50x OpenVINO by medians, 1.50x ONNX Runtime by least times (reach 2)", False)
    assert judged().ratios["minimum"] == 0.5


@pytest.mark.parametrize("missing", [["ONNX Runtime"], ["OpenVINO"], ["ONNX Runtime", "OpenVINO"]])
def test_a_comparison_without_what_is_needed_says_that_it_is_invalid(missing):
    result = judged(left_out=missing)
    assert result.ratios["valid"] is False and "minimum" not in result.ratios and "median" not in result.ratios
    assert result.promises == ((f"INVALID: compared without {' and '.join(missing)}", False),)


@pytest.mark.parametrize("changes", [{"worst": 2e-4}, {"agree": False}])
def test_outputs_that_differ_are_a_promise_missed(changes):
    assert judged().promises[1][1] and not judged(**changes).promises[1][1]


def test_what_an_engine_says_and_its_end_are_told(tmp_path):
    with Runner(InTheHost) as runner:
        with pytest.raises(EngineFailed, match="FileNotFoundError|LookupError"):
            runner.open(tmp_path, 1)
        runner._process.kill()
        with pytest.raises(EngineFailed, match="ended with status -9"):
            runner.rates()


def test_it_runs_and_peers_leave_nothing_in_the_users_home(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(home))
    results = models.run(True, ("din",))
    assert [result.name for result in results] == ["din, 1 thread", "din, 2 threads"][: len(results)]
    for result in results:
        assert result.ratios["valid"] is (OpenVINO in models.installed())
        assert list(result.figures)[:3] == ["in the host", "in a VM", "ONNX Runtime"]
        assert all(len(figure.values) == 5 and min(figure.values) > 0 for figure in result.figures.values())
        assert max(result.ratios["outputs_differ"].values()) < 1e-4
        assert (MNN.NAME in result.figures) is (MNN in models.installed()), result.ratios["left_out"]
        assert result.ratios["engines"]["ONNX Runtime"]["threads"] == result.ratios["threads"]
    assert list(home.iterdir()) == []


def test_memory_is_that_of_the_process(tmp_path):
    with Runner(ONNXRuntime, tmp_path) as runner:
        before = runner.memory_mib()
        assert 0 < before < runner.peak_mib(lambda: pytest.raises(EngineFailed, runner.open, tmp_path, 1))
