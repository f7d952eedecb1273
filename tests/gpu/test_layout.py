"""The fields of CUPTI's records in our definitions, compared with NVIDIA's own headers where they are installed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from tests.hook.support import need_compiler
from tracemap.hook.compiling import FOLDER, find_compiler

# Ours: theirs (the newest structure of a name is the one with the largest number), and our fields with theirs.
SIZED = "size=structSize reserved=pPriv"
STRUCTURES = {
    "activity_kernel": (
        "CUpti_ActivityKernel",
        "kind registers=registersPerThread start_ns=start end_ns=end device=deviceId context=contextId stream=streamId "
        "grid_x=gridX grid_y=gridY grid_z=gridZ block_x=blockX block_y=blockY block_z=blockZ "
        "static_shared=staticSharedMemory dynamic_shared=dynamicSharedMemory correlation=correlationId name "
        "graph_node=graphNodeId graph=graphId",
    ),
    "activity_copy": (
        "CUpti_ActivityMemcpy",
        "kind copy_kind=copyKind bytes start_ns=start end_ns=end device=deviceId context=contextId stream=streamId "
        "correlation=correlationId graph_node=graphNodeId graph=graphId",
    ),
    "activity_peer_copy": (
        "CUpti_ActivityMemcpyPtoP",
        "kind copy_kind=copyKind bytes start_ns=start end_ns=end device=deviceId context=contextId stream=streamId "
        "correlation=correlationId graph_node=graphNodeId graph=graphId",
    ),
    "activity_fill": (
        "CUpti_ActivityMemset",
        "kind value bytes start_ns=start end_ns=end device=deviceId context=contextId stream=streamId "
        "correlation=correlationId graph_node=graphNodeId graph=graphId",
    ),
    "activity_call": (
        "CUpti_ActivityAPI",
        "kind function=cbid start_ns=start end_ns=end process=processId thread=threadId correlation=correlationId",
    ),
    "activity_overhead": ("CUpti_ActivityOverhead", "kind overhead_kind=overheadKind start_ns=start end_ns=end"),
    "activity_migration": (
        "CUpti_ActivityUnifiedMemoryCounter",
        "kind counter=counterKind value start_ns=start end_ns=end source_device=srcId target_device=dstId "
        "process=processId",
    ),
    "activity_device": (
        "CUpti_ActivityDevice",
        "kind bandwidth_kb_s=globalMemoryBandwidth memory_bytes=globalMemorySize l2_bytes=l2CacheSize "
        "clock_khz=coreClockRate multiprocessors=numMultiprocessors capability_major=computeCapabilityMajor "
        "capability_minor=computeCapabilityMinor id uuid name is_mig=isMigEnabled gpu_instance=gpuInstanceId",
    ),
    "callback_data": (
        "CUpti_CallbackData",
        "site=callbackSite function=functionName parameters=functionParams result=functionReturnValue "
        "symbol=symbolName context",
    ),
    "resource_data": ("CUpti_ResourceData", "context"),
    "chip_parameters": ("CUpti_Device_GetChipName_Params", f"{SIZED} device=deviceIndex name=pChipName"),
    "availability_parameters": (
        "CUpti_Profiler_GetCounterAvailability_Params",
        f"{SIZED} context=ctx image_size=counterAvailabilityImageSize image=pCounterAvailabilityImage",
    ),
    "host_parameters": (
        "CUpti_Profiler_Host_Initialize_Params",
        f"{SIZED} type=profilerType chip=pChipName availability=pCounterAvailabilityImage host=pHostObject",
    ),
    "metrics_parameters": (
        "CUpti_Profiler_Host_ConfigAddMetrics_Params",
        f"{SIZED} host=pHostObject metrics=ppMetricNames count=numMetrics",
    ),
    "config_size_parameters": (
        "CUpti_Profiler_Host_GetConfigImageSize_Params",
        f"{SIZED} host=pHostObject config_size=configImageSize",
    ),
    "config_parameters": (
        "CUpti_Profiler_Host_GetConfigImage_Params",
        f"{SIZED} host=pHostObject config_size=configImageSize config=pConfigImage",
    ),
    "evaluate_parameters": (
        "CUpti_Profiler_Host_EvaluateToGpuValues_Params",
        f"{SIZED} host=pHostObject image=pCounterDataImage image_size=counterDataImageSize range=rangeIndex "
        "metrics=ppMetricNames count=numMetrics values=pMetricValues",
    ),
    "enable_parameters": ("CUpti_RangeProfiler_Enable_Params", f"{SIZED} context=ctx profiler=pRangeProfilerObject"),
    "range_parameters": ("CUpti_RangeProfiler_Start_Params", f"{SIZED} profiler=pRangeProfilerObject"),
    "image_size_parameters": (
        "CUpti_RangeProfiler_GetCounterDataSize_Params",
        f"{SIZED} profiler=pRangeProfilerObject metrics=pMetricNames count=numMetrics ranges=maxNumOfRanges "
        "nodes=maxNumRangeTreeNodes image_size=counterDataSize",
    ),
    "image_parameters": (
        "CUpti_RangeProfiler_CounterDataImage_Initialize_Params",
        f"{SIZED} profiler=pRangeProfilerObject image_size=counterDataSize image=pCounterData",
    ),
    "set_config_parameters": (
        "CUpti_RangeProfiler_SetConfig_Params",
        f"{SIZED} profiler=pRangeProfilerObject config_size=configSize config=pConfig image_size=counterDataImageSize "
        "image=pCounterDataImage range replay=replayMode ranges=maxRangesPerPass levels=numNestingLevels "
        "least_level=minNestingLevel pass=passIndex level=targetNestingLevel",
    ),
    "stop_parameters": (
        "CUpti_RangeProfiler_Stop_Params",
        f"{SIZED} profiler=pRangeProfilerObject pass=passIndex level=targetNestingLevel is_all=isAllPassSubmitted",
    ),
    "decode_parameters": (
        "CUpti_RangeProfiler_DecodeData_Params",
        f"{SIZED} profiler=pRangeProfilerObject dropped=numOfRangeDropped",
    ),
    "info_parameters": (
        "CUpti_RangeProfiler_GetCounterDataInfo_Params",
        f"{SIZED} image=pCounterDataImage image_size=counterDataImageSize ranges=numTotalRanges",
    ),
    "migration_config": (
        "CUpti_ActivityUnifiedMemoryCounterConfig",
        "scope counter=kind device=deviceId enable",
    ),
}
CONSTANTS = {
    "ACTIVITY_MEMCPY": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "ACTIVITY_MEMSET": "CUPTI_ACTIVITY_KIND_MEMSET",
    "ACTIVITY_KERNEL": "CUPTI_ACTIVITY_KIND_KERNEL",
    "ACTIVITY_DRIVER": "CUPTI_ACTIVITY_KIND_DRIVER",
    "ACTIVITY_DEVICE": "CUPTI_ACTIVITY_KIND_DEVICE",
    "ACTIVITY_CONCURRENT_KERNEL": "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL",
    "ACTIVITY_OVERHEAD": "CUPTI_ACTIVITY_KIND_OVERHEAD",
    "ACTIVITY_MEMCPY2": "CUPTI_ACTIVITY_KIND_MEMCPY2",
    "ACTIVITY_UNIFIED_MEMORY_COUNTER": "CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER",
    "FLUSH_FORCED": "CUPTI_ACTIVITY_FLAG_FLUSH_FORCED",
    "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES_OURS": "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES",
    "MIGRATION_TO_DEVICE": "CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD",
    "MIGRATION_TO_HOST": "CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH",
    "MIGRATION_BETWEEN_DEVICES": "CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOD",
    "DOMAIN_DRIVER_API": "CUPTI_CB_DOMAIN_DRIVER_API",
    "DOMAIN_RESOURCE": "CUPTI_CB_DOMAIN_RESOURCE",
    "CONTEXT_DESTROY_STARTING": "CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING",
    "API_ENTER": "CUPTI_API_ENTER",
    "AUTO_RANGE": "CUPTI_AutoRange",
    "KERNEL_REPLAY": "CUPTI_KernelReplay",
    "SCOPE_SINGLE_DEVICE": "CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_SINGLE_DEVICE",
}
CALLS = {
    216: "cuMemsetD8Async",
    218: "cuMemsetD16Async",
    220: "cuMemsetD32Async",
    249: "cuMemsetD8_v2",
    251: "cuMemsetD32_v2",
    276: "cuMemcpyHtoD_v2",
    277: "cuMemcpyHtoDAsync_v2",
    278: "cuMemcpyDtoH_v2",
    279: "cuMemcpyDtoHAsync_v2",
    305: "cuMemcpy",
    306: "cuMemcpyAsync",
    307: "cuLaunchKernel",
    514: "cuGraphLaunch",
    652: "cuLaunchKernelEx",
}


def header_folders() -> list[list[Path]]:
    """Folders with CUPTI's headers and cuda.h, one list per installation."""
    spec = importlib.util.find_spec("nvidia")
    wheels = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    found = [[place / "cu13" / "include"] for place in wheels]
    found += [[place / f"{name}/include" for name in ("cuda_cupti", "cuda_runtime")] for place in wheels]
    found += [[path] for path in sorted(Path("/usr/local").glob("cuda-*/include"))]
    found += [
        [path, path.parents[2] / "include"] for path in sorted(Path("/usr/local").glob("cuda-*/extras/CUPTI/include"))
    ]

    def has(folders: list[Path], name: str) -> bool:
        return any((folder / name).is_file() for folder in folders)

    return [folders for folders in found if has(folders, "cupti_activity.h") and has(folders, "cuda.h")]


def newest(text: str, name: str) -> str:
    """The structure of a name with the largest number."""
    numbers = re.findall(rf"\b{name}(\d*);", text) or [""]  # of the other headers
    return f"{name}{max(numbers, key=lambda number: int(number or 1))}"


def program(folders: list[Path]) -> str:
    """C that compiles only if the layouts agree. Both sets of headers define some names, so theirs come first."""
    text = "".join(
        (folder / "cupti_activity.h").read_text(encoding="utf-8", errors="replace")
        for folder in folders
        if (folder / "cupti_activity.h").is_file()
    )
    lines = ["#include <cuda.h>", "#include <cupti.h>", "#include <cupti_profiler_target.h>", "#include <stddef.h>"]
    lines += ["#include <cupti_target.h>", "#include <cupti_range_profiler.h>", "#include <cupti_profiler_host.h>"]
    theirs = [f"enum {{ THEIR_{name} = {value} }};" for name, value in CONSTANTS.items()]
    undefined = [f"#undef {name}" for name in ("CUPTI_SUCCESS", "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")]
    lines += [*theirs, *undefined, "#define struct_of_ours struct"]
    own = (FOLDER / "cuda" / "cupti.h").read_text(encoding="utf-8")
    lines.append(
        own.split("/* ---- functions */")[0].replace("#pragma once", "")
    )  # the functions are declared by theirs
    for ours, (name, fields) in STRUCTURES.items():
        theirs_name = newest(text, name)
        for field in fields.split():
            mine, _, other = field.partition("=")
            lines.append(
                f"_Static_assert(offsetof(struct {ours}, {mine}) == offsetof({theirs_name}, {other or mine}) && "
                f"sizeof(((struct {ours} *)0)->{mine}) == sizeof((({theirs_name} *)0)->{other or mine}), "
                f'"{ours}.{mine}");'
            )
        lines.append(f'_Static_assert(sizeof(struct {ours}) <= sizeof({theirs_name}) + 4, "{ours}");')
    for name in CONSTANTS:
        if not name.endswith("_OURS"):
            lines.append(f'_Static_assert({name} == THEIR_{name}, "{name}");')
    lines += [
        f'_Static_assert(CUPTI_DRIVER_TRACE_CBID_{name} == {number}, "{name}");' for number, name in CALLS.items()
    ]
    return "\n".join(lines)


def compiles(source: str, folders: list[Path], tmp_path: Path) -> str:
    """The compiler's complaint; empty: none."""
    file = tmp_path / "layout.c"
    file.write_text(source, encoding="utf-8")
    (tmp_path / "string").touch()  # NVIDIA's header for C includes one of C++
    places = [f"-I{folder}" for folder in (*folders, tmp_path)]
    command = [*find_compiler(), "-std=gnu11", "-include", "stdbool.h", "-fsyntax-only", *places, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def test_fields_are_where_nvidias_headers_have_them(tmp_path: Path) -> None:
    need_compiler()
    folders = header_folders()
    if not folders:
        pytest.skip(
            "needs the headers of CUPTI and CUDA (pip install nvidia-cuda-cupti nvidia-cuda-runtime nvidia-cuda-crt)"
        )
    for installed in folders:
        assert compiles(program(installed), installed, tmp_path) == ""
        moved = program(installed).replace("uint64_t at_96;", "uint64_t at_96[2];")
        assert "activity_kernel" in compiles(moved, installed, tmp_path)


def test_every_call_that_submits_has_a_name() -> None:
    text = (FOLDER / "cuda" / "cupti.h").read_text(encoding="utf-8")
    assert {int(number) for number in re.findall(r"X\((\d+)\)", text)} == CALLS.keys()
