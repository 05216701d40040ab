"""The figures of a report show its numbers."""

import sys

import numpy as np
import pytest

from hf_capsule_mt.analysis import plots
from hf_capsule_mt.analysis.agreement_figure import LARGEST_RATIO


def panels(figure):
    """Its axes without colour bars."""
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def routing_of(report, name):
    return report["systems"][1]["routing"][name]


class TestHeatmaps:
    def test_one_for_each_iteration_in_relation_to_uniform(self, report):
        statistics = routing_of(report, "encoder")
        drawn = [axes.images[0].get_array() for axes in panels(plots.agreement_heatmaps(statistics, "encoder"))]
        means = np.array([iteration["mean"] for iteration in statistics["iterations"]])
        assert [image.shape for image in drawn] == [(2, 7)] * 3
        np.testing.assert_allclose(drawn[0], 1)
        # the same columns in the same order in every heatmap
        clipped = np.clip(means * 7, 1 / LARGEST_RATIO, LARGEST_RATIO)
        columns = {tuple(np.round(column, 9)) for column in clipped.transpose(2, 0, 1).reshape(7, -1)}
        assert {tuple(np.round(column, 9)) for column in np.stack(drawn).transpose(2, 0, 1).reshape(7, -1)} == columns
        share = drawn[-1][1] / drawn[-1].sum(axis=0)
        assert share[0] < share[-1]

    def test_limits_extreme_ratios(self):
        statistics = {"iterations": [{"mean": [[1.0, *[0.0] * 19]]}]}
        image = panels(plots.agreement_heatmaps(statistics))[0].images[0].get_array()
        assert (image.max(), image.min()) == (LARGEST_RATIO, 1 / LARGEST_RATIO)


class TestLines:
    def test_entropy_and_diversity(self, report):
        statistics = routing_of(report, "decoder")
        entropy, diversity = panels(plots.entropy_diversity({"decoder": statistics}))
        uniform, line = entropy.lines
        assert uniform.get_ydata()[0] == pytest.approx(np.log(7))
        assert line.get_xydata().tolist() == [[i + 1, s["entropy"]] for i, s in enumerate(statistics["iterations"])]
        assert diversity.lines[0].get_ydata().tolist() == [s["diversity"] for s in statistics["iterations"]]

    def test_floating_point_noise_does_not_fill_the_axis(self):
        steps = [{"entropy": 2.0 + 1e-15 * i, "diversity": 1e-16 * i, "mean": []} for i in range(3)]
        for panel in panels(plots.entropy_diversity({"encoder": {"uniform_entropy": 2.0, "iterations": steps}})):
            assert np.ptp(panel.get_ylim()) > 0.04
        # the axis of diversity, which is never negative, does not look as if it were
        assert panel.get_ylim()[0] > -0.01

    def test_length_buckets_of_systems_with_different_ones(self, report):
        first, second = (system["buckets"] for system in report["systems"])
        bleu, ratio = panels(plots.length_buckets({"a": first, "b": second[1:]}))
        assert [label.get_text() for label in bleu.get_xticklabels()] == ["1\N{EN DASH}10\n(4)", "over 10\n(3)"]
        assert bleu.get_xlabel() == "source length, words (sentences)"
        assert [line.get_xydata().tolist() for line in bleu.lines] == [[[0, 30.0], [1, 15.0]], [[1, 15.75]]]
        assert ratio.lines[1].get_ydata().tolist() == pytest.approx([5 / 5.5, 1])
        assert len({(line.get_color(), line.get_marker()) for line in bleu.lines}) == 2

    def test_guided_progress_with_empty_tenths(self, report):
        statistics = routing_of(report, "guided")
        statistics["by_progress"][3] = [None] * 3
        panel = panels(plots.guided_progress(statistics))[0]
        uniform, *lines = panel.lines
        assert uniform.get_ydata()[0] == pytest.approx(1 / 3)
        for group, line in enumerate(lines):
            expected = [row[group] for row in statistics["by_progress"]]
            np.testing.assert_allclose(line.get_ydata(), np.array(expected, dtype=float))
        assert lines[0].get_xdata()[:2].tolist() == [5, 15]

    def test_memory_shares_are_percent(self, report):
        statistics = routing_of(report, "memory")
        panel = panels(plots.memory_shares(statistics))[0]
        heights = [[bar.get_height() for bar in container] for container in panel.containers]
        np.testing.assert_allclose(heights, [[100 * s for s in i["shares"]] for i in statistics["iterations"]])


class TestGuidedMaps:
    def test_moves_are_found_where_past_rises_most(self):
        past = np.array([[0.0, 0.0], [0.1, 0.5], [0.375, 0.55], [0.25, 0.5]])
        assignment = np.stack([past, 1 - past], axis=-1)
        assert plots.moves_to_past(assignment, least_rise=0.2) == [(1, 0), (0, 1)]
        assert plots.moves_to_past(assignment, least_rise=0.3) == [(1, 0)]
        assert plots.moves_to_past(assignment[:1]) == []

    def test_columns_are_past_and_future_of_each_step(self, report):
        example = report["systems"][1]["examples"][0]
        axes = panels(plots.guided_maps(example))[0]
        drawn = np.ma.filled(axes.images[0].get_array(), np.nan)
        assignment = np.array(example["guided"]["assignment"])
        for step in range(5):
            np.testing.assert_array_equal(drawn[:, 3 * step], assignment[step, :, 0])
            np.testing.assert_array_equal(drawn[:, 3 * step + 1], assignment[step, :, 1])
        assert np.isnan(drawn[:, 2]).all()
        assert [label.get_text() for label in axes.get_yticklabels()] == example["source_tokens"]
        # the word of step t in the columns of t and t + 1
        frames = [(frame.get_x() + 0.5, frame.get_y() + 0.5, frame.get_width()) for frame in axes.patches]
        assert frames == [(3 * word, word, 5) for word in range(4)]

    def test_the_middle_of_the_scale_is_neutral_and_uniform(self, report):
        figure = plots.guided_maps(report["systems"][1]["examples"][0])
        (image,) = panels(figure)[0].images
        assert (image.norm.vmin, image.norm.vcenter, image.norm.vmax) == (0, pytest.approx(1 / 3), 1)
        red, green, blue, _ = image.cmap(image.norm(1 / 3))
        assert min(red, green, blue) > 0.95
        (bar,) = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
        assert [label.get_text() for label in bar.get_yticklabels()] == ["0", "0.33, uniform", "1"]

    def test_attentions_are_compared_with_attention_to_all_words_alike(self, report):
        example = report["systems"][1]["examples"][0]
        example["guided"]["assignment"] = [[[0.25, 0.1], [0.25, 0.2], [0.25, 0.3], [0.25, 0.4]]] * 5
        assert panels(plots.guided_maps(example))[0].images[0].norm.vcenter == 0.25

    def test_frames_of_a_given_alignment(self, report):
        axes = panels(plots.guided_maps(report["systems"][1]["examples"][0], alignment=[(2, 1)]))[0]
        assert [(frame.get_x(), frame.get_y()) for frame in axes.patches] == [(2.5, 1.5)]

    def test_long_translations_get_more_rows(self):
        words = plots.WORDS_PER_ROW + 3
        tokens = [f"w{index}" for index in range(words)]
        tokens[3] = "Donaudampfschifffahrtsgesellschaft"
        assignment = np.random.default_rng(0).dirichlet([1, 1], size=(words, 2)).tolist()
        example = {"source_tokens": ["a", "b"], "target_tokens": tokens, "guided": {"assignment": assignment}}
        first, second = panels(plots.guided_maps(example))
        drawn = [label.get_text() for axes in (first, second) for label in axes.get_xticklabels()]
        assert drawn == [*tokens[:3], "Donaudampfschifffah…", *tokens[4:]]
        assert second.images[0].get_array()[1, 6] == assignment[-1][1][0]


class TestReport:
    def test_everything_that_there_are_numbers_for(self, report):
        drawn = [(figure.id, figure.system) for figure in plots.draw_figures(report)]
        assert drawn == [
            ("source_length", None),
            ("routed_entropy_and_diversity", "routed"),
            ("routed_agreement_of_the_encoder", "routed"),
            ("routed_agreement_of_the_decoder", "routed"),
            ("routed_capsules_of_the_source_memory", "routed"),
            ("routed_groups_over_the_translation", "routed"),
            ("routed_assignment_word_by_word", "routed"),
        ]

    def test_a_report_without_routing_has_only_lengths(self, report):
        del report["systems"][1]
        assert [figure.id for figure in plots.draw_figures(report)] == ["source_length"]

    def test_names_that_look_alike_get_their_own_files(self, report):
        report["systems"] = [{**report["systems"][1], "name": name} for name in ("a/b", "a b", "模型")]
        ids = [figure.id for figure in plots.draw_figures(report)]
        assert len(set(ids)) == len(ids) == 19
        assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_") for name in ids)

    @pytest.mark.parametrize("name", ["_hidden", "a_b$c$d"])
    def test_names_of_systems_are_no_markup(self, report, name, tmp_path):
        figure = plots.length_buckets({"x": report["systems"][0]["buckets"], name: report["systems"][1]["buckets"]})
        assert len(figure.legends[0].get_texts()) == 2
        assert plots.save(figure, tmp_path / "new" / "figure.svg").stat().st_size > 1000

    def test_files_of_both_kinds(self, report, tmp_path):
        figure = next(iter(plots.draw_figures(report))).figure
        assert plots.save(figure, tmp_path / "a.svg").read_text(encoding="utf-8").startswith("<?xml")
        assert plots.save(figure, tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")

    def test_says_what_to_install(self, report, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(ImportError, match=r"hf_capsule_mt\[plots\]"):
            next(plots.draw_figures(report))
