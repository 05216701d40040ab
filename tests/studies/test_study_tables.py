"""Tables of a study: what they say is what the runs' results and translations say."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from hf_capsule_mt import CapsuleMarianConfig
from hf_capsule_mt.evaluation.scores import score
from hf_capsule_mt.studies.command import main
from hf_capsule_mt.studies.tables import interval_figure

QUALITY = {"plain": 0.5, "linear": 0.97, "same": 0.5}
SIZES = dict(
    vocab_size=97,
    d_model=12,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=14,
    decoder_ffn_dim=14,
    max_position_embeddings=29,
    pad_token_id=0,
    eos_token_id=1,
    decoder_start_token_id=0,
    forced_eos_token_id=None,
)
SYSTEMS = {"plain": {}, "linear": {"aggregation": "linear"}, "same": {"aggregation": "dynamic"}}


@pytest.fixture
def finished(write_study, corpus, tmp_path):
    """A study whose runs are finished: results and translations, of which a part of the words is right."""

    def finish(seeds=(1, 2, 3), missing=(), **values) -> Path:
        path = write_study(systems=SYSTEMS, seeds=list(seeds), **values)
        references = (corpus / "test.de").read_text(encoding="utf-8").splitlines()
        for system, quality in QUALITY.items():
            for seed in seeds:
                if (system, seed) not in missing:
                    write_run(tmp_path / "runs" / system / f"seed-{seed}", references, quality, seed)
        return path

    return finish


def write_run(folder: Path, references: list[str], quality: float, seed: int) -> None:
    generator = random.Random(f"{folder.parent.name} {seed}")
    texts = [
        " ".join(word if generator.random() < quality else "null" for word in text.split()) for text in references
    ]
    (folder / "translations").mkdir(parents=True)
    (folder / "translations" / "test.greedy.de").write_text("".join(f"{t}\n" for t in texts), encoding="utf-8")
    row = {"split": "test", "beams": 1, "file": "translations/test.greedy.de", **score(texts, references)}
    results = {
        "scores": [row],
        "seed": seed,
        "steps": 6,
        "parameters": 8176,
        "train_seconds": 60.0 * seed,
        "tokens_per_second": 100.0,
        "threads": 1,
        "device": "cpu",
        "versions": {"torch": "2.0"},
    }
    aggregation = SYSTEMS.get(folder.parent.name, {}).get("aggregation", "none")
    CapsuleMarianConfig(**SIZES, aggregation=aggregation).save_pretrained(folder)
    (folder / "results.json").write_text(json.dumps(results))


def record_of(tmp_path: Path) -> dict:
    return json.loads((tmp_path / "runs" / "table" / "record.json").read_text())


def test_table_has_means_deviations_and_differences(finished, tmp_path, capsys):
    assert main(["table", str(finished()), "--draws", "500"]) == 0
    record = record_of(tmp_path)
    part = record["test_sets"]["test"]
    for name in ("bleu", "chrf", "ter"):
        for system in SYSTEMS:
            paths = [tmp_path / "runs" / system / f"seed-{seed}" / "results.json" for seed in (1, 2, 3)]
            values = [json.loads(path.read_text())["scores"][0][name] for path in paths]
            found = part["scores"][name][system]
            assert found["mean"] == pytest.approx(np.mean(values)) and found["runs"] == 3
            assert found["sd"] == pytest.approx(np.std(values, ddof=1))
            # at least that of the system's seeds alone, with the six degrees of freedom of three systems
            low, high = found["interval"]
            assert low < found["mean"] < high and high - low > 2 * 2.447 * found["sd"] / 3**0.5
    better, same = (part["comparisons"]["bleu"][system] for system in ("linear", "same"))
    assert better["difference"] == pytest.approx(
        part["scores"]["bleu"]["linear"]["mean"] - part["scores"]["bleu"]["plain"]["mean"]
    )
    assert better["p"] < better["p_holm"] < 0.05 < same["p"] and better["interval"][0] > 0 > same["interval"][0]
    assert part["comparisons"]["ter"]["linear"]["difference"] < 0
    assert record["systems"]["linear"]["runs"]["2"]["train_seconds"] == 120
    assert record["systems"]["linear"]["arguments"]["aggregation"] == "linear"
    output = capsys.readouterr().out
    assert output == (tmp_path / "runs" / "table" / "table.md").read_text() + "\n"
    assert f"{better['difference']:+.2f}" in output and "8,176" in output and "1, 2, 3" in output
    assert record["version"] in output and record["date"] in output and "tok:13a" in output


def test_record_alone_gives_the_same_tables(finished, tmp_path, capsys):
    assert main(["table", str(finished()), "--draws", "200"]) == 0
    folder = tmp_path / "runs" / "table"
    names = {path.name for path in folder.iterdir()}
    assert names == {"record.json", "table.md", "table.tex", "intervals.svg", "intervals.png"}
    assert main(["table", str(folder / "record.json"), "--table", str(tmp_path / "again")]) == 0
    for name in names - {"intervals.png"}:
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes(), name
    # it is committed: no path of this machine
    assert str(tmp_path) not in (folder / "record.json").read_text()


def test_one_seed_and_missing_runs(finished, tmp_path, capsys):
    assert main(["table", str(finished(missing=[("linear", 1), ("linear", 2), ("same", 1)])), "--draws", "200"]) == 0
    comparisons = record_of(tmp_path)["test_sets"]["test"]["comparisons"]["bleu"]
    assert (comparisons["linear"]["seeds"], comparisons["same"]["seeds"]) == (1, 2)
    assert "sentences resampled alone" in comparisons["linear"]["method"]
    assert "seeds and sentences" in comparisons["same"]["method"]
    assert "With one seed: sentences resampled alone" in capsys.readouterr().out


def test_changed_translations_are_found(finished, tmp_path, capsys):
    path = finished()
    translations = tmp_path / "runs" / "linear" / "seed-2" / "translations" / "test.greedy.de"
    text = translations.read_text(encoding="utf-8")
    translations.write_text(text.replace("null", "zehn"), encoding="utf-8")
    assert main(["table", str(path)]) == 2
    assert "the translations, or the test set, have changed" in capsys.readouterr().err
    translations.write_text(text.split("\n", 1)[1], encoding="utf-8")
    assert main(["table", str(path)]) == 2
    assert "has 16 lines, but there are 17 references" in capsys.readouterr().err


def test_nothing_finished_and_what_is_no_record(write_study, tmp_path, capsys):
    path = write_study()
    assert main(["table", str(path)]) == 2
    assert "begin with study run" in capsys.readouterr().err
    (tmp_path / "runs").mkdir()
    assert main(["table", str(path)]) == 2
    assert "no run of" in capsys.readouterr().err
    (tmp_path / "other.json").write_text('{"title": "x"}')
    assert main(["table", str(tmp_path / "other.json")]) == 2
    assert "is no record of a study: it has no date" in capsys.readouterr().err


def test_figure_shows_each_comparison(finished, tmp_path):
    assert main(["table", str(finished()), "--draws", "200"]) == 0
    record = record_of(tmp_path)
    (panel,) = interval_figure(record).axes
    assert [label.get_text() for label in panel.get_yticklabels()] == ["linear", "same"]
    comparisons = record["test_sets"]["test"]["comparisons"]["bleu"]
    drawn = [list(line.get_xdata()) for line in panel.get_lines()]
    for system in ("linear", "same"):
        assert comparisons[system]["interval"] in drawn and [comparisons[system]["difference"]] in drawn
    assert panel.get_xlabel() == "BLEU, difference to plain"


def test_figure_breaks_its_axis_where_systems_are_far_apart(finished, tmp_path):
    assert main(["table", str(finished()), "--draws", "200"]) == 0
    record = record_of(tmp_path)
    found = record["test_sets"]["test"]["comparisons"]["bleu"]["same"]
    runs = record["test_sets"]["test"]["scores"]["bleu"]["same"]["by_seed"]
    found["difference"], found["interval"] = found["difference"] + 1000, [bound + 1000 for bound in found["interval"]]
    runs.update({seed: value + 1000 for seed, value in runs.items()})
    near, far = interval_figure(record).axes
    assert near.get_xlim()[0] < 0 < near.get_xlim()[1] < far.get_xlim()[0]
    assert near.get_xlabel() == "BLEU, difference to plain" and not far.get_xlabel()
    drawn = [[list(line.get_xdata()) for line in panel.get_lines()] for panel in (near, far)]
    assert [found["interval"] in lines for lines in drawn] == [False, True]
    ratios = near.get_subplotspec().get_gridspec().get_width_ratios()
    spans = [panel.get_xlim()[1] - panel.get_xlim()[0] for panel in (near, far)]
    assert ratios[0] / ratios[1] == pytest.approx(spans[0] / spans[1])


def test_figure_without_a_system_near_the_compared_one(finished, tmp_path):
    assert main(["table", str(finished()), "--draws", "200"]) == 0
    record = record_of(tmp_path)
    scores = record["test_sets"]["test"]["scores"]["bleu"]
    for system, found in record["test_sets"]["test"]["comparisons"]["bleu"].items():
        scores[system]["by_seed"] = {seed: value - 1000 for seed, value in scores[system]["by_seed"].items()}
        found["difference"] -= 1000
        found["interval"] = [bound - 1000 for bound in found["interval"]]
    far, zero = interval_figure(record).axes
    assert far.get_xlabel() == "BLEU, difference to plain" and not zero.get_xlabel()
    low, high = zero.get_xlim()
    assert [tick for tick in zero.get_xticks() if low <= tick <= high] == [0]


def test_figure_has_two_numbers_where_there_is_room(finished, tmp_path):
    assert main(["table", str(finished()), "--draws", "200"]) == 0
    record = record_of(tmp_path)
    test_set = record["test_sets"]["test"]
    for system, difference, interval in (("linear", 0.1, [-0.55, 0.8]), ("same", -13.9, [-15.2, -12.6])):
        test_set["comparisons"]["bleu"][system] |= {"difference": difference, "interval": interval}
        test_set["scores"]["bleu"][system]["by_seed"] = {
            seed: value + difference for seed, value in test_set["scores"]["bleu"]["plain"]["by_seed"].items()
        }
    for panel in interval_figure(record).axes:
        low, high = panel.get_xlim()
        assert len([tick for tick in panel.get_xticks() if low <= tick <= high]) >= 2


def test_operations_are_counted_without_training(finished, tmp_path, capsys):
    path = finished()
    assert main(["table", str(path), "--draws", "200"]) == 0
    record, output = record_of(tmp_path), capsys.readouterr().out
    counted = {system: part["operations_per_token"] for system, part in record["systems"].items()}
    assert 0 < counted["plain"] < counted["linear"] < counted["same"]
    shown = [f"{counted[system] / 1e6:,.2f} ({counted[system] / counted['plain']:.2f}x)" for system in SYSTEMS]
    latex = (tmp_path / "runs" / "table" / "table.tex").read_text()
    assert all(text in output and text in latex for text in shown) and "(1.00x)" in shown[0]
    assert "of 16 sentences of 24 tokens" in output
    # another run of the system counts the same, and where none has left its configuration there is no figure
    for system in SYSTEMS:
        (tmp_path / "runs" / system / "seed-1" / "config.json").unlink()
    for seed in (2, 3):
        (tmp_path / "runs" / "linear" / f"seed-{seed}" / "config.json").unlink()
    assert main(["table", str(path), "--draws", "200"]) == 0
    again = {system: part["operations_per_token"] for system, part in record_of(tmp_path)["systems"].items()}
    assert again == {**counted, "linear": None}
