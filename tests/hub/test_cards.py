"""Model cards: every values file with its recorded results, and what is refused."""

import copy
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.errors import HFValidationError
from markdown_it import MarkdownIt

from hf_capsule_mt.evidence.recorded import RECORDS
from hf_capsule_mt.hub.cards import (
    CARD_FILES,
    VALUES_FILES,
    CardValues,
    check_card,
    load_values,
    render_card,
    values_names,
)
from hf_capsule_mt.hub.license_file import LICENSES, license_text
from hf_capsule_mt.project import URL, requirement

ROOT = Path(__file__).parent.parent.parent
RUNS = "runs/multi30k/{}/seed-1/results"
RESULTS = {
    "multi30k_transformer": ("capsule-marian", RUNS.format("none")),
    "multi30k_em_routing": ("capsule-marian", RUNS.format("em_routing")),
    "multi30k_gdr": ("capsule-marian", RUNS.format("GDR")),
    "multi30k_gdr_full": ("capsule-marian", RUNS.format("GDR+losses")),
    "multi30k_simple": ("capsule-rnn", RUNS.format("simple")),
    "multi30k_capsnmt": ("capsule-rnn", RUNS.format("CapsNMT")),
    "multi30k_capsnmt_calibrated": ("capsule-rnn", RUNS.format("CapsNMT_calibrated")),
    "multi30k_rnmt": ("capsule-rnn", RUNS.format("RNMT")),
    "grammar_em_routing": ("capsule-marian", "grammar/em_routing"),
}
VALUES = dict(
    title="A model",
    description="It translates.",
    papers=["dou2019", "zheng2019"],
    license="mit",
    dataset=dict(name="My corpus", terms="Free."),
    samples=["A dog | a cat."],
    limitations=["Many."],
)


READER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
HOSTILE = [
    "<script>alert(1)</script>",
    "a | b",
    "two\n\n# lines\r- three",
    "x](javascript:alert(1)) ![y](z)",
    r"\input{passwd} 50 % $x$",
    "{{ 7*7 }}{% raw %}",
    "```\n<b>out</b>\n```\n",
    "x\n---\nlicense: other\n---\n<b>",
    "</details><!--",
]


def kinds(tokens) -> list[str]:
    """The structure of a page, without the pieces of text and code."""
    found = []
    for token in tokens:
        found.append(token.type)
        found += [c.type for c in token.children or [] if c.type not in ("text", "text_special", "softbreak")]
    return found


def recorded(name: str) -> dict:
    return json.loads((RECORDS / f"{RESULTS[name][1]}.json").read_text(encoding="utf-8"))


def rendered(name: str, figure: str | None = None) -> tuple[CardValues, dict, ModelCard]:
    """Values, results and card of a published system."""
    values, results = load_values(name), recorded(name)
    samples = [(sentence, f"Übersetzung von {sentence!r}") for sentence in values.samples]
    return values, results, render_card(f"user/{name}", values, results, RESULTS[name][0], samples, figure)


@pytest.fixture
def write(tmp_path):
    """Writes a values file with changes (None removes a key); gives its path."""

    def write(**changes) -> Path:
        content = {key: value for key, value in (VALUES | changes).items() if value is not None}
        path = tmp_path / "values.yaml"
        path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
        return path

    return write


@pytest.fixture
def render(write):
    """Renders the small values file with changed results."""

    def render(results=None, samples=(("A dog | a cat.", "Ein Hund\n| eine Katze."),), values=None, **kwargs):
        results = recorded("multi30k_em_routing") if results is None else results
        return render_card("user/name", load_values(write(**values or {})), results, "capsule-bart", samples, **kwargs)

    return render


@pytest.fixture
def results():
    return copy.deepcopy(recorded("multi30k_em_routing"))


def test_every_values_file_is_tested():
    assert set(values_names()) == set(RESULTS)


@pytest.mark.parametrize("name", RESULTS)
class TestPublishedSystems:
    def test_metadata(self, name):
        values, _, card = rendered(name)
        check_card(card)
        data = ModelCard(str(card)).data
        assert data.language == ["en", "de"] and data.license == values.license
        assert (data.library_name, data.pipeline_tag) == ("transformers", "translation")
        assert {"capsule-routing", RESULTS[name][0], *values.tags} <= set(data.tags)
        # the Hub makes tags of these fields, too
        tags = [*data.tags, data.pipeline_tag, data.library_name]
        assert len(tags) == len(set(tags))
        assert [entry["text"] for entry in data.widget] == values.samples
        assert all(entry["output"]["text"].startswith("Übersetzung") for entry in data.widget)
        assert data.datasets == (None if name.startswith("grammar") else ["bentrevett/multi30k"])
        assert data.metrics == ["bleu", "chrf", "ter"]
        assert data.base_model is None

    def test_model_index_is_what_was_recorded(self, name):
        _, results, card = rendered(name)
        found = {
            (result.metric_type, result.dataset_split, result.metric_args["num_beams"]): (
                result.metric_value,
                result.metric_args["signature"],
            )
            for result in ModelCard(str(card)).data.eval_results
        }
        assert found == {
            (metric, score["split"], score["beams"]): (round(score[metric], 1), score["signatures"][metric])
            for score in results["scores"]
            for metric in ("bleu", "chrf", "ter")
        }

    def test_text(self, name):
        values, results, card = rendered(name, "agreements.png")
        text = card.text
        rows = re.findall(r"\| (.+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (greedy|beam 5) \| ([\d,]+) \|", text)
        assert [tuple(map(float, row[1:4])) for row in rows] == [
            tuple(round(score[metric], 1) for metric in ("bleu", "chrf", "ter")) for score in results["scores"]
        ]
        if name.startswith("multi30k"):
            assert [row[0] for row in rows] == ["Multi30k val", "Multi30k test2016"]
        for expected in (
            results["command"],
            results["recipe"],
            f"{results['steps']:,} updates",
            f"**Parameters:** {results['parameters']:,}",
            f"seed {results['seed']}",
            *(f" {signature}\n" for signature in results["scores"][0]["signatures"].values()),
            *(f"{sentence} | Übersetzung von" for sentence in values.samples),
            *(citation["bibtex"] for citation in values.citations),
            *(f"[{citation['reference']}]({citation['url']})" for citation in values.citations),
            f"[hf_capsule_mt]({URL})",
            'pip install "transformers<',
            "pip install hf_capsule_mt",
            "[`LICENSE`](LICENSE)",
            *values.limitations,
            f"{values.samples[0]}](agreements.png)",
            "(translations)",
        ):
            assert expected in text
        shown = yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1])
        assert shown.items() <= results["arguments"].items()
        assert {"max_steps", "learning_rate", "dropout", "d_model"} <= set(shown)

    def test_code_blocks(self, name):
        values, _, card = rendered(name)
        blocks = dict(re.findall(r"<!-- code: (\w+) -->\n```python\n(.*?)```", card.text, re.DOTALL))
        assert list(blocks) == ["automodel", "pipeline"]
        assert card.text.count("```python") == 2
        for code in blocks.values():
            compile(code, name, "exec")
            assert f'"user/{name}"' in code and f'"{values.samples[0]}"' in code
            assert "trust_remote_code=True" in code and "revision" in code and "print(" in code

    def test_no_local_path_and_no_number_typed_by_hand(self, name):
        _, _, card = rendered(name)
        assert not re.search(r"(?<![\w.\]])/(home|root|tmp|work|Users|mnt)\b|file://|[A-Z]:\\", str(card))
        content = (VALUES_FILES / f"{name}.yaml").read_text(encoding="utf-8")
        prose = re.sub(r"(license|apache|cc-by\S*)\S* ?\S*", "", content)
        assert not re.search(r"\d[.,]\d|\b\d+ ?(%|BLEU|points|updates|parameters|pairs)", prose)


def test_no_number_in_the_template():
    template = (CARD_FILES / "template.md").read_text(encoding="utf-8")
    prose = re.sub(r"\{\{.*?\}\}|\{%.*?%\}|num_beams=5|beam of 5|`apache-2.0`|Seq2Seq|\[0\]", "", template)
    assert not re.search(r"\d", prose)


class TestRender:
    def test_figure_only_if_there_is_one(self):
        assert ".png" not in rendered("multi30k_em_routing")[2].text
        assert "layers of the encoder" in rendered("multi30k_em_routing", "agreements.png")[2].text
        assert "FUTURE" in rendered("multi30k_gdr_full", "agreements.png")[2].text.split("What the routing does")[1]
        assert "capsules of the memory" in rendered("multi30k_capsnmt", "agreements.png")[2].text

    def test_table_cells_stay_cells(self, render):
        assert r"| A dog \| a cat. | Ein Hund \| eine Katze. |" in render().text

    def test_first_sentence_is_a_string_of_python(self, render):
        sentence = 'He said "no\\yes" — {{ it }} cost $5, 猫.'
        text = render(samples=[(sentence, "x")]).text
        code = re.search(r"<!-- code: pipeline -->\n```python\n(.*?)```", text, re.DOTALL)[1]
        assert sentence == eval(re.search(r"translator\((\".*\"), num_beams", code)[1])

    @pytest.mark.parametrize("text", HOSTILE, ids=repr)
    def test_hostile_values_are_text(self, text, render, results):
        clean = READER.parse(render(copy.deepcopy(results), figure="agreements.png").text)
        results["arguments"] |= dict(test_file=f"x{text}", run_name=text)
        results["command"] = shlex.join(["python", "train.py", f"--run_name={text}"])
        results["recipe"], results["device"], results["final_weights"] = text, text, f"last {text}"
        results["versions"] = {"python": text}
        for score in results["scores"]:
            score["signatures"] = dict.fromkeys(score["signatures"], text)
        values = dict(title=text, description=text, limitations=[text], tags=[text])
        values["dataset"] = dict(name=text, terms=text)
        card = render(results, samples=[(text, text)], values=values, figure="agreements.png")
        check_card(card)
        parsed = READER.parse(card.text)
        assert kinds(parsed) == kinds(clean)
        assert ModelCard(str(card)).data.tags[-1] == text and ModelCard(str(card)).data.license == "mit"
        (shown,) = [token.content for token in parsed if token.type == "fence" and token.info == "yaml"]
        assert yaml.safe_load(shown)["run_name"] == text

    def test_papers_are_a_sentence(self, render):
        text = render(values=dict(papers=["dou2019", "zheng2019", "wang2019"])).text
        assert re.search(r"It follows \[Dou[^\n]*\), \[Zheng[^\n]*\) and \[Wang[^\n]*\)\.\n", text)

    def test_optional_values(self, render):
        card = render(
            values=dict(base_model="user/parent", tags=["mine"], papers=None), revision="v1.0", figure="agreements.png"
        )
        assert card.data.base_model == "user/parent" and "mine" in card.data.tags
        assert 'revision="v1.0"' in card.text and "[user/parent](https://huggingface.co/user/parent)" in card.text
        assert "bibtex" not in card.text and "It follows" not in card.text
        assert card.data.eval_results[0].dataset_type == "my-corpus" and card.data.datasets is None
        check_card(card)

    def test_a_licence_of_its_own(self, render):
        own = dict(license_name="My licence", license_link="https://my.example/licence")
        card = render(values=dict(license="other", **own))
        check_card(card)
        assert {key: card.data.get(key) for key in own} == own and "licensed under My licence, the code" in card.text
        assert "My licence\n(other)\nhttps://my.example/licence\n" in license_text("other", *own.values())

    def test_paths_of_the_machine_are_left_out(self, render, results):
        results["arguments"] |= dict(data_dir="/home/me/data", train_file="~/corpora/train", output_dir="/tmp/run")
        results["command"] = "python train.py /home/me/my.yaml --data_dir=/home/me/data --test_file 'C:\\data\\test'"
        results["recipe"] = "/home/me/my.yaml"
        card = render(results)
        check_card(card)
        text = str(card)
        assert not re.search(r"/home|~/|/tmp|C:\\", text)
        for kept in ("path/to/my.yaml --data_dir=path/to/data", "data_dir: path/to/data", "train_file: path/to/train"):
            assert kept in text

    def test_other_decoding_and_weights(self, render, results):
        results["scores"][1]["length_penalty"] = 0.6
        results["final_weights"] = "last update"
        results |= dict(device="cuda:0", processes=2, threads=1)
        text = render(results).text
        assert "| beam 5, length penalty 0.6 |" in text
        assert "those of the last update" in text and "CUDA, 2 processes, 1 thread" in text

    @pytest.mark.parametrize(
        "code, expected",
        [
            *(("pt-BR", "pt"), ("zh_Hans", "zh"), ("ja_XX", "ja")),
            # the Hub finds a model by the code of two letters, where there is one
            *(("deu", "de"), ("zho_Hant", "zh"), ("yue_Hant", "yue"), ("nds", "nds")),
            # Northern Sotho, as M2M100 has it
            ("ns", "nso"),
        ],
    )
    def test_languages(self, code, expected, render, results):
        results["arguments"]["target_lang"] = code
        assert render(results).data.language == ["en", expected]

    @pytest.mark.parametrize(
        "change, message",
        [
            (lambda r: r.update(scores=[]), "no scores.*finished hf-capsule-mt train"),
            (lambda r: r.pop("scores"), "no scores"),
            (
                lambda r: r["scores"][1].pop("signatures"),
                "scores.signatures.*results.json that hf-capsule-mt train wrote",
            ),
            (lambda r: r["scores"][1]["signatures"].update(bleu=""), "lack scores.signatures.bleu:"),
            (lambda r: r["scores"][0].pop("chrf"), "lack scores.chrf:"),
            (lambda r: r.pop("seed"), "lack seed:"),
            (lambda r: r["arguments"].update(target_lang="xx"), "target_lang.*'xx'.*ISO 639"),
            (lambda r: r["arguments"].pop("source_lang"), "source_lang.*None.*ISO 639"),
            (lambda r: r.update(language_pairs=[["en", "xx"]]), "language_pairs of the results is 'xx'.*ISO 639"),
            (lambda r: r.update(language_pairs=[["en", None]]), "language_pairs of the results is None.*ISO 639"),
            (lambda r: r.update(language_pairs=[["en"]]), "language_pairs of the wrong type"),
            (lambda r: r["scores"][0].update(target_lang=3), "scores.target_lang of the wrong type"),
        ],
    )
    def test_incomplete_results_are_refused(self, change, message, render, results):
        change(results)
        with pytest.raises(ValueError, match=message):
            render(results)

    def test_several_pairs_of_languages(self, render, results):
        pairs = [["eng_Latn", "deu_Latn"], ["deu_Latn", "eng_Latn"], ["eng_Latn", "zho_Hans"]]
        names = [f"{source}-{target}" for source, target in pairs]
        results["language_pairs"] = pairs
        first = results["scores"][0]
        results["scores"] = [
            first | dict(source_lang=source, target_lang=target, bleu=30.0 + row)
            for row, (source, target) in enumerate(pairs)
        ]
        card = render(results, values=dict(dataset=dict(name="Mine", terms="Free.", config="all")))
        check_card(card)
        data = ModelCard(str(card)).data
        assert data.language == ["en", "de", "zh"]
        said = ", ".join(f"from `{source}` to `{target}`" for source, target in pairs)
        assert f"- **Languages:** {said}\n" in card.text
        assert re.findall(r"\| Mine val, (\S+) \| ([\d.]+) \|", card.text.replace("\\", "")) == [
            *zip(names, ("30.0", "31.0", "32.0"), strict=True)
        ]
        # an entry of the index for each pair, with its own scores
        found = [
            (result.dataset_name, result.dataset_config, result.metric_value)
            for result in data.eval_results
            if result.metric_type == "bleu"
        ]
        assert found == [(f"Mine val, {name}", f"all, {name}", 30.0 + row) for row, name in enumerate(names)]
        assert "| eng\\_Latn | deu\\_Latn |" in card.text

    def test_other_input_is_refused(self, render, write):
        with pytest.raises(ValueError, match="at least one sentence"):
            render(samples=[])
        with pytest.raises(HFValidationError):
            render_card("a/b/c", load_values(write()), recorded("multi30k_gdr"), "capsule-marian", [("a", "b")])

    def test_template(self, render, tmp_path):
        mine = tmp_path / "mine.md"
        mine.write_text("---\n{{ card_data }}\n---\n{{ title }}, {{ titel }}", encoding="utf-8")
        with pytest.raises(ValueError, match=r"mine.md asks for titel; there are: .*title"):
            render(template=mine)
        text = "Mine: {{ title }}, {{ languages | join('-') }}, {{ source_language }}"
        mine.write_text(f"---\n{{{{ card_data }}}}\n---\n{text}", encoding="utf-8")
        assert render(template=mine).text.strip() == "Mine: A model, en-de, en"
        with pytest.raises(FileNotFoundError, match=r"absent\.md.*card.template\.md"):
            render(template=tmp_path / "absent.md")


class TestLoadValues:
    def test_a_typed_object(self, write):
        values = load_values(write())
        assert values.samples == ["A dog | a cat."] and values.dataset.name == "My corpus"
        assert [citation["url"][:5] for citation in values.citations] == ["https"] * 2
        assert values.tags == [] and values.base_model is None

    @pytest.mark.parametrize(
        "changes, message",
        [
            (dict(licence="mit"), r"values.yaml: unknown key licence; there are: title, .*license"),
            (dict(license=None), r"values.yaml: missing key license; required are: title, "),
            (dict(dataset=dict(name="x")), r"values.yaml, dataset: missing key terms"),
            (dict(dataset=dict(name="x", terms="y", term="z")), r"dataset: unknown key term; there are: name, terms"),
            (dict(dataset="Multi30k"), "dataset must have the keys name, terms, id, config"),
            (dict(license="Apache-2.0"), "license must be one of apache-2.0, mit.*'Apache-2.0'"),
            (dict(license_name="Mine"), "license_name are for license: other, got license: mit"),
            (
                dict(license="other", license_link="java script:x"),
                "license_link: 'java script:x' cannot be",
            ),
            (dict(license="other", license_name=3), "license_name must be a text, got 3"),
            (dict(samples="A dog."), "samples must be a list of texts"),
            (dict(samples=[]), "samples must not be empty"),
            (dict(limitations=[3]), "limitations must be a list of texts"),
            (dict(title=3), "title must be a text, got 3"),
            (dict(papers=["dou2018"]), r"papers has dou2018.*citations.yaml has not; there are: dou2019, "),
            (dict(base_model="a/b/c"), "base_model must be a name on the Hub.*'a/b/c'"),
            (dict(dataset=dict(name="x", terms="y", id="no spaces")), "dataset.id must be a name on the Hub"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_mistakes_are_named(self, changes, message, write):
        with pytest.raises(ValueError, match=message):
            load_values(write(**changes))

    def test_not_a_mapping(self, tmp_path):
        path = tmp_path / "values.yaml"
        for content, message in (("[a", "values.yaml: not valid YAML"), ("- a", "must have the keys title")):
            path.write_text(content, encoding="utf-8")
            with pytest.raises(ValueError, match=message):
                load_values(path)
        with pytest.raises(FileNotFoundError, match=r"absent\.yaml; give a path, or one of grammar_em_routing, "):
            load_values(tmp_path / "absent.yaml")
        with pytest.raises(FileNotFoundError, match=r"hub_cards/multi30k_gdr\.yaml; did you mean multi30k_gdr\?"):
            load_values("hub_cards/multi30k_gdr.yaml")

    def test_citations_and_template_are_those_of_the_project_unless_others_lie_beside(self, write, tmp_path):
        path = write()
        (tmp_path / "citations.yaml").write_text("mine: {reference: R, url: https://a.b, bibtex: '@a{b}'}\n")
        with pytest.raises(ValueError, match=r"papers has dou2019, zheng2019, which .* has not; there are: mine"):
            load_values(path)
        (tmp_path / "citations.yaml").unlink()
        assert "Dou et al." in load_values(path).citations[0]["reference"]

    @pytest.mark.parametrize("languages", [["en"], ["en", "German"], ["en", "de", "fr"]])
    def test_languages_are_two_codes(self, write, languages):
        with pytest.raises(ValueError, match="languages must be two codes of ISO 639"):
            load_values(write(languages=languages))

    def test_citations_beside_the_values_take_the_place_of_the_packages_own(self, write, tmp_path):
        (tmp_path / "citations.yaml").write_text("mine: {url: https://mine.example}", encoding="utf-8")
        with pytest.raises(ValueError, match=r"papers has dou2019.*citations\.yaml has not; there are: mine"):
            load_values(write())
        assert load_values(write(papers=["mine"])).citations[0]["url"] == "https://mine.example"


class TestCheckCard:
    def test_everything_at_once(self):
        with pytest.raises(ValueError) as error:
            check_card(ModelCard("---\nlicense: apache-3.0\ndatasets: a/b/c\n---\n"))
        for part in ("language", "'apache-3.0' is not known", "library_name", "pipeline_tag", "'a/b/c'", "no results"):
            assert part in str(error.value)
        assert "there is no text" in str(error.value)

    @pytest.mark.parametrize(
        "change, message",
        [
            (lambda card: setattr(card.data, "language", ["en", "gm"]), "'gm' is not an ISO 639 code"),
            (lambda card: setattr(card.data, "license", None), "license is missing"),
            (lambda card: card.data.tags.append("capsule-routing"), "the tag capsule-routing is there twice"),
            (lambda card: card.data.tags.append("translation"), "the tag translation is there twice"),
            (
                lambda card: card.data.eval_results[0].metric_args.pop("signature"),
                r"BLEU \(greedy\) on .* no signature",
            ),
            (lambda card: setattr(card, "text", card.text + "\nsee {{ title }}"), "{{ of the template is left"),
            (lambda card: setattr(card, "text", card.text + '\nmodel="/home/me/run"'), "/home/me/run is a path"),
            (lambda card: setattr(card.data, "tags", [float("nan")]), "not the same after"),
        ],
        ids=["language", "licence", "tag", "tag of another field", "signature", "template", "path", "round trip"],
    )
    def test_one_mistake(self, change, message, render):
        card = render()
        check_card(card)
        change(card)
        with pytest.raises(ValueError, match=message):
            check_card(card)


class TestLicense:
    def test_the_codes_text_is_the_projects_own(self):
        assert license_text("apache-2.0") == (ROOT / "LICENSE").read_text(encoding="utf-8")

    @pytest.mark.parametrize("license", LICENSES)
    def test_it_says_what_the_card_says(self, license):
        text, apache = license_text(license), license_text("apache-2.0")
        assert text.endswith(apache)
        if license in ("other", "unknown"):
            assert "ask their publisher" in text
        elif license != "apache-2.0":
            name, address = LICENSES[license]
            assert f"{name}\n({license})\n{address}" in text and address.startswith("https://")


def test_what_to_install_is_what_the_project_declares():
    assert re.fullmatch(r"transformers<\d+,>=[\d.]+", requirement("transformers"))
    assert requirement("matplotlib") == "matplotlib" and requirement("no-such-package") == "no-such-package"
