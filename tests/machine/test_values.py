"""Registers that instructions read and write: known answers from Intel's manual."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import ROOT
from tracemap.machine.decoding import decoded_bytes
from tracemap.machine.values import DataFlow, values_of

X86 = "EM_X86_64"


def values(code: str) -> tuple[str, DataFlow]:
    """The text of the only instruction of some bytes, and what it does."""
    (decoded,) = decoded_bytes(bytes.fromhex(code), X86, 0x1000)
    return f"{decoded.mnemonic} {decoded.op_str}", values_of(decoded, X86)


KNOWN = [
    ("62f15c18c20d3fceffff02", "vcmpleps k1, xmm4, dword ptr [rip - 0x31c1]{1to4}", "v4", "k1", "loads"),
    ("62f17c48c2c802", "vcmpleps k1, zmm0, zmm0", "v0", "k1", ""),
    ("62f36d4803c103", "valignd zmm0, zmm2, zmm1, 3", "v1 v2", "v0", ""),
    ("62f17e091008", "vmovss xmm1 {k1}, dword ptr [rax]", "k1", "v1", "loads"),
    ("62f17c492907", "vmovaps zmmword ptr [rdi] {k1}, zmm0", "k1 v0", "", "stores"),
    ("62f26d48b8c1", "vfmadd231ps zmm0, zmm2, zmm1", "v0 v1 v2", "v0", ""),
    ("c5f893c8", "kmovw ecx, k0", "k0", "rcx", ""),
    ("c5f92ec1", "vucomisd xmm0, xmm1", "v0 v1", "", ""),
    ("4801c8", "add rax, rcx", "rax rcx", "rax", ""),
    ("480307", "add rax, qword ptr [rdi]", "rax", "rax", "loads"),
    ("480107", "add qword ptr [rdi], rax", "rax", "", "loads stores"),
]


@pytest.mark.parametrize(("code", "text", "reads", "writes", "memory"), KNOWN, ids=[text for _, text, *_ in KNOWN])
def test_what_an_instruction_reads_and_writes(code: str, text: str, reads: str, writes: str, memory: str) -> None:
    shown, found = values(code)
    assert shown == text
    assert (found.reads, found.writes) == (frozenset(reads.split()), frozenset(writes.split()))
    assert (found.loads, found.stores) == ("loads" in memory, "stores" in memory)


def test_what_the_disassembler_does_not_tell_is_no_dice() -> None:
    """It leaves what stood in memory, which differs from process to process."""
    program = (
        "from tests.machine.test_values import KNOWN, values\nfor code, *_ in KNOWN: print(values(code)[1].stores)"
    )
    command = [sys.executable, "-c", program]
    told = {subprocess.run(command, capture_output=True, check=True, cwd=ROOT).stdout for _ in range(6)}
    assert len(told) == 1
