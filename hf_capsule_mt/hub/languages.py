"""Languages of a published model: their codes on the Hub, and what the examples of a card have to say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from ..loading import from_checkpoint
from ..models.tokenizer_languages import (
    LanguagePair,
    choose_languages,
    generation_languages,
    language_codes,
    saved_languages,
    saved_pairs,
)

# ISO 639-1, each with its code in ISO 639-3: the Hub takes both, and finds a model by the shorter one
_ISO_639 = (
    "aa-aar ab-abk ae-ave af-afr ak-aka am-amh an-arg ar-ara as-asm av-ava ay-aym az-aze ba-bak be-bel bg-bul bi-bis "
    "bm-bam bn-ben bo-bod br-bre bs-bos ca-cat ce-che ch-cha co-cos cr-cre cs-ces cu-chu cv-chv cy-cym da-dan de-deu "
    "dv-div dz-dzo ee-ewe el-ell en-eng eo-epo es-spa et-est eu-eus fa-fas ff-ful fi-fin fj-fij fo-fao fr-fra fy-fry "
    "ga-gle gd-gla gl-glg gn-grn gu-guj gv-glv ha-hau he-heb hi-hin ho-hmo hr-hrv ht-hat hu-hun hy-hye hz-her ia-ina "
    "id-ind ie-ile ig-ibo ii-iii ik-ipk io-ido is-isl it-ita iu-iku ja-jpn jv-jav ka-kat kg-kon ki-kik kj-kua kk-kaz "
    "kl-kal km-khm kn-kan ko-kor kr-kau ks-kas ku-kur kv-kom kw-cor ky-kir la-lat lb-ltz lg-lug li-lim ln-lin lo-lao "
    "lt-lit lu-lub lv-lav mg-mlg mh-mah mi-mri mk-mkd ml-mal mn-mon mr-mar ms-msa mt-mlt my-mya na-nau nb-nob nd-nde "
    "ne-nep ng-ndo nl-nld nn-nno no-nor nr-nbl nv-nav ny-nya oc-oci oj-oji om-orm or-ori os-oss pa-pan pi-pli pl-pol "
    "ps-pus pt-por qu-que rm-roh rn-run ro-ron ru-rus rw-kin sa-san sc-srd sd-snd se-sme sg-sag si-sin sk-slk sl-slv "
    "sm-smo sn-sna so-som sq-sqi sr-srp ss-ssw st-sot su-sun sv-swe sw-swa ta-tam te-tel tg-tgk th-tha ti-tir tk-tuk "
    "tl-tgl tn-tsn to-ton tr-tur ts-tso tt-tat tw-twi ty-tah ug-uig uk-ukr ur-urd uz-uzb ve-ven vi-vie vo-vol wa-wln "
    "wo-wol xh-xho yi-yid yo-yor za-zha zh-zho zu-zul"
)
TWO_LETTERS = {long: short for short, long in (codes.split("-") for codes in _ISO_639.split())}
LANGUAGES = frozenset(TWO_LETTERS.values())
# what M2M100 calls Northern Sotho
OTHER_NAMES = {"ns": "nso"}


@dataclass(frozen=True)
class ModelLanguages:
    """
    The languages of a multilingual model, as its tokenizer calls them.

    Attributes:
        pairs: those that it was saved for; none where nobody has said any.
        codes: all that the tokenizer has.
        example: the pair that the examples of its card translate.
        is_told: whether users have to say that pair, as the model was not saved for it alone.
        parameter, token: what `generate` needs to write the target language: a parameter, and the token of its id.
    """

    pairs: list[LanguagePair]
    codes: list[str]
    example: LanguagePair
    is_told: bool
    parameter: str
    token: str

    def to_tell(self) -> dict[str, str] | None:
        """What users have to say, as JSON for `clean_process`; None where they have to say nothing."""
        if not self.is_told:
            return None
        return {**self.example._asdict(), "parameter": self.parameter, "token": self.token}


def model_languages(
    config: GenerationConfig,
    tokenizer: PreTrainedTokenizerBase,
    source: str | None = None,
    target: str | None = None,
) -> ModelLanguages | None:
    """
    The languages of a model.

    Args:
        config, tokenizer: of the model.
        source, target: codes of the pair that examples translate, both or none; the first one of the model if not
            given.

    Returns:
        They; None of a model of a single pair, which needs not be told.

    Raises:
        ValueError: see `choose_languages`; or the generation config has pairs that are none.
    """
    pairs, saved = saved_pairs(config), saved_languages(tokenizer)
    if not pairs and saved is not None:
        pairs = [saved]
    own = pairs[0] if pairs and source is None and target is None else None
    example = choose_languages(tokenizer, source, target, own)
    if example is None:
        return None
    ((parameter, token_id),) = generation_languages(tokenizer, example).items()
    is_told = saved != example or getattr(config, parameter, None) != token_id
    token: Any = tokenizer.convert_ids_to_tokens(token_id)
    return ModelLanguages(pairs, language_codes(tokenizer), example, is_told, parameter, token)


def run_languages(
    run: Path, source: str | None = None, target: str | None = None, *, trust_remote_code: bool = False
) -> ModelLanguages | None:
    """
    The languages of the model in a folder, see `model_languages`.

    Raises:
        OSError: it has no tokenizer.
    """
    tokenizer = from_checkpoint(AutoTokenizer, run, trust_remote_code=trust_remote_code)
    has_config = (run / "generation_config.json").is_file()
    config = GenerationConfig.from_pretrained(run) if has_config else GenerationConfig()  # nosec B615
    return model_languages(config, tokenizer, source, target)


def is_language(code: Any) -> bool:
    """Whether this is a code of ISO 639 as the Hub takes it."""
    return isinstance(code, str) and (code in LANGUAGES or re.fullmatch("[a-z]{3}", code) is not None)


def hub_language(code: str) -> str:
    """
    The code of a language on the Hub, without region and script: "pt" of "pt-BR", "de" of "deu_Latn".

    One that is not of ISO 639 stays what it is, see `is_language`.
    """
    language = code.lower().replace("_", "-").split("-")[0]
    language = OTHER_NAMES.get(language, language)
    return TWO_LETTERS.get(language, language)


def hub_languages(codes: Iterable[str]) -> list[str]:
    """The codes on the Hub in their order, each once."""
    return list(dict.fromkeys(map(hub_language, codes)))


def in_order(pairs: Sequence[Sequence[str]]) -> list[str]:
    """The languages of pairs, source before target."""
    return [code for pair in pairs for code in pair]


def are_pairs(value: Any) -> bool:
    """Whether this is a list of pairs, as JSON has it."""
    return isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value)


def recorded_pairs(results: dict[str, Any]) -> list[Sequence[str]]:
    """
    The pairs of languages of a run.

    Args:
        results: its results.json, whose parts are of the right types.

    Raises:
        ValueError: a code that the Hub does not know.
    """
    arguments = results["arguments"]
    named = {"language_pairs": results.get("language_pairs")}
    if not named["language_pairs"]:
        named = {f"arguments.{key}": [[arguments.get(key)]] for key in ("source_lang", "target_lang")}
    for name, pairs in named.items():
        for code in in_order(pairs or []):
            if not isinstance(code, str) or not is_language(hub_language(code)):
                raise ValueError(
                    f"{name} of the results is {code!r}, not an ISO 639 code such as de, which the Hub wants: train "
                    "with files that are named after such a code"
                )
    return results.get("language_pairs") or [[arguments["source_lang"], arguments["target_lang"]]]
