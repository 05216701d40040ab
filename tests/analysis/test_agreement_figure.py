"""The agreements of a translation as arrays and as a picture."""

import logging
import sys

import numpy as np
import pytest
import torch
from transformers import MarianMTModel

from hf_capsule_mt.analysis import agreement_figure as module
from hf_capsule_mt.analysis.agreement_figure import AgreementArrays, agreement_arrays, agreement_figure, draw
from hf_capsule_mt.data.grammar import generate_corpus
from hf_capsule_mt.data.tokenizer import train_tokenizer
from tiny_models import capsule_model, plain_config, rnn_model

SENTENCE = "The small dogs sleep in the garden."
SYSTEMS = {
    "em_routing": (capsule_model, dict(aggregation="em_routing"), ["encoder_agreements", "decoder_agreements"]),
    "decoder_only": (
        capsule_model,
        dict(aggregation="dynamic_routing", aggregate_encoder=False),
        ["decoder_agreements"],
    ),
    "guided": (capsule_model, dict(aggregation="none", guided_routing="routing"), ["guided_assignment"]),
    "capsnmt": (rnn_model, dict(source_memory="capsule"), ["source_agreements"]),
    "everything": (
        rnn_model,
        dict(source_memory="hybrid", guided_routing="routing", aggregation="em_routing"),
        ["encoder_agreements", "decoder_agreements", "source_agreements", "guided_assignment"],
    ),
}
WITHOUT_ROUTING = {
    "transformer": lambda **sizes: capsule_model(aggregation="none", **sizes),
    "linear": lambda **sizes: capsule_model(aggregation="linear", **sizes),
    "no_stack": lambda **sizes: capsule_model(
        aggregation="em_routing", aggregate_encoder=False, aggregate_decoder=False, **sizes
    ),
    "rnmt": lambda **sizes: rnn_model(source_memory="attention", **sizes),
    "simple": lambda **sizes: rnn_model(source_memory="simple", **sizes),
    "plain_marian": lambda **sizes: MarianMTModel(plain_config(**sizes)),
}


@pytest.fixture(scope="module")
def tokenizer():
    texts = [text for pair in generate_corpus(50, seed=5) for text in (pair.source, pair.target)]
    return train_tokenizer(texts, vocab_size=400, model_max_length=41)


@pytest.fixture(params=SYSTEMS)
def system(request, tokenizer):
    """A model with routing and the names of the agreements that it has."""
    build, options, present = SYSTEMS[request.param]
    return build(vocab_size=len(tokenizer), **options), present


class TestArrays:
    def test_are_those_of_the_translation(self, system, tokenizer):
        model, present = system
        arrays = agreement_arrays(model, tokenizer, SENTENCE, num_beams=3, max_new_tokens=9)
        batch = tokenizer(SENTENCE, return_tensors="pt")
        output = model.generate(**batch, num_beams=3, max_new_tokens=9, output_agreements=True)
        names = ("encoder_agreements", "decoder_agreements", "source_agreements", "guided_assignment")
        assert [name for name in names if getattr(arrays, name) is not None] == present
        source, target = len(arrays.source_tokens), len(arrays.target_tokens)
        assert (source, target) == (batch["input_ids"].shape[1], output.sequences.shape[1] - 1)
        for name in present:
            value = getattr(arrays, name)
            if name.endswith("coder_agreements"):
                expected = torch.stack([iteration[0].mean(0) for iteration in output[name]])
                assert value.shape[0] == model.config.routing_iterations
                assert np.ptp(value[0]) < 1e-6 < np.ptp(value[-1])
            elif name == "source_agreements":
                expected = output[name][-1][0]
                assert value.shape == (source, model.config.num_source_capsules)
            else:
                expected = output[name][0]
                assert value.shape == (target, source, 3)
            np.testing.assert_allclose(value, expected.numpy(), atol=1e-6)
            np.testing.assert_allclose(value.sum(-1), 1, atol=1e-5)

    @pytest.mark.parametrize("name", WITHOUT_ROUTING)
    def test_without_routing_there_are_none(self, name, tokenizer):
        model = WITHOUT_ROUTING[name](vocab_size=len(tokenizer))
        arrays = agreement_arrays(model, tokenizer, SENTENCE, max_new_tokens=5)
        assert arrays == AgreementArrays(arrays.source_tokens, arrays.target_tokens)
        assert arrays.target_tokens

    def test_tokens_as_shown(self, tokenizer):
        model = capsule_model(vocab_size=len(tokenizer), aggregation="em_routing")
        arrays = agreement_arrays(model, tokenizer, "The dogsxq 猫 sleep.", max_new_tokens=3)
        assert arrays.source_tokens[0] == "The" and arrays.source_tokens[-2:] == [".", "</s>"]
        assert "-x" in arrays.source_tokens and "<0xE7>" in arrays.source_tokens
        words = "".join(" " + token if token[0] != "-" else token[1:] for token in arrays.source_tokens)
        assert "dogsxq" in words.replace(" do ", " do") and "sleep" in words
        assert "<pad>" not in arrays.target_tokens

    def test_model_keeps_its_mode_and_dropout_stays_off(self, tokenizer):
        model = capsule_model(vocab_size=len(tokenizer), aggregation="em_routing", dropout=0.5)
        expected = agreement_arrays(model, tokenizer, SENTENCE, max_new_tokens=4)
        model.train()
        arrays = agreement_arrays(model, tokenizer, SENTENCE, max_new_tokens=4)
        assert model.training
        np.testing.assert_array_equal(arrays.decoder_agreements, expected.decoder_agreements)

    @pytest.mark.parametrize(
        "sentence, options, message",
        [(" ", {}, "blank"), ("The dog.", {"num_return_sequences": 2}, "num_return_sequences")],
    )
    def test_bad_input(self, sentence, options, message, tokenizer):
        model = capsule_model(vocab_size=len(tokenizer), aggregation="em_routing")
        with pytest.raises(ValueError, match=message):
            agreement_arrays(model, tokenizer, sentence, **options)


class TestFigure:
    @pytest.fixture(autouse=True)
    def _needs_matplotlib(self):
        pytest.importorskip("matplotlib")

    @pytest.fixture
    def drawn(self, monkeypatch):
        """The figures that were saved."""
        figures, save = [], module.save_figure
        monkeypatch.setattr(module, "save_figure", lambda figure, path: (figures.append(figure), save(figure, path)))
        return figures

    def test_is_written_and_global_state_is_not(self, system, tokenizer, tmp_path, monkeypatch):
        import matplotlib.image

        model, _ = system
        # reading the backend would choose one
        before = {name: value for name, value in matplotlib.rcParams.copy().items() if name != "backend"}
        monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
        path = agreement_figure(model, tokenizer, SENTENCE, tmp_path / "new" / "agreements.png", max_new_tokens=6)
        assert path == tmp_path / "new" / "agreements.png"
        pixels = matplotlib.image.imread(path)
        assert min(pixels.shape[:2]) > 200 and pixels.std() > 0.05
        assert {name: matplotlib.rcParams[name] for name in before} == before
        assert "matplotlib.pyplot" not in sys.modules

    def test_guided_maps(self, tokenizer, tmp_path, drawn):
        model = capsule_model(vocab_size=len(tokenizer), aggregation="none", guided_routing="routing")
        agreement_figure(model, tokenizer, SENTENCE, tmp_path / "figure.png", max_new_tokens=6)
        arrays = agreement_arrays(model, tokenizer, SENTENCE, max_new_tokens=6)
        past, future = (axes for axes in drawn[0].get_axes() if axes.get_title())
        for group, axes in enumerate((past, future)):
            np.testing.assert_allclose(axes.images[0].get_array(), arrays.guided_assignment[:, :, group].T)
        assert "PAST" in past.get_title() and "FUTURE" in future.get_title()
        assert [label.get_text() for label in past.get_xticklabels()] == arrays.target_tokens
        assert [label.get_text() for label in past.get_yticklabels()] == arrays.source_tokens

    def test_memory_map(self, tmp_path, drawn):
        memory = np.array([[0.9, 0.1, 0.0], [0.2, 0.2, 0.6]])
        draw(AgreementArrays(["a", "b"], ["c"], source_agreements=memory), tmp_path / "figure.png")
        axes = drawn[0].get_axes()[0]
        np.testing.assert_array_equal(axes.images[0].get_array(), memory)
        assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "3"]

    def test_layer_maps_are_relative_to_uniform_and_in_one_order(self, tmp_path, drawn):
        last = np.array([[0.1, 0.3, 0.6], [0.5, 0.25, 0.25]])
        agreements = np.stack([np.full((2, 3), 1 / 3), last])
        draw(AgreementArrays(["a"], ["b"], decoder_agreements=agreements), tmp_path / "figure.png")
        first, second = (axes.images[0].get_array() for axes in drawn[0].get_axes() if axes.get_title())
        np.testing.assert_allclose(first, 1)
        # capsule 2 gets more from layer 1, capsule 0 most of its vote from layer 2
        np.testing.assert_allclose(second, 3 * last[:, [2, 1, 0]])

    def test_any_characters(self, tmp_path, caplog):
        """Dollar signs are no formulas, and a character that no font has is a box and a message."""
        tokens = ["$x", "$", "a$b$_{", "猫", "سلام", "\U000105c0"]
        assignment = np.full((6, 6, 2), 0.5)
        with caplog.at_level(logging.WARNING):
            draw(AgreementArrays(tokens, tokens, guided_assignment=assignment), tmp_path / "figure.png")
        assert [record.getMessage().count("no installed font") for record in caplog.records].count(1) == 1

    def test_nothing_to_draw(self, tmp_path):
        with pytest.raises(ValueError, match="no routing"):
            draw(AgreementArrays(["a"], ["b"]), tmp_path / "figure.png")


@pytest.mark.parametrize("name", WITHOUT_ROUTING)
def test_no_figure_without_routing(name, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    model = WITHOUT_ROUTING[name](vocab_size=len(tokenizer))
    assert agreement_figure(model, tokenizer, SENTENCE, tmp_path / "figure.png") is None
    assert not list(tmp_path.iterdir())


def test_missing_matplotlib_is_named_before_any_work(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    model = capsule_model(vocab_size=len(tokenizer), aggregation="em_routing")
    monkeypatch.setattr(model, "generate", lambda **_: pytest.fail("translated although nothing can be drawn"))
    with pytest.raises(ImportError, match=r'pip install "hf_capsule_mt\[plots\]"'):
        agreement_figure(model, tokenizer, SENTENCE, tmp_path / "figure.png")
