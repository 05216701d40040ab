"""Transformers other than Marian through train.py: new models, and one that starts from a plain BART checkpoint."""

import pytest
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    NllbMoeConfig,
    PreTrainedTokenizerFast,
    pipeline,
)

import hf_capsule_mt
from hf_capsule_mt import CapsuleBartForConditionalGeneration
from hf_capsule_mt.data.tokenizer import train_tokenizer
from hf_capsule_mt.training.arguments import parse_arguments
from hf_capsule_mt.training.run import run
from hf_capsule_mt.training.setup import prepare
from tiny_models import PRE_NORM, STACKS

GUIDED = {"guided_routing": "routing", "guided_capsule_size": 5, "bow_loss_weight": 1, "bca_loss_weight": 0.5}
# the embedded corpus instead of files
GRAMMAR = {
    "dataset_name": "grammar",
    **dict.fromkeys(("train_file", "validation_file", "test_file", "data_dir")),
    "max_train_samples": 60,
    "max_eval_samples": 5,
    "max_test_samples": 6,
    "vocab_size": 500,
    "max_steps": 4,
}


@pytest.fixture
def plain_bart(corpus, tmp_path):
    """A plain BART checkpoint that begins and ends sentences as the pretrained ones do, with its tokenizer."""
    texts = [(corpus / f"train.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "de")]
    tokenizer: PreTrainedTokenizerFast = train_tokenizer([*texts[0], *texts[1]], 400, 40)
    tokenizer.save_pretrained(tmp_path / "plain")
    sizes = dict(d_model=12, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2)
    tokens = dict(pad_token_id=0, bos_token_id=5, eos_token_id=1, forced_eos_token_id=1, decoder_start_token_id=1)
    torch.manual_seed(1)
    model = BartForConditionalGeneration(
        BartConfig(
            vocab_size=len(tokenizer),
            encoder_ffn_dim=14,
            decoder_ffn_dim=14,
            max_position_embeddings=40,
            **sizes,
            **tokens,
        )
    )
    model.save_pretrained(tmp_path / "plain")
    return tmp_path / "plain"


def test_new_model_learns_and_translates_in_the_pipeline(command, tmp_path):
    arguments = command(model_type="capsule-bart", **GRAMMAR, **GUIDED)
    results = run(prepare(parse_arguments(arguments)), arguments)
    assert results["steps"] == 4 and [row["sentences"] for row in results["scores"]] == [5, 6]
    hf_capsule_mt.register()
    translator = pipeline("translation", model=str(tmp_path / "run"))
    model, tokenizer = translator.model, translator.tokenizer
    assert type(model) is CapsuleBartForConditionalGeneration
    assert (model.config.activation_function, model.config.scale_embedding) == ("gelu", False)
    assert (model.config.decoder_start_token_id, model.config.bos_token_id) == (tokenizer.pad_token_id, None)
    alone, *_ = both = translator(["The dog sleeps.", "The small child reads a book."], batch_size=2)
    assert len(both) == 2 and alone == translator("The dog sleeps.")[0]


def test_start_from_a_plain_bart_checkpoint(command, plain_bart, tmp_path, caplog):
    start = dict(model_name_or_path=plain_bart, decoder_layers=2, dropout=0.3)
    setup = prepare(parse_arguments(command(**start, **GUIDED)))
    assert type(setup.model) is CapsuleBartForConditionalGeneration
    assert setup.model.config.aggregation == "em_routing" and setup.model.config.dropout == 0.3
    assert "keeps its own architecture: decoder_layers=1, not 2" in caplog.text
    parent = BartForConditionalGeneration.from_pretrained(plain_bart).eval()
    inputs = {"input_ids": torch.tensor([[5, 6, 1]]), "decoder_input_ids": torch.tensor([[1, 7]])}
    assert torch.equal(setup.model.eval()(**inputs).logits, parent(**inputs).logits)
    assert run(setup)["steps"] == 12
    trained = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run").eval()
    assert trained.generation_config.decoder_start_token_id == trained.config.decoder_start_token_id == 1
    assert (trained(**inputs).logits - parent(**inputs).logits).abs().max() > 1e-3
    assert len(AutoTokenizer.from_pretrained(tmp_path / "run")) == trained.config.vocab_size


@pytest.mark.parametrize("family", PRE_NORM)
def test_new_models_that_normalise_first_start_as_they_are_trained(command, family, tmp_path):
    fields = GUIDED | {"layer_normalization": "final"}
    run(prepare(parse_arguments(command(model_type=f"capsule-{family}", **GRAMMAR, **fields))))
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert type(model) is STACKS[family].capsule_class and model.config.layer_normalization == "final"
    batch = tokenizer(["The dog sleeps.", "The small child reads a book."], padding=True, return_tensors="pt")
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    out = model.generate(**source, max_new_tokens=7, output_logits=True, return_dict_in_generate=True)
    # as labels they lead to the decoder inputs that they are
    labels = torch.cat([out.sequences[:, 1:], torch.full((2, 1), tokenizer.eos_token_id)], dim=1)
    inputs = model.prepare_decoder_input_ids_from_labels(labels)
    assert torch.equal(inputs, out.sequences) and (inputs[:, 0] == tokenizer.eos_token_id).all()
    logits = model(**source, labels=labels).logits[:, :-1]
    torch.testing.assert_close(torch.stack(out.logits, dim=1), logits, rtol=1e-3, atol=1e-4)


def test_a_mixture_of_experts_is_refused(command, tmp_path):
    NllbMoeConfig(d_model=8).save_pretrained(tmp_path / "moe")
    with pytest.raises(
        ValueError, match="moe is of type 'nllb-moe', a mixture of experts, for which there are no cap"
    ):
        prepare(parse_arguments(command(model_name_or_path=tmp_path / "moe")))


def test_layer_normalization_is_for_stacks_that_need_it(command):
    with pytest.raises(ValueError, match="the layers of a capsule-bart model are normalised already; leave it out"):
        prepare(parse_arguments(command(model_type="capsule-bart", layer_normalization="own")))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model_type": "capsule-marian"}, "is of model_type capsule-bart, not capsule-marian"),
        ({"share_encoder_decoder_embeddings": "true"}, "a capsule-bart model has no such field; leave it out"),
    ],
    ids=["another family", "foreign field"],
)
def test_mistakes_are_named(command, plain_bart, overrides, message):
    with pytest.raises(ValueError, match=message):
        prepare(parse_arguments(command(model_name_or_path=plain_bart, **overrides)))
