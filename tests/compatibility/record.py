"""Records a tiny checkpoint of the current version, which later versions must load and translate the same.

python tests/compatibility/record.py      # writes tests/compatibility/VERSION-SYSTEM/; never rewrite an old one
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402 (the path comes first)

from hf_capsule_mt import __version__  # noqa: E402
from tiny_models import capsule_model, rnn_model, sentence_batch  # noqa: E402

LOSSES = {"bow_loss_weight": 1.0, "bca_loss_weight": 0.5}
SYSTEMS = {
    "em_routing": {"aggregation": "em_routing", "num_capsules": 4},
    "dynamic_routing_paper": {"aggregation": "dynamic_routing", "aggregation_init": "paper"},
    "dynamic_own_layer": {"aggregation": "dynamic", "capsule_inputs": "own_layer"},
    "linear": {"aggregation": "linear"},
    "guided_routing": {"aggregation": "none", "guided_routing": "routing", **LOSSES},
    "guided_classifier_on_em": {"aggregation": "em_routing", "guided_routing": "classifier", **LOSSES},
    "guided_attention": {"aggregation": "none", "guided_routing": "attention", **LOSSES},
}
BASE = {"share_routing_weights": True, "position_aware_routing": False, "separable_scoring": False}
RECURRENT = {
    "rnn_simple": {"source_memory": "simple"},
    "rnn_capsule_base": {"source_memory": "capsule", **BASE},
    "rnn_hybrid_guided_on_em": {
        "source_memory": "hybrid",
        "aggregation": "em_routing",
        "guided_routing": "routing",
        **LOSSES,
    },
}


def main() -> None:
    builders = [(name, capsule_model, system) for name, system in SYSTEMS.items()]
    builders += [(name, rnn_model, system) for name, system in RECURRENT.items()]
    for name, build, system in builders:
        folder = HERE / f"{__version__}-{name}"
        if folder.exists():
            raise SystemExit(f"{folder} exists: recorded checkpoints are not rewritten")
        model = build(seed=4, **system)
        batch = sentence_batch()
        generated = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=8)
        model.save_pretrained(folder)
        expected = {
            "input_ids": batch["input_ids"].tolist(),
            "labels": batch["labels"].tolist(),
            "loss": model(**batch).loss.item(),
            "generated": generated.tolist(),
            "torch": torch.__version__,
        }
        (folder / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
