"""A function called once by `iree-run-module`: its outputs printed, written to files, or read as arrays."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.capture.benchmark import run_program
from tracemap.capture.calling import Call
from tracemap.capture.elements import Shaped, number_type, parsed
from tracemap.errors import OutputInvalid, UsageInvalid
from tracemap.functions import Function
from tracemap.outputs import check_files, replaced
from tracemap.units import plural

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

RUN_TOOL: Final = "iree-run-module"
_OF_NUMPY: Final = frozenset(
    {
        *("i1", "index", "f16", "f32", "f64", "complex<f32>", "complex<f64>"),
        *(f"{sign}i{bits}" for sign in ("", "s", "u") for bits in (8, 16, 32, 64)),
    }
)
"""Elements that the runtime writes to numpy's files."""


def run_call(call: Call, targets: Sequence[str]) -> str:
    """Call the function; returns what was printed.

    Args:
        call: what is called.
        targets: where each output goes, as `--output` has it; none: all are printed.

    Raises:
        ProgramFailed: it failed.
    """
    ending = run_program(call.command(RUN_TOOL, *(f"--output={target}" for target in targets)))
    ending.check(f"{RUN_TOOL}, which called {call.entry.name},")
    return ending.stdout


def check_number(call: Call, given: Sequence[str], option: str) -> None:
    """Refuse another number of an option than there are outputs.

    Raises:
        UsageInvalid: there are more or fewer.
    """
    if given and len(given) != len(call.results):
        returns = f"{call.entry.name} returns {plural(len(call.results), 'output')}"
        raise UsageInvalid(
            f"{returns} ({', '.join(call.results) or 'none'}), {len(given)} given; give one {option} per output"
        )


# ---- files


@contextmanager
def laid_aside(targets: Sequence[str], folder: Path, *, force: bool) -> Iterator[list[str]]:
    """The targets with names in a folder in place of the files; when all went well these take the places of those.

    Raises:
        UsageInvalid: a target is none that IREE knows, or two go to one place.
        TargetExists: a file exists and `force` is not set; it may where it is appended to.
        TargetUnwritable: a file cannot be written.
    """
    names: dict[str, Path] = {}
    for target in targets:
        if target not in ("", "-") and (target[0] not in "@+" or not target[1:]):
            raise UsageInvalid(f"--output={target} goes nowhere; write - , @FILE.npy, @FILE.bin, +FILE or nothing")
    made = [Path(target[1:]) for target in targets if target.startswith("@")]
    check_files(*made, force=force)
    for target in targets:
        path = target[1:]
        if not path or path in names:
            continue
        names[path] = folder / f"output{len(names)}{Path(path).suffix}"  # of which IREE takes the kind of the file
        if target.startswith("+"):
            check_files(Path(path), force=True)
            if Path(path).is_file():
                shutil.copyfile(path, names[path])
    yield [f"{target[0]}{names[target[1:]]}" if target[1:] else target for target in targets]
    with ExitStack() as places:
        for path, written in names.items():
            shutil.copyfile(written, places.enter_context(replaced(Path(path))))


# ---- arrays


@dataclass(frozen=True, slots=True)
class _Form:
    """How an output comes to be an array: the file that it is written to, and the type that is not told there."""

    path: Path
    shaped: Shaped | None
    """None: numpy's file tells."""

    def read(self, said: str) -> Array:
        """The array; `said` names the output.

        Raises:
            OutputInvalid: its shape is not known.
        """
        import numpy as np

        if self.shaped is None:
            array: Array = np.load(self.path, allow_pickle=False)
            return array
        import ml_dtypes

        values = np.fromfile(self.path, dtype=getattr(ml_dtypes, number_type(self.shaped.element)))
        sizes = self.shaped.sizes or ()
        if sizes.count(None) > 1 or (None in sizes and 0 in sizes):
            raise OutputInvalid(f"{said} has sizes that nothing tells; write it with --output=@FILE.bin")
        return values.reshape([-1 if size is None else size for size in sizes])


def called_for_arrays(call: Call, folder: Path) -> list[Array]:
    """Call the function, and read its outputs; scalars have no dimensions.

    Raises:
        OutputInvalid: one is of a type that no array holds.
        ProgramFailed: it failed.
    """
    forms = [_form(call.entry, place, kind, folder) for place, kind in enumerate(call.results)]
    run_call(call, [f"@{form.path}" for form in forms])
    return [form.read(_said(call.entry, place, call.results[place])) for place, form in enumerate(forms)]


def _form(entry: Function, place: int, kind: str, folder: Path) -> _Form:
    shaped = parsed(kind)
    if shaped is None or shaped.element in _OF_NUMPY:  # where no type is declared, numpy's file tells it
        return _Form(folder / f"array{place}.npy", None)
    if not number_type(shaped.element):
        raise OutputInvalid(f"{_said(entry, place, kind)} is of a type that no array holds; write it as @FILE.bin")
    return _Form(folder / f"array{place}.bin", shaped)


def _said(entry: Function, place: int, kind: str) -> str:
    return f"{entry.name}: result[{place}] ({kind})"
