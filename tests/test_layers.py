"""Import direction is a test: each room of the package imports only what the table allows, inside functions too."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT

PACKAGE = ROOT / "tracemap"

_BELOW = frozenset({"errors", "units", "locations", "outputs", "toolchain", "machine"})
_MAKING = frozenset({"ir", "graph", "mapping"})
_MEASURING = frozenset({"measurements", "hook", "capture"})
_JOINING = frozenset({"attribution"})

# Room -> the rooms that it may import, from the bottom up. CONTRIBUTING.md shows the same table to people.
USES: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "units": frozenset({"errors"}),
    "locations": frozenset({"errors"}),
    "outputs": frozenset({"errors"}),
    "toolchain": frozenset({"errors", "units"}),
    "ir": frozenset({"errors", "units", "locations"}),
    "graph": frozenset({"errors", "units", "locations", "outputs"}),
    "machine": frozenset({"errors", "units"}),
    "mapping": frozenset({"ir", "graph", "machine"}) | _BELOW,
    "measurements": frozenset({"errors", "units", "outputs"}),
    "hook": frozenset(),
    "capture": frozenset({"measurements", "hook", "machine"}) | _BELOW,
    "attribution": frozenset({"graph", "measurements", "machine", "errors", "units", "locations"}),
    "reports": frozenset({"attribution", "graph", "measurements"}) | (_BELOW - {"toolchain"}),
    "exports": frozenset({"attribution", "graph", "measurements", "errors", "units", "locations"}),
    "bench": _MAKING | _MEASURING | _BELOW,
    "session": _MAKING | _MEASURING | _JOINING | _BELOW | frozenset({"bench"}),
    "cli": _MAKING | _MEASURING | _JOINING | _BELOW | frozenset({"reports", "exports", "bench", "session"}),
}
# The Python API and `python -m tracemap`; nothing imports them.
ENTRANCES: dict[str, frozenset[str]] = {"__init__": frozenset(USES) - {"cli"}, "__main__": frozenset({"cli"})}
# A constant without imports of its own.
FREE_FOR_ALL = "_version"

COMPILER_ROOMS = frozenset({"ir", "mapping"})
HEAVY = ("capstone", "elftools", "numpy", "duckdb", "networkx", "jinja2", "pygments", "rich", "iree")


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_names(path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything that a module imports, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(path, node)
            yield node.lineno, base
            # `from tracemap.graph import model` imports tracemap.graph.model; a name that is no module does no harm.
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _calls_import(node) and isinstance(node.args[0], ast.Constant):
            yield node.lineno, str(node.args[0].value)


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = path.relative_to(ROOT).parent.parts
    return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])


def _calls_import(node: ast.Call) -> bool:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return called in {"import_module", "__import__"} and bool(node.args)


def test_every_room_is_in_the_table() -> None:
    rooms = {room_of(path) for path in modules()} - {FREE_FOR_ALL}
    assert rooms <= set(USES) | set(ENTRANCES)


def test_table_has_no_cycle() -> None:
    seen: set[str] = set()
    for room, uses in USES.items():
        assert uses <= seen, f"{room} uses rooms that stand below it in the table: {sorted(uses - seen)}"
        seen.add(room)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_only_downwards(path: Path) -> None:
    room = room_of(path)
    allowed = (USES | ENTRANCES).get(room, frozenset()) | {room, FREE_FOR_ALL}
    wrong = []
    for line, name in imported_names(path):
        parts = name.split(".")
        if parts[0] == "tracemap" and len(parts) > 1 and parts[1] not in allowed:
            wrong.append(f"line {line}: {name}")
    assert not wrong, f"{path.relative_to(ROOT)} imports upwards: {wrong}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_imports_the_package_root(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert "tracemap" not in [alias.name for alias in node.names], f"line {node.lineno}"
        elif isinstance(node, ast.ImportFrom):
            assert _absolute(path, node) != "tracemap", f"line {node.lineno}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_ir_and_mapping_import_the_compiler(path: Path) -> None:
    names = {name for _, name in imported_names(path) if name.startswith("iree.compiler") or name == "iree"}
    assert not names or room_of(path) in COMPILER_ROOMS


def test_only_the_command_line_prints_or_exits() -> None:
    offenders = []
    for path in modules():
        if room_of(path) in {"cli", "__main__"}:
            continue
        offenders += [f"{path.relative_to(ROOT)}:{line}" for line in lines_that_print_or_exit(path)]
    assert not offenders


def lines_that_print_or_exit(path: Path) -> Iterator[int]:
    """Lines of a module that do so; what it does only when started as a program of its own is not looked at."""
    statements = ast.parse(path.read_text(encoding="utf-8")).body
    imported = [node for node in statements if not (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))]
    for node in (inner for statement in imported for inner in ast.walk(statement)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"print", "sys.exit", "exit", "click.echo"}:
            yield node.lineno


def test_starting_imports_nothing_heavy() -> None:
    code = f"import sys, tracemap.cli.main; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_the_api_imports_nothing_heavy() -> None:
    code = f"import sys, tracemap; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_checker_sees_function_level_and_relative_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above stand on `imported_names`; a blind one would pass everything."""
    package = tmp_path / "tracemap"
    module = package / "measurements" / "csv.py"
    module.parent.mkdir(parents=True)
    module.write_text("def f():\n    from ..graph import model\n    import iree.compiler.ir\n", encoding="utf-8")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    found = list(imported_names(module))
    assert (2, "tracemap.graph") in found
    assert (3, "iree.compiler.ir") in found
