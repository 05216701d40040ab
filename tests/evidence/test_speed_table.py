"""The tables of speed and memory."""

import pytest

from hf_capsule_mt.evidence import speed_tables


def cell(time_ratio, operation_ratio, spread=0.1):
    value = time_ratio / operation_ratio
    return {
        "time_ratio": time_ratio,
        "time_ratio_quartiles": [time_ratio - spread, time_ratio + spread],
        "operation_ratio": operation_ratio,
        "time_over_operations": value,
        "time_over_operations_quartiles": [value - spread, value + spread],
        "turns": 5,
    }


@pytest.fixture
def record():
    parent = {"parent": "marian", "training step": cell(1.0, 1.0), "memory": {"memory_ratio": 1.0}}
    return {
        "d_model": 512,
        "layers": 6,
        "rnn_encoder_layers": 4,
        "rnn_decoder_layers": 3,
        "vocab_size": 32000,
        "tokens": 4096,
        "dtype": "float32",
        "source": "newstest2014.en-de.en",
        "environment": {"threads": 2, "torch": "2.13.0"},
        "tests": {"code": {"revision": "0123456789ab", "dirty": True, "passed": {"a.py": 1000, "b.py": 234}}},
        "results": {
            "marian": parent,
            "em_routing": {
                "parent": "marian",
                "training step": cell(1.25, 1.2),
                "greedy, 1 sentence": cell(1.5, 1.25),
                "memory": {"memory_ratio": 1.2},
            },
            "guided_routing": {"parent": "marian", "memory": {"memory_ratio": 1.2}},
        },
        "operators": {
            "additive_scores": {"shapes": [[2, 3], [4]], "time_ratio": 0.5, "time_ratio_quartiles": [0.4, 0.6]}
        },
    }


def test_figures_and_why_they_are_above_one(record, monkeypatch):
    monkeypatch.setitem(speed_tables.REASONS, ("em_routing", "memory"), "the votes")
    monkeypatch.setitem(speed_tables.REASONS, ("guided_routing", "memory"), "the votes")
    monkeypatch.setitem(speed_tables.REASONS, ("linear", "memory"), "is not measured")
    lines = speed_tables.speed_table(record).splitlines()
    assert lines[2:4] == [
        "| EM routing | `MarianMTModel` | 1.25x [1.15, 1.35] (1.20x) | 1.50x [1.40, 1.60] (1.25x) | - | 1.20x |",
        "| GDR | `MarianMTModel` | - | - | - | 1.20x |",
    ]
    assert "newstest2014.en-de.en" in lines[5] and "`0123456789ab` with changes." in lines[5]
    assert lines[6:8] == ["", "What takes longer than its operations do in the parent, or more memory:"]
    assert lines[8:] == ["", "- EM routing; GDR: the votes (training memory)."]
    assert len({line.count("|") for line in lines[:4]}) == 1


def test_the_summary_is_one_number_each(record):
    serving = {
        "size": {"vocab_size": 8000},
        "results": {
            "greedy, threads: 1": {"onnx em_routing": {"time_ratio": 1.11}},
            "beam 5, threads: 1": {
                "onnx em_routing": {"time_ratio": 1.35},
                "onnx int8 em_routing": {"time_ratio": 0.4},
            },
            "greedy, threads: 2": {"onnx em_routing": {"time_ratio": 9.0}},
        },
    }
    lines = speed_tables.speed_summary(record, None, serving).splitlines()
    assert "| EM routing | 1.25x | 1.20x | 1.50x | - | - | 1.11x to 1.35x |" in lines
    assert "| GDR | - | 1.20x | - | - | - | - |" in lines
    assert "threads: 2, float32" in lines[-1] and "V 8,000, threads: 1" in lines[-1]
    assert "CTranslate2's" not in speed_tables.speed_summary(record, None, None)
    # a record is left as it is: two tables are made of it
    memory = {
        "results": {"linear": {"parent": "marian", "memory": {"memory_ratio": 0.8}}},
        "environment": {"threads": 1},
    }
    speed_tables.speed_summary(record, memory, None)
    assert "linear" not in record["results"]


def test_a_gpu_has_a_table_of_its_own_and_a_column_of_the_summary(record):
    gpu = {
        **record,
        "dtype": "bfloat16",
        "environment": {"torch": "2.11.0", "machine": "NVIDIA H100"},
        "results": {
            "marian": {"parent": "marian", "training step": cell(1.0, 1.0)},
            "em_routing": {"parent": "marian", "training step": cell(1.75, 1.2)},
        },
    }
    lines = speed_tables.gpu_table(gpu).splitlines()
    assert lines[2:4] == ["| EM routing | 1.75x [1.65, 1.85] (1.20x) |", ""]
    assert "NVIDIA H100" in lines[4] and "bfloat16" in lines[4] and "5 turns" in lines[4]
    summary = speed_tables.speed_summary(record, None, None, gpu).splitlines()
    assert "| EM routing | 1.25x | 1.20x | 1.50x | - | 1.75x | - |" in summary
    assert "on NVIDIA H100, bfloat16" in summary[-1]
    assert speed_tables.gpu_table(None) == "not run"


def test_what_costs_less_than_its_operations_is_not_explained(record, monkeypatch):
    record["results"]["em_routing"]["memory"]["memory_ratio"] = 0.9
    monkeypatch.setitem(speed_tables.REASONS, ("em_routing", "memory"), "the votes")
    assert "the votes" not in speed_tables.speed_table(record)


def test_operators(record):
    assert (
        speed_tables.operators_table(record).splitlines()[-1]
        == "| `additive_scores` | [2, 3], [4] | 0.50x [0.40, 0.60] |"
    )


def test_allocator(record):
    cells = {"rnn_simple": cell(1.0, 1.0), "rnn_capsule": cell(1.3, 1.2)}
    kept = {"rnn_simple": cell(1.0, 1.0), "rnn_capsule": cell(1.2, 1.2)}
    records = [
        {
            "environment": {"threads": 2, **settings},
            "results": {name: {"parent": "rnn_simple", "training step": value} for name, value in found.items()},
        }
        for found, settings in ((cells, {}), (kept, {"MALLOC_MMAP_MAX_": "0", "MALLOC_ARENA_MAX": "1"}))
    ]
    lines = speed_tables.allocator_table(*records).splitlines()
    assert lines[2:4] == [
        "| CapsNMT | 1.30x [1.20, 1.40] (1.20x) | 1.20x [1.10, 1.30] (1.20x) |",
        "",
    ]
    assert lines[-1].endswith("Pages kept: `MALLOC_MMAP_MAX_=0 MALLOC_ARENA_MAX=1`.")
    assert speed_tables.allocator_table(record, None) == "not run"


def test_without_a_record():
    assert (
        speed_tables.speed_table(None)
        == speed_tables.speed_summary(None, None, None)
        == speed_tables.operators_table(None)
        == "not run"
    )


def test_memory_at_the_size_of_nllb():
    systems = {
        "plain": {"parameters": 615_073_792, "trained_parameters": 615_073_792, "peak_bytes": 5_986_770_944},
        "LoRA": {"parameters": 732_785_152, "trained_parameters": 60_035_328, "peak_bytes": 2_121_809_920},
    }
    record = {"systems": systems, "dtype": "bfloat16", "optimizer": "AdamW", "gradient_checkpointing": True}
    record |= {"sentences": 8, "length": 32, "environment": {"torch": "2", "transformers": "5"}}
    table = speed_tables.large_memory_table(record).splitlines()
    assert table[2:4] == ["| plain | 615 | 615 | 5.6 |", "| LoRA | 733 | 60 | 2.0 |"]
    assert "8 sentences of 32 tokens" in table[-1] and "gradient checkpointing" in table[-1]
    assert speed_tables.large_memory_table(None) == "not run"


def test_cold_starts():
    record = {
        "run": "multi30k/none",
        "turns": 9,
        "environment": {"threads": 1, "torch": "2.13.0", "onnxruntime": "1.32.0"},
        "results": {"OnnxTranslator": {"seconds": 0.206, "seconds_quartiles": [0.199, 0.231]}},
    }
    table = speed_tables.cold_start_table(record).splitlines()
    assert table[2] == "| OnnxTranslator | 0.21 [0.20, 0.23] |"
    assert "9 turns" in table[-1] and speed_tables.cold_start_table(None) == "not run"
