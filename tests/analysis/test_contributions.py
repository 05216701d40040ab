"""The loss of given translations without the parts that were added to a model."""

import pytest
import torch

from hf_capsule_mt.analysis.contributions import contributions
from hf_capsule_mt.data.grammar import generate_corpus
from hf_capsule_mt.data.tokenizer import train_tokenizer
from tiny_models import bart_model, capsule_model, m2m100_model, open_gates, rnn_model

SYSTEMS = {
    "linear": (capsule_model, dict(aggregation="linear"), ["encoder", "decoder"]),
    "em_encoder": (capsule_model, dict(aggregation="em_routing", aggregate_decoder=False), ["encoder"]),
    "bart": (
        bart_model,
        dict(aggregation="dynamic_routing", guided_routing="routing"),
        ["encoder", "decoder", "guided"],
    ),
    "m2m100": (m2m100_model, dict(aggregation="dynamic"), ["encoder", "decoder"]),
    "recurrent": (capsule_model, dict(aggregation="none", guided_routing="recurrent"), ["guided"]),
    "rnn": (
        rnn_model,
        dict(source_memory="hybrid", aggregation="em_routing", guided_routing="attention", bow_loss_weight=1.0),
        ["encoder", "decoder", "guided"],
    ),
}


@pytest.fixture(scope="module")
def corpus():
    pairs = generate_corpus(11, seed=5)
    texts = [text for pair in pairs for text in (pair.source, pair.target)]
    return [pair.source for pair in pairs], [pair.target for pair in pairs], train_tokenizer(texts, 420, 97)


def model_of(name, tokenizer):
    """All parts are in use: gates open, the guided capsules' weights those of a network that has learned."""
    build, options, parts = SYSTEMS[name]
    sizes = dict(max_position_embeddings=97) if build is not rnn_model else {}
    model = open_gates(build(vocab_size=len(tokenizer), label_smoothing=0.0, **sizes, **options))
    if "guided" in parts:
        torch.nn.init.normal_(model.guided_head.output_proj.weight, std=0.5)
    return model, parts


def loss_of(model, corpus):
    """Nats per target token, sentence by sentence, with the loss of the model."""
    sources, targets, tokenizer = corpus
    total = tokens = 0
    for source, target in zip(sources, targets, strict=True):
        batch = tokenizer(source, text_target=target, return_tensors="pt")
        with torch.no_grad():
            logits = model(**batch).logits
        total += torch.nn.functional.cross_entropy(logits[0], batch["labels"][0], reduction="sum").item()
        tokens += batch["labels"].numel()
    return total / tokens


@pytest.mark.parametrize("name", SYSTEMS)
def test_losses_are_those_of_the_model_without_the_part(name, corpus):
    model, parts = model_of(name, corpus[2])
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = contributions(model, corpus[2], *corpus[:2])
    assert list(found) == ["loss", *(f"without_{part}" for part in parts)]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert found["loss"] == pytest.approx(loss_of(model, corpus), rel=1e-5)
    for part in parts:
        model, _ = model_of(name, corpus[2])
        model.load_state_dict(before)
        if part == "guided":
            head, read = model.guided_head, model.guided_head.read

            def unread(states, routed, read=read):
                return read(states, routed._replace(capsules=torch.zeros_like(routed.capsules)))

            head.read = unread
        else:
            # the stack as if it had no aggregate
            stack = model.get_encoder() if part == "encoder" else model.get_decoder()
            stack.aggregate_layers = lambda layers, output_agreements=False: (layers[-1], None)
        expected = loss_of(model, corpus)
        assert abs(expected - found["loss"]) > 1e-3
        assert found[f"without_{part}"] == pytest.approx(expected, rel=1e-5)


def test_batches_do_not_matter_and_progress_is_shown(corpus):
    model, _ = model_of("rnn", corpus[2])
    model.train()
    done = []
    whole = contributions(model, corpus[2], *corpus[:2])
    single = contributions(model, corpus[2], *corpus[:2], max_tokens=1, progress=lambda *counts: done.append(counts))
    assert model.training
    assert done == [(count, 11) for count in range(1, 12)]
    assert single == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize(
    "build",
    [
        lambda words: capsule_model(vocab_size=words, max_position_embeddings=97, aggregation="none"),
        lambda words: capsule_model(
            vocab_size=words, max_position_embeddings=97, aggregation="em_routing", aggregation_init="paper"
        ),
        lambda words: rnn_model(vocab_size=words, source_memory="capsule"),
    ],
    ids=["plain", "printed", "capsnmt"],
)
def test_nothing_where_there_is_nothing_to_leave_out(build, corpus):
    assert contributions(build(len(corpus[2])), corpus[2], *corpus[:2]) == {}


def test_pairs_that_do_not_fit_are_refused(corpus):
    model, _ = model_of("linear", corpus[2])
    with pytest.raises(ValueError, match="there are 11 sources and 1 translations"):
        contributions(model, corpus[2], corpus[0], corpus[1][:1])
