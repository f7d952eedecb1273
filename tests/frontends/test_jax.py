"""Functions of JAX as they are: inputs, outputs, names, lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracemap
from tests.frontends.shares import share_on_lines_of
from tracemap.errors import InputInvalid, UsageInvalid
from tracemap.graph.query import scope_of
from tracemap.session.programs import kept_of

jax = pytest.importorskip("jax", reason="JAX is not installed: make frontends")
programs = pytest.importorskip("tests.frontends.jax_programs")
jnp = jax.numpy

# Which of the donated arrays JAX itself could use is of no account here.
pytestmark = pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")

TOLERANCE: dict[str, Any] = {"rtol": 2e-4, "atol": 2e-5}
EXAMPLES: dict[str, tuple[Any, Callable[[], tuple[Any, ...]], dict[str, Any]]] = {
    "train_step": (programs.train_step, programs.train_arguments, {"rate": 0.01}),
    "gpt": (programs.gpt, programs.gpt_arguments, {}),
    "picture_class": (programs.classify, programs.classify_arguments, {}),
}


@pytest.mark.parametrize("name", [pytest.param("train_step", marks=pytest.mark.quick), "gpt", "picture_class"])
def test_a_function_of_jax_from_its_arguments_to_its_lines(name: str, tmp_path: Path) -> None:
    function, make, keywords = EXAMPLES[name]
    arguments = make()
    bundle = tracemap.build(function, *arguments, keywords=keywords, output=tmp_path / "a.tracemap")
    assert [each.name for each in bundle.graph.functions] == [name]
    outputs = tracemap.run(bundle)
    # Called last: its donated arguments are gone then.
    expected = jax.tree.leaves(function(*arguments, **keywords))
    assert len(outputs) == len(expected)
    for output, right in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, np.asarray(right), **TOLERANCE)
    result = tracemap.attribute(tracemap.record(bundle, iterations=30), bundle)
    assert share_on_lines_of(programs.__file__, result, bundle) >= 0.95
    kept = [source.name for source in bundle.graph.sources]
    assert programs.__file__ in kept
    assert not any("/tracemap/tracemap/" in file for file in kept)


def test_inputs_are_the_arrays_that_were_handed_in(tmp_path: Path) -> None:
    arguments = programs.train_arguments()
    bundle = tracemap.build(programs.train_step, *arguments, keywords={"rate": 0.5}, output=tmp_path / "train.tracemap")
    call = bundle.kept_call()
    assert call is not None
    names = [f"layers[{number}]['{part}']" for number in range(3) for part in "bw"]
    assert [each.name for each in call.inputs] == [*names, "x", "y"]  # in JAX's order, and `step` is not used
    layers, x, y, _ = arguments
    leaves = [*(layer[part] for layer in layers for part in "bw"), x, y]
    for file, leaf in zip(kept_of(bundle).inputs, leaves, strict=True):
        np.testing.assert_array_equal(np.load(file), np.asarray(leaf))
    run = tracemap.record(bundle, iterations=2)
    assert run.header.inputs[0] == "128xf32: layers[0]['b'], kept in the bundle"
    assert [text.partition(": ")[2] for text in run.header.inputs[-2:]] == [
        "x, kept in the bundle",
        "y, kept in the bundle",
    ]


def odd_types(*given: Any) -> object:  # noqa: ANN401 - arrays of JAX
    half, key, flags, counts, scale = given
    noise = jax.random.normal(key, half.shape, jnp.bfloat16)
    return jnp.where(flags, half + noise, half * counts.astype(jnp.bfloat16)) * jnp.bfloat16(scale)


def test_keys_flags_small_floats_and_numbers_of_python(tmp_path: Path) -> None:
    arguments = (
        jnp.linspace(0, 1, 12, dtype=jnp.bfloat16),
        jax.random.key(4),
        jnp.arange(12) % 3 == 0,
        np.arange(12, dtype=np.uint8),
        2.0,
    )
    function = jax.jit(odd_types)
    bundle = tracemap.build(function, *arguments, output=tmp_path / "odd.tracemap")
    (output,) = tracemap.run(bundle)
    right = np.asarray(function(*arguments)).astype(np.float32)
    np.testing.assert_allclose(np.asarray(output).astype(np.float32), right, rtol=0.02, atol=0.02)


def test_what_is_lowered_or_exported_already(tmp_path: Path) -> None:
    arguments = programs.classify_arguments()
    right = np.asarray(programs.classify(*arguments))
    for number, program in enumerate(
        (
            programs.classify.trace(*arguments),
            programs.classify.lower(*arguments),
            jax.export.export(programs.classify)(*arguments),
        )
    ):
        bundle = tracemap.build(program, *arguments, output=tmp_path / f"{number}.tracemap")
        np.testing.assert_allclose(tracemap.run(bundle)[0], right, **TOLERANCE)
        frames = {frame.file for op in bundle.graph.ops for frame in op.frames}
        assert programs.__file__ in frames
    alone = tracemap.build(programs.classify.lower(*arguments), output=tmp_path / "alone.tracemap")
    assert alone.kept_call() is None
    assert len(tracemap.run(alone)) == 1  # with inputs that are made up of the declared types


def test_a_lowered_function_still_belongs_to_jax(tmp_path: Path) -> None:
    lowered = programs.classify.lower(*programs.classify_arguments())
    before = lowered.as_text()
    tracemap.build(lowered, output=tmp_path / "a.tracemap")
    assert lowered.as_text() == before
    assert lowered.compile() is not None


def scopes_of(function: Any, arguments: tuple[Any, ...], target: Path, **keywords: Any) -> set[str]:  # noqa: ANN401
    graph = tracemap.build(function, *arguments, keywords=keywords, output=target).graph
    members = [member for site in graph.sites for member in site.members]
    return {"/".join(scope_of(graph, graph.op_by_id[member.op], member.path)) for member in members}


def test_transformations_are_called_as_the_user_calls_them(tmp_path: Path) -> None:
    blocks = scopes_of(programs.gpt, programs.gpt_arguments(), tmp_path / "gpt.tracemap")
    assert {"blocks/scan/checkpoint/attn", "blocks/scan/checkpoint/ffn"} <= blocks
    steps = scopes_of(programs.train_step, programs.train_arguments(), tmp_path / "train.tracemap", rate=0.1)
    assert {"jvp(layer0)", "transpose(jvp(layer0))", "descend"} <= steps  # reports add both up in layer0
    pictures = scopes_of(programs.classify, programs.classify_arguments(), tmp_path / "cnn.tracemap")
    assert {"vmap(conv0)", "vmap(head)"} <= pictures

    def blocks_loss(blocks: Any, x: Any) -> Any:  # noqa: ANN401 - arrays of JAX
        return (programs.gpt(blocks, x) ** 2).sum()

    slopes = jax.jit(jax.grad(blocks_loss))
    backward = scopes_of(slopes, programs.gpt_arguments(), tmp_path / "slopes.tracemap")
    assert any("remat" in scope and scope.endswith("attn") for scope in backward)
    assert not any("while/body" in scope or "closed_call" in scope for scope in backward), backward


def test_arguments_that_do_not_fit(tmp_path: Path) -> None:
    weights, pictures = programs.classify_arguments()
    target = tmp_path / "a.tracemap"
    with pytest.raises(InputInvalid, match="structure"):
        tracemap.build(programs.classify.lower(weights, pictures), pictures, output=target)
    given_away = jnp.ones(4)
    doubled = jax.jit(lambda x: x * 2, donate_argnums=0)
    doubled(given_away)
    if given_away.is_deleted():
        with pytest.raises(InputInvalid, match="donated"):
            tracemap.build(doubled, given_away, output=target)
    with pytest.raises(UsageInvalid, match=r"jax\.jit"):
        tracemap.build(programs.norm, jnp.ones(3), output=target)
    assert not target.exists()
