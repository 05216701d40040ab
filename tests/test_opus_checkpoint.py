"""A checkpoint laid out like OPUS-MT's (SentencePiece files, vocab.json, MarianTokenizer) converts and translates."""

import io
import json

import pytest
import sentencepiece
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianMTModel, MarianTokenizer, pipeline

import hf_capsule_mt
from hf_capsule_mt import CapsuleMarianMTModel
from hf_capsule_mt.data.grammar import generate_corpus
from tiny_models import open_gates, plain_config

# sacremoses normalises punctuation in MarianTokenizer; without it the tokenizer only warns
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")


def train_pieces(texts: list[str], path) -> list[str]:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=150, hard_vocab_limit=False, minloglevel=2
    )
    path.write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [processor.id_to_piece(i) for i in range(3, len(processor))]


@pytest.fixture(params=["shared", "separate"])
def opus_checkpoint(tmp_path, request):
    """As on the Hub: decoding starts with <pad>, the last entry of the vocabulary."""
    pairs = generate_corpus(300)
    folder = tmp_path / "opus"
    folder.mkdir()
    source = train_pieces([pair.source for pair in pairs], folder / "source.spm")
    target = train_pieces([pair.target for pair in pairs], folder / "target.spm")
    separate = request.param == "separate"
    vocabularies = {"vocab": source if separate else [*source, *(t for t in target if t not in source)]}
    if separate:
        vocabularies["target_vocab"] = target
    sizes = {}
    for name, pieces in vocabularies.items():
        entries = {piece: i for i, piece in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}
        (folder / f"{name}.json").write_text(json.dumps(entries))
        sizes[name] = len(entries)
    tokenizer = MarianTokenizer(
        str(folder / "source.spm"),
        str(folder / "target.spm"),
        str(folder / "vocab.json"),
        target_vocab_file=str(folder / "target_vocab.json") if separate else None,
        source_lang="en",
        target_lang="de",
        separate_vocabs=separate,
        model_max_length=41,
    )
    tokenizer.save_pretrained(folder)
    pad = sizes["vocab"] - 1
    torch.manual_seed(2)
    config = plain_config(
        vocab_size=sizes["vocab"],
        decoder_vocab_size=sizes.get("target_vocab", sizes["vocab"]),
        share_encoder_decoder_embeddings=not separate,
        pad_token_id=pad,
        decoder_start_token_id=min(pad, sizes.get("target_vocab", pad + 1) - 1),
        eos_token_id=0,
        forced_eos_token_id=0,
    )
    MarianMTModel(config).save_pretrained(folder)
    return folder


def test_converted_opus_checkpoint_translates_like_its_parent(opus_checkpoint, tmp_path):
    model = CapsuleMarianMTModel.from_pretrained(opus_checkpoint, aggregation="em_routing", num_capsules=4)
    model.save_pretrained(tmp_path / "converted")
    AutoTokenizer.from_pretrained(opus_checkpoint).save_pretrained(tmp_path / "converted")
    hf_capsule_mt.register()
    sentences = ["The dog sleeps.", "", "The small child reads a book."]
    translators = [
        pipeline("translation_en_to_de", model=str(path), max_new_tokens=9)
        for path in (opus_checkpoint, tmp_path / "converted")
    ]
    parent, ours = (translator(sentences, batch_size=3) for translator in translators)
    assert parent == ours and ours[1]["translation_text"] == ""
    assert type(translators[1].model) is CapsuleMarianMTModel


def test_converted_opus_checkpoint_trains_and_reloads(opus_checkpoint, tmp_path):
    model = CapsuleMarianMTModel.from_pretrained(opus_checkpoint, aggregation="dynamic_routing")
    tokenizer = AutoTokenizer.from_pretrained(opus_checkpoint)
    pairs = generate_corpus(8)
    texts = {"text": [p.source for p in pairs], "text_target": [p.target for p in pairs]}
    batch = tokenizer(**texts, return_tensors="pt", padding=True, truncation=True)
    batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
    optimizer = torch.optim.Adam(open_gates(model).parameters(), lr=1e-2)
    losses = []
    for _ in range(4):
        loss = model.eval()(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    model.save_pretrained(tmp_path / "trained")
    reloaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "trained").eval()
    assert torch.equal(reloaded(**batch).logits, model(**batch).logits)
