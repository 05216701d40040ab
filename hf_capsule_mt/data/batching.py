"""
Encoded sentence pairs, and batches of them by number of tokens.

Pairs are encoded once and kept on disk; batches are the same for any split over processes and gradient accumulation
steps.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save
from torch.utils.data import Dataset, Sampler
from tqdm.auto import tqdm

from ..files import write_whole
from .cache import cached
from .tokenizer import forget_last_call

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

IGNORE_INDEX = -100
ENCODE_CHUNK = 10_000
# Part of the name of an encoded corpus on disk; raise it when what encode_pairs makes of a text changes.
ENCODING_VERSION = 1


class TokenBatchSampler(Sampler[list[int]]):
    """
    Batch sampler that fills batches up to a number of padded tokens.

    The sampler first builds *update batches*: the sentences of one optimizer update, over all processes and all
    gradient accumulation steps together. Sentences are shuffled, sorted by length (so equal lengths stay shuffled) and
    cut such that `number of sentences * longest sentence <= max_tokens * num_splits`; then the update batches are
    shuffled. Each update batch is dealt out, interleaved, to `num_splits` chunks of (nearly) equal length and size.
    One process with `2 * T` tokens, two processes with `T` and one process with `T` and two accumulation steps
    therefore see the same sentences in every update.

    The order depends on (`seed`, `epoch`) alone, never on a global random state: a resumed run repeats it exactly.
    The number of batches is the same in every epoch.

    With `groups` (pairs of languages) and a `temperature` other than 1, an epoch still has as many sentences as there
    are examples, but of each group as many as `sampling_quotas` says: a quota of q out of n cuts the group, sorted by
    length, into q parts of n / q examples, and an epoch draws a sentence from each. So every sentence of a group is
    seen equally often on average, and a part's longest sentence bounds what its place in a batch has in any epoch.

    Args:
        lengths: per example, the larger of its source and target length in tokens, all >= 1.
        max_tokens: padded tokens of one chunk, i.e. per process and accumulation step. A longer sentence gets a
            batch of its own.
        seed: with the epoch, all that the order depends on.
        num_splits: `world_size * gradient_accumulation_steps`.
        rank, world_size: this process, and how many there are; micro step i of rank r takes chunk i * world_size + r.
        groups: per example, the number of its group, from 0; without them all examples are one group.
        temperature: of the sampling over groups; 1 takes every example once.

    Raises:
        ValueError: a size out of range, or fewer examples than `num_splits`.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        max_tokens: int,
        *,
        seed: int = 0,
        num_splits: int = 1,
        rank: int = 0,
        world_size: int = 1,
        groups: Sequence[int] | None = None,
        temperature: float = 1.0,
    ) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        if max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
        if world_size < 1 or not 0 <= rank < world_size:
            raise ValueError(f"rank must be in [0, world_size), got rank {rank} and world_size {world_size}")
        if num_splits < 1 or num_splits % world_size:
            raise ValueError(f"num_splits must be a multiple of world_size ({world_size}), got {num_splits}")
        if len(self.lengths) < num_splits:
            raise ValueError(
                f"{len(self.lengths)} examples cannot be split over {num_splits} processes x accumulation steps: "
                "use more data, fewer processes or a smaller gradient_accumulation_steps"
            )
        self.max_tokens = max_tokens
        self.seed = seed
        self.num_splits = num_splits
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.groups = None if groups is None or temperature == 1 else np.asarray(groups, dtype=np.int64)
        self._quotas = np.zeros(0, dtype=np.int64)
        if self.groups is not None:
            self._quotas = sampling_quotas(np.bincount(self.groups), temperature)
        # The sorted bounds are the same in every epoch, hence the cuts are too.
        self._bounds = self._longest_of_places()
        self._cuts = self._cut(np.sort(self._bounds, kind="stable"))

    def _longest_of_places(self) -> np.ndarray:
        """The largest length that each sentence of an epoch can have, group by group; without groups the lengths."""
        if self.groups is None:
            return self.lengths
        bounds = [np.zeros(0, dtype=np.int64)]
        for group, quota in enumerate(self._quotas):
            ascending = np.sort(self.lengths[self.groups == group], kind="stable")
            bounds.append(ascending[_part_ends(len(ascending), quota) - 1])
        return np.concatenate(bounds)

    def _draw(self, order: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """The sentences of an epoch, by bounds in ascending order, from all examples in ascending order of length."""
        drawn = [np.zeros(0, dtype=np.int64)]
        for group, quota in enumerate(self._quotas):
            members = order[self.groups[order] == group]
            places = ((np.arange(quota) + generator.random(quota)) * (len(members) / max(quota, 1))).astype(np.int64)
            drawn.append(members[np.minimum(places, _part_ends(len(members), quota) - 1)])
        shuffled = generator.permutation(len(self._bounds))
        return np.concatenate(drawn)[shuffled[np.argsort(self._bounds[shuffled], kind="stable")]]

    def _cut(self, ascending: np.ndarray) -> list[tuple[int, int]]:
        """[start, end) of every update batch over the lengths in ascending order."""
        budget = self.max_tokens * self.num_splits
        cuts, start = [], 0
        for end, length in enumerate(ascending.tolist()):
            # `length` is the longest of the candidate batch [start, end]. Every split needs a sentence.
            if end - start >= self.num_splits and (end - start + 1) * length > budget:
                cuts.append((start, end))
                start = end
        cuts.append((start, len(ascending)))
        if len(cuts) > 1 and cuts[-1][1] - cuts[-1][0] < self.num_splits:
            last = cuts.pop()
            cuts[-1] = (cuts[-1][0], last[1])
        return cuts

    @property
    def num_updates(self) -> int:
        """Optimizer updates per epoch."""
        return len(self._cuts)

    def set_epoch(self, epoch: int) -> None:
        """Select the order of `epoch` (0-based) for the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.num_updates * (self.num_splits // self.world_size)

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng((self.seed, self.epoch))
        order = generator.permutation(len(self.lengths))
        order = order[np.argsort(self.lengths[order], kind="stable")]
        if self.groups is not None:
            order = self._draw(order, generator)
        for update in generator.permutation(len(self._cuts)):
            start, end = self._cuts[update]
            for micro_step in range(self.num_splits // self.world_size):
                chunk = micro_step * self.world_size + self.rank
                yield order[start + chunk : end : self.num_splits].tolist()


def sampling_quotas(counts: Sequence[int] | np.ndarray, temperature: float) -> np.ndarray:
    """
    How many examples of each group an epoch has, which in all has as many as there are.

    The probability of a group of n_i examples is proportional to (n_i / sum n) ** (1 / temperature): 1 takes what
    there is, larger ones come closer to as much of each (Arivazhagan et al., "Massively Multilingual Neural Machine
    Translation in the Wild", 2019, section 4.2).

    Args:
        counts: examples of each group, [G]; some group has one.
        temperature: above 0.

    Returns:
        Numbers of examples, [G], whose sum is that of `counts`; at least one of a group that has any.

    Raises:
        ValueError: the temperature is not a finite number above 0.
    """
    if not 0 < temperature < float("inf"):
        raise ValueError(f"the sampling temperature must be a finite number above 0, got {temperature}")
    counts = np.asarray(counts, dtype=np.int64)
    total = int(counts.sum())
    # of the largest group, so that none of a low temperature vanishes
    weights = (counts / counts.max()) ** (1 / temperature)
    exact = total * weights / weights.sum()
    quotas = np.where(counts > 0, np.maximum(np.floor(exact).astype(np.int64), 1), 0)
    while (missing := total - int(quotas.sum())) != 0:
        # by largest remainders; what the floor of one gave too much, the largest group gives back
        index = int(np.argmax(exact - quotas)) if missing > 0 else int(np.argmax(quotas))
        quotas[index] += 1 if missing > 0 else -1
    return quotas


def _part_ends(count: int, parts: int) -> np.ndarray:
    """
    Where each of so many equal parts of `count` examples ends, [parts]: one behind the last example that it has a
    share of.
    """
    return -(-(np.arange(1, parts + 1) * count) // max(parts, 1))


class EncodedPairs(Dataset[dict[str, np.ndarray]]):
    """
    Token ids of parallel sentences, kept in two flat arrays.

    Example i is {"input_ids": int32 [source], "labels": int32 [target]}, end of sentence included.

    Arrays rather than a datasets.Dataset of the same content, with which the loader took four times as long: 10.3
    instead of 2.5 ms for a batch of 25,000 padded tokens.

    Attributes:
        num_long: pairs that were left out because they were too long.
    """

    def __init__(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], *, num_long: int = 0
    ) -> None:
        self._sources, self._source_ends = self._flatten(sources)
        self._targets, self._target_ends = self._flatten(targets)
        self.num_long = num_long

    @staticmethod
    def _flatten(sequences: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        ends = np.cumsum([0, *map(len, sequences)])
        return np.fromiter((token for sequence in sequences for token in sequence), np.int32, ends[-1]), ends

    @classmethod
    def concatenate(cls, parts: Sequence[EncodedPairs]) -> EncodedPairs:
        """The pairs of all parts, of which there is at least one."""
        joined = cls([], [], num_long=sum(part.num_long for part in parts))
        joined._sources = np.concatenate([part._sources for part in parts])
        joined._targets = np.concatenate([part._targets for part in parts])
        joined._source_ends = np.cumsum([0, *np.concatenate([np.diff(part._source_ends) for part in parts])])
        joined._target_ends = np.cumsum([0, *np.concatenate([np.diff(part._target_ends) for part in parts])])
        return joined

    def save(self, path: Path) -> None:
        """Write a safetensors file, which is there in whole or not at all."""
        tensors = {
            "sources": self._sources,
            "source_ends": self._source_ends,
            "targets": self._targets,
            "target_ends": self._target_ends,
        }
        write_whole(path, save(tensors, metadata={"num_long": str(self.num_long)}))

    @classmethod
    def load(cls, path: Path) -> EncodedPairs:
        """
        Read what `save` has written.

        Raises:
            FileNotFoundError: there is no such file.
            SafetensorError: it is damaged.
        """
        with safe_open(path, framework="numpy") as file:
            pairs = cls([], [], num_long=int(file.metadata()["num_long"]))
            pairs._sources, pairs._source_ends = file.get_tensor("sources"), file.get_tensor("source_ends")
            pairs._targets, pairs._target_ends = file.get_tensor("targets"), file.get_tensor("target_ends")
        return pairs

    @property
    def lengths(self) -> np.ndarray:
        """The larger of source and target length of every example, in tokens."""
        return np.maximum(np.diff(self._source_ends), np.diff(self._target_ends))

    @property
    def smallest_tokens(self) -> tuple[int, int]:
        """The smallest source and the smallest target token id."""
        return int(self._sources.min()), int(self._targets.min())

    @property
    def largest_tokens(self) -> tuple[int, int]:
        """The largest source and the largest target token id."""
        return int(self._sources.max()), int(self._targets.max())

    def __len__(self) -> int:
        return len(self._source_ends) - 1

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {
            "input_ids": self._sources[self._source_ends[index] : self._source_ends[index + 1]],
            "labels": self._targets[self._target_ends[index] : self._target_ends[index + 1]],
        }


def encode_pairs(
    sources: Sequence[str],
    targets: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    max_source_length: int,
    max_target_length: int,
    *,
    cache_dir: Path | None = None,
    progress: bool = False,
    name: str = "",
) -> EncodedPairs:
    """
    Encode the sentence pairs to train on, or read them from an earlier time; warnings count what is left out.

    Args:
        sources, targets: raw text, line by line. Pairs with a blank side are left out.
        tokenizer: encodes both languages (targets as `text_target`).
        max_source_length, max_target_length: in tokens; longer pairs are left out, as a truncated pair would teach
            the model to stop in mid-sentence.
        cache_dir: folder that keeps encoded corpora; a file's name is a digest of all that it depends on (text,
            tokenizer, lengths), so that nothing out of date is ever read. A damaged file is made again. Where it
            cannot be written, a warning says so and all else goes on. None keeps nothing.
        progress: show a bar on standard error.
        name: what messages call the pairs, where there are others.

    Raises:
        ValueError: no pair is left.
    """
    kind = f"training pairs of {name}" if name else "training pairs"
    pairs = [
        (source, target) for source, target in zip(sources, targets, strict=True) if source.strip() and target.strip()
    ]
    if len(pairs) < len(sources):
        logger.warning(f"{len(sources) - len(pairs)} of {len(sources)} {kind} have a blank side and are left out")
    limits = (max_source_length, max_target_length)
    path = None if cache_dir is None else cache_dir / f"{_digest(pairs, tokenizer, limits)}.safetensors"
    encoded = cached(
        path,
        EncodedPairs.load,
        make=lambda: _encode(pairs, tokenizer, limits, progress),
        save=EncodedPairs.save,
        what="the encoded training text",
    )
    if encoded.num_long:
        logger.warning(
            f"{encoded.num_long} of {len(pairs)} {kind} have more than {max_source_length} source or "
            f"{max_target_length} target tokens and are left out"
        )
    if not len(encoded):
        raise ValueError(f"of {len(sources)} {kind} none is left: they are blank or too long")
    return encoded


def _encode(
    pairs: Sequence[tuple[str, str]], tokenizer: PreTrainedTokenizerBase, limits: tuple[int, int], progress: bool
) -> EncodedPairs:
    """Chunk by chunk, as lists of Python numbers take ten times the memory of an array."""
    parts = [EncodedPairs([], [])]
    with tqdm(desc="encoding", total=len(pairs), leave=False, dynamic_ncols=True, disable=not progress) as bar:
        for start in range(0, len(pairs), ENCODE_CHUNK):
            chunk = pairs[start : start + ENCODE_CHUNK]
            parts.append(_encode_chunk(chunk, tokenizer, limits))
            bar.update(len(chunk))
    return EncodedPairs.concatenate(parts)


def _encode_chunk(
    pairs: Sequence[tuple[str, str]], tokenizer: PreTrainedTokenizerBase, limits: tuple[int, int]
) -> EncodedPairs:
    # verbose=False: the tokenizer's own warning about long sentences counts nothing
    encoded = tokenizer(
        [source for source, _ in pairs],
        text_target=[target for _, target in pairs],
        return_attention_mask=False,
        verbose=False,
    )
    kept = [
        (source, target)
        for source, target in zip(encoded["input_ids"], encoded["labels"], strict=True)
        if len(source) <= limits[0] and len(target) <= limits[1]
    ]
    return EncodedPairs(
        [source for source, _ in kept], [target for _, target in kept], num_long=len(pairs) - len(kept)
    )


def _digest(pairs: Sequence[tuple[str, str]], tokenizer: PreTrainedTokenizerBase, limits: tuple[int, int]) -> str:
    """Of all that the encoded pairs depend on."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([ENCODING_VERSION, *limits]).encode())
    # Of any kind of tokenizer, with its languages if it has several.
    with tempfile.TemporaryDirectory() as folder:
        forget_last_call(tokenizer)
        tokenizer.save_pretrained(folder)
        for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    for start in range(0, len(pairs), ENCODE_CHUNK):
        digest.update(json.dumps(pairs[start : start + ENCODE_CHUNK]).encode())
    return digest.hexdigest()


class TranslationCollator:
    """
    Pads a batch of token ids on the right and builds the model's inputs.

    Takes examples with `input_ids` and `labels` (sequences of ints, end of sentence included); returns int64 tensors
    `input_ids` [batch, source], `attention_mask` [batch, source] (1 = a real token) and `labels` [batch, target] with
    -100 on the padding. The model makes its decoder inputs from the labels.

    transformers' DataCollatorForSeq2Seq gives the same tensors for a tokenizer that pads on the right, but takes nine
    times as long: 23 instead of 2.5 ms for a batch of 25,000 padded tokens, which a GPU would wait for.
    benchmarks/loader.py measures both.
    """

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, examples: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, torch.Tensor]:
        input_ids = self._pad([example["input_ids"] for example in examples], self.pad_token_id)
        lengths = torch.tensor([len(example["input_ids"]) for example in examples])
        return {
            "input_ids": input_ids,
            "attention_mask": (torch.arange(input_ids.shape[1]) < lengths[:, None]).long(),
            "labels": self._pad([example["labels"] for example in examples], IGNORE_INDEX),
        }

    @staticmethod
    def _pad(sequences: Sequence[Sequence[int]], value: int) -> torch.Tensor:
        padded = np.full((len(sequences), max(map(len, sequences))), value, dtype=np.int64)
        for row, sequence in zip(padded, sequences, strict=True):
            row[: len(sequence)] = sequence
        return torch.from_numpy(padded)
