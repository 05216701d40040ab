"""The report of checkpoints on a test set: what it holds, how it is written, how it goes on when interrupted."""

import json
import random
import re
import resource
import shutil
import statistics

import pytest
from transformers import AutoModelForSeq2SeqLM

from hf_capsule_mt.__main__ import main
from hf_capsule_mt.analysis import efficiency as speed
from hf_capsule_mt.analysis import report as module
from hf_capsule_mt.analysis import report_command
from hf_capsule_mt.analysis.aligned_text import AlignmentFile
from hf_capsule_mt.analysis.efficiency import REPEATS, speed_warnings
from hf_capsule_mt.analysis.report import (
    Options,
    describe,
    load_test_set,
    make_report,
    report_system,
    systems_table,
    write_report,
)
from hf_capsule_mt.evaluation.scores import score
from hf_capsule_mt.evaluation.translate import translate
from hf_capsule_mt.files import only_writer, read_lines
from hf_capsule_mt.models.tokenizer_languages import set_languages
from tiny_models import bart_config, capsule_config, capsule_model, rnn_config, rnn_model
from tiny_translation import SOURCES, TARGETS, tiny_model, tiny_tokenizer

SIZES = dict(max_position_embeddings=41)
GUIDED = {"guided_routing": "routing", "bow_loss_weight": 1.0}


def save(model, folder):
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A checkpoint of every kind, by name."""
    root, vocab = tmp_path_factory.mktemp("checkpoints"), len(tiny_tokenizer())
    models = {
        "plain": tiny_model(),
        "em": capsule_model(vocab_size=vocab, aggregation="em_routing"),
        "gdr": capsule_model(vocab_size=vocab, aggregation="none", **GUIDED),
        "capsnmt": rnn_model(vocab_size=vocab, source_memory="capsule"),
        "rnmt": rnn_model(vocab_size=vocab, source_memory="attention"),
    }
    return {name: str(save(model, root / name)) for name, model in models.items()}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("test_set")
    for suffix, side in (("en", SOURCES), ("de", TARGETS)):
        (folder / f"test.{suffix}").write_text("".join(f"{text}\n" for text in side), encoding="utf-8")
    return folder / "test.en", folder / "test.de"


def command(checkpoints, files, output, *more) -> int:
    argv = ["report", *checkpoints, "--source", str(files[0]), "--reference", str(files[1])]
    return main([*argv, "--output", str(output), *map(str, more)])


CONTRIBUTIONS = {"em": ["loss", "without_encoder", "without_decoder"], "gdr": ["loss", "without_guided"]}
PARTS = {"plain": set(), "em": {"encoder", "decoder"}, "gdr": {"guided"}, "capsnmt": {"memory"}, "rnmt": set()}


@pytest.mark.parametrize("name", PARTS)
def test_only_the_parts_that_fit_the_model(checkpoints, files, tmp_path, name, capsys):
    assert command([checkpoints[name]], files, tmp_path / "report", "--examples", 2) == 0
    report = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    (system,) = report["systems"]
    assert set(system["routing"]) == PARTS[name]
    assert list(system["contributions"]) == CONTRIBUTIONS.get(name, [])
    example_parts = {"source", "reference", "translation", "source_tokens", "target_tokens"}
    example_parts |= {"source_words", "target_words"}
    assert [set(example) - example_parts for example in system["examples"]] == [PARTS[name]] * 2
    assert "comparison" not in report
    assert ("ratio" in system["efficiency"]) == (name in ("em", "gdr"))
    translations = (tmp_path / "report" / "translations" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    again = score(translations, TARGETS, target_lang="de")
    assert system["scores"] == again
    if name == "plain":
        assert translations == TARGETS and system["scores"]["bleu"] == pytest.approx(100)
    files_there = {str(path.relative_to(tmp_path / "report")) for path in (tmp_path / "report").rglob("*.*")}
    assert {"index.html", "report.json", "table.md", "table.tex"} <= files_there
    kept = json.loads((tmp_path / "report" / "summary.json").read_text(encoding="utf-8"))
    assert kept["systems"][0]["contributions"] == system["contributions"]
    assert kept["systems"][0]["scores"] == again and set(kept["systems"][0]["routing"]) == PARTS[name]
    assert "examples" not in kept["systems"][0] and "figures" not in kept
    for stack in PARTS[name] & {"encoder", "decoder"}:
        assert [set(row) for row in kept["systems"][0]["routing"][stack]["iterations"]] == [
            {"entropy", "diversity"}
        ] * 3
    for figure in report["figures"]:
        assert {figure["file"], figure["file"].replace(".svg", ".png")} <= files_there
    assert re.search(rf"^\| {name} +\|", capsys.readouterr().out, re.M)


def test_several_systems_are_compared_with_the_first(checkpoints, files, tmp_path):
    chosen = [checkpoints["plain"], checkpoints["em"]]
    assert command(chosen, files, tmp_path / "report", "--no_speed", "--names", "Transformer", "EM routing") == 0
    report = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert [system["name"] for system in report["systems"]] == ["Transformer", "EM routing"]
    assert report["comparison"]["baseline"] == "Transformer" and list(report["comparison"]["systems"]) == [
        "EM routing"
    ]
    tests = report["comparison"]["systems"]["EM routing"]
    assert tests["sign_test"]["better"] + tests["sign_test"]["worse"] + tests["sign_test"]["ties"] == len(SOURCES)
    assert tests["bleu"]["system"] == pytest.approx(report["systems"][1]["scores"]["bleu"])
    assert all("efficiency" not in system for system in report["systems"])
    assert "EM routing" in (tmp_path / "report" / "table.tex").read_text(encoding="utf-8")


def test_several_runs_of_a_system(checkpoints, files, tmp_path, capsys):
    """The second run of a system translates as the first, and says that its seed is another one."""
    runs = {}
    for name in ("plain", "em"):
        again = tmp_path / f"{name}_2"
        shutil.copytree(checkpoints[name], again)
        (again / "results.json").write_text(json.dumps({"seed": 2, "steps": 7, "versions": {"torch": "2.0"}}))
        runs[name] = f"{name}={checkpoints[name]},{again}"
    assert command(list(runs.values()), files, tmp_path / "report", "--no_speed", "--examples", 1) == 0
    report = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    plain, em = report["systems"]
    assert [run["record"] for run in em["runs"]] == [False, True] and em["runs"][1]["seed"] == 2
    assert [plain["spread"]["bleu"][key] for key in ("mean", "sd", "n")] == [pytest.approx(100), 0, 2]
    assert em["scores"]["bleu"] == em["spread"]["bleu"]["mean"]
    tests = report["comparison"]["systems"]["em"]
    assert tests["bleu"]["pairs"] == 2 and "seeds" in tests["bleu"]["test"]
    assert tests["sentences"]["losses"] == len(SOURCES)
    assert "100.0 ± 0.0" in report["table"]["markdown"]
    kept = {path.name for folder in ("parts", "translations") for path in (tmp_path / "report" / folder).iterdir()}
    assert {"em.json", "em.run2.json", "em.txt", "em.run2.txt"} <= kept
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "no results.json" in page and "± 0.0, n = 2" in page
    summary = json.loads((tmp_path / "report" / "summary.json").read_text(encoding="utf-8"))
    assert summary["systems"][0]["spread"]["bleu"]["mean"] == pytest.approx(100)
    assert "most_different" not in summary["comparison"]["systems"]["em"]["sentences"]


def test_systems_without_output_are_shown_as_such(checkpoints, files, tmp_path, monkeypatch):
    real = module.translate

    def some(model, *arguments, **more):
        texts = real(model, *arguments, **more)
        return [""] * len(texts) if model.config.model_type == "capsule-marian" else ["", *texts[1:]]

    monkeypatch.setattr(module, "translate", some)
    assert command([checkpoints["plain"], checkpoints["gdr"]], files, tmp_path / "report", "--no_speed") == 0
    report = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert [system["empty"] for system in report["systems"]] == [1, len(SOURCES)]
    assert report["systems"][1]["examples"] == [] and report["systems"][0]["examples"]
    for text in (report["table"]["markdown"], (tmp_path / "report" / "index.html").read_text(encoding="utf-8")):
        assert f"plain has no output for 1 of {len(SOURCES)} sentences" in text
        assert f"gdr has no output for all {len(SOURCES)} sentences" in text


def test_speed_has_quartiles_and_every_parent_is_measured_once(checkpoints, monkeypatch):
    names = ("plain", "em", "gdr")
    models = {
        name: (AutoModelForSeq2SeqLM.from_pretrained(checkpoints[name]).eval(), tiny_tokenizer()) for name in names
    }
    seen = []
    real = speed._decode
    monkeypatch.setattr(speed, "_decode", lambda model, *more: seen.append(id(model)) or real(model, *more))
    monkeypatch.setattr(speed, "REPEATS", 3)
    monkeypatch.setattr(speed, "NUM_SENTENCES", 2)
    found = speed.efficiency(models, SOURCES, TARGETS)
    assert set(found) == set(names) and len(set(seen)) == 4
    # first call, then rounds of two sentences in which each model has one turn, in changing orders
    turns = seen[4 : 4 + 3 * 2 * 4]
    assert all(len(set(turns[start : start + 4])) == 4 for start in range(0, len(turns), 4))
    assert len({tuple(turns[start : start + 4]) for start in range(0, len(turns), 4)}) > 1
    for name, measured in found.items():
        assert measured["repeats"] == 3 and ("ratio" in measured) == (name != "plain")
        for key, (low, high) in measured["quartiles"].items():
            assert low <= measured[key] <= high


def timed(name, low, middle, high, **more):
    key = "milliseconds_per_sentence"
    part = {key: middle, "quartiles": {key: [low, high]}}
    return {"name": name, "model_type": "marian", "parameters": 5, "efficiency": part, **more}


def test_times_of_equal_systems_are_rarely_doubted():
    draw = random.Random(1)

    def measured(name):
        rounds = [draw.gauss(10, 1) for _ in range(REPEATS)]
        return timed(name, *statistics.quantiles(rounds, n=4, method="inclusive"))

    doubted = sum(bool(speed_warnings([measured("one"), measured("other")])) for _ in range(4000))
    assert doubted < 0.01 * 4000


def test_times_that_differ_by_more_than_their_spread_are_doubted():
    one = timed("one", 9, 10, 11)
    assert speed_warnings([one, timed("like", 11.5, 13, 14)]) == []
    assert speed_warnings([one, timed("larger", 19, 20, 21, parameters=6)]) == []
    assert speed_warnings([one, {"name": "unmeasured", "model_type": "marian", "parameters": 5}]) == []
    (line,) = speed_warnings([one, timed("slow", 19, 20, 21)])
    assert line.startswith("slow and one are of the same size and class, but slow decodes 100% slower")


def test_comet_is_asked_only_when_it_is_named(checkpoints, files, tmp_path, monkeypatch, capsys):
    assert command([checkpoints["rnmt"]], files, tmp_path / "report", "--comet", tmp_path / "comet-score") == 2
    assert "install COMET into an environment of its own" in capsys.readouterr().err
    monkeypatch.setattr(module, "comet_score", lambda *texts, command: 0.8125)
    monkeypatch.setattr(report_command, "find_comet", lambda command: command)
    assert command([checkpoints["rnmt"]], files, tmp_path / "report", "--comet", "comet-score", "--no_speed") == 0
    report = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert report["systems"][0]["scores"]["comet"] == 0.8125
    assert "0.812" in report["table"]["markdown"] and "wmt22-comet-da" in report["table"]["markdown"]
    assert "COMET" in (tmp_path / "report" / "index.html").read_text(encoding="utf-8")


def test_gold_alignments_take_the_aligners_place(checkpoints, files, tmp_path, capsys):
    gold = tmp_path / "gold.align"
    # only the first word of every reference is said to be covered
    gold.write_text("0-0\n" * len(SOURCES), encoding="utf-8")
    more = ["--alignment", gold, "--no_speed", "--examples", 1]
    assert command([checkpoints["plain"]], files, tmp_path / "report", *more) == 0
    report = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert report["systems"][0]["adequacy"]["covered_by_reference"] == len(SOURCES)
    assert "no system has PAST and FUTURE; the alignments serve adequacy alone" in capsys.readouterr().err
    for text, message in (
        ("0-0\n", "has 1 lines, but there are 6 sentences"),
        ("0:0\n" * 6, "gold.align, line 1: '0:0' is no alignment"),
        ("0-0\n9-0\n" * 3, "gold.align, line 2: 9-0 links word 9 of the source, counted from 0, which has"),
    ):
        gold.write_text(text, encoding="utf-8")
        assert command([checkpoints["plain"]], files, tmp_path / "other", *more) == 2
        assert message in capsys.readouterr().err


def test_an_interrupted_report_goes_on(checkpoints, files, tmp_path, monkeypatch):
    test_set, options = load_test_set(*files), Options(efficiency=False, num_examples=1)
    chosen = {name: checkpoints[name] for name in ("plain", "gdr")}
    real, seen = module.translate, []

    def counted(model, *arguments, **more):
        seen.append(model.config.model_type)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return real(model, *arguments, **more)

    monkeypatch.setattr(module, "translate", counted)
    with pytest.raises(KeyboardInterrupt):
        make_report(chosen, test_set, tmp_path, options)
    report = make_report(chosen, test_set, tmp_path, options)
    # the first checkpoint was not translated again
    assert seen == ["marian", "capsule-marian", "capsule-marian"]
    monkeypatch.undo()
    fresh = make_report(chosen, test_set, tmp_path / "fresh", options)
    assert report == fresh
    # with other options nothing that is kept fits
    other = make_report(chosen, test_set, tmp_path, Options(efficiency=False, num_examples=2))
    assert [len(system["examples"]) for system in other["systems"]] == [2, 2]


def test_writing_twice_gives_the_same_page(checkpoints, files, tmp_path):
    report = make_report(
        {"em": checkpoints["em"]}, load_test_set(*files), tmp_path, Options(efficiency=False, num_examples=1)
    )
    pages = [write_report(dict(report), tmp_path / name).read_bytes() for name in ("first", "second")]
    assert pages[0] == pages[1] and len(pages[0]) > 10_000


def test_the_numbers_of_a_system_are_those_of_its_functions(checkpoints, files):
    model = AutoModelForSeq2SeqLM.from_pretrained(checkpoints["plain"]).eval()
    test_set = load_test_set(*files)
    system, translations = report_system("plain", model, tiny_tokenizer(), test_set, Options(efficiency=False))
    assert translations == TARGETS and system["parameters"] == sum(p.numel() for p in model.parameters())
    assert sum(bucket["sentences"] for bucket in system["buckets"]) == len(SOURCES)
    assert system["description"] == "no routing"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (capsule_config(num_capsules=6), "aggregation=em_routing, routing_iterations=3, num_capsules=6"),
        (capsule_config(aggregation="linear"), "aggregation=linear"),
        (capsule_config(aggregation="none"), "no routing"),
        (
            bart_config(aggregation="none", guided_routing="routing", bow_loss_weight=0.5),
            "guided_routing=routing, routing_iterations=3, bow_loss_weight=0.5",
        ),
        (rnn_config(), "source_memory=capsule, num_source_capsules=5, routing_iterations=3"),
        (rnn_config(source_memory="simple"), "source_memory=simple"),
    ],
)
def test_descriptions(config, expected):
    assert describe(config) == expected


def test_the_table_marks_what_differs_from_the_baseline():
    scores = {"bleu": 30.0, "chrf": 50.0, "ter": 70.0, "signatures": {"bleu": "nrefs:1"}}
    tests = {
        key: {"p": p / 2, "p_holm": p, "test": "approximate randomisation"}
        for key, p in (("bleu", 0.001), ("chrf", 0.03), ("ter", 0.6))
    }
    report = {
        "systems": [{"name": name, "scores": scores, "parameters": 2_500_000} for name in ("base", "new")],
        "comparison": {"baseline": "base", "systems": {"new": tests}},
        "test_set": {"source": "test.en", "sentences": 1000},
        "decoding": {"num_beams": 5, "length_penalty": 1.0},
    }
    text = systems_table(report).to_markdown()
    line = next(line for line in text.splitlines() if line.startswith("| new"))
    assert r"30.0\*\*" in line and r"50.0\* " in line and "70.0 " in line and "2.50" in line
    assert "*" not in next(line for line in text.splitlines() if line.startswith("| base"))
    assert "nrefs:1" in text and "beam 5" in text and "1,000 sentences" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.update(checkpoints=["/no/such/model"]), "there is no directory /no/such/model"),
        (lambda a: a.update(names=["one", "two"]), "--names needs one name for each of the 1 checkpoints, got 2"),
        (lambda a: a.update(checkpoints=["a="]), "'a=' is no system: write NAME=RUN1,RUN2"),
        (lambda a: a.update(checkpoints=["a=x,x"]), "a has a run twice: x, x"),
        (lambda a: a.update(checkpoints=["a=x,y"], names=["b"]), "a=... has its name already: leave out --names"),
        (lambda a: a.update(checkpoints=["a=/no/such"]), "there is no directory /no/such (a)"),
        (lambda a: a["more"].extend(["--num_beams", "0"]), "--num_beams must be at least 1, got 0"),
        (lambda a: a["files"][1].write_text("nur eine\n", encoding="utf-8"), "lines and"),
        (lambda a: [f.write_text("", encoding="utf-8") for f in a["files"]], "is empty"),
        (lambda a: a["files"][0].unlink(), "test.en"),
        (lambda a: (a["output"].mkdir(), (a["output"] / "thesis.txt").touch()), "holds no report"),
        (lambda a: a.update(checkpoints=a["checkpoints"] * 2), "tell them apart with --names"),
        (lambda a: a["more"].extend(["--length_penalty", "nan"]), "--length_penalty must be from -10 to 10, got nan"),
        (lambda a: a["files"][0].write_bytes(b"a\n\xff\n"), "test.en, line 2: not UTF-8"),
        (lambda a: (a["files"][0].unlink(), a["files"][0].mkdir()), "test.en is a folder; name a text file"),
        (lambda a: a["output"].touch(), "is a file; name a folder"),
    ],
    ids=[
        "checkpoint",
        "names",
        "no run",
        "same run",
        "two names",
        "no such run",
        "beams",
        "lines",
        "empty",
        "file",
        "folder",
        "twice",
        "penalty",
        "encoding",
        "input",
        "output",
    ],
)
def test_mistakes_are_refused_before_work_starts(checkpoints, files, tmp_path, capsys, change, message):
    copies = [tmp_path / path.name for path in files]
    for path, copy in zip(files, copies, strict=True):
        copy.write_bytes(path.read_bytes())
    a = {"checkpoints": [checkpoints["em"]], "files": copies, "output": tmp_path / "out", "more": [], "names": None}
    change(a)
    more = [*a["more"], *(["--names", *a["names"]] if a["names"] else [])]
    assert command(a["checkpoints"], a["files"], a["output"], *more) == 2
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("hf-capsule-mt report: error: ") and message in error
    assert not (a["output"] / "parts").exists()


HOSTILE = ["a\u2028dog .", "\0", "", " \x85", "a \x0b\x0c\x1c dog", "a \0 dog ||| cat", "dog " * 1500, SOURCES[2]]


class TestHostileLines:
    @pytest.fixture
    def hostile(self, tmp_path):
        """Files of the same lines, one of them with a byte order mark and carriage returns."""
        paths = tmp_path / "hostile.en", tmp_path / "hostile.de"
        paths[0].write_bytes(("\ufeff" + "".join(f"{line}\r\n" for line in HOSTILE)).encode())
        paths[1].write_bytes("".join(f"{line}\n" for line in HOSTILE).encode())
        return paths

    def test_pairs_stay_pairs(self, hostile, tmp_path):
        gold = tmp_path / "gold"
        gold.write_bytes(b"\xef\xbb\xbf0-0\r\n" + b"\n" * (len(HOSTILE) - 1))
        test_set = load_test_set(*hostile, alignments=AlignmentFile(gold))
        assert test_set.sources == test_set.references == HOSTILE
        assert [pair.alignment for pair in test_set.aligned.pairs] == [((0, 0),), *[()] * (len(HOSTILE) - 1)]

    @pytest.mark.parametrize("aligned", [False, True], ids=["aligner", "gold"])
    def test_a_report_of_them(self, checkpoints, hostile, tmp_path, capsys, aligned):
        (tmp_path / "gold").write_text("0-0\n" + "\n" * (len(HOSTILE) - 1))
        gold = ["--alignment", tmp_path / "gold"] if aligned else []
        assert command([checkpoints["plain"]], hostile, tmp_path / "out", "--no_speed", "--examples", 2, *gold) == 0
        translations = read_lines(tmp_path / "out" / "translations" / "plain.txt")
        assert len(translations) == len(HOSTILE) and translations[-1] == TARGETS[2] and translations[2:4] == ["", ""]

    def test_a_translation_is_one_line(self, checkpoints, files, tmp_path, monkeypatch):
        monkeypatch.setattr(module, "translate", lambda *_, **__: ["ein\nhund\r\n."] * len(SOURCES))
        report = make_report(
            {"plain": checkpoints["plain"]}, load_test_set(*files), tmp_path, Options(efficiency=False, num_examples=0)
        )
        write_report(report, tmp_path)
        assert read_lines(tmp_path / "translations" / "plain.txt") == ["ein hund ."] * len(SOURCES)


class TestKeptParts:
    @pytest.fixture
    def kept(self, checkpoints, files, tmp_path):
        """A copy of a checkpoint, and a function that reports on it and says whether it was translated."""
        folder = save(AutoModelForSeq2SeqLM.from_pretrained(checkpoints["plain"]), tmp_path / "model")
        test_set, options = load_test_set(*files), Options(efficiency=False, num_examples=0)

        def report():
            seen = []
            with pytest.MonkeyPatch.context() as patch:
                real = module.translate
                patch.setattr(module, "translate", lambda *a, **k: seen.append(1) or real(*a, **k))
                made = make_report({"plain": str(folder)}, test_set, tmp_path / "out", options)
            return bool(seen), made

        assert report()[0] and not report()[0]
        return folder, report

    @pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json"])
    def test_depend_on_all_of_a_checkpoint(self, kept, name):
        folder, report = kept
        path = folder / name
        values = json.loads(path.read_text(encoding="utf-8"))
        if name == "tokenizer.json":
            values["added_tokens"].append({**values["added_tokens"][-1], "id": len(tiny_tokenizer()), "content": "zz"})
        else:
            values["bad_words_ids" if name.startswith("gen") else "dropout"] = [[7]] if name.startswith("gen") else 0.3
        path.write_text(json.dumps(values), encoding="utf-8")
        assert report()[0] and not report()[0]

    @pytest.mark.parametrize(
        "damage",
        [
            lambda text: text[: len(text) // 2],
            lambda text: "",
            lambda text: "[]",
            lambda text: "null",
            lambda text: text.replace(TARGETS[0], "ein esel ."),
            lambda text: json.dumps({**json.loads(text), "system": {}}),
            lambda text: json.dumps({**json.loads(text), "translations": None}),
            lambda text: json.dumps({"key": json.loads(text)["key"]}),
            lambda text: "\udcff",
        ],
        ids=["cut", "empty", "list", "null", "text", "system", "translations", "fields", "bytes"],
    )
    def test_are_made_again_when_they_are_damaged(self, kept, tmp_path, caplog, damage):
        _, report = kept
        before = report()[1]
        part = tmp_path / "out" / "parts" / "plain.json"
        part.write_bytes(damage(part.read_text(encoding="utf-8")).encode(errors="surrogateescape"))
        again, made = report()
        assert again and made == before and "plain.json is damaged" in caplog.text
        assert not report()[0]


def test_a_report_has_one_writer(checkpoints, files, tmp_path, capsys):
    with only_writer(tmp_path / "out"):
        assert command([checkpoints["plain"]], files, tmp_path / "out", "--no_speed") == 2
    assert "out is being written by another process" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_numbers_that_are_not_finite_are_refused(checkpoints, files, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(module, "collect", lambda *_, **__: {"entropy": float("nan")})
    assert command([checkpoints["plain"]], files, tmp_path / "out", "--no_speed") == 2
    assert "plain gives numbers that are not finite; are its weights whole?" in capsys.readouterr().err
    assert not (tmp_path / "out" / "parts" / "plain.json").exists()


def test_control_c(checkpoints, files, tmp_path, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "translate", interrupt)
    assert command([checkpoints["plain"]], files, tmp_path / "out") == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("hf-capsule-mt report: interrupted; what is finished is kept, and the same command goes on")


def test_a_full_disk(checkpoints, files, tmp_path, capsys, monkeypatch):
    """The page is larger than a checkpoint's part, which is kept."""
    arguments = [[checkpoints["plain"]], files, tmp_path / "out", "--no_speed", "--examples", 1]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        status = command(*arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    last = capsys.readouterr().err.splitlines()[-1]
    assert status == 2 and "hf-capsule-mt report: error: " in last
    assert "/out/index.html" in last and "make room, and give the same command again" in last
    assert (tmp_path / "out" / "parts" / "plain.json").exists() and not [*(tmp_path / "out").rglob("*.partial")]
    monkeypatch.setattr(module, "report_system", None)
    assert command(*arguments) == 0


def test_comet_that_fails(checkpoints, files, tmp_path, capsys, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("comet gave no score: no network")

    monkeypatch.setattr(module, "comet_score", fail)
    monkeypatch.setattr(report_command, "find_comet", lambda command: command)
    assert command([checkpoints["plain"]], files, tmp_path / "out", "--no_speed", "--comet", "comet") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("error: comet gave no score: no network; leave out --comet to go on without it")


def test_multilingual_checkpoints_translate_into_the_language_of_the_test_set(multilingual, tmp_path, capsys):
    run = multilingual("nllb")
    for name, texts in (("test.eng_Latn", SOURCES), ("test.deu_Latn", TARGETS), ("test.fr", TARGETS)):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")

    def report(reference):
        files = ["--source", str(tmp_path / "test.eng_Latn"), "--reference", str(tmp_path / reference)]
        options = ["--output", str(tmp_path / "report"), "--num_beams", "1", "--no_speed"]
        return main(["report", str(run), *files, *options]), capsys.readouterr().err

    status, message = report("test.fr")
    assert status and "'fr'" in message and "fra_Latn" in message
    assert report("test.deu_Latn")[0] == 0
    made = (tmp_path / "report" / "translations" / f"{run.name}.txt").read_text(encoding="utf-8").splitlines()
    model, tokenizer = module.load(str(run))
    languages = set_languages(tokenizer, "eng_Latn", "deu_Latn")
    assert made == translate(model, tokenizer, SOURCES, num_beams=1, **languages)
    other = set_languages(tokenizer, "eng_Latn", "fra_Latn")
    assert made != translate(model, tokenizer, SOURCES, num_beams=1, **other)
