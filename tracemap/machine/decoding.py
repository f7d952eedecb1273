"""Decode machine code into instructions, including AVX-512 instructions that the disassembler does not know."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracemap.core.errors import ModuleInvalid
from tracemap.machine.images import CodeFunction, Image, elf_of
from tracemap.machine.values import Decoded

if TYPE_CHECKING:
    import capstone


# ---- AVX512-FP16 and other new instructions
#
# Decode x86-64 instructions that the disassembler does not know. On its own it would continue in the middle of them.
#
# AVX512-FP16, AVX512-BF16 and the dot products of AVX-VNNI are decoded as older instructions with the same operands,
# and keep their own names. For all others with a VEX or EVEX prefix, the length is computed. Source: Intel 64 and IA-32
# Architectures Software Developer's Manual, volume 2, sections 2.1 (ModR/M), 2.3 and 2.7.


_EVEX, _VEX = 0x62, 0xC4
_PREFIX_BYTES: Final = {_EVEX: 4, _VEX: 3, 0xC5: 2}
_LONGEST: Final = 15
"""Longest instruction in bytes."""
_WITH_IMMEDIATE: Final = 3
"""The opcode map whose instructions all have an immediate byte after the operands."""
_NEAR, _FAR, _REGISTER = 1, 2, 3
"""ModR/M modes: 1-byte displacement, 4-byte displacement, register."""


def length_of_unknown(code: Sequence[Any], size: int, at: int, _data: object) -> int:
    """Length of an instruction that the disassembler does not know, in bytes; 1 without a known prefix."""
    data = bytes(byte if isinstance(byte, int) else byte[0] for byte in code[at : min(at + _LONGEST, size)])
    prefix = _PREFIX_BYTES.get(data[0], 0)
    if not prefix or len(data) < prefix + 2:
        return 1
    opcodes = data[1] & (7 if data[0] == _EVEX else 0x1F) if prefix > _PREFIX_BYTES[0xC5] else 1
    length = prefix + 1 + _operand_bytes(data[prefix + 1 :]) + (opcodes == _WITH_IMMEDIATE)
    return min(length, size - at)


def _operand_bytes(data: bytes) -> int:
    """Length of ModR/M, SIB and displacement, in bytes."""
    mode, memory = data[0] >> 6, data[0] & 7
    has_index = mode != _REGISTER and memory == 4
    base = data[1] & 7 if has_index and len(data) > 1 else memory
    displacement_bytes = 1 if mode == _NEAR else 4 if mode == _FAR or (mode == 0 and base == 5) else 0
    return 1 + has_index + displacement_bytes


class _StandIn(msgspec.Struct, frozen=True):
    """An older instruction: opcode map, prefix (0 to 3: none, 66, F3, F2), bit W and opcode.

    Of the newer instruction: `name`, "" if it follows from the older one's; `element`, bytes of an element in memory;
    `part`, the fraction of a vector's bytes that is read from memory: 1, a half (2) or a quarter (4).
    """

    map: int
    prefix: int
    w: int
    opcode: int
    name: str = ""
    element: int = 2
    part: int = 1


_HALVES: Final = {5: 1, 6: 2}
"""Opcode map of half precision -> map of the same operations in single precision."""
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
"""Stand-ins that differ from the newer instruction in more than the opcode map; by opcode map, prefix and opcode."""


def _stand_in(opcodes: int, prefix: int, w: int, opcode: int) -> _StandIn | None:
    if stand_in := _OTHERS.get((opcodes, prefix, opcode)):
        return stand_in
    return _StandIn(_HALVES[opcodes], prefix, w, opcode) if opcodes in _HALVES else None


def decode_unknown(decoded: Decoded) -> Decoded:
    """Decode unknown bytes as an instruction. Other instructions, and bytes without a stand-in, are returned as is."""
    return decoded if decoded.id else _read(bytes(decoded.bytes), decoded.address) or decoded


def decode_unknown_text(mnemonic: str, operands: str, address: int) -> tuple[str, str]:
    """As `decode_unknown`, for the text of an instruction: returns mnemonic and operands."""
    if not mnemonic.startswith("."):
        return mnemonic, operands
    instruction = _read(bytes(int(byte, 16) for byte in operands.split(", ")), address)
    return (instruction.mnemonic, instruction.op_str) if instruction else (mnemonic, operands)


def _read(data: bytes, address: int) -> _StandInResult | None:
    """Decode unknown bytes with a VEX or EVEX prefix by a stand-in."""
    prefix = _PREFIX_BYTES.get(data[0], 0)
    if prefix < _PREFIX_BYTES[_VEX] or len(data) < prefix + 2:
        return None
    return (_read_short if data[0] == _VEX else _read_long)(data, address)


def _read_long(data: bytes, address: int) -> _StandInResult | None:
    stand_in = _stand_in(data[1] & 7, data[2] & 3, data[2] >> 7, data[4])
    if stand_in is None:
        return None
    header = (data[1] & ~7 | stand_in.map, data[2] & 0x7C | stand_in.w << 7 | stand_in.prefix, data[3], stand_in.opcode)
    code = bytes((_EVEX, *header)) + data[5:]
    instruction = _decoded(code, address)
    if instruction is None:
        return None
    name = stand_in.name or _half_name(instruction.mnemonic)
    is_element, vector = _ELEMENT.search(instruction.op_str) is not None, 16 << (data[3] >> 5 & 3)
    instruction = (
        _decoded(_with_long_displacement(code, stand_in.element if is_element else vector // stand_in.part), address)
        or instruction
    )
    return _StandInResult(
        instruction,
        len(data),
        name,
        _with_elements(instruction.op_str, stand_in.element) if is_element else instruction.op_str,
    )


def _read_short(data: bytes, address: int) -> _StandInResult | None:
    """Decode bytes with a VEX prefix as the corresponding AVX-512 instruction with an EVEX prefix."""
    prefix, opcode = data[2] & 3, data[3]
    name = _DOT_PRODUCTS.get((data[1] & 0x1F, prefix, opcode))
    if name is None:
        return None
    header = (data[1] & 0xE0 | 0x10 | 2, data[2] & 0xF8 | 4 | 1, (data[2] & 4) << 3 | 8, opcode)
    instruction = _decoded(_with_long_displacement(bytes((_EVEX, *header)) + data[4:], 1), address)
    return None if instruction is None else _StandInResult(instruction, len(data), name, instruction.op_str)


_DOT_PRODUCTS: Final = {
    **{(2, 1, 0x50 + at): name for at, name in enumerate(("vpdpbusd", "vpdpbusds", "vpdpwssd", "vpdpwssds"))},
    **{(2, 1, 0xB4 + at): name for at, name in enumerate(("vpmadd52luq", "vpmadd52huq"))},
    # AVX-VNNI-INT8, for signed and unsigned bytes.
    **{
        (2, prefix, 0x50 + at): f"vpdpb{signs}d{end}"
        for prefix, signs in ((0, "uu"), (2, "su"), (3, "ss"))
        for at, end in enumerate(("", "s"))
    },
}
"""Instructions with a VEX prefix, by opcode map, prefix and opcode."""
_ELEMENT = re.compile(r"\b[dq]word ptr")
_LANES = re.compile(r"\{1to(\d+)\}")
_WIDTHS: Final = {2: "word", 4: "dword", 8: "qword"}


def _with_elements(operands: str, element: int) -> str:
    """Operands with the element width of the newer instruction, and the number of lanes that follows from it."""
    old_element = 8 if "qword ptr" in operands else 4
    lanes = _LANES.sub(lambda match: f"{{1to{int(match[1]) * old_element // element}}}", operands)
    return _ELEMENT.sub(f"{_WIDTHS[element]} ptr", lanes)


def _with_long_displacement(code: bytes, unit: int) -> bytes:
    """Replace a 1-byte displacement, which counts in units, by a 4-byte one."""
    modrm = _PREFIX_BYTES[_EVEX] + 1
    if code[modrm] >> 6 != _NEAR:
        return code
    end = modrm + _operand_bytes(code[modrm:])
    displacement = int.from_bytes(code[end - 1 : end], "little", signed=True) * unit
    mode = bytes((code[modrm] & 0x3F | _FAR << 6,))
    return (
        code[:modrm] + mode + code[modrm + 1 : end - 1] + displacement.to_bytes(4, "little", signed=True) + code[end:]
    )


def _half_name(single: str) -> str:
    """Half-precision name of a single-precision operation: `vaddps` is `vaddph`, `vrcp14ps` `vrcpph`."""
    return _SINGLE.sub(r"\1h", single.replace("14", ""))


_SINGLE = re.compile(r"([ps])s(?=$|2)")


@cache
def _disassembler_of_x86() -> capstone.Cs:
    import capstone

    disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    disassembler.detail = True
    return disassembler


def _decoded(code: bytes, address: int) -> Decoded | None:
    """Decode bytes as exactly one instruction; None if that fails."""
    instruction = next(_disassembler_of_x86().disasm(code, address), None)
    return None if instruction is None or instruction.size != len(code) else instruction


class _StandInResult:
    """A decoded stand-in with size and text of the newer instruction."""

    def __init__(self, decoded: Decoded, size: int, mnemonic: str, operands: str) -> None:
        self._decoded = decoded
        self.size = size
        self.mnemonic = mnemonic
        self.op_str = operands

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of the library, which has no type hints
        return getattr(self._decoded, name)


# ---- decoding


def decoded(image: Image, function: CodeFunction) -> Iterator[Decoded]:
    """The instructions of a function, by address. Invalid bytes have id 0.

    Raises:
        ModuleInvalid: the architecture is not supported, or the code lies outside the image.
    """
    return decoded_bytes(_code_bytes(image, function), image.machine, function.low)


def decoded_bytes(code: bytes, machine: str, address: int) -> Iterator[Decoded]:
    """The instructions of code at an address; `machine`: the ELF name of the architecture.

    Raises:
        ModuleInvalid: the architecture is not supported.
    """
    return map(decode_unknown, _disassembler(machine).disasm(code, address))


def decoded_texts(image: Image, function: CodeFunction) -> Iterator[tuple[int, int, str, str]]:
    """Address, size in bytes, mnemonic and operands of the instructions, ten times as fast as `decoded`.

    Raises:
        ModuleInvalid: see `decoded`.
    """
    disassembler = _disassembler(image.machine)
    disassembler.detail = False
    for address, size, mnemonic, operands in disassembler.disasm_lite(_code_bytes(image, function), function.low):
        yield address, size, *decode_unknown_text(mnemonic, operands, address)


def _disassembler(machine: str) -> capstone.Cs:
    import capstone

    kinds = {
        "EM_X86_64": (capstone.CS_ARCH_X86, capstone.CS_MODE_64),
        "EM_AARCH64": (capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM),
    }
    if machine not in kinds:
        raise ModuleInvalid(f"the module's code is for {machine}, which tracemap cannot disassemble")
    disassembler = capstone.Cs(*kinds[machine])
    disassembler.detail = True
    disassembler.skipdata = True
    if machine == "EM_X86_64":
        disassembler.skipdata_setup = (".byte", length_of_unknown, None)
    return disassembler


def _code_bytes(image: Image, function: CodeFunction) -> bytes:
    """The machine code of a function; raises `ModuleInvalid` if it lies outside the image, or that is damaged."""
    from elftools.common.exceptions import ELFError

    try:
        segments = list(elf_of(image).iter_segments())
    except ELFError as error:
        raise ModuleInvalid(f"the image with the code of {function.name} is damaged ({error})") from error
    for segment in segments:
        start = int(segment["p_vaddr"])
        if segment["p_type"] == "PT_LOAD" and start <= function.low and function.high <= start + segment["p_filesz"]:
            offset = int(segment["p_offset"]) + function.low - start
            return image.data[offset : offset + function.high - function.low]
    raise ModuleInvalid(f"the code of {function.name} lies outside its image")
