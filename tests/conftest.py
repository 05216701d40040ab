"""Shared fixtures, and the environment of every test."""

import os
import tempfile

# one thread per test process: the tensors are tiny, and the suite runs several processes
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# encoded training text is kept there
os.environ.setdefault("HF_DATASETS_CACHE", tempfile.mkdtemp(prefix="hf_capsule_mt_tests_"))

import pytest
import torch
from hypothesis import HealthCheck, settings
from transformers import MarianMTModel

import chromium
from tiny_models import TARGET_VOCAB, capsule_model, plain_config

# Few cases, the same ones every time; the thorough profile draws new ones, as many as a test multiplies it by.
_QUICK = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
settings.register_profile("default", max_examples=25, derandomize=True, database=None, **_QUICK)
settings.register_profile("thorough", max_examples=1000, database=None, **_QUICK)
settings.load_profile("default")


@pytest.fixture(scope="session")
def one_browser(tmp_path_factory):
    driver = chromium.start(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture
def browser(one_browser):
    """A Chromium as it is on a desktop, the same process for all tests; see `chromium`."""
    yield one_browser
    one_browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chromium.prefer(one_browser)


@pytest.fixture
def plain_checkpoint(tmp_path):
    """A plain Marian checkpoint directory with shared vocabularies."""
    torch.manual_seed(3)
    model = MarianMTModel(plain_config()).eval()
    model.save_pretrained(tmp_path / "plain")
    return tmp_path / "plain"


@pytest.fixture(scope="session")
def grammar_tokenizer():
    """A tokenizer of 500 pieces, of sentences of the embedded corpus."""
    from hf_capsule_mt.data.grammar import generate_corpus
    from hf_capsule_mt.data.tokenizer import train_tokenizer

    texts = [text for pair in generate_corpus(200) for text in (pair.source, pair.target)]
    return train_tokenizer(texts, vocab_size=500, model_max_length=41)


@pytest.fixture
def capsule_and_plain(tmp_path, grammar_tokenizer, monkeypatch):
    """The current folder: an untrained model of EM and guided routing in runs/grammar, a plain one in plain."""
    tokenizer = grammar_tokenizer
    sizes = dict(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id)
    sizes["decoder_start_token_id"] = tokenizer.pad_token_id
    torch.manual_seed(0)
    capsules = capsule_model(**sizes, guided_routing="routing")
    for name, model in (("runs/grammar", capsules), ("plain", MarianMTModel(plain_config(**sizes)))):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def separate_checkpoint(tmp_path):
    """A plain Marian checkpoint directory whose source and target vocabularies differ."""
    torch.manual_seed(3)
    config = plain_config(
        share_encoder_decoder_embeddings=False, decoder_vocab_size=TARGET_VOCAB, tie_word_embeddings=False
    )
    MarianMTModel(config).eval().save_pretrained(tmp_path / "separate")
    return tmp_path / "separate"


@pytest.fixture(scope="session")
def multilingual(tmp_path_factory):
    """The folder of a plain checkpoint of random weights with a multilingual tokenizer, by kind; to be read only."""
    from tiny_multilingual import save_multilingual

    root = tmp_path_factory.mktemp("multilingual")

    def folder(kind):
        return root / kind if (root / kind).is_dir() else save_multilingual(kind, root / kind)

    return folder


@pytest.fixture(scope="session")
def exported_nllb(multilingual, tmp_path_factory):
    """An NLLB checkpoint with English and German for its pair of languages, and the folder that it was exported to."""
    from hf_capsule_mt.serving.export import export_onnx
    from tiny_multilingual import save_pair

    folder = tmp_path_factory.mktemp("exported_nllb")
    run = save_pair("nllb", multilingual("nllb"), folder / "run")
    return run, export_onnx(run, folder / "onnx")


@pytest.fixture(scope="session")
def exported_run(tmp_path_factory):
    """A checkpoint of EM routing and guided routing, and the folder that it was exported to."""
    from hf_capsule_mt.serving.export import export_onnx
    from tiny_translation import taught_run

    folder = tmp_path_factory.mktemp("exported_run")
    run = taught_run(folder)
    return run, export_onnx(run, folder / "exported")
