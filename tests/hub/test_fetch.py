"""Corpora from a Hub on this machine, and what is refused."""

import json
from io import BytesIO

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_capsule_mt.__main__ import main
from hf_capsule_mt.data.corpus import load_split
from hf_capsule_mt.data.fetch import CONVERTED, CORPORA, RECORD, request
from loopback import run_python

SIZES = {"train": 7, "validation": 3, "test": 2}


def pairs(split: str, size: int) -> list[dict[str, str]]:
    # a line break within a sentence, and one that is none
    return [{"en": f"{split} dog {n}\nruns", "de": f"{split} Hund\u2028{n}"} for n in range(size)]


def data(name: str, output, *arguments) -> int:
    return main(["data", name, "--output", str(output), *map(str, arguments)])


@pytest.fixture
def small(monkeypatch):
    """A Hub in the place of load_dataset, whose every data set has SIZES pairs, and the counts to it."""
    calls = []

    def load_dataset(path, **options):
        calls.append({"id": path, **options})
        return datasets.DatasetDict(
            {split: datasets.Dataset.from_dict({"translation": pairs(split, size)}) for split, size in SIZES.items()}
        )

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    known = {"de-en": tuple(SIZES.values())}
    for name, corpus in list(CORPORA.items()):
        monkeypatch.setitem(CORPORA, name, type(corpus)(**{**vars(corpus), "counts": known}))
    return calls


def test_a_corpus_comes_from_the_hub_as_the_recipes_read_it(hub, tmp_path):
    sizes = (29_000, 1_014, 1_000)
    files = {}
    for split, size in zip(("train", "val", "test"), sizes, strict=True):
        lines = (json.dumps({"en": f"a dog {n}", "de": f"ein Hund {n}"}) for n in range(size))
        files[f"{split}.jsonl"] = "\n".join(lines).encode()
    hub.add_dataset("bentrevett/multi30k", files)
    parquet = {}
    for split, size in SIZES.items():
        french = [{"fr": pair["de"], "en": pair["en"]} for pair in pairs(split, size)]
        pq.write_table(pa.table({"translation": french}), buffer := BytesIO())
        parquet[f"iwslt2017-fr-en/{split}/0000.parquet"] = buffer.getvalue()
    hub.add_dataset("IWSLT/iwslt2017", parquet, branch=CONVERTED)
    environment = hub.environment(tmp_path) | {"HF_DATASETS_CACHE": str(tmp_path / "cache")}
    printed = run_python(
        "from hf_capsule_mt.__main__ import main\n"
        f"assert main(['data', 'multi30k', '--output', {str(tmp_path)!r}]) == 0\n"
        f"assert main(['data', 'iwslt2017', '--output', {str(tmp_path)!r}, '--source_lang', 'fr']) == 0\n",
        environment,
    )
    assert "non-commercial" in printed and "https://aclanthology.org/W16-3210" in printed and "29,000" in printed
    part = load_split("test", source_lang="en", target_lang="de", file="multi30k/test2016", data_dir=str(tmp_path))
    assert part[999] == {"source": "a dog 999", "target": "ein Hund 999"}
    french = load_split("train", source_lang="fr", target_lang="en", file="iwslt2017/en-fr/train", data_dir=tmp_path)
    assert len(french) == SIZES["train"] and french[0]["target"] == "train dog 0 runs"


def test_files_record_and_resumption(small, tmp_path, capsys):
    assert data("wmt14", tmp_path) == 0
    folder = tmp_path / "wmt14" / "de-en"
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert names == {RECORD} | {
        f"{split}.{language}" for split in ("train", "val", "test") for language in ("en", "de")
    }
    assert (folder / "val.de").read_text(encoding="utf-8").split("\n")[1] == "validation Hund\u20281"
    record = json.loads((folder / RECORD).read_text())
    assert (
        record["dataset"] == "wmt/wmt14"
        and record["sentences"] == SIZES
        and record["links"] == [*CORPORA["wmt14"].links]
    )
    assert small == [{"id": "wmt/wmt14", "revision": None, "name": "de-en"}]
    # all there: nothing is fetched and nothing written
    before = {path: path.stat().st_mtime_ns for path in folder.glob("[tv]*")}
    assert data("wmt14", tmp_path, "--source_lang", "de", "--target_lang", "en") == 0 and len(small) == 1
    assert {path: path.stat().st_mtime_ns for path in folder.glob("[tv]*")} == before
    # half a pair is fetched again, the others stay
    (folder / "val.en").unlink()
    (folder / RECORD).unlink()
    assert data("wmt14", tmp_path) == 0 and len(small) == 2
    assert (folder / "val.en").stat().st_size and (folder / "train.en").stat().st_mtime_ns == before[
        folder / "train.en"
    ]
    # changed by hand, or of another revision
    capsys.readouterr()
    assert data("wmt14", tmp_path, "--revision", "abc") == 2
    assert "was fetched with revision None, not abc" in capsys.readouterr().err
    (folder / "val.en").write_text("a\nb\nc\n")
    assert data("wmt14", tmp_path) == 2
    assert "val.en is not as it was fetched; remove it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    [
        ("multi30k", [], {}),
        ("opus100", [], {"name": "de-en"}),
        ("wmt16", ["--revision", "main~1"], {"name": "de-en", "revision": "main~1"}),
        (
            "iwslt2017",
            ["--source_lang", "en"],
            {
                "revision": CONVERTED,
                "data_files": {split: f"iwslt2017-de-en/{split}/*.parquet" for split in SIZES},
            },
        ),
    ],
)
def test_what_the_hub_is_asked_for(small, tmp_path, name, arguments, options):
    assert data(name, tmp_path, *arguments) == 0
    assert small == [{"id": CORPORA[name].id, "revision": None, **options}]


def test_pairs_are_named_as_the_hub_names_them(tmp_path):
    assert request("opus100", tmp_path, "en", "zh").pair == "en-zh"
    assert request("opus100", tmp_path, "zh").folder == tmp_path / "opus100" / "en-zh"
    assert request("wmt16", tmp_path, "en", "ro").pair == "ro-en"
    assert request("wmt16", tmp_path, "en", "ro").folder == tmp_path / "wmt16" / "en-ro"
    assert request("multi30k", tmp_path, "de", "en").folder == tmp_path / "multi30k"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("multi31k", [], "there is no corpus 'multi31k'; there are: multi30k, 3am, iwslt2017"),
        ("multi30k", ["--target_lang", "fr"], "multi30k has no pair fr; it pairs en with de"),
        ("wmt14", ["--source_lang", "de", "--target_lang", "fr"], "wmt14 has no pair de-fr"),
        ("wmt14", ["--source_lang", "en", "--target_lang", "en"], "wmt14 has no pair en-en"),
        ("3am", ["--revision", "x"], "3am is fetched by hand; leave out --revision"),
    ],
)
def test_what_there_is_not_is_named(small, tmp_path, capsys, name, arguments, message):
    assert data(name, tmp_path, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("hf-capsule-mt data: error: ") and message in error and error.count("\n") == 1
    assert not small and not list(tmp_path.iterdir())


def test_a_corpus_that_has_changed_is_refused_before_anything_is_written(small, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(SIZES, "test", 3)
    assert data("wmt14", tmp_path) == 2
    assert "wmt/wmt14 has 3 test pairs, not 2: it has changed; name a commit" in capsys.readouterr().err
    assert not list((tmp_path / "wmt14").rglob("*.de"))


def test_a_record_without_a_text_is_named(small, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("test_fetch.pairs", lambda split, size: [{"en": "a", "de": None}] * size)
    assert data("wmt14", tmp_path) == 2
    assert "wmt/wmt14, train record 1: no text for the language de" in capsys.readouterr().err
    assert not list((tmp_path / "wmt14").rglob("*.de"))


def test_what_is_not_on_the_hub_is_explained_and_checked(small, tmp_path, capsys, monkeypatch):
    assert data("3am", tmp_path) == 2
    assert (
        f"git clone https://github.com/MaxyLee/3AM, and copy its data/{{train,val,test}}.{{en,zh}} to {tmp_path}"
        in (capsys.readouterr().err)
    )
    (tmp_path / "3am").mkdir(exist_ok=True)
    for split in ("train", "val", "test"):
        for language in ("en", "zh"):
            (tmp_path / "3am" / f"{split}.{language}").write_text("a\n")
    assert data("3am", tmp_path) == 0
    (tmp_path / "3am" / RECORD).unlink()
    (tmp_path / "3am" / "val.zh").write_text("a\nb\n")
    assert data("3am", tmp_path) == 2
    assert "have 1 and 2 lines, not as many each" in capsys.readouterr().err


def test_no_network_is_one_line(tmp_path, capsys):
    # HF_HUB_OFFLINE=1, as in all tests
    assert data("opus100", tmp_path) == 2
    error = capsys.readouterr().err
    assert "cannot fetch Helsinki-NLP/opus-100 from " in error and "check the network" in error
    assert error.count("\n") == 1
