"""Published multilingual models: of one pair of languages, of several, and as they were converted, on both stacks."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, pipeline

import hf_capsule_mt
from hf_capsule_mt.__main__ import main
from hf_capsule_mt.hub import clean_process, publishing
from hf_capsule_mt.hub.cards import load_values
from hf_capsule_mt.hub.conversion import convert
from hf_capsule_mt.hub.languages import hub_languages, is_language, run_languages
from hf_capsule_mt.hub.space import write_space
from hf_capsule_mt.models.tokenizer_languages import LanguagePair, language_id, remember_languages, use_languages
from hf_capsule_mt.serving import export
from hf_capsule_mt.training.arguments import parse_arguments
from hf_capsule_mt.training.run import build_trainer
from hf_capsule_mt.training.setup import prepare
from tiny_models import open_gates
from tiny_multilingual import FRENCH, LANGUAGES
from tiny_translation import RESULTS, SOURCES, TARGETS

NAME = "user/tiny"
CODES = {"nllb": 202, "mbart": 25}
# what is published, by the kind of its tokenizer and the pairs that it was saved for
MODELS = [(kind, pairs) for kind in CODES for pairs in ("one", "several", "none")]
IDS = [f"{kind}: {pairs}" for kind, pairs in MODELS]

# what a user's process does with every folder, and its card's own examples
SCRIPT = """
import contextlib, importlib.util, io, json, sys
spec = importlib.util.spec_from_file_location("clean_process", sys.argv[1])
clean_process = importlib.util.module_from_spec(spec)
spec.loader.exec_module(clean_process)
sys.modules["hf_capsule_mt"] = None
from transformers import pipeline
seen = {}
for name, task in json.load(sys.stdin).items():
    seen[name] = {"ways": clean_process.translate(**task["request"])}
    for title, code in task["code"].items():
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, {})
        seen[name][title] = printed.getvalue().strip()
    try:
        pipeline(task["pair_task"], model=task["request"]["folder"], trust_remote_code=True)
    except Exception as error:
        seen[name]["pair_task"] = str(error)
print(json.dumps(seen))
"""

# what the page of a Space offers and translates, at first and when another language was chosen
SPACE_SCRIPT = """
import json, sys
sys.modules["hf_capsule_mt"] = None
folder, model, sentence, *other = json.load(sys.stdin)
sys.path.insert(0, folder)
from capsule_demo.demo import space
from capsule_demo.demo.app import translations
settings = {**space.read_settings(), "model": model, "revision": None}
system = space.load(settings)
page = space.make_page(settings, system)
dropdowns = [block for block in page.blocks.values() if type(block).__name__ == "Dropdown"]
fields = {block.label: [block.value, block.choices] for block in dropdowns}
texts = []
for languages in ((), other):
    *_, (notice, (view,)) = translations([system], sentence, 5, languages)
    texts.append([notice[1], view["sentences"][0]["systems"][system.name]["translation"]])
print(json.dumps([fields, texts]))
"""


def clean_run(code, given, cache):
    """The JSON that code prints in a process without this package and without the network."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(cache), "GRADIO_ANALYTICS_ENABLED": "False"}
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        cwd=cache.parent,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def pairs_of(kind, name):
    english, german, french = LANGUAGES[kind]
    return [LanguagePair(german, english), LanguagePair(english, french)][: {"one": 1, "several": 2, "none": 0}[name]]


def save_run(kind, name, checkpoint, folder):
    """As a run with these pairs leaves its output folder; without any, as convert does."""
    pairs = pairs_of(kind, name)
    convert(checkpoint, folder, aggregation="em_routing", num_capsules=4, guided_routing="routing")
    model = open_gates(AutoModelForSeq2SeqLM.from_pretrained(folder))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if pairs:
        remember_languages(model.generation_config, tokenizer, pairs)
    # random weights write nothing but the names of languages otherwise, or the same word again and again; and it is
    # shorter than what the pipeline allows a translation, so that `generate` writes the same
    beyond = range(len(tokenizer), model.config.vocab_size)
    unwanted = [[token_id] for token_id in (*tokenizer.all_special_ids, *beyond)]
    model.generation_config.update(bad_words_ids=unwanted, no_repeat_ngram_size=1, max_new_tokens=7)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if pairs:
        write_record(folder, pairs)
    return folder


def write_record(folder, pairs):
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    score = results["scores"][-1]
    results["scores"] = [
        score | dict(zip(("source_lang", "target_lang"), pair, strict=True), file=f"translations/test.{pair}.greedy")
        for pair in pairs
    ]
    results["language_pairs"] = [list(pair) for pair in pairs]
    results["arguments"] |= {"source_lang": None, "target_lang": None, "model_name_or_path": "facebook/nllb-200"}
    results["arguments"] |= {"dataset_name": None, "train_file": "corpus/train", "test_file": "corpus/test"}
    if len(pairs) == 1:
        results["arguments"] |= dict(zip(("source_lang", "target_lang"), pairs[0], strict=True))
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    (folder / "translations").mkdir()
    for score in results["scores"]:
        (folder / score["file"]).write_text("Ein Hund .\n", encoding="utf-8")


@pytest.fixture(scope="module")
def published(multilingual, tmp_path_factory):
    """The folders, by kind and pairs, and what one process without this package makes of all of them."""
    root = tmp_path_factory.mktemp("published")
    folders, tasks = {}, {}
    with pytest.MonkeyPatch.context() as patch:
        for kind, name in MODELS:
            requests = []

            def keep(folder, sentences, way, requests=requests, **more):
                requests.append({"sentences": list(sentences), "num_beams": publishing.NUM_BEAMS, **more})
                return {}

            patch.setattr(publishing, "_run_clean", keep)
            run = save_run(kind, name, multilingual(kind), root / f"{kind}-{name}")
            languages = LANGUAGES[kind]
            named = ["--source_lang", languages[1], "--target_lang", languages[2]] if name == "none" else []
            assert main(["publish", str(run), NAME, "--dry_run", *named]) == 0
            folder = run / "hub"
            code = examples((folder / "README.md").read_text(encoding="utf-8"))
            folders[kind, name] = folder
            tasks[f"{kind}-{name}"] = {
                "request": {**requests[0], "folder": str(folder)},
                "code": {title: text.replace(NAME, str(folder)) for title, text in code.items()},
                "pair_task": f"translation_{languages[0]}_to_{languages[1]}",
            }
    seen = clean_run(SCRIPT.replace("sys.argv[1]", repr(clean_process.__file__)), tasks, root / "modules")
    return {(kind, name): (folders[kind, name], seen[f"{kind}-{name}"]) for kind, name in MODELS}


def examples(card):
    return dict(re.findall(r"<!-- code: (\w+) -->\n```python\n(.*?)```", card, re.S))


@pytest.mark.parametrize(("kind", "name"), MODELS, ids=IDS)
class TestPublished:
    def example(self, kind, name):
        """The pair that the card's examples are in."""
        return next(iter(pairs_of(kind, name)), LanguagePair(*LANGUAGES[kind][1:]))

    def test_examples_translate_without_this_package(self, published, kind, name):
        folder, seen = published[kind, name]
        values = load_values(folder.parent / "card.yaml")
        model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        pair = self.example(kind, name)
        begin = use_languages(tokenizer, pair)
        inputs = tokenizer(values.samples[0], return_tensors="pt")
        ids = model.generate(**inputs, **begin, num_beams=5)[0]
        assert language_id(tokenizer, pair.target) in ids[:2].tolist()
        expected = tokenizer.decode(ids, skip_special_tokens=True)
        assert expected and seen["automodel"] == seen["pipeline"] == expected
        assert seen["ways"] == {"pipeline(translation)": [expected], "pipeline(None)": [expected]}
        # another language would have given another text
        other = use_languages(tokenizer, LanguagePair(pair.source, LANGUAGES[kind][1]))
        if pair.target != LANGUAGES[kind][1]:
            ids = model.generate(**inputs, **other, num_beams=5)[0]
            assert tokenizer.decode(ids, skip_special_tokens=True) != expected
        card = ModelCard.load(folder / "README.md")
        assert [entry["output"]["text"] for entry in card.data.widget] == [expected]
        # transformers looks the task up before the code of the folder
        assert "has been removed from transformers" in seen["pair_task"]

    def test_examples_say_what_has_to_be_said(self, published, kind, name):
        folder, _ = published[kind, name]
        card = ModelCard.load(folder / "README.md")
        code = examples(card.text)
        parameter = "decoder_start_token_id" if kind == "mbart" else "forced_bos_token_id"
        is_told = name != "one"
        assert (f"{parameter}=target" in code["automodel"]) == ("src_lang=" in code["automodel"]) == is_told
        assert ("src_lang=" in code["pipeline"]) == ("tgt_lang=" in code["pipeline"]) == is_told
        assert ("It has to be told its languages" in card.text) == is_told

    def test_languages(self, published, kind, name):
        folder, _ = published[kind, name]
        card = ModelCard.load(folder / "README.md")
        if name == "none":
            assert f"**Languages:** the {CODES[kind]} of its tokenizer" in card.text
            assert {"en", "de", "fr"} < set(card.data.language) and len(card.data.language) == len(
                set(card.data.language)
            )
            assert not any("_" in code for code in card.data.language) and ("ace" in card.data.language) == (
                kind == "nllb"
            )
            return
        assert card.data.language == ["de", "en", "fr"][: {"one": 2, "several": 3}[name]]
        said = ", ".join(f"from `{source}` to `{target}`" for source, target in pairs_of(kind, name))
        assert f"- **Languages:** {said}\n" in card.text

    def test_scores_and_picture(self, published, kind, name):
        folder, _ = published[kind, name]
        card = ModelCard.load(folder / "README.md")
        assert (folder / "agreements.png").stat().st_size > 1000 and "](agreements.png)" in card.text
        pairs = pairs_of(kind, name)
        if name == "none":
            assert "came without recorded scores" in card.text and not card.data.eval_results
            return
        of_pairs = [f"corpus test, {pair}" if len(pairs) > 1 else "corpus test" for pair in pairs]
        rows = re.findall(r"\| (corpus test[^|]*) \| [\d.]+ \|", card.text.replace("\\", ""))
        assert rows == of_pairs
        index = [(result.dataset_name, result.metric_type) for result in card.data.eval_results]
        assert index == [(dataset, metric) for dataset in of_pairs for metric in ("bleu", "chrf", "ter")]
        assert card.data.base_model == "facebook/nllb-200"

    def test_with_the_package_languages_in_the_task(self, published, kind, name):
        folder, _ = published[kind, name]
        hf_capsule_mt.register()
        source, target, _ = LANGUAGES[kind]
        translator = pipeline(f"translation_{source}_to_{target}", model=str(folder))
        told = pipeline("translation", model=str(folder), trust_remote_code=True, src_lang=source, tgt_lang=target)
        ids = translator(SOURCES[0], return_tensors=True)[0]["translation_token_ids"]
        assert ids.tolist() == told(SOURCES[0], return_tensors=True)[0]["translation_token_ids"].tolist()
        assert language_id(translator.tokenizer, target) in ids[:2].tolist()


def test_a_model_of_several_pairs_is_checked(published, tmp_path, capsys, monkeypatch):
    """The whole command, with the process that it starts."""
    folder, _ = published["nllb", "several"]
    run = shutil.copytree(folder.parent, tmp_path / "run", ignore=shutil.ignore_patterns("hub", ".*"))
    english, _, french = LANGUAGES["nllb"]
    values = load_values(run / "card.yaml")
    assert values.languages == [] and "2 pairs of languages" in values.title and values.base_model
    # in the language of the first pair
    said = "# The samples are in deu_Latn, and are translated to eng_Latn.\n"
    assert said in (run / "card.yaml").read_text(encoding="utf-8")
    assert values.samples == ["Ein Mann geht die Straße entlang."]
    assert main(["publish", str(run), NAME, "--dry_run"]) == 0
    assert "translates the samples as the card says" in capsys.readouterr().out
    # another pair, for one call; the process is the same
    monkeypatch.setattr(publishing, "_run_clean", lambda *arguments, **more: {})
    named = ["--source_lang", english, "--target_lang", french]
    changed = yaml.safe_load((run / "card.yaml").read_text(encoding="utf-8")) | {"samples": SOURCES[:2]}
    (run / "card.yaml").write_text(yaml.safe_dump(changed), encoding="utf-8")
    assert main(["publish", str(run), NAME, "--dry_run", *named]) == 0
    card = ModelCard.load(run / "hub" / "README.md")
    assert f'src_lang="{english}", tgt_lang="{french}"' in card.text
    assert f"| {english} | {french} |" in card.text.replace("\\", "")


def test_space_and_export_are_told_the_languages(published, tmp_path, monkeypatch):
    pytest.importorskip("gradio", reason="needs gradio")
    folder, _ = published["nllb", "several"]
    run = shutil.copytree(folder.parent, tmp_path / "run", ignore=shutil.ignore_patterns("hub", ".*"))
    requests = []

    def keep(folder, sentences, way, **more):
        requests.append((way, more.get("languages")))
        return {}

    monkeypatch.setattr(publishing, "_run_clean", keep)
    # what it makes is tested in tests/serving
    monkeypatch.setattr(export, "export_onnx", lambda run, output, **_: output.mkdir())
    assert main(["publish", str(run), NAME, "--dry_run", "--onnx", "--space", "user/demo"]) == 0
    german, english = pairs_of("nllb", "several")[0]
    settings = json.loads((run / "hub_space" / "settings.json").read_text(encoding="utf-8"))
    assert settings["languages"] == [german, english]
    told = {"source": german, "target": english, "parameter": "forced_bos_token_id", "token": english}
    assert requests == [("transformers", told), ("onnx", told), ("space", None)]
    code = examples((run / "hub" / "README.md").read_text(encoding="utf-8"))["onnx"]
    compile(code, "card", "exec")
    assert f'source_lang="{german}", target_lang="{english}"' in code


@pytest.mark.slow
def test_a_space_has_languages_to_choose_from(published, tmp_path):
    pytest.importorskip("gradio", reason="needs gradio")
    folder, _ = published["nllb", "several"]
    (german, english), (_, french) = pairs_of("nllb", "several")
    values = load_values(folder.parent / "card.yaml")
    space = write_space(tmp_path / "space", NAME, "main", values, languages=(german, english))
    given = [str(space), str(folder), values.samples[0], german, french]
    fields, texts = clean_run(SPACE_SCRIPT, given, tmp_path / "modules")
    assert {label: chosen for label, (chosen, _) in fields.items()} == {"From": german, "To": english}
    for _, choices in fields.values():
        assert [code for code, _ in choices[:3]] == [german, english, french] and len(choices) == CODES["nllb"]
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    expected = []
    for target in (english, french):
        begin = use_languages(tokenizer, LanguagePair(german, target))
        ids = model.generate(**tokenizer(values.samples[0], return_tensors="pt"), **begin, num_beams=5)[0]
        expected.append(["", tokenizer.decode(ids, skip_special_tokens=True)])
    assert texts == expected and texts[0] != texts[1]


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (
            "",
            "give the codes of both languages (source_lang, target_lang), such as eng_Latn and deu_Latn",
        ),
        ("--source_lang eng_Latn", "give the codes of both languages (source_lang, target_lang)"),
        ("--source_lang eng_Latn --target_lang de", "target_lang: 'de' is none of the 202 languages"),
    ],
)
def test_languages_that_are_needed_are_asked_for(published, tmp_path, capsys, named, message):
    folder, _ = published["nllb", "none"]
    run = shutil.copytree(folder, tmp_path / "run", ignore=shutil.ignore_patterns("README.md", "*.png"))
    assert main(["publish", str(run), NAME, "--dry_run", *named.split()]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("hf-capsule-mt publish: error: ") and message in line
    # before work starts
    assert not (run / "card.yaml").exists() and not (run / "hub").exists()


def test_a_generation_config_with_other_things_for_pairs(published, tmp_path, capsys):
    folder, _ = published["nllb", "several"]
    run = shutil.copytree(folder, tmp_path / "run")
    config = json.loads((run / "generation_config.json").read_text())
    for pairs in ("eng_Latn-deu_Latn", [["eng_Latn"]], [[1, 2]], 3):
        (run / "generation_config.json").write_text(json.dumps({**config, "language_pairs": pairs}))
        assert main(["publish", str(run), NAME, "--dry_run"]) == 2
        assert "language_pairs of the generation config must be pairs of codes" in capsys.readouterr().err


def test_languages_of_a_model_of_one_pair_are_refused(finished_run, values_file, capsys):
    named = ["--source_lang", "en", "--target_lang", "de"]
    assert main(["publish", str(finished_run), NAME, "--card", str(values_file), "--dry_run", *named]) == 2
    assert "one of a single pair of languages: leave out en and de" in capsys.readouterr().err


@pytest.mark.parametrize("kind", LANGUAGES)
def test_what_users_have_to_say(multilingual, kind):
    pair = LANGUAGES[kind][1:]
    found, tokenizer = run_languages(multilingual(kind), *pair), AutoTokenizer.from_pretrained(multilingual(kind))
    assert found.is_told and found.pairs == [] and found.example == pair
    assert found.token == {"m2m100": "__fr__", "nllb": "fra_Latn"}.get(kind, "fr_XX")
    said = {found.parameter: tokenizer.convert_tokens_to_ids(found.token)}
    assert said == use_languages(tokenizer, found.example)
    # the Hub knows every language of every tokenizer
    assert all(map(is_language, hub_languages(found.codes)))


def test_a_tokenizer_alone_says_its_pair(multilingual, tmp_path):
    """As other trainers save models: `generate` then needs to be told, and the pipeline not."""
    pair = LanguagePair(*LANGUAGES["nllb"][:2])
    run = shutil.copytree(multilingual("nllb"), tmp_path / "run")
    AutoTokenizer.from_pretrained(run, src_lang=pair.source, tgt_lang=pair.target).save_pretrained(run)
    found = run_languages(run)
    assert found.pairs == [pair] and found.example == pair and found.is_told
    config = GenerationConfig.from_pretrained(run)
    remember_languages(config, AutoTokenizer.from_pretrained(run), [pair])
    config.save_pretrained(run)
    assert not run_languages(run).is_told
    (run / "generation_config.json").unlink()
    assert run_languages(run) == found


@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_card_of_a_trainer(multilingual, tmp_path, several):
    english, german, french = LANGUAGES["nllb"]
    for split in ("train", "val"):
        # the validation set begins with another pair than the training set
        rows = [(german, english, s, t) for s, t in zip(TARGETS, SOURCES, strict=True)]
        more = [(english, french, s, t) for s, t in zip(SOURCES, FRENCH, strict=True)]
        rows = (more + rows if split == "val" else rows + more) if several else rows
        records = [{"translation": {"s": s, "t": t}, "a": a, "b": b} for a, b, s, t in rows]
        Path(tmp_path, f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in records))
    options = "--recipe none --source_column s --target_column t --source_lang_column a --target_lang_column b"
    options += " --train_file train.jsonl --validation_file val.jsonl --max_steps 1 --use_cpu true --report_to none"
    options += f" --data_dir {tmp_path} --output_dir {tmp_path / 'run'} --model_name_or_path {multilingual('nllb')}"
    trainer = build_trainer(prepare(parse_arguments(f"{options} --aggregation linear".split()[2:])))
    trainer.create_model_card(model_name=NAME)
    card = ModelCard.load(tmp_path / "run" / "README.md")
    pairs = [(german, english), (english, french)] if several else [(german, english)]
    assert card.data.language == (["de", "en", "fr"] if several else ["de", "en"])
    assert ", ".join(f"from `{source}` to `{target}`" for source, target in pairs) in card.text
    assert ("2 pairs of languages" if several else "de-en") in card.text
    # samples of one pair, in which they are translated
    assert [entry["text"] for entry in card.data.widget] == (SOURCES if several else TARGETS)[:3]
    assert (f'tgt_lang="{french}"' in card.text) == several
