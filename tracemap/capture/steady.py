"""Becomes the program given as arguments, without io_uring, and at addresses that do not vary from run to run.

Under valgrind 3.19 a program that waits in io_uring never goes on; IREE's runtime does, and polls where the kernel says
that there is no io_uring. Simulated caches depend on addresses, which the kernel varies, and which what stands in the
environment shifts. Run as a script, not imported, as `leash.py` is.
"""

import ctypes
import errno
import os
import sys

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2  # linux/prctl.h, linux/seccomp.h
_LOAD_NUMBER, _SKIP_UNLESS_EQUAL, _RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h: LD|W|ABS, JMP|JEQ|K, RET|K
_ERROR, _ALLOW = 0x00050000, 0x7FFF0000  # SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW
_IO_URING_SETUP = 425  # on all machines
_ADDR_NO_RANDOMIZE = 0x0040000  # sys/personality.h
_VARIABLES = ("LD_BIND_NOW", "LD_LIBRARY_PATH", "PATH", "TMPDIR")
_KINDS_OF_VARIABLES = ("IREE_", "VALGRIND_")


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("k", ctypes.c_uint))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction)))


def _forbid_io_uring(libc: ctypes.CDLL) -> None:
    """Where filters are not allowed either, the program may hang; whoever started it watches."""
    code = (_Instruction * 4)(
        _Instruction(_LOAD_NUMBER, 0, 0, 0),
        _Instruction(_SKIP_UNLESS_EQUAL, 0, 1, _IO_URING_SETUP),
        _Instruction(_RETURN, 0, 0, _ERROR | errno.ENOSYS),
        _Instruction(_RETURN, 0, 0, _ALLOW),
    )
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(_Program(len(code), code)), 0, 0)


if __name__ == "__main__":
    system = ctypes.CDLL(None)
    _forbid_io_uring(system)
    system.personality(_ADDR_NO_RANDOMIZE)
    kept = {n: v for n, v in os.environ.items() if n in _VARIABLES or n.startswith(_KINDS_OF_VARIABLES)}
    os.execve(sys.argv[1], sys.argv[1:], kept)
