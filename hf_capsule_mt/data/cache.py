"""Files that keep what takes long to make of a text, in datasets' cache folder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError

from ..files import only_writer

logger = logging.getLogger(__name__)

T = TypeVar("T")


def cached(
    path: Path | None, load: Callable[[Path], T], make: Callable[[], T], save: Callable[[T, Path], None], what: str
) -> T:
    """
    What a file keeps, or what is made and then kept there. A damaged file is made again; where it cannot be written,
    a warning says so and all else goes on.

    Args:
        path: its name says all that the content depends on. None keeps nothing.
        load: raises FileNotFoundError where there is no file, and ValueError, OSError or SafetensorError for a
            damaged one.
        save: writes a file that is there in whole or not at all.
        what: what messages call the content.
    """
    if path is None:
        return make()
    try:
        return load(path)
    except FileNotFoundError:
        pass
    except (SafetensorError, ValueError, OSError) as error:
        logger.warning(f"{path} cannot be read ({error}): {what} is made again")
    content = make()
    try:
        with only_writer(path):
            save(content, path)
    except ValueError:
        # another run writes the same
        pass
    except (SafetensorError, OSError) as error:
        logger.warning(
            f"{what} cannot be kept in {path.parent} ({error}): the next run makes it again, unless the environment "
            "variable HF_DATASETS_CACHE names a folder that can be written to"
        )
    return content
