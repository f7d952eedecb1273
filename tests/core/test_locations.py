"""Locations: every form that MLIR prints."""

from __future__ import annotations

import tracemalloc

import pytest

from tracemap.core.errors import LocationInvalid
from tracemap.core.locations import (
    MOST_NESTED,
    UNKNOWN_LOCATION,
    CallSite,
    CodeFrame,
    FileRange,
    Fused,
    Location,
    Name,
    frames,
    name_path,
    parse_location,
    read_location,
    scope,
    split_path,
)
from tracemap.map.build.tagging import Tags

pytestmark = pytest.mark.quick

FILE = FileRange("src/with space/mod el.py", 42, 7, 42, 7)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loc(unknown)", UNKNOWN_LOCATION),
        ('loc("src/with space/mod el.py":42:7)', FILE),
        ('loc("range.py":3:5 to 4:9)', FileRange("range.py", 3, 5, 4, 9)),
        ('loc("range.py":3:5 to :9)', FileRange("range.py", 3, 5, 3, 9)),
        ('loc("-":0:0)', FileRange("-", 0, 0, 0, 0)),
        (r'loc("mod\C3\A8le/\E5\B1\82.py":7:1)', FileRange("modèle/层.py", 7, 1, 7, 1)),
        (r'loc("quo\22te, comma; paren) [brk]")', Name('quo"te, comma; paren) [brk]', UNKNOWN_LOCATION)),
        (r'loc("back\\slash")', Name("back\\slash", UNKNOWN_LOCATION)),
        ('loc("")', Name("", UNKNOWN_LOCATION)),
        (
            'loc("outer"("inner"("src/with space/mod el.py":42:7)))',
            Name("outer", Name("inner", FILE)),
        ),
        (
            'loc(callsite("a.py":1:2 at "b.py":3:4))',
            CallSite(FileRange("a.py", 1, 2, 1, 2), FileRange("b.py", 3, 4, 3, 4)),
        ),
        ('loc(fused["a", unknown])', Fused((Name("a", UNKNOWN_LOCATION), UNKNOWN_LOCATION), "")),
        ('loc(fused<"CSE">["a", "b"])', Fused((Name("a", UNKNOWN_LOCATION), Name("b", UNKNOWN_LOCATION)), '"CSE"')),
        ('fused<{a = affine_map<(d0) -> (d0)>}>["a"]', Fused((Name("a", UNKNOWN_LOCATION),), "")),
        ("loc(#llvm.di_location<line = 3>)", UNKNOWN_LOCATION),
    ],
)
def test_every_form_is_read(text: str, expected: Location) -> None:
    found = parse_location(text)
    if isinstance(found, Fused) and isinstance(expected, Fused) and not expected.metadata:
        assert found.locations == expected.locations
    else:
        assert found == expected


@pytest.mark.parametrize(
    "text",
    ["", "loc()", 'loc("a":x:1)', 'loc(callsite("a" "b"))', 'loc("a") "b"', "loc(fused<[)", "loc(" * 3000 + ")" * 3000],
)
def test_invalid_locations_are_rejected(text: str) -> None:
    with pytest.raises(LocationInvalid):
        parse_location(text)


def within(location: Location) -> Location | None:
    """One of those that lie in a location, so that all that are nested are found one after the other."""
    if isinstance(location, CallSite):
        return location.caller
    if isinstance(location, Fused):
        return location.locations[1]
    return location.child if isinstance(location, Name) else None


def depth_of(location: Location | None) -> int:
    depth = 0
    while location is not None:
        location = within(location)
        depth += 1
    return depth


@pytest.mark.parametrize(
    ("begin", "inner", "end", "inside"),
    [
        ('callsite("a" at ', '"b":1:2', ")", 0),
        ('callsite("a" at ', 'fused<"at", [1]>["c":1:2, callsite("d" at "e")]', ")", 2),
        ('fused["a", ', '"b":1:2', ', "c"]', 0),
        ('"a"(', '"b":1:2', ")", 0),
    ],
    ids=["calls", "fused-inside", "fused", "names"],
)
def test_deeply_nested_locations_are_truncated(begin: str, inner: str, end: str, inside: int) -> None:
    for depth, cut in ((MOST_NESTED - inside, False), (MOST_NESTED + 1, True), (20_000, True)):
        location, is_cut = read_location(begin * depth + inner + end * depth)
        assert is_cut is cut
        assert bool(frames(location)) is not cut
        assert depth_of(location) >= MOST_NESTED
    with pytest.raises(LocationInvalid):
        read_location(begin * 5000 + inner + end * 4999)


def test_a_line_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(LocationInvalid, match="a number expected"):
        parse_location('"a":' + "1" * 5000 + ":1")


@pytest.mark.parametrize(
    "text", ['fused["a.py":1:2, "' + 2_000_000 * "x", '"a.py":' + 2_000_000 * "1", 2_000_000 * "-1"]
)
def test_what_has_no_end_is_refused_in_few_words_and_little_memory(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(LocationInvalid) as refused:
            parse_location(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 70 * len(text)
    assert len(str(refused.value)) < 400


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert parse_location('"a\\22\udcff"') == Name('a"\ufffd\ufffd\ufffd', UNKNOWN_LOCATION)


JAX = (
    'loc("jit(<lambda>)/h0/attn/mul"(callsite("layer_norm"("jax_models.py":94:11 to :40) at '
    'callsite("block"("jax_models.py":116:37 to :60) at "<module>"("gen.py":44:0 to :39)))))'
)


def test_frames_of_a_jax_location() -> None:
    assert frames(parse_location(JAX)) == (
        CodeFrame(FileRange("jax_models.py", 94, 11, 94, 40), "layer_norm"),
        CodeFrame(FileRange("jax_models.py", 116, 37, 116, 60), "block"),
        CodeFrame(FileRange("gen.py", 44, 0, 44, 39), "<module>"),
    )


def test_frames_of_torch_chains_have_no_function() -> None:
    location = parse_location('loc(callsite("layers.py":84:0 at callsite("bert.py":653:0 at "run.py":1:0)))')
    assert [(frame.place.file, frame.place.line, frame.function) for frame in frames(location)] == [
        ("layers.py", 84, ""),
        ("bert.py", 653, ""),
        ("run.py", 1, ""),
    ]


def test_line_zero_is_no_frame_and_fused_gives_its_first_stack() -> None:
    assert frames(parse_location('loc("-":0:0)')) == ()
    fused = parse_location('loc(fused["name", callsite("a.py":1:1 at "b.py":2:1), "c.py":3:1])')
    assert [frame.place.file for frame in frames(fused)] == ["a.py", "b.py"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (JAX, ("h0", "attn")),
        ('loc("jit(train)/grad/transpose(jvp(head))/reduce_sum")', ("grad", "transpose(jvp(head))")),
        ('loc("/layer4/layer4.0/downsample/Conv")', ("layer4", "layer4.0", "downsample")),
        ('loc("encoder/layer_0/dense")', ("encoder", "layer_0")),
        ('loc("reduce_sum")', ()),
        ('loc("jit:"("a.py":1:1))', ()),
        ('loc("a.py":1:1)', ()),
        ('loc(fused["a.py":1:1, "x/y"])', ("x",)),
        ('loc(callsite("f"("a.py":1:1) at "b.py":2:1))', ()),
        ("loc(unknown)", ()),
    ],
)
def test_scope_is_the_name_path_without_op_and_jit(text: str, expected: tuple[str, ...]) -> None:
    assert scope(parse_location(text)) == expected


def test_paths_split_outside_of_parentheses_only_where_they_balance() -> None:
    assert split_path("jit(f)/transpose(jvp(a/b))/add") == ("jit(f)", "transpose(jvp(a/b))", "add")
    assert split_path("a(b/c") == ("a(b", "c")
    assert split_path("a)b/c") == ("a)b", "c")
    assert name_path(parse_location('loc("x"("y"("a.py":1:1)))')) == "x"


class TestTags:
    """Tags are evidence on the callee side only."""

    tags = Tags("tm.op.")

    def test_alone_and_fused(self) -> None:
        alone = parse_location('loc(fused["a.mlir":3:1, "tm.op.5"])')
        both = parse_location('loc(fused["a.mlir":3:1, "tm.op.5", "b.mlir":4:1, "tm.op.7", "tm.op.5"])')
        assert self.tags.of(alone) == (5,)
        assert self.tags.of(both) == (5, 7)

    def test_the_caller_side_is_the_path_outermost_first(self) -> None:
        tags = Tags("tm.op.", {2, 4})
        location = parse_location(
            'loc(callsite(callsite(fused["x", "tm.op.9"] at fused["y", "tm.op.4"]) at fused["z", "tm.op.2"]))'
        )
        assert tags.of(location) == (9,)
        assert tags.op_paths(location) == ((9, (2, 4)),)
        chain = parse_location('loc(callsite("tm.op.9" at callsite("tm.op.4" at "tm.op.2")))')
        assert tags.op_paths(chain) == ((9, (2, 4)),)

    def test_calls_side_by_side_are_several_ways(self) -> None:
        tags = Tags("tm.op.", {2, 4, 6})
        beside = parse_location(
            'loc(fused[callsite("tm.op.9" at "tm.op.2"), callsite("tm.op.9" at "tm.op.4"), "tm.op.1"])'
        )
        assert tags.of(beside) == (9, 1)
        assert tags.op_paths(beside) == ((9, (2,)), (9, (4,)), (1, ()))
        around = parse_location('loc(callsite(fused[callsite("tm.op.9" at "tm.op.2"), "tm.op.8"] at "tm.op.6"))')
        assert tags.op_paths(around) == ((9, (6, 2)), (8, (6,)))
        callers = parse_location('loc(callsite("tm.op.9" at fused["tm.op.2", "tm.op.4", "tm.op.7"]))')
        assert tags.op_paths(callers) == ((9, (2,)), (9, (4,)))

    def test_ways_through_many_such_calls_are_not_all_gone(self) -> None:
        """Each call doubles them: forty would be more than anybody can hold."""
        text = '"tm.op.9"'
        for _ in range(40):
            text = f'callsite({text} at fused["tm.op.2", "tm.op.4"])'
        ways = Tags("tm.op.", {2, 4}).op_paths(parse_location(f"loc({text})"))
        assert 100 < len(ways) < 2000
        assert {op for op, _ in ways} == {9}

    def test_what_is_called_in_place_of_an_op_is_the_op(self) -> None:
        """But what the compiler makes within a function of the model is not the call's."""
        tags = Tags("tm.op.", {2})
        assert tags.of(parse_location('loc(callsite("spec.mlir":3:1 at callsite("tm.op.4" at "tm.op.2")))')) == (4,)
        assert tags.of(parse_location('loc(callsite("spec.mlir":3:1 at callsite(unknown at "tm.op.4")))')) == (4,)
        assert tags.of(parse_location('loc(callsite(unknown at "tm.op.2"))')) == ()
        fused = parse_location('loc(fused[callsite("spec.mlir":3:1 at "tm.op.4"), "tm.op.5"])')
        assert tags.of(fused) == (4, 5)

    def test_other_names_are_no_tags(self) -> None:
        assert self.tags.of(parse_location('loc("tm.op.")')) == ()
        assert self.tags.of(parse_location('loc("tm.op.x")')) == ()
        assert self.tags.of(parse_location('loc("xtm.op.3")')) == ()

    def test_names_around_locations_are_looked_through(self) -> None:
        assert self.tags.of(parse_location('loc("jit(f)/add"(fused["a.py":1:1, "tm.op.3"]))')) == (3,)
