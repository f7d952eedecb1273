"""exec() wrapper for valgrind: no io_uring, and the same memory addresses in every run.

Under valgrind 3.19 a program that waits in io_uring hangs. IREE's runtime falls back to poll if the kernel reports no
io_uring. Simulated caches depend on addresses, which ASLR and the size of the environment change. So ASLR is disabled,
and only a few environment variables are passed on. Run as a script, not imported, as `exec_with_parent.py` is.
"""

from __future__ import annotations

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
_VARIABLE_PREFIXES = ("IREE_", "VALGRIND_")


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("k", ctypes.c_uint))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction)))


def _forbid_io_uring(libc: ctypes.CDLL) -> None:
    """Block io_uring by a seccomp filter. If filters are forbidden, the program may hang; the parent watches for it."""
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
    names = [name for name in os.environ if name in _VARIABLES or name.startswith(_VARIABLE_PREFIXES)]
    variables = {name: os.environ[name] for name in names}
    os.execve(sys.argv[1], sys.argv[1:], variables)
