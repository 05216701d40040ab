"""Records a tiny checkpoint of the current version, which later versions must load and translate the same.

python tests/compatibility/record.py      # writes tests/compatibility/VERSION-SYSTEM/; what is there is kept
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402 (the path comes first)

from hf_capsule_mt import __version__  # noqa: E402
from hf_capsule_mt.models.configuration_capsule_rnn import CALIBRATED  # noqa: E402
from tiny_models import (  # noqa: E402
    bart_model,
    capsule_model,
    m2m100_model,
    mbart_model,
    rnn_model,
    sentence_batch,
)

LOSSES = {"bow_loss_weight": 1.0, "bca_loss_weight": 0.5}
SYSTEMS = {
    "em_routing": {"aggregation": "em_routing", "num_capsules": 4},
    "dynamic_routing_paper": {"aggregation": "dynamic_routing", "aggregation_init": "paper"},
    "dynamic_own_layer": {"aggregation": "dynamic", "capsule_inputs": "own_layer"},
    "linear": {"aggregation": "linear"},
    "guided_routing": {"aggregation": "none", "guided_routing": "routing", **LOSSES},
    "guided_classifier_on_em": {"aggregation": "em_routing", "guided_routing": "classifier", **LOSSES},
    "guided_attention": {"aggregation": "none", "guided_routing": "attention", **LOSSES},
    "guided_recurrent": {"aggregation": "none", "guided_routing": "recurrent", **LOSSES},
}
BASE = {"share_routing_weights": True, "position_aware_routing": False, "separable_scoring": False}
RECURRENT = {
    "rnn_simple": {"source_memory": "simple"},
    "rnn_capsule_base": {"source_memory": "capsule", **BASE},
    "rnn_capsule_calibrated": {"source_memory": "capsule", **CALIBRATED},
    "rnn_hybrid_guided_on_em": {
        "source_memory": "hybrid",
        "aggregation": "em_routing",
        "guided_routing": "routing",
        **LOSSES,
    },
}
BART = {"bart_guided_on_em": {"aggregation": "em_routing", "guided_routing": "routing", **LOSSES}}
M2M100 = {"m2m100_guided_on_em": {"aggregation": "em_routing", "guided_routing": "routing", **LOSSES}}
MBART = {"mbart_final_norm_on_em": {"aggregation": "em_routing", "layer_normalization": "final"}}
FAMILIES = (
    (capsule_model, SYSTEMS),
    (rnn_model, RECURRENT),
    (bart_model, BART),
    (m2m100_model, M2M100),
    (mbart_model, MBART),
)


def main(version: str = __version__, families: tuple = FAMILIES) -> None:
    builders = [(name, build, system) for build, systems in families for name, system in systems.items()]
    for name, build, system in builders:
        folder = HERE / f"{version}-{name}"
        if folder.exists():
            print(f"kept: {folder} (recorded checkpoints are never rewritten)")
            continue
        model = build(seed=4, **system)
        batch = sentence_batch()
        generated = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=8)
        model.save_pretrained(folder)
        # the code that travels with a checkpoint is not what is tested: later versions load it with their own
        for file in folder.glob("*.py"):
            file.unlink()
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
