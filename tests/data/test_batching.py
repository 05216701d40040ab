"""Token batches: bounded, complete, repeatable and independent of how they are split."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hf_capsule_mt.data import batching
from hf_capsule_mt.data.batching import (
    EncodedPairs,
    TokenBatchSampler,
    TranslationCollator,
    encode_pairs,
    sampling_quotas,
)
from hf_capsule_mt.files import only_writer
from tiny_translation import tiny_tokenizer


def random_lengths(count=997, seed=3):
    return np.random.default_rng(seed).integers(2, 31, count)


def updates(lengths, max_tokens, *, world_size=1, accumulation=1, epoch=0, seed=5, **sampling):
    """The sentences of every update, gathered over all ranks and accumulation steps."""
    samplers = [
        TokenBatchSampler(
            lengths,
            max_tokens,
            seed=seed,
            num_splits=world_size * accumulation,
            rank=rank,
            world_size=world_size,
            **sampling,
        )
        for rank in range(world_size)
    ]
    per_rank = []
    for sampler in samplers:
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler) == sampler.num_updates * accumulation
        per_rank.append(batches)
    return [
        [index for batches in per_rank for batch in batches[start : start + accumulation] for index in batch]
        for start in range(0, len(per_rank[0]), accumulation)
    ]


@pytest.mark.parametrize("num_splits", [1, 4])
def test_every_sentence_is_in_one_batch_and_batches_keep_the_bound(num_splits):
    lengths = random_lengths()
    seen = []
    for rank in range(num_splits):
        sampler = TokenBatchSampler(lengths, 128, num_splits=num_splits, rank=rank, world_size=num_splits)
        for batch in sampler:
            assert batch
            # Dealing out an update leaves a chunk at most one sentence above its even share.
            assert (len(batch) - (num_splits > 1)) * lengths[batch].max() <= 128
            seen += batch
    # The last cut may have taken in a few left-over sentences, but none is lost or repeated.
    assert sorted(seen) == list(range(len(lengths)))


def test_batches_are_full():
    lengths = random_lengths()
    padded = [len(batch) * lengths[batch].max() for batch in TokenBatchSampler(lengths, 256)]
    assert np.mean(padded) > 0.9 * 256
    assert lengths.sum() > 0.95 * sum(padded)


@pytest.mark.parametrize("epoch", [0, 3])
def test_one_large_batch_equals_two_processes_equals_two_accumulation_steps(epoch):
    lengths = random_lengths()
    whole = updates(lengths, 256, epoch=epoch)
    for split in ({"world_size": 2}, {"accumulation": 2}):
        assert [sorted(u) for u in updates(lengths, 128, epoch=epoch, **split)] == [sorted(u) for u in whole]
    quarters = updates(lengths, 64, world_size=2, accumulation=2, epoch=epoch)
    assert [sorted(u) for u in quarters] == [sorted(u) for u in whole]


def test_micro_step_i_of_rank_r_takes_chunk_i_times_world_size_plus_r():
    lengths = random_lengths(100)
    alone = list(TokenBatchSampler(lengths, 50, num_splits=4))
    ranks = [list(TokenBatchSampler(lengths, 50, num_splits=4, rank=rank, world_size=2)) for rank in (0, 1)]
    assert [ranks[chunk % 2][chunk // 2] for chunk in range(len(alone))] == alone


def test_order_depends_on_seed_and_epoch_alone():
    lengths = random_lengths()
    first = updates(lengths, 128)
    torch.manual_seed(99)
    np.random.seed(99)
    assert updates(lengths, 128) == first
    assert updates(lengths, 128, epoch=1) != first
    assert updates(lengths, 128, seed=6) != first
    assert len(updates(lengths, 128, epoch=1)) == len(first)


def test_equal_lengths_meet_other_sentences_in_another_epoch():
    together = [{frozenset(u) for u in updates([7] * 64, 28, epoch=epoch)} for epoch in (0, 1)]
    assert together[0] != together[1]


COUNTS = (700, 250, 47)
GROUPS = np.repeat(range(3), COUNTS)


@pytest.mark.parametrize("temperature", [1, 5, 0.5])
def test_quotas_are_by_the_temperature(temperature):
    quotas = sampling_quotas(COUNTS, temperature)
    probabilities = [(count / sum(COUNTS)) ** (1 / temperature) for count in COUNTS]
    expected = [sum(COUNTS) * probability / sum(probabilities) for probability in probabilities]
    assert quotas.sum() == sum(COUNTS) and np.abs(quotas - expected).max() < 1


def test_quotas_at_the_ends():
    assert sampling_quotas(COUNTS, 1).tolist() == list(COUNTS)
    assert sampling_quotas(COUNTS, 1e9).tolist() == [333, 332, 332]
    # a group that there is, is never left out
    assert sampling_quotas((999, 1, 0), 0.01).tolist() == [999, 1, 0]
    for temperature in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="temperature must be a finite number above 0"):
            sampling_quotas(COUNTS, temperature)


def sampled(temperature, epoch=0, **splits):
    return updates(random_lengths(), epoch=epoch, groups=GROUPS, temperature=temperature, **splits)


def test_temperature_of_one_takes_every_sentence_once():
    assert sampled(1, max_tokens=128) == updates(random_lengths(), 128)


@pytest.mark.parametrize("epoch", [0, 3])
def test_sampled_epoch_has_the_quotas_and_keeps_the_bound(epoch):
    lengths, quotas = random_lengths(), sampling_quotas(COUNTS, 5)
    whole = sampled(5, epoch, max_tokens=256)
    seen = [index for update in whole for index in update]
    assert np.bincount(GROUPS[seen]).tolist() == quotas.tolist()
    # but for the last cut, which may have taken in a few left-over sentences
    assert sorted(len(update) * lengths[update].max() <= 256 for update in whole)[1:] == [True] * (len(whole) - 1)
    assert len(whole) == len(sampled(5, 7, max_tokens=256))
    assert whole == sampled(5, epoch, max_tokens=256)
    assert whole != sampled(5, epoch + 1, max_tokens=256)


def test_sampled_updates_are_the_same_however_they_are_split():
    whole = [sorted(update) for update in sampled(3, 2, max_tokens=256)]
    for split in ({"world_size": 2}, {"accumulation": 2}):
        assert [sorted(update) for update in sampled(3, 2, max_tokens=128, **split)] == whole
    quarters = sampled(3, 2, max_tokens=64, world_size=2, accumulation=2)
    assert [sorted(update) for update in quarters] == whole


def test_every_sentence_of_a_group_is_seen_equally_often():
    epochs = 300
    counts = np.zeros(len(GROUPS))
    for epoch in range(epochs):
        for update in sampled(2, epoch, max_tokens=2000):
            np.add.at(counts, update, 1)
    quotas = sampling_quotas(COUNTS, 2)
    for group, quota in enumerate(quotas):
        expected = epochs * quota / COUNTS[group]
        # of a sum of as many draws
        deviation = (epochs * 0.5) ** 0.5
        assert np.abs(counts[group == GROUPS] - expected).max() < 5 * deviation


def test_sentence_above_the_bound_is_a_batch_of_its_own():
    batches = list(TokenBatchSampler([3, 3, 50, 3], 12))
    assert [2] in batches
    assert sorted(map(len, batches)) == [1, 3]


def test_left_over_sentences_are_merged_so_that_no_split_is_empty():
    # Budget 2 * 6 tokens: two sentences of 6 fill an update, and the fifth would be alone.
    for accumulation in (1, 2):
        result = updates([6] * 5, 12 // accumulation, accumulation=accumulation)
        assert sorted(index for update in result for index in update) == list(range(5))
    assert sorted(map(len, updates([6] * 5, 6, accumulation=2))) == [2, 3]


@pytest.mark.parametrize(
    "arguments,message",
    [
        pytest.param({"max_tokens": 0}, "max_tokens must be at least 1, got 0", id="no-tokens"),
        pytest.param({"num_splits": 3, "world_size": 2}, "multiple of world_size", id="uneven-splits"),
        pytest.param({"rank": 2, "world_size": 2, "num_splits": 2}, "rank must be in", id="rank"),
        pytest.param({"num_splits": 8}, "5 examples cannot be split over 8", id="too-few-examples"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        TokenBatchSampler([1, 2, 3, 4, 5], **{"max_tokens": 10, **arguments})


def test_collator_pads_each_side_with_its_own_value():
    pairs = EncodedPairs([[5, 6, 1], [7, 1]], [[8, 1], [9, 10, 11, 1]])
    batch = TranslationCollator(pad_token_id=0)([pairs[0], pairs[1]])
    assert batch["input_ids"].tolist() == [[5, 6, 1], [7, 1, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[8, 1, -100, -100], [9, 10, 11, 1]]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_pad_token_inside_a_sentence_is_not_masked():
    batch = TranslationCollator(pad_token_id=0)([{"input_ids": [5, 0, 1], "labels": [1]}])
    assert batch["attention_mask"].tolist() == [[1, 1, 1]]


def test_encoded_pairs_know_their_lengths_and_largest_tokens():
    pairs = EncodedPairs([[5, 6, 1], [7, 1]], [[8, 1], [9, 10, 11, 1]])
    assert len(pairs) == 2
    assert pairs.lengths.tolist() == [3, 4]
    assert pairs.largest_tokens == (7, 11)
    assert pairs[1]["input_ids"].tolist() == [7, 1]
    assert pairs[1]["labels"].tolist() == [9, 10, 11, 1]


class WordTokenizer:
    """One token, its length, for every word and one for the end; counts the sentence pairs that it has encoded."""

    def __init__(self, end=1):
        self.end = end
        self.num_pairs = 0

    def __call__(self, text, text_target, **_):
        self.num_pairs += len(text)
        return {
            "input_ids": [[*map(len, sentence.split()), self.end] for sentence in text],
            "labels": [[*map(len, sentence.split()), self.end] for sentence in text_target],
        }

    def save_pretrained(self, folder):
        (Path(folder) / "tokenizer.json").write_text(str(self.end))


def test_blank_and_long_pairs_are_left_out_and_counted(caplog):
    sources = ["aa aa", " ", "aa", "aa aa aa aa", "aaa"]
    targets = ["bb", "bb", "", "bb", "bb bb bb"]
    pairs = encode_pairs(sources, targets, WordTokenizer(), max_source_length=3, max_target_length=4)
    assert [pair["input_ids"].tolist() for pair in (pairs[0], pairs[1])] == [[2, 2, 1], [3, 1]]
    assert len(pairs) == 2
    assert "2 of 5 training pairs have a blank side" in caplog.text
    assert "1 of 3 training pairs have more than 3 source or 4 target tokens" in caplog.text


def test_no_warning_where_nothing_is_left_out(caplog):
    encode_pairs(["aa"], ["bb"], WordTokenizer(), 8, 8)
    assert not caplog.text


def test_corpus_of_blank_lines_is_refused():
    with pytest.raises(ValueError, match="of 2 training pairs none is left"):
        encode_pairs(["", "a"], ["b", " "], WordTokenizer(), 8, 8)


SOURCES = ["a bb", "ccc", " ", "dd dd dd dd", "e"]
TARGETS = ["aa", "c cc ccc", "d", "dd", "ee e"]


def encode(tokenizer=None, sources=SOURCES, targets=TARGETS, limits=(4, 4), **options):
    return encode_pairs(sources, targets, tokenizer or WordTokenizer(), *limits, **options)


def examples(pairs):
    """All examples, with the type of their numbers."""
    return [(name, value.dtype, value.tolist()) for pair in pairs for name, value in pair.items()]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_chunks_of_encoding_make_no_difference(monkeypatch, size):
    whole = encode()
    monkeypatch.setattr(batching, "ENCODE_CHUNK", size)
    tokenizer = WordTokenizer()
    pairs = encode(tokenizer)
    assert tokenizer.num_pairs == 4
    assert examples(pairs) == examples(whole)
    assert (pairs.lengths.tolist(), pairs.num_long) == (whole.lengths.tolist(), whole.num_long) == ([3, 4, 3], 1)


def test_text_is_encoded_once(tmp_path, caplog):
    first = encode(cache_dir=tmp_path / "new" / "cache")
    warnings = caplog.messages.copy()
    caplog.clear()
    tokenizer = WordTokenizer()
    again = encode(tokenizer, cache_dir=tmp_path / "new" / "cache")
    assert tokenizer.num_pairs == 0
    assert examples(again) == examples(first) == examples(encode())
    assert again.lengths.tolist() == first.lengths.tolist()
    assert again.largest_tokens == first.largest_tokens
    # both runs say what is left out
    assert len(warnings) == 2
    assert caplog.messages[:2] == warnings


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"sources": ["a bb", "ccc", " ", "dd dd dd", "e"]}, id="source"),
        pytest.param({"targets": ["aa", "c cc ccc", "d", "dd", "e ee"]}, id="target"),
        pytest.param({"sources": TARGETS, "targets": SOURCES}, id="direction"),
        pytest.param({"sources": ["a b", "bccc", " ", "dd dd dd dd", "e"]}, id="where-a-sentence-ends"),
        pytest.param({"sources": SOURCES[:4], "targets": TARGETS[:4]}, id="fewer-pairs"),
        pytest.param({"limits": (5, 4)}, id="source-limit"),
        pytest.param({"limits": (4, 3)}, id="target-limit"),
        pytest.param({"tokenizer": WordTokenizer(end=2)}, id="tokenizer"),
    ],
)
def test_anything_else_is_encoded_anew(tmp_path, change):
    encode(cache_dir=tmp_path)
    assert examples(encode(**change, cache_dir=tmp_path)) == examples(encode(**change))
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[:5], id="cut-off-at-once"),
        pytest.param(lambda data: data[:-4], id="cut-off-at-the-end"),
        pytest.param(lambda data: bytes(len(data)), id="zeros"),
    ],
)
def test_damaged_file_is_made_again(tmp_path, caplog, damage):
    whole = examples(encode(cache_dir=tmp_path))
    (file,) = tmp_path.glob("*.safetensors")
    content = file.read_bytes()
    file.write_bytes(damage(content))
    caplog.clear()
    assert examples(encode(cache_dir=tmp_path)) == whole
    assert f"{file} cannot be read" in caplog.text
    assert file.read_bytes() == content


def test_file_that_another_run_is_writing_is_left_to_it(tmp_path, caplog):
    encode(cache_dir=tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    file.unlink()
    with only_writer(file):
        assert examples(encode(cache_dir=tmp_path)) == examples(encode())
    assert not list(tmp_path.glob("*.safetensors")) and "cannot be kept" not in caplog.text


def test_last_call_of_the_tokenizer_makes_no_other_file(tmp_path):
    tokenizer = tiny_tokenizer()
    encode(tokenizer, limits=(40, 40), cache_dir=tmp_path)
    tokenizer(SOURCES, truncation=True, max_length=3, padding="max_length")
    encode(tokenizer, limits=(40, 40), cache_dir=tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def test_folder_that_cannot_be_written_to_is_a_warning(tmp_path, caplog):
    (tmp_path / "file").touch()
    assert examples(encode(cache_dir=tmp_path / "file")) == examples(encode())
    assert f"cannot be kept in {tmp_path / 'file'}" in caplog.text
    assert "HF_DATASETS_CACHE" in caplog.text
