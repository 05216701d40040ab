"""Distillation: the teacher's translations line by line, each decoded once, whatever the interruptions."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_capsule_mt.__main__ import COMMANDS, main
from hf_capsule_mt.data.corpus import load_split
from hf_capsule_mt.evaluation.translate import translate
from hf_capsule_mt.files import only_writer
from hf_capsule_mt.models.tokenizer_languages import set_languages
from hf_capsule_mt.training import distillation
from hf_capsule_mt.training.distillation import distill, parse_distillation, prepare_distillation
from tiny_multilingual import LANGUAGES
from tiny_translation import PAIRS, SOURCES, TARGETS, tiny_model, tiny_tokenizer

ROOT = Path(__file__).parents[2]
# Blank and repeated lines, and more different sentences than a batch holds.
LINES = [*SOURCES, "", "two dogs sleep .", SOURCES[0], " ", "the cat reads a book .", "a woman sleeps .", SOURCES[0]]
DISTINCT = {line for line in LINES if line.strip()}
# Two sentences of six tokens and three beams.
BATCH = 36


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    """A checkpoint folder that translates SOURCES to TARGETS."""
    folder = tmp_path_factory.mktemp("teacher")
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def workplace(tmp_path, monkeypatch) -> Path:
    """The current folder, with a corpus in data/; the references are useless."""
    (tmp_path / "data").mkdir()
    write_sources(tmp_path, LINES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(workplace, teacher):
    """The command line of a distillation into runs/out; keyword arguments override it."""

    def build(**overrides) -> list[str]:
        values = {
            "teacher_name_or_path": teacher,
            "output_prefix": "runs/out",
            "data_dir": "data",
            "source_lang": "en",
            "target_lang": "de",
            "train_file": "train",
            "num_beams": 3,
            "max_tokens_per_batch": BATCH,
        }
        values.update(overrides)
        return [f"--{key}={value}" for key, value in values.items() if value is not None]

    return build


def write_sources(folder: Path, lines: list[str]) -> None:
    (folder / "data" / "train.en").write_text("".join(f"{line}\n" for line in lines))
    (folder / "data" / "train.de").write_text("x\n" * len(lines))


def prepare(arguments: list[str]):
    return prepare_distillation(parse_distillation(arguments))


def files() -> dict[str, str]:
    """What lies in runs/, without the record, in which the time is, and the lock, which is empty."""
    return {path.name: path.read_text() for path in Path("runs").iterdir() if path.suffix not in (".json", ".lock")}


def expected(num_beams: int = 3, length_penalty: float = 1.0) -> dict[str, str]:
    options = dict(num_beams=num_beams, length_penalty=length_penalty) if num_beams > 1 else {}
    translations = translate(tiny_model(), tiny_tokenizer(), LINES, **options)
    return {name: "".join(f"{x}\n" for x in side) for name, side in (("out.en", LINES), ("out.de", translations))}


class Killed(BaseException):
    """Like a signal, nothing that the code could catch."""


@pytest.fixture
def decoded(monkeypatch):
    """
    Counts the sentences that go through translate_batches; `kill_after` ends the process, so to say, before the batch
    with that number.
    """
    counts, original = Counter(), distillation.translate_batches
    counts.kill_after = None

    def counting(model, tokenizer, sentences, **options):
        for number, (rows, texts) in enumerate(original(model, tokenizer, sentences, **options)):
            if number == counts.kill_after:
                raise Killed
            counts.update(sentences[row] for row in rows)
            counts["batches"] += 1
            yield rows, texts

    monkeypatch.setattr(distillation, "translate_batches", counting)
    return counts


def once(counts: Counter) -> bool:
    return {**counts, "batches": 1} == dict.fromkeys([*DISTINCT, "batches"], 1)


def kill(command, decoded, after: int, **options) -> Path:
    """Kill a run after some batches, in the middle of writing a line; returns the partial file."""
    decoded.kill_after = after
    with pytest.raises(Killed):
        distill(prepare(command(**options)))
    decoded.kill_after = None
    partial = Path("runs/out.partial-0.jsonl")
    with partial.open("ab") as stream:
        stream.write(b'{"index": 3, "transl')
    return partial


@pytest.mark.parametrize(
    "options",
    [{}, {"num_beams": 1}, {"length_penalty": 0.2}, {"max_tokens_per_batch": 4096}],
    ids=["beams", "greedy", "length_penalty", "one_batch"],
)
def test_output_is_what_translate_gives(command, decoded, capfd, options):
    assert main(["distill", *command(**options)]) == 0
    kept = {key: value for key, value in options.items() if key != "max_tokens_per_batch"}
    assert files() == expected(**kept)
    assert once(decoded) and (decoded["batches"] == 1) == ("max_tokens_per_batch" in options)
    out, err = capfd.readouterr()
    assert re.fullmatch(
        r"13 sentences \(9 of 9 different ones decoded now, 0 before\), [\d.]+ s, [\d.,]+ sentences/s -> runs/out\.en "
        r"and runs/out\.de; train on it: hf-capsule-mt train RECIPE --train_file \./runs/out\n",
        out,
    )
    assert "9/9" in err
    record = json.loads(Path("runs/out.json").read_text())
    assert (record["sentences"], record["distinct_sentences"], record["decoded_sentences"]) == (13, 9, 9)
    assert record["command"].startswith("hf-capsule-mt distill --teacher_name_or_path=")
    assert record["generation"]["num_beams"] == options.get("num_beams", 3)
    assert record["processes"] == 1 and "torch" in record["versions"]


def test_known_sentences_are_translated_right(command):
    distill(prepare(command()))
    lines = dict(zip(LINES, Path("runs/out.de").read_text().splitlines(), strict=True))
    assert [lines[source] for source in PAIRS] == TARGETS
    assert lines[""] == lines[" "] == ""


@pytest.mark.parametrize("after", [0, 1, 3])
def test_killed_run_goes_on_where_it_was(command, decoded, capfd, after):
    partial = kill(command, decoded, after)
    # Another kill leaves another line that is not whole.
    assert partial.read_bytes().count(b"\n") == 1 + sum(decoded.values()) - decoded["batches"]
    kill(command, decoded, 1)
    before = sum(decoded.values()) - decoded["batches"]
    capfd.readouterr()
    # Batches may be others: the result does not depend on them.
    record = distill(prepare(command(max_tokens_per_batch=70)))
    assert files() == expected()
    assert once(decoded)
    assert record["decoded_sentences"] == 9 - before
    assert f"({9 - before} of 9 different ones decoded now, {before} before)" in (captured := capfd.readouterr()).out
    assert f" {before}/9 " in captured.err and "9/9" in captured.err


def test_partial_files_of_any_processes_are_read(command, decoded):
    partial = kill(command, decoded, 2)
    # As if the third of several processes had written it.
    partial.rename("runs/out.partial-2.jsonl")
    kill(command, decoded, 1)
    distill(prepare(command()))
    assert files() == expected()
    assert once(decoded)


def test_kill_while_the_first_line_is_written(command, decoded):
    Path("runs").mkdir()
    Path("runs/out.partial-0.jsonl").write_text('{"fingerprint": {"teach')
    kill(command, decoded, 2)
    distill(prepare(command()))
    assert files() == expected()
    assert once(decoded)


@pytest.mark.parametrize("step", range(9))
def test_kill_at_every_step_of_the_end(command, decoded, monkeypatch, capsys, step):
    kill(command, decoded, 2)
    Path("runs/out.partial-0.jsonl").rename("runs/out.partial-1.jsonl")
    steps = 0

    def counted(original):
        def function(*arguments, **options):
            nonlocal steps
            steps += 1
            if steps > step:
                raise Killed
            return original(*arguments, **options)

        return function

    with monkeypatch.context() as patch, pytest.raises(Killed):
        run = prepare(command())
        patch.setattr(distillation, "write_whole", counted(distillation.write_whole))
        patch.setattr(distillation.os, "replace", counted(os.replace))
        patch.setattr(Path, "unlink", counted(Path.unlink))
        distill(run)
        # Three files, each in two steps, and two partial files.
        assert step == steps == 8
        raise Killed
    assert once(decoded)
    for _ in range(2):
        status = main(["distill", *command()])
        assert files() == expected()
        assert once(decoded)
    assert status == 2 and "there already; remove them" in capsys.readouterr().err


def test_finished_output_is_refused_before_any_work(command, monkeypatch, capsys):
    distill(prepare(command()))
    Path("runs/out.partial-0.jsonl").write_text('{"fingerprint": "of another one"}\n')
    before = {path: path.read_bytes() for path in Path("runs").iterdir()}
    monkeypatch.setattr(distillation, "load_teacher", pytest.fail)
    assert main(["distill", *command(num_beams=1)]) == 2
    (Path("runs") / ".out.lock").unlink()
    assert {path: path.read_bytes() for path in Path("runs").iterdir()} == before
    assert "runs/out.en, runs/out.de, runs/out.json: there already; remove them" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["out.en", "out.de", "out.json"])
def test_files_of_another_origin_are_not_overwritten(command, name):
    Path("runs").mkdir()
    Path("runs", name).write_text("mine")
    with pytest.raises(ValueError, match=rf"runs/{name}: there already; remove it .* choose another --output_prefix"):
        prepare(command())
    assert files() == ({} if name == "out.json" else {name: "mine"})


def test_another_distillation_is_not_resumed(command, decoded, workplace, teacher, tmp_path):
    partial = kill(command, decoded, 2)
    content = partial.read_bytes()

    def refused(**options) -> str:
        with pytest.raises(ValueError, match=r"remove runs/out\.partial-\*\.jsonl to begin anew") as caught:
            prepare(command(**options))
        assert partial.read_bytes() == content
        return re.search("with another (.*): give the same again", str(caught.value))[1]

    assert refused(num_beams=2) == "num_beams (3, now 2)"
    assert refused(num_beams=2, length_penalty=2.0) == "num_beams (3, now 2), length_penalty (1.0, now 2.0)"
    assert refused(max_train_samples=8) == "source sentences"
    (workplace / "data" / "train.fr").write_text("x\n" * len(LINES))
    assert refused(target_lang="fr") == "target_lang (de, now fr)"

    model, tokenizer = tiny_model(), tiny_tokenizer()
    model.final_logits_bias[0, 5] += 0.125
    model.generation_config.repetition_penalty = 1.5
    tokenizer.add_tokens("zebra")
    model.save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    assert refused(teacher_name_or_path=tmp_path / "other") == (
        "teacher's weights, teacher's generation config, teacher's tokenizer"
    )
    write_sources(workplace, [*LINES[:-1], "two cats run ."])
    assert refused() == "source sentences"

    # Where the teacher lies is no difference.
    write_sources(workplace, LINES)
    (tmp_path / "moved").symlink_to(teacher)
    distill(prepare(command(teacher_name_or_path=tmp_path / "moved")))
    assert files() == expected() and once(decoded)


def test_line_breaks_leave_the_sides_aligned(command, workplace, monkeypatch):
    records = [{"translation": {"en": f"{source}\nand more\r", "de": "x"}} for source in SOURCES]
    (workplace / "data" / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    breaks = ["\n{}", "{}\r", "{}\r\n\n", "a\u2028{}", "\r{}\x85", "{}"]

    def broken(model, tokenizer, sentences, **options):
        for row in reversed(range(len(sentences))):
            index = SOURCES.index(sentences[row].split("\n")[0])
            yield [row], [breaks[index].format(TARGETS[index])]

    monkeypatch.setattr(distillation, "translate_batches", broken)
    distill(prepare(command(train_file="train.jsonl")))
    monkeypatch.setenv("HF_CAPSULE_MT_DATA", "data")
    corpus = load_split("train", source_lang="en", target_lang="de", file="./runs/out")
    assert corpus["source"][:] == [f"{source} and more " for source in SOURCES]
    spaces = [" {}", "{} ", "{}  ", "a\u2028{}", " {}\x85", "{}"]
    assert corpus["target"][:] == [text.format(target) for text, target in zip(spaces, TARGETS, strict=True)]


def test_large_corpora_are_tokenised_in_pieces(command, decoded, monkeypatch):
    monkeypatch.setattr(distillation, "CHUNK", 2)
    distill(prepare(command(max_tokens_per_batch=4096)))
    assert files() == expected()
    assert once(decoded) and decoded["batches"] == 5


def test_vanished_partial_file_is_no_finished_corpus(command, monkeypatch):
    original = distillation._decode
    monkeypatch.setattr(distillation, "_decode", lambda run: (original(run), os.remove("runs/out.partial-0.jsonl")))
    with pytest.raises(RuntimeError, match="lack 9 sentences"):
        distill(prepare(command()))
    assert files() == {}


def test_second_distillation_ends_before_any_work(command, monkeypatch, capsys):
    monkeypatch.setattr(distillation, "load_teacher", pytest.fail)
    with only_writer(Path("runs/out")):
        assert main(["distill", *command()]) == 2
    error = capsys.readouterr().err
    assert "runs/out is being written by another process" in error and error.count("\n") == 1
    assert files() == {}


def test_full_disk_is_one_line(command, capsys, monkeypatch):
    def fill(stream, records):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(distillation, "_append", fill)
        assert main(["distill", *command()]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("hf-capsule-mt distill: error: cannot write to runs: the disk is full")
    assert "the same command goes on" in line
    assert main(["distill", *command()]) == 0
    assert files() == expected()


MISTAKES = {
    "teacher": ({"teacher_name_or_path": None}, "missing key teacher_name_or_path"),
    "no_teacher": ({"teacher_name_or_path": "no/such/model"}, "from no/such/model: there is no such folder"),
    "not_a_teacher": ({"teacher_name_or_path": "data"}, "cannot load the teacher from data: "),
    "output": ({"output_prefix": None}, "missing key output_prefix"),
    "output_name": ({"output_prefix": "."}, "output_prefix=. is to be the common beginning"),
    "json_output": ({"output_prefix": "a/b.jsonl"}, "is to be the common beginning of two text files"),
    "unwritable": ({"output_prefix": "data/train.en/x"}, "data/train.en is no folder that can be written to"),
    "corpus": ({"train_file": "nowhere"}, "no file data/nowhere.en"),
    "beams": ({"num_beams": 0}, "num_beams must be at least 1, got 0"),
    "tokens": ({"max_tokens_per_batch": 0}, "max_tokens_per_batch must be at least 1, got 0"),
    "type": ({"length_penalty": "x"}, "invalid float value: 'x'"),
    "unknown": ({"num_beam": 3}, "unknown argument --num_beam; did you mean --num_beams?"),
    "unlike_any": ({"zzzz": 3}, "unknown argument --zzzz; see hf-capsule-mt distill --help"),
    "unused": ({"vocab_size": 99, "test_file": "x"}, "without effect here: test_file, vocab_size;"),
    "language": ({"target_lang": "en"}, "source_lang and target_lang are both 'en'"),
}


@pytest.mark.parametrize("overrides,message", MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_end_with_one_line_and_leave_nothing(command, capsys, overrides, message):
    assert main(["distill", *command(**overrides)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("hf-capsule-mt distill: error: ") and message in line
    # but the lock, where the output was free
    assert {str(path) for path in Path().rglob("*") if "data" not in path.parts} <= {"runs", "runs/.out.lock"}


def test_teacher_without_all_its_weights(command, tmp_path):
    model = tiny_model()
    kept = {name: tensor for name, tensor in model.state_dict().items() if "decoder.layers.0.fc1" not in name}
    model.save_pretrained(tmp_path / "part", state_dict=kept)
    tiny_tokenizer().save_pretrained(tmp_path / "part")
    with pytest.raises(ValueError, match=r"lacks weights of its model, such as .*fc1\.bias \(2 in all\)"):
        prepare(command(teacher_name_or_path=tmp_path / "part"))


@pytest.mark.parametrize("kind", ["nllb", "mbart"])
def test_multilingual_teacher(command, multilingual, kind):
    source, target, _ = LANGUAGES[kind]
    options = dict(teacher_name_or_path=multilingual(kind), source_lang=source, target_lang=target, num_beams=2)
    columns = dict(source_column="en", target_column="de")
    with pytest.raises(ValueError, match=r"target_lang: 'deutsch' is none of the \d+ languages"):
        prepare(command(**{**options, **columns, "target_lang": "deutsch"}))
    distill(prepare(command(**options, **columns)))
    model, tokenizer = (
        AutoModelForSeq2SeqLM.from_pretrained(multilingual(kind)),
        AutoTokenizer.from_pretrained(multilingual(kind)),
    )
    translations = translate(model, tokenizer, LINES, num_beams=2, **set_languages(tokenizer, source, target))
    expected = {"out.en": LINES, "out.de": translations}
    assert files() == {name: "".join(f"{line}\n" for line in lines) for name, lines in expected.items()}


@pytest.mark.parametrize("kept_in", ["records", "files"])
def test_several_pairs(command, multilingual, decoded, kept_in):
    """The corpus has the form of the one it was made of, so that the same arguments train on it."""
    english, german, french = LANGUAGES["nllb"]
    rows = [(line, german) for line in LINES] + [(line, french) for line in SOURCES[:2]]
    if kept_in == "records":
        columns = dict(source_lang=english, source_column="text", target_column="out", target_lang_column="to")
        records = [{"text": line, "out": "x", "to": target} for line, target in rows]
        Path("data/train.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
        options = {**columns, "target_lang": None, "train_file": "train.jsonl"}
    else:
        for target in (german, french):
            sources = [line for line, language in rows if language == target]
            for language, lines in ((english, sources), (target, ["x"] * len(sources))):
                Path(f"data/train.{english}-{target}.{language}").write_text("".join(f"{x}\n" for x in lines))
        options = {"source_lang": None, "target_lang": None}
        options["language_pairs"] = [f"{english}-{german}", f"{english}-{french}"]
    arguments = command(teacher_name_or_path=multilingual("nllb"), num_beams=2, **options)
    if kept_in == "files":
        arguments = [token for token in arguments if "language_pairs" not in token]
        arguments += ["--language_pairs", *options["language_pairs"]]
    decoded.kill_after = 2
    with pytest.raises(Killed):
        distill(prepare(arguments))
    decoded.kill_after = None
    distill(prepare(arguments))
    # as often as it is to be translated into another language
    assert {decoded[line] for line in SOURCES[:2]} == {2} and {decoded[line] for line in SOURCES[2:]} == {1}

    model, tokenizer = (
        AutoModelForSeq2SeqLM.from_pretrained(multilingual("nllb")),
        AutoTokenizer.from_pretrained(multilingual("nllb")),
    )
    expected = []
    for target in (german, french):
        lines = [line for line, language in rows if language == target]
        languages = set_languages(tokenizer, english, target)
        found = translate(model, tokenizer, lines, num_beams=2, **languages)
        expected += [(line, text, english, target) for line, text in zip(lines, found, strict=True)]
    file = "./runs/out.jsonl" if kept_in == "records" else "./runs/out"
    parsed = parse_distillation([*arguments, f"--train_file={file}"])
    dataset = load_split("train", **parsed.data.corpus("train"))
    columns = (dataset[name] for name in ("source", "target", "source_lang", "target_lang"))
    assert list(zip(*columns, strict=True)) == expected


def test_teacher_of_one_pair_has_no_others(command):
    with pytest.raises(ValueError, match="several pairs of languages need a multilingual model, and the"):
        prepare([*command(source_lang=None, target_lang=None), "--language_pairs", "en-de"])


def test_foreign_partial_file(command):
    Path("runs").mkdir()
    Path("runs/out.partial-0.jsonl").write_text('{"index": 0, "translation": "x"}\n')
    with pytest.raises(ValueError, match=r"out\.partial-0\.jsonl does not begin with a fingerprint"):
        prepare(command())


def test_published_recipe_is_valid():
    command = parse_distillation(["multi30k/distill"])
    assert command.recipe == "multi30k/distill"
    command.data.validate()
    command.distillation.validate()
    assert command.distillation.output_prefix.startswith("runs/")


@pytest.mark.parametrize("argv", [["distil"], []], ids=["unknown", "none"])
def test_unknown_command_lists_those_there_are(argv, capsys):
    assert main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("hf-capsule-mt: error: ")
    assert line.endswith(f"there are: {', '.join(COMMANDS)}")


def test_help(capsys):
    assert main(["--help"]) == 0
    assert "hf-capsule-mt distill multi30k/distill" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        main(["distill", "--help"])
    assert caught.value.code == 0
    assert "--teacher_name_or_path" in capsys.readouterr().out


def start(arguments: list[str], processes: int = 1) -> subprocess.Popen:
    launcher = ["torch.distributed.run", "--nproc_per_node", str(processes), "--master_port", "0"]
    launcher += ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", "-m"]
    command = [sys.executable, "-m", *(launcher if processes > 1 else []), "hf_capsule_mt", "distill", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen(command, env=environment, **pipes)


def decoded_lines() -> list[int]:
    """The positions in all partial files, without what is not whole."""
    texts = [path.read_text() for path in Path("runs").glob("out.partial-*.jsonl")]
    lines = [line for text in texts for line in text.splitlines(keepends=True)]
    return [json.loads(line)["index"] for line in lines if line.startswith('{"index"') and line.endswith("}\n")]


@pytest.mark.slow
@pytest.mark.parametrize("before,after", [(1, 2), (2, 1)])
def test_sigkill_and_another_number_of_processes(command, workplace, before, after):
    # Long enough to be killed in the middle.
    many = [f"{source} {' '.join(['dog'] * (number % 15))} {number}" for source in SOURCES for number in range(100)]
    write_sources(workplace, many)
    distill(prepare(command(output_prefix="whole/out", max_tokens_per_batch=4096)))
    process = start(command(max_tokens_per_batch=1), before)
    deadline = time.monotonic() + 300
    while len(decoded_lines()) < 20 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    # What a launcher has launched has a process group of its own.
    for part in (process, *psutil.Process(process.pid).children(recursive=True)):
        os.kill(part.pid, signal.SIGKILL)
    process.communicate()
    assert 20 <= len(indices := decoded_lines()) < len(many) and not Path("runs/out.de").exists()
    assert len(list(Path("runs").glob("out.partial-*.jsonl"))) == before

    process = start(command(max_tokens_per_batch=200), after)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert out.count("different ones decoded now") == 1
    record = json.loads(Path("runs/out.json").read_text())
    assert record["processes"] == after
    assert record["decoded_sentences"] == len(set(many)) - len(set(indices)) == len(set(many)) - len(indices)
    assert files() == {path.name: path.read_text() for path in Path("whole").glob("out.[de]*")}
