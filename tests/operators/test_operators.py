"""An operator from outside, the one of docs/operators.md: trained, loaded, reported, saved, and taken to the Hub."""

import importlib
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from hf_capsule_mt.__main__ import main
from hf_capsule_mt.analysis.agreement_figure import agreement_figure
from hf_capsule_mt.evaluation.checkpoints import checkpoint_fingerprint
from hf_capsule_mt.hub.cards import load_values
from hf_capsule_mt.hub.export import export
from hf_capsule_mt.hub.starter import write_starter
from hf_capsule_mt.loading import from_checkpoint
from hf_capsule_mt.models.capsule_operators import AGGREGATION_CLASSES, known_aggregations, register_aggregation
from hf_capsule_mt.models.pipeline_translation import TranslationPipeline
from hf_capsule_mt.operators import ENTRY_POINTS, MODELS, load_operators, travelling_text
from hf_capsule_mt.training import command as training
from hf_capsule_mt.training.arguments import parse_arguments
from hf_capsule_mt.training.setup import prepare
from pages import Page
from tiny_models import BUILDERS, capsule_config, capsule_model, gradients, sentence_batch
from tiny_translation import SOURCES, TARGETS, tiny_model, tiny_tokenizer

PAGE = Page("docs/operators.md")
OPERATOR = PAGE.files["mean_top.py"]
SMALL = {"max_steps": 4, "save_steps": 2, "eval_steps": 4, "max_train_samples": 100, "max_eval_samples": 5}
SMALL |= {"max_test_samples": 5, "d_model": 12, "encoder_layers": 2, "decoder_layers": 2, "test_num_beams": 1}
SMALL |= {"vocab_size": 400, "report_to": "none", "disable_tqdm": "true", "use_cpu": "true"}
FAMILIES = BUILDERS
GRAMMAR = ["--dataset_name", "grammar", "--source_lang", "en", "--target_lang", "de"]
OPTIONS = {"aggregation": "mean_top", "aggregation_options": {"top": 1}}


def forget() -> None:
    """As in a process that has not loaded an operator."""
    for name in [n for n, kind in AGGREGATION_CLASSES.items() if not kind.__module__.endswith(".capsule_layers")]:
        sys.modules.pop(AGGREGATION_CLASSES.pop(name).__module__, None)


@pytest.fixture(autouse=True)
def nothing_loaded():
    forget()
    yield
    forget()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder in which the page's files lie and its commands have been run, the training with fewer steps."""
    folder, before = tmp_path_factory.mktemp("page"), Path.cwd()
    for name, text in PAGE.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "sentences.en").write_text("".join(f"{line}\n" for line in SOURCES), encoding="utf-8")
    (folder / "sentences.ref").write_text("".join(f"{line}\n" for line in TARGETS), encoding="utf-8")
    tiny_model().save_pretrained(folder / "plain")
    tiny_tokenizer().save_pretrained(folder / "plain")
    os.chdir(folder)

    def smaller(argv: list[str]) -> list[str]:
        forget()
        if argv[0] != "train":
            return argv
        return [*argv, *(token for name, value in SMALL.items() for token in (f"--{name}", str(value)))]

    try:
        PAGE.run("operator", smaller)
    finally:
        os.chdir(before)
    forget()
    return folder


@pytest.fixture
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


def write(folder: Path, text: str, name: str = "mean_top.py") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


@pytest.mark.parametrize("family", FAMILIES)
def test_forward_backward_and_options(tmp_path, family):
    load_operators([write(tmp_path, OPERATOR)])
    model = FAMILIES[family](**OPTIONS)
    batch = sentence_batch()
    model(**batch).loss.backward()
    weights = [name for name in gradients(model) if "combine.weight" in name]
    assert len(weights) == 2 and all(gradients(model)[name].abs().sum() > 0 for name in weights)
    combine = model.get_encoder().aggregation.combine
    layers = torch.randn(2, 5, 3, combine.weight.shape[0])
    torch.testing.assert_close(combine(layers)[0], combine.weight * layers[..., -1, :])


def test_the_run_is_of_the_operator_and_carries_it(here):
    for folder in (here / "runs/mean_top", here / "runs/mean_top/checkpoint-2"):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        assert (config["aggregation"], config["aggregation_options"]) == ("mean_top", {"top": 3})
        assert config["operator_file"] == "mean_top.py"
        assert set(config["auto_map"].values()) == {
            f"modeling_with_operator.CapsuleMarian{kind}" for kind in ("Config", "Model", "MTModel")
        }
        assert travelling_text(here / "mean_top.py") == (folder / "mean_top.py").read_text(encoding="utf-8")
    results = json.loads((here / "runs/mean_top/results.json").read_text(encoding="utf-8"))
    assert results["arguments"]["operators"] == ["mean_top.py"]
    assert len((here / "sentences.de").read_text(encoding="utf-8").splitlines()) == len(SOURCES)


def test_the_run_can_be_resumed(here, capsys):
    argv = ["mean_top.yaml", *(t for n, v in SMALL.items() for t in (f"--{n}", str(v)))]
    assert training.main([*argv, "--resume_from_checkpoint", "true"]) == 0


def test_the_page_loads_it_in_python(here):
    assert set(PAGE.code) == {"load"}
    names = PAGE.execute("load")
    assert type(names["model"].model.encoder.aggregation.combine).__name__ == "MeanOfTopLayers"


def translate(*more: str) -> int:
    return main(["translate", "runs/mean_top", "sentences.en", "--output", "-", *more])


def test_without_trust_it_is_not_run(here, capsys):
    assert translate() == 2
    error = capsys.readouterr().err
    assert "aggregation of its own in mean_top.py, which is not run unasked" in error and error.count("\n") == 1
    assert "mean_top" not in known_aggregations()


def test_trusted_or_named_it_translates_the_same(here, capsys):
    assert translate("--trust_remote_code") == 0
    trusted = capsys.readouterr().out
    assert AGGREGATION_CLASSES["mean_top"].__module__ == f"{MODELS}.mean_top"
    forget()
    assert translate("--operators", "mean_top.py") == 0
    assert capsys.readouterr().out == trusted == (here / "sentences.de").read_text(encoding="utf-8")


@pytest.mark.parametrize("more", [["--operators", "mean_top.py"], ["--trust_remote_code", "true"]])
def test_training_goes_on_from_a_model_with_it(here, tmp_path, more):
    argv = ["--model_name_or_path", "runs/mean_top", "--output_dir", str(tmp_path / "next"), *GRAMMAR]
    argv += ["--dropout", "0.2"]
    small = {name: value for name, value in SMALL.items() if not name.endswith("layers") and name != "vocab_size"}
    arguments = parse_arguments([*argv, *more, *(t for n, v in small.items() for t in (f"--{n}", str(v)))])
    model = prepare(arguments).model
    assert model.config.aggregation_options == {"top": 3} and "mean_top" in AGGREGATION_CLASSES
    assert model.config.dropout == 0.2


def test_training_from_it_without_trust_says_what_is_needed(here, tmp_path):
    argv = ["--model_name_or_path", "runs/mean_top", "--output_dir", str(tmp_path / "next"), *GRAMMAR]
    with pytest.raises(ValueError, match=r"in mean_top.py, which is not run unasked: .* or --operators FILE"):
        prepare(parse_arguments([*argv, "--max_train_samples", "50"]))


def test_another_text_than_the_saved_one_is_said(tmp_path, caplog):
    load_operators([write(tmp_path, OPERATOR)])
    capsule_model(**OPTIONS).save_pretrained(tmp_path / "saved")
    from_checkpoint(AutoModelForSeq2SeqLM, tmp_path / "saved")
    assert "another mean_top.py" not in caplog.text
    forget()
    load_operators([write(tmp_path, OPERATOR.replace(".mean(dim=-2)", ".sum(dim=-2)"))])
    from_checkpoint(AutoModelForSeq2SeqLM, tmp_path / "saved")
    assert "was saved with another mean_top.py than the one that is in use now" in caplog.text


def test_an_operator_file_outside_of_the_folder_is_refused(here, tmp_path):
    config = json.loads((here / "runs/mean_top/config.json").read_text(encoding="utf-8"))
    for name in ("../mean_top.py", "/etc/passwd", 3):
        (tmp_path / "config.json").write_text(json.dumps(config | {"operator_file": name}), encoding="utf-8")
        with pytest.raises(ValueError, match="which is no file of its folder"):
            from_checkpoint(AutoConfig, tmp_path, trust_remote_code=True)


def test_report_has_no_routing_of_it(here, tmp_path):
    argv = ["report", "runs/mean_top", "--source", "sentences.en", "--reference", "sentences.ref", "--no_speed"]
    assert main([*argv, "--output", str(tmp_path), "--operators", "mean_top.py", "--examples", "1"]) == 0
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["systems"][0]["routing"] == {}


ROUTER = '''
import torch
from torch import nn

from hf_capsule_mt.models.capsule_operators import register_aggregation


@register_aggregation("router")
class Router(nn.Module):
    """Each layer goes to groups of dimensions, in two iterations."""

    routes = True

    def __init__(self, config, num_layers: int, groups: int = 3) -> None:
        super().__init__()
        self.scores = nn.Linear(config.d_model, groups)

    def forward(self, layers, output_agreements: bool = False):
        first = torch.full_like(self.scores(layers), 1 / self.scores.out_features)
        last = self.scores(layers).softmax(dim=-1)
        mixed = (last.max(dim=-1, keepdim=True).values * layers).sum(dim=-2)
        return mixed, (first, last) if output_agreements else None
'''


def test_agreements_of_one_that_routes_are_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, ROUTER, "router.py")
    for name, lines in (("s.en", SOURCES), ("s.de", TARGETS)):
        write(tmp_path, "".join(f"{line}\n" for line in lines), name)
    tiny_model().save_pretrained(tmp_path / "plain")
    tiny_tokenizer().save_pretrained(tmp_path / "plain")
    argv = ["convert", "plain", "routed", "--operators", "router.py", "--aggregation", "router"]
    assert main(argv) == 0
    argv = ["report", "routed", "--operators", "router.py", "--source", "s.en", "--reference", "s.de"]
    assert main([*argv, "--no_speed", "--examples", "1", "--output", "report"]) == 0
    (system,) = json.loads((tmp_path / "report/report.json").read_text(encoding="utf-8"))["systems"]
    assert set(system["routing"]) == {"encoder", "decoder"} and "aggregation=router" in system["description"]
    for statistics in system["routing"].values():
        # as many iterations and capsules as it returns, whatever the configuration says for built-in operators
        entropies = [iteration["entropy"] for iteration in statistics["iterations"]]
        assert statistics["capsules"] == 3 and len(entropies) == 2
        assert entropies[0] == pytest.approx(math.log(3), rel=1e-6) and entropies[1] < entropies[0]
    assert "Entropy" in (tmp_path / "report/index.html").read_text(encoding="utf-8")
    # and in a card: the figure, and what a starter says of it
    write_starter(tmp_path / "card.yaml", tmp_path / "routed", None)
    values = load_values(tmp_path / "card.yaml")
    assert "layer aggregation router" in values.description and values.papers == []
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "routed")
    assert agreement_figure(model, tiny_tokenizer(), SOURCES[0], tmp_path / "agreements.png").is_file()


def test_kept_work_knows_the_operators_text(tmp_path):
    seen = []
    for text in (OPERATOR, OPERATOR.replace("top: int = 2", "top: int = 1")):
        load_operators([write(tmp_path, text)])
        seen.append(checkpoint_fingerprint(capsule_model(aggregation="mean_top"), tiny_tokenizer())["operator"])
        forget()
    assert seen[0] != seen[1]


def test_another_aggregation_leaves_the_operator_behind(here, tmp_path):
    argv = ["convert", "runs/mean_top", str(tmp_path / "linear"), "--operators", "mean_top.py"]
    assert main([*argv, "--aggregation", "linear"]) == 0
    config = json.loads((tmp_path / "linear/config.json").read_text(encoding="utf-8"))
    assert "operator_file" not in config and not config.get("aggregation_options")
    assert not list((tmp_path / "linear").glob("*operator.py")) and "with_operator" not in str(config["auto_map"])
    forget()
    from_checkpoint(AutoModelForSeq2SeqLM, tmp_path / "linear")


# what someone does who has transformers alone: load, translate, save again
CLEAN = """
import json, sys
sys.modules["hf_capsule_mt"] = None
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
folders, sentences = json.load(sys.stdin)
def translations(place):
    translator = pipeline("translation", model=place, trust_remote_code=True)
    return [out["translation_text"] for out in translator(sentences, num_beams=1, max_new_tokens=12)]
seen = []
for folder in folders:
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
    operator = type(model.get_encoder().aggregation.combine).__module__
    model.save_pretrained(folder + "-again")
    AutoTokenizer.from_pretrained(folder, trust_remote_code=True).save_pretrained(folder + "-again")
    again = AutoModelForSeq2SeqLM.from_pretrained(folder + "-again", trust_remote_code=True)
    tokens = torch.arange(3, 15).reshape(2, 6)
    losses = [loaded.eval()(input_ids=tokens, labels=tokens).loss.item() for loaded in (model, again)]
    seen.append([type(config).__module__, operator, losses, translations(folder + "-again")])
print(json.dumps(seen))
"""


def test_it_is_loaded_and_saved_again_without_this_package(tmp_path):
    load_operators([write(tmp_path, OPERATOR)])
    for family in ("marian", "rnn"):
        model = FAMILIES[family](vocab_size=len(tiny_tokenizer()), **OPTIONS)
        model.save_pretrained(tmp_path / "run")
        tiny_tokenizer().save_pretrained(tmp_path / "run")
        export(tmp_path / "run", tmp_path / family)
    finished = subprocess.run(
        [sys.executable, "-I", "-c", CLEAN],
        input=json.dumps([[str(tmp_path / "marian"), str(tmp_path / "rnn")], SOURCES[:3]]),
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules")},
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    for family, (config, operator, losses, translations) in zip(
        ("marian", "rnn"), json.loads(finished.stdout), strict=True
    ):
        assert config.endswith(".modeling_with_operator") and operator.endswith(".mean_top")
        assert config.startswith("transformers_modules.") and operator.startswith("transformers_modules.")
        model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / family)
        here = TranslationPipeline(model=model, tokenizer=tiny_tokenizer(), task="translation")
        expected = [out["translation_text"] for out in here(SOURCES[:3], num_beams=1, max_new_tokens=12)]
        assert translations == expected
        tokens = torch.arange(3, 15).reshape(2, 6)
        assert losses == [model.eval()(input_ids=tokens, labels=tokens).loss.item()] * 2
        kept, saved = ({p.name: p for p in (tmp_path / name).iterdir()} for name in (family, f"{family}-again"))
        assert kept.keys() == saved.keys()
        for name in ("mean_top.py", "modeling_with_operator.py", "config.json"):
            assert kept[name].read_bytes() == saved[name].read_bytes(), name


BAD_FILES = {
    "no file": (None, "there is no operator file"),
    "no Python": ("class :", "line 1: not Python"),
    "nothing registered": ("x = 1\n", "registers no aggregation: decorate its class with @register_aggregation"),
    "fails": ("import torch\n1 / 0\n", "ZeroDivisionError"),
    "taken": (
        OPERATOR.replace('"mean_top"', '"em_routing"'),
        "'em_routing' of MeanOfTopLayers is taken",
    ),
    "none": (OPERATOR.replace('"mean_top"', '"none"'), "'none' of MeanOfTopLayers is taken"),
    "option without default": (OPERATOR.replace("top: int = 2", "top: int"), "options that have defaults"),
    "package": ("import hf_capsule_mt\n" + OPERATOR, "line 1: an operator is one file"),
    "other part": ("from hf_capsule_mt.files import json_text\n" + OPERATOR, "line 1: an operator is one file"),
    "no such model file": ("from hf_capsule_mt.models.x import y\n" + OPERATOR, "line 1: an operator is one file"),
    "another file": ("from .helper import y\n" + OPERATOR, "line 1: an operator is one file"),
    "above": ("from ..files import y\n" + OPERATOR, "line 1: an operator is one file"),
}


@pytest.mark.parametrize(("text", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_bad_files_are_named_and_leave_nothing(tmp_path, text, message):
    path = tmp_path / "mean_top.py" if text is None else write(tmp_path, text)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        load_operators([path])
    assert str(path) in str(error.value) and known_aggregations()[1:] == tuple(AGGREGATION_CLASSES)
    assert "mean_top" not in AGGREGATION_CLASSES and f"{MODELS}.mean_top" not in sys.modules


@pytest.mark.parametrize("name", ["capsule_layers.py", "mean-top.py"])
def test_a_name_that_cannot_lie_beside_weights_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="rename it to a Python name that no file of the models has"):
        load_operators([write(tmp_path, OPERATOR, name)])


def test_the_same_file_twice_is_one_and_another_of_its_name_is_refused(tmp_path):
    load_operators([write(tmp_path, OPERATOR)] * 2)
    (tmp_path / "other").mkdir()
    load_operators([write(tmp_path / "other", OPERATOR.replace(f"from {MODELS}.", "from ."))])
    with pytest.raises(ValueError, match=r"is another file than .*, which is in use already; rename one"):
        load_operators([write(tmp_path / "other", OPERATOR + "\n")])
    with pytest.raises(ValueError, match="'mean_top' of MeanOfTopLayers is taken"):
        load_operators([write(tmp_path, OPERATOR, "second.py")])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"aggregation": "mean_topp"}, "choose one of none, linear, dynamic, .* name the file that adds it"),
        (OPTIONS | {"aggregation_options": {"topp": 1}}, "'mean_top' has no option 'topp'; its options are top"),
        ({"aggregation": "linear", "aggregation_options": {"top": 1}}, "'linear' has no option 'top'; it has none"),
        ({"aggregation": "none", "aggregation_options": {"top": 1}}, "'none' has no option 'top'; it has none"),
        (OPTIONS | {"aggregation_options": ["top"]}, "aggregation_options"),
    ],
)
def test_bad_names_and_options(tmp_path, fields, message):
    load_operators([write(tmp_path, OPERATOR)])
    with pytest.raises(StrictDataclassError, match=message):
        capsule_config(**fields)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{", "aggregation_options is not JSON"),
        ("[1]", "aggregation_options must be names and values"),
        ('{"k": 1}', "no option 'k'"),
    ],
)
def test_bad_options_of_a_run(here, options, message):
    with pytest.raises(ValueError, match=message):
        parse_arguments(["mean_top.yaml", "--aggregation_options", options])


def test_a_module_by_its_name(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path, OPERATOR, "my_operators.py")
    load_operators(["my_operators"])
    assert AGGREGATION_CLASSES["mean_top"].__module__ == "my_operators"
    capsule_model(**OPTIONS).save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved/my_operators.py").is_file()
    with pytest.raises(ValueError, match="there is no operator module no_such_module"):
        load_operators(["no_such_module"])


def test_an_installed_package_by_its_entry_point(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "theirs").mkdir()
    write(tmp_path / "theirs", "", "__init__.py")
    write(tmp_path / "theirs", OPERATOR)
    metadata = tmp_path / "theirs-1.0.dist-info"
    metadata.mkdir()
    write(metadata, "Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n", "METADATA")
    write(metadata, f"[{ENTRY_POINTS}]\nmean_top = theirs.mean_top\nother = theirs.mean_top\n", "entry_points.txt")
    importlib.invalidate_caches()
    assert "theirs.mean_top" not in sys.modules
    assert capsule_config(**OPTIONS).aggregation == "mean_top"
    with pytest.raises(StrictDataclassError, match=r"other = theirs\.mean_top does not register 'other'"):
        capsule_config(aggregation="other")


def test_a_class_that_is_in_no_file_of_its_own_is_saved_with_a_warning(tmp_path, caplog):
    from torch import nn

    @register_aggregation("here")
    class Here(nn.Module):
        def __init__(self, config, num_layers):
            super().__init__()

        def forward(self, layers, output_agreements=False):
            return layers.mean(dim=-2), None

    with caplog.at_level("WARNING"):
        capsule_model(aggregation="here").save_pretrained(tmp_path / "saved")
    AGGREGATION_CLASSES.pop("here")
    assert "does not carry its operator, which has to be named to load it" in caplog.text
    assert (tmp_path / "saved/model.safetensors").is_file()


def test_names_stand_in_one_place():
    """No file but the registry's users lists all aggregations as a collection of names."""
    root = Path(__file__).parents[2] / "hf_capsule_mt"
    pattern = re.compile(r'"linear",\s*"dynamic",\s*"dynamic_routing"')
    assert [str(path) for path in root.rglob("*.py") if pattern.search(path.read_text(encoding="utf-8"))] == []
