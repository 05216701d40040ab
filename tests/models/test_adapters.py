"""Fine-tuning of a converted NLLB-like model: LoRA adapters and the capsules train, all else stays as it is."""

import io
from contextlib import redirect_stdout

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForSeq2SeqLM

from hf_capsule_mt import CapsuleM2M100ForConditionalGeneration
from tiny_models import STACKS, sentence_batch

SYSTEMS = {"aggregation": "em_routing", "guided_routing": "routing", "bow_loss_weight": 1.0, "guided_capsule_size": 5}
# the modules that conversion adds: they train as they are, and are saved with the adapters
CAPSULES = ["aggregation", "guided_source", "guided_head"]


def lora_of(model: torch.nn.Module) -> PeftModel:
    config = LoraConfig(
        task_type="SEQ_2_SEQ_LM",
        r=2,
        target_modules=["self_attn.q_proj", "self_attn.v_proj"],
        modules_to_save=CAPSULES,
    )
    return get_peft_model(model, config)


def converted(folder) -> CapsuleM2M100ForConditionalGeneration:
    return CapsuleM2M100ForConditionalGeneration.from_pretrained(folder, **SYSTEMS)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """NLLB in small: M2M100 with relu, scaled and tied embeddings, more words than anything else."""
    folder = tmp_path_factory.mktemp("nllb") / "plain"
    torch.manual_seed(3)
    stack = STACKS["m2m100"]
    stack.plain_class(stack.plain_config(vocab_size=211)).save_pretrained(folder)
    return folder


def test_capsules_and_adapters_train_and_nothing_else(plain, tmp_path):
    torch.manual_seed(0)
    base, batch = converted(plain), sentence_batch(vocab=211, target_vocab=211)
    lora = lora_of(base).eval()
    parent = STACKS["m2m100"].plain_class.from_pretrained(plain).eval()
    assert torch.equal(lora(**batch).logits, parent(**batch).logits)

    trained = {name: p.detach().clone() for name, p in lora.named_parameters() if p.requires_grad}
    frozen = {name: p.detach().clone() for name, p in lora.named_parameters() if not p.requires_grad}
    assert all("lora_" in name or "modules_to_save" in name for name in trained)
    adapters = 2 * (3 + 2) * (12 + 12) * 2
    new = sum(p.numel() for name, p in converted(plain).named_parameters() if any(part in name for part in CAPSULES))
    assert lora.get_nb_trainable_parameters()[0] == adapters + new
    with redirect_stdout(io.StringIO()) as shown:
        lora.print_trainable_parameters()
    assert shown.getvalue().startswith(f"trainable params: {adapters + new:,} || all params: ")

    optimizer = torch.optim.Adam([p for p in lora.parameters() if p.requires_grad], lr=0.01)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        out = lora(**batch)
        out.loss.backward()
        optimizer.step()
        losses.append(out.loss.item())
    assert losses[-1] < losses[0]
    parameters = dict(lora.named_parameters())
    assert all(torch.equal(parameters[name], value) for name, value in frozen.items())
    assert [name for name, value in trained.items() if torch.equal(parameters[name], value)] == []

    expected = lora(**batch)
    lora.save_pretrained(tmp_path / "adapters")
    again = PeftModel.from_pretrained(converted(plain), tmp_path / "adapters").eval()
    torch.testing.assert_close(again(**batch).logits, expected.logits)
    # the whole model, which needs no adapters any more
    lora.merge_and_unload().save_pretrained(tmp_path / "merged")
    merged = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "merged").eval()
    assert type(merged) is CapsuleM2M100ForConditionalGeneration
    torch.testing.assert_close(merged(**batch).logits, expected.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(merged(**batch).loss, expected.loss)


def test_it_translates_with_its_adapters(plain):
    torch.manual_seed(0)
    lora, batch = lora_of(converted(plain)).eval(), sentence_batch(vocab=211, target_vocab=211)
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    options = dict(num_beams=3, max_new_tokens=6, forced_bos_token_id=9)
    parent = STACKS["m2m100"].plain_class.from_pretrained(plain).eval()
    assert torch.equal(lora.generate(**source, **options), parent.generate(**source, **options))
    told = lora.generate(**source, **options, output_agreements=True)
    assert told.guided_assignment.shape[0] == 3 and len(told.encoder_agreements) == 3
