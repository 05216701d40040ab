"""The benchmark of decoding time against source length: what it counts, its statistics, and its record."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def benchmark():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import linear_time

        yield linear_time


@pytest.fixture(scope="module")
def record(benchmark):
    arguments = ["linear_time.py", "--size", "tiny", "--threads", "1", "--rounds", "5", "--tokens", "3"]
    arguments += ["--lengths", "130", "7", "100", "--systems", "transformer", "rnmt", "hybrid", "simple", "capsnmt_4"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", arguments)
        return json.loads(json.dumps(benchmark.run(benchmark.parse())))


def test_record_has_every_system_length_and_quantity(benchmark, record):
    assert record["lengths"] == [7, 100, 130]
    assert list(record["results"]) == ["transformer", "rnmt", "hybrid", "simple", "capsnmt_4"]
    for row in record["results"].values():
        assert set(row["times"]) == {"encoder", "first token", "token", "sentence"}
        for times in row["times"].values():
            assert list(times) == ["7", "100", "130"]
            assert all(point["median_ms"] > 0 and point["ratio"] > 0 for point in times.values())
        assert row["encoder_growth"]["lengths"] == [100, 130]
    assert benchmark.table(record).count("\n") == 6


def test_operations_of_a_token_grow_with_the_source_only_where_the_decoder_attends_to_it(record):
    def growth(system):
        operations = record["results"][system]["operations_per_token"]
        return (operations["130"] - operations["7"]) / (130 - 7)

    assert growth("capsnmt_4") == growth("simple") == 0
    width = record["d_model"]
    assert all(growth(system) > width for system in ("transformer", "rnmt", "hybrid"))


def test_picture_is_drawn_from_a_record(benchmark, record, tmp_path):
    pytest.importorskip("matplotlib")
    benchmark.draw(record, tmp_path / "picture.svg")
    picture = (tmp_path / "picture.svg").read_text()
    assert all(benchmark.SYSTEMS[name].label in picture for name in record["results"])


def test_missing_matplotlib_is_named(benchmark, record, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match="plots"):
        benchmark.draw(record, tmp_path / "picture.svg")


def test_trend_recovers_a_slope_and_its_interval_has_the_stated_coverage(benchmark, monkeypatch):
    lines = [[1.0 + slope * x for x in (10, 20, 50)] for slope in (0.4, 0.5, 0.6, 0.5, 0.5)]
    estimate = benchmark.trend([10, 20, 50], lines)
    assert estimate["mean"] == pytest.approx(0.5)
    assert estimate["interval"][0] < 0.5 < estimate["interval"][1]

    monkeypatch.setattr(benchmark, "RESAMPLES", 1000)
    samples = np.random.default_rng(0).normal(3.0, 2.0, (300, 10))
    intervals = [benchmark.bootstrap_interval(sample.tolist()) for sample in samples]
    covered = np.mean([low <= 3.0 <= high for low, high in intervals])
    assert 0.91 < covered < 0.985


def test_interval_of_equal_values_is_the_value(benchmark):
    assert benchmark.bootstrap_interval([2.0] * 5) == [2.0, 2.0]
