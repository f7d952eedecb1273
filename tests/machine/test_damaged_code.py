"""Damaged machine code is skipped or refused, and reading ends."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.recording import sample
from tracemap.core.errors import ModuleInvalid
from tracemap.machine.images import read_image, read_images

pytestmark = pytest.mark.quick

# Offsets in the header of an ELF file of 64 bits (System V ABI, chapter 4).
SECTIONS_OFFSET, SECTION_WIDTH, SECTION_COUNT = 40, 58, 60
SEGMENT_COUNT = 56


@pytest.fixture
def image(made: Path) -> bytearray:
    """The image of a sample, as it stands in its module."""
    (found,) = read_images(sample(made, "hand_mlp"))
    assert found.functions
    return bytearray(found.data)


def images_in(data: bytes, folder: Path) -> int:
    path = folder / "module.vmfb"
    path.write_bytes(data)
    return len(read_images(path))


def test_an_image_of_no_size_does_not_stop_the_search(image: bytearray, tmp_path: Path) -> None:
    whole = bytes(image)
    struct.pack_into("<Q", image, SECTIONS_OFFSET, 0)
    struct.pack_into("<HHH", image, SEGMENT_COUNT, 0, 0, 0)
    assert images_in(bytes(image), tmp_path) == 1
    assert images_in(bytes(image) + whole, tmp_path) == 2


def test_a_table_of_entries_without_width_is_no_image(image: bytearray, tmp_path: Path) -> None:
    """The number of sections may be told by the first one, and be anything."""
    (offset,) = struct.unpack_from("<Q", image, SECTIONS_OFFSET)
    struct.pack_into("<HH", image, SECTION_WIDTH, 0, 0)
    struct.pack_into("<Q", image, offset + 32, 1 << 60)
    assert images_in(bytes(image), tmp_path) == 0


def test_damaged_debug_information_is_refused_as_a_whole(image: bytearray, tmp_path: Path) -> None:
    path = tmp_path / "module.vmfb"
    path.write_bytes(image)
    assert read_image(path).rows
    refused = set()
    for place in range(0, len(image), 97):
        damaged = bytearray(image)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        try:
            read_images(path)
        except ModuleInvalid as error:
            refused.add(str(error).partition(" (")[0])
    assert refused == {f"{path}: the debug information of its code is damaged"}


def test_addresses_that_no_image_has_are_refused(image: bytearray, tmp_path: Path) -> None:
    """Line tables set the address of their first row with a number of 64 bits (DWARF 5, section 6.2.5.3)."""
    path = tmp_path / "module.vmfb"
    set_address = b"\x00\x09\x02"
    assert set_address in image
    struct.pack_into("<Q", image, image.index(set_address) + len(set_address), 2**64 - 1)
    path.write_bytes(image)
    with pytest.raises(ModuleInvalid, match="exceeds 63 bits"):
        read_images(path)
