"""A second reference, for kernels that numpy has none for: the same kernel compiled without tiles and vectors.

It shares the compiler's lowering of single operations with what it judges, and none of what chooses, tiles, fuses and
vectorises loops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracemap.errors import ModelInvalid, ToolFailed
from tracemap.experiments.cases import Case
from tracemap.experiments.configuring import with_pipeline
from tracemap.experiments.filling import left_behind, whole_memory
from tracemap.experiments.job import Job, written_path
from tracemap.experiments.model import Verification
from tracemap.experiments.reference.elements import EPSILON, SURPRISES
from tracemap.experiments.reference.kernel import Precision
from tracemap.experiments.running import Ended, run_job
from tracemap.experiments.verifying import NOT_FINITE, judged
from tracemap.experiments.wrapping import compile_wrapped, wrapped
from tracemap.ir.parsing import MlirParser, walk

NAME: Final = "iree-compile without tiles and vectors"
_PIPELINE: Final = "Default"
_TILES: Final = ("lowering_config", "compilation_info")
_DEVICE: Final = "local-sync"


@dataclass(frozen=True)
class Plain:
    """Kernels to compare with themselves, compiled plainly.

    `configured`: the bundle's kernels before code generation; `module`: what is judged, `numbers` the cases that have
    no other reference, by their number there.
    """

    configured: bytes
    flags: tuple[str, ...]
    module: Path
    cases: Sequence[Case]
    folder: Path
    limit_s: float

    def verified(self, numbers: Sequence[int]) -> Mapping[int, Verification]:
        """What comes out, of those that can be compiled plainly and come to their end."""
        found: dict[int, Verification] = {}
        for number in numbers:
            # One by one: a kernel that cannot be compiled so takes no other's reference away.
            module = self._compiled(number)
            verification = None if module is None else self._compared(number, module)
            if verification is not None:
                found[number] = verification
        return found

    def _compiled(self, number: int) -> Path | None:
        parser = MlirParser()
        module = parser.parse(self.configured)
        try:
            for operation in walk(module.operation):
                for name in _TILES:
                    if name in operation.attributes:
                        del operation.attributes[name]
            with_pipeline(module.operation, _PIPELINE, parser)
            text = wrapped(module, [self.cases[number].dispatch])
            return compile_wrapped(text, self.flags, self.folder, f"plain-{number}")
        except (ModelInvalid, ToolFailed):
            return None

    def _compared(self, number: int, module: Path) -> Verification | None:
        """Both on the same data; None where one of them does not come to its end."""
        case = self.cases[number]
        memories = []
        for path, call in ((module, case.call(0)), (self.module, case.call(number))):
            job = Job((written_path(path),), _DEVICE, (call,), written_path(self.folder), 0, 1, 0)
            (answer,) = run_job(job, self.folder, self.limit_s, lambda _: None)
            if isinstance(answer, Ended):
                return None
            memories.append(left_behind(call, whole_memory(call), self.folder, answer.call))
        stored = [access.view.whole_bytes for access in case.accesses if access.stored]
        try:
            expected, actual = memories
            found = judged(case.call(0), expected, actual, stored, NAME, self._precision(case))
        except SURPRISES:
            return None
        return None if found.reason == NOT_FINITE else found

    def _precision(self, case: Case) -> Precision:
        """How exact floats can be where it is not known how many go into a sum: as many as a binding has, at most."""
        epsilons = [EPSILON[access.view.element] for access in case.accesses if access.view.element in EPSILON]
        longest = max((math.prod(access.view.extents) for access in case.accesses), default=1)
        coarsest = max(epsilons, default=0.0)
        return Precision(coarsest, coarsest * math.sqrt(longest), approximated=True)
