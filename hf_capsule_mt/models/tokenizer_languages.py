"""The languages of multilingual tokenizers: M2M100, NLLB, mBART and mBART-50.

Their tokenizers mark source and target text with a token of its language. What a model has to write first, or to begin
with, is said here and nowhere else:

    NLLB, M2M100, mBART-50    target text is `language ... </s>`; generation is forced to begin with the language
                              (`forced_bos_token_id`), behind the start token of the model's config
    mBART                     target text is `... </s> language`, which the model turns round; generation starts with
                              the language (`decoder_start_token_id`)
    NLLB, legacy_behaviour    generation as NLLB; its target text is `... </s> language`, which is an error of old
                              versions of transformers and no text to train on

Needs the standard library and transformers only, as it travels to the Hub beside the pipeline.
"""

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from transformers import GenerationConfig, PreTrainedTokenizerBase

# special tokens that are no languages
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
MOST_MATCHES = 3
# of generate, which say the target language; the first is mBART's
LANGUAGE_PARAMETERS = ("decoder_start_token_id", "forced_bos_token_id")


class LanguagePair(NamedTuple):
    """The codes of a source and a target language."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


def is_multilingual(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer has to be told its languages."""
    return hasattr(tokenizer, "_build_translation_inputs")


def language_codes(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The codes of a multilingual tokenizer, languages that were added to it included; empty for any other."""
    if not is_multilingual(tokenizer):
        return []
    # M2M100 spells the token of "en" as "__en__"
    known = getattr(tokenizer, "lang_code_to_token", None)
    if known is None:
        named = {getattr(tokenizer, name, None) for name in NAMED_TOKENS}
        known = [token for token in tokenizer.all_special_tokens if token not in named]
    return sorted(known)


def language_id(tokenizer: PreTrainedTokenizerBase, code: str) -> int:
    """The id of the token that stands for a language, which the tokenizer has to know."""
    tokens = getattr(tokenizer, "lang_code_to_token", {})
    return int(tokenizer.convert_tokens_to_ids(tokens.get(code, code)))  # type: ignore[arg-type]


def check_language(tokenizer: PreTrainedTokenizerBase, code: str) -> None:
    """
    Check that a multilingual tokenizer has a language.

    Raises:
        ValueError: it has not; names the nearest codes.
    """
    codes = language_codes(tokenizer)
    if code in codes:
        return
    near = _nearest(code, codes)
    advice = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(codes[:MOST_MATCHES])} and others"
    raise ValueError(f"{code!r} is none of the {len(codes)} languages of {type(tokenizer).__name__}; {advice}")


def _nearest(code: str, codes: Sequence[str]) -> list[str]:
    # "de", "de_DE" and "deu" for "deu_Latn", whichever of them a tokenizer has
    wanted = _base(code)
    bases = {known: _base(known) for known in codes}
    begin = [known for known, base in bases.items() if wanted and (base.startswith(wanted) or wanted.startswith(base))]
    return (begin or difflib.get_close_matches(code, codes, n=MOST_MATCHES))[:MOST_MATCHES]


def _base(code: str) -> str:
    """The language of a code without region and script."""
    return code.lower().replace("-", "_").split("_")[0]


def saved_languages(tokenizer: PreTrainedTokenizerBase) -> LanguagePair | None:
    """The pair that was saved with a multilingual tokenizer or set on it; None if it has no target language."""
    target = getattr(tokenizer, "tgt_lang", None) if is_multilingual(tokenizer) else None
    return None if target is None else LanguagePair(tokenizer.src_lang, target)


def choose_languages(
    tokenizer: PreTrainedTokenizerBase,
    source: str | None,
    target: str | None,
    saved: LanguagePair | None = None,
    names: tuple[str, str] = ("source_lang", "target_lang"),
) -> LanguagePair | None:
    """
    The languages to translate with.

    Args:
        source, target: codes as far as they are given.
        saved: for what is not given.
        names: what messages call the two.

    Returns:
        The pair; None for a tokenizer that is not multilingual.

    Raises:
        ValueError: languages for a tokenizer of one pair, none for a multilingual one, or one that it does not have.
    """
    given = [code for code in (source, target) if code is not None]
    if not is_multilingual(tokenizer):
        if given:
            raise ValueError(f"the model is one of a single pair of languages: leave out {' and '.join(given)}")
        return None
    if saved is not None:
        source, target = source or saved.source, target or saved.target
    if source is None or target is None:
        raise ValueError(
            f"the model is multilingual: give the codes of both languages ({names[0]}, {names[1]}), such as "
            f"{_example(tokenizer)}"
        )
    for name, code in zip(names, (source, target), strict=True):
        try:
            check_language(tokenizer, code)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return LanguagePair(source, target)


def _example(tokenizer: PreTrainedTokenizerBase) -> str:
    codes = [next(iter(_nearest(name, language_codes(tokenizer))), name) for name in ("en", "de")]
    return f"{codes[0]} and {codes[1]} of its {len(language_codes(tokenizer))} languages"


def set_languages(tokenizer: PreTrainedTokenizerBase, source: str | None, target: str | None) -> dict[str, int]:
    """
    Choose and set the languages of a tokenizer; what is not given is what was saved with it.

    The arguments and errors are those of `choose_languages`, the result that of `use_languages`.
    """
    return use_languages(tokenizer, choose_languages(tokenizer, source, target, saved_languages(tokenizer)))


def use_languages(tokenizer: PreTrainedTokenizerBase, pair: LanguagePair | None) -> dict[str, int]:
    """
    Set the languages of a tokenizer, for source and for target text (`text_target`).

    Args:
        pair: codes that the tokenizer has (see `choose_languages`), or None for a tokenizer of one pair.

    Returns:
        What `generate` needs to write the target language, see above.
    """
    if pair is None:
        return {}
    # the setter of the source language also puts the tokenizer into the mode of source text
    tokenizer.tgt_lang = pair.target
    tokenizer.src_lang = pair.source
    return generation_languages(tokenizer, pair)


def generation_languages(tokenizer: PreTrainedTokenizerBase, pair: LanguagePair) -> dict[str, int]:
    """What `generate` needs to write the target language of a pair, by the names of its parameters."""
    start, forced = LANGUAGE_PARAMETERS
    return {start if ends_with_language(tokenizer) else forced: language_id(tokenizer, pair.target)}


def ends_with_language(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether text ends with its language behind the end of the sentence, as that of mBART does."""
    return _language_is_last(tokenizer) and not getattr(tokenizer, "legacy_behaviour", False)


def _language_is_last(tokenizer: PreTrainedTokenizerBase) -> bool:
    return is_multilingual(tokenizer) and len(getattr(tokenizer, "suffix_tokens", ())) == 2


def check_target_text(tokenizer: PreTrainedTokenizerBase) -> None:
    """
    Check that what a tokenizer makes of target text is what its model writes.

    Raises:
        ValueError: it is an NLLB tokenizer with the `legacy_behaviour` of old versions.
    """
    if _language_is_last(tokenizer) and not ends_with_language(tokenizer):
        raise ValueError(
            f"the {type(tokenizer).__name__} has legacy_behaviour, which puts the language of target text in the "
            "wrong place: set it to false in tokenizer_config.json"
        )


@contextmanager
def languages_of(tokenizer: PreTrainedTokenizerBase, pair: LanguagePair | None) -> Iterator[dict[str, Any]]:
    """Within it, the languages of a tokenizer are those of a pair; gives what `use_languages` returns."""
    if pair is None:
        yield {}
        return
    kept = (tokenizer.src_lang, tokenizer.tgt_lang)
    try:
        yield use_languages(tokenizer, pair)
    finally:
        tokenizer.src_lang, tokenizer.tgt_lang = kept


def remember_languages(
    config: GenerationConfig, tokenizer: PreTrainedTokenizerBase, pairs: Sequence[LanguagePair]
) -> None:
    """
    Have a generation config and a multilingual tokenizer, once saved, say what their model is for.

    A model of a single pair then translates it unasked; one of several has to be told which. The config's
    `language_pairs` lists them.

    Args:
        config: changed in place, as the tokenizer is.
        pairs: at least one, of codes that the tokenizer has.
    """
    # a config that was made of that of the model forgets what that one does not have
    config._from_model_config = False
    config.forced_bos_token_id = None
    if len(pairs) == 1:
        use_languages(tokenizer, pairs[0])
        config.update(**generation_languages(tokenizer, pairs[0]))
    else:
        tokenizer.tgt_lang = None
    setattr(config, "language_pairs", [list(pair) for pair in pairs])  # noqa: B010


def saved_pairs(config: GenerationConfig) -> list[LanguagePair]:
    """
    The pairs that `remember_languages` has put into a generation config; none where it has not.

    Raises:
        ValueError: something else is in their place.
    """
    pairs = getattr(config, "language_pairs", None) or []
    are_pairs = isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
    if not are_pairs or not all(isinstance(code, str) for pair in pairs for code in pair):
        raise ValueError(f"language_pairs of the generation config must be pairs of codes of languages, got {pairs!r}")
    return [LanguagePair(*pair) for pair in pairs]
