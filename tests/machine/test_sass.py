"""Machine code of CUDA modules, by NVIDIA's own assembler and disassembler where they are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu import OnGpu
from tests.support import json_cli
from tracemap.core.errors import ToolMissing
from tracemap.core.toolchain import find_tool
from tracemap.machine import sass
from tracemap.machine.code import loops_of
from tracemap.machine.sass import SassReader
from tracemap.map.bundle import load
from tracemap.map.model import entry_name

TEXT = """
//--------------------- .text.first --------------------------
first:
.text.first:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   IADD3 R1, R1, -0x1, RZ ;
        /*0020*/               @P0 BRA `(.L_x_0) ;
        /*0030*/                   EXIT ;
.L_x_1:
        /*0040*/                   BRA `(.L_x_1);
        /*0050*/                   NOP;
        /*0060*/                   NOP;
//--------------------- .text.second --------------------------
second:
.text.second:
        /*0000*/                   EXIT ;
"""


def test_labels_become_addresses_and_padding_is_left_out() -> None:
    functions = dict(sass._functions(TEXT))
    assert [(own.address, own.mnemonic, own.operands) for own in functions["first"]] == [
        (0, "MOV", "R1, c[0x0][0x28]"),
        (16, "IADD3", "R1, R1, -0x1, RZ"),
        (32, "@P0 BRA", "0x10"),
        (48, "EXIT", ""),
        (64, "BRA", "0x40"),
    ]
    (loop,) = loops_of(functions["first"])
    assert (loop.header, loop.ranges) == (16, ((16, 48),))
    assert [own.mnemonic for own in functions["second"]] == ["EXIT"]


def need_tools() -> None:
    try:
        find_tool("ptxas"), find_tool("nvdisasm")
    except ToolMissing as error:
        pytest.skip(str(error))


def test_each_kernel_of_a_module_has_its_code(on_gpu: OnGpu) -> None:
    need_tools()
    bundle = on_gpu("hand_mlp")
    reader = SassReader(bundle / "module.vmfb")
    for kernel in load(bundle).graph.kernels:
        code, reason = reader.code_of(entry_name(kernel.name))
        assert (reason, code[0].address) == ("", 0)
        assert "EXIT" in {own.mnemonic for own in code}
        assert [own.address for own in code] == list(range(0, 16 * len(code), 16))


def test_missing_tools_are_named(on_gpu: OnGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Path:
        raise ToolMissing(f"{name} is not installed; install it with: pip install nvidia-cuda-nvcc")

    monkeypatch.setattr(sass, "find_tool", missing)
    bundle = on_gpu("hand_mlp")
    (kernel, *_) = load(bundle).graph.kernels
    code, reason = SassReader(bundle / "module.vmfb").code_of(entry_name(kernel.name))
    assert (code, "pip install nvidia-cuda-nvcc" in reason) == ((), True)


def test_modules_for_processors_have_no_ptx(on_gpu: OnGpu, tmp_path: Path) -> None:
    module = tmp_path / "module.vmfb"
    module.write_bytes(b"\0.entry kernel(\0")
    assert SassReader(module).code_of("kernel") == ((), "")
    need_tools()
    shown = json_cli("show", on_gpu("hand_mlp"), load(on_gpu("hand_mlp")).graph.kernels[0].name)
    assert shown["kernels"]
