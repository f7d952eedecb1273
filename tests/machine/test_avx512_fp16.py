"""Instructions that the disassembler lacks, compared with binutils 2.40."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import check_cli
from tracemap.machine.code import instructions_of, loops_of
from tracemap.machine.decoding import decoded_bytes, decoded_texts
from tracemap.machine.images import read_images
from tracemap.map.bundle import load

_ASSEMBLED = """
62f5744858c2             vaddph zmm0,zmm1,zmm2
62f57448584001           vaddph zmm0,zmm1,zmmword ptr [rax+0x40]
62f57428584001           vaddph ymm0,ymm1,ymmword ptr [rax+0x20]
62f57459584020           vaddph zmm0{k1},zmm1,word BCST [rax+0x40]
62f57608584001           vaddsh xmm0,xmm1,word ptr [rax+0x2]
62f5760859844800100000   vmulsh xmm0,xmm1,word ptr [rax+rcx*2+0x1000]
62f574485ec2             vdivph zmm0,zmm1,zmm2
62f57c48511d34120000     vsqrtph zmm3,zmmword ptr [rip+0x1234]
62f67548a8c2             vfmadd213ph zmm0,zmm1,zmm2
62f67508b9c2             vfmadd231sh xmm0,xmm1,xmm2
62f37448c2ca02           vcmpleph k1,zmm1,zmm2
62f57d481dc1             vcvtps2phx ymm0,zmm1
62f67d4813c1             vcvtph2psx zmm0,ymm1
62f6740813c2             vcvtsh2ss xmm0,xmm1,xmm2
62f574081dc2             vcvtss2sh xmm0,xmm1,xmm2
62f57d086e4001           vmovw xmm0,word ptr [rax+0x2]
62f57d087ec0             vmovw eax,xmm0
62f57e08104001           vmovsh xmm0,word ptr [rax+0x2]
62f574485fc2             vmaxph zmm0,zmm1,zmm2
62f37c4808c103           vrndscaleph zmm0,zmm1,0x3
62f37c4856c103           vreduceph zmm0,zmm1,0x3
62f37c4826c103           vgetmantph zmm0,zmm1,0x3
62f37c4866c903           vfpclassph k1,zmm1,0x3
62f67d484cc1             vrcpph zmm0,zmm1
62f67d484ec1             vrsqrtph zmm0,zmm1
62f67648d6c2             vfmulcph zmm0,zmm1,zmm2
62f6774856c2             vfcmaddcph zmm0,zmm1,zmm2
62f57e487dc1             vcvtw2ph zmm0,zmm1
62f57d487dc1             vcvtph2w zmm0,zmm1
62f57d485bc1             vcvtph2dq zmm0,ymm1
62f57c485bc1             vcvtdq2ph ymm0,zmm1
62f57c485ac1             vcvtph2pd zmm0,xmm1
62f57c082ec1             vucomish xmm0,xmm1
62f675482cc2             vscalefph zmm0,zmm1,zmm2
62f576082ac0             vcvtsi2sh xmm0,xmm1,eax
62f2764852c2             vdpbf16ps zmm0,zmm1,zmm2
62f27e4872c1             vcvtneps2bf16 ymm0,zmm1
62f2754850c2             vpdpbusd zmm0,zmm1,zmm2
c4e27550c2               vpdpbusd ymm0,ymm1,ymm2
c4e275504004             vpdpbusd ymm0,ymm1,ymmword ptr [rax+0x4]
62f2754852c2             vpdpwssd zmm0,zmm1,zmm2
c4e27553c2               vpdpwssds ymm0,ymm1,ymm2
62f2f548b4c2             vpmadd52luq zmm0,zmm1,zmm2
c4e2f5b4c2               vpmadd52luq ymm0,ymm1,ymm2
62f3f548cec203           vgf2p8affineqb zmm0,zmm1,zmm2,0x3
62f27548dcc2             vaesenc zmm0,zmm1,zmm2
c4e27eb100               vbcstnebf162ps ymm0,word ptr [rax]
c4e27eb000               vcvtneebf162ps ymm0,ymmword ptr [rax]
c4e27e72c1               vcvtneps2bf16 xmm0,ymm1
c4e27750c2               vpdpbssd ymm0,ymm1,ymm2
c4e26a5cc1               tdpbf16ps tmm0,tmm1,tmm2
c4e27b4b0408             tileloadd tmm0,[rax+rcx*1]
62f67d48134001           vcvtph2psx zmm0,ymmword ptr [rax+0x20]
62f57c485a4001           vcvtph2pd zmm0,xmmword ptr [rax+0x10]
62f57d485b4001           vcvtph2dq zmm0,ymmword ptr [rax+0x20]
62f27658524001           vdpbf16ps zmm0,zmm1,dword BCST [rax+0x4]
62f27e487240ff           vcvtneps2bf16 ymm0,zmmword ptr [rax-0x40]
62f27e58724001           vcvtneps2bf16 ymm0,dword BCST [rax+0x4]
62f67408134001           vcvtsh2ss xmm0,xmm1,word ptr [rax+0x2]
62f574081d4001           vcvtss2sh xmm0,xmm1,dword ptr [rax+0x4]
62f37458c2480101         vcmpltph k1,zmm1,word BCST [rax+0x2]
62f37c5808400103         vrndscaleph zmm0,word BCST [rax+0x2],0x3
62b57d481d44c801         vcvtps2phx ymm0,zmmword ptr [rax+r9*8+0x40]
62c56c00594c24ff         vmulph xmm17,xmm18,xmmword ptr [r12-0x10]
62460d30b87d08           vfmadd231ph ymm31,ymm30,word BCST [r13+0x10]
62522d08518df8ffffff     vpdpbusds xmm9,xmm10,xmmword ptr [r13-0x8]
62f57c585b4001           vcvtdq2ph ymm0,dword BCST [rax+0x4]
62f57d087e4424ff         vmovw word ptr [rsp-0x2],xmm0
"""
_OTHER_WIDTH = ("vcvtph2dq", "vcvtph2pd", "vcvtdq2ph", "vcvtw2ph")
"""What stands in for these names other parts of the same registers, and what is read from memory as wider."""
_LENGTH_ALONE = (
    "vfmulcph",
    "vfcmaddcph",
    "vbcstnebf162ps",
    "vcvtneebf162ps",
    "vcvtneps2bf16 xmm0",
    "tdpbf16ps",
    "tileloadd",
)


def assembled() -> list[tuple[bytes, str]]:
    pairs = (line.split(maxsplit=1) for line in _ASSEMBLED.strip().splitlines())
    return [(bytes.fromhex(code), text) for code, text in pairs]


def normal(text: str) -> str:
    """Numbers in decimals, no spaces; how many lanes a number is broadcast to is not said by binutils."""
    text = re.sub(r"0x[0-9a-f]+|\b\d+\b", lambda found: str(int(found[0], 0)), text.partition(" ")[2])
    return re.sub(r"\{1to\d+\}| ", "", text.replace("BCST", "ptr"))


def test_instructions_in_a_row_are_told_apart_and_read() -> None:
    """One that is not known hides none behind it, and those that are read have all their operands."""
    rows = assembled()
    found = list(decoded_bytes(b"".join(code for code, _ in rows), "EM_X86_64", 0))
    assert [each.size for each in found] == [len(code) for code, _ in rows]
    for each, (_, text) in zip(found, rows, strict=True):
        if text.startswith(_LENGTH_ALONE):
            assert each.mnemonic == ".byte"
            continue
        assert each.mnemonic == text.partition(" ")[0]
        if not text.startswith(_OTHER_WIDTH):
            assert normal(f"{each.mnemonic} {each.op_str}") == normal(text)


@pytest.mark.parametrize("code", [b"\x62", b"\xc4\xe2", b"\x62\xf5\x74\x48\x58", b"\xc5", b"\x62\xf3\x7c\x48\x08\xc1"])
def test_what_is_cut_off_is_no_instruction(code: bytes) -> None:
    assert sum(each.size for each in decoded_bytes(code, "EM_X86_64", 0)) == len(code)


HALVES = """func.func @f(%a: tensor<64x1024xf16>, %b: tensor<64x1024xf16>) -> tensor<64x1024xf16> {
  %0 = stablehlo.divide %a, %b : tensor<64x1024xf16>
  %1 = stablehlo.sqrt %0 : tensor<64x1024xf16>
  %2 = stablehlo.add %1, %a : tensor<64x1024xf16>
  return %2 : tensor<64x1024xf16>
}
"""


def test_a_kernel_of_half_precision_is_read(tmp_path: Path) -> None:
    (tmp_path / "halves.mlir").write_text(HALVES, encoding="utf-8")
    check_cli("build", "halves.mlir", "--", "--iree-llvmcpu-target-cpu=sapphirerapids", cwd=tmp_path)
    (image,) = read_images(load(tmp_path / "halves.tracemap").module_path)
    (function,) = image.functions
    code = instructions_of(image, function)
    texts = [(each.address, each.size, each.mnemonic, each.operands) for each in code]
    assert texts == list(decoded_texts(image, function))
    assert len(loops_of(code)) == 1
    told = {each.mnemonic for each in code}
    assert {"vdivph", "vsqrtph"} <= told
    assert ".byte" not in told
    slow = [each.hundredths for each in code if each.mnemonic in ("vdivph", "vsqrtph")]
    assert min(slow) > 3 * max(each.hundredths for each in code if each.mnemonic == "vaddph")
