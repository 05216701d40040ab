"""Tables of docs/reliability.md, from the record that the tests in tests/reliability write."""

from __future__ import annotations

from typing import Any

# of "kills": what a kill waits for, and its heading
KINDS = {"file_events": "at file events", "moments": "at random moments", "requests": "at requests to the Hub"}


def kills_table(part: dict[str, Any] | None) -> str:
    """Kills by command and kind, and how many of them were not made good by the same command."""
    if not part:
        return "not run"
    lines = [
        "| command | " + " | ".join(KINDS.values()) + " | files compared | not as without a kill |",
        "|---" * 6 + "|",
    ]
    totals = dict.fromkeys([*KINDS, "failed"], 0)
    for name, row in part["figures"].items():
        cells = [f"{row[kind]:,}" if row.get(kind) else "-" for kind in KINDS]
        lines.append(f"| {name} | {' | '.join(cells)} | {row['files_compared']} | {row['failed']} |")
        totals = {key: count + row.get(key, 0) for key, count in totals.items()}
    cells = [f"{totals[kind]:,}" for kind in KINDS]
    lines.append(f"| together | {' | '.join(cells)} | | {totals['failed']} |")
    return "\n".join([*lines, "", conditions(part)])


def full_disk_table(part: dict[str, Any] | None) -> str:
    """Full disks by command."""
    if not part:
        return "not run"
    lines = ["| command | times without room | not as promised |", "|---|---|---|"]
    lines += [f"| {name} | {row['limits']} | {row['failed']} |" for name, row in part["figures"].items()]
    return "\n".join([*lines, "", conditions(part)])


def properties_table(part: dict[str, Any] | None) -> str:
    """Random configurations, recipes and inputs; a record has only those that held."""
    if not part:
        return "not run"
    lines = ["| what | tried | refused with a message |", "|---|---|---|"]
    for name, row in part["figures"].items():
        lines.append(f"| {cell(name)} | {row['tried']:,} | {row.get('refused', 0):,} |")
    return "\n".join([*lines, "", conditions(part)])


def numerics_table(part: dict[str, Any] | None) -> str:
    """Extreme numbers by function and type."""
    if not part:
        return "not run"
    figures = part["figures"]
    types = sorted({name.split(", ")[1] for name in figures}, reverse=True)
    lines = ["| function | " + " | ".join(types) + " |", "|---" * (len(types) + 1) + "|"]
    for function in sorted({name.split(", ")[0] for name in figures}):
        rows = [figures.get(f"{function}, {kind}") for kind in types]
        cells = [f"{row['cases']:,} cases, {row['failed']} not finite" if row else "-" for row in rows]
        lines.append(f"| `{function}` | {' | '.join(cells)} |")
    return "\n".join([*lines, "", conditions(part)])


def cell(text: str) -> str:
    """Text that does not end a cell of a table."""
    return text.replace("|", "\\|")


def conditions(part: dict[str, Any]) -> str:
    """Where and when."""
    found = part["environment"]
    versions = ", ".join(f"{name} {found['versions'][name]}" for name in ("hf_capsule_mt", "torch", "transformers"))
    machine = f"{found['machine']} ({found['instruction_set']})"
    return f"{found['date']}, {machine}, Python {found['versions']['python']}, {versions}."
