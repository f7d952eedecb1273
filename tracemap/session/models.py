"""Files of models: their content, the name of their bundle, the folder of their Python files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.codec import storable
from tracemap.errors import ModelInvalid, ModelUnreadable, UsageInvalid
from tracemap.inputs import STANDARD_INPUT, given_bytes
from tracemap.ir.foreign import why_no_model

if TYPE_CHECKING:
    from tracemap.frontends.imported import Imported

GIVEN: Final = "<string>"
"""What a model without a file is called, as Python calls code that it was given."""


def read_model(model: str | bytes) -> tuple[bytes, str]:
    """The content of a model (its file, `-`: standard input, or the content itself) and the name that it goes by.

    Raises:
        ModelUnreadable: it cannot be read.
        ModelInvalid: it is of another kind of file.
    """
    if isinstance(model, bytes):
        data, name = model, GIVEN
    else:
        data = given_bytes(model, ModelUnreadable)
        name = "<stdin>" if model == STANDARD_INPUT else storable(Path(model).name)
    if why := why_no_model(data, name):
        raise ModelInvalid(f"{name}: {why}")
    return data, name


def imported_file(model: str | bytes, folder: Path) -> Imported | None:
    """The model of a framework's file; None: it is none, and is to be read as it is.

    Args:
        model: as `read_model` takes it.
        folder: where parameters are written; it must stay until they are kept.

    Raises:
        TracemapError: as `frontends.recognising.import_file` does.
    """
    from tracemap.frontends.recognising import import_file

    return import_file(Path(model), folder) if isinstance(model, str) and model != STANDARD_INPUT else None


def own_folder(model: str | bytes) -> tuple[Path, ...]:
    """The folder below which a model's Python files are looked for last; none for a model that lies in none."""
    return () if isinstance(model, bytes) or model == STANDARD_INPUT else (Path(model).parent,)


def default_bundle(model: str | bytes) -> Path:
    """The bundle of a model that was given no other name.

    Raises:
        UsageInvalid: a model without a file has no name for its bundle.
    """
    if isinstance(model, bytes):
        raise UsageInvalid("a model that is no file needs a name for its bundle: pass output")
    if model == STANDARD_INPUT:
        raise UsageInvalid("a model from standard input needs a name for its bundle: pass -o")
    return Path(Path(model).stem + ".tracemap")
