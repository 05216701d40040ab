"""
A page on this machine on which you type sentences and see how they are translated, and routed, step by step.

    hf-capsule-mt demo runs/gdr
    hf-capsule-mt demo Transformer=runs/baseline GDR=runs/gdr --examples sentences.txt
    hf-capsule-mt demo user/name --port 8080

Prints the address, http://127.0.0.1:PORT. With greedy decoding (beam size 1) the translation grows word by word; the
routing can be stepped through when it is there. Two models are shown side by side, and where their translations differ
is marked. Nothing is loaded from the network, and nothing is sent to it.
"""

from __future__ import annotations

import argparse
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..analysis.named_runs import named_runs
from ..analysis.report import describe
from ..command import run_command
from ..evaluation.checkpoints import is_missing_directory, load_checkpoint
from ..files import read_json, read_lines
from ..models.tokenizer_languages import is_multilingual
from ..trust_arguments import add_trust_argument

PROGRAM = "hf-capsule-mt demo"
MISSING = 'the demonstration needs gradio: pip install "hf_capsule_mt[demo]"'
RESULTS = "results.json"
MAX_EXAMPLES = 24


def find_examples(runs: Sequence[str], given: Path | None) -> list[str]:
    """
    Sentences to choose from: the first of a file, or of the test source that a run has saved; none without either.

    Raises:
        ValueError: the file has no sentences, or is not UTF-8.
        OSError: the file cannot be read.
    """
    files = [given] if given is not None else [path for run in runs for path in _saved_sources(Path(run))]
    if not files:
        return []
    sentences = [line for line in read_lines(files[0]) if line.strip()]
    if not sentences and given is not None:
        raise ValueError(f"{given} has no sentences; name a text file with one a line")
    return sentences[:MAX_EXAMPLES]


def _saved_sources(run: Path) -> list[Path]:
    """The sources of a run's test and validation sets, as `train` saves them."""
    if not (run / RESULTS).is_file():
        return []
    try:
        results = read_json(run / RESULTS)
        language = results["arguments"]["source_lang"]
        # of several pairs of languages, files have the names of the pairs
        pairs = [f"{source}-{target}.{source}" for source, target in results.get("language_pairs", [])]
    except (ValueError, LookupError, TypeError):
        return []
    names = [f"{split}.{name}" for split in ("test", "validation") for name in (language, *pairs)]
    return [path for name in names if (path := run / "translations" / name).is_file()]


def _runs(arguments: argparse.Namespace) -> dict[str, str]:
    """The run of each model by its name."""
    if len(arguments.runs) > 2:
        raise ValueError(f"a page has room for two models, got {len(arguments.runs)}: name one or two")
    found = {}
    for name, runs in named_runs(arguments.runs, arguments.names).items():
        if len(runs) > 1:
            raise ValueError(f"a page shows one run of a model, got {name}={','.join(runs)}: name one of them")
        if is_missing_directory(runs[0]):
            raise ValueError(f"there is no directory {runs[0]}")
        found[name] = runs[0]
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN|NAME=RUN", help="one or two: directories or names on the Hub")
    parser.add_argument("--names", nargs="+", help="what to call the models; the names of their folders")
    parser.add_argument(
        "--examples",
        type=Path,
        metavar="FILE",
        help="text file with sentences to choose from, one a line; the test source that a run has saved if not given",
    )
    for side in ("source", "target"):
        parser.add_argument(
            f"--{side}_lang",
            metavar="CODE",
            help=f"{side} language that multilingual models begin with; the first that one was saved for",
        )
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on (127.0.0.1: this machine alone)")
    parser.add_argument("--port", type=int, help="port to serve on; the first that is free from 7860 on")
    parser.add_argument("--device", help="cpu, cuda, ...; the accelerator if there is one")
    add_trust_argument(parser)
    return parser


def check_address(host: str, port: int | None) -> None:
    """
    Check that a server can listen there, before models are loaded.

    Args:
        host: name or address.
        port: None is any.

    Raises:
        ValueError: it cannot.
    """
    if port is not None and not 0 < port < 2**16:
        raise ValueError(f"{port} is no port; name one from 1 to 65535 with --port")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as listener:
            # as the server will: what the last one left behind is no hindrance
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        place = host if port is None else f"{host}, port {port}"
        raise ValueError(f"cannot listen on {place} ({error.strerror}); name another --host or --port") from None


def _load(runs: Mapping[str, str], arguments: argparse.Namespace) -> list[Any]:
    """The systems, each loaded; see `load_checkpoint` and `System` for the errors."""
    from .translating import System

    systems = []
    asked = (arguments.source_lang, arguments.target_lang)
    for name, run in runs.items():
        model, tokenizer = load_checkpoint(run, device=arguments.device, trust_remote_code=arguments.trust_remote_code)
        languages = asked if is_multilingual(tokenizer) else (None, None)
        try:
            systems.append(System(name, model, tokenizer, describe(model.config), languages))
        except ValueError as error:
            raise ValueError(f"{run}: {error}") from None
    if any(asked) and not any(system.languages for system in systems):
        given = " and ".join(runs.values())
        raise ValueError(f"{given}: of a single pair of languages; leave out --source_lang and --target_lang")
    return systems


def _command(arguments: argparse.Namespace) -> None:
    runs = _runs(arguments)
    if find_spec("gradio") is None:
        raise ImportError(MISSING)
    check_address(arguments.host, arguments.port)
    examples = find_examples(list(runs.values()), arguments.examples)
    systems = _load(runs, arguments)
    # before gradio is imported, which reads it
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    from .app import build, launch

    title = " and ".join(system.name for system in systems)
    _, address, _ = launch(
        build(systems, examples, title),
        server_name=arguments.host,
        server_port=arguments.port,
        prevent_thread_lock=True,
    )
    print(f"{title}: {address} (Ctrl-C ends it)", flush=True)
    try:
        threading.Event().wait()
    finally:
        for system in systems:
            system.close()


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit status."""
    arguments = _parser().parse_args(argv)
    return run_command(PROGRAM, lambda: _command(arguments))
