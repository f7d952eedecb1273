"""Figures of kernels' code, compared with LLVM's and with a decoder of single instructions."""

from __future__ import annotations

import re

import pytest

from tests.conftest import Built
from tracemap.core.units import UNKNOWN
from tracemap.machine.code import Instruction, instructions_of, loops_of
from tracemap.machine.code_figures import AARCH64, X86, figures_of, text_instructions
from tracemap.machine.images import read_images
from tracemap.map.bundle import load

_COUNT = re.compile(r"(\d+) (?:folded )?spills")


def shown(each: Instruction) -> tuple[object, ...]:
    """What an instruction is without values and cycles."""
    return each.address, each.size, each.mnemonic, each.operands, each.line, each.targets, each.falls_through


@pytest.mark.few(1)
@pytest.mark.parametrize("model", ["hand_attention", "jax_gpt2_4l"])
def test_figures_are_those_of_the_compiler_and_of_whole_instructions(remarked: Built, model: str) -> None:
    bundle = load(remarked(model))
    said = {
        each.kernel: sum(map(int, _COUNT.findall(each.text)))
        for each in bundle.remarks().remarks
        if "generated in function" in each.text
    }
    found = {}
    for image in read_images(bundle.module_path):
        for function in image.functions:
            figures = found[function.name] = figures_of(image, function)
            whole, outline = instructions_of(image, function), tuple(text_instructions(image, function))
            assert list(map(shown, outline)) == list(map(shown, whole))
            assert (figures.instructions, figures.loops) == (len(whole), len(loops_of(whole)))
            # What lies on the stack for another reason is stored there, too: a value or none.
            assert 0 <= figures.spills - said.get(function.name, 0) <= 1
    assert sum(figures.spills for figures in found.values()) > 5
    assert all(figures.vector_bits == 256 for name, figures in found.items() if "matmul" in name)  # of x86-64-v3
    assert max(figures.loops for figures in found.values()) >= 3


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("vaddps zmm0, zmm1, zmm2", 512),
        ("vbroadcastss ymm0, dword ptr [rdi]", 256),
        ("vpminsd xmm0, xmm1, xmm2", 128),
        ("vfmadd231ss xmm0, xmm1, xmm2", 0),
        ("vcvtsi2ss xmm0, xmm1, eax", 0),
        ("vmovd xmm0, eax", 0),
        ("vxorps xmm0, xmm0, xmm0", 0),
        ("add rax, 1", 0),
    ],
)
def test_registers_that_hold_one_number_are_no_vectors(text: str, bits: int) -> None:
    assert X86.vector_bits([text]) == bits


def test_vectors_of_aarch64_are_as_wide_as_said() -> None:
    assert AARCH64.vector_bits(["fmla v0.4s, v1.4s, v2.s[0]"]) == 128
    assert AARCH64.vector_bits(["fadd v0.2s, v1.2s, v2.2s"]) == 64
    assert AARCH64.vector_bits(["fadd s0, s1, s2"]) == 0
    assert AARCH64.vector_bits(["fadd z0.s, p0/m, z0.s, z1.s"]) is UNKNOWN


def test_only_what_frees_a_register_is_spilled() -> None:
    assert X86.spills(["vmovups zmmword ptr [rsp + 0x40], zmm3", "mov qword ptr [rsp], rax"]) == 2
    assert X86.spills(["mov dword ptr [rsp + 8], 0", "push rbx", "mov rax, qword ptr [rsp + 8]"]) == 0
    store = "mov qword ptr [rbp - 0x10], rax"
    assert X86.spills([store]) == 0  # the register may point anywhere
    assert X86.spills(["mov rbp, rsp", store]) == 1
    saving = ["stp x29, x30, [sp, #-0x10]!", "str d8, [sp, #0x20]", "b.lt #0x40"]
    assert AARCH64.spills([*saving, "stp q1, q2, [sp, #0x40]", "str x19, [x29, #8]", "str x9, [x0]"]) == 3


@pytest.mark.parametrize(
    ("kind", "elements", "others"),
    [
        (
            X86,
            ("vpextrq r8, xmm6, 1", "vinsertps xmm7, xmm7, dword ptr [rax + r8*4], 0x10", "vmovq r8, xmm6"),
            (
                "vinsertf128 ymm0, ymm0, xmm1, 1",
                "vmovaps zmm1, zmm0",
                "vmovdqa xmm1, xmm0",
                "mov rax, rbx",
                "call 0x20",
            ),
        ),
        (
            AARCH64,
            ("mov x13, v4.d[1]", "mov v5.d[1], v6.d[0]", "fmov x13, d4", "ldr s5, [x8]", "ld1 {v0.s}[1], [x8]"),
            ("mov x29, sp", "ldr q4, [x11], #0x10", "ld1 {v0.4s}, [x8]", "mov v1.16b, v0.16b", "bl #0x20"),
        ),
    ],
)
def test_single_elements_and_calls_in_a_loop(kind: object, elements: tuple[str, ...], others: tuple[str, ...]) -> None:
    assert isinstance(kind, type(X86) | type(AARCH64))
    figures = kind.loop_figures((*elements, *others), kind.stack(()))
    assert (figures.instructions, figures.elements, figures.calls) == (len(elements + others), len(elements), 1)
