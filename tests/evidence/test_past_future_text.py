"""The tables of the probes."""

from hf_capsule_mt.evidence import translation_tables


def entry(seed, auc, **fields):
    """An entry of past_future_probe.py."""
    numbers = {"accuracy": 0.9, "auc": auc, "diagonal_accuracy": 0.85, "diagonal_auc": 0.9, "majority_accuracy": 0.5}
    numbers |= {f"{kind}{group}_overlap": 0.25 for kind in ("", "frequent_") for group in ("past", "future")}
    intervals = {name: [value - 0.01, value + 0.01] for name, value in numbers.items()}
    intervals["auc_above_diagonal"] = [0.01, 0.09]
    results = {**numbers, "decisions": 1234, "sentences": 100, "intervals": intervals}
    common = {"seed": seed, "alignment": "by hand", "draws": 2000, "rol_predictor": "trained", "results": results}
    losses = {"bow_loss_weight": 1.0, "bca_loss_weight": 1.0, "guided_loss_normalization": "sentence"}
    return {"guided_routing": "routing", **losses, **common, **fields}


def test_a_row_for_each_run_and_the_controls(monkeypatch):
    plain = entry(2, 0.55, bow_loss_weight=0.0, bca_loss_weight=0.0, rol_predictor="fitted")
    records = {"past_future/europarl100.json": [entry(1, 0.95), plain]}
    monkeypatch.setattr(translation_tables, "load", records.get)
    lines = translation_tables.past_future_text_table().splitlines()
    start = "| GDR + BOW + BCA | 1 | Europarl, aligned by hand | 0.900 [0.890, 0.910] | 0.950 [0.940, 0.960] |"
    assert lines[2] == f"{start} 0.050 [0.010, 0.090] | 0.25 [0.24, 0.26] | 0.25 [0.24, 0.26] |"
    assert lines[3].startswith("| GDR | 2 |") and lines[3].endswith("0.25 [0.24, 0.26] (fitted) |")
    assert lines[4].startswith("| *diagonal* | - | Europarl, aligned by hand | 0.850 [0.840, 0.860] | 0.900 [")
    assert lines[5].startswith("| *always the most frequent answer* |") and len(lines) == 8
    assert "1,234 decisions in 100 sentences" in lines[7] and "test2016, fast_align: not run yet." in lines[7]


def test_means_over_the_seeds_of_a_system(monkeypatch):
    plain = entry(1, 0.55, bow_loss_weight=0.0, bca_loss_weight=0.0, rol_predictor="fitted")
    entries = [entry(1, 0.95), entry(2, 0.97), plain, entry(1, 0.99, guided_loss_normalization="token")]
    for bleu, one in zip((90.0, 92.0, 95.0, 80.0), entries, strict=True):
        one |= {"test_bleu": bleu, "steps": 1200}
    monkeypatch.setattr(translation_tables, "load", {"past_future/grammar.json": entries}.get)
    lines = translation_tables.past_future_table().splitlines()
    assert lines[2] == "| GDR | 1 | 0.900 | 0.550 | 0.25 (fitted) | 0.25 (fitted) | 95.0 |"
    assert lines[3] == (
        "| GDR + BOW + BCA | 2 | 0.900 ± 0.000 | 0.960 ± 0.014 | 0.25 ± 0.00 | 0.25 ± 0.00 | 91.0 ± 1.4 |"
    )
    assert lines[4].startswith("| GDR + BOW + BCA, weighed per token | 1 | 0.900 | 0.990 |")
    assert lines[5] == "| *diagonal* | - | 0.850 | 0.900 | - | - | - |"
    assert "1,200 updates" in lines[8]
