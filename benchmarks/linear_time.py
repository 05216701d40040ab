"""Time of encoding and of decoding against the source's length: is CapsNMT linear-time, and from where on faster?

    python benchmarks/linear_time.py --plot linear_time.svg \\
        --output hf_capsule_mt/evidence/records/speed/linear_time.json
    python benchmarks/linear_time.py --plot linear_time.svg \\
        --from hf_capsule_mt/evidence/records/speed/linear_time.json   # only draw

Random weights and words, one sentence at a time; every system writes the same number of tokens. Timed apart:

    encoder      of a sentence, with everything that is computed once per source: the source memory, attention keys
    first token  generate's preparation and the first step, in which a Transformer computes its cross-attention's keys
                 and values
    token        each later target token, with generate's own work: the median of the steps, so that what interrupts
                 the process for some of them does not count
    sentence     all of it, with every step as it was

Systems and lengths take turns within a round in a random order, so that drifts of the machine hit all alike and are
not taken for an effect of the length. A slope (least squares over the lengths) or an exponent (the same in logarithms)
is estimated in each round; its 95 % interval is a studentised bootstrap over the rounds. A system is called flat if
the interval of its slope contains 0: then a dependence, if there is one, is below what the run resolves, which is what
the interval says. The operations of a token are counted as well (as in speed.py): they have no noise. Absolute times
are noise between machines: compare ratios.

Run it on a quiet machine: with as many busy processes as cores, PyTorch's threads mostly wait for each other.
"""

import argparse
import itertools
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import GenerationConfig, LogitsProcessor, MarianConfig, MarianMTModel, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from hf_capsule_mt import CapsuleRNNConfig, CapsuleRNNForConditionalGeneration
from hf_capsule_mt.analysis.efficiency import OperationCount
from registry import EOS, PAD
from timing import environment


class System(NamedTuple):
    """A measured system: its name, the fields of its configuration (None: MarianMTModel), and how it is drawn."""

    label: str
    configuration: dict[str, Any] | None
    colour: str
    line: str = "-"


# the paper's base models (Wang et al. 2019, section 4; Vaswani et al. 2017, Table 3)
SIZES = {
    "base": dict(d_model=512, rnn_encoder=4, rnn_decoder=3, transformer=6, heads=8, ffn=2048, vocab_size=32000),
    "tiny": dict(d_model=32, rnn_encoder=2, rnn_decoder=1, transformer=2, heads=2, ffn=64, vocab_size=101),
}
# colours of Okabe and Ito 2008, which colour-blind readers tell apart
SYSTEMS = {
    "transformer": System("Transformer", None, "#000000"),
    "rnmt": System("RNMT (attention)", {"source_memory": "attention"}, "#D55E00"),
    "hybrid": System("hybrid, M = 6", {"source_memory": "hybrid", "num_source_capsules": 6}, "#CC79A7"),
    "simple": System("simple", {"source_memory": "simple"}, "#009E73"),
    "capsnmt_4": System("CapsNMT, M = 4", {"source_memory": "capsule", "num_source_capsules": 4}, "#0072B2", ":"),
    "capsnmt_6": System("CapsNMT, M = 6", {"source_memory": "capsule", "num_source_capsules": 6}, "#0072B2"),
    "capsnmt_8": System("CapsNMT, M = 8", {"source_memory": "capsule", "num_source_capsules": 8}, "#0072B2", "--"),
}
YARDSTICK = "transformer"
LENGTHS = (10, 20, 50, 100, 200, 350, 500, 750, 1000)
# the exponent of the encoder's time is fitted from here on: below, what does not depend on the length is most of it
LONG = 100
# an interval from fewer rounds is too wide to say anything
MIN_ROUNDS = 5
RESAMPLES = 10_000

# milliseconds of every round, by system and length
Samples = dict[str, dict[int, list[float]]]


class Clock(LogitsProcessor):
    """Notes the time at which generate has the logits of each step."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.marks: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.marks.append(time.perf_counter())
        return scores


def build(size: dict[str, int], system: System, longest: int) -> PreTrainedModel:
    """One model with random weights, for sources of up to `longest` words."""
    torch.manual_seed(1)
    special = dict(pad_token_id=PAD, eos_token_id=EOS, forced_eos_token_id=None, decoder_start_token_id=PAD)
    shared = dict(vocab_size=size["vocab_size"], d_model=size["d_model"], **special)
    if system.configuration is not None:
        layers = dict(encoder_layers=size["rnn_encoder"], decoder_layers=size["rnn_decoder"])
        return CapsuleRNNForConditionalGeneration(CapsuleRNNConfig(**shared, **layers, **system.configuration)).eval()
    config = MarianConfig(
        **shared,
        encoder_layers=size["transformer"],
        decoder_layers=size["transformer"],
        encoder_attention_heads=size["heads"],
        decoder_attention_heads=size["heads"],
        encoder_ffn_dim=size["ffn"],
        decoder_ffn_dim=size["ffn"],
        activation_function="relu",
        max_position_embeddings=max(longest, 512),
    )
    return MarianMTModel(config).eval()


def encode(model: PreTrainedModel, source: torch.Tensor) -> BaseModelOutput:
    """source: [1, S]. What generate's encoder pass gives."""
    with torch.no_grad():
        return model.get_encoder()(input_ids=source, attention_mask=torch.ones_like(source), return_dict=True)


def decode(model: PreTrainedModel, encoded: BaseModelOutput, tokens: int, beams: int) -> dict[str, float]:
    """Writes `tokens` tokens. Returns the milliseconds of "first token", of a later "token", and of "all tokens".

    Raises:
        RuntimeError: if generation took another number of steps.
    """
    config = GenerationConfig(
        num_beams=beams,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
        do_sample=False,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
    )
    mask = torch.ones(encoded.last_hidden_state.shape[:2], dtype=torch.long)
    # a copy: beam search writes its expanded tensors into the output that it is given
    encoded = type(encoded)(**encoded)
    clock = Clock()
    model.generate(encoder_outputs=encoded, attention_mask=mask, generation_config=config, logits_processor=[clock])
    if len(clock.marks) != tokens:
        raise RuntimeError(f"{len(clock.marks)} steps for {tokens} tokens: the systems would not do the same work")
    steps = [1000 * (end - start) for start, end in itertools.pairwise([clock.start, *clock.marks])]
    return {"first token": steps[0], "token": statistics.median(steps[1:]), "all tokens": sum(steps)}


def count_operations(model: PreTrainedModel, encoded: BaseModelOutput, beams: int) -> int:
    """Operations of one token: of three tokens, less those of two."""
    totals = []
    for tokens in (2, 3):
        with OperationCount() as count:
            decode(model, encoded, tokens, beams)
        totals.append(count.total)
    return totals[1] - totals[0]


def measure(
    models: dict[str, PreTrainedModel], lengths: list[int], rounds: int, tokens: int, beams: int
) -> tuple[dict[str, Samples], dict[str, dict[str, int]]]:
    """Times the encoder, then decoding, of all systems and lengths in every round.

    Returns:
        the samples of "encoder", "first token", "token" and "sentence", and the operations of a token by system and
        length.
    """
    generator = torch.Generator().manual_seed(2)
    high = next(iter(models.values())).config.vocab_size
    sources = {length: torch.randint(2, high, (1, length), generator=generator) for length in lengths}
    visits = [(length, name) for length in lengths for name in models]
    encoded = {}
    operations: dict[str, dict[str, int]] = {name: {} for name in models}
    for done, (length, name) in enumerate(visits):
        report(f"counting and warm-up {done + 1} of {len(visits)}")
        encoded[length, name] = encode(models[name], sources[length])
        operations[name][str(length)] = count_operations(models[name], encoded[length, name], beams)
    quantities = ("encoder", "first token", "token", "sentence")
    samples: dict[str, Samples] = {
        quantity: {name: {length: [] for length in lengths} for name in models} for quantity in quantities
    }
    order = random.Random(1)
    started = time.perf_counter()
    for done in range(rounds):
        elapsed = time.perf_counter() - started
        left = f", {elapsed / done * (rounds - done) / 60:.1f} minutes left" if done else ""
        report(f"round {done + 1} of {rounds}{left}")
        order.shuffle(visits)
        for length, name in visits:
            start = time.perf_counter()
            encode(models[name], sources[length])
            samples["encoder"][name][length].append(1000 * (time.perf_counter() - start))
        order.shuffle(visits)
        for length, name in visits:
            times = decode(models[name], encoded[length, name], tokens, beams)
            times["sentence"] = samples["encoder"][name][length][-1] + times.pop("all tokens")
            for quantity, value in times.items():
                samples[quantity][name][length].append(value)
    report(f"{rounds} rounds in {(time.perf_counter() - started) / 60:.1f} minutes")
    print(file=sys.stderr)
    return samples, operations


def report(line: str) -> None:
    """Overwrites the progress line."""
    print(f"\r{line:<60}", end="", file=sys.stderr, flush=True)


def bootstrap_interval(values: list[float]) -> list[float]:
    """95 % confidence interval of the mean of independent values, by the studentised bootstrap with a fixed seed.

    Unlike the percentile bootstrap, whose intervals from ten values contain the mean in nine of ten cases only, it
    knows that the spread is estimated as well.
    """
    sample = np.asarray(values)
    root = len(sample) ** 0.5
    mean, error = sample.mean(), sample.std(ddof=1) / root
    draws = np.random.default_rng(3).choice(sample, (RESAMPLES, len(sample)))
    errors = draws.std(axis=1, ddof=1) / root
    # a resample of one value, many times, has no spread to divide by
    usable = errors > 1e-9 * error
    if not usable.any():
        return [float(mean), float(mean)]
    low, high = np.quantile((draws.mean(axis=1) - mean)[usable] / errors[usable], (0.025, 0.975))
    return [float(mean - high * error), float(mean - low * error)]


def trend(x: list[float], rounds: list[list[float]]) -> dict[str, Any]:
    """Least-squares slope over x, estimated in every round: [len(x)] values for each. Its mean and 95 % interval."""
    slopes = np.polyfit(np.asarray(x, dtype=float), np.asarray(rounds).T, 1)[0]
    return {"mean": float(slopes.mean()), "interval": bootstrap_interval(slopes.tolist())}


def by_round(by_length: dict[int, list[float]], lengths: list[int]) -> list[list[float]]:
    """One list of the times at these lengths for every round."""
    return [list(times) for times in zip(*(by_length[length] for length in lengths), strict=True)]


def summarise(samples: dict[str, Samples], name: str, lengths: list[int]) -> dict[str, Any]:
    """Everything that is reported of one system."""
    times: dict[str, dict] = {}
    for quantity, of_systems in samples.items():
        times[quantity] = {}
        for length in lengths:
            ours = of_systems[name][length]
            low, median, high = statistics.quantiles(ours, n=4)
            times[quantity][str(length)] = {"median_ms": median, "quartiles_ms": [low, high]}
            if YARDSTICK in of_systems:
                ratios = [a / b for a, b in zip(ours, of_systems[YARDSTICK][length], strict=True)]
                low, median, high = statistics.quantiles(ratios, n=4)
                times[quantity][str(length)] |= {"ratio": median, "ratio_quartiles": [low, high]}
    slope = trend(lengths, by_round(samples["token"][name], lengths))
    shortest = times["token"][str(lengths[0])]["median_ms"]
    low, high = slope["interval"]
    summary: dict[str, Any] = {
        "times": times,
        "token_slope": {
            # ms per word of the source, times 1,000 for microseconds and 100 for words
            "us_per_100_words": 1e5 * slope["mean"],
            "us_per_100_words_interval": [1e5 * low, 1e5 * high],
            "percent_per_1000_words": 1e5 * slope["mean"] / shortest,
            "percent_per_1000_words_interval": [1e5 * low / shortest, 1e5 * high / shortest],
            "flat": low <= 0 <= high,
        },
    }
    long = [length for length in lengths if length >= LONG]
    if len(long) > 1:
        encoder = by_round(samples["encoder"][name], long)
        exponent = trend(np.log(long).tolist(), np.log(encoder).tolist())
        summary["encoder_growth"] = {
            "lengths": long,
            "exponent": exponent["mean"],
            "exponent_interval": exponent["interval"],
            "ratio_longest_to_shortest": statistics.median(times[-1] / times[0] for times in encoder),
        }
    return summary


def table(record: dict[str, Any]) -> str:
    """The results as a Markdown table."""
    first, last = str(record["lengths"][0]), str(record["lengths"][-1])
    lines = [
        f"| system | parameters | operations per token, S = {first} | S = {last} | ms per token, S = {first} "
        f"| S = {last} | us per 100 words | % per 1,000 words | flat | encoder ms, S = {first} | S = {last} "
        f"| exponent | sentence ms, S = {first} | S = {last} |",
        "|---" * 14 + "|",
    ]
    for name, row in record["results"].items():
        times, slope = row["times"], row["token_slope"]
        cells = [SYSTEMS[name].label, f"{row['parameters'] / 1e6:.1f}M"]
        cells += [f"{row['operations_per_token'][length]:,}" for length in (first, last)]
        cells += [cell(times["token"][length]) for length in (first, last)]
        cells.append(with_interval(slope["us_per_100_words"], slope["us_per_100_words_interval"], 1))
        cells.append(with_interval(slope["percent_per_1000_words"], slope["percent_per_1000_words_interval"], 1))
        cells.append("yes" if slope["flat"] else "no")
        cells += [cell(times["encoder"][length]) for length in (first, last)]
        growth = row.get("encoder_growth")
        cells.append(with_interval(growth["exponent"], growth["exponent_interval"], 2) if growth else "-")
        cells += [cell(times["sentence"][length]) for length in (first, last)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(times: dict[str, Any]) -> str:
    """A median, and its ratio to the yardstick in the same round."""
    ratio = f" ({times['ratio']:.2f}x)" if "ratio" in times else ""
    return f"{times['median_ms']:.3g}{ratio}"


def with_interval(value: float, interval: list[float], digits: int) -> str:
    """An estimate and its interval."""
    return f"{value:.{digits}f} [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"


def draw(record: dict[str, Any], path: Path) -> None:
    """Draws milliseconds per target token, and of the encoder, against the source's length.

    Raises:
        SystemExit: if matplotlib is missing.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise SystemExit("--plot needs matplotlib: pip install 'hf_capsule_mt[plots]'") from error
    matplotlib.use("agg")
    from matplotlib import pyplot

    # text as text, and the same file from the same record
    settings = {"font.size": 10, "svg.fonttype": "none", "svg.hashsalt": "linear_time"}
    with pyplot.rc_context(settings):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained", facecolor="white")
        draw_panel(left, record, "token", "milliseconds per target token")
        left.set_ylim(bottom=0)
        left.set_xlim(left=0)
        draw_panel(right, record, "encoder", "milliseconds of the encoder per sentence")
        right.set(xscale="log", yscale="log")
        for axis in (right.xaxis, right.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:g}")
        right.set_xticks([length for length in record["lengths"] if str(length)[0] in "125"])
        right.minorticks_off()
        for axes in (left, right):
            label_lines(axes)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=150, metadata=metadata)
        pyplot.close(figure)


def draw_panel(axes: Any, record: dict[str, Any], quantity: str, label: str) -> None:
    """Medians as lines, quartiles as bands."""
    lengths = record["lengths"]
    for name, row in record["results"].items():
        system, times = SYSTEMS[name], [row["times"][quantity][str(length)] for length in lengths]
        low, high = zip(*(point["quartiles_ms"] for point in times), strict=True)
        medians = [point["median_ms"] for point in times]
        axes.plot(
            lengths, medians, system.line, color=system.colour, label=system.label, marker="o", markersize=3, lw=1.5
        )
        axes.fill_between(lengths, low, high, color=system.colour, alpha=0.15, lw=0)
    axes.set(xlabel="words of the source", ylabel=label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.5)


def label_lines(axes: Any, gap: float = 0.055) -> None:
    """Writes each line's label to the right of its end, in its colour, and apart from the others.

    Args:
        gap: least distance of two labels, as a share of the panel's height.
    """
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = [
        (to_axes.transform((line.get_xdata()[-1], line.get_ydata()[-1])), index)
        for index, line in enumerate(axes.get_lines())
    ]
    ends.sort(key=lambda end: end[0][1])
    # least squares under the condition on the distances: neighbours that are too near each other become one group
    groups: list[list[float]] = []
    for rank, ((_, y), _) in enumerate(ends):
        groups.append([y - rank * gap])
        while len(groups) > 1 and statistics.mean(groups[-2]) > statistics.mean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    heights = [statistics.mean(group) for group in groups for _ in group]
    heights = [height + rank * gap for rank, height in enumerate(heights)]
    for ((x, y), index), height in zip(ends, heights, strict=True):
        line = axes.get_lines()[index]
        axes.annotate(
            line.get_label(),
            xy=(x, y),
            xytext=(1.06, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=line.get_color(),
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "color": line.get_color(),
                "lw": 0.6,
                "alpha": 0.6,
                "shrinkA": 1,
                "shrinkB": 3,
                "relpos": (0, 0.5),
            },
            annotation_clip=False,
        )


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--vocab-size", type=int, help="instead of the size's own")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS, help="words of the source")
    parser.add_argument("--tokens", type=int, default=32, help="target tokens that every system writes")
    parser.add_argument("--num-beams", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=16, help=f"at least {MIN_ROUNDS}")
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch")
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    parser.add_argument("--plot", type=Path, help="picture of the results: FILE.svg or FILE.png")
    parser.add_argument("--from", dest="record", type=Path, help="read this JSON file and measure nothing")
    arguments = parser.parse_args()
    if arguments.rounds < MIN_ROUNDS:
        parser.error(f"--rounds must be at least {MIN_ROUNDS}: fewer say nothing about the spread of a slope")
    if arguments.tokens < 2:
        parser.error("--tokens must be at least 2: the first is timed apart")
    if len(set(arguments.lengths)) < 2:
        parser.error("--lengths needs two different lengths")
    return arguments


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Builds the systems and measures them. Returns the record."""
    torch.set_num_threads(arguments.threads)
    lengths = sorted(set(arguments.lengths))
    size = SIZES[arguments.size] | ({"vocab_size": arguments.vocab_size} if arguments.vocab_size else {})
    models = {name: build(size, SYSTEMS[name], lengths[-1]) for name in arguments.systems}
    samples, operations = measure(models, lengths, arguments.rounds, arguments.tokens, arguments.num_beams)
    results = {
        name: {
            "parameters": sum(p.numel() for p in model.parameters()),
            "operations_per_token": operations[name],
            **summarise(samples, name, lengths),
        }
        for name, model in models.items()
    }
    return {
        "size": arguments.size,
        **size,
        "lengths": lengths,
        "tokens": arguments.tokens,
        "num_beams": arguments.num_beams,
        "rounds": arguments.rounds,
        "environment": environment(),
        "results": results,
    }


def main() -> None:
    arguments = parse()
    record = json.loads(arguments.record.read_text(encoding="utf-8")) if arguments.record else run(arguments)
    print(table(record))
    if arguments.output:
        arguments.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if arguments.plot:
        draw(record, arguments.plot)


if __name__ == "__main__":
    main()
