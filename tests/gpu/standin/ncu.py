"""An `ncu` for machines without a GPU: it prints counts of each launch in Nsight Compute's form.

It runs the program on the stand-ins with tracemap's CUDA library, to see the launches, and makes up their counts from
the kernel's name and the launch's number (`count_of`). What it prints has the form of ncu-output.csv in
tests/programs/foreign, which was recorded on an H100. With STANDIN_FORBID_COUNTERS it says what NVIDIA's says without
permission.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

COLUMNS = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size"),
    *("Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value"),
)
FORBIDDEN = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the "
    "target device 0."
)


def count_of(kernel: str, metric: str, number: int) -> int:
    """The count of a kernel's launch with this number among its launches."""
    return zlib.crc32(f"{kernel} {metric}".encode()) % 1000 + number


def launches(program: Sequence[str]) -> tuple[int, list[str]]:
    """Run the program: its status, and its kernels in order."""
    from tracemap.runs.cuda.launches import in_submission_order
    from tracemap.runs.cuda.recording import KERNEL, process_files, read_activity, read_process

    with tempfile.TemporaryDirectory() as folder:
        own = {"CUDA_INJECTION64_PATH": os.environ["STANDIN_LIBRARY"], "TRACEMAP_CUDA_OUTPUT": folder}
        status = subprocess.run(program, env={**os.environ, **own}, check=False).returncode
        (path,) = process_files(Path(folder))
        process = read_process(path)
        work = in_submission_order(read_activity(process))
        return status, [process.names[int(row["name"])] for row in work if row["kind"] == KERNEL]


def main(words: Sequence[str]) -> int:
    options: dict[str, str] = {}
    rest = list(words)
    while rest[0].startswith("--"):
        name = rest.pop(0)
        options[name] = "" if name == "--csv" else rest.pop(0)
    assert options.keys() == {"--csv", "--print-units", "--log-file", "--cache-control", "--clock-control", "--metrics"}
    log = Path(options["--log-file"])
    if os.environ.get("STANDIN_FORBID_COUNTERS"):
        status = subprocess.run(rest, check=False).returncode
        log.write_text(f"==PROF== Connected to process 1\n{FORBIDDEN}\n", encoding="utf-8")
        return status
    status, kernels = launches(rest)
    seen: dict[str, int] = {}
    with log.open("w", encoding="utf-8", newline="") as file:
        file.write("==PROF== Connected to process 1 (/usr/bin/iree-benchmark-module)\n")
        table = csv.writer(file, quoting=csv.QUOTE_ALL)
        table.writerow(COLUMNS)
        for index, kernel in enumerate(kernels):
            number = seen[kernel] = seen.get(kernel, -1) + 1
            for metric in options["--metrics"].split(","):
                count = f"{count_of(kernel, metric, number):,}"
                head = (str(index), "1", "iree", "127.0.0.1", kernel, "1", "13", "(32, 1, 1)", "(2, 1, 1)", "0", "9.0")
                table.writerow((*head, "Command line profiler metrics", metric, "sector", count))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
