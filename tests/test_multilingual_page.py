"""The code and the commands of docs/multilingual.md, with a tiny checkpoint in the place of NLLB."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from hf_capsule_mt.__main__ import main
from hf_capsule_mt.data.corpus import DATA_VARIABLE
from hf_capsule_mt.hub import publishing
from tiny_multilingual import FRENCH
from tiny_translation import SOURCES, TARGETS

PAGE = (Path(__file__).parent.parent / "docs" / "multilingual.md").read_text(encoding="utf-8")
CODE = dict(re.findall(r"<!-- code: (\w+) -->\n```python\n(.*?)```", PAGE, re.S))
LINES = dict(re.findall(r"<!-- lines: (\w+) -->\n```bash\n(.*?)\n```", PAGE, re.S))
NLLB = "facebook/nllb-200-distilled-600M"
# a run and a search that take a second
SMALL = {
    "train": "--max_steps 2 --eval_steps 2 --save_steps 2 --max_tokens_per_batch 200 --test_num_beams 1 "
    "--use_cpu true --report_to none --disable_tqdm true",
    "student": "--d_model 12 --encoder_layers 2 --decoder_layers 2 --encoder_attention_heads 2 "
    "--decoder_attention_heads 2 --encoder_ffn_dim 14 --decoder_ffn_dim 14 --vocab_size 400",
    "translate": "--num_beams 1",
    "distill": "--num_beams 1",
}


def write(name, texts):
    Path("data", name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


@pytest.fixture(scope="module")
def workplace(multilingual, tmp_path_factory):
    """A folder with the corpora that the page speaks of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        patch.delenv(DATA_VARIABLE, raising=False)
        Path("data").mkdir()
        for split in ("train", "val", "test"):
            for name, texts in (("en", SOURCES), ("de", TARGETS)):
                write(f"{split}.{name}", texts)
            for name, texts in (("deu_Latn", TARGETS), ("eng_Latn", SOURCES)):
                write(f"{split}.eng_Latn-deu_Latn.{name}", texts)
            for name, texts in (("eng_Latn", SOURCES), ("fra_Latn", FRENCH)):
                write(f"{split}.{name}", texts)
        rows = [
            {"source": text, "from": "eng_Latn", "to": to} for text in SOURCES[:2] for to in ("deu_Latn", "fra_Latn")
        ]
        write("test.jsonl", map(json.dumps, rows))
        yield multilingual("nllb")


def run_lines(lines, checkpoint):
    for line in lines.splitlines():
        program, *argv = shlex.split(line.replace(NLLB, str(checkpoint)))
        small = f"{SMALL.get(argv[0], '')} {SMALL['student'] if 'runs/student' in argv else ''}"
        assert program == "hf-capsule-mt" and main([*argv, *small.split()]) == 0, line


def run_code(name, checkpoint, capsys, published=""):
    capsys.readouterr()
    code = CODE[name].replace(NLLB, str(checkpoint)).replace("user/name", published)
    exec(compile(code, f"docs/multilingual.md:{name}", "exec"), {})
    return capsys.readouterr().out.splitlines()


def count(path):
    return len(Path(path).read_text(encoding="utf-8").splitlines())


def test_everything_is_tested():
    assert set(CODE) == {"pipeline", "published", "languages", "lora"} and PAGE.count("```python") == 4
    assert set(LINES) == {"one_pair", "several_pairs", "distill", "hub", "export"} and PAGE.count("```bash") == 5


def test_one_pair(workplace, capsys):
    run_lines(LINES["one_pair"], workplace)
    assert count("test.de") == count("scores.txt") == len(SOURCES)
    assert len(run_code("pipeline", workplace, capsys)) == 3


def test_export(workplace, exported_nllb):
    """What the export itself gives is tested in tests/serving."""
    run, exported = exported_nllb
    export, *lines = LINES["export"].splitlines()
    assert export == "hf-capsule-mt export runs/nllb exported --format onnx"
    shutil.copytree(exported, "exported")
    run_lines("\n".join(lines), workplace)
    assert main(["translate", str(run), "data/test.en", "--num_beams", "1", "--output", "pytorch.de"]) == 0
    texts = {name: Path(name).read_text(encoding="utf-8") for name in ("pytorch.de", "onnx.de", "onnx.fr")}
    assert texts["pytorch.de"] == texts["onnx.de"] and count("onnx.fr") == len(SOURCES)


def test_several_pairs(workplace):
    run_lines(LINES["several_pairs"], workplace)
    assert count("test.jsonl") == 4 and count("test.fr") == len(SOURCES)
    rows = json.loads(Path("runs/three/results.json").read_text())["scores"]
    files = [row["file"].replace("greedy", "beam5") for row in rows]
    assert "translations/test.eng_Latn-deu_Latn.beam5.deu_Latn" in files and len(files) == 6


def test_hub(workplace, capsys, monkeypatch):
    """Whether the folders translate without this package is tested in tests/hub."""
    monkeypatch.setattr(publishing, "_run_clean", lambda *arguments, **more: {})
    if not Path("runs/three").exists():
        run_lines(LINES["several_pairs"].splitlines()[0], workplace)
    run_lines(LINES["hub"], workplace)
    pairs = {
        name: ModelCard.load(Path(name, "hub", "README.md")).data.language
        for name in ("runs/three", "my-nllb", "any-nllb")
    }
    assert pairs["runs/three"] == ["en", "de", "fr"] and pairs["my-nllb"] == ["en", "de"]
    assert {"en", "de", "fr", "yue"} < set(pairs["any-nllb"])
    (line,) = run_code("published", workplace, capsys, "runs/three/hub")
    assert list(eval(line)[0]) == ["translation_text"]


def test_distill(workplace):
    run_lines(LINES["distill"], workplace)
    assert json.loads(Path("runs/student/results.json").read_text())["language_pairs"] == [["en", "de"]]


def test_languages(workplace, capsys):
    assert run_code("languages", workplace, capsys)[0] == "202 languages"


def test_records_of_the_page(workplace):
    """Both kinds can be read, each with its arguments."""
    from hf_capsule_mt.data.corpus import load_split

    records = re.findall(r"^\{.*\}$", PAGE, re.M)
    texts = ({}, {"source_column": "text", "target_column": "text2"})
    for record, columns in zip(records, texts, strict=True):
        write("page.jsonl", [record])
        languages = {"source_lang_column": "from", "target_lang_column": "to"}
        assert load_split("train", file="data/page.jsonl", **languages, **columns)[0]["source"] == "A dog runs."


def test_adapters_and_capsules_train_and_nothing_else(workplace, capsys):
    (line,) = [line for line in run_code("lora", workplace, capsys) if "trainable params" in line]
    trained, of_all = (
        int(re.search(rf"{name} params: ([\d,]+)", line)[1].replace(",", "")) for name in ("trainable", "all")
    )
    assert 0 < trained < of_all
