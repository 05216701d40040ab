"""Studies whose runs are jobs: of submitit's local executor, and of programs that stand for Slurm's."""

import json
import os
import signal
import sys
import threading
from pathlib import Path

import psutil
import pytest
import submitit
from submitit.slurm.slurm import SlurmExecutor, SlurmInfoWatcher
from test_study_runs import order, states, wait_for

import hf_capsule_mt.studies.cluster as cluster
from hf_capsule_mt.studies.command import main

# They keep a job's script, state and process in $SLURM_STAND_IN; `busy` keeps jobs in the queue.
PROGRAMS = {
    "sbatch": """
[ -e "$SLURM_STAND_IN/refuse" ] && { echo "sbatch: error: invalid partition specified" >&2; exit 1; }
export SLURM_JOB_ID=$((10 + $(ls "$SLURM_STAND_IN" | grep -c script)))
job=$SLURM_STAND_IN/$SLURM_JOB_ID
cp "$1" $job.script
echo PENDING > $job.state
(while [ -e "$SLURM_STAND_IN/busy" ]; do sleep 0.02; done
 while :; do
   echo RUNNING > $job.state
   bash $job.script
   [ -e $job.requeue ] || break
   rm $job.requeue
 done
 [ -e $job.killed ] && echo OUT_OF_MEMORY > $job.state || echo COMPLETED > $job.state
) > /dev/null 2>&1 &
echo "Submitted batch job $SLURM_JOB_ID"
""",
    "srun": """
while [[ $1 == --* ]]; do
  case $1 in
    --output) out=$2; shift 2;;
    --error) err=$2; shift 2;;
    *) shift;;
  esac
done
out=${out//%j/$SLURM_JOB_ID}; err=${err//%j/$SLURM_JOB_ID}
echo $$ > $SLURM_STAND_IN/$SLURM_JOB_ID.pid
exec "$@" >> "${out//%t/0}" 2>> "${err//%t/0}"
""",
    "sacct": """
echo "JobID|State|NodeList"
for file in $SLURM_STAND_IN/*.state; do echo "$(basename $file .state)|$(cat $file)|here"; done
""",
    "scontrol": "touch $SLURM_STAND_IN/$2.requeue\n",
}
SLURM = ["--launcher", "slurm", "--slurm", "time=1:00:00", "partition=gpu", "cpus_per_task=2"]


@pytest.fixture
def local(monkeypatch, stand_in):
    """Jobs are those of submitit's local executor, of stand-ins for `train`."""
    monkeypatch.setattr(cluster, "CLUSTER", "local")
    monkeypatch.setattr(cluster, "POLL", 0.05)
    return stand_in


@pytest.fixture
def slurm(monkeypatch, stand_in, tmp_path):
    """The folder of the programs that stand for Slurm's."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/bash\n{text.lstrip()}")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_STAND_IN", str(folder))
    monkeypatch.setattr(submitit.SlurmJob, "watcher", SlurmInfoWatcher())
    monkeypatch.setattr(submitit.SlurmJob, "_results_timeout_s", 0)
    monkeypatch.setattr(cluster, "POLL", 0.05)
    monkeypatch.setattr(cluster, "CHECK", 0.2)
    return folder


def held(tmp_path: Path, *names: str) -> bool:
    paths = [tmp_path / "runs" / name / "seed-1" / "steps" for name in names]
    return all(path.exists() and len(path.read_text()) == 3 for path in paths)


def in_background(condition, then) -> threading.Thread:
    thread = threading.Thread(target=wait_for, args=(condition, then))
    thread.start()
    return thread


def test_runs_are_jobs_and_failing_ones_are_recorded(write_study, local, tmp_path, capsys):
    (local / "fail-linear").touch()
    study = str(write_study(seeds=[1]))
    assert main(["run", study, *SLURM]) == 1
    assert states(tmp_path) == {"plain-1": "finished", "linear-1": "failed"}
    # threads of a job
    assert {line.split()[1] for line in (local / "order").read_text().splitlines()} == {"2"}
    log = tmp_path / "runs" / "linear" / "seed-1.log"
    assert "weights are not finite" in log.read_text()
    error = capsys.readouterr().err
    assert "as jobs of Slurm, 2 at a time" in error and "[0/2] plain, seed 1: waiting (job " in error
    assert "plain, seed 1: finished 12.5" in error and f": status 1); see {log}" in error
    (local / "fail-linear").unlink()
    assert main(["run", study, *SLURM]) == 0
    assert sorted(order(local)) == ["linear-1", "linear-1", "plain-1"]
    assert set(json.loads((tmp_path / "runs" / "jobs.json").read_text())) == {"plain/seed-1", "linear/seed-1"}


def test_jobs_outlive_the_command_and_are_taken_up_again(write_study, slurm, stand_in, tmp_path, capsys):
    (stand_in / "hold").touch()
    study = str(write_study(seeds=[1]))
    stopper = in_background(lambda: held(tmp_path, "plain", "linear"), lambda: os.kill(os.getpid(), signal.SIGINT))
    assert main(["run", study, *SLURM]) == 130
    stopper.join()
    error = capsys.readouterr().err
    assert "to end them: scancel 10 11" in error and "the same command takes them up again" in error
    (stand_in / "hold").unlink()
    assert main(["run", study, *SLURM]) == 0
    assert sorted(order(stand_in)) == ["linear-1", "plain-1"] and not (slurm / "12.script").exists()
    assert set(states(tmp_path).values()) == {"finished"}
    script = (slurm / "10.script").read_text()
    for option in ("--partition=gpu", "--time=60", "--cpus-per-task=2", "--nodes=1", "--signal=USR2@90"):
        assert f"#SBATCH {option}" in script
    assert " --cpus-per-task=2 " in script.split("srun")[1]


def test_jobs_that_end_while_they_are_taken_up_are_not_submitted_again(
    write_study, slurm, stand_in, tmp_path, monkeypatch
):
    (stand_in / "hold").touch()
    study = str(write_study(seeds=[1]))
    stopper = in_background(lambda: held(tmp_path, "plain", "linear"), lambda: os.kill(os.getpid(), signal.SIGINT))
    assert main(["run", study, *SLURM]) == 130
    stopper.join()
    start = cluster.Cluster.start

    def late(self, run):
        (stand_in / "hold").unlink(missing_ok=True)
        jobs = [slurm / "10.state", slurm / "11.state"]
        wait_for(lambda: {path.read_text() for path in jobs} == {"COMPLETED\n"}, lambda: None)
        start(self, run)

    monkeypatch.setattr(cluster.Cluster, "start", late)
    assert main(["run", study, *SLURM]) == 0
    assert set(states(tmp_path).values()) == {"finished"} and not (slurm / "12.script").exists()


def test_queued_jobs_are_not_submitted_twice(write_study, slurm, stand_in, tmp_path):
    (slurm / "busy").touch()
    study = str(write_study(seeds=[1]))
    stopper = in_background((slurm / "11.state").exists, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert main(["run", study, *SLURM]) == 130
    stopper.join()
    assert set(states(tmp_path).values()) == {"waiting"} and not order(stand_in)
    (slurm / "busy").unlink()
    assert main(["run", study, *SLURM]) == 0
    assert len(order(stand_in)) == 2 and not (slurm / "12.script").exists()


def test_a_job_whose_time_is_up_goes_on_from_its_checkpoint(write_study, slurm, stand_in, tmp_path):
    (stand_in / "hold").touch()

    def time_is_up() -> None:
        job = psutil.Process(int((slurm / "10.pid").read_text()))
        commands = job.children()
        os.kill(job.pid, signal.SIGUSR2)
        # not before: it would go on until it is ended
        psutil.wait_procs(commands)
        (stand_in / "hold").unlink()

    thread = in_background(lambda: held(tmp_path, "plain"), time_is_up)
    assert main(["run", str(write_study(systems={"plain": {}}, seeds=[1])), *SLURM]) == 0
    thread.join()
    assert (tmp_path / "runs" / "plain" / "seed-1.log").read_text() == "from step 0\nfrom step 3\n"
    assert not (slurm / "11.script").exists()


def test_a_job_that_slurm_ends_is_recorded_and_tried_again(write_study, slurm, stand_in, tmp_path, capsys):
    (stand_in / "hold").touch()

    def kill() -> None:
        (slurm / "10.killed").touch()
        process = psutil.Process(int((slurm / "10.pid").read_text()))
        for ended in (process, *process.children()):
            ended.kill()
        (stand_in / "hold").unlink()

    thread = in_background(lambda: held(tmp_path, "plain"), kill)
    study = str(write_study(systems={"plain": {}}, seeds=[1]))
    assert main(["run", study, *SLURM]) == 1
    thread.join()
    assert "plain, seed 1: failed (job 10: OUT_OF_MEMORY; see " in capsys.readouterr().err
    assert main(["run", study, *SLURM]) == 0
    assert (slurm / "11.script").exists()


def test_what_slurm_does_not_take_is_one_line(write_study, slurm, stand_in, capsys):
    (slurm / "refuse").touch()
    assert main(["run", str(write_study()), *SLURM]) == 2
    error = capsys.readouterr().err.splitlines()
    assert "slurm does not take the job of plain, seed 1: sbatch: error: invalid partition" in error[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["partition=gpu"], "say how long a job may take, such as --slurm time=", id="no time"),
        pytest.param(["time=1", "gpus=2"], "--slurm gpus=2: give KEY=VALUE with one of time, nodes,", id="unknown"),
        pytest.param(["time=1", "nodes=0"], "nodes must be a whole number of at least 1", id="no node"),
        pytest.param(["time=soon"], "time=soon: give minutes, hours:minutes:seconds, or days-hours", id="time"),
        pytest.param(["time=0"], "a job needs some time", id="no time at all"),
        pytest.param(["time=1", "time=2"], "time is given twice", id="twice"),
        pytest.param(["time"], "--slurm time: give KEY=VALUE", id="no value"),
        pytest.param(["time=1"], "there is no srun here", id="no Slurm"),
    ],
)
def test_wrong_options_are_one_line_before_any_work(
    write_study, stand_in, tmp_path, monkeypatch, capsys, words, message
):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["run", str(write_study()), "--launcher", "slurm", "--slurm", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "runs" / "study.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--slurm", "time=1"], "--slurm has no effect without --launcher slurm"),
        ([*SLURM, "--threads", "2"], "--threads is for runs on this machine"),
    ],
)
def test_options_of_the_other_launcher_are_refused(write_study, stand_in, capsys, words, message):
    assert main(["run", str(write_study()), *words]) == 2
    assert message in capsys.readouterr().err


def test_without_submitit_the_command_says_how_to_get_it(write_study, stand_in, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert main(["run", str(write_study()), *SLURM]) == 2
    error = capsys.readouterr().err
    assert "pip install 'hf_capsule_mt[slurm]'" in error and error.count("\n") == 1


def test_options_are_known_to_submitit_and_times_are_those_of_sbatch():
    assert {*cluster.NUMBERS, *cluster.TEXTS, "time"} <= SlurmExecutor._valid_parameters()
    times = {"90": 90, "1:30": 2, "2:00:00": 120, "1-0": 1440, "1-12:30": 2190, "0-0:1:1": 2}
    assert {text: cluster.minutes(text) for text in times} == times
    assert cluster.read_options(["time=5", "exclusive=true", "nodes=2"]) == {"time": 5, "exclusive": True, "nodes": 2}


def test_several_nodes_meet_at_the_first_one():
    command = cluster.distributed(["python", "-m", "hf_capsule_mt", "train", "recipe"], 2, 4, "node1", "40017")
    assert command == [
        *("python", "-m", "torch.distributed.run", "--nproc_per_node=4", "--nnodes=2", "--rdzv_backend=c10d"),
        *("--rdzv_endpoint=node1:20017", "--rdzv_id=40017", "-m", "hf_capsule_mt", "train", "recipe"),
    ]


@pytest.mark.slow
def test_a_run_of_two_processes_and_its_further_test_set(write_study, monkeypatch, tmp_path):
    monkeypatch.setattr(cluster, "CLUSTER", "local")
    study = write_study(systems={"plain": {}}, seeds=[1], test_sets={"test": None, "other": "other"})
    assert main(["run", str(study), "--launcher", "slurm", "--slurm", "time=10", "gpus_per_node=2"]) == 0
    folder = tmp_path / "runs" / "plain" / "seed-1"
    results = json.loads((folder / "results.json").read_text())
    assert results["processes"] == 2 and results["threads"] == 1 and results["steps"] == 6
    assert len((folder / "translations" / "study.other.de").read_text().splitlines()) == 7
