"""PFRNN (guided_routing="recurrent"): its loops, its place in the models, and its states under generate()."""

import pytest
import torch
from transformers import CompileConfig, DynamicCache, EncoderDecoderCache, GenerationConfig, StaticCache

from hf_capsule_mt.models.capsule_cache import GuidedCacheLayer, RecurrentCacheLayer
from hf_capsule_mt.models.capsule_guided import GuidedSource, RecurrentHead
from hf_capsule_mt.models.capsule_past_future import attention_contexts, recurrent_states
from hf_capsule_mt.reference import guided_routing as reference
from tiny_models import EOS, PAD, VOCAB, bart_model, capsule_config, capsule_model, rnn_model, sentence_batch

PFRNN = {"aggregation": "none", "guided_routing": "recurrent", "bow_loss_weight": 1.0, "bca_loss_weight": 0.7}
MODELS = {
    "marian": lambda **fields: capsule_model(**PFRNN, **fields),
    "bart": lambda **fields: bart_model(**PFRNN, **fields),
    "rnmt": lambda **fields: rnn_model(source_memory="attention", **PFRNN, **fields),
    "capsnmt": lambda **fields: rnn_model(**PFRNN, **fields),
}
models = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
# tiny random models would repeat one token, whatever their state is
VARIED = {"max_new_tokens": 8, "no_repeat_ngram_size": 1}
PREFIX = torch.tensor([[PAD, 17, 23], [PAD, 5, 7], [PAD, 31, 3]])
# source and target words of three sentences, none of them the longest on both sides
WORDS = ((7, 2), (3, 5), (1, 4))


def source_of(batch: dict) -> dict:
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def modules(**fields) -> tuple[GuidedSource, RecurrentHead]:
    """A source and a head of PFRNN in float64 whose parameters are all random; d 12, D 5, K 15."""
    torch.manual_seed(1)
    sizes = {"num_past_capsules": 3, "num_future_capsules": 3, "bow_loss_weight": 0.0, "bca_loss_weight": 0.0}
    config = capsule_config(**PFRNN | sizes | fields)
    source, head = GuidedSource(config).double(), RecurrentHead(config).double()
    with torch.no_grad():
        for parameter in (*source.parameters(), *head.parameters()):
            parameter.normal_(std=0.7)
    return source, head


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """h [3, 7, 12] and z [3, 5, 12] with gradient, and the mask of the source words by WORDS."""
    generator = torch.Generator().manual_seed(2)
    h, z = (torch.randn(3, n, 12, generator=generator, dtype=torch.float64).requires_grad_() for n in (7, 5))
    return h, z, torch.arange(7) < torch.tensor(WORDS)[:, :1]


def by_name(layer: str, source: GuidedSource, head: RecurrentHead) -> dict[str, torch.Tensor]:
    """The weights of a layer as the reference calls them."""
    weights = {}
    parts = (head.context_proj[layer].weight, head.transition[layer].weight, head.context_proj[layer].bias)
    for kind, matrix in zip("wub", parts, strict=True):
        weights |= {f"{kind}_{gate}": rows for gate, rows in zip("run", matrix.chunk(3), strict=True)}
    if layer == "future":
        weights |= {"w_0": source.summary_proj.weight, "b_0": source.summary_proj.bias}
    return weights


def test_head_and_its_gradients_are_the_papers_loop():
    source, head = modules()
    h, z, words = inputs()
    out = head(z, *source(h, words), words)
    parameters = {f"source.{n}": p for n, p in source.named_parameters()}
    parameters |= {f"head.{n}": p for n, p in head.named_parameters()} | {"h": h, "z": z}
    attention = {"w_h": source.key_proj.weight, "w_z": head.state_proj.weight, "w": head.score_weight}
    found, expected = [], []
    for row, (num_words, num_steps) in enumerate(WORDS):
        layers = [by_name(layer, source, head) for layer in ("past", "future")]
        past, future, covered = reference.past_and_future_layers(
            h[row, :num_words], z[row, :num_steps], attention, *layers
        )
        done = covered.clamp(max=1)
        read = torch.cat([z[row, :num_steps], past, future], dim=-1)
        hidden = head.activation_fn(head.input_proj(read))
        context = head.output_proj(hidden) + z[row, :num_steps]
        expected += [past, future, context, torch.stack([done, 1 - done], dim=-1)]
        found += [getattr(out, name)[row, :num_steps] for name in ("past", "future", "context")]
        found.append(out.agreement[row, :num_steps, :num_words])
        assert num_words == 7 or out.agreement[row, :, num_words:].abs().max() == 0
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    upstream = torch.randn(sum(a.numel() for a in found), generator=torch.Generator().manual_seed(3)).double()
    ours, theirs = (
        torch.autograd.grad(torch.cat([a.flatten() for a in some]), list(parameters.values()), upstream)
        for some in (found, expected)
    )
    for name, a, b in zip(parameters, ours, theirs, strict=True):
        assert b.abs().max() > 1e-6, name
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("subtracts", [False, True], ids=["gru", "inside minus"])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_gradients_of_the_recurrence_are_those_of_differences(subtracts, masked):
    generator = torch.Generator().manual_seed(4)
    shapes = ((2, 3, 15), (15, 5), (2, 5))
    tensors = [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]
    real = torch.tensor([[1, 1, 1], [0, 1, 0]]).bool() if masked else None
    assert torch.autograd.gradcheck(lambda *a: recurrent_states(*a, subtracts, real), tensors)


def test_gradients_of_the_attention_are_those_of_differences():
    generator = torch.Generator().manual_seed(5)
    shapes = ((2, 4, 7), (2, 4, 5), (2, 3, 5), (5,))
    tensors = [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]
    mask = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0]]).bool()
    assert torch.autograd.gradcheck(lambda *a: attention_contexts(*a, mask), tensors)
    contexts, weights = attention_contexts(*tensors, mask)
    assert contexts[1].abs().max() == 0 and weights[0, :, 1].abs().max() == 0
    torch.testing.assert_close(weights[0].sum(-1), torch.ones(3).double())


def test_gru_is_pytorchs():
    generator = torch.Generator().manual_seed(6)
    gru = torch.nn.GRU(7, 5, batch_first=True).double()
    contexts = torch.randn(3, 4, 7, generator=generator, dtype=torch.float64)
    first = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    # torch has one more bias of the candidate, within what the reset gate multiplies
    torch.nn.init.zeros_(gru.bias_hh_l0)
    linear = contexts @ gru.weight_ih_l0.T + gru.bias_ih_l0
    expected, _ = gru(contexts, first.unsqueeze(0))
    torch.testing.assert_close(recurrent_states(linear, gru.weight_hh_l0, first)[:, 1:], expected)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_the_target_leaves_the_states_alone(side):
    source, head = modules()
    h, z, words = inputs()
    plain = head(z, *source(h, words), words)
    junk = 9 * torch.randn(3, 2, 12, dtype=torch.float64)
    padding = torch.zeros(3, 2, dtype=torch.bool)
    ends = [(junk, padding), (z, torch.ones(3, 5, dtype=torch.bool))][:: 1 if side == "left" else -1]
    wide, real = (torch.cat(pair, dim=1) for pair in zip(*ends, strict=True))
    memories = GuidedCacheLayer(), GuidedCacheLayer()
    padded = head(wide, *source(h, words), words, real, memories[0])
    head(z, *source(h, words), words, None, memories[1])
    for a, b in zip(padded, plain, strict=True):
        torch.testing.assert_close(a[:, 2:] if side == "left" else a[:, :5], b)
    for a, b in zip(memories[0].state(), memories[1].state(), strict=True):
        torch.testing.assert_close(a, b)


def test_the_first_step_has_an_empty_past_and_a_whole_future():
    source, head = modules()
    h, z, words = inputs()
    out = head(z, *source(h, words), words)
    assert out.past[:, 0].abs().max() == 0 and out.past[:, 1].abs().max() > 0
    means = torch.stack([h[row, :n].mean(0) for row, (n, _) in enumerate(WORDS)])
    torch.testing.assert_close(out.future[:, 0], source.summary_proj(means).tanh())
    assert torch.equal(out.agreement[:, 0, :, 0], torch.zeros(3, 7)) and torch.equal(
        out.agreement[:, 0, :, 1], words.double()
    )
    # what has been read does not become less
    assert (out.agreement[..., 0].diff(dim=1) >= 0).all()


@models
def test_every_parameter_has_a_gradient_even_for_one_word(make):
    model = make().train()
    batch = sentence_batch()
    batch["labels"] = batch["labels"][:, :1]
    model(**batch).loss.backward()
    # a parameter without any gradient would stop DistributedDataParallel
    trained = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    assert not [name for name, grad in trained.items() if grad is None or not grad.isfinite().all()]


@pytest.mark.parametrize("pieces", [(1,) * 7, (3, 1, 1, 2), (2, 5)], ids=str)
@models
def test_forward_in_pieces_equals_the_full_forward(make, pieces):
    model = make().double()
    batch = sentence_batch()
    targets = torch.randint(2, VOCAB, (3, 7), generator=torch.Generator().manual_seed(3))
    expected = model(**source_of(batch), decoder_input_ids=targets, use_cache=False, output_agreements=True)
    encoder_outputs, cache, parts = model.get_encoder()(**source_of(batch)), None, []
    for piece in targets.split(pieces, dim=1):
        parts.append(
            model(
                encoder_outputs=encoder_outputs,
                attention_mask=batch["attention_mask"],
                decoder_input_ids=piece,
                past_key_values=cache,
                use_cache=True,
                output_agreements=True,
            )
        )
        cache = parts[-1].past_key_values
    for field in ("logits", "guided_assignment"):
        torch.testing.assert_close(torch.cat([part[field] for part in parts], dim=1), expected[field])


GENERATION = {
    "greedy": {},
    "beam": {"num_beams": 4},
    "beam-3-best": {"num_beams": 4, "num_return_sequences": 3},
    "sampling": {"do_sample": True, "num_return_sequences": 2},
    "prefix": {"decoder_input_ids": PREFIX},
    "prefix, beam": {"decoder_input_ids": PREFIX, "num_beams": 4},
}


@pytest.mark.parametrize("options", GENERATION.values(), ids=GENERATION.keys())
@models
def test_generation_equals_the_forced_pass(make, options):
    model = make().double()
    batch = sentence_batch()
    kinds = {"return_dict_in_generate": True, "output_logits": True}
    found = []
    for use_cache in (True, False):
        torch.manual_seed(11)
        found.append(model.generate(**source_of(batch), **VARIED, **options, **kinds, use_cache=use_cache))
    cached, uncached = found
    assert torch.equal(cached.sequences, uncached.sequences)
    for a, b in zip(cached.logits, uncached.logits, strict=True):
        torch.testing.assert_close(a, b)
    if "num_beams" in options:
        return
    copies = options.get("num_return_sequences", 1)
    repeated = {name: values.repeat_interleave(copies, dim=0) for name, values in source_of(batch).items()}
    forced = model(**repeated, decoder_input_ids=cached.sequences[:, :-1]).logits[:, -len(cached.logits) :]
    for step, logits in enumerate(cached.logits):
        # generate() returns logits in float32
        torch.testing.assert_close(logits, forced[:, step].float())


@models
def test_beam_search_needs_reordered_states(make, monkeypatch):
    model = make().double()
    batch = sentence_batch()
    options = VARIED | {"num_beams": 4, "output_scores": True, "return_dict_in_generate": True}
    expected = model.generate(**source_of(batch), **options)
    reorder = RecurrentCacheLayer.reorder_cache
    monkeypatch.setattr(GuidedCacheLayer, "reorder_cache", lambda self, beam_idx: None)
    broken = model.generate(**source_of(batch), **options)
    assert not torch.equal(broken.sequences_scores, expected.sequences_scores)
    monkeypatch.setattr(GuidedCacheLayer, "reorder_cache", reorder)
    again = model.generate(**source_of(batch), **options)
    assert torch.equal(again.sequences_scores, expected.sequences_scores)


@models
def test_states_follow_their_rows(make):
    model = make().double()
    batch = sentence_batch()
    encoder_outputs = model.get_encoder()(**source_of(batch))
    mask = batch["attention_mask"]
    rows, last = torch.tensor([2, 0]), torch.tensor([[9], [4], [8]])

    def step(outputs, mask, ids, cache=None):
        return model(
            encoder_outputs=outputs, attention_mask=mask, decoder_input_ids=ids, past_key_values=cache, use_cache=True
        )

    cache = step(encoder_outputs, mask, PREFIX).past_key_values
    expected = step(encoder_outputs, mask, last, cache).logits[rows]
    cache = step(encoder_outputs, mask, PREFIX).past_key_values
    kept = (
        [cache.self_attention_cache, cache.cross_attention_cache]
        if isinstance(cache, EncoderDecoderCache)
        else [cache]
    )
    for part in kept:
        part.batch_select_indices(rows)
    chosen = type(encoder_outputs)(**{n: v[rows] for n, v in encoder_outputs.items() if isinstance(v, torch.Tensor)})
    torch.testing.assert_close(step(chosen, mask[rows], last[rows], cache).logits, expected)
    for part in kept:
        part.batch_repeat_interleave(2)
    assert [len(tensor) for tensor in kept[0].layers[-1].state()] == [4, 4]


@pytest.mark.parametrize("how", ["assistant", "prompt lookup"])
@models
def test_assisted_decoding_is_refused(make, how):
    model = make()
    options = {"assistant_model": make(seed=1)} if how == "assistant" else {"prompt_lookup_num_tokens": 2}
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
        model.generate(torch.tensor([[3, 5, EOS]]), **options)


def test_other_heads_may_still_be_assisted():
    model = capsule_model(aggregation="none", guided_routing="attention")
    options = {"max_new_tokens": 6}
    source = torch.tensor([[3, 5, EOS]])
    assisted = model.generate(source, **options, prompt_lookup_num_tokens=2)
    assert torch.equal(assisted, model.generate(source, **options))


def test_caches_that_the_head_has_not_followed_are_refused():
    model, batch = MODELS["marian"](), sentence_batch()
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    outputs = model.get_encoder()(**source_of(batch))
    rest = {"encoder_outputs": outputs, "attention_mask": batch["attention_mask"], "use_cache": True}
    model.model(**rest, decoder_input_ids=PREFIX, past_key_values=cache)
    with pytest.raises(ValueError, match=r"holds 3 steps of the decoder, of which .* have seen 0: give every step"):
        model(**rest, decoder_input_ids=PREFIX[:, :1], past_key_values=cache)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@models
def test_low_precision_stays_near(make, dtype):
    batch = sentence_batch()
    full, low = make(), make().to(dtype)
    out = low(**batch, output_agreements=True)
    assert out.logits.dtype == dtype and out.guided_assignment.dtype == torch.float32
    torch.testing.assert_close(out.loss.float(), full(**batch).loss, rtol=0.1, atol=0.1)
    generated = low.generate(**source_of(batch), **VARIED, num_beams=2)
    assert generated.shape[0] == 3


@models
def test_autocast_trains_as_without(make):
    model, batch = make(dropout=0.0).train(), sentence_batch()
    expected = model(**batch).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=0.1, atol=0.1)
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


def test_generation_with_a_static_cache_is_not_compiled():
    config = GenerationConfig(compile_config=CompileConfig(backend="eager"))
    config.compile_config._compile_all_devices = True
    models = capsule_model(aggregation="none", guided_routing="attention"), MODELS["marian"]()
    for model, compiled in zip(models, (True, False), strict=True):
        caches = [StaticCache(config=model.config, max_cache_len=9) for _ in range(2)]
        kwargs = {"past_key_values": EncoderDecoderCache(*caches)}
        assert model._valid_auto_compile_criteria(kwargs, config) == compiled


def test_parameters_are_those_of_the_description():
    d, size, capsules = 512, 256, 2
    config = capsule_config(
        **PFRNN,
        d_model=d,
        guided_capsule_size=size,
        guided_hidden_size=d,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
    )
    with torch.device("meta"):
        source, head = GuidedSource(config), RecurrentHead(config)
    state = capsules * size
    attention = 2 * size * d + size
    layers = 2 * 3 * (state * d + state + state * state) + (d + 1) * state
    feed_forward = (d + 2 * state + 1) * d + (d + 1) * d
    losses = 2 * 2 * state * d
    found = sum(p.numel() for p in (*source.parameters(), *head.parameters()))
    assert found == attention + layers + feed_forward + losses
