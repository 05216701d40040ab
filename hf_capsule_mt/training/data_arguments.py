"""Arguments of the parallel corpus: its files, its languages, and the tokenizer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from ..data.corpus import GRAMMAR
from ..models.tokenizer_languages import LanguagePair, check_language, is_multilingual
from ..trust_arguments import OPERATORS_HELP, TRUST_HELP
from .help_text import argument

# where the data is not called by its languages
COLUMNS = ("source_column", "target_column", "source_lang_column", "target_lang_column")


@dataclass
class DataArguments:
    """The parallel corpus and its tokenizer."""

    _argument_group_name = "data"

    source_lang: str | None = argument(
        "Language code: ending of the file names, or key of the records; of a multilingual model, as its tokenizer "
        "has it (eng_Latn)."
    )
    target_lang: str | None = argument("Language code of the translations.")
    source_column: str | None = argument(
        "Ending of the file names, or field of the records, of the source text; default: source_lang."
    )
    target_column: str | None = argument("The same for the translations; default: target_lang.")
    source_lang_column: str | None = argument(
        "Field with the source language of each record, in the place of source_lang, for multilingual models."
    )
    target_lang_column: str | None = argument("The same for the target language.")
    language_pairs: list[str] | None = field(
        default=None,
        metadata={
            "help": "Several pairs of languages, such as eng_Latn-deu_Latn fra_Latn-eng_Latn, for multilingual "
            "models: of each the files PREFIX.PAIR.SOURCE_LANG and PREFIX.PAIR.TARGET_LANG."
        },
    )
    sampling_temperature: float = argument(
        "T of the sampling over pairs of languages: one of n_i among n sentences is drawn with a probability that is "
        "proportional to (n_i / n)^(1/T).",
        1.0,
    )
    train_file: str | None = argument(
        "Prefix of two text files PREFIX.SOURCE_LANG and PREFIX.TARGET_LANG, or a .jsonl file of "
        '{"translation": {"en": ..., "de": ...}} lines, or a table (.csv, .tsv, .parquet).'
    )
    validation_file: str | None = argument("As train_file; translated and scored during training.")
    test_file: str | None = argument("As train_file; translated and scored at the end.")
    dataset_name: str | None = argument(
        "Instead of files: a data set on the Hub with a 'translation' column, or 'grammar', the embedded corpus."
    )
    dataset_config_name: str | None = argument("Configuration of the data set on the Hub.")
    data_dir: str | None = argument(
        "Where relative file names are looked up; default: $HF_CAPSULE_MT_DATA, or else the current folder. Names "
        "that start with ./ or ../ are always relative to the current folder."
    )
    max_train_samples: int | None = argument(
        "Use the first so many training pairs, of each of language_pairs (grammar: generate so many)."
    )
    max_eval_samples: int | None = argument("The same for validation.")
    max_test_samples: int | None = argument("The same for the test set.")
    tokenizer_name_or_path: str | None = argument(
        "Tokenizer to use; default: that of model_name_or_path, or else a new one, trained on the training text."
    )
    tokenizer_algorithm: Literal["unigram", "bpe"] = argument("Of a new tokenizer.", "unigram")
    vocab_size: int = argument("Joint pieces of a new tokenizer, the 256 byte pieces included.", 32000)
    max_source_length: int | None = argument(
        "Longer training pairs are left out; default: max_position_embeddings (capsule-rnn: the tokenizer's limit)."
    )
    max_target_length: int | None = argument("The same for the target side.")
    trust_remote_code: bool = argument(f"{TRUST_HELP.capitalize()}.", False)
    operators: list[str] | None = field(default=None, metadata={"help": OPERATORS_HELP})

    def split_file(self, split: str) -> str | None:
        """The file of a split: "train", "validation" or "test"."""
        return getattr(self, f"{split}_file")

    def has_split(self, split: str) -> bool:
        """Whether the recipe names this split; a data set is taken to have all three."""
        return self.dataset_name is not None or self.split_file(split) is not None

    def max_samples(self, split: str) -> int | None:
        """How many pairs of a split are used at most."""
        return {"train": self.max_train_samples, "validation": self.max_eval_samples, "test": self.max_test_samples}[
            split
        ]

    def validate(self) -> None:
        """
        Check that the corpus is named completely.

        Raises:
            ValueError: a missing or contradictory key.
        """
        files = [f"{split}_file" for split in ("train", "validation", "test") if self.split_file(split)]
        if self.dataset_name is not None and files:
            raise ValueError(f"give either dataset_name ({self.dataset_name}) or {', '.join(files)}, not both")
        if self.dataset_name is None and self.train_file is None:
            raise ValueError("missing key train_file (or dataset_name): the run has no training data")
        if not 0 < self.sampling_temperature < math.inf:
            raise ValueError(f"sampling_temperature must be a finite number above 0, got {self.sampling_temperature}")
        if self.language_pairs is not None:
            self._validate_pairs()
            return
        for key in ("source_lang", "target_lang"):
            column = getattr(self, f"{key}_column")
            if getattr(self, key) is None and column is None:
                raise ValueError(f"missing key {key}: the data needs a source and a target language, such as en, de")
            if getattr(self, key) is not None and column is not None:
                raise ValueError(f"give either {key} or {key}_column: one language for all records, or one for each")
        if self.has_several_pairs and self.dataset_name == GRAMMAR:
            raise ValueError(f"dataset_name={GRAMMAR} is English and German alone: give source_lang and target_lang")
        if not self.has_several_pairs and self.source_lang == self.target_lang:
            raise ValueError(f"source_lang and target_lang are both {self.source_lang!r}")
        self._validate_temperature()

    def _validate_pairs(self) -> None:
        others = ("source_lang", "target_lang", *COLUMNS)
        given = [key for key in others if getattr(self, key) is not None]
        if given:
            raise ValueError(f"language_pairs names the languages and their files already: leave out {given[0]}")
        if self.dataset_name is not None:
            raise ValueError("language_pairs needs text files: give train_file in the place of dataset_name")
        pairs = self.pairs
        if len(set(pairs)) < len(pairs):
            raise ValueError(f"language_pairs names a pair twice: {', '.join(map(str, pairs))}")
        self._validate_temperature()

    def _validate_temperature(self) -> None:
        if self.sampling_temperature != 1 and not self.has_several_pairs:
            raise ValueError(
                "sampling_temperature is one over several pairs of languages: give language_pairs, or "
                "source_lang_column or target_lang_column, or leave it out"
            )

    @property
    def has_several_pairs(self) -> bool:
        """Whether the data may have several pairs of languages."""
        return any(
            value is not None for value in (self.language_pairs, self.source_lang_column, self.target_lang_column)
        )

    @property
    def pairs(self) -> list[LanguagePair]:
        """
        Those of language_pairs.

        Raises:
            ValueError: one that is no pair.
        """
        pairs = []
        for text in self.language_pairs or ():
            codes = text.split("-")
            if len(codes) != 2 or not all(codes) or codes[0] == codes[1]:
                raise ValueError(f"language_pairs: {text!r} is no pair of two languages, such as eng_Latn-deu_Latn")
            pairs.append(LanguagePair(*codes))
        return pairs

    def corpus(self, split: str) -> dict[str, Any]:
        """The arguments of `load_split` for a split: "train", "validation" or "test"."""
        shared = {name: getattr(self, name) for name in ("source_lang", "target_lang", *COLUMNS)}
        return {
            **shared,
            "language_pairs": self.pairs,
            "file": self.split_file(split),
            "dataset_name": self.dataset_name,
            "dataset_config_name": self.dataset_config_name,
            "data_dir": self.data_dir,
            "max_samples": self.max_samples(split),
        }


def language_check(data: DataArguments, tokenizer: PreTrainedTokenizerBase | None) -> Callable[[str], None] | None:
    """
    Check the languages of the arguments for a tokenizer.

    Args:
        tokenizer: None where one of the corpus is to be trained.

    Returns:
        What checks the languages of records (`load_split`); None where any name will do.

    Raises:
        ValueError: a language that a multilingual tokenizer does not have, or several pairs without such a tokenizer.
    """
    if tokenizer is None or not is_multilingual(tokenizer):
        if data.has_several_pairs:
            kind = "a new tokenizer" if tokenizer is None else f"the {type(tokenizer).__name__}"
            raise ValueError(
                f"several pairs of languages need a multilingual model, and {kind} is of one pair: start from such as "
                "NLLB, or give source_lang and target_lang alone"
            )
        return None
    named = [(f"language_pairs {pair}", code) for pair in data.pairs for code in pair]
    for name, code in [("source_lang", data.source_lang), ("target_lang", data.target_lang), *named]:
        if code is None:
            continue
        try:
            check_language(tokenizer, code)
        except ValueError as error:
            column = name.replace("_lang", "_column")
            advice = "" if data.pairs else f" (what the corpus calls it goes into --{column})"
            raise ValueError(f"{name}: {error}{advice}") from None
    return partial(check_language, tokenizer)
