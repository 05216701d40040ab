"""Studies of multilingual checkpoints, of one pair of languages."""

import pytest

from hf_capsule_mt.studies.record import _test_pairs
from hf_capsule_mt.studies.runner import distill_command, plan
from hf_capsule_mt.studies.study_file import read_study, resolve_arguments, source_files
from hf_capsule_mt.training.arguments import parse_arguments
from hf_capsule_mt.training.setup import prepare


@pytest.fixture
def study(write_study, multilingual, tmp_path):
    """Of two systems that start from a multilingual checkpoint, on a corpus that calls its languages otherwise."""
    sizes = ("d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads")
    others = ("encoder_ffn_dim", "decoder_ffn_dim", "max_position_embeddings", "vocab_size")

    def build(**values):
        fine_tuning = {
            **dict.fromkeys((*sizes, *others)),
            "model_name_or_path": str(multilingual("nllb")),
            "source_lang": "eng_Latn",
            "target_lang": "deu_Latn",
            "source_column": "en",
            "target_column": "de",
            **values,
        }
        fine_tuning = {key: value for key, value in fine_tuning.items() if value is not None}
        # without the sizes of the tiny recipe, which the checkpoint has of its own
        path = write_study(
            systems={"plain": fine_tuning, "linear": {**fine_tuning, "aggregation": "linear"}},
            test_sets={"other": "other"},
        )
        return read_study(path)

    return build


def test_arguments_pass_through(study, corpus):
    one = study()
    resolved = resolve_arguments(one)
    assert source_files(one, resolved) == {"other": corpus / "other.en"}
    sources, targets = _test_pairs(one, "other", resolved["plain"])
    assert sources == (corpus / "other.en").read_text().splitlines() and len(targets) == len(sources)
    runs = plan(one, source_files(one, resolved), resolved)
    assert runs[0].products[-1].name == "study.other.deu_Latn"
    words = distill_command(corpus, resolved["plain"])
    assert {"--source_lang=eng_Latn", "--source_column=en", "--target_column=de"} < set(words)
    setup = prepare(parse_arguments([*one.arguments("linear", 1), f"--output_dir={corpus / 'run'}"]))
    assert setup.tokenizer.convert_ids_to_tokens(int(setup.train[0]["labels"][0])) == "deu_Latn"


@pytest.mark.parametrize("key", ["language_pairs", "target_lang_column"])
def test_several_pairs_are_refused(study, key):
    one = study()
    resolved = resolve_arguments(one)
    resolved["linear"][key] = ["en-de"] if key == "language_pairs" else "to"
    with pytest.raises(ValueError, match=f"systems: linear: a study is of one pair of languages: .* of {key}"):
        source_files(one, resolved)
