"""NVIDIA's own library, which knows the metrics of each chip without a GPU: whether it has those of our events."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from tracemap.capture.gpu_counters import GPU_EVENTS
from tracemap.hook.cuda import cupti_libraries

CHIPS = ("GV100", "TU102", "GA100", "GA102", "GH100", "AD102")


def sized(**fields: type) -> ctypes.Structure:
    """Parameters of a function of CUPTI's range profiler."""
    layout = [("size", ctypes.c_size_t), ("reserved", ctypes.c_void_p), *fields.items()]
    made: ctypes.Structure = type("Parameters", (ctypes.Structure,), {"_fields_": layout})()
    made.size = ctypes.sizeof(made)
    return made


def accepts(library: ctypes.CDLL, chip: str, metric: str) -> bool:
    """Whether a chip counts a metric. After one that it lacks, a host object is of no use."""
    host = sized(type=ctypes.c_int, chip=ctypes.c_char_p, availability=ctypes.c_void_p, host=ctypes.c_void_p)
    host.chip = chip.encode()
    assert library.cuptiProfilerHostInitialize(ctypes.byref(host)) == 0
    names = (ctypes.c_char_p * 1)(metric.encode())
    added = sized(host=ctypes.c_void_p, metrics=ctypes.c_void_p, count=ctypes.c_size_t)
    added.host, added.metrics, added.count = host.host, ctypes.addressof(names), 1
    return bool(library.cuptiProfilerHostConfigAddMetrics(ctypes.byref(added)) == 0)


@pytest.fixture(scope="session")
def cupti() -> ctypes.CDLL:
    found: list[Path] = cupti_libraries()
    if not found:
        pytest.skip("needs CUPTI (pip install 'tracemap[cuda]')")
    library = ctypes.CDLL(str(found[0]))
    if not hasattr(library, "cuptiProfilerHostInitialize"):
        pytest.skip("needs CUPTI of CUDA 12.6 or newer")
    return library


@pytest.mark.parametrize("chip", CHIPS)
def test_each_chip_counts_all_events(cupti: ctypes.CDLL, chip: str) -> None:
    assert [event.name for event in GPU_EVENTS if not accepts(cupti, chip, event.metric)] == []
    assert not accepts(cupti, chip, "dram__bytes_of_nothing.sum")
