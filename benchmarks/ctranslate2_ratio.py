"""Time to translate a file with `translate`, as a ratio to CTranslate2's, with the same plain Marian model.

    pip install ctranslate2
    python benchmarks/ctranslate2_ratio.py runs/multi30k/baseline --source DATA/multi30k/test2016.en
    python benchmarks/ctranslate2_ratio.py --size base --source DATA/newstest/newstest2014.en-de.en --sentences 64
    ... --output hf_capsule_mt/evidence/records/speed/ctranslate2_multi30k.json

A trained checkpoint is plain Marian, or this package's with nothing added to it. A size builds random weights, which
tell nothing about translations: they read random words, as many as each line has, and make --steps tokens of them.

The translators take turns, text to text, tokenization included: same sentences, beams, padded tokens in a batch, most
new tokens and threads, float32. A ratio is the median over rounds of (time / CTranslate2's time in the same round),
its spread the quartiles. `identical` is the share of sentences that are translated as CTranslate2 translates them. It
is below 1 with beams, where the two libraries end a search and count a length differently. Rows beside the two:
CTranslate2 with weights of 8 bits, as it is often used, and transformers' static cache, alone and (greedy decoding, as
transformers compiles no beam search) compiled.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoTokenizer,
    CompileConfig,
    MarianMTModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

import registry
from hf_capsule_mt.evaluation.translate import translate
from hf_capsule_mt.files import read_lines
from hf_capsule_mt.hub.conversion import to_plain
from hf_capsule_mt.loading import from_checkpoint
from registry import SIZES
from timing import environment, ratios, rotated, write_record

try:
    import ctranslate2
    from ctranslate2.converters import transformers as converters
except ImportError:
    sys.exit("this benchmark needs CTranslate2: pip install ctranslate2")

LENGTH = 512
PAD, EOS, UNK = SPECIAL = ("<pad>", "</s>", "<unk>")
REFERENCE = "CTranslate2"
# transformers compiles greedy decoding only
COMPILED = "translate, static cache, compiled"
TRANSLATORS = (REFERENCE, "CTranslate2, int8", "translate", "translate, static cache", COMPILED)

Translator = Callable[[], list[str]]


@converters.register_loader("MarianConfig")
class MarianLoader(converters.MarianMTLoader):
    """
    CTranslate2's loader of Marian models, for any place of the padding token.

    Its own one takes the last piece for the padding, as in OPUS-MT's models, and puts zeros in place of its embedding
    at the start of the decoder. In a model that was trained with transformers this embedding is not zero: it is tied
    to the output layer.
    """

    set_decoder = converters.BartLoader.set_decoder
    get_vocabulary = converters.BartLoader.get_vocabulary

    def set_config(self, config: Any, model: MarianMTModel, tokenizer: PreTrainedTokenizerBase) -> None:
        super().set_config(config, model, tokenizer)
        config.decoder_start_token = tokenizer.convert_ids_to_tokens(model.config.decoder_start_token_id)

    def _remove_pad_weights(self, spec: Any) -> None:
        pass


def random_checkpoint(size: registry.Size, folder: Path) -> Path:
    """Writes a Marian model with random weights, and a tokenizer whose pieces are the words w3, w4, ..."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    pieces = [*SPECIAL, *(f"w{number}" for number in range(len(SPECIAL), size.vocab_size))]
    tokenizer = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {EOS}", special_tokens=[(EOS, 1)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, unk_token=UNK, model_max_length=LENGTH
    ).save_pretrained(folder)
    registry.build("marian", registry.Setting(size, (LENGTH,))).save_pretrained(folder)
    return folder


def plain_checkpoint(checkpoint: Path, folder: Path) -> Path:
    """The checkpoint if it is plain Marian, or else a plain copy of it."""
    if from_checkpoint(AutoConfig, checkpoint).model_type == "marian":
        return checkpoint
    return to_plain(checkpoint, folder)


def random_sentences(lines: Sequence[str], vocab_size: int) -> list[str]:
    """Random words, as many as each line has."""
    generator = torch.Generator().manual_seed(2)
    numbers = (torch.randint(len(SPECIAL), vocab_size, (len(line.split()),), generator=generator) for line in lines)
    return [" ".join(f"w{number}" for number in row.tolist()) for row in numbers]


def build(
    names: Sequence[str], checkpoint: Path, sentences: list[str], folder: Path, options: argparse.Namespace
) -> dict[str, Translator]:
    """A function for each translator, which translates all sentences."""
    tokenizer = from_checkpoint(AutoTokenizer, checkpoint)
    model = from_checkpoint(MarianMTModel, checkpoint, dtype=torch.float32).eval()
    # The length is that of the call, not the model's, which would be named in a warning.
    model.generation_config.max_length = None
    compiled = CompileConfig(dynamic=True, mode="default")
    # transformers compiles on a CPU only if it is told to.
    compiled._compile_all_devices = True
    settings: dict[str, dict[str, Any]] = {
        "translate": {},
        "translate, static cache": {"cache_implementation": "static"},
        COMPILED: {"cache_implementation": "static", "compile_config": compiled},
    }
    lengths = {"max_new_tokens": options.steps or options.max_new_tokens, "min_new_tokens": options.steps}

    def ours(settings: dict[str, Any]) -> Translator:
        return lambda: translate(
            model,
            tokenizer,
            sentences,
            max_tokens=options.tokens * options.beams,
            num_beams=options.beams,
            do_sample=False,
            disable_compile="compile_config" not in settings,
            **lengths,
            **settings,
        )

    def theirs(compute_type: str) -> Translator:
        converted = folder / "converted"
        if not converted.exists():
            converters.TransformersConverter(str(checkpoint)).convert(str(converted))
        translator = ctranslate2.Translator(
            str(converted), compute_type=compute_type, inter_threads=1, intra_threads=options.threads
        )

        def run() -> list[str]:
            results = translator.translate_batch(
                [tokenizer.convert_ids_to_tokens(token_ids) for token_ids in tokenizer(sentences)["input_ids"]],
                beam_size=options.beams,
                max_batch_size=options.tokens,
                batch_type="tokens",
                max_decoding_length=lengths["max_new_tokens"],
                min_decoding_length=lengths["min_new_tokens"] or 1,
            )
            ids = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
            return tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

        return run

    types = {REFERENCE: "float32", "CTranslate2, int8": "int8"}
    return {name: theirs(types[name]) if name in types else ours(settings[name]) for name in names}


def measure(translators: dict[str, Translator], rounds: int) -> dict[str, dict[str, Any]]:
    """Times of the translators, in turns, as ratios to CTranslate2's."""
    names = list(translators)
    times: dict[str, list[float]] = {name: [] for name in names}
    texts, first = {}, {}
    for done in range(rounds + 1):
        for name in rotated(names, done):
            start = time.perf_counter()
            texts[name] = translators[name]()
            # The first time is not counted: it compiles.
            first.setdefault(name, time.perf_counter() - start)
            if done:
                times[name].append(time.perf_counter() - start)
        print(f"\rround {done} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    reference = texts[REFERENCE]
    return {
        name: {
            **ratios(times[name], times[REFERENCE]),
            "identical": sum(map(str.__eq__, texts[name], reference)) / len(reference),
            "first_seconds": first[name],
        }
        for name in names
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """The results as a Markdown table."""
    lines = ["| translator | time / CTranslate2's | quartiles | identical |", "|---|---|---|---|"]
    for name, row in results.items():
        low, high = row["time_ratio_quartiles"]
        lines.append(f"| {name} | {row['time_ratio']:.2f}x | {low:.2f}-{high:.2f} | {row['identical']:.1%} |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", type=Path, help="folder of a trained plain model")
    parser.add_argument("--size", choices=SIZES, help="random weights of this size instead")
    parser.add_argument("--source", type=Path, required=True, help="text file with one sentence a line")
    parser.add_argument("--sentences", type=int, default=200, help="the first so many that are not blank")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--tokens", type=int, default=1024, help="sentences * longest source of a batch")
    parser.add_argument("--max_new_tokens", type=int, default=128, help="of a trained model")
    parser.add_argument("--steps", type=int, default=32, help="new tokens of a random model")
    parser.add_argument("--translators", nargs="+", choices=TRANSLATORS, default=list(TRANSLATORS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    options = parser.parse_args()
    if (options.checkpoint is None) == (options.size is None):
        parser.error("give either a checkpoint or --size")
    if options.checkpoint is not None:
        if not (options.checkpoint / "config.json").is_file():
            parser.error(f"no checkpoint in {options.checkpoint}")
        options.steps = None
    if options.rounds < 2:
        parser.error("--rounds must be at least 2: one repetition has no spread")
    if not options.source.is_file():
        parser.error(f"no file {options.source}")
    options.translators = [REFERENCE, *(name for name in options.translators if name != REFERENCE)]
    return options


def main() -> None:
    options = parse()
    logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    lines = [line for line in read_lines(options.source) if line.strip()]
    sentences, results = lines[: options.sentences], {}
    record = {
        "model": str(options.checkpoint.name if options.checkpoint else f"random weights, {options.size}"),
        "source": options.source.name,
        "sentences": len(sentences),
        **{name: getattr(options, name) for name in ("tokens", "max_new_tokens", "steps", "rounds")},
        "environment": {**environment(), "ctranslate2": ctranslate2.__version__},
        "results": results,
    }
    with tempfile.TemporaryDirectory() as folder:
        if options.size:
            checkpoint = random_checkpoint(SIZES[options.size], Path(folder) / "random")
            sentences = random_sentences(sentences, SIZES[options.size].vocab_size)
        else:
            checkpoint = plain_checkpoint(options.checkpoint, Path(folder) / "plain")
        for beams in options.beams:
            options.beams = beams
            names = [name for name in options.translators if beams == 1 or name != COMPILED]
            translators = build(names, checkpoint, sentences, Path(folder), options)
            results[f"beam {beams}" if beams > 1 else "greedy"] = measure(translators, options.rounds)
            # After every beam size: a kill loses at most one.
            if options.output:
                write_record(options.output, record)
    for name, rows in results.items():
        print(f"\n{name}\n\n{table(rows)}")


if __name__ == "__main__":
    main()
