"""Times models without tracemap: IREE's own compiler and runtime, one thread, models in turn.

`python -m tests.oracle.timing` is the process that times: it reads what to time from standard input and prints the
fastest of many medians of each model. Several processes are started, as a process has its arrays where they happen to
lie, and other programs make calls slower, never faster.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.oracle.sketch import BITS, Argument, Model, Sketch
from tests.support import PLAIN_FLAGS
from tracemap.core.toolchain import find_tool

_TURN_NS: Final = 2_500_000
"""Time for the calls of one model in one turn."""
_TURNS: Final = 24
_STABLE: Final = 0.01
"""The most by which the last process may lower a time."""
_PROCESSES: Final = (3, 6)
"""The least and the most processes."""
_HALVES: Final = {"f16": 0x3800, "bf16": 0x3F00, "f8E4M3FN": 0x30, "f8E5M2": 0x38}
"""The bits of 0.5."""
_PLAIN: Final = {"f32": np.float32, "f64": np.float32, "i32": np.int32, "i8": np.int8, "i1": np.int8}
_WIDTHS: Final = {8: np.uint8, 16: np.uint16}
_ELEMENTS: Final = {
    "f32": "FLOAT_32",
    "f64": "FLOAT_32",
    "f16": "FLOAT_16",
    "bf16": "BFLOAT_16",
    "f8E4M3FN": "FLOAT_8_E4M3_FN",
    "f8E5M2": "FLOAT_8_E5M2",
    "i32": "INT_32",
    "i8": "INT_8",
    "i4": "INT_4",
    "i1": "BOOL_8",
}


class Unfused(ValueError):
    """A model did not become one dispatch."""


def compiled(model: Model, target: Path) -> None:
    """Compile a model as plain IREE does.

    Raises:
        Unfused: it became several dispatches, or copies beside one, or does not compile.
    """
    source, statistics = target.with_suffix(".mlir"), target.with_suffix(".json")
    source.write_text(model.text, encoding="utf-8")
    counted = ("--iree-scheduling-dump-statistics-format=json", f"--iree-scheduling-dump-statistics-file={statistics}")
    command = [str(find_tool("iree-compile")), str(source), *PLAIN_FLAGS, *counted, "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unfused(f"does not compile: {done.stderr[:200]}")
    counts = json.loads(statistics.read_text(encoding="utf-8"))["stream-aggregate"]["execution"]
    numbers = [counts[f"{each}-count"] for each in ("dispatch", "fill", "copy")]
    if numbers != [1, 0, 0]:
        raise Unfused("{} dispatches, {} fills, {} copies".format(*numbers))


def best_times(models: Mapping[str, Model], folder: Path) -> dict[str, float]:
    """The time of each model's kernel in ns, less what calling any model takes.

    Raises:
        Unfused: see `compiled`.
    """
    idle = Sketch("stablehlo")
    everything = {**models, "": idle.model(idle.argument((16,)))}
    work = []
    for number, (name, model) in enumerate(everything.items()):
        target = folder / f"m{number}.vmfb"
        compiled(model, target)
        arguments = [(each.shape, each.dtype, each.below, each.shuffled) for each in model.arguments]
        work.append({"name": name, "module": str(target), "arguments": arguments})
    best = _one_process(work)
    for number in range(1, _PROCESSES[1]):
        found = _one_process(work)
        stable = all(found[name] >= best[name] * (1 - _STABLE) for name in best)
        best = {name: min(best[name], found[name]) for name in best}
        if stable and number + 1 >= _PROCESSES[0]:
            break
    return {name: best[name] - best[""] for name in models}


def _one_process(work: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.oracle.timing"]
    done = subprocess.run(command, input=json.dumps(work), capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def elements(argument: Argument) -> np.typing.NDArray[Any]:
    """The bytes of an argument as an array."""
    count = int(np.prod(argument.shape))
    if argument.below:
        numbers = np.arange(count, dtype=np.int64) % argument.below
        if argument.shuffled:
            numbers = np.random.default_rng(count).integers(0, argument.below, count)
        return numbers.astype(np.int32).reshape(argument.shape)
    if argument.dtype == "i4":
        return np.full((count + 1) // 2, 0x11, np.uint8)
    if argument.dtype in _HALVES:
        return np.full(argument.shape, _HALVES[argument.dtype], _WIDTHS[BITS[argument.dtype]])
    return np.full(argument.shape, float(argument.fill), _PLAIN[argument.dtype])


# ---- the process that times


class _Timed:
    """A loaded module, and how long calls of it took."""

    def __init__(self, entry: Mapping[str, Any], config: Any) -> None:  # noqa: ANN401 - the runtime has no types
        from iree import runtime

        self.name = entry["name"]
        self.best = float("inf")
        module = runtime.VmModule.mmap(config.vm_instance, entry["module"])
        hal = runtime.create_hal_module(config.vm_instance, config.device)
        self._context = runtime.VmContext(config.vm_instance, modules=[hal, module])
        self._function = module.lookup_function("main")
        self._given = runtime.VmVariantList(len(entry["arguments"]))
        self._kept = [_on_device(Argument(tuple(shape), *rest), config.device) for shape, *rest in entry["arguments"]]
        for each in self._kept:
            self._given.push_ref(each)
        self._call_ns()
        self._calls = int(min(400, max(3, _TURN_NS / min(self._call_ns() for _ in range(3)))))

    def _call_ns(self) -> int:
        from iree import runtime

        results = runtime.VmVariantList(1)
        start = time.perf_counter_ns()
        self._context.invoke(self._function, self._given, results)
        return time.perf_counter_ns() - start

    def turn(self) -> None:
        """Call the module for a while; the median is kept where it is the least."""
        self._call_ns()
        times = sorted(self._call_ns() for _ in range(self._calls))
        self.best = min(self.best, times[len(times) // 2])


def _on_device(argument: Argument, device: Any) -> Any:  # noqa: ANN401 - the runtime has no types
    from iree import runtime

    buffer = device.allocator.allocate_buffer_copy(
        memory_type=runtime.MemoryType.DEVICE_LOCAL,
        allowed_usage=runtime.BufferUsage.DEFAULT,
        device=device,
        buffer=np.ascontiguousarray(elements(argument)),
    )
    kind = getattr(runtime.HalElementType, _ELEMENTS[argument.dtype])
    return runtime.HalBufferView(buffer, list(argument.shape), kind)


def _timed(work: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    from iree import runtime

    with contextlib.suppress(PermissionError):
        os.nice(-20)
    config = runtime.Config("local-sync")
    modules = [_Timed(entry, config) for entry in work]
    for _ in range(_TURNS):
        for module in modules:
            module.turn()
    for module in modules:
        yield module.name, module.best


if __name__ == "__main__":
    print(json.dumps(dict(_timed(json.load(sys.stdin)))))
