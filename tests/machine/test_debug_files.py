"""Written debug information, read by other readers: pyelftools, LLVM's verifier, binutils."""

from __future__ import annotations

import io
import random
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from elftools.dwarf.ranges import RangeEntry
from elftools.elf.elffile import ELFFile

from tracemap.machine.debug_file import DebugFiles
from tracemap.machine.dwarf_writer import (
    DebugFunction,
    InlinedCode,
    LineRow,
    SourceLine,
    changed_rows,
    write_dwarf,
)
from tracemap.machine.images import Image, read_images

FILES = ["/bundle/source/model.mlir", "/bundle/source/python/0-train.py", "plain.mlir"]
NAMES = ["op1 stablehlo.add (site0)", 'op2 "quoted" (site1)', "ümlaut \u202e", "cut\0here", "\ud800", "x" * 70_000, ""]


def drawn_functions(seed: int, low: int, high: int) -> list[DebugFunction]:
    """Functions that fill an address range, with gaps, and rows without lines."""
    rng = random.Random(seed)
    functions: list[DebugFunction] = []
    while low < high - 64:
        size = rng.randrange(16, min(4096, high - low))
        addresses = sorted({low, *(rng.randrange(low, low + size) for _ in range(rng.randrange(40)))})
        rows = tuple(LineRow(address, drawn_line(rng)) for address in addresses[rng.randrange(2) :])
        edges = sorted({rng.randrange(low, low + size) for _ in range(2 * rng.randrange(1, 5) + 1)} | {low + size})
        ranges = tuple(zip(edges[::2], edges[1::2], strict=False))
        inlined = (InlinedCode(rng.choice(NAMES), SourceLine(1, 7), ranges),) if ranges and rng.random() < 0.7 else ()
        name = rng.choice(NAMES)
        functions.append(
            DebugFunction(name, f"kernel{len(functions)}", low, low + size, SourceLine(0, 3), rows, inlined)
        )
        low += size + rng.randrange(3) * 16
    return functions


def drawn_line(rng: random.Random) -> SourceLine:
    """A line, which may be far from others, or none."""
    if rng.random() < 0.3:
        return SourceLine(0, 0)
    line = rng.choice([1, 2, rng.randrange(1, 50), rng.randrange(1, 1 << 31)])
    return SourceLine(rng.randrange(len(FILES)), line, rng.choice([0, 1, 80, 40_000]))


def text(name: str) -> bytes:
    """A name as it is written."""
    return name.encode("utf-8", errors="replace").replace(b"\0", b"?")


@pytest.fixture(scope="module")
def image(built: Callable[[str], Path]) -> Image:
    return read_images(built("hand_mlp") / "module.vmfb")[0]


@pytest.mark.parametrize("seed", range(8))
def test_lines_are_read_back(seed: int, image: Image) -> None:
    functions = drawn_functions(seed, 0x1000, 0x20000)
    dwarf = dwarf_of(written(image, functions).code_file())
    unit = next(dwarf.iter_CUs())
    program = dwarf.line_program_for_CU(unit)
    folders = [folder.decode() for folder in program.header["include_directory"]]
    names = [
        "/".join(filter(None, [folders[file.dir_index - 1] if file.dir_index else "", file.name.decode()]))
        for file in program.header["file_entry"]
    ]
    assert names == FILES
    expected = {}
    for function in functions:
        for row in changed_rows(function):
            expected[row.address] = row.source if row.source.line else None
        expected.setdefault(function.high, None)
    assert dict(read_rows(program)) == {
        address: source and (source.file, source.line, min(source.column, (1 << 15) - 1))
        for address, source in with_states(expected)
    }


def with_states(expected: dict[int, SourceLine | None]) -> Iterator[tuple[int, SourceLine | None]]:
    """Addresses at which the line changes; code without a line has no row at its begin if none was before it."""
    before = None
    for address, source in sorted(expected.items()):
        if source is not None or before is not None:
            yield address, source
        before = source


def read_rows(program: Any) -> Iterator[tuple[int, tuple[int, int, int] | None]]:  # noqa: ANN401 - of elftools
    """Rows by address; of an end and a begin at one address, the begin counts."""
    rows: dict[int, tuple[int, int, int] | None] = {}
    for state in (entry.state for entry in program.get_entries() if entry.state is not None):
        if state.end_sequence:
            rows.setdefault(state.address, None)
        else:
            rows[state.address] = (state.file - 1, state.line, state.column)
    yield from sorted(rows.items())


@pytest.mark.parametrize("seed", range(4))
def test_functions_and_inlined_ops_are_read_back(seed: int, image: Image) -> None:
    functions = drawn_functions(seed, 0x1000, 0x20000)
    dwarf = dwarf_of(written(image, functions).debug_file())
    unit = next(dwarf.iter_CUs())
    top = unit.get_top_DIE()
    base = top.attributes["DW_AT_low_pc"].value
    found = [entry for entry in top.iter_children() if "DW_AT_low_pc" in entry.attributes]
    assert len(found) == len(functions)
    for entry, function in zip(found, functions, strict=True):
        assert entry.attributes["DW_AT_name"].value == text(function.name)
        assert entry.attributes["DW_AT_linkage_name"].value == text(function.symbol)
        low = entry.attributes["DW_AT_low_pc"].value
        assert (low, low + entry.attributes["DW_AT_high_pc"].value) == (function.low, function.high)
        inlined = [(origin_name(child), ranges_of(dwarf, child, base)) for child in entry.iter_children()]
        assert inlined == [(text(code.name), list(code.ranges)) for code in function.inlined]


def origin_name(entry: Any) -> bytes:  # noqa: ANN401 - as above
    name: bytes = entry.get_DIE_from_attribute("DW_AT_abstract_origin").attributes["DW_AT_name"].value
    return name


def ranges_of(dwarf: Any, entry: Any, base: int) -> list[tuple[int, int]]:  # noqa: ANN401 - as above
    if "DW_AT_ranges" not in entry.attributes:
        low = entry.attributes["DW_AT_low_pc"].value
        return [(low, low + entry.attributes["DW_AT_high_pc"].value)]
    listed = dwarf.range_lists().get_range_list_at_offset(entry.attributes["DW_AT_ranges"].value)
    return [(base + part.begin_offset, base + part.end_offset) for part in listed if isinstance(part, RangeEntry)]


def test_llvm_finds_no_error(image: Image, tmp_path: Path) -> None:
    verifier = shutil.which("llvm-dwarfdump")
    if verifier is None:
        pytest.skip("needs llvm-dwarfdump (Debian: llvm)")
    functions = drawn_functions(1, image.functions[0].low, image.functions[-1].high)
    files = written(image, functions)
    for name, data in (
        ("code", files.code_file()),
        ("debug", files.debug_file()),
        ("moved", files.movable_file().data),
    ):
        (tmp_path / name).write_bytes(data)
        done = subprocess.run([verifier, "--verify", tmp_path / name], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_loaded_bytes_do_not_change(image: Image) -> None:
    data = written(image, drawn_functions(2, 0x1000, 0x3000)).code_file()
    before, after = ELFFile(io.BytesIO(image.data)), ELFFile(io.BytesIO(data))
    ends = [segment["p_offset"] + segment["p_filesz"] for segment in before.iter_segments()]
    places_of_sections = {*range(40, 48), *range(58, 64)}
    assert {place for place in range(max(ends)) if data[place] != image.data[place]} <= places_of_sections
    assert [s.header for s in after.iter_segments()] == [s.header for s in before.iter_segments()]
    assert loaded_sections(after, names=False) == loaded_sections(before, names=False)
    query = after.get_section_by_name(".dynsym").get_symbol_by_name("iree_hal_executable_library_query")
    assert len(query) == 1


def loaded_sections(elf: ELFFile, *, names: bool = True) -> list[dict[str, object]]:
    """What readers may know of the sections that are in memory; links lead to the same sections."""
    rows = []
    for section in elf.iter_sections():
        if section["sh_flags"] & 2:
            row = {key: section[key] for key in ("sh_flags", "sh_addr", "sh_size")}
            if not names:
                link = elf.get_section(section["sh_link"]).name if section["sh_link"] else ""
                row |= {"type": section["sh_type"], "offset": section["sh_offset"], "link": link}
            rows.append({"name": section.name, **row})
    return rows


def test_debug_file_is_that_of_objcopy(image: Image, tmp_path: Path) -> None:
    """Its sections have the same addresses and sizes, and no content."""
    objcopy = shutil.which("objcopy")
    if objcopy is None:
        pytest.skip("needs objcopy (Debian: binutils)")
    (tmp_path / "image").write_bytes(image.data)
    subprocess.run([objcopy, "--only-keep-debug", tmp_path / "image", tmp_path / "theirs"], check=True)
    theirs = ELFFile(io.BytesIO((tmp_path / "theirs").read_bytes()))
    ours = ELFFile(io.BytesIO(written(image, drawn_functions(3, 0x1000, 0x3000)).debug_file()))
    assert loaded_sections(ours) == loaded_sections(theirs)
    kept = [section for section in ours.iter_sections() if section["sh_flags"] & 2]
    assert all(section["sh_type"] in ("SHT_NOBITS", "SHT_NOTE") for section in kept)
    for field in ("p_vaddr", "p_memsz", "p_flags"):
        assert [s[field] for s in ours.iter_segments("PT_LOAD")] == [s[field] for s in theirs.iter_segments("PT_LOAD")]


def test_moved_file_has_all_addresses_moved(image: Image) -> None:
    functions = drawn_functions(4, image.functions[0].low, image.functions[-1].high)
    movable, bias = written(image, functions).movable_file(), 0x7F00_1234_5000
    data = bytearray(movable.data)
    for offset in movable.addresses:
        (address,) = struct.unpack_from("<Q", data, offset)
        struct.pack_into("<Q", data, offset, address + bias)
    before, after = ELFFile(io.BytesIO(movable.data)), ELFFile(io.BytesIO(bytes(data)))
    assert addresses_in(after) == [address + bias for address in addresses_in(before)]


def addresses_in(elf: ELFFile) -> list[int]:
    """All addresses that a debugger reads: of sections, symbols, lines and entries."""
    addresses = [section["sh_addr"] for section in elf.iter_sections() if section["sh_flags"] & 2]
    addresses += [symbol["st_value"] for symbol in elf.get_section_by_name(".symtab").iter_symbols() if symbol.name]
    dwarf = elf.get_dwarf_info()
    unit = next(dwarf.iter_CUs())
    addresses += [address for address, _ in read_rows(dwarf.line_program_for_CU(unit))]
    base = unit.get_top_DIE().attributes["DW_AT_low_pc"].value
    for entry in unit.iter_DIEs():
        if entry.tag in ("DW_TAG_inlined_subroutine", "DW_TAG_subprogram") and "DW_AT_inline" not in entry.attributes:
            addresses += [address for ends in ranges_of(dwarf, entry, base) for address in ends]
    return addresses


def written(image: Image, functions: list[DebugFunction]) -> DebugFiles:
    return DebugFiles(image, functions, write_dwarf(functions, FILES, "module", "tracemap"))


def dwarf_of(data: bytes) -> Any:  # noqa: ANN401 - as above
    return ELFFile(io.BytesIO(data)).get_dwarf_info()
