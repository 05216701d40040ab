"""Plain checkpoints become capsule checkpoints that translate exactly like them, and back."""

import json
import os
import resource
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    NllbMoeConfig,
    PreTrainedModel,
)

from hf_capsule_mt.__main__ import main
from hf_capsule_mt.files import only_writer
from hf_capsule_mt.hub.conversion import CAPSULE_FIELDS, convert, to_plain
from hf_capsule_mt.models.tokenizer_languages import (
    LanguagePair,
    language_id,
    remember_languages,
    saved_languages,
    use_languages,
)
from tiny_models import STACKS, rnn_model
from tiny_multilingual import LANGUAGES
from tiny_translation import SOURCES, TARGETS, assert_quiet_limits, tiny_model, tiny_tokenizer

EM_AND_GUIDED = {"aggregation": "em_routing", "guided_routing": "routing", "bow_loss_weight": 1.0, "num_capsules": 13}
SYSTEMS = {
    "linear": {"aggregation": "linear"},
    "dynamic": {"aggregation": "dynamic"},
    "dynamic_routing": {"aggregation": "dynamic_routing"},
    "em_routing": {"aggregation": "em_routing"},
    "guided": {"aggregation": "none", "guided_routing": "routing"},
    "em_routing, guided": EM_AND_GUIDED,
}
# what differs by stack is in tests/models; here one of everything for each
CONVERTED = [("marian", name) for name in SYSTEMS] + [
    (name, "em_routing, guided") for name in STACKS if name != "marian"
]
BEAM = {"num_beams": 4, "return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 12}


def tiny_stack(name: str, vocab_size: int, **overrides) -> PreTrainedModel:
    torch.manual_seed(4)
    stack, sizes = STACKS[name], dict(d_model=26, encoder_attention_heads=2, decoder_attention_heads=2)
    return stack.plain_class(stack.plain_config(vocab_size=vocab_size, **sizes, **overrides)).eval()


@pytest.fixture(params=STACKS)
def plain(request, tmp_path):
    """A plain checkpoint with a tokenizer and a generation config of its own."""
    tokenizer = tiny_tokenizer()
    model = tiny_model() if request.param == "marian" else tiny_stack(request.param, len(tokenizer))
    model.generation_config.update(num_beams=3, length_penalty=0.7, bad_words_ids=[[17]])
    folder = tmp_path / request.param
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def translations(folder) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and scores of a beam search over sentences of several lengths."""
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(SOURCES, padding=True, return_tensors="pt", return_token_type_ids=False)
    out = model.generate(**inputs, **BEAM)
    return out.sequences, out.sequences_scores


@pytest.mark.parametrize(
    ("plain", "fields"),
    [pytest.param(stack, SYSTEMS[name], id=f"{stack}: {name}") for stack, name in CONVERTED],
    indirect=["plain"],
)
def test_a_converted_model_translates_exactly_like_its_parent(plain, tmp_path, fields):
    folder = convert(plain, tmp_path / "capsule", **fields)
    config = AutoConfig.from_pretrained(folder)
    assert config.model_type.startswith("capsule-") and {name: getattr(config, name) for name in fields} == fields
    for ours, theirs in zip(translations(folder), translations(plain), strict=True):
        assert torch.equal(ours, theirs)
    # what belongs to it came along
    assert json.loads((folder / "generation_config.json").read_text())["bad_words_ids"] == [[17]]
    ours, theirs = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(plain)
    assert ours.get_vocab() == theirs.get_vocab() and ours.special_tokens_map == theirs.special_tokens_map
    weights = load_file(folder / "model.safetensors")
    assert any("aggregation" in name or "guided" in name for name in weights)


@pytest.mark.parametrize("plain", ["marian", "m2m100"], indirect=True)
@pytest.mark.parametrize("limit", [{}, {"max_length": 25}, {"max_new_tokens": 24}], ids=["none", "length", "new"])
def test_a_converted_model_has_one_limit(plain, tmp_path, caplog, limit):
    config = json.loads((plain / "generation_config.json").read_text())
    (plain / "generation_config.json").write_text(json.dumps(config | limit))
    capsule = convert(plain, tmp_path / "capsule")
    back = to_plain(convert(plain, tmp_path / "none", aggregation="none"), tmp_path / "back")
    assert_quiet_limits(capsule, caplog)
    positions = json.loads((plain / "config.json").read_text())["max_position_embeddings"]
    for folder, name, more in ((capsule, "max_new_tokens", 0), (back, "max_length", 1)):
        saved = json.loads((folder / "generation_config.json").read_text())
        assert saved[name] == (24 if limit else positions - 1) + more
        assert {"max_new_tokens", "max_length"} & set(saved) == {name}


def test_there_and_back_is_the_plain_checkpoint(plain, tmp_path):
    capsule = convert(plain, tmp_path / "capsule", aggregation="none")
    back = to_plain(capsule, tmp_path / "back")
    assert {path.name for path in back.iterdir()} == {path.name for path in plain.iterdir()}
    first, last = (json.loads((folder / "config.json").read_text()) for folder in (plain, back))
    assert first == last
    first, last = (load_file(folder / "model.safetensors") for folder in (plain, back))
    assert first.keys() == last.keys() and all(torch.equal(first[name], last[name]) for name in first)
    if plain.name not in ("marian", "m2m100"):
        # of a process, one of either kind will do
        return
    code = (
        "import sys; sys.modules['hf_capsule_mt'] = None\n"
        "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer\n"
        f"model = AutoModelForSeq2SeqLM.from_pretrained({str(back)!r})\n"
        f"AutoTokenizer.from_pretrained({str(back)!r})\n"
        "print(type(model).__module__)"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    module = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert module.stdout.startswith("transformers.models.")


def test_a_capsule_checkpoint_gets_further_systems(tmp_path, plain):
    first = convert(plain, tmp_path / "first", aggregation="em_routing", num_capsules=13)
    second = convert(first, tmp_path / "second", guided_routing="routing")
    config = AutoConfig.from_pretrained(second)
    assert (config.aggregation, config.num_capsules, config.guided_routing) == ("em_routing", 13, "routing")
    assert torch.equal(translations(first)[1], translations(second)[1])


def test_recurrent_models_too_but_they_have_no_plain_form(tmp_path):
    tokenizer = tiny_tokenizer()
    model = rnn_model(vocab_size=len(tokenizer))
    for saved in (model, tokenizer):
        saved.save_pretrained(tmp_path / "rnn")
    guided = convert(tmp_path / "rnn", tmp_path / "guided", guided_routing="routing")
    assert torch.equal(translations(tmp_path / "rnn")[1], translations(guided)[1])
    with pytest.raises(ValueError, match="'capsule-rnn', which has no plain model"):
        to_plain(tmp_path / "rnn", tmp_path / "plain")


def test_the_command(plain, tmp_path, capsys):
    argv = ["convert", str(plain), str(tmp_path / "capsule"), "--aggregation", "em_routing", "--num_capsules", "13"]
    argv += ["--aggregate_encoder", "false", "--guided_routing", "attention", "--em_inverse_temperature", "0.5"]
    assert main(argv) == 0
    config = AutoConfig.from_pretrained(tmp_path / "capsule")
    assert (config.aggregation, config.num_capsules, config.aggregate_encoder) == ("em_routing", 13, False)
    assert (config.guided_routing, config.em_inverse_temperature) == ("attention", 0.5)
    assert str(tmp_path / "capsule") in capsys.readouterr().out


def languages_saved(folder) -> dict:
    """What the generation config and the tokenizer of a folder say about languages."""
    config = json.loads((folder / "generation_config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    names = ("decoder_start_token_id", "forced_bos_token_id", "language_pairs")
    return {name: config.get(name) for name in names} | {"saved": saved_languages(tokenizer)}


def beams(folder, pair=None) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and scores of a search into a language, by default that of the model itself."""
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    begin = {} if pair is None else use_languages(tokenizer, pair)
    inputs = tokenizer(SOURCES, padding=True, return_tensors="pt", return_token_type_ids=False)
    found = model.generate(**inputs, **BEAM, **begin)
    return found.sequences, found.sequences_scores


@pytest.mark.parametrize("kind", LANGUAGES)
def test_a_multilingual_model_keeps_its_languages(multilingual, kind, tmp_path):
    plain = multilingual(kind)
    options = ["--guided_routing", "routing", "--layer_normalization", "final"]
    assert main(["convert", str(plain), str(tmp_path / "new"), *options]) == 0
    assert languages_saved(tmp_path / "new") == languages_saved(plain)
    ours, theirs = (AutoTokenizer.from_pretrained(folder) for folder in (tmp_path / "new", plain))
    assert type(ours) is type(theirs) and ours.get_vocab() == theirs.get_vocab()
    config = AutoConfig.from_pretrained(tmp_path / "new")
    assert config.layer_normalization == "final" and config.guided_routing == "routing"
    source, target, other = LANGUAGES[kind]
    for pair in (LanguagePair(source, target), LanguagePair(target, other)):
        found, expected = beams(tmp_path / "new", pair), beams(plain, pair)
        assert all(map(torch.equal, found, expected)), pair
        # where the start token stands, or behind it
        assert (found[0][:, :2] == language_id(theirs, pair.target)).any(dim=1).all()


@pytest.mark.parametrize("kind", LANGUAGES)
def test_a_pair_of_languages_is_saved(multilingual, kind, tmp_path):
    plain, pair = multilingual(kind), LanguagePair(*LANGUAGES[kind][1:])
    named = ["--source_lang", pair.source, "--target_lang", pair.target]
    assert main(["convert", str(plain), str(tmp_path / "new"), "--aggregation", "none", *named]) == 0
    saved = languages_saved(tmp_path / "new")
    assert saved["saved"] == pair and saved["language_pairs"] == [list(pair)]
    # without being told, as the source does when told
    for ours, theirs in zip(beams(tmp_path / "new"), beams(plain, pair), strict=True):
        assert torch.equal(ours, theirs)
    # it stays, whichever way, unless another one is given
    back = to_plain(tmp_path / "new", tmp_path / "back")
    assert AutoConfig.from_pretrained(back).model_type == AutoConfig.from_pretrained(plain).model_type
    again = convert(back, tmp_path / "again", aggregation="linear")
    assert languages_saved(back) == languages_saved(again) == saved
    assert all(map(torch.equal, beams(again), beams(plain, pair)))
    other = LanguagePair(pair.target, pair.source)
    named = ["--source_lang", other.source, "--target_lang", other.target]
    assert main(["convert", str(tmp_path / "new"), str(tmp_path / "other"), "--plain", *named]) == 0
    assert all(map(torch.equal, beams(tmp_path / "other"), beams(plain, other)))


def test_several_pairs_stay(multilingual, tmp_path):
    english, german, french = LANGUAGES["nllb"]
    folder = convert(multilingual("nllb"), tmp_path / "new", aggregation="none")
    config, tokenizer = GenerationConfig.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    remember_languages(config, tokenizer, [LanguagePair(english, german), LanguagePair(english, french)])
    config.save_pretrained(folder)
    pairs = [[english, german], [english, french]]
    for made in (convert(folder, tmp_path / "again", aggregation="linear"), to_plain(folder, tmp_path / "back")):
        assert languages_saved(made)["language_pairs"] == pairs and languages_saved(made)["saved"] is None


@pytest.mark.parametrize(
    ("kind", "named", "message"),
    [
        ("nllb", "--source_lang eng_Latn", "give the codes of both languages (source_lang, target_lang), such as"),
        ("nllb", "--source_lang en --target_lang deu_Latn", "source_lang: 'en' is none of the 202 languages"),
        ("mbart", "--source_lang en_XX --target_lang deu", "did you mean de_DE?"),
        (None, "--source_lang en --target_lang de", "one of a single pair of languages: leave out en and de"),
    ],
)
def test_languages_that_do_not_fit_are_refused(multilingual, tmp_path, capsys, kind, named, message):
    plain = tmp_path / "plain" if kind is None else multilingual(kind)
    if kind is None:
        tiny_model().save_pretrained(plain)
        tiny_tokenizer().save_pretrained(plain)
    assert main(["convert", str(plain), str(tmp_path / "new"), "--aggregation", "linear", *named.split()]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("hf-capsule-mt convert: error: ") and message in line
    assert not (tmp_path / "new").exists()


def test_mixtures_of_experts_are_refused(tmp_path, capsys):
    NllbMoeConfig(d_model=8).save_pretrained(tmp_path / "moe")
    assert main(["convert", str(tmp_path / "moe"), str(tmp_path / "new")]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert f"error: {tmp_path / 'moe'} is of type 'nllb-moe', a mixture of experts, for which there are no" in line
    assert not (tmp_path / "new").exists()


def test_the_command_back(plain, tmp_path):
    assert main(["convert", str(plain), str(tmp_path / "capsule"), "--aggregation", "none"]) == 0
    assert main(["convert", str(tmp_path / "capsule"), str(tmp_path / "back"), "--plain"]) == 0
    assert AutoConfig.from_pretrained(tmp_path / "back").model_type == plain.name.replace("m2m100", "m2m_100")
    if plain.name == "marian":
        model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "back"), tiny_tokenizer()
        inputs = tokenizer(SOURCES[0], return_tensors="pt", return_token_type_ids=False)
        assert tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True) == TARGETS[0]


def test_the_command_knows_every_capsule_field(capsys):
    with pytest.raises(SystemExit):
        main(["convert", "--help"])
    printed = capsys.readouterr().out
    assert all(f"--{name}" in printed for name in CAPSULE_FIELDS) and "--d_model" not in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num_capsules", "5"], "num_capsules=5 does not divide d_model=26"),
        (["--bow_loss_weight", "1"], "needs PAST and FUTURE contents"),
        (["--plain", "--aggregation", "none"], "a plain model has no aggregation"),
        (["--plain"], "has no plain model to become"),
    ],
)
def test_bad_values_are_refused_before_anything_is_written(tmp_path, capsys, arguments, message):
    tiny_model().save_pretrained(tmp_path / "plain")
    tiny_tokenizer().save_pretrained(tmp_path / "plain")
    assert main(["convert", str(tmp_path / "plain"), str(tmp_path / "new"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_converted_is_refused(tmp_path, capsys):
    tiny_model().save_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match="no capsule field is called d_model, agregation"):
        convert(tmp_path / "plain", tmp_path / "new", d_model=3, agregation="none")
    with pytest.raises(ValueError, match=r"plain exists already; name a new directory"):
        convert(tmp_path / "plain", tmp_path / "plain")
    with pytest.raises(ValueError, match="there is no directory"):
        convert(tmp_path / "absent", tmp_path / "new")
    GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=4, vocab_size=7)).save_pretrained(tmp_path / "gpt")
    with pytest.raises(
        ValueError, match=r"'gpt2', and no capsule model starts from that; there are: .*capsule-marian"
    ):
        convert(tmp_path / "gpt", tmp_path / "new")
    weights = load_file(tmp_path / "plain" / "model.safetensors")
    del weights["model.encoder.layers.0.fc1.weight"]
    save_file(weights, tmp_path / "plain" / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"not a whole checkpoint: it has no model\.encoder\.layers\.0\.fc1\.weight"):
        convert(tmp_path / "plain", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_only_a_model_without_systems_becomes_plain(tmp_path):
    tiny_model().save_pretrained(tmp_path / "plain")
    tiny_tokenizer().save_pretrained(tmp_path / "plain")
    for name, fields in {
        "aggregation": {},
        "guided_routing": {"aggregation": "none", "guided_routing": "routing"},
    }.items():
        folder = convert(tmp_path / "plain", tmp_path / name, **fields)
        with pytest.raises(ValueError, match=f"{name}='.*', which no plain model has"):
            to_plain(folder, tmp_path / "back")


class TestOneFolder:
    """A folder is a whole model or not there."""

    @pytest.fixture
    def plain(self, tmp_path):
        tiny_model().save_pretrained(tmp_path / "plain")
        tiny_tokenizer().save_pretrained(tmp_path / "plain")
        return tmp_path / "plain"

    @staticmethod
    def left(folder):
        return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")

    def test_is_written_by_one_process(self, plain, tmp_path, capsys):
        command = ["convert", str(plain), str(tmp_path / "new"), "--aggregation", "linear"]
        with only_writer(tmp_path / "new"):
            assert main(command) == 2
        assert "new is being written by another process" in capsys.readouterr().err
        assert self.left(tmp_path) == ["plain"]
        assert main(command) == 0
        assert self.left(tmp_path) == ["new", "plain"]
        texts = [path.read_text() for path in (tmp_path / "new").glob("*.json")]
        assert texts and not any(".partial" in text for text in texts)

    def test_what_came_in_between_stays(self, plain, tmp_path, monkeypatch):
        real = AutoTokenizer.from_pretrained

        def meanwhile(*arguments, **options):
            (tmp_path / "new").mkdir(exist_ok=True)
            (tmp_path / "new" / "file").write_text("mine")
            return real(*arguments, **options)

        monkeypatch.setattr(AutoTokenizer, "from_pretrained", meanwhile)
        with pytest.raises(ValueError, match="new exists already"):
            convert(plain, tmp_path / "new", aggregation="linear")
        assert self.left(tmp_path) == ["new", "plain"] and (tmp_path / "new" / "file").read_text() == "mine"

    def test_a_link_leads_to_the_folder(self, plain, tmp_path):
        (tmp_path / "disk").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "disk")
        convert(plain, tmp_path / "link", aggregation="linear")
        assert (tmp_path / "link").is_symlink() and (tmp_path / "disk" / "config.json").exists()

    def test_a_full_disk(self, plain, tmp_path, capsys):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
        try:
            status = main(["convert", str(plain), str(tmp_path / "new"), "--aggregation", "linear"])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        *_, last = capsys.readouterr().err.splitlines()
        assert status == 2 and last.startswith("hf-capsule-mt convert: error: ")
        assert self.left(tmp_path) == ["plain"]

    def test_control_c(self, plain, tmp_path, capsys, monkeypatch):
        def interrupt(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(type(tiny_tokenizer()), "save_pretrained", interrupt)
        assert main(["convert", str(plain), str(tmp_path / "new"), "--aggregation", "linear"]) == 130
        assert capsys.readouterr().err.splitlines()[-1] == "hf-capsule-mt convert: interrupted; nothing was written"
        assert self.left(tmp_path) == ["plain"]
