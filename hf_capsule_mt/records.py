"""What records of runs say of the machine that made them: never a secret, and when they are published no path."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

# Parts of the names of arguments and keys whose values are secret: `hub_token`, but not `max_tokens_per_batch`.
SECRET_PARTS = frozenset(
    ("token", "key", "apikey", "password", "passwd", "passphrase", "secret", "secrets", "credential", "credentials")
)
REMOVED = "***"
# Tokens as their issuers make them, wherever they stand. Long enough that no word, number or weight looks like one.
_TOKENS = (
    r"hf_[A-Za-z0-9]{16,}",  # Hugging Face, of a user
    r"api_org_[A-Za-z0-9]{16,}",  # Hugging Face, of an organisation
    r"gh[pousr]_[A-Za-z0-9]{20,}",  # GitHub
    r"github_pat_\w{20,}",
    r"glpat-[\w-]{16,}",  # GitLab
    r"(?<![A-Za-z0-9])sk-(?=[\w-]*\d)[\w-]{20,}",  # OpenAI, Anthropic and others
    r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}",  # AWS
    r"AIza[\w-]{35}",  # Google
    r"xox[abeprs]-[\w-]{10,}",  # Slack
    r"npm_[A-Za-z0-9]{36}",
    r"pypi-[\w-]{40,}",
    r"eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}",  # JSON Web Tokens
)
# What no pattern of the token alone finds: a private key, a key beside its name, a password in an address.
_PRIVATE_KEY = r"-----BEGIN [A-Z ]*PRIVATE KEY-----"
_NAMED_KEY = r"(?i:aws_secret_access_key|secret_access_key|hf_token|hub_token|api_key)\W{1,5}[A-Za-z0-9/+_-]{16,}"
_IN_ADDRESS = r"(?<=://)[^\s/@:'\"]*:[^\s/@'\"]+(?=@)"
SECRET_TEXT = re.compile("|".join((*_TOKENS, _PRIVATE_KEY, _NAMED_KEY, _IN_ADDRESS)))
_SECRET_BYTES = re.compile(SECRET_TEXT.pattern.encode(), re.ASCII)

# Where a path of some machine begins: of the root, of a home folder, of a drive, of a share, of a parent folder.
_ROOTS = r"file:|~[\w.-]*[/\\]|[A-Za-z]:[/\\]|\\\\|\.\.[/\\]|/(?=[^\s/])(?!(?<=</)\w+>)|//(?=[^\s/])"
# Not within a word, a relative path or an address, nor the end of an element of HTML; addresses of other schemes are
# passed over as a whole.
_ADDRESS = r"\b(?!file:)[A-Za-z][A-Za-z0-9+.-]+://(?:(?!=(?:[/~\\]|file:|[A-Za-z]:))[^\s\"'`])*"
_PATH_START = re.compile(rf"(?P<address>{_ADDRESS})|(?<![\w.~/\\-])(?:{_ROOTS})")
# In a record every text is a value, so that a path goes on, over spaces too, up to what no folder's name has in it.
_PATH_END = re.compile(r"[\"'`<>|;,\n\r]|:(?![/\\])|$")
_LOCAL_PATH = re.compile(
    r"""(?<![\w.~/\\:-])(?:/[\w.-]+/|//[\w.-]+/|~[\w.-]*[/\\]|[A-Za-z]:[/\\](?!/))[^\s"'`)]*"""
    r"""|(?<=[\w]:)/(?:home|root|Users|mnt|tmp|data|var|opt)/[^\s"'`)]*"""
    r"""|\bfile:/[^\s"'`)]*|\\\\[\w.$-]+\\[^\s"'`)]*"""
)


def is_secret(name: str) -> bool:
    """
    Whether the value of an argument or key with this name is a secret, by the parts of the name. `pad_token_id` and
    `operations_per_token` are names of numbers.
    """
    parts = [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", str(name))]
    for before, part, after in zip(["", *parts], parts, [*parts[1:], ""], strict=False):
        if part in SECRET_PARTS and before != "per" and after not in ("id", "ids"):
            return True
        if (before, part) == ("api", "keys"):
            return True
    return False


def without_secrets(record: Any) -> Any:
    """A record of JSON's types without the values of secret keys, and without tokens in its texts."""
    return _cleaned(record, _without_tokens)


def command_without_secrets(argv: Sequence[str]) -> list[str]:
    """The words of a command line without secret arguments and their values, and without tokens in the others."""
    kept: list[str] = []
    dropping = False
    for word in argv:
        if word.startswith("--"):
            name, equals, _ = word[2:].partition("=")
            secret = is_secret(name)
            dropping = secret and not equals
            if secret:
                continue
        elif dropping:
            continue
        kept.append(word)
    return [_word(word, _without_tokens) for word in kept]


def public_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """
    The record of a run as it is published: without secrets, and with `path/to/NAME` for every path of the machine.

    Args:
        record: what `hf-capsule-mt train` or `distill` wrote, JSON's types; "command" is a command line.

    Returns:
        A new record; cleaning it again changes nothing.
    """
    cleaned = _cleaned(record, _public_text)
    if "command" in record:
        cleaned["command"] = _public_command(str(record["command"]))
    return cleaned


def find_secrets(lines: Iterable[bytes]) -> Iterator[tuple[int, str]]:
    """Number, from 1, and beginning of every line with a secret."""
    for number, line in enumerate(lines, 1):
        found = _SECRET_BYTES.search(line)
        if found:
            yield number, found[0][:6].decode("ascii", "replace")


def find_paths(text: str) -> list[str]:
    """Paths of some machine in sentences; there they have at least two folders, as a slash alone is no path."""
    return sorted({found[0] for found in _LOCAL_PATH.finditer(text)})


def texts(value: Any) -> Iterator[str]:
    """Every text in a record of JSON's types; keys are none."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from texts(item)
    elif isinstance(value, str):
        yield value


def _cleaned(value: Any, clean: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _cleaned(item, clean) for key, item in value.items() if not (is_secret(key) and _can_hide(item))}
    if isinstance(value, (list, tuple)):
        return [_cleaned(item, clean) for item in value]
    return _json_or_text(value, clean) if isinstance(value, str) else value


def _public_command(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError:
        # Not from this package, which quotes what it writes.
        words = command.split()
    return shlex.join(_word(word, _public_text) for word in command_without_secrets(words))


def _can_hide(value: Any) -> bool:
    """Nothing, yes and no give no secret away."""
    return value is not None and not isinstance(value, bool)


def _json_or_text(text: str, clean: Any) -> str:
    """A text that is a JSON object, as some arguments are, is cleaned by its keys."""
    if text.lstrip().startswith("{"):
        try:
            content = json.loads(text)
        except ValueError:
            return clean(text)
        cleaned = _cleaned(content, clean)
        return text if cleaned == content else json.dumps(cleaned, ensure_ascii=False)
    return clean(text)


def _word(word: str, clean: Any) -> str:
    """A word of a command line; an argument's name is not part of its value."""
    found = re.fullmatch(r"(--?[\w-]+=)(.*)", word, re.DOTALL)
    return found[1] + _json_or_text(found[2], clean) if found else _json_or_text(word, clean)


def _without_tokens(text: str) -> str:
    return SECRET_TEXT.sub(REMOVED, text)


def _public_text(text: str) -> str:
    """The text with the last name alone of every path that is some machine's."""
    text = _without_tokens(text)
    pieces, position = [], 0
    while found := _PATH_START.search(text, position):
        if found["address"] is not None:
            pieces.append(text[position : found.end()])
            position = found.end()
            continue
        ended = _PATH_END.search(text, found.end())
        end = len(text) if ended is None else ended.start()
        names = [
            name for name in re.split(r"[/\\]+", text[found.start() : end]) if name.strip() not in ("", "..", ".")
        ]
        name = names[-1].strip() if names else ""
        # Of a folder that is all there is, such as ~ or C:, nothing is left that could be named.
        bare = not name or name == "file:" or re.fullmatch(r"[A-Za-z]:|~[\w.-]*", name)
        pieces += [text[position : found.start()], "path/to/folder" if bare else f"path/to/{name}"]
        position = end
    return "".join(pieces) + text[position:]
