"""The machine code of functions, taken apart into instructions."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tracemap.errors import ModuleInvalid
from tracemap.machine.images import CodeFunction, Image
from tracemap.machine.newer import length_of_unknown, understood, understood_text
from tracemap.machine.values import Decoded

if TYPE_CHECKING:
    import capstone


def decoded(image: Image, function: CodeFunction) -> Iterator[Decoded]:
    """The instructions of a function, by address; bytes that are none have the id 0.

    Raises:
        ModuleInvalid: the code is of an architecture that is not read here, or lies outside of the image.
    """
    return decoded_bytes(_code_bytes(image, function), image.machine, function.low)


def decoded_bytes(code: bytes, machine: str, address: int) -> Iterator[Decoded]:
    """The instructions of code that lies at an address; `machine` is the architecture's name as ELF has it.

    Raises:
        ModuleInvalid: the architecture is not read here.
    """
    return map(understood, _disassembler(machine).disasm(code, address))


def decoded_texts(image: Image, function: CodeFunction) -> Iterator[tuple[int, int, str, str]]:
    """Address, size in bytes, mnemonic and operands of the same instructions, in a tenth of the time.

    Raises:
        ModuleInvalid: as `decoded`.
    """
    disassembler = _disassembler(image.machine)
    disassembler.detail = False
    for address, size, mnemonic, operands in disassembler.disasm_lite(_code_bytes(image, function), function.low):
        yield address, size, *understood_text(mnemonic, operands, address)


def _disassembler(machine: str) -> capstone.Cs:
    """What reads the instructions of an architecture, by its name in ELF."""
    import capstone

    kinds = {
        "EM_X86_64": (capstone.CS_ARCH_X86, capstone.CS_MODE_64),
        "EM_AARCH64": (capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM),
    }
    if machine not in kinds:
        raise ModuleInvalid(f"the module's code is for {machine}, whose instructions cannot be read here")
    disassembler = capstone.Cs(*kinds[machine])
    disassembler.detail = True
    disassembler.skipdata = True
    if machine == "EM_X86_64":
        disassembler.skipdata_setup = (".byte", length_of_unknown, None)
    return disassembler


def _code_bytes(image: Image, function: CodeFunction) -> bytes:
    """The machine code of a function.

    Raises:
        ModuleInvalid: it lies outside of the image, or the image is damaged.
    """
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        segments = list(ELFFile(io.BytesIO(image.data)).iter_segments())
    except ELFError as error:
        raise ModuleInvalid(f"the image with the code of {function.name} is damaged ({error})") from error
    for segment in segments:
        start = int(segment["p_vaddr"])
        if segment["p_type"] == "PT_LOAD" and start <= function.low and function.high <= start + segment["p_filesz"]:
            place = int(segment["p_offset"]) + function.low - start
            return image.data[place : place + function.high - function.low]
    raise ModuleInvalid(f"the code of {function.name} lies outside of its image")
