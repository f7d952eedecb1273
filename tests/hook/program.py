"""A program of a user: loads a module with iree.runtime, calls it, prints what came out. Started by the tests.

Arguments: module, driver, times to load it, times to call it each time, `attach=FOLDER=LIBRARY` to attach the hook,
`keep` to have all that was loaded until the end, and `reserve` to reserve memory as IREE's loader does, for nothing.
"""

import hashlib
import mmap
import sys
from pathlib import Path

import iree.runtime as rt
import numpy as np

INPUTS = (
    *(((32, 784), 0.5), ((784, 256), 0.01), ((256,), 0.1), ((256, 128), 0.01)),
    *(((128,), 0.1), ((128, 10), 0.01), ((10,), 0.1)),
)


def main(module: str, driver: str, loads: int, calls: int, *options: str) -> None:
    kept: list[object] = []
    for option in options:
        if option.startswith("attach="):
            attach(*map(Path, option.removeprefix("attach=").split("=")))
    arrays = [np.full(shape, value, dtype=np.float32) for shape, value in INPUTS]
    digest = hashlib.sha256()
    flatbuffer = Path(module).read_bytes()
    for _ in range(loads):
        config = rt.Config(driver)
        context = rt.SystemContext(config=config)
        vm_module = rt.VmModule.copy_buffer(config.vm_instance, flatbuffer)
        context.add_vm_module(vm_module)
        function = context.modules[vm_module.name]["mlp"]
        for _ in range(calls):
            digest.update(function(*arrays).to_host().tobytes())
        if "keep" in options:
            kept.append(context)
        if "reserve" in options:
            kept += [
                mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0) for _ in range(3)
            ]
        del function, vm_module, context, config
    sys.stdout.write(digest.hexdigest() + "\n")


def attach(folder: Path, library: Path) -> None:
    from tracemap.hook import attach as attach_hook

    attach_hook(folder, library=library)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
