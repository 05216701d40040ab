"""
Run a study, systems with several seeds each, and make its table.

    hf-capsule-mt study run STUDY.yaml --jobs 2 --threads 1   train what is not finished
    hf-capsule-mt study run STUDY.yaml --launcher slurm --slurm time=12:00:00 gpus_per_node=1   as jobs
    hf-capsule-mt study table STUDY.yaml                      means, differences, intervals and a figure
    hf-capsule-mt study table record.json --table FOLDER      ... from a record alone

STUDY is a file, or the name of a study that comes with the package, such as grammar or multi30k. `run` may be
interrupted, and goes on where it was when it is given again; what has failed is tried again then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..command import run_command
from ..files import only_writer, read_json

if TYPE_CHECKING:
    from .study_file import Study

PROGRAM = "hf-capsule-mt study"
GOES_ON = {
    "local": "; nothing that is finished is lost, and the same command goes on from the last checkpoints",
    "slurm": "; jobs in the queue go on, and the same command takes them up again",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="run|table")
    run = actions.add_parser("run", help="train what is not finished")
    run.add_argument("study", help="a study file, or the name of one of the package's")
    run.add_argument("--output", type=Path, help="folder of the runs (the study file's)")
    run.add_argument(
        "--launcher", choices=GOES_ON, default="local", help="processes of this machine, or jobs of Slurm"
    )
    run.add_argument("--seeds", type=int, nargs="+", help="of the study, those to run now (all)")
    jobs = "runs at a time (GPUs times --jobs_per_device, or else cores; slurm: all are queued)"
    run.add_argument("--jobs", type=int, help=jobs)
    run.add_argument("--threads", type=int, help="CPU threads of each run (cores divided by jobs)")
    run.add_argument("--jobs_per_device", type=int, help="runs at a time on each GPU (1)")
    options = "of each job: time=12:00:00 partition=gpu gpus_per_node=1 cpus_per_task=4 mem=32G nodes=1 ..."
    run.add_argument("--slurm", nargs="+", default=[], metavar="KEY=VALUE", help=options)
    kept = "folder with results and translations of finished runs: those in it are passed over, further ones are added"
    run.add_argument("--keep", type=Path, metavar="FOLDER", help=kept)
    others = "folders of other studies: their finished runs of systems with the same arguments are taken from there"
    run.add_argument("--reuse", type=Path, nargs="+", default=[], metavar="FOLDER", help=others)
    table = actions.add_parser("table", help="means, differences, intervals and a figure")
    table.add_argument("study", help="a study file, the name of one of the package's, or a record (.json)")
    table.add_argument("--output", type=Path, help="folder of the runs (the study file's)")
    table.add_argument("--keep", type=Path, metavar="FOLDER", help="finished runs of it count, too")
    table.add_argument("--table", type=Path, help="folder to write (table/ in that of the runs)")
    table.add_argument("--draws", type=int, default=2000, help="test sets to draw with replacement (2000)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command line; returns the exit status: 1 if a run of the study has failed."""
    arguments = _parser().parse_args(argv)
    failed: list[bool] = []

    def command() -> None:
        if arguments.action == "run":
            failed.append(not _run(arguments))
        else:
            _table(arguments)

    after = GOES_ON[arguments.launcher] if arguments.action == "run" else ""
    status = run_command(PROGRAM, command, after_interruption=after)
    return status or int(any(failed))


def _run(arguments: argparse.Namespace) -> bool:
    """Whether all runs of the study are finished in the end."""
    from .cluster import Cluster, read_options
    from .keeping import keep, restore, reuse
    from .runner import Display, Machine, carry_out, last_words, plan, share_machine
    from .study_file import find_study, hold_to_record, read_study, resolve_arguments, source_files

    on_cluster = arguments.launcher == "slurm"
    _check_numbers(arguments, on_cluster)
    options = read_options(arguments.slurm) if on_cluster else {}
    study = read_study(find_study(arguments.study), arguments.output)
    _check_seeds(arguments.seeds or [], study)
    resolved = resolve_arguments(study)
    sources = source_files(study, resolved)
    with only_writer(study.output):
        cluster = Cluster(study, options) if on_cluster else None
        hold_to_record(study, resolved)
        if arguments.keep is not None:
            restore(study, resolved, arguments.keep, to_go_on=True)
        reuse(study, resolved, arguments.reuse)
        study = replace(study, seeds=arguments.seeds or study.seeds)
        runs = plan(study, sources, resolved)
        to_do = sum(run.next_command() is not None for run in runs)
        if cluster is not None:
            machine = Machine(arguments.jobs or max(1, to_do), 1)
            where = f"as jobs of Slurm, {machine.jobs} at a time"
        else:
            machine = share_machine(arguments.jobs, arguments.threads, arguments.jobs_per_device or 1, max(1, to_do))
            where = f"{machine.jobs} at a time with {machine.threads} threads each"
        print(f"{study.title}: {to_do} of {len(runs)} runs to do, {where} -> {study.output}", file=sys.stderr)
        display = Display(sys.stderr)
        after_run = (lambda: None) if arguments.keep is None else (lambda: keep(study, resolved, arguments.keep))
        after_run()
        finished = carry_out(study, runs, machine, display, cluster, after_run)
        if to_do == 0 or not display.terminal:
            display.show(runs, machine)
        for words in last_words(runs):
            display.say(words)
        return finished


def _check_seeds(seeds: list[int], study: Study) -> None:
    unknown = [seed for seed in seeds if seed not in study.seeds]
    if unknown:
        named, known = (", ".join(map(str, numbers)) for numbers in (unknown, study.seeds))
        raise ValueError(f"--seeds: {study.path} has no seed {named}, but {known}")
    if len(set(seeds)) < len(seeds):
        raise ValueError("--seeds: a number is given twice")


def _check_numbers(arguments: argparse.Namespace, on_cluster: bool) -> None:
    for name in ("jobs", "threads", "jobs_per_device"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
        if value is not None and on_cluster and name != "jobs":
            raise ValueError(
                f"--{name} is for runs on this machine; with --launcher slurm, give --slurm cpus_per_task=N"
            )
    if arguments.slurm and not on_cluster:
        raise ValueError("--slurm has no effect without --launcher slurm; add that")


def _table(arguments: argparse.Namespace) -> None:
    """Write the tables of a study's finished runs, or those of a record, and print them."""
    from .keeping import restore
    from .record import make_record
    from .study_file import find_study, hold_to_record, read_study, resolve_arguments
    from .tables import check_record, markdown, write_tables

    if arguments.draws < 100:
        raise ValueError(f"--draws must be at least 100, got {arguments.draws}")
    if arguments.study.endswith(".json"):
        record = read_json(Path(arguments.study))
        check_record(record, arguments.study)
        folder = arguments.table or Path(arguments.study).parent
    else:
        study = read_study(find_study(arguments.study), arguments.output)
        resolved = resolve_arguments(study)
        if not study.output.is_dir() and arguments.keep is None:
            raise ValueError(f"there is no folder {study.output} yet; begin with study run")
        hold_to_record(study, resolved)
        if arguments.keep is not None:
            restore(study, resolved, arguments.keep)
        record = make_record(study, resolved, draws=arguments.draws)
        folder = arguments.table or study.output / "table"
    files = write_tables(record, folder)
    print(markdown(record))
    print(f"written: {', '.join(map(str, files))}", file=sys.stderr)
