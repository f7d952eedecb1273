"""Imports lead only downwards: each room of the package imports only what the table allows.

The same holds inside rooms that have sub-rooms, and no module imports itself by way of others. An import in a function
or for type checking counts too: it says just as much that one module cannot be understood without the other.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from tests.conftest import Built, Recorded
from tests.support import ROOT, check_cli

PACKAGE = ROOT / "tracemap"

# Room -> the rooms that it may import, from the bottom up. CONTRIBUTING.md shows the same table to people.
USES: dict[str, frozenset[str]] = {
    "core": frozenset(),
    "hook": frozenset(),
    "options": frozenset({"core"}),
    "ir": frozenset({"core"}),
    "machine": frozenset({"core"}),
    "map": frozenset({"core", "options", "ir", "machine"}),
    "frontends": frozenset({"core", "ir", "map"}),
    "runs": frozenset({"core", "options", "machine"}),
    "capture": frozenset({"core", "options", "hook", "machine", "runs"}),
    "attribution": frozenset({"core", "options", "machine", "map", "runs"}),
    "compare": frozenset({"core", "machine", "map", "runs", "attribution"}),
    "store": frozenset({"core", "options", "map", "runs", "attribution"}),
    "kernels": frozenset({"core", "options", "ir", "machine", "map", "runs", "capture"}),
    "reports": frozenset({"core", "options", "machine", "map", "runs", "attribution", "compare", "store", "kernels"}),
    "commands": frozenset(
        {
            *("core", "hook", "options", "ir", "machine", "map", "frontends", "runs", "capture"),
            *("attribution", "compare", "store", "kernels", "reports"),
        }
    ),
    "results": frozenset(
        {*("core", "options", "map", "runs", "capture"), *("attribution", "compare", "kernels", "reports", "commands")}
    ),
    "model_explorer": frozenset({"core", "map", "reports", "commands"}),
}
# The Python API and `python -m tracemap`; nothing imports them.
ENTRANCES: dict[str, frozenset[str]] = {"__init__": frozenset(USES), "__main__": frozenset({"commands"})}
# A constant without imports of its own.
FREE_FOR_ALL = "_version"

COMPILER_ROOMS = frozenset({"ir", "map"})
HEAVY = ("capstone", "elftools", "msgspec", "numpy", "duckdb", "networkx", "jinja2", "pygments", "rich", "iree")

ONLY_SOME_RUNS = {
    *("networkx", "capstone", "jinja2", "pygments", "iree", "numpy.ma"),
    *("tracemap.machine.estimate", "tracemap.machine.dataflow", "tracemap.runs.readers.formats"),
    *("tracemap.commands.programs", "tracemap.options.measure", "tracemap.capture"),
}
"""Packages that `attribute` of a Parquet run of tracemap must not import."""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def name_of(path: Path) -> str:
    """The dotted name by which a module is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path, known: Collection[str]) -> set[str]:
    """The other modules of the package that a module imports; its own parents, which are there anyway, do not count."""
    own = name_of(path)
    names = {name for _, name in imported_names(path) if name in known}
    return {name for name in names if name != own and not own.startswith(f"{name}.")}


@cache
def import_graph() -> nx.DiGraph[str]:
    """Modules of the package, each with an arrow to every one that it imports."""
    names = {name_of(path): path for path in modules()}
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(names)
    graph.add_edges_from((name, used) for name, path in names.items() for used in imported_modules(path, names))
    return graph


def circles(graph: nx.DiGraph[str]) -> list[list[str]]:
    """One circle of each knot of modules that import one another, as a way that leads back to its beginning."""
    knots = [graph.subgraph(knot) for knot in nx.strongly_connected_components(graph) if len(knot) > 1]
    return sorted([tail for tail, _ in nx.find_cycle(knot)] for knot in knots)


def between_parts(graph: nx.DiGraph[str], package: str) -> nx.DiGraph[str]:
    """The arrows between what lies directly in a package: its files, and its sub-packages as wholes."""
    prefix = f"{package}."
    inner: nx.DiGraph[str] = nx.DiGraph()
    for tail, head in graph.edges:
        if tail.startswith(prefix) and head.startswith(prefix):
            ends = [name.removeprefix(prefix).split(".")[0] for name in (tail, head)]
            if ends[0] != ends[1]:
                inner.add_edge(*ends)
    return inner


def imported_names(path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything that a module imports, wherever the import stands."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(path, node)
            yield node.lineno, base
            # `from tracemap.map import model` imports tracemap.map.model; a name that is no module does no harm.
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


def test_table_names_the_rooms_that_exist_and_no_others() -> None:
    assert {room_of(path) for path in modules()} - {FREE_FOR_ALL} == set(USES) | set(ENTRANCES)


def test_contributors_are_shown_the_same_rooms() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("## Layers")[2].partition("## Style")[0]
    first_cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    shown = [re.sub(r"/|\.py", "", name) for cell in first_cells for name in re.findall(r"`(.+?)`", cell)]
    assert sorted(shown) == sorted(USES)


@pytest.mark.long
def test_parts_of_a_package_do_not_import_one_another_in_a_circle() -> None:
    graph = import_graph()
    packages = sorted({name.rpartition(".")[0] for name in graph if name.count(".") > 1})
    assert {package: found for package in packages if (found := circles(between_parts(graph, package)))} == {}


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circles(import_graph()) == []


def test_table_has_no_cycle() -> None:
    seen: set[str] = set()
    for room, uses in USES.items():
        assert uses <= seen, f"{room} uses rooms that stand below it in the table: {sorted(uses - seen)}"
        seen.add(room)


@pytest.mark.long
def test_imports_only_downwards() -> None:
    assert [wrong for path in modules() for wrong in imports_upwards(path)] == []


def imports_upwards(path: Path) -> Iterator[str]:
    """The imports of a module that its room must not have."""
    room = room_of(path)
    allowed = (USES | ENTRANCES).get(room, frozenset()) | {room, FREE_FOR_ALL}
    for line, name in imported_names(path):
        parts = name.split(".")
        if parts[0] == "tracemap" and len(parts) > 1 and parts[1] not in allowed:
            yield f"{path.relative_to(ROOT)}:{line}: {name}"


def test_nothing_imports_the_package_root() -> None:
    assert [f"{path.relative_to(ROOT)}:{line}" for path in modules() for line in imports_of_root(path)] == []


def imports_of_root(path: Path) -> Iterator[int]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [_absolute(path, node)]
        else:
            continue
        if "tracemap" in names:
            yield node.lineno


def test_only_ir_and_mapping_import_the_compiler() -> None:
    rooms = {room_of(path) for path in modules() if any(is_compiler(name) for _, name in imported_names(path))}
    assert rooms <= COMPILER_ROOMS


def is_compiler(name: str) -> bool:
    return name.startswith("iree.compiler") or name == "iree"


def test_only_the_command_line_prints_or_exits() -> None:
    offenders = []
    for path in modules():
        if room_of(path) in {"commands", "__main__"}:
            continue
        offenders += [f"{path.relative_to(ROOT)}:{line}" for line in lines_that_print_or_exit(path)]
    assert not offenders


def lines_that_print_or_exit(path: Path) -> Iterator[int]:
    """Lines of a module that do so; what it does only when started as a program of its own is not looked at."""
    statements = tree_of(path).body
    imported = [node for node in statements if not (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))]
    for node in (inner for statement in imported for inner in ast.walk(statement)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"print", "sys.exit", "exit", "click.echo"}:
            yield node.lineno


def test_starting_imports_nothing_heavy() -> None:
    code = f"import sys, tracemap.commands.main; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_the_api_imports_nothing_heavy() -> None:
    code = f"import sys, tracemap; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.long
def test_what_only_some_runs_need_is_not_imported_for_all(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    """Packages that take long to import are not there if the bundle has its estimates from an earlier command.

    These are graphs and the disassembler, for estimates; readers of other tools' files; and the options of recordings.
    The bundle is this test's own: `attribute` of a run with other caches, as another test may call it, replaces them.
    """
    bundle = shutil.copytree(built("hand_mlp"), tmp_path / "hand_mlp.tracemap")
    words = ["attribute", str(recorded("hand_mlp")), "--map", str(bundle)]
    check_cli(*words)
    code = (
        "import sys; from tracemap.commands.main import group; group.main(sys.argv[1:], standalone_mode=False); "
        f"sys.exit(', '.join(sorted({ONLY_SOME_RUNS!r} & sys.modules.keys())) or 0)"
    )
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_checker_sees_function_level_and_relative_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above stand on `imported_names`; a blind one would pass everything."""
    package = tmp_path / "tracemap"
    module = package / "runs" / "csv.py"
    module.parent.mkdir(parents=True)
    module.write_text("def f():\n    from ..map import model\n    import iree.compiler.ir\n", encoding="utf-8")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    found = list(imported_names(module))
    assert (2, "tracemap.map") in found
    assert (3, "iree.compiler.ir") in found


def test_checker_sees_circles_and_arrows_upwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "map/build/__init__.py": "",
        "map/build/model/__init__.py": "from tracemap.map.build.model import facts\n",
        "map/build/model/model_facts.py": "def f():\n    from tracemap.map.build import build\n",
        "map/build/build.py": "if TYPE_CHECKING:\n    from tracemap.map.build.sites import members\n",
        "map/build/sites/__init__.py": "",
        "map/build/sites/members.py": "import tracemap.map.build.model.model_facts\n",
    }
    for name, text in texts.items():
        path = tmp_path / "tracemap" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path / "tracemap")
    graph = import_graph.__wrapped__()
    assert [set(circle) for circle in circles(graph)] == [
        {"tracemap.map.build.model.model_facts", "tracemap.map.build.build", "tracemap.map.build.sites.members"}
    ]
    assert [set(circle) for circle in circles(between_parts(graph, "tracemap.map.build"))] == [
        {"model", "build", "sites"}
    ]
