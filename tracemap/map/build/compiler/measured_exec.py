"""Runs a program and writes its peak memory at the end, and the times of its error output as it arrives.

Arguments: the file for the result, `stamp` or `pass`, and the program with its arguments. With `stamp`, the result has
a line `@NS CPU TEXT` for each line of error output, where NS is the time of its last piece in nanoseconds, and CPU the
program's processor time at that moment; with `pass`, the program writes to this one's error output. The last line is
`peak BYTES`.

Run as a script, not imported: it starts fast, and its own memory stays below that of any compiler.
"""

from __future__ import annotations

import os
import sys
import time
from typing import BinaryIO

_CHUNK_BYTES = 1 << 16
_KIB = 1024


def run(result: str, program: list[str], *, stamps: bool) -> int:
    """Run the program; returns its exit status, or minus the signal that ended it."""
    with open(result, "wb") as out:  # noqa: PTH123 - pathlib takes longer to import than all of this
        if stamps:
            reading, writing = os.pipe()  # the program inherits neither
            pid = os.posix_spawn(program[0], program, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, writing, 2)])
            os.close(writing)
            _stamp(reading, out, pid)
        else:
            pid = os.posix_spawn(program[0], program, os.environ)
        _, status, usage = os.wait4(pid, 0)
        out.write(b"peak %d\n" % (usage.ru_maxrss * _KIB))
    return os.waitstatus_to_exitcode(status)


def _stamp(reading: int, out: BinaryIO, pid: int) -> None:
    # The clock of a process's processor time (Linux, `clock_getcpuclockid`).
    clock = (~pid << 3) | 2
    pending, stamp = b"", b""
    while chunk := os.read(reading, _CHUNK_BYTES):
        stamp = b"@%d %d " % (time.perf_counter_ns(), time.clock_gettime_ns(clock))
        *lines, pending = (pending + chunk).split(b"\n")
        out.writelines(stamp + line + b"\n" for line in lines)
    out.write(stamp + pending + b"\n")


if __name__ == "__main__":
    code = run(sys.argv[1], sys.argv[3:], stamps=sys.argv[2] == "stamp")
    sys.exit(code if code >= 0 else 128 - code)
