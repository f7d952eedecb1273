"""Dispatches of a running program are observed: their order, constants and bindings, and the memory at each."""

from __future__ import annotations

import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.conftest import Built
from tests.gpu import sites_in_order
from tests.support import SAMPLES
from tracemap.capture.dispatches import ObservedDispatch, ProgramMemory, observe_dispatches
from tracemap.core.toolchain import find_tool
from tracemap.hook.compiling import FOLDER, LIBRARY_NAME
from tracemap.map.bundle import load

pytestmark = pytest.mark.skipif(
    not (FOLDER / LIBRARY_NAME).is_file(),
    reason="the hook's library is not built: no C compiler when tracemap was installed",
)


def command(bundle: Path, *options: str) -> list[str]:
    """The stock runtime calling the sample's function, with the inputs of its flag file."""
    flags = SAMPLES / "flags" / f"{bundle.stem}.flags"
    module = f"--module={bundle / 'module.vmfb'}"
    return [str(find_tool("iree-run-module")), "--device=local-task", module, f"--flagfile={flags}", *options]


@dataclass
class Recorder:
    """Keeps each dispatch, and the floats in its bindings before and after it."""

    dispatches: list[ObservedDispatch] = field(default_factory=list)
    before: list[list[npt.NDArray[Any]]] = field(default_factory=list)
    after: list[list[npt.NDArray[Any]]] = field(default_factory=list)

    def begins(self, dispatch: ObservedDispatch, memory: ProgramMemory) -> None:
        self.dispatches.append(dispatch)
        self.before.append(floats(dispatch, memory))

    def ends(self, dispatch: ObservedDispatch, memory: ProgramMemory) -> None:
        assert dispatch is self.dispatches[-1]
        self.after.append(floats(dispatch, memory))


def floats(dispatch: ObservedDispatch, memory: ProgramMemory) -> list[npt.NDArray[Any]]:
    found = []
    for address, length in dispatch.bindings:
        data = np.zeros(length, np.uint8)
        memory.read(address, data)
        found.append(data[: length // 4 * 4].view(np.float32))
    return found


def test_dispatches_are_those_of_the_program_in_order(built: Built) -> None:
    bundle = built("hand_mlp")
    recorder = Recorder()
    ending = observe_dispatches(command(bundle, "--output="), recorder)
    assert ending.status == 0
    kernels = {site.id: site.kernel for site in load(bundle).graph.sites}
    assert [dispatch.kernel for dispatch in recorder.dispatches] == [kernels[site] for site in sites_in_order(bundle)]
    assert [dispatch.number for dispatch in recorder.dispatches] == list(range(len(kernels)))
    assert len(recorder.after) == len(recorder.before)
    assert all(min(dispatch.workgroups) >= 1 for dispatch in recorder.dispatches)


def test_memory_is_that_of_the_dispatch(built: Built) -> None:
    """The first dispatch is relu(x w + b), of the constants in the flag file."""
    recorder = Recorder()
    observe_dispatches(command(built("hand_mlp"), "--output="), recorder)
    inputs, written = recorder.before[0], recorder.after[0]
    by_size = {array.size: array for array in inputs if np.unique(array).size == 1}
    assert by_size[32 * 784][0] == np.float32(0.5)
    assert by_size[784 * 256][0] == np.float32(0.01)
    results = [array for array, old in zip(written, inputs, strict=True) if not np.array_equal(array, old)]
    expected = 784 * 0.5 * np.float64(np.float32(0.01)) + np.float64(np.float32(0.1))
    assert any(np.allclose(array[: 32 * 256], expected, rtol=1e-4) for array in results)


def test_constants_are_those_of_the_call(built: Built) -> None:
    """A program with dynamic shapes passes its sizes as push constants."""
    recorder = Recorder()
    observe_dispatches(command(built("hand_dynamic"), "--output="), recorder)
    constants = [number for dispatch in recorder.dispatches for number in dispatch.constants]
    assert {24, 64} & set(constants), constants


def test_the_program_computes_what_it_computes_alone(built: Built, tmp_path: Path) -> None:
    """Observation changes no result."""
    bundle = built("hand_mlp")
    ending = observe_dispatches(command(bundle, f"--output=@{tmp_path / 'out.npy'}"), Recorder())
    assert ending.status == 0

    subprocess.run(command(bundle, f"--output=@{tmp_path / 'alone.npy'}"), check=True, capture_output=True)
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "alone.npy").read_bytes()


def test_an_observer_that_fails_ends_with_its_error(built: Built) -> None:
    """The program ends as well, and no thread is left."""

    class Failing(Recorder):
        def ends(self, dispatch: ObservedDispatch, memory: ProgramMemory) -> None:
            super().ends(dispatch, memory)
            raise ValueError("this observer fails")

    failing, before = Failing(), threading.active_count()
    with pytest.raises(ValueError, match="this observer fails"):
        observe_dispatches(command(built("hand_mlp"), "--output="), failing)
    assert len(failing.dispatches) == 1
    assert threading.active_count() == before


def test_a_program_that_fails_is_reported(built: Built) -> None:
    recorder = Recorder()
    ending = observe_dispatches(command(built("hand_mlp"), "--function=absent"), recorder)
    assert ending.failed
    assert "absent" in ending.stderr
    assert recorder.dispatches == []
