"""Recipes, the command line over them, and clear words for every mistake."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hf_capsule_mt.evidence.recorded import RECORDS
from hf_capsule_mt.recipe_files import RECIPES as RECIPE_FOLDER
from hf_capsule_mt.recipe_files import merge_layers, read_recipe, recipe_names
from hf_capsule_mt.training.arguments import (
    ARCHITECTURE_DEFAULTS,
    REGULARISATION_DEFAULTS,
    DataArguments,
    ModelArguments,
    build_parser,
    parse_arguments,
)
from hf_capsule_mt.training.distillation import parse_distillation

ROOT = Path(__file__).parents[2]
# Those of `hf-capsule-mt distill` are another command's, see test_distillation.py; bases are only extended.
BASES = [
    "3am/base",
    "multi30k_lc/base",
    *(f"multi30k/base{kind}" for kind in ("", "_continued", "_guided", "_recurrent")),
]
RECIPES = [name for name in recipe_names() if Path(name).name != "distill"]
# of the studies that are made of recipes, and single runs
RECORDED = [
    *sorted((RECORDS / "runs" / "multi30k").glob("*/seed-1/results.json")),
    *(
        path
        for path in sorted(RECORDS.glob("*/*.json"))
        if re.search('^  "recipe": ', path.read_text(encoding="utf-8"), re.M)
    ),
]
MINIMAL = {"output_dir": "out", "source_lang": "en", "target_lang": "de", "train_file": "train"}


@pytest.fixture
def recipe(tmp_path):
    """Write a recipe of the minimal keys and those given; None leaves a key out."""

    def write(**values) -> str:
        path = tmp_path / "recipe.yaml"
        merged = {key: value for key, value in {**MINIMAL, **values}.items() if value is not None}
        path.write_text(yaml.safe_dump(merged))
        return str(path)

    return write


def test_recipe_gives_defaults_and_the_command_line_wins(recipe):
    path = recipe(d_model=24, max_steps=7, dropout=0.3)
    arguments = parse_arguments([path, "--max_steps", "9", "--aggregate-encoder", "false"])
    assert arguments.recipe == path
    assert (arguments.model.d_model, arguments.training.max_steps, arguments.model.dropout) == (24, 9, 0.3)
    assert arguments.model.aggregate_encoder is False
    assert arguments.model.given() == {"d_model": 24, "dropout": 0.3, "aggregate_encoder": False}


@pytest.mark.parametrize(
    "text,name,value",
    [
        pytest.param("learning_rate: 2e-3", "learning_rate", 0.002, id="float-that-yaml-reads-as-text"),
        pytest.param("test_num_beams: [1, 5]", "test_num_beams", [1, 5], id="list"),
        pytest.param("load_best_model_at_end: true", "load_best_model_at_end", True, id="bool"),
        pytest.param("save_total_limit: null", "save_total_limit", None, id="null-over-a-default"),
        pytest.param("lr_scheduler_kwargs: {timescale: 9}", "lr_scheduler_kwargs", {"timescale": 9}, id="mapping"),
        pytest.param("eval_strategy: 'no'", "eval_strategy", "no", id="quoted-no"),
        pytest.param("eval_strategy: no", "eval_strategy", "no", id="no-that-yaml-reads-as-false"),
        pytest.param("report_to: none", "report_to", [], id="none"),
    ],
)
def test_values_of_a_recipe_are_converted_as_on_the_command_line(tmp_path, text, name, value):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(MINIMAL) + text)
    assert getattr(parse_arguments([str(path)]).training, name) == value


def test_command_line_without_a_recipe_takes_the_default_one(recipe):
    path = recipe(max_steps=3)
    assert parse_arguments([], path).training.max_steps == 3
    changed = parse_arguments(["--max_steps", "4"], path)
    assert (changed.training.max_steps, changed.data.train_file, changed.recipe) == (4, "train", path)


@pytest.mark.parametrize(
    "argv", [["--recipe", "none"], ["--recipe=none"], ["none"]], ids=["option", "with-equals-sign", "first"]
)
def test_whoever_wants_no_recipe_says_so(recipe, argv):
    given = [f"--{key}={value}" for key, value in MINIMAL.items()]
    arguments = parse_arguments([*argv, *given], recipe(max_steps=3))
    assert arguments.recipe is None and arguments.given == MINIMAL
    with pytest.raises(ValueError, match="missing key output_dir"):
        parse_arguments([*argv, "--max_steps=3"], recipe())


def test_recipe_as_an_option(recipe):
    path = recipe(max_steps=7)
    assert parse_arguments(["--d_model", "24", "--recipe", path, "--seed=3"]).training.max_steps == 7
    for argv, message in (
        (["--d_model=24", "--recipe"], "--recipe needs a value"),
        ([path, "--recipe=none"], r"give one recipe, not .*recipe\.yaml, none"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_arguments(argv)


class TestNames:
    def test_the_folder_does_not_matter(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        named = parse_arguments(["multi30k/em_routing"])
        assert named.recipe == "multi30k/em_routing" and named.model.aggregation == "em_routing"
        path = str(RECIPE_FOLDER / "multi30k" / "em_routing.yaml")
        assert parse_arguments([path]) == named == parse_arguments(["multi30k/em_routing.yaml"])

    def test_a_name_means_the_package_and_a_path_the_file(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for name in ("grammar", "grammar.yaml"):
            Path(name).write_text("extends: grammar\nmax_steps: 3\n")
        assert parse_arguments(["grammar"]).training.max_steps == 1400
        assert parse_arguments(["grammar.yaml"]).training.max_steps == 3
        assert parse_arguments(["./grammar"]).recipe == "grammar"

    @pytest.mark.parametrize(
        "name, message",
        [
            ("multi30k/em_ruting", "no recipe multi30k/em_ruting; did you mean multi30k/em_routing?"),
            ("recipes/multi30k/gdr.yaml", "did you mean multi30k/gdr?"),
            ("zzzz", "no recipe zzzz; there are: 3am/base"),
        ],
        ids=["misspelt", "path-in-a-checkout", "nothing-like-it"],
    )
    def test_mistakes(self, name, message, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(FileNotFoundError, match=message.replace("?", r"\?")):
            parse_arguments([name])


class TestExtends:
    @pytest.fixture
    def write(self, tmp_path):
        def write(name, **values):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(yaml.safe_dump(values))
            return str(tmp_path / name)

        return write

    def test_later_files_win_and_null_drops(self, write):
        write("base.yaml", **MINIMAL, max_steps=7, save_total_limit=3, d_model=24)
        write("middle.yaml", extends="base", max_steps=8, d_model=None)
        path = write("mine.yaml", extends="middle.yaml", seed=5, save_total_limit=None, eval_steps=None)
        arguments = parse_arguments([path])
        assert (arguments.training.max_steps, arguments.training.seed, arguments.model.d_model) == (8, 5, None)
        # dropped, so that the default holds; where nothing is extended, null is the value
        assert arguments.training.save_total_limit == 6 and arguments.given["eval_steps"] is None

    def test_a_recipe_of_the_package(self, write):
        path = write("mine.yaml", extends="multi30k/em_routing", max_steps=9, average_checkpoints=None)
        arguments = parse_arguments([path])
        assert arguments.model.aggregation == "em_routing" and arguments.training.max_steps == 9
        assert arguments.training.average_checkpoints == 1 and arguments.recipe == path

    def test_a_file_in_another_folder(self, write):
        write("common/base.yaml", **MINIMAL, max_steps=7)
        assert parse_arguments([write("a.yaml", extends="common/base")]).training.max_steps == 7
        assert parse_arguments([write("b/a.yaml", extends="../common/base.yaml")]).training.max_steps == 7

    @pytest.mark.parametrize(
        "files, message",
        [
            ({"a": dict(extends="a")}, r"a\.yaml: extends: a extends this recipe itself"),
            ({"a": dict(extends="b"), "b": dict(extends="a")}, r"b\.yaml: extends: a extends this recipe itself"),
            ({"a": dict(extends=["b"])}, r"a\.yaml: extends is the name or path of one recipe, got \['b'\]"),
            ({"a": dict(extends=None)}, r"a\.yaml: extends is the name or path of one recipe, got None"),
            ({"a": dict(extends="multi30k/gdrr")}, r"a\.yaml: extends: no recipe multi30k/gdrr; did you mean"),
            ({"a": dict(extends="b"), "b": dict(max_step=1)}, r"b\.yaml: unknown key 'max_step'; did you mean"),
            ({"a": dict(extends="b"), "b": dict(max_steps="x")}, r"b\.yaml: .*invalid int value: 'x'"),
            ({"a": dict(extends="b", seed=None), "b": {}}, r"a\.yaml: seed cannot be null"),
        ],
        ids=["itself", "cycle", "list", "null", "missing", "key-of-the-base", "value-of-the-base", "null-of-nothing"],
    )
    def test_mistakes_are_named_with_their_file(self, write, files, message):
        for name, values in files.items():
            write(f"{name}.yaml", **values)
        path = write("a.yaml", **files["a"])
        with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
            parse_arguments([path])
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values,message",
    [
        pytest.param({"train_fil": "x"}, "unknown key 'train_fil'; did you mean train_file?", id="unknown-key"),
        pytest.param({"zzzz": 1}, "unknown key 'zzzz'; see hf-capsule-mt train --help", id="unknown-key-like-none"),
        pytest.param({"max_steps": "many"}, "invalid int value: 'many'", id="type"),
        pytest.param({"aggregation": "em"}, "aggregation='em' is not known; choose one of none", id="aggregation"),
        pytest.param({"train_file": None}, "missing key train_file", id="no-data"),
        pytest.param({"source_lang": None}, "missing key source_lang", id="no-source-language"),
        pytest.param({"target_lang": None}, "missing key target_lang", id="no-target-language"),
        pytest.param({"target_lang": "en"}, "source_lang and target_lang are both 'en'", id="one-language"),
        pytest.param({"output_dir": None}, "missing key output_dir", id="no-output"),
        pytest.param({"dataset_name": "grammar"}, r"either dataset_name \(grammar\) or train_file", id="two-sources"),
        pytest.param({"label_smoothing_factor": 0.1}, "use label_smoothing=0.1 instead", id="label-smoothing-factor"),
        pytest.param({"average_checkpoints": 0}, "average_checkpoints must be at least 1, got 0", id="average-0"),
        pytest.param(
            {"average_checkpoints": 6, "save_total_limit": 6}, "needs a save_total_limit of at least 7", id="limit"
        ),
        pytest.param({"average_checkpoints": 2, "save_strategy": "no"}, "needs checkpoints", id="average-nothing"),
        pytest.param(
            {"average_checkpoints": 2, "load_best_model_at_end": True}, "both choose the final model", id="two-finals"
        ),
        pytest.param({"learning_rate": float("nan")}, "learning_rate must be a finite number", id="rate-nan"),
        pytest.param({"learning_rate": -1.0}, "learning_rate must be .* got -1.0", id="rate-negative"),
        pytest.param({"dataloader_num_workers": -1}, "dataloader_num_workers must be at least 0", id="workers"),
        pytest.param({"metric_for_best_model": "loss"}, "must be one of bleu, chrf, ter, got 'loss'", id="metric"),
        pytest.param({"generation_max_length": 1}, "generation_max_length must be at least 2, got 1", id="length-1"),
        pytest.param({"test_num_beams": [0]}, r"test_num_beams must be .* got \[0\]", id="beam-0"),
        pytest.param({"max_tokens_per_batch": 0}, "max_tokens_per_batch must be at least 1", id="tokens-0"),
        pytest.param({"early_stopping_patience": 0}, "early_stopping_patience must be at least 1", id="patience-0"),
        pytest.param(
            {"early_stopping_patience": 2, "eval_strategy": "no"}, "needs evaluations", id="patience-without-scores"
        ),
    ],
)
def test_mistakes_in_a_recipe_are_named(recipe, values, message):
    with pytest.raises(ValueError, match=message):
        parse_arguments([recipe(**values)])


@pytest.mark.parametrize(
    "argv,message",
    [
        pytest.param(["--max_step", "3"], "unknown argument --max_step; did you mean --max_steps?", id="unknown"),
        pytest.param(["--learning-rat=1"], "did you mean --learning_rate?", id="hyphens"),
        pytest.param(["--max_steps", "1.5"], "invalid int value: '1.5'", id="type"),
        pytest.param(["another.yaml"], "unexpected value 'another.yaml': a recipe comes first", id="second-recipe"),
    ],
)
def test_mistakes_on_the_command_line_are_named(recipe, argv, message):
    with pytest.raises(ValueError, match=message):
        parse_arguments([recipe(), *argv])


def test_missing_recipe_lists_its_neighbours(recipe):
    path = recipe()
    with pytest.raises(FileNotFoundError, match=r"no recipe .*recipes\.yaml; there are: .*recipe\.yaml"):
        parse_arguments([path.replace("recipe.yaml", "recipes.yaml")])


@pytest.mark.parametrize("text", ["- a\n- b\n", "just text", ""], ids=["list", "text", "empty"])
def test_recipe_that_is_no_mapping(tmp_path, text):
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(ValueError, match="a recipe is a list of 'argument: value' lines"):
        parse_arguments([str(tmp_path / "recipe.yaml")])


def test_recipe_that_is_no_yaml(tmp_path):
    (tmp_path / "recipe.yaml").write_text("a: [1,\nb: 2")
    with pytest.raises(ValueError, match=r"recipe\.yaml: not valid YAML"):
        parse_arguments([str(tmp_path / "recipe.yaml")])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(
            "d_model: 3\ntrain_file: \u00e4\n".encode("latin-1"), r"yaml, line 2: not UTF-8 text", id="latin-1"
        ),
        pytest.param(b"d_model: 3\nmax_steps: 1\nd_model: 4\n", "'d_model' is given twice: .*line 3", id="twice"),
        pytest.param(b"lr_scheduler_kwargs: {a: 1, 'a': 2}", "the key 'a' is given twice", id="twice-inside"),
        pytest.param(b"d_model: " + b"[" * 3000 + b"]" * 3000, "nested too deeply", id="deep"),
        pytest.param(b"lr_scheduler_kwargs: &a {b: *a}", "'lr_scheduler_kwargs' contains itself", id="circle"),
        pytest.param(b'run_name: "\\ud800"', "value of 'run_name' has half of a surrogate pair", id="surrogate"),
        pytest.param(
            b'lr_scheduler_kwargs: {b: ["\\udfff"]}', "'lr_scheduler_kwargs' has half of", id="surrogate-inside"
        ),
        pytest.param(b"average_checkpoints: null", "average_checkpoints cannot be null; leave the key out", id="null"),
        pytest.param(b"test_num_beams: ~", "test_num_beams cannot be null", id="null-list"),
        pytest.param(b"learning_rate:", "learning_rate cannot be null", id="nothing"),
        pytest.param(b"vocab_size: null", "vocab_size cannot be null", id="null-of-the-data"),
    ],
)
@pytest.mark.parametrize("parse", [parse_arguments, parse_distillation], ids=["train", "distill"])
def test_files_that_are_no_recipe_are_named(tmp_path, parse, content, message):
    if parse is parse_distillation:
        # a null and other mistakes are of keys that distillation has
        others = {
            b"average_checkpoints": b"num_beams",
            b"test_num_beams": b"num_beams",
            b"learning_rate": b"num_beams",
        }
        for key, other in others.items():
            content, message = content.replace(key, other), message.replace(key.decode(), other.decode())
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        parse([str(path)])
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_every_null_that_the_dataclasses_allow_is_allowed(tmp_path, recipe):
    path = recipe(save_total_limit=3)
    text = Path(path).read_text()
    for name in ("save_total_limit", "d_model", "eval_steps", "early_stopping_patience", "lr_scheduler_kwargs"):
        Path(path).write_text(text.replace("save_total_limit: 3\n", "") + f"{name}: null\n")
        parsed = parse_arguments([path])
        assert (
            getattr(parsed.model, name, None) is getattr(parsed.training, name, None) is None or name == "eval_steps"
        )


def test_argument_that_is_no_text_is_named():
    with pytest.raises(ValueError, match=r"the argument '--run_name=\\udcff' is not UTF-8 text"):
        parse_arguments(["--run_name=\udcff"])


def test_bases_are_extended_and_not_offered():
    assert len(RECORDED) > 10 and not set(BASES) & set(recipe_names()) and "multi30k/baseline_continued" in RECIPES
    assert [read_recipe(name)[-1].name for name in BASES] == BASES
    with pytest.raises(FileNotFoundError, match=r"no recipe multi30k/bases; did you mean multi30k/baseline\?"):
        read_recipe("multi30k/bases")


@pytest.mark.parametrize("name", RECIPES)
def test_published_recipes_are_valid(name):
    arguments = parse_arguments([name])
    assert arguments.training.output_dir == f"runs/{name}"
    assert arguments.training.max_steps > 0


# those on the embedded corpus say what is trained on it, instead of what one system differs in
@pytest.mark.parametrize("name", [name for name in RECIPES if not name.startswith("grammar")])
def test_published_recipes_are_what_they_differ_in(name):
    base, *others = read_recipe(name)
    assert base.name in BASES and others[-1].name == name
    assert len(others[-1].values) <= 7
    for position, layer in enumerate(others):
        before = merge_layers([base, *others[:position]])
        same = [key for key, value in layer.values.items() if key in before and before[key] == value]
        assert not same, f"{layer.name} repeats {same}"


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.relative_to(RECORDS).as_posix())
def test_published_recipes_are_those_of_the_recorded_results(recorded):
    results = json.loads(recorded.read_text(encoding="utf-8"))
    name = results["recipe"].removeprefix("recipes/").removesuffix(".yaml")
    if f"{recorded.parent.name}/{recorded.stem}" in RECIPES:
        name = f"{recorded.parent.name}/{recorded.stem}"  # recipes may have been renamed since
    kept = {*vars(ModelArguments()), *vars(DataArguments()), "max_steps", "learning_rate", "seed"} - {"data_dir"}
    kept |= {"lr_scheduler_type", "warmup_steps", "average_checkpoints", "max_tokens_per_batch"}
    then = {key: value for key, value in results["arguments"].items() if key in kept}
    given = parse_arguments([name]).given
    now = {key: value for key, value in given.items() if key in kept}
    assert now == then


def test_every_model_argument_is_a_config_field():
    from hf_capsule_mt.models.capsule_configuration import CapsuleConfigMixin

    configs = {family.model_type: family() for family in CapsuleConfigMixin.__subclasses__()}
    for name in set(vars(ModelArguments())) - {"model_name_or_path"}:
        assert any(hasattr(config, name) for config in configs.values()), name
    assert set(ARCHITECTURE_DEFAULTS) == set(configs)
    for model_type, defaults in ARCHITECTURE_DEFAULTS.items():
        assert set(defaults) <= set(vars(ModelArguments())) & set(vars(configs[model_type]))
    assert set(REGULARISATION_DEFAULTS) <= set(vars(ModelArguments()))


def test_help_shows_this_projects_arguments(capsys):
    for argv in (["--help"], ["multi30k/gdr", "-h"]):
        with pytest.raises(SystemExit) as left:
            parse_arguments(argv)
        assert left.value.code == 0
        text = capsys.readouterr().out
        positions = [text.index(f"\n{group}:") for group in ("model", "data", "training")]
        assert positions == sorted(positions)
        assert "--max_tokens_per_batch" in text and "--gradient_accumulation_steps" not in text
        assert "--help all" in text and "default: None" not in text and "--max-tokens-per-batch" not in text


def test_help_all_has_every_argument_once(capsys):
    with pytest.raises(SystemExit):
        parse_arguments(["--help", "all"])
    text = capsys.readouterr().out
    shown = re.findall(r"^  (--\w+)", text, re.M)
    wanted = {action.option_strings[0] for action in build_parser()._actions if action.dest != "help"}
    assert sorted(shown) == sorted(wanted) and "default: None" not in text
    assert text.index("--length_penalty") < text.index("transformers.Seq2SeqTrainingArguments:")


def test_parsing_loads_no_data_or_scoring_library():
    code = (
        "import sys; import hf_capsule_mt.training.arguments as a; a.build_parser(); "
        "print(sorted({'datasets', 'sacrebleu', 'pandas'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_what_other_libraries_cannot_use_is_one_error(tmp_path):
    # in a process of its own: accelerate keeps what it began with
    code = (
        "import sys\nfrom hf_capsule_mt.training.arguments import parse_arguments\n"
        "for recipe in sys.argv[1:]:\n"
        "    try:\n        parse_arguments([recipe])\n    except ValueError as error:\n        print(error)"
    )
    recipes = []
    for index, line in enumerate(("accelerator_config: {a: [1]}", "deepspeed: {stage: 2}")):
        recipes.append(tmp_path / f"{index}.yaml")
        recipes[-1].write_text(
            f"{line}\noutput_dir: run\ndataset_name: grammar\nsource_lang: en\ntarget_lang: de\n", encoding="utf-8"
        )
    done = subprocess.run([sys.executable, "-c", code, *recipes], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["these arguments cannot be used"] * 2
