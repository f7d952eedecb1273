"""What a bundle keeps to call its module with: the arrays that a program was handed in with, and its parameters.

    call.json      which function, its inputs in order, and the files of parameters by scope
    inputs/        an array of numpy for each argument
    parameters/    files that IREE's runtime reads parameters from

Parameters that the user named are left where they lie: `call.json` refers to them. A bundle without `call.json` keeps
nothing of the kind: a model's file says what types its arguments have, no more.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from tracemap.codec import Document, Record, encode

if TYPE_CHECKING:
    import numpy as np

CALL_NAME: Final = "call.json"
INPUTS_FOLDER: Final = "inputs"
PARAMETERS_FOLDER: Final = "parameters"


class KeptInput(Record, frozen=True):
    """An argument's array: what the program calls the argument, and the file in `inputs/`."""

    name: str
    file: str


class KeptParameters(Record, frozen=True):
    """A file of parameters, and the scope in which the module looks for them ("": none).

    `file`: its name in `parameters/`, "" where it lies elsewhere; `path`: where that is, "" where it does not.
    """

    scope: str
    file: str
    path: str


class KeptCall(Document, frozen=True, kw_only=True):
    """What the bundle keeps of a call; as JSON it is a `call.json` of version 2, which can refer to parameters.

    `function`: whose inputs they are; without `inputs` none are kept, and they are made up where none are given.
    """

    schema_version: Literal[2] = 2
    kind: Literal["call"] = "call"
    function: str
    inputs: tuple[KeptInput, ...] = ()
    parameters: tuple[KeptParameters, ...] = ()


@dataclass(frozen=True, slots=True)
class Keeping:
    """What is to be kept: arrays with the names of their arguments, and files of parameters with their scopes.

    `references`: parameters that are not copied; they take the place of those of the same scope.
    """

    function: str = ""
    inputs: tuple[tuple[str, np.ndarray[Any, Any]], ...] = ()
    parameters: tuple[tuple[str, Path], ...] = ()
    references: tuple[tuple[str, Path], ...] = ()

    def store(self, folder: Path) -> None:
        """Write it into the folder of a bundle; where there is nothing to keep, nothing."""
        if not self.inputs and not self.parameters and not self.references:
            return
        elsewhere = {scope for scope, _ in self.references}
        copied = [(scope, path) for scope, path in self.parameters if scope not in elsewhere]
        inputs = tuple(KeptInput(name, f"{number}.npy") for number, (name, _) in enumerate(self.inputs))
        kept = tuple(KeptParameters(scope, f"{number}{path.suffix}", "") for number, (scope, path) in enumerate(copied))
        referred = tuple(KeptParameters(scope, "", str(path.absolute())) for scope, path in self.references)
        call = KeptCall(function=self.function, inputs=inputs, parameters=(*kept, *referred))
        (folder / CALL_NAME).write_bytes(encode(call))
        self._store_inputs(folder / INPUTS_FOLDER)
        (folder / PARAMETERS_FOLDER).mkdir()
        for each, (_, path) in zip(kept, copied, strict=True):
            shutil.copyfile(path, folder / PARAMETERS_FOLDER / each.file)

    def _store_inputs(self, folder: Path) -> None:
        import numpy as np

        folder.mkdir()
        for number, (_, values) in enumerate(self.inputs):
            np.save(folder / f"{number}.npy", values, allow_pickle=False)
