"""The CUDA library: CUDA's driver loads it into a process, where it records kernels, copies and fills.

`CUDA_INJECTION64_PATH` names it, so no preloading is needed, and any process with that variable records itself. It
opens NVIDIA's CUPTI, which comes with the extra `cuda`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracemap.hook.compiling import CUDA_LIBRARY_NAME, FOLDER, built_library

INJECTION: Final = "CUDA_INJECTION64_PATH"
"""The variable with the library that CUDA's driver loads at the first use of CUDA in a process."""
_CUPTI: Final = "TRACEMAP_CUDA_CUPTI"
"""The variable with the CUPTI libraries to try, separated by colons; set by a user, it is not changed."""
_WHEELS: Final = ("cu13/lib/libcupti.so.13", "cuda_cupti/lib/libcupti.so.12")
"""CUPTI in the packages nvidia-cuda-cupti and nvidia-cuda-cupti-cu12, below the folder `nvidia`."""
_TOOLKITS: Final = (
    "usr/local/cuda-*/extras/CUPTI/lib64/libcupti.so.1[23]",
    "usr/local/cuda-*/lib64/libcupti.so.1[23]",
    "usr/local/cuda-*/lib/libcupti.so.1[23]",
)
"""Patterns of CUPTI in NVIDIA's toolkits, below the root."""


@dataclass(frozen=True, slots=True)
class CudaSettings:
    """Settings of a recording; the defaults record everything.

    `megabytes`: limit of all record files of a process. `keep`: `oldest` leaves out what comes after the limit;
    `newest` removes the oldest file. `skip_ms`: leave out work that begins earlier, counted from the first use of CUDA.
    `seconds`: leave out work that begins later, counted from there (0: no limit).
    """

    megabytes: int = 1024
    keep: str = "oldest"
    skip_ms: int = 0
    seconds: int = 0


EVERYTHING: Final = CudaSettings()


def cuda_library_path() -> Path:
    """The path of the library.

    Raises:
        HookUnavailable: it was not built, or does not support this platform.
    """
    return built_library(FOLDER / CUDA_LIBRARY_NAME, "the library for CUDA")


def cupti_libraries() -> list[Path]:
    """The CUPTI libraries of installed packages and toolkits, the preferred ones first."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    in_wheels = [Path(folder, name) for name in _WHEELS for folder in folders]
    in_toolkits = sorted((path for pattern in _TOOLKITS for path in Path("/").glob(pattern)), reverse=True)
    found = [path for path in (*in_wheels, *in_toolkits) if path.is_file()]
    return list({path.resolve(): path for path in reversed(found)}.values())[::-1]  # toolkits have links, too


def counters_environment(output: Path, metrics: Sequence[str]) -> dict[str, str]:
    """Environment variables that make a program count its launches by NVIDIA's metrics, instead of timing them.

    Args:
        output: the folder of the record files; it must exist.
        metrics: NVIDIA's names of metrics.

    Raises:
        HookUnavailable: there is no library.
    """
    return {**cuda_environment(output), "TRACEMAP_CUDA_COUNTERS": ",".join(metrics)}


def cuda_environment(output: Path, settings: CudaSettings = EVERYTHING) -> dict[str, str]:
    """Environment variables that make a program record its work on CUDA devices.

    Args:
        output: the folder of the record files; it must exist.
        settings: settings of the recording.

    Raises:
        HookUnavailable: there is no library.
    """
    return {
        INJECTION: str(cuda_library_path()),
        "TRACEMAP_CUDA_OUTPUT": str(output.resolve()),
        _CUPTI: os.environ.get(_CUPTI) or ":".join(map(str, cupti_libraries())),
        "TRACEMAP_CUDA_MB": str(settings.megabytes),
        "TRACEMAP_CUDA_KEEP": settings.keep,
        "TRACEMAP_CUDA_SKIP_MS": str(settings.skip_ms),
        "TRACEMAP_CUDA_SECONDS": str(settings.seconds),
    }
