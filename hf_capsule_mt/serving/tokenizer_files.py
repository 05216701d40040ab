"""Tokenizers as files that the library `tokenizers` reads by itself."""

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase


def source_and_target(tokenizer: PreTrainedTokenizerBase) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizer of the source, and that of translations.

    Raises:
        ValueError: if it is written in Python, and is none that is known here.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(
            f"a {type(tokenizer).__name__} runs in Python, where an exported model has the library tokenizers alone: "
            "use a tokenizer with a tokenizer.json"
        )
    copy = Tokenizer.from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy, copy
