"""Machine code decoded into instructions, with those of AVX-512 that the disassembler lacks."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tracemap.errors import ModuleInvalid
from tracemap.machine.images import CodeFunction, Image
from tracemap.machine.values import Decoded

if TYPE_CHECKING:
    import capstone


# ---- newer
#
# Instructions of x86-64 that the disassembler does not know: it would go on in the middle of them.
#
# Half precision (AVX512-FP16), bfloat16 (AVX512-BF16) and the dot products of AVX-VNNI are read as older instructions
# that have the same operands, and keep their own names. Of all others that have a prefix VEX or EVEX the length is
# known. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, sections 2.1 (ModR/M), 2.3 and
# 2.7.


_EVEX, _VEX = 0x62, 0xC4
_PREFIX_BYTES: Final = {_EVEX: 4, _VEX: 3, 0xC5: 2}
_LONGEST: Final = 15
"""Bytes of an instruction."""
_WITH_IMMEDIATE: Final = 3
"""The opcode map of which all instructions have a byte behind the operands."""
_NEAR, _FAR, _REGISTER = 1, 2, 3
"""Modes of ModR/M: a distance of one byte, of four, and no memory."""


def length_of_unknown(code: Sequence[Any], size: int, at: int, _data: object) -> int:
    """How many bytes an instruction takes that the disassembler does not know; 1 where no prefix tells."""
    data = bytes(byte if isinstance(byte, int) else byte[0] for byte in code[at : min(at + _LONGEST, size)])
    prefix = _PREFIX_BYTES.get(data[0], 0)
    if not prefix or len(data) < prefix + 2:
        return 1
    opcodes = data[1] & (7 if data[0] == _EVEX else 0x1F) if prefix > _PREFIX_BYTES[0xC5] else 1
    length = prefix + 1 + _operand_bytes(data[prefix + 1 :]) + (opcodes == _WITH_IMMEDIATE)
    return min(length, size - at)


def _operand_bytes(data: bytes) -> int:
    """How many bytes ModR/M takes, and what it says of memory."""
    mode, memory = data[0] >> 6, data[0] & 7
    has_index = mode != _REGISTER and memory == 4
    base = data[1] & 7 if has_index and len(data) > 1 else memory
    distance = 1 if mode == _NEAR else 4 if mode == _FAR or (mode == 0 and base == 5) else 0
    return 1 + has_index + distance


@dataclass(frozen=True, slots=True)
class _StandIn:
    """An older instruction: its opcode map, prefix (0 to 3: none, 66, F3, F2), bit W and opcode.

    `name` is that of the newer one, "" where the older one's tells it. Of the newer one `element` is how many bytes one
    element in memory has, and `part` which part of a vector's bytes is read from there: 1, a half (2) or a quarter (4).
    """

    map: int
    prefix: int
    w: int
    opcode: int
    name: str = ""
    element: int = 2
    part: int = 1


_HALVES: Final = {5: 1, 6: 2}
"""Opcode map of half precision -> that of the same operations in single precision."""
_OTHERS: Final = {
    (2, 2, 0x52): _StandIn(2, 1, 0, 0x52, "vdpbf16ps", element=4),  # vpdpwssd
    (2, 2, 0x72): _StandIn(1, 1, 1, 0x5A, "vcvtneps2bf16", element=4),  # vcvtpd2ps
    (2, 3, 0x72): _StandIn(1, 1, 0, 0x6B, "vcvtne2ps2bf16", element=4),  # vpackssdw
    (3, 0, 0xC2): _StandIn(1, 0, 0, 0xC2),  # vcmpps
    (3, 2, 0xC2): _StandIn(1, 2, 0, 0xC2),  # vcmpss
    (5, 0, 0x1D): _StandIn(1, 3, 1, 0x5A, "vcvtss2sh", element=4),  # vcvtsd2ss
    (5, 1, 0x1D): _StandIn(1, 1, 1, 0x5A, "vcvtps2phx", element=4),  # vcvtpd2ps
    (5, 0, 0x5A): _StandIn(1, 0, 0, 0x5A, part=4),  # vcvtps2pd
    (5, 0, 0x5B): _StandIn(1, 0, 0, 0x5B, element=4),  # vcvtdq2ps
    (5, 1, 0x5B): _StandIn(1, 1, 0, 0x5B, part=2),  # vcvtps2dq
    (5, 2, 0x5B): _StandIn(1, 2, 0, 0x5B, part=2),  # vcvttps2dq
    (5, 2, 0x2A): _StandIn(1, 2, 0, 0x2A, element=4),  # vcvtsi2ss
    (5, 1, 0x6E): _StandIn(1, 1, 0, 0x6E, "vmovw"),  # vmovd
    (5, 1, 0x7E): _StandIn(1, 1, 0, 0x7E, "vmovw"),
    (6, 0, 0x13): _StandIn(1, 2, 0, 0x5A, "vcvtsh2ss"),  # vcvtss2sd
    (6, 1, 0x13): _StandIn(2, 1, 0, 0x13, "vcvtph2psx", part=2),  # vcvtph2ps
    # vcvtdq2ps
    **{(5, prefix, 0x7C): _StandIn(1, 0, 0, 0x5B, f"vcvttph2{kind}w") for prefix, kind in ((0, "u"), (1, ""))},
    **{(5, prefix, 0x7D): _StandIn(1, 0, 0, 0x5B, f"vcvtph2{kind}w") for prefix, kind in ((0, "u"), (1, ""))},
    **{(5, prefix, 0x7D): _StandIn(1, 0, 0, 0x5B, f"vcvt{kind}w2ph") for prefix, kind in ((2, ""), (3, "u"))},
    # vrndscale, vgetmant, vreduce and vfpclass
    **{(3, 0, opcode): _StandIn(3, 1, 0, opcode) for opcode in (0x08, 0x0A, 0x26, 0x27, 0x56, 0x57, 0x66, 0x67)},
}
"""By opcode map, prefix and opcode what differs in more than the map from what stands in for it."""


def _stand_in(opcodes: int, prefix: int, w: int, opcode: int) -> _StandIn | None:
    if found := _OTHERS.get((opcodes, prefix, opcode)):
        return found
    return _StandIn(_HALVES[opcodes], prefix, w, opcode) if opcodes in _HALVES else None


def understood(decoded: Decoded) -> Decoded:
    """An instruction, in place of bytes that were not known; these where nothing is known that has its operands."""
    return decoded if decoded.id else _read(bytes(decoded.bytes), decoded.address) or decoded


def understood_text(mnemonic: str, operands: str, address: int) -> tuple[str, str]:
    """The same of an instruction of which only the texts were made: its name and operands."""
    if not mnemonic.startswith("."):
        return mnemonic, operands
    found = _read(bytes(int(byte, 16) for byte in operands.split(", ")), address)
    return (found.mnemonic, found.op_str) if found else (mnemonic, operands)


def _read(data: bytes, address: int) -> _Named | None:
    """An instruction that stands in for what begins with the prefix VEX or EVEX."""
    prefix = _PREFIX_BYTES.get(data[0], 0)
    if prefix < _PREFIX_BYTES[_VEX] or len(data) < prefix + 2:
        return None
    return (_read_short if data[0] == _VEX else _read_long)(data, address)


def _read_long(data: bytes, address: int) -> _Named | None:
    stand_in = _stand_in(data[1] & 7, data[2] & 3, data[2] >> 7, data[4])
    if stand_in is None:
        return None
    chosen = (data[1] & ~7 | stand_in.map, data[2] & 0x7C | stand_in.w << 7 | stand_in.prefix, data[3], stand_in.opcode)
    code = bytes((_EVEX, *chosen)) + data[5:]
    found = _decoded(code, address)
    if found is None:
        return None
    name = stand_in.name or _half_name(found.mnemonic)
    is_element, vector = _ELEMENT.search(found.op_str) is not None, 16 << (data[3] >> 5 & 3)
    found = _decoded(_far(code, stand_in.element if is_element else vector // stand_in.part), address) or found
    return _Named(
        found, len(data), name, _with_elements(found.op_str, stand_in.element) if is_element else found.op_str
    )


def _read_short(data: bytes, address: int) -> _Named | None:
    """Of the prefix VEX: what is in AVX-512 as well, with the prefix EVEX."""
    prefix, opcode = data[2] & 3, data[3]
    name = _DOT_PRODUCTS.get((data[1] & 0x1F, prefix, opcode))
    if name is None:
        return None
    chosen = (data[1] & 0xE0 | 0x10 | 2, data[2] & 0xF8 | 4 | 1, (data[2] & 4) << 3 | 8, opcode)
    found = _decoded(_far(bytes((_EVEX, *chosen)) + data[4:], 1), address)
    return None if found is None else _Named(found, len(data), name, found.op_str)


_DOT_PRODUCTS: Final = {
    **{(2, 1, 0x50 + at): name for at, name in enumerate(("vpdpbusd", "vpdpbusds", "vpdpwssd", "vpdpwssds"))},
    **{(2, 1, 0xB4 + at): name for at, name in enumerate(("vpmadd52luq", "vpmadd52huq"))},
    # AVX-VNNI-INT8, of bytes with and without signs.
    **{
        (2, prefix, 0x50 + at): f"vpdpb{signs}d{end}"
        for prefix, signs in ((0, "uu"), (2, "su"), (3, "ss"))
        for at, end in enumerate(("", "s"))
    },
}
"""By opcode map, prefix and opcode, with the prefix VEX."""
_ELEMENT = re.compile(r"\b[dq]word ptr")
_LANES = re.compile(r"\{1to(\d+)\}")
_WIDTHS: Final = {2: "word", 4: "dword", 8: "qword"}


def _with_elements(operands: str, element: int) -> str:
    """Operands that name an element in memory, with its own width, and as many lanes as it fills of these."""
    was = 8 if "qword ptr" in operands else 4
    lanes = _LANES.sub(lambda match: f"{{1to{int(match[1]) * was // element}}}", operands)
    return _ELEMENT.sub(f"{_WIDTHS[element]} ptr", lanes)


def _far(code: bytes, unit: int) -> bytes:
    """Code with the prefix EVEX whose distance takes four bytes where it took one, which counts in units."""
    at = _PREFIX_BYTES[_EVEX] + 1
    if code[at] >> 6 != _NEAR:
        return code
    behind = at + _operand_bytes(code[at:])
    distance = int.from_bytes(code[behind - 1 : behind], "little", signed=True) * unit
    mode = bytes((code[at] & 0x3F | _FAR << 6,))
    return code[:at] + mode + code[at + 1 : behind - 1] + distance.to_bytes(4, "little", signed=True) + code[behind:]


def _half_name(single: str) -> str:
    """What an operation of single precision is called in half precision: `vaddps` is `vaddph`, `vrcp14ps` `vrcpph`."""
    return _SINGLE.sub(r"\1h", single.replace("14", ""))


_SINGLE = re.compile(r"([ps])s(?=$|2)")


@cache
def _disassembler_of_x86() -> capstone.Cs:
    import capstone

    made = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    made.detail = True
    return made


def _decoded(code: bytes, address: int) -> Decoded | None:
    """The instruction that code is as a whole; None: none."""
    found = next(_disassembler_of_x86().disasm(code, address), None)
    return None if found is None or found.size != len(code) else found


class _Named:
    """A decoded instruction that stands in for another: it has the other's size and texts."""

    def __init__(self, decoded: Decoded, size: int, mnemonic: str, operands: str) -> None:
        self._decoded = decoded
        self.size = size
        self.mnemonic = mnemonic
        self.op_str = operands

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of the library, which has no type hints
        return getattr(self._decoded, name)


# ---- decoding
#
# The machine code of functions, taken apart into instructions.


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
