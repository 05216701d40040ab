"""Tables of the benchmarks of speed and memory, from what these recorded."""

from __future__ import annotations

from typing import Any

from .recorded import shown_path
from .systems import JOBS, MEASURED, SUMMARISED

Record = dict[str, Any]

# why something costs more than its operations say, by system and job ("memory" for that of training)
_SMALL_KERNELS = "small kernels, whose launching costs more than their arithmetic"
_MESSAGES = "messages to six capsules in three iterations, and the matrices that make them"
_ELEMENTWISE = (
    "element by element over messages or scores, an operation waits for memory longer than one of a matrix product"
)
REASONS = {
    ("linear", "greedy, 1 sentence"): _SMALL_KERNELS,
    **{(name, "training step"): _ELEMENTWISE for name in MEASURED if name.startswith("rnn_")},
    **{(name, "memory"): _MESSAGES for name in ("rnn_capsule", "rnn_capsule_balanced", "rnn_hybrid")},
}


def speed_table(record: Record | None, memory: Record | None = None) -> str:
    """Every system's time and memory beside its parent's at the base size: records of speed.py."""
    if record is None:
        return "not run"
    results = with_memory(record, memory)
    jobs = list(JOBS)
    lines = ["| system | parent | " + " | ".join([*jobs, "training memory"]) + " |"]
    lines.append("|---" * (len(jobs) + 3) + "|")
    for name, row in results.items():
        if name != row["parent"]:
            cells = [cost(row[job]) if job in row else "-" for job in jobs]
            cells.append(f"{row['memory']['memory_ratio']:.2f}x" if "memory" in row else "-")
            lines.append("| " + " | ".join([MEASURED[name], MEASURED[row["parent"]], *cells]) + " |")
    conditions = speed_conditions(record)
    if memory:
        conditions += f" Memory was measured in runs of its own, threads: {memory['environment']['threads']}."
    return "\n".join([*lines, "", f"{conditions} A dash: not measured at this size.", *_explanations(results)])


def with_memory(record: Record, memory: Record | None) -> Record:
    """What a record of speed.py has measured of every system, with the training memory of another."""
    results: Record = {name: dict(row) for name, row in record["results"].items()}
    for name, row in (memory["results"] if memory else {}).items():
        results.setdefault(name, {"parent": row["parent"]}).setdefault("memory", row["memory"])
    return results


def gpu_table(record: Record | None) -> str:
    """Every system's training step on a GPU beside its parent's: a record of speed.py."""
    if record is None:
        return "not run"
    lines = ["| system | training step |", "|---|---|"]
    for name, row in record["results"].items():
        if name != row["parent"]:
            lines.append(f"| {MEASURED[name]} | {cost(row['training step'])} |")
    rows = record["results"].values()
    turns = {row["training step"]["turns"] for row in rows}
    parents = " or ".join(dict.fromkeys(MEASURED[row["parent"]] for row in rows))
    conditions = (
        f"Time / that of {parents}, in brackets the quartiles of {', '.join(map(str, sorted(turns)))} turns, in "
        f"parentheses operations / its. {record['environment']['machine']}, {_size(record)}, "
        f"{record['tokens']:,} tokens per batch, {record['dtype']}, torch {record['environment']['torch']}. "
        f"Revision {_revisions(record)}."
    )
    return "\n".join([*lines, "", conditions])


def speed_summary(
    record: Record | None, memory: Record | None, serving: Record | None, gpu: Record | None = None
) -> str:
    """What the systems cost beside a plain model, in one number each: records of speed.py and of serving.py."""
    if record is None:
        return "not run"
    results = with_memory(record, memory)
    on_gpu = gpu["results"] if gpu else {}
    columns = ["training step", "training memory", "one sentence, greedy", "16 sentences, beam 5", "training, GPU"]
    lines = [f"| | {' | '.join(columns)} | exported, beside CTranslate2 |", "|---" * (len(columns) + 2) + "|"]
    for name in SUMMARISED:
        row = results.get(name, {})
        train, greedy, beam = (f"{row[job]['time_ratio']:.2f}x" if job in row else "-" for job in JOBS)
        peak = f"{row['memory']['memory_ratio']:.2f}x" if "memory" in row else "-"
        step = f"{on_gpu[name]['training step']['time_ratio']:.2f}x" if name in on_gpu else "-"
        cells = [MEASURED[name], train, peak, greedy, beam, step, exported_range(serving, name)]
        lines.append(f"| {' | '.join(cells)} |")
    alone = memory["environment"]["threads"] if memory else None
    conditions = (
        f"Time and memory / those of transformers' own Marian model of the same size, d {record['d_model']}, "
        f"{record['layers']} + {record['layers']} layers, V {record['vocab_size']:,}: medians on a CPU, threads: "
        f"{record['environment']['threads']}{f' (memory: {alone})' if memory else ''}, {record['dtype']}."
    )
    if gpu is not None:
        conditions += f" GPU: a training step on {gpu['environment']['machine']}, {gpu['dtype']}."
    if serving is not None:
        conditions += (
            " Last column: the time of the model exported to ONNX Runtime / CTranslate2's of the plain model, both in "
            f"float32, V {serving['size']['vocab_size']:,}, threads: 1; the lowest and the highest of greedy search "
            "and beam 5, one and 16 sentences at a time."
        )
    return "\n".join([*lines, "", conditions])


def exported_range(serving: Record | None, name: str) -> str:
    """The lowest and the highest of an exported system's times with one thread, as ratios to CTranslate2's."""
    cases = (serving or {"results": {}})["results"].items()
    found = [
        rows[f"onnx {name}"]["time_ratio"]
        for case, rows in cases
        if case.endswith(", threads: 1") and f"onnx {name}" in rows
    ]
    return f"{min(found):.2f}x to {max(found):.2f}x" if found else "-"


def _explanations(results: Record) -> list[str]:
    """Why systems cost more than their operations say, where that is known."""
    causes: dict[str, dict[str, None]] = {}
    for (name, job), reason in REASONS.items():
        cell = results.get(name, {}).get(job)
        if cell and cell.get("time_over_operations", cell.get("memory_ratio", 0)) > 1:
            shown = "training memory" if job == "memory" else job
            causes.setdefault(f"{reason} ({shown})", {})[MEASURED[name]] = None
    lines = [f"- {'; '.join(names)}: {cause}." for cause, names in causes.items()]
    return ["", "What takes longer than its operations do in the parent, or more memory:", "", *lines] if lines else []


def allocator_table(record: Record | None, kept: Record | None) -> str:
    """Training as a process has it, and where the C library keeps its pages; two records of speed.py."""
    if record is None or kept is None:
        return "not run"
    lines = ["| system | training step | pages kept |", "|---|---|---|"]
    for name, row in kept["results"].items():
        if name != row["parent"]:
            cells = [cost(content["results"][name]["training step"]) for content in (record, kept)]
            lines.append("| " + " | ".join([MEASURED[name], *cells]) + " |")
    settings = " ".join(f"{name}={value}" for name, value in kept["environment"].items() if name.startswith("MALLOC_"))
    parent = MEASURED["rnn_simple"]
    return "\n".join([*lines, "", f"Parent: {parent}, under the same allocator. Pages kept: `{settings}`."])


def cost(cell: Record) -> str:
    """Time / parent's with its quartiles, and operations / parent's."""
    return f"{spread(cell)} ({cell['operation_ratio']:.2f}x)"


def speed_conditions(record: Record) -> str:
    """What a record of speed.py was measured on."""
    environment = record["environment"]
    cells = [cell for row in record["results"].values() for cell in row.values() if isinstance(cell, dict)]
    turns = sorted({cell["turns"] for cell in cells if "turns" in cell})
    source = f"the first 16 sentences of {record['source']}" if record["source"] else "16 sentences of equal length"
    return (
        f"Time / parent's, in brackets the quartiles of {turns[0]} to {turns[-1]} turns, in parentheses operations / "
        f"parent's. Memory / parent's. {_size(record)}, {record['tokens']:,} tokens per batch, {record['dtype']}, "
        f"{environment['threads']} threads, torch {environment['torch']}; decoding: lengths of {source}, random "
        f"words. Recurrent systems have no plain parent in transformers. Revision {_revisions(record)}."
    )


def _size(record: Record) -> str:
    return (
        f"d {record['d_model']}, {record['layers']} + {record['layers']} layers (recurrent "
        f"{record['rnn_encoder_layers']} + {record['rnn_decoder_layers']}), V {record['vocab_size']:,}, "
        f"N = {record['d_model']}, R = 3"
    )


def _revisions(record: Record) -> str:
    return ", ".join(
        f"`{tests['revision']}`" + (" with changes" if tests["dirty"] else "") for tests in record["tests"].values()
    )


def operators_table(record: Record | None) -> str:
    """Time of the fast paths beside the plain functions, from a record of speed.py."""
    if record is None:
        return "not run"
    lines = ["| function | shapes | time, forward and backward |", "|---|---|---|"]
    for name, cell in record["operators"].items():
        shapes = ", ".join(f"[{', '.join(map(str, shape))}]" for shape in cell["shapes"])
        low, high = cell["time_ratio_quartiles"]
        lines.append(f"| `{name}` | {shapes} | {cell['time_ratio']:.2f}x [{low:.2f}, {high:.2f}] |")
    return "\n".join(lines)


def revisions_table(record: Record | None) -> str:
    """Time of every system as a ratio to an older revision's, from a record of revisions.py."""
    if record is None:
        return "not run"
    jobs = list(next(iter(record["results"].values())))
    lines = ["| system | " + " | ".join(jobs) + " |", "|---" * (len(jobs) + 1) + "|"]
    for name, row in record["results"].items():
        lines.append(f"| {MEASURED[name]} | " + " | ".join(spread(row[job]) for job in jobs) + " |")
    threads = record["environment"]["threads"]
    return "\n".join(
        [
            *lines,
            "",
            f"New / old (revision `{record['old'][:12]}`), {record['size']} size, threads: {threads}; "
            f"`{shown_path('speed/revisions_yardstick.json')}`.",
        ]
    )


def spread(cell: Record) -> str:
    """A ratio of times and its quartiles."""
    low, high = cell["time_ratio_quartiles"]
    return f"{cell['time_ratio']:.2f}x [{low:.2f}, {high:.2f}]"


def loader_table(record: Record | None) -> str:
    """How fast text is loaded with and without the model, from a record of loader.py."""
    if record is None:
        return "not run"
    result = record["result"]
    training, alone, waiting = (result[name]["median"] for name in ("training", "loader", "waiting"))
    rows = {
        "training": f"{training:,.0f} target tokens/s, {waiting:.2%} of the time waiting for a batch",
        "the loader alone": f"{alone:,.0f} target tokens/s, "
        f"{result['loader_over_training']['median']:,.0f} times as many",
        "with `DataCollatorForSeq2Seq`": f"{result['loader_seq2seq_over_training']['median']:,.0f} times as many",
        f"encoding {result['pairs']:,} pairs": f"{result['encoding_seconds']:.1f} s; "
        f"from the cache {result['cached_over_encoding']:.1%} of it",
    }
    lines = ["| | |", "|---|---|", *(f"| {what} | {figure} |" for what, figure in rows.items())]
    conditions = f"`{record['recipe']}`, {record['rounds']} rounds of {record['updates']} updates"
    return "\n".join([*lines, "", f"{conditions}, threads: {record['environment']['threads']}."])


def cold_start_table(record: Record | None) -> str:
    """From the start of a process to its first translation, from a record of cold_start.py."""
    if record is None:
        return "not run"
    lines = ["| translator | seconds |", "|---|---|"]
    for name, row in record["results"].items():
        low, high = row["seconds_quartiles"]
        lines.append(f"| {name} | {row['seconds']:.2f} [{low:.2f}, {high:.2f}] |")
    environment = record["environment"]
    conditions = (
        f"Medians and quartiles of {record['turns']} turns, `{record['run']}`, threads: {environment['threads']}, "
        f"torch {environment['torch']}, onnxruntime {environment['onnxruntime']}"
    )
    return "\n".join([*lines, "", f"{conditions}."])


def large_memory_table(record: Record | None) -> str:
    """Memory of a training step at the size of NLLB-600M, from a record of nllb_memory.py."""
    if record is None:
        return "not run"
    lines = ["| system | parameters, million | trained | peak, GiB |", "|---|---:|---:|---:|"]
    for name, row in record["systems"].items():
        total, trained = (f"{row[key] / 1e6:.0f}" for key in ("parameters", "trained_parameters"))
        lines.append(f"| {name} | {total} | {trained} | {row['peak_bytes'] / 2**30:.1f} |")
    checkpointing = ", gradient checkpointing" if record["gradient_checkpointing"] else ""
    environment = record["environment"]
    conditions = (
        f"{record['dtype']}, {record['optimizer']}{checkpointing}, {record['sentences']} sentences of "
        f"{record['length']} tokens, on a CPU, torch {environment['torch']}, "
        f"transformers {environment['transformers']}"
    )
    return "\n".join([*lines, "", f"{conditions}."])


def comparison_table(records: list[Record | None]) -> str:
    """`translate` beside CTranslate2, from records of ctranslate2_ratio.py."""
    found = [record for record in records if record is not None]
    if not found:
        return "not run"
    lines = ["| model | translator | decoding | time / CTranslate2's | identical |", "|---|---|---|---|---|"]
    for record in found:
        for decoding, rows in record["results"].items():
            for name, row in rows.items():
                shown = "1" if name == "CTranslate2" else spread(row)
                lines.append(f"| {record['model']} | {name} | {decoding} | {shown} | {row['identical']:.1%} |")
    conditions = "; ".join(
        f"{record['model']}: {record['sentences']} sentences of {record['source']}, {record['rounds']} rounds, "
        f"threads: {record['environment']['threads']}, CTranslate2 {record['environment']['ctranslate2']}"
        for record in found
    )
    return "\n".join([*lines, "", f"{conditions}."])


def serving_table(records: list[Record | None]) -> str:
    """Exported models beside CTranslate2, from records of serving.py."""
    found = [record for record in records if record is not None]
    if not found:
        return "not run"
    blocks = []
    for record in found:
        by_threads: dict[str, dict[str, Any]] = {}
        for case, rows in record["results"].items():
            work, threads = case.split(", threads: ")
            by_threads.setdefault(threads, {})[work] = rows
        size = record["size"]
        for threads, cases in by_threads.items():
            lines = [
                f"d {size['d_model']}, {size['layers']} + {size['layers']} layers, V {size['vocab_size']:,}, "
                f"threads: {threads}",
                "",
                "| model | engine | operations: greedy, beams | " + " | ".join(cases) + " |",
                "|---" * (len(cases) + 3) + "|",
            ]
            for name in next(iter(cases.values())):
                engine, _, system = name.rpartition(" ")
                cells = [f"{rows[name]['time_ratio']:.2f}" if name in rows else "-" for rows in cases.values()]
                lines.append("| " + " | ".join([*_served(name, engine, system, record["operations"]), *cells]) + " |")
            blocks.append("\n".join(lines))
    record = found[-1]
    versions = ", ".join(f"{name} {record['environment'][name]}" for name in ("ctranslate2", "onnxruntime", "torch"))
    path = shown_path(f"speed/serving_{record['size']['name']}.json")
    note = (
        f"Time / CTranslate2's in float32, medians of {_turns(found)} turns; {record['steps']} new tokens of "
        f"sentences as long as those of {record['source']}, text to text. Operations are those of the system's "
        f"decoding by the plain model's. {versions}. `{path}`"
    )
    return "\n\n".join([*blocks, f"{note}."])


def _turns(records: list[Record]) -> str:
    """The fewest and the most turns of a case."""
    turns = {row["turns"] for record in records for rows in record["results"].values() for row in rows.values()}
    return f"{min(turns)} to {max(turns)}" if len(turns) > 1 else str(*turns)


def _served(name: str, engine: str, system: str, operations: dict[str, dict[str, float]]) -> list[str]:
    """Model, engine and operations of a row."""
    if name.startswith("CTranslate2"):
        return ["plain Marian", name.replace(",", ""), "1, 1"]
    engines = {"onnx": "ONNX Runtime", "onnx int8": "ONNX Runtime int8", "pytorch": "PyTorch"}
    counted = operations.get(system, {"greedy": 1.0, "beam": 1.0})
    shown = "plain Marian" if system in ("none", "marian") else MEASURED[system]
    return [shown, engines[engine], f"{counted['greedy']:.2f}, {counted['beam']:.2f}"]
