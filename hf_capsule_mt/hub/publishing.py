"""
A trained run becomes a model on the Hub that needs nothing but transformers.

    hf-capsule-mt publish runs/grammar user/name --card grammar_em_routing --dry_run
    hf-capsule-mt publish runs/grammar user/name --card grammar_em_routing --tag v1.0
    hf-capsule-mt publish runs/grammar user/name     without --card: writes runs/grammar/card.yaml, to be gone over
    hf-capsule-mt publish runs/grammar user/name     ... and again: publishes with it
    hf-capsule-mt publish runs/grammar user/name --onnx    ... and the model for ONNX Runtime beside it, in onnx/
    hf-capsule-mt publish runs/grammar user/name --space user/demo    ... and a page to try it on, as a Space

Writes the folder that is to be published (RUN/hub, or --output): weights as safetensors, configuration, the code of
the model and of the pipeline, tokenizer, generation config, results and translations, and a model card that is
rendered from the run's results and from a file with what a run cannot know. Checks it: licence, languages and scores
are there, nothing is a pickle, a link, a token or a path of this machine, and a process without this package loads it
and translates the samples of the card as they are printed there. Only then does it take the place of an earlier
folder, and is uploaded in one commit: the Hub has all of it or nothing.

The Space is written beside that folder, NAME_space, and checked with it before anything is uploaded; it runs the model
of the commit that was uploaded, and no later one.

A folder that another trainer saved has no results.json; its card says that scores and training are not known.

A multilingual model is shown with the first pair of languages that it was trained for, or that of --source_lang and
--target_lang.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess  # nosec B404
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelCard, SpaceCard
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
from huggingface_hub.utils import validate_repo_id
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..command import run_command
from ..files import whole_folder, write_whole
from ..loading import check_is_no_pickle, from_checkpoint
from ..markup import markdown_text
from ..models.pipeline_translation import TranslationPipeline
from ..models.tokenizer_languages import languages_of
from ..records import find_paths, find_secrets, is_secret, public_record, texts
from ..trust_arguments import add_trust_argument
from . import clean_process
from .cards import (
    CardValues,
    check_card,
    check_results,
    load_values,
    render_card,
    values_names,
)
from .conversion import empty_folder
from .export import export
from .languages import ModelLanguages, run_languages
from .license_file import LICENSE, license_text
from .space import require_gradio, write_space
from .starter import TO_CHECK, VALUES, write_starter

PROGRAM = "hf-capsule-mt publish"
RESULTS = "results.json"
TRANSLATIONS = "translations"
FIGURE = "agreements.png"
CARD = "README.md"
NUM_BEAMS = 5
# formats that may run code when they are loaded
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz", ".h5")
# folder of the exported model, and what in it is numbers, which ONNX Runtime reads as such whatever they begin with
ONNX = "onnx"
NUMBERS = (".onnx", ".onnx_data")


def prepare(
    run: str | Path,
    values: CardValues,
    repo_id: str,
    output: str | Path,
    revision: str = "main",
    *,
    onnx: bool = False,
    languages: ModelLanguages | None = None,
    trust_remote_code: bool = False,
) -> Path:
    """Writes the folder that is to be published.

    Args:
        run: output folder of hf-capsule-mt train, or of another trainer.
        values: what the card says and a run cannot know.
        repo_id: "user/name", which the examples of the card load.
        output: directory that does not exist yet, or is empty.
        revision: tag or branch that the examples of the card load.
        onnx: with the model exported for ONNX Runtime in a folder of its own, see `serving.export`.
        languages: of a multilingual model, from `languages.run_languages`; if not given, the samples are in the first
            pair that it was trained for.
        trust_remote_code: run the code that the run's tokenizer brings, if it needs any.

    Returns:
        The output directory.

    Raises:
        ValueError: if the run is not finished, is not of a capsule model, has links among its parts, is multilingual
            and has no pair of languages, or the values do not fit; with `onnx`, if it cannot be exported.
        ImportError: with `onnx`, if what exports is not installed.
    """
    run, output = Path(run), Path(output)
    validate_repo_id(repo_id)
    record = read_record(run)
    if record is not None:
        check_results(record)
    languages = languages or run_languages(run, trust_remote_code=trust_remote_code)
    if record is None and languages is None and not values.languages:
        raise ValueError(
            f"{run} does not say its languages: add a line such as `languages: [en, de]` to {values.path}"
        )
    scored = _scored_files(record or {"scores": []})
    empty_folder(output)
    model, tokenizer = export(run, output, trust_remote_code=trust_remote_code)
    if record is not None:
        write_whole(output / RESULTS, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    for name in scored:
        if (run / name).is_file():
            (output / TRANSLATIONS).mkdir(exist_ok=True)
            shutil.copyfile(run / name, output / name, follow_symlinks=False)
    if onnx:
        from ..serving.export import export_onnx

        export_onnx(run, output / ONNX, trust_remote_code=trust_remote_code)
    samples = list(zip(values.samples, translate(model, tokenizer, values.samples, languages), strict=True))
    figure = _draw(model, tokenizer, values.samples[0], output / FIGURE, languages)
    record = record or {"parameters": model.num_parameters()}
    shown: dict[str, Any] = {"figure": figure, "revision": revision, "onnx": onnx, "languages": languages}
    card = render_card(repo_id, values, record, model.config.model_type, samples, **shown)
    card.save(output / CARD)
    write_whole(output / LICENSE, license_text(values.license, values.license_name, values.license_link))
    return output


def read_record(run: Path) -> dict[str, Any] | None:
    """
    The record of a finished run as it is published, see `records.public_record`; None of a model without one.

    Raises:
        ValueError: there is neither a record nor a model, the record cannot be read, or one of its parts is a link,
            which may lead to a file that is nobody else's.
    """
    folder = run / TRANSLATIONS
    # Checkpoints are never read, so that they may lie elsewhere.
    parts = [path for path in _listed(run) if not path.name.startswith("checkpoint-")]
    for path in [*parts, *([] if folder.is_symlink() else _listed(folder))]:
        if path.is_symlink():
            raise ValueError(f"{path} is a link, and no link is published: put the file itself there, or remove it")
    if not (run / RESULTS).is_file() and any(run.glob("model*.safetensors")):
        return None
    if not (run / RESULTS).is_file():
        raise ValueError(
            f"{run} has no model.safetensors and no {RESULTS}: it is not the output folder of a finished "
            "hf-capsule-mt train; start or resume the training"
        )
    try:
        results = json.loads((run / RESULTS).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{run / RESULTS} is no JSON: {error}") from None
    if not isinstance(results, dict):
        raise ValueError(f"{run / RESULTS} is not the results.json that hf-capsule-mt train wrote")
    return public_record(results)


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _scored_files(record: dict[str, Any]) -> list[str]:
    """The files of translations that the results name: the only ones that are published."""
    names = [score["file"] for score in record["scores"] if "file" in score]
    for name in names:
        # Neither another folder nor, on another system, one behind a backslash
        if name != f"{TRANSLATIONS}/{Path(name).name}" or "\\" in name:
            raise ValueError(
                f"{RESULTS} names {name!r}, which is no file of {TRANSLATIONS}/: pass what hf-capsule-mt train wrote"
            )
    return names


def translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    languages: ModelLanguages | None = None,
) -> list[str]:
    """Translations by beam search as the pipeline makes them, of the pair that examples are in."""
    translator = TranslationPipeline(model=model, tokenizer=tokenizer, task="translation")
    pair = languages.example if languages else (None, None)
    told = dict(zip(("src_lang", "tgt_lang"), pair, strict=True))
    results = translator(list(sentences), num_beams=NUM_BEAMS, batch_size=len(sentences), **told)
    return [result["translation_text"] for result in results]


def check(folder: str | Path, sentences: Sequence[str], languages: ModelLanguages | None = None) -> None:
    """Checks a folder that is to be published, without the network.

    Args:
        folder: from `prepare`.
        sentences: samples of the card.
        languages: of a multilingual model, from `languages.run_languages`; one that was saved for a single pair does
            without.

    Raises:
        ValueError: names what is missing or wrong in the card, a file that must not be published, or what a process
            without this package cannot do with the folder.
    """
    folder = Path(folder).resolve()
    check_files(folder)
    card = ModelCard.load(folder / CARD)
    check_card(card, scored=(folder / RESULTS).is_file())
    _compare(run_clean(folder, sentences, languages), sentences, card)


def check_space(space: Path, folder: Path, sentences: Sequence[str]) -> None:
    """
    Check the folder of a Space with that of its model, without the network.

    Args:
        space: from `write_space`.
        folder: of the model, which has been checked.
        sentences: samples of the model's card.

    Raises:
        ValueError: a file that must not be published, or what a process without this package cannot do with it.
    """
    check_files(space)
    seen = _run_clean(space.resolve(), sentences, "space", model=str(folder.resolve()))
    _compare(seen, sentences, ModelCard.load(folder / CARD))


def _compare(seen: dict[str, list[str]], sentences: Sequence[str], card: ModelCard) -> None:
    """Translations by the way they were made with those that the card shows."""
    for way, translations in seen.items():
        for sentence, translation in zip(sentences, translations, strict=True):
            if markdown_text(translation) not in card.text:
                raise ValueError(
                    f"without this package, {way} translates {sentence!r} as {translation!r}, which is not what the "
                    "card says; prepare the folder again"
                )


def check_files(folder: Path) -> None:
    """
    Check every file that would be uploaded.

    Raises:
        ValueError: a link, a pickle, a token or private key (names file and line), or a path of this machine in a
            record or a configuration.
    """
    paths = sorted(folder.rglob("*"))
    links = [str(path.relative_to(folder)) for path in paths if path.is_symlink()]
    if links:
        raise ValueError(f"{', '.join(links)}: links must not be published; remove them")
    foreign = [str(path.relative_to(folder)) for path in paths if path.suffix in PICKLES]
    if foreign:
        raise ValueError(
            f"{', '.join(sorted(foreign))} may run code when loaded and must not be published; remove them"
        )
    for path in filter(Path.is_file, paths):
        name = path.relative_to(folder)
        if path.suffix not in NUMBERS:
            check_is_no_pickle(path)
        for number, beginning in find_secrets(_text_lines(path)):
            raise ValueError(
                f"{name}, line {number}, has what looks like a token or a key ({beginning}...): remove it there, and "
                "make it invalid where it is from"
            )
        if path.suffix == ".json" and not path.name.endswith("tokenizer.json"):
            _check_json(path, str(name))


def _text_lines(path: Path) -> Iterator[bytes]:
    """Lines of a file; of weights the header alone, as numbers are no text."""
    with path.open("rb") as stream:
        if path.suffix == ".safetensors":
            yield stream.read(int.from_bytes(stream.read(8), "little"))
        elif path.suffix != ".onnx_data":
            yield from stream


def _check_json(path: Path, name: str) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    if path.name == RESULTS and content != public_record(content):
        raise ValueError(f"{name} has a path of some machine or a secret in it: prepare the folder again")
    found = find_paths("\n".join(texts(content)))
    if found:
        raise ValueError(f"{name} has {found[0]}, a path of some machine: take it out of the run's {name}")


def run_clean(folder: Path, sentences: Sequence[str], languages: ModelLanguages | None = None) -> dict[str, list[str]]:
    """Translations of fresh processes without this package and without the network, by the way they took.

    Raises:
        ValueError: with the last line of their error.
    """
    told = languages.to_tell() if languages else None
    seen = _run_clean(folder, sentences, "transformers", languages=told)
    if (folder / ONNX).is_dir():
        seen |= _run_clean(folder / ONNX, sentences, "onnx", languages=told)
    return seen


def _run_clean(folder: Path, sentences: Sequence[str], way: str, **more: Any) -> dict[str, list[str]]:
    """One such process; see `clean_process`."""
    request = {"way": way, "folder": str(folder), "sentences": list(sentences), "num_beams": NUM_BEAMS, **more}
    with tempfile.TemporaryDirectory() as cache:
        # It has no use for tokens.
        environment = {name: value for name, value in os.environ.items() if not is_secret(name)}
        environment.pop("PYTHONPATH", None)
        environment |= {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": cache, "GRADIO_ANALYTICS_ENABLED": "False"}
        # -I: neither the current folder nor this package's own is on the path. No shell, and no words but our own.
        finished = subprocess.run(  # nosec B603
            [sys.executable, "-I", clean_process.__file__],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            env=environment,
            cwd=cache,
        )
    if finished.returncode != 0:
        reason = finished.stderr.strip().splitlines() or [f"exit status {finished.returncode}"]
        raise ValueError(f"a process without this package cannot load and use {folder}: {reason[-1]}")
    return json.loads(finished.stdout)


def upload(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    tag: str | None = None,
    message: str | None = None,
    repo_type: str = "model",
) -> str:
    """Uploads a folder in one commit; afterwards the repository holds these files and no others.

    An upload that is cut off leaves the repository as it was (an empty one, if it is new), and can be repeated.

    Args:
        folder: from `prepare`.
        repo_id: "user/name"; the repository is made if there is none.
        private: visibility of a new repository; None is the Hub's default.
        revision: branch, made if there is none; None is the main one.
        tag: given to the commit, so that users can pin it.
        message: of the commit.
        repo_type: "model", or "space" for a folder from `write_space`.

    Returns:
        Address of the commit.

    Raises:
        ValueError: if a file must not be published, there is no token, the Hub refuses the card, or the tag exists
            already.
        HfHubHTTPError: if the Hub refuses anything else.
        RuntimeError: if the connection breaks during the upload.
    """
    check_files(Path(folder))
    api = HfApi()
    try:
        api.whoami()
    except LocalTokenNotFoundError:
        raise ValueError("you are not logged in to the Hub: run `hf auth login`, or set HF_TOKEN") from None
    (SpaceCard if repo_type == "space" else ModelCard).load(Path(folder) / CARD).validate()
    sdk = "gradio" if repo_type == "space" else None
    api.create_repo(repo_id, repo_type=repo_type, private=private, exist_ok=True, space_sdk=sdk)
    if tag is not None and tag in {ref.name for ref in api.list_repo_refs(repo_id, repo_type=repo_type).tags}:
        raise ValueError(f"{repo_id} has a tag {tag} already; choose another one")
    if revision is not None:
        api.create_branch(repo_id, branch=revision, repo_type=repo_type, exist_ok=True)
    # not upload_folder, which may split what is large or fails into several commits
    remote = api.list_repo_files(repo_id, revision=revision, repo_type=repo_type)
    message = message or f"Publish the {repo_type}"
    try:
        commit = api.create_commit(
            repo_id,
            _operations(Path(folder), remote),
            revision=revision,
            repo_type=repo_type,
            commit_message=message,
        )
    except HfHubHTTPError:
        raise
    except Exception as error:
        # the exceptions of the HTTP library, which depends on huggingface_hub's version
        raise RuntimeError(f"the upload was cut off, and nothing of it is published; repeat it: {error}") from error
    if tag is not None:
        api.create_tag(repo_id, tag=tag, revision=commit.oid)
    return commit.commit_url


def _operations(folder: Path, remote: Sequence[str]) -> list[CommitOperationAdd | CommitOperationDelete]:
    """What makes a repository with these remote files the same as the folder."""
    local = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    stale = [name for name in remote if name not in local and name != ".gitattributes"]
    added = [CommitOperationAdd(name, str(path)) for name, path in local.items()]
    return [*added, *(CommitOperationDelete(name) for name in stale)]


def _draw(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentence: str,
    path: Path,
    languages: ModelLanguages | None = None,
) -> str | None:
    """Draws the agreements of a sentence, if the model has any; returns the file's name."""
    from ..analysis.agreement_figure import agreement_figure

    try:
        with languages_of(tokenizer, languages.example if languages else None) as to_write:
            drawn = agreement_figure(model, tokenizer, sentence, path, **to_write)
    except ImportError as error:
        print(f"{PROGRAM}: the card has no agreement figure: {error}", file=sys.stderr)
        return None
    return None if drawn is None else drawn.name


def _own_card(
    run: Path,
    record: dict[str, Any] | None,
    languages: ModelLanguages | None,
    *,
    dry_run: bool,
    trust_remote_code: bool,
) -> Path:
    """
    The values file of a run; one is written if there is none.

    Raises:
        ValueError: it was written just now, and nobody has seen what would be published.
    """
    path = run / VALUES
    if path.is_file():
        return path
    write_starter(path, run, record, languages, trust_remote_code=trust_remote_code)
    print(f"written: {path}, the values of the card, with what is known")
    if not dry_run:
        raise ValueError(
            f"nothing is published yet: go over {', '.join(TO_CHECK)} in {path}, and give the same command again; "
            "with --dry_run, it writes the card and uploads nothing"
        )
    return path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="output folder of hf-capsule-mt train")
    parser.add_argument("repo_id", help="user/name on the Hub")
    parser.add_argument(
        "--card",
        help="values of the model card: a YAML file, or the name of one of the package "
        f"({', '.join(values_names())}); RUN/card.yaml if not given. If there is none, it is written from what is "
        "known, and the command ends there, so that you can go over it",
    )
    for side in ("source", "target"):
        parser.add_argument(
            f"--{side}_lang",
            metavar="CODE",
            help=f"{side} language of the samples, for multilingual models (of the first pair that was saved)",
        )
    parser.add_argument("--output", type=Path, help="folder to write; RUN/hub, which is replaced, if not given")
    parser.add_argument(
        "--onnx", action="store_true", help=f"publish the model exported for ONNX Runtime, too, in the folder {ONNX}"
    )
    parser.add_argument(
        "--space", metavar="USER/NAME", help="publish a page to try the model on, too, as this Space (needs gradio)"
    )
    parser.add_argument("--dry_run", action="store_true", help="write and check the folder, upload nothing")
    parser.add_argument("--private", action="store_true", default=None, help="make a new repository private")
    parser.add_argument("--revision", help="branch to upload to; the main one if not given")
    parser.add_argument("--tag", help="name for this version, by which users can pin it")
    parser.add_argument("--message", help="of the commit")
    add_trust_argument(parser)
    return parser


def _command(arguments: argparse.Namespace) -> None:
    output = arguments.output or arguments.run / "hub"
    space = output.with_name(f"{output.name}_space")
    validate_repo_id(arguments.repo_id)
    if arguments.space is not None:
        validate_repo_id(arguments.space)
        require_gradio()
    record = read_record(arguments.run)
    if record is None:
        print(f"{arguments.run} has no {RESULTS}: the card will say that scores and training are not known")
    else:
        check_results(record)
    trust, dry = arguments.trust_remote_code, arguments.dry_run
    languages = run_languages(arguments.run, arguments.source_lang, arguments.target_lang, trust_remote_code=trust)
    own = {"dry_run": dry, "trust_remote_code": trust}
    values = load_values(arguments.card or _own_card(arguments.run, record, languages, **own))
    if arguments.output is not None:
        empty_folder(output)
        if arguments.space is not None:
            empty_folder(space)
    revision = arguments.tag or arguments.revision or "main"
    with whole_folder(output) as folder:
        options = {"onnx": arguments.onnx, "languages": languages, "trust_remote_code": trust}
        prepare(arguments.run, values, arguments.repo_id, folder, revision, **options)
        check(folder, values.samples, languages)
    print(f"written: {output}")
    print("checked: a process without this package loads it and translates the samples as the card says")
    if arguments.onnx:
        print(f"checked: so does one without PyTorch and transformers, with {ONNX}/")
    if arguments.space is not None:
        page = (_description(output), languages.example if languages and languages.is_told else (None, None))
        with whole_folder(space) as folder:
            write_space(folder, arguments.repo_id, revision, values, *page)
            check_space(folder, output, values.samples)
        print(f"written: {space}")
        print("checked: a process without this package makes its page, and translates the samples as the card says")
    if dry:
        return
    address = upload(
        output,
        arguments.repo_id,
        private=arguments.private,
        revision=arguments.revision,
        tag=arguments.tag,
        message=arguments.message,
    )
    print(f"published: {address}")
    if arguments.space is not None:
        commit = address.rsplit("/", 1)[-1]
        write_space(space, arguments.repo_id, commit, values, *page)
        address = upload(space, arguments.space, private=arguments.private, repo_type="space")
        print(f"published: {address}")


def _description(folder: Path) -> str:
    """What is special about a model, for the page of its Space."""
    from ..analysis.report import describe

    return describe(from_checkpoint(AutoConfig, folder))


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit status."""
    arguments = _parser().parse_args(argv)

    def command() -> None:
        try:
            _command(arguments)
        except (RuntimeError, HfHubHTTPError, HFValidationError) as error:
            raise ValueError(str(error)) from error

    return run_command(PROGRAM, command, after_interruption="; the same command begins anew")
