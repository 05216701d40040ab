"""Translation with an exported model; needs onnxruntime, tokenizers and numpy.

This file travels: every exported folder has a copy of it, named translator.py, so that nothing else is needed.

    from translator import OnnxTranslator

    translator = OnnxTranslator(".")
    print(translator.translate(["A dog runs."]))

Shapes: B sentences, K beams, S source tokens, T new tokens, V vocabulary.
"""

import argparse
import difflib
import itertools
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

logger = logging.getLogger(__name__)

SETTINGS = "translator.json"
GREEDY, BEAM = "greedy_search.onnx", "beam_search.onnx"
TOKENIZERS = {"source": "source_tokenizer.json", "target": "target_tokenizer.json"}
# the second has multilingual models, and a start token that is an input of the graphs
FORMAT = 2
# the fused operator takes several times as long as its parts
SLOW_FUSIONS = ["SkipLayerNormFusion"]
# scores of beams that are none are around it
WORST = -1.0e9
# codes of languages that a message names
MOST_MATCHES = 3

# A translation may have LENGTH_FACTOR * source tokens + LENGTH_MARGIN tokens unless the caller says else
LENGTH_FACTOR = 2
LENGTH_MARGIN = 10

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Hypothesis:
    """
    One translation of a sentence.

    Attributes:
        text: without special tokens; a forced prefix is part of it.
        tokens: ids, the forced prefix and the end of the sentence (if it was reached) included, the start token not.
        ended: False where a length limit cut the translation off before its end.
        score: sum of the log-probabilities of its tokens, without those of a prefix, over their number to the power of
            the length penalty; 0 for the blank translation of a blank sentence, which no model is asked about, and
            minus infinity for one without tokens of its own: the beam search has found fewer than were asked for.
        agreements: a summary of the routing, by PyTorch models only and where it was asked for.
    """

    text: str
    tokens: list[int]
    ended: bool = True
    score: float = 0.0
    agreements: dict[str, Any] | None = None


def batches_by_tokens(sizes: Sequence[tuple[int, int]], max_tokens: int) -> Iterator[list[int]]:
    """
    Indices of sentences of similar length, longest first; each batch padded holds at most `max_tokens` tokens.

    Args:
        sizes: tokens of the prompt, which are the same in a batch as decoders know no padding on the left, and of the
            source.
        max_tokens: a sentence that exceeds it alone is a batch of its own.
    """
    order = sorted(range(len(sizes)), key=lambda index: (-sizes[index][0], -sizes[index][1]))
    start = 0
    while start < len(order):
        prompt, source = sizes[order[start]]
        batch = order[start : start + max(1, max_tokens // source)]
        batch = [index for index in batch if sizes[index][0] == prompt]
        yield batch
        start += len(batch)


class OnnxTranslator:
    """
    An exported model and its tokenizer.

    Args:
        folder: written by `hf-capsule-mt export --format onnx`.
        threads: of one batch; all cores by default.

    Raises:
        ValueError: if it is no such folder, lacks a file, or is of a newer format.
        ImportError: if onnxruntime is not installed.
    """

    def __init__(self, folder: str | Path, threads: int | None = None) -> None:
        self.folder = Path(folder)
        if not (self.folder / SETTINGS).is_file():
            raise ValueError(f"{folder} has no {SETTINGS}: give a folder made by hf-capsule-mt export --format onnx")
        # only now: whoever translates with PyTorch has the classes of this file too, and may lack it
        import onnxruntime

        for name in (GREEDY, BEAM, *TOKENIZERS.values()):
            if not (self.folder / name).is_file():
                raise ValueError(f"{folder} has no {name}: copy the whole folder, or export the model again")
        for path in self.folder.glob("*.onnx_data"):
            if path.is_symlink():
                raise ValueError(
                    f"{path} is a link, as in the cache of the Hub, and ONNX Runtime follows none: download the"
                    " folder with snapshot_download(..., local_dir=FOLDER)"
                )
        path = self.folder / SETTINGS
        try:
            self.settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            written = self.settings["format"]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path} is damaged ({error}): copy the whole folder, or export it again") from error
        if written > FORMAT:
            raise ValueError(f"{folder} is of format {written}, newer than this program's: update it")
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        self.source_tokenizer = self._tokenizer("source")
        self.target_tokenizer = self._tokenizer("target")
        # tokens of a tokenizer, beyond those of the model, that stand for others
        self._aliases = {
            side: dict(enumerate(aliases["ids"], start=aliases["first"]))
            for side, aliases in self.settings.get("aliases", {}).items()
        }
        self._options = onnxruntime.SessionOptions()
        if threads is not None:
            self._options.intra_op_num_threads = threads
        self._open = onnxruntime.InferenceSession
        self._sessions: dict[str, onnxruntime.InferenceSession] = {}

    def translate(
        self,
        sentences: Sequence[str],
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        max_tokens: int = 4096,
        progress: Progress | None = None,
        **generation: Any,
    ) -> list[str]:
        """
        Translate sentences, in their order; blank ones translate to the empty string.

        Sentences longer than the model's positions are truncated. Unless `generation` sets `max_new_tokens`, a
        translation has at most twice its source's tokens plus ten.

        Args:
            sentences: raw text, one sentence each.
            source_lang, target_lang: codes, for multilingual models; the pair that was saved with one if not given.
            max_tokens: bound on sentences * longest source * beams of a batch, in tokens.
            progress: called after every batch with the number of sentences done and the number in all.
            generation: num_beams, length_penalty, early_stopping, max_new_tokens, min_new_tokens and min_length, as in
                transformers' generate; defaults are the model's.

        Raises:
            ValueError: an argument that cannot be meant.
        """
        several = self._generation(generation)["num_return_sequences"]
        if several > 1:
            raise ValueError(
                f"translate gives one translation a sentence, got num_return_sequences={several};"
                " use translate_nbest for several"
            )
        shared: dict[str, Any] = {"max_tokens": max_tokens, "progress": progress, **generation}
        nbest = self.translate_nbest(sentences, source_lang=source_lang, target_lang=target_lang, **shared)
        return [hypotheses[0].text for hypotheses in nbest]

    def translate_nbest(
        self,
        sentences: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        source_lang: str | None = None,
        target_lang: str | None = None,
        max_tokens: int = 4096,
        progress: Progress | None = None,
        **generation: Any,
    ) -> list[list[Hypothesis]]:
        """
        The best translations of each sentence with their scores, best first.

        Args:
            prefixes: what the translation of each sentence begins with, whole words; blank for no constraint. Tokens
                of a prefix count for the length limit of a sentence, but not for its score.
            generation: as in `translate`, and num_return_sequences, the translations of each sentence.

        The other arguments and errors are those of `translate`.
        """
        languages, start = self.languages(source_lang, target_lang), self.settings["decoder_start_token_id"]
        if languages is not None:
            if self.settings["languages"]["forced"]:
                generation = {"forced_bos_token_id": languages[1], **generation}
            else:
                start = languages[1]
        options = self._generation(generation)
        for name, values in (("sentences", sentences), ("prefixes", prefixes)):
            if isinstance(values, str):
                raise ValueError(f"{name} must be a list of strings, got a single string; put it in a list")
        if prefixes is not None and len(prefixes) != len(sentences):
            raise ValueError(f"there are {len(sentences)} sentences, but {len(prefixes)} prefixes; give one for each")
        if max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
        most = self.settings["longest_output"] - 1
        if (options["max_new_tokens"] or 0) > most:
            logger.warning(f"a translation by this model cannot be as long as that: it gets max_new_tokens={most}")
        rows = [row for row, sentence in enumerate(sentences) if sentence.strip()]
        sources = self._encode([sentences[row] for row in rows], None if languages is None else languages[0])
        prompts = self._prompts([prefixes[row] if prefixes else "" for row in rows], start, options)
        blank = [Hypothesis("", [])] * options["num_return_sequences"]
        results: list[list[Hypothesis]] = [blank] * len(sentences)
        done = len(sentences) - len(rows)
        if progress is not None and not rows:
            progress(done, len(sentences))
        sizes = [(len(prompt), len(source)) for prompt, source in zip(prompts, sources, strict=True)]
        for batch in batches_by_tokens(sizes, max_tokens // options["num_beams"]):
            found = self._search([sources[i] for i in batch], [prompts[i] for i in batch], options)
            for index, hypotheses in zip(batch, found, strict=True):
                results[rows[index]] = hypotheses
            done += len(batch)
            if progress is not None:
                progress(done, len(sentences))
        return results

    def languages(self, source_lang: str | None = None, target_lang: str | None = None) -> tuple[int, int] | None:
        """
        The tokens of a source and a target language; None for a model of one pair.

        Args:
            source_lang, target_lang: codes, by default those that were saved with the model.

        Raises:
            ValueError: languages for a model of one pair, none for a multilingual one, or one that it does not have.
        """
        known = self.settings.get("languages")
        given = [code for code in (source_lang, target_lang) if code is not None]
        if known is None:
            if given:
                raise ValueError(f"the model is one of a single pair of languages: leave out {' and '.join(given)}")
            return None
        ids, tokens = known["ids"], []
        for side, code in (("source", source_lang), ("target", target_lang)):
            code = known[side] if code is None else code
            if code is None:
                shown = ", ".join(sorted(ids)[:3])
                raise ValueError(f"the model is multilingual: give {side}_lang, one of its {len(ids)} ({shown}, ...)")
            if code not in ids:
                begin = [other for other in ids if other.lower().startswith(code.lower())]
                near = begin or difflib.get_close_matches(code, ids, n=MOST_MATCHES)
                advice = f"; did you mean {' or '.join(near[:MOST_MATCHES])}?" if near else ""
                raise ValueError(f"{side}_lang: {code!r} is none of the {len(ids)} languages of the model{advice}")
            tokens.append(ids[code])
        return tokens[0], tokens[1]

    def _tokenizer(self, side: str) -> Tokenizer:
        tokenizer = self._loaded(TOKENIZERS[side], Tokenizer.from_file)
        # not in the file: whether "</s>" in a text is text
        tokenizer.encode_special_tokens = self.settings.get("split_special_tokens", False)
        return tokenizer

    def _loaded(self, name: str, load: Callable[[str], Any]) -> Any:
        """What a library makes of a file of the folder."""
        path = self.folder / name
        try:
            return load(str(path))
        # the libraries raise classes of their own
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{path} cannot be loaded ({reason}): copy the whole folder, or export it again"
            ) from error

    def _tokens(self, side: str, ids: list[int]) -> list[int]:
        """
        The ids of a tokenizer as those of the model.

        Raises:
            ValueError: the model does not have one of them.
        """
        aliases = self._aliases.get(side)
        ids = [aliases.get(index, index) for index in ids] if aliases else ids
        size = self.settings["vocab_size" if side == "target" else "source_vocab_size"]
        if ids and max(ids) >= size:
            raise ValueError(
                f"the {side} tokenizer does not fit the model: it gives a text the token {max(ids)}, and the model's "
                f"tokens end with {size - 1}; export the model with the tokenizer that it was trained with"
            )
        return ids

    def _generation(self, given: dict[str, Any]) -> dict[str, Any]:
        """Generation parameters: those of the call, or else the model's."""
        known = self.settings["generation"]
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ValueError(f"an exported model has no generation parameter {unknown[0]}; it has {', '.join(known)}")
        options = known | {name: value for name, value in given.items() if value is not None}
        for name in ("num_beams", "num_return_sequences", "max_new_tokens", "max_length"):
            value = options[name]
            if value is not None and value != int(value):
                raise ValueError(f"{name} must be a whole number, got {value}")
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if options["early_stopping"] not in (True, False, "never"):
            raise ValueError(f"early_stopping must be True, False or 'never', got {options['early_stopping']!r}")
        for name in ("forced_bos_token_id", "forced_eos_token_id"):
            tokens = np.array([] if options[name] is None else options[name])
            if ((tokens < 0) | (tokens >= self.settings["vocab_size"])).any():
                raise ValueError(
                    f"{name}={options[name]} is not in the vocabulary of {self.settings['vocab_size']} tokens"
                )
        if options["num_return_sequences"] > options["num_beams"]:
            raise ValueError(
                f"num_return_sequences={options['num_return_sequences']} needs at least as many beams, "
                f"got num_beams={options['num_beams']}"
            )
        if given.get("max_length") is not None and given.get("max_new_tokens") is None:
            # a length of the caller wins over the model's, whichever way the two are given
            options["max_new_tokens"] = None
        options["length_given"] = any(given.get(name) is not None for name in ("max_new_tokens", "max_length"))
        return options

    def _encode(self, sentences: Sequence[str], language: int | None = None) -> list[list[int]]:
        """Token ids of the sentences, truncated to what the model can read, with the token of their language."""
        limit = self.settings["max_source_length"]
        ends: list[list[int]] = []
        if language is not None:
            marks = self.settings["languages"]
            ends = [[language if token is None else token for token in marks[end]] for end in ("before", "behind")]
        encoded = [
            encoding.ids
            for encoding in self.source_tokenizer.encode_batch(list(sentences), add_special_tokens=not ends)
        ]
        if ends:
            encoded = [[*ends[0], *ids, *ends[1]] for ids in encoded]
        long = [row for row, ids in enumerate(encoded) if limit is not None and len(ids) > limit]
        if long:
            excess = [len(encoded[row]) - limit for row in long]
            logger.warning(
                f"{len(long)} of {len(sentences)} sentences were truncated to {limit} tokens, the most that this model"
                f" can read; {sum(excess)} tokens were cut, {max(excess)} from the longest sentence"
            )
            # a tokenizer of its own: others may be encoding with this one at the same time
            truncating = self._tokenizer("source")
            truncating.enable_truncation(limit)
            for row in long:
                if ends:
                    kept = limit - len(ends[1])
                    encoded[row] = [*encoded[row][:kept], *ends[1]]
                else:
                    encoded[row] = truncating.encode(sentences[row]).ids
        return [self._tokens("source", ids) for ids in encoded]

    def _prompts(self, prefixes: Sequence[str], start: int, options: dict[str, Any]) -> list[list[int]]:
        """What the decoder begins with: the start token, and the tokens of a prefix that is not blank."""
        first = options["forced_bos_token_id"]
        known = [self.settings["max_positions"], options["max_length"]]
        longest = min((length for length in known if length is not None), default=None)
        prompts = []
        for prefix in prefixes:
            prompt = [start]
            if prefix.strip():
                prompt += [] if first is None else [first]
                prompt += self._tokens("target", self.target_tokenizer.encode(prefix, add_special_tokens=False).ids)
            if longest is not None and len(prompt) >= longest:
                raise ValueError(
                    f"a prefix of {len(prompt) - 1} tokens leaves no room for a translation: the model writes at most"
                    f" {longest - 1}: {prefix[:60]!r}..."
                )
            prompts.append(prompt)
        return prompts

    def _search(
        self, sources: list[list[int]], prompts: list[list[int]], options: dict[str, Any]
    ) -> list[list[Hypothesis]]:
        """The translations of one batch of sources and prompts."""
        prompt_length = len(prompts[0])
        lengths = np.array([len(source) for source in sources])
        input_ids = np.full((len(sources), lengths.max()), self.settings["pad_token_id"], np.int64)
        for row, source in enumerate(sources):
            input_ids[row, : len(source)] = source
        max_length, limits = self._limits(lengths, prompt_length, options)
        turns = int(limits.max()) - 1
        forced = np.full((turns, len(sources), 1), -1, np.int64)
        forced[: prompt_length - 1, :, 0] = np.array(prompts).T[1:]
        feeds = {
            "input_ids": input_ids,
            "attention_mask": (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64),
            "num_beams": np.array(options["num_beams"]),
            "max_turns": np.array(turns),
            "forced_tokens": forced,
            "last_turns": limits[:, None] - 2,
        }
        if self.settings["format"] > 1:
            feeds["start_token"] = np.array(prompts[0][0])
        rules = self._token_rules(turns, max_length, prompt_length, options)
        if options["num_beams"] == 1:
            return self._greedy(feeds | rules, prompt_length, options)
        new = np.maximum(np.arange(turns) + 2 - prompt_length, 1).astype(np.float64)
        penalties = new ** options["length_penalty"]
        gains = penalties
        if options["early_stopping"] == "never" and options["length_penalty"] > 0:
            gains = np.full(turns, float(max_length - prompt_length) ** options["length_penalty"])
        feeds["penalties"], feeds["gains"] = penalties.astype(np.float32), gains.astype(np.float32)
        feeds["open_when_full"] = np.array(options["early_stopping"] is not True)
        return self._beams(feeds | rules, options)

    def _limits(self, lengths: np.ndarray, prompt_length: int, options: dict[str, Any]) -> tuple[int, np.ndarray]:
        """Longest decoder sequence of all, and of each sentence."""
        positions, longest = self.settings["max_positions"], self.settings["longest_output"]
        limits = LENGTH_FACTOR * lengths + LENGTH_MARGIN
        if options["max_new_tokens"] is not None:
            max_length = prompt_length + min(options["max_new_tokens"], max(1, longest - prompt_length))
        elif options["max_length"] is not None:
            max_length = min(options["max_length"], longest)
        else:
            max_length = int(limits.max()) + 1 if positions is None else positions
        if options["length_given"]:
            limits = np.full_like(limits, max_length)
        # a prompt that is as long as the limit is followed by one token all the same
        limits = np.maximum(np.minimum(limits, max_length), prompt_length + 1)
        return max_length, limits.astype(np.int64)

    def _token_rules(
        self, turns: int, max_length: int, prompt_length: int, options: dict[str, Any]
    ) -> dict[str, np.ndarray]:
        """What is forced or forbidden at each turn, as the inputs of the graph."""
        size, ends = self.settings["vocab_size"], self.settings["eos_token_ids"]
        never = np.zeros(size, np.float32)
        never[self.settings["suppressed_token_ids"]] = -np.inf
        endless = never.copy()
        endless[ends] = -np.inf
        rules, weights = [never, endless], np.ones(turns, np.float32)
        chosen = np.zeros(turns, np.int64)
        for turn in range(turns):
            length = turn + 1
            new = length - prompt_length
            if length < (options["min_length"] or 0) or 0 <= new < (options["min_new_tokens"] or 0):
                chosen[turn] = 1
            forced = None
            if length == 1:
                forced = options["forced_bos_token_id"]
            if length == max_length - 1 and options["forced_eos_token_id"] is not None:
                forced = options["forced_eos_token_id"]
            if forced is not None:
                only = np.full(size, -np.inf, np.float32)
                only[forced] = 0
                chosen[turn], weights[turn] = len(rules), 0
                rules.append(only)
        return {"token_scores": np.stack(rules), "token_rules": chosen, "token_weights": weights}

    def _run(self, name: str, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        if name not in self._sessions:
            self._sessions[name] = self._loaded(
                name,
                lambda path: self._open(
                    path, self._options, providers=["CPUExecutionProvider"], disabled_optimizers=SLOW_FUSIONS
                ),
            )
        return self._sessions[name].run(None, feeds)

    def _greedy(
        self, feeds: dict[str, np.ndarray], prompt_length: int, options: dict[str, Any]
    ) -> list[list[Hypothesis]]:
        # the graph has no weights: where a rule decides, the score is that of the rule
        weights = feeds.pop("token_weights")
        turns, scores = self._run(GREEDY, feeds)
        scores *= weights[: len(scores), None, None]
        ends, last_turns = self.settings["eos_token_ids"], feeds["last_turns"]
        results = []
        for row, tokens in enumerate(turns[..., 0].T.tolist()):
            free = range(prompt_length - 1, len(tokens))
            last = next(turn for turn in free if tokens[turn] in ends or turn >= last_turns[row, 0])
            total = float(scores[prompt_length - 1 : last + 1, row, 0].sum())
            length = last + 2 - prompt_length
            results.append([self._hypothesis(tokens[: last + 1], total / length ** options["length_penalty"])])
        return results

    def _beams(self, feeds: dict[str, np.ndarray], options: dict[str, Any]) -> list[list[Hypothesis]]:
        turns, scores, codes = self._run(BEAM, feeds)
        sequences, lengths = follow(turns, codes, self.settings["vocab_size"])
        # what has been added to a score is divided with it
        found = scores * feeds["penalties"][lengths - 1] > WORST / 2
        results = []
        for row in range(len(codes)):
            hypotheses = []
            for beam in range(options["num_return_sequences"]):
                if found[row, beam]:
                    tokens = sequences[row, beam, : lengths[row, beam]].tolist()
                    hypotheses.append(self._hypothesis(tokens, float(scores[row, beam])))
                else:
                    prefix = feeds["forced_tokens"][:, row, 0]
                    hypotheses.append(self._hypothesis(prefix[prefix >= 0].tolist(), float("-inf")))
            results.append(hypotheses)
        return results

    def _hypothesis(self, tokens: list[int], score: float) -> Hypothesis:
        text = self.target_tokenizer.decode(tokens, skip_special_tokens=True)
        ended = score > float("-inf") and tokens[-1] in self.settings["eos_token_ids"]
        return Hypothesis(text, tokens, ended, score)


def follow(turns: np.ndarray, codes: np.ndarray, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """
    The tokens of hypotheses that are known by their codes: t * K * V + k * V + token, see the module `search`.

    Args:
        turns: codes of the running beams after every turn, [T, B, K].
        codes: of the hypotheses, [B, N].
        vocab_size: V.

    Returns:
        Tokens [B, N, T] and how many of them belong to each hypothesis [B, N].
    """
    num_turns, batch, beams = turns.shape
    turn = codes // (beams * vocab_size)
    lengths = turn + 1
    tokens = np.zeros((*codes.shape, num_turns), np.int64)
    rows = np.arange(batch)[:, None]
    for step in range(num_turns - 1, -1, -1):
        here = turn == step
        tokens[here, step] = codes[here] % vocab_size
        if step:
            before = turns[step - 1][rows, codes // vocab_size % beams]
            codes = np.where(here, before, codes)
            turn = np.where(here, step - 1, turn)
    return tokens, lengths


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="translator", description=main.__doc__)
    parser.add_argument("input", nargs="?", help="file in UTF-8 (standard input)")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent, help="of the model (this file's)")
    parser.add_argument("--source_lang", help="code of the language, for multilingual models (the one saved)")
    parser.add_argument("--target_lang", help="code of the language, for multilingual models (the one saved)")
    parser.add_argument("--num_beams", type=int, default=5, help="beam size; 1 is greedy search (5)")
    parser.add_argument("--num_return_sequences", type=int, default=1, help="translations of each sentence (1)")
    parser.add_argument("--length_penalty", type=float, help="exponent of the length in a score (the model's)")
    parser.add_argument("--max_new_tokens", type=int, help="limit of every translation (twice its source's, plus 10)")
    parser.add_argument("--scores", action="store_true", help="lines are: score TAB translation")
    parser.add_argument("--max_tokens", type=int, default=4096, help="tokens of a batch, beams included (4096)")
    parser.add_argument("--window", type=int, default=1000, help="lines read and written at a time (1000)")
    parser.add_argument("--threads", type=int, help="all cores by default")
    return parser.parse_args()


def _windows(path: str | None, size: int) -> Iterator[list[str]]:
    """The lines of a file or of standard input, so many at a time."""
    if size < 1:
        raise ValueError(f"window must be at least 1, got {size}")
    with open(0 if path is None else path, encoding="utf-8", newline="\n", closefd=path is not None) as lines:
        try:
            while window := [line.rstrip("\r\n") for line in itertools.islice(lines, size)]:
                yield window
        except UnicodeDecodeError as error:
            raise ValueError(f"{path or 'standard input'} is not UTF-8: {error}") from error


def _write(arguments: argparse.Namespace) -> None:
    """Translations to standard output, line by line."""
    others = ("input", "folder", "scores", "window", "threads")
    options = {name: value for name, value in vars(arguments).items() if name not in others}
    translator = OnnxTranslator(arguments.folder, arguments.threads)
    for window in _windows(arguments.input, arguments.window):
        for hypotheses in translator.translate_nbest(window, **options):
            for hypothesis in hypotheses:
                score = f"{hypothesis.score:.6f}\t" if arguments.scores else ""
                sys.stdout.buffer.write(f"{score}{hypothesis.text}\n".encode())
        sys.stdout.buffer.flush()


def main() -> None:
    """Translates a file or standard input, one sentence a line, with the folder that this file lies in."""
    arguments = _arguments()
    try:
        _write(arguments)
    except BrokenPipeError:
        # whoever read has read enough; the interpreter would complain when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        sys.exit(f"translator: error: {error.filename or arguments.input}: {error.strerror}")
    except ValueError as error:
        sys.exit(f"translator: error: {error}")


if __name__ == "__main__":
    main()
