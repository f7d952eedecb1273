"""What numpy makes of a file that may be damaged, as an error of ours."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, Final

from tracemap.errors import TracemapError

if TYPE_CHECKING:
    import numpy as np

_REFUSED: Final = (
    *(OSError, ValueError, EOFError, SyntaxError, TypeError, MemoryError, OverflowError, RecursionError, TokenError),
)
"""What numpy raises of a file that is no array, or a damaged one: it parses the head as Python's literals."""


@contextmanager
def refused_as(kind: type[TracemapError], why: str, remedy: str = "") -> Iterator[None]:
    """Raise an error of a kind where numpy refuses a file: `why`, numpy's words, and the remedy.

    What numpy and the parser warn of on the way, such as heads that only Python 2 writes, helps nobody here.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except _REFUSED as error:
        raise kind(f"{why} ({error}){remedy}") from error


def mapped_array(file: Path) -> np.ndarray[Any, Any]:
    """The array of a file, mapped, so that a damaged head asks for no more memory than the file has bytes.

    Raises:
        what `refused_as` makes an error of ours: there is no array, or one of Python's objects.
    """
    import numpy as np

    values: np.ndarray[Any, Any] = np.lib.format.open_memmap(file, mode="r")
    return values
