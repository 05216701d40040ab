"""Scores against a number: which systems make a line, and that the figure shows means, intervals and runs."""

import copy

import pytest

from hf_capsule_mt.studies.command import main
from hf_capsule_mt.studies.curves import curve_figure, curve_lines
from hf_capsule_mt.studies.study_file import find_study, read_study, resolve_arguments
from hf_capsule_mt.studies.tables import write_tables

EM = {"aggregation": "em_routing", "d_model": 12}
SYSTEMS = {
    "none": {"aggregation": "none", "d_model": 12},
    "em 12": {**EM, "num_capsules": 12},
    "em 2": {**EM, "num_capsules": 2},
    "em R1": {**EM, "num_capsules": 4, "routing_iterations": 1},
    "dynamic 2": {**EM, "aggregation": "dynamic_routing", "num_capsules": 2},
    "dynamic 4": {**EM, "aggregation": "dynamic_routing", "num_capsules": 4},
    "yes": {**EM, "num_capsules": True},
    "default": EM,
}


def scores_of(values: list[float]) -> dict:
    mean = sum(values) / len(values)
    by_seed = {str(seed): value for seed, value in enumerate(values, 1)}
    return {"mean": mean, "sd": 1.0, "runs": len(values), "interval": [mean - 3, mean + 2], "by_seed": by_seed}


@pytest.fixture
def record():
    means = {"none": 30, "em 2": 31, "em 12": 35, "dynamic 2": 29, "dynamic 4": 33}
    part = {
        "sentences": 9,
        "scores": {s: {name: scores_of([m - 1, m + 1]) for name, m in means.items()} for s in ("bleu", "chrf", "ter")},
        "comparisons": {"bleu": {}, "chrf": {}, "ter": {}},
    }
    return {
        "study": "curves",
        "title": "Curves",
        "date": "2026-01-02",
        "version": "0.1",
        "compare_with": "none",
        "score": "bleu",
        "curves": ["num_capsules"],
        "method": "by hand",
        "signatures": {},
        "systems": {name: {"arguments": arguments, "runs": {}} for name, arguments in SYSTEMS.items()},
        "test_sets": {"test": part, "other": copy.deepcopy(part)},
    }


def test_a_line_is_systems_that_differ_in_the_argument_alone():
    assert curve_lines(SYSTEMS, "num_capsules") == {
        "em_routing": [(2, "em 2"), (12, "em 12")],
        "dynamic_routing": [(2, "dynamic 2"), (4, "dynamic 4")],
    }
    assert list(curve_lines({name: SYSTEMS[name] for name in ("none", "em 2", "em 12")}, "num_capsules")) == [""]
    numbers = {str((x, y)): {"x": x, "y": y} for x in (1, 2) for y in (0.5, None)}
    assert list(curve_lines(numbers, "x")) == ["y=0.5", "y=null"]
    # what a line does not say is not in its name, and what others do not say is named
    some = {str((x, y)): {"x": x, "z": "same", **({"y": y} if y else {})} for x in (1, 2) for y in ("a", "b", None)}
    assert list(curve_lines(some, "x")) == ["y=a", "y=b", ""]
    assert curve_lines(SYSTEMS, "routing_iterations") == {}


def test_the_figure_has_means_intervals_runs_and_the_compared_system(record):
    panels = curve_figure(record, "num_capsules").axes
    assert [panel.get_title() for panel in panels] == ["test", "other"]
    for panel in panels:
        lines = {line.get_label(): line for line in panel.get_lines()}
        assert list(lines["em_routing"].get_ydata()) == [31, 35]
        assert list(lines["dynamic_routing"].get_ydata()) == [29, 33]
        assert set(lines["none"].get_ydata()) == {30}
        drawn = [list(line.get_ydata()) for line in panel.get_lines()]
        assert all([mean - 3, mean + 2] in drawn and [mean - 1, mean + 1] in drawn for mean in (31, 35, 29, 33))
        assert [label.get_text() for label in panel.get_xticklabels()] == ["2", "4", "12"]
        assert (panel.get_xlabel(), panel.get_ylabel()) == ("number of capsules N", "BLEU")


def test_the_legend_hides_no_interval_and_fits_into_the_figure(record):
    mean = {"em_density": "geometric_mean"}
    for name, other in (("em 2 mean", "em 2"), ("em 12 mean", "em 12")):
        record["systems"][name] = {"arguments": {**SYSTEMS[other], **mean}, "runs": {}}
        record["test_sets"]["test"]["scores"]["bleu"][name] = scores_of([30, 32])
    del record["test_sets"]["other"]
    figure = curve_figure(record, "num_capsules")
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "em_routing",
        "dynamic_routing",
        "em_routing, em_density=geometric_mean",
        "none",
    ]
    box, panel = legend.get_window_extent(), figure.axes[0].get_tightbbox()
    assert box.y1 <= panel.y0
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y0 >= 0


def test_a_point_without_a_finished_run_is_left_out(record):
    for test_set in record["test_sets"].values():
        del test_set["scores"]["bleu"]["em 2"]
    lines = {line.get_label(): line for line in curve_figure(record, "num_capsules").axes[0].get_lines()}
    assert list(lines["em_routing"].get_ydata()) == [35]


def test_study_table_draws_it_from_the_record(record, tmp_path):
    assert {path.name for path in write_tables(record, tmp_path)} >= {
        "curve_num_capsules.svg",
        "curve_num_capsules.png",
    }
    del record["curves"]
    assert not [path for path in write_tables(record, tmp_path / "none") if path.name.startswith("curve")]


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        ("num_capsules", "curves must be a list of different arguments, such as [num_capsules], got 'num_capsules'"),
        ([1], "curves must be a list"),
        (["x", "x"], "curves must be a list of different"),
        (["num_capsules"], "curves: no two systems differ in num_capsules alone; give it a number in each"),
    ],
    ids=["text", "number", "twice", "alone"],
)
def test_mistakes(write_study, capsys, curves, message):
    systems = {"plain": {}, "one": {"aggregation": "em_routing", "num_capsules": 2}}
    assert main(["table", str(write_study(systems=systems, curves=curves))]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "argument", "values"),
    [("grammar_capsules", "num_capsules", [4, 32, 128]), ("grammar_iterations", "routing_iterations", [1, 3, 5])],
)
def test_studies_of_the_package(name, argument, values):
    study = read_study(find_study(name))
    lines = curve_lines(resolve_arguments(study), argument)
    assert study.curves == [argument]
    # capsules of one dimension are the same with both densities
    ours = [point.value for point in lines.pop("em_routing, em_density=geometric_mean", [])]
    assert ours == ([4, 32] if argument == "num_capsules" else [])
    assert list(lines) == ["dynamic_routing", "em_routing"]
    assert all([point.value for point in points] == values for points in lines.values())
