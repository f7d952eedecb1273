"""Functions of JAX as they are: inputs, outputs, names, lines."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracemap
from tests.frontends.shares import share_on_lines_of
from tracemap.commands.programs import saved_inputs_of
from tracemap.core.errors import InputInvalid, UsageInvalid
from tracemap.frontends.jax import import_program
from tracemap.ir.executables import rewrite_as_own_bytecode
from tracemap.ir.model_reader import create_records, parse_model
from tracemap.ir.parsing import MlirParser
from tracemap.map.query import scope_of

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
    for file, leaf in zip(saved_inputs_of(bundle).inputs, leaves, strict=True):
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
        assert [each.name for each in bundle.graph.functions] == ["picture_class"]
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


@pytest.mark.quick
def test_passes_of_a_training_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What JAX writes into scopes: derivatives, checkpoints, calls of jitted functions; and the user's own scope."""
    monkeypatch.chdir(tmp_path)

    def layer(weights: Any, x: Any) -> Any:  # noqa: ANN401 - arrays of JAX
        with jax.named_scope("layer"):
            return jax.nn.log_softmax(jnp.sin(x @ weights))

    def loss(weights: Any, x: Any) -> Any:  # noqa: ANN401 - arrays of JAX
        return (jax.checkpoint(layer)(weights, jax.checkpoint(layer)(weights, x)) ** 2).sum()

    def step(weights: Any, x: Any) -> Any:  # noqa: ANN401 - arrays of JAX
        gradient = jax.grad(loss)(weights, x)
        with jax.named_scope("optimizer"):
            return weights - 0.1 * gradient

    found = tracemap.profile(step, jnp.ones((16, 16)), jnp.ones((16, 16)), seconds=0.2)
    table = found.to_pandas()
    sums = table.groupby(table["pass"].fillna(""))["cpu_ns"].sum()
    assert {"forward", "backward", "recompute", "optimizer"} <= {*sums.index}
    (total,) = [metric.attributed for metric in found.attribution.metrics if metric.name == "cpu_ns"]
    assert sums.sum() == total
    products = table[table["name"].str.endswith("dot_general")]
    assert sorted(products["pass"]) == ["backward"] * 3 + ["forward"] * 2 + ["recompute"] * 2
    own = table["scope"].str.contains("layer")
    assert found.attribution.scope("layer")["cpu_ns"] == table[own]["cpu_ns"].sum() > total // 2


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
    with pytest.raises(UsageInvalid):
        tracemap.build(object(), jnp.ones(3), output=target)
    assert not target.exists()
    assert tracemap.build(programs.norm, jnp.ones(3), output=target).graph.module.name  # a plain function is jitted


def best_two(x: Any) -> Any:  # noqa: ANN401 - arrays of JAX
    with jax.named_scope("choose"):
        return jax.lax.top_k(jnp.tanh(x), 2)


def ordered(x: Any) -> Any:  # noqa: ANN401 - arrays of JAX
    with jax.named_scope("choose"):
        return jax.lax.approx_max_k(x, 2)


@pytest.mark.parametrize("function", [pytest.param(best_two, marks=pytest.mark.quick), ordered])
def test_operations_of_chlo_with_other_attributes_than_in_iree(function: Any, tmp_path: Path) -> None:  # noqa: ANN401
    """JAX's bytecode of `chlo.top_k` has one attribute less than IREE reads."""
    numbers = jnp.linspace(0.1, 0.9, 64).reshape(4, 16)
    bundle = tracemap.build(jax.jit(function), numbers, output=tmp_path / "a.tracemap")
    assert [each.name for each in bundle.graph.functions] == [function.__name__]  # no comparator of JAX beside it
    for output, right in zip(tracemap.run(bundle), function(numbers), strict=True):
        np.testing.assert_allclose(output, np.asarray(right), **TOLERANCE)
    members = {bundle.graph.op_by_id[member.op] for site in bundle.graph.sites for member in site.members}
    assert members
    assert all(any(frame.file == __file__ for frame in op.frames) for op in members if op.frames)
    assert "choose" in {"/".join(scope_of(bundle.graph, op, ())) for op in members}


def test_locations_are_those_of_the_bytecode_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions of short forms have locations of their own: a comparator of `sort`, a body of `while`."""

    def whole(x: Any) -> Any:  # noqa: ANN401 - arrays of JAX
        x = jax.lax.while_loop(lambda a: a.sum() < 9, lambda a: a * 2 + 1, x)
        return jax.lax.sort(x), jax.lax.cumsum(x), jnp.max(x)

    texts: list[str] = []

    def keep(text: str) -> bytes:
        texts.append(text)
        return rewrite_as_own_bytecode(text)

    monkeypatch.setattr("tracemap.frontends.jax.rewrite_as_own_bytecode", keep)
    jitted = jax.jit(whole)
    import_program(jitted, (jnp.ones(8),), {})
    written = io.BytesIO()
    jitted.trace(jnp.ones(8)).lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo").operation.write_bytecode(
        written
    )
    parser = MlirParser()
    right, found = (
        create_records(parser, parse_model(parser, data))
        for data in (written.getvalue(), rewrite_as_own_bytecode(texts[0]))
    )
    assert [each.parsed_location for each in found.operations] == [each.parsed_location for each in right.operations]
    assert len(right.operations) > 20


def test_arrays_laid_out_over_a_mesh(tmp_path: Path) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("a",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a"))
    numbers = jax.device_put(jnp.linspace(0.1, 0.9, 64).reshape(4, 16), rows)
    placed = jax.jit(best_two, in_shardings=rows)
    for number, program in enumerate((placed, jax.export.export(placed)(numbers))):
        bundle = tracemap.build(program, numbers, output=tmp_path / f"{number}.tracemap")
        np.testing.assert_allclose(tracemap.run(bundle)[0], np.asarray(best_two(numbers)[0]), **TOLERANCE)


def test_a_function_exported_for_several_platforms_and_sizes(tmp_path: Path) -> None:
    """For several platforms it takes the index of one as its first input."""
    numbers = jnp.linspace(0.1, 0.9, 64).reshape(4, 16)
    sizes = jax.ShapeDtypeStruct(jax.export.symbolic_shape("a, 16"), jnp.float32)
    for number, program in enumerate(
        (
            jax.export.export(jax.jit(best_two), platforms=("cuda", "cpu"))(numbers),
            jax.export.export(jax.jit(best_two))(sizes),
        )
    ):
        bundle = tracemap.build(program, numbers, output=tmp_path / f"{number}.tracemap")
        assert [each.name for each in bundle.graph.functions] == ["best_two"]
        np.testing.assert_allclose(tracemap.run(bundle)[0], np.asarray(best_two(numbers)[0]), **TOLERANCE)


SEVERAL_DEVICES = """
import jax, numpy, tracemap
P = jax.sharding.PartitionSpec
mesh = jax.sharding.Mesh(numpy.array(jax.devices()), ("a",))
function = jax.jit(jax.shard_map(lambda x: x * 2, mesh=mesh, in_specs=P("a"), out_specs=P("a")))
tracemap.build(function, jax.numpy.ones(4), output="a.tracemap")
"""


def test_a_program_for_several_devices_is_refused(tmp_path: Path) -> None:
    """In a process of its own: the number of JAX's devices is chosen before its first use."""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = (sys.executable, "-c", SEVERAL_DEVICES)
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "ModelInvalid" in done.stderr
    assert "written for several devices (as by jax.shard_map)" in done.stderr
    assert not list(tmp_path.iterdir())


SCRIPT = """
import functools, sys
import jax, jax.numpy as jnp

@functools.partial(jax.jit, donate_argnums=0)
def step(x, w):
    return x - 0.1 * jax.grad(lambda x: (jnp.tanh(x @ w) ** 2).sum())(x)

@jax.jit
def evaluate(x):
    for _ in range(30):  # compiles longer than it runs
        x = jnp.sin(x) + 1
    return x.sum()

x, w = jnp.ones((512, 512)), jnp.ones((512, 512))
for _ in range(int(sys.argv[1])):
    x = step(x, w)
print(evaluate(x[:2, :2]))
"""


def test_the_most_expensive_function_of_a_script_is_profiled(tmp_path: Path) -> None:
    """Time of compiling does not count, and only the script's own lines are sources."""
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    words = [sys.executable, "-m", "tracemap", "profile", "--seconds", "0.2", "train.py", "3", "--top"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "tracemap: --top is passed to train.py; put options of profile before the script's name" in done.stderr
    assert "The script also calls evaluate (1 call); SCRIPT:FUNCTION profiles one of them." in done.stdout
    assert "Page: train-step.html" in done.stdout
    assert [path.name for path in (tmp_path / "train-step.tracemap" / "source" / "python").iterdir()] == ["0-train.py"]
