"""Translations that grow while they are made, with their routing, as data for the view in `analysis/page/`.

Needs torch and transformers only, and travels with a demonstration on the Hub, see `hub.space`.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
    TextIteratorStreamer,
)

from ..analysis.sentence_routing import sentence_routing
from ..models.pipeline_translation import TranslationPipeline, encode_truncated, max_source_length
from ..models.tokenizer_languages import choose_languages, language_codes, saved_languages, saved_pairs

# More is too much for the maps, and for the patience of those who wait behind it
MAX_TOKENS = 100
MAX_CHARACTERS = 20 * MAX_TOKENS


class System:
    """
    A model that a demonstration shows. One thread at a time may use it.

    Args:
        name: what the page calls it; the names of a demonstration differ.
        model: any encoder-decoder model that translates, in evaluation mode.
        tokenizer: its tokenizer.
        description: what is special about it, in a few words.
        languages: codes of source and target that a multilingual model begins with; the first pair that it was saved
            for if not given.

    Attributes:
        languages: the pair that it translates now; None of a model of one pair.
        choices: the codes that `use_languages` takes, those that the model was saved for first.

    Raises:
        ValueError: the tokenizer needs languages, or does not have these.
    """

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        description: str = "",
        languages: tuple[str | None, str | None] = (None, None),
    ) -> None:
        self.name, self.description = name, description
        self.model, self.tokenizer = model, tokenizer
        self._pipeline = TranslationPipeline(model=model, tokenizer=tokenizer, task="translation")
        saved, pairs = saved_languages(tokenizer), saved_pairs(model.generation_config)
        pairs = [saved, *pairs] if saved is not None else pairs
        self.languages = choose_languages(tokenizer, *languages, saved=pairs[0] if pairs else None)
        trained = [code for pair in pairs for code in pair]
        self.choices = list(dict.fromkeys([*trained, *language_codes(tokenizer)]))
        self._at_work = threading.Lock()

    def close(self) -> None:
        """
        Wait until the model has answered, and let nobody ask it again: who does waits forever. A thread that computes
        when Python ends would abort the process.
        """
        self._at_work.acquire()

    def use_languages(self, source: str, target: str) -> None:
        """
        Translate these from now on; a model of one pair goes on as it is.

        Raises:
            ValueError: the tokenizer does not have one of them.
        """
        if self.languages is not None:
            self.languages = choose_languages(self.tokenizer, source, target)

    @property
    def _languages(self) -> dict[str, Any]:
        """As the pipeline takes them."""
        return {} if self.languages is None else dict(zip(("src_lang", "tgt_lang"), self.languages, strict=True))

    def cut(self, sentence: str) -> str:
        """The sentence, or as much of its beginning as can be translated and shown."""
        sentence = sentence[:MAX_CHARACTERS]
        limit = min(MAX_TOKENS, max_source_length(self.tokenizer, self.model.config))
        encoded, (excess,) = encode_truncated(self.tokenizer, [sentence], limit)
        return self._text(encoded["input_ids"][0]) if excess else sentence

    def translate(self, sentence: str, num_beams: int) -> Iterator[tuple[str, list[int] | None]]:
        """
        The translation while it grows, word by word; by beam search it is there at the end only.

        Args:
            sentence: not blank.
            num_beams: 1 is greedy decoding.

        Yields:
            The text so far and, when it is finished, the token ids from the one that starts the decoder on [1 + T].

        Raises:
            Exception: whatever the model raises.
        """
        if num_beams > 1:
            ids = self._generate(sentence, num_beams=num_beams)
        else:
            ids = yield from self._grow(sentence)
        yield self._text(ids), ids.tolist()

    def _text(self, token_ids: Any) -> str:
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=True))

    def _generate(self, sentence: str, **generation: Any) -> Tensor:
        generation |= {"return_tensors": True, "do_sample": False, **self._languages}
        with self._at_work:
            (result,) = self._pipeline([sentence], **generation)
        return result["translation_token_ids"]

    def _grow(self, sentence: str) -> Generator[tuple[str, None], None, Tensor]:
        """Greedy decoding in a thread of its own, which ends with whoever reads the words."""
        streamer = TextIteratorStreamer(self.tokenizer, skip_prompt=True, skip_special_tokens=True)
        stopped = threading.Event()
        results: list[Tensor] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                criteria = StoppingCriteriaList([_Stopped(stopped)])
                options = {"streamer": streamer, "stopping_criteria": criteria}
                results.append(self._generate(sentence, num_beams=1, **options))
            except BaseException as error:
                errors.append(error)
                streamer.end()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            text = ""
            for words in streamer:
                text += words
                if words:
                    yield text.strip(), None
        finally:
            stopped.set()
            thread.join()
        if errors:
            raise errors[0]
        return results[0]

    def routing(self, sentence: str, token_ids: list[int]) -> dict[str, Any]:
        """
        How the sentence was routed while it was translated, see `sentence_routing`.

        Args:
            sentence: the source.
            token_ids: its translation as `translate` gives it.
        """
        source = self._pipeline.preprocess(sentence, **self._languages)["input_ids"].to(self.model.device)
        target = torch.tensor([token_ids], device=self.model.device)
        with self._at_work:
            return sentence_routing(self.model, self.tokenizer, source, target[:, :-1], target[:, 1:])


class _Stopped(StoppingCriteria):
    """Ends generation when nobody waits for it any more."""

    def __init__(self, stopped: threading.Event) -> None:
        self.stopped = stopped

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return torch.full((len(input_ids),), self.stopped.is_set(), device=input_ids.device)
