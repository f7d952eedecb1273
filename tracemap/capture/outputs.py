"""Call a function once with `iree-run-module`; print its outputs, write them to files, or read them as arrays."""

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
_NUMPY_ELEMENTS: Final = frozenset(
    {
        *("i1", "index", "f16", "f32", "f64", "complex<f32>", "complex<f64>"),
        *(f"{sign}i{bits}" for sign in ("", "s", "u") for bits in (8, 16, 32, 64)),
    }
)
"""Element types that the runtime writes to numpy files."""


def run_call(call: Call, targets: Sequence[str]) -> str:
    """Call the function; returns its printed outputs.

    Args:
        call: the call.
        targets: the target of each output, in the syntax of `--output`; empty: print all.

    Raises:
        ProgramFailed: the program failed.
    """
    ending = run_program(call.command(RUN_TOOL, *(f"--output={target}" for target in targets)))
    ending.check(f"{RUN_TOOL}, which called {call.entry.name},")
    return ending.stdout


def check_number(call: Call, given: Sequence[str], option: str) -> None:
    """Check that an option is given once per output, or not at all.

    Raises:
        UsageInvalid: it is given more or less often.
    """
    if given and len(given) != len(call.results):
        returns = f"{call.entry.name} returns {plural(len(call.results), 'output')}"
        raise UsageInvalid(
            f"{returns} ({', '.join(call.results) or 'none'}), {len(given)} given; give one {option} per output"
        )


# ---- files


@contextmanager
def laid_aside(targets: Sequence[str], folder: Path, *, force: bool) -> Iterator[list[str]]:
    """Replace target files by temporary ones in `folder`; at the end they replace the targets atomically.

    Raises:
        UsageInvalid: IREE does not know a target, or two targets are the same file.
        TargetExists: a file exists and `force` is not set; a file to append to may exist.
        TargetUnwritable: a file cannot be written.
    """
    names: dict[str, Path] = {}
    for target in targets:
        if target not in ("", "-") and (target[0] not in "@+" or not target[1:]):
            raise UsageInvalid(f"--output={target} is no target; write - , @FILE.npy, @FILE.bin, +FILE or nothing")
    new_files = [Path(target[1:]) for target in targets if target.startswith("@")]
    check_files(*new_files, force=force)
    for target in targets:
        path = target[1:]
        if not path or path in names:
            continue
        names[path] = folder / f"output{len(names)}{Path(path).suffix}"  # IREE derives the format from the suffix
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
class _ArrayFile:
    """How an output becomes an array: the file to write, and the type if the file does not contain it."""

    path: Path
    shaped: Shaped | None
    """None: the numpy file contains the type."""

    def read(self, output: str) -> Array:
        """The array; `output` is its name in messages.

        Raises:
            OutputInvalid: its shape is unknown.
        """
        import numpy as np

        if self.shaped is None:
            array: Array = np.load(self.path, allow_pickle=False)
            return array
        import ml_dtypes

        values = np.fromfile(self.path, dtype=getattr(ml_dtypes, number_type(self.shaped.element)))
        sizes = self.shaped.sizes or ()
        if sizes.count(None) > 1 or (None in sizes and 0 in sizes):
            raise OutputInvalid(f"{output} has several dynamic dimensions; write it with --output=@FILE.bin")
        return values.reshape([-1 if size is None else size for size in sizes])


def called_for_arrays(call: Call, folder: Path) -> list[Array]:
    """Call the function and read its outputs as arrays; scalars have no dimensions.

    Raises:
        OutputInvalid: an output has a type that no array holds.
        ProgramFailed: the program failed.
    """
    files = [_array_file(call.entry, index, kind, folder) for index, kind in enumerate(call.results)]
    run_call(call, [f"@{file.path}" for file in files])
    return [file.read(_output_name(call.entry, index, call.results[index])) for index, file in enumerate(files)]


def _array_file(entry: Function, index: int, kind: str, folder: Path) -> _ArrayFile:
    shaped = parsed(kind)
    if shaped is None or shaped.element in _NUMPY_ELEMENTS:  # for an undeclared type, the numpy file contains it
        return _ArrayFile(folder / f"array{index}.npy", None)
    if not number_type(shaped.element):
        raise OutputInvalid(f"{_output_name(entry, index, kind)} has a type that no array holds; write it as @FILE.bin")
    return _ArrayFile(folder / f"array{index}.bin", shaped)


def _output_name(entry: Function, index: int, kind: str) -> str:
    return f"{entry.name}: result[{index}] ({kind})"
