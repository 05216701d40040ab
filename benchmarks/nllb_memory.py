"""Memory of fine-tuning a model of NLLB-200's distilled 600M size with capsules, each system in a process of its own.

    python benchmarks/nllb_memory.py --output hf_capsule_mt/evidence/records/speed/nllb_memory.json

The weights are random, and of the type bfloat16, as are gradients and the states of AdamW. Two updates on a short
batch are made with gradient checkpointing, the second of which has the optimizer's states. The peak is the process's
largest resident size in these updates, less what was resident before the model was built, with an allocator setting
under which freed tensors leave the process (see memory.py).
"""

import argparse
import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import M2M100Config, M2M100ForConditionalGeneration

from hf_capsule_mt import CapsuleM2M100Config, CapsuleM2M100ForConditionalGeneration
from memory import ALLOCATOR, UPDATES, reset_resident_peak, resident_peak
from timing import environment, write_record

# facebook/nllb-200-distilled-600M
NLLB_600M = dict(
    vocab_size=256206,
    d_model=1024,
    encoder_layers=12,
    decoder_layers=12,
    encoder_ffn_dim=4096,
    decoder_ffn_dim=4096,
    encoder_attention_heads=16,
    decoder_attention_heads=16,
    max_position_embeddings=1024,
    encoder_layerdrop=0.0,
    decoder_layerdrop=0.0,
)
# what is made before, so that libraries that are loaded at their first use are not memory of the training
TINY = NLLB_600M | dict(vocab_size=100, d_model=16, encoder_layers=1, decoder_layers=1)
OWN_LAYER = {"aggregation": "em_routing", "capsule_inputs": "own_layer"}
GUIDED = {"guided_routing": "routing", "bow_loss_weight": 1.0, "bca_loss_weight": 1.0}
# fields of the configuration; None for the plain model
SYSTEMS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "guided routing": {"aggregation": "none", **GUIDED},
    "EM routing": {"aggregation": "em_routing"},
    "EM routing, own layer, and guided": {**OWN_LAYER, **GUIDED},
    "EM routing, own layer, and guided, with LoRA": {**OWN_LAYER, **GUIDED},
}
LORA = LoraConfig(
    task_type="SEQ_2_SEQ_LM",
    r=16,
    target_modules=["q_proj", "v_proj"],
    modules_to_save=["aggregation", "guided_source", "guided_head"],
)


def build(system: str, sizes: dict[str, Any]) -> torch.nn.Module:
    """The model of a system in bfloat16, ready to train."""
    fields = SYSTEMS[system]
    kind, config = M2M100ForConditionalGeneration, M2M100Config(**sizes)
    if fields is not None:
        kind, config = CapsuleM2M100ForConditionalGeneration, CapsuleM2M100Config(**sizes, **fields)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = kind(config)
    finally:
        torch.set_default_dtype(before)
    model.gradient_checkpointing_enable()
    if system.endswith("LoRA"):
        # else the checkpointed layers would see no input that needs a gradient
        model.enable_input_require_grads()
        # not in float32, which is what peft would make of them
        model = get_peft_model(model, LORA, autocast_adapter_dtype=False)
    return model.train()


def train(model: torch.nn.Module, sentences: int, length: int) -> None:
    """Makes the updates."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    tokens = torch.randint(5, model.config.vocab_size, (sentences, length))
    for _ in range(UPDATES):
        optimizer.zero_grad()
        model(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens).loss.backward()
        optimizer.step()


def measure(system: str, sentences: int, length: int) -> dict[str, Any]:
    """What a system takes, measured in this process."""
    train(build(system, TINY), sentences, length)
    gc.collect()
    before = reset_resident_peak()
    model = build(system, NLLB_600M)
    # while it is built, every tied embedding has memory of its own
    gc.collect()
    reset_resident_peak()
    train(model, sentences, length)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "peak_bytes": resident_peak() - before,
    }


def measure_apart(system: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a system takes, measured in a new process.

    Raises:
        subprocess.CalledProcessError: if the process fails, for want of memory for example.
    """
    worker = [sys.executable, __file__, "--worker", system, "--threads", str(arguments.threads)]
    worker += ["--sentences", str(arguments.sentences), "--length", str(arguments.length)]
    output = subprocess.run(worker, env=os.environ | ALLOCATOR, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--sentences", type=int, default=8)
    parser.add_argument("--length", type=int, default=32, help="tokens of a sentence, on either side")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", type=Path, help="JSON; what it has of other systems is kept")
    parser.add_argument("--worker", choices=SYSTEMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.worker:
        print(json.dumps(measure(arguments.worker, arguments.sentences, arguments.length)))
        return
    record = {
        "environment": environment() | ALLOCATOR,
        "model": NLLB_600M,
        "dtype": "bfloat16",
        "optimizer": "AdamW",
        "gradient_checkpointing": True,
        "sentences": arguments.sentences,
        "length": arguments.length,
        "updates": UPDATES,
        "systems": {},
    }
    if arguments.output and arguments.output.exists():
        record["systems"] = json.loads(arguments.output.read_text(encoding="utf-8"))["systems"]
    for system in arguments.systems:
        found = record["systems"][system] = measure_apart(system, arguments)
        print(
            f"{system}: {found['parameters'] / 1e6:,.0f} million parameters, {found['trained_parameters'] / 1e6:,.1f} "
            f"trained; peak {found['peak_bytes'] / 2**30:.2f} GiB",
            flush=True,
        )
        if arguments.output:
            write_record(arguments.output, record)


if __name__ == "__main__":
    main()
