"""The probe of source memories, and the table of what it found."""

import json
import math

import memory_probe
import pytest
import torch

from hf_capsule_mt import CapsuleRNNConfig, CapsuleRNNForConditionalGeneration
from hf_capsule_mt.evidence import translation_tables


def saved_run(folder, tokenizer, dataset="grammar", **config):
    """A run of a tiny recurrent model."""
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": len(tokenizer)}
    sizes |= {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    sizes["decoder_start_token_id"] = tokenizer.pad_token_id
    torch.manual_seed(1)
    CapsuleRNNForConditionalGeneration(CapsuleRNNConfig(**sizes, **config)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    given = {"dataset_name": dataset, "source_lang": "en", "target_lang": "de"}
    (folder / "results.json").write_text(json.dumps({"arguments": given, "seed": 7, "steps": 3}))
    return str(folder)


def test_even_routing_uses_every_capsule(tmp_path, grammar_tokenizer, capsys):
    runs = [
        saved_run(tmp_path / name / "seed-7", grammar_tokenizer, routing_iterations=number, num_source_capsules=4)
        for name, number in (("one", 1), ("three", 3))
    ]
    output = tmp_path / "memory.json"
    assert memory_probe.main([*runs, "--sentences", "5", "--output", str(output)]) == 0
    even, routed = json.loads(output.read_text())
    assert [even["system"], even["seed"], even["sentences"]] == ["one", 7, 5]
    (first,) = even["memory"]["iterations"]
    assert first["capsules_in_use"] == pytest.approx(4) and first["assignment_entropy"] == pytest.approx(math.log(4))
    assert len(routed["memory"]["iterations"]) == 3
    assert routed["memory"]["iterations"][-1]["assignment_entropy"] < math.log(4) - 1e-3
    assert "capsules in use 4.00\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"source_memory": "simple"}, "has no capsules in a source memory; leave it out"),
        ({"dataset": None}, "was not trained on the embedded corpus"),
    ],
)
def test_runs_without_an_answer_are_refused(tmp_path, grammar_tokenizer, capsys, fields, message):
    run = saved_run(tmp_path / "run", grammar_tokenizer, **fields)
    assert memory_probe.main([run, "--sentences", "5", "--output", str(tmp_path / "memory.json")]) != 0
    assert message in capsys.readouterr().err and not (tmp_path / "memory.json").exists()


def test_table_has_means_over_the_seeds(monkeypatch):
    def entry(seed, used):
        rows = [
            {"capsules_in_use": 6.0, "assignment_entropy": 1.79},
            {"capsules_in_use": used, "assignment_entropy": 1.0},
        ]
        return {"system": "no_balance", "seed": seed, "sentences": 50, "steps": 1200, "memory": {"iterations": rows}}

    scores = {"no balance": {"by_seed": {"1": 30.0, "2": 32.0}}}
    study = {"score": "bleu", "test_sets": {"test": {"scores": {"bleu": scores}}}}
    records = {"grammar/memory.json": [entry(1, 4.0), entry(2, 5.0)], "studies/grammar_recurrent.json": study}
    monkeypatch.setattr(translation_tables, "load", records.get)
    lines = translation_tables.capsule_parts_table().splitlines()
    assert lines[2] == "| no balance | 31.0 ± 1.4 | 4.50 ± 0.71 | 1.00 ± 0.00 |"
    assert "over the seeds 1, 2; 50 test sentences, 1,200 updates" in lines[-1]
