"""Options take what the command line takes; help, defaults and types come from them."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from pathlib import Path

import click
import pytest

import tracemap.options
from tests.docs.test_docs import command
from tracemap.commands.main import COMMANDS
from tracemap.core.errors import UsageInvalid
from tracemap.core.units import UNKNOWN
from tracemap.map.model import OpId
from tracemap.options.compile import AuditOptions, BuildOptions, LowerOptions
from tracemap.options.measure import RecordOptions, StatsOptions
from tracemap.options.option import DeclaredOption, Options, declared_options, merge_options
from tracemap.options.reports import ExportOptions
from tracemap.options.results import AttributeOptions, Rule

pytestmark = pytest.mark.quick


def kinds() -> list[type[Options]]:
    """Every record of options that a command takes, by its name; bases of such are left out."""
    found = set()
    for module in pkgutil.iter_modules(tracemap.options.__path__):
        named = vars(importlib.import_module(f"tracemap.options.{module.name}")).values()
        found |= {kind for kind in named if isinstance(kind, type) and issubclass(kind, Options)}
    return sorted((kind for kind in found if not kind.__subclasses__()), key=lambda kind: kind.__name__)


def commands() -> dict[str, click.Command]:
    """Every command with the options that it takes, those of groups too."""
    found = {name: command(name) for name in COMMANDS}
    for name, made in list(found.items()):
        if isinstance(made, click.Group):
            found |= {f"{name} {inner}": of_group for inner, of_group in made.commands.items()}
    return found


def test_every_record_is_the_options_of_one_command() -> None:
    taken = [made.kind for made in commands().values() if hasattr(made, "kind")]
    assert sorted(kind.__name__ for kind in taken) == [kind.__name__ for kind in kinds()]


def valid(option: DeclaredOption) -> object:
    """A value that a required option takes."""
    return option.choices[0] if option.choices else ["x"] if option.many else "x"


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: str(kind.__name__))
def test_what_is_not_given_is_the_default(kind: type[Options]) -> None:
    given = {option.name: valid(option) for option in declared_options(kind) if option.required}
    absent = {option.name: None for option in declared_options(kind) if not option.required}
    assert kind(**given, **absent) == kind(**given)


def test_values_are_taken_as_the_command_line_takes_them() -> None:
    record = merge_options(RecordOptions, None, {"flagfile": "a.flags", "inputs": ["1", "2"], "counters": "a,cpu/b,c/"})
    assert (record.flagfile, record.inputs, record.counters) == (Path("a.flags"), ("1", "2"), ("a", "cpu/b,c/"))
    assert (record.function, record.iterations, record.sample_hz) == (UNKNOWN, UNKNOWN, 0)
    assert merge_options(AttributeOptions, None, {"rule": "equal"}).rule is Rule.EQUAL
    assert merge_options(BuildOptions, None, {"source_roots": (Path("a"), "b")}).source_roots == (Path("a"), Path("b"))
    assert merge_options(AuditOptions, None, {"fail_under": 95, "ops": [OpId("op12")]}) == AuditOptions(
        fail_under=95.0, ops=("op12",)
    )


def test_changes_add_to_a_record() -> None:
    asked = RecordOptions(serial=True, iterations=7)
    assert merge_options(RecordOptions, asked, {"warmup": 0}, output="r.csv") == replace(
        asked, warmup=0, output=Path("r.csv")
    )
    assert merge_options(RecordOptions, asked, {}, output=None) == asked


@pytest.mark.parametrize(
    ("kind", "name", "value", "said"),
    [
        (RecordOptions, "iterations", 0, "at least 1"),
        (RecordOptions, "iterations", "7", "an integer"),
        (RecordOptions, "iterations", True, "an integer"),
        (RecordOptions, "iterations", 7.0, "an integer"),
        (RecordOptions, "warmup", -1, "at least 0"),
        (RecordOptions, "dim", -1, "at least 0"),
        (RecordOptions, "sample_hz", 20_001, "at least 1 and at most 20000"),
        (RecordOptions, "counters_per_pass", -1, "at least 1"),
        (RecordOptions, "serial", 1, "true or false"),
        (RecordOptions, "function", 1, "a string"),
        (RecordOptions, "inputs", "4xf32", "a list"),
        (RecordOptions, "inputs", [4], "a string"),
        (RecordOptions, "flagfile", 4, "a path"),
        (BuildOptions, "device", "abacus", "one of local, vulkan, cuda, hip"),
        (AttributeOptions, "rule", "other", "one of measured, code, model, root, equal"),
        (StatsOptions, "gamma", 0.0, "above 0"),
        (AuditOptions, "fail_under", 100.5, "at most 100"),
        (LowerOptions, "pipelines", None, "a list"),
    ],
)
def test_values_that_an_option_does_not_take(kind: type[Options], name: str, value: object, said: str) -> None:
    with pytest.raises(UsageInvalid, match=f"^{name} is .*; it must be .*{said}"):
        merge_options(kind, None, {name: value})


def test_there_is_no_such_option() -> None:
    with pytest.raises(TypeError, match=r"no option 'iteration'; did you mean 'iterations'\? The options are: fun"):
        merge_options(RecordOptions, None, {"iteration": 7})
    with pytest.raises(TypeError, match="to"):
        merge_options(ExportOptions, None, {})


def test_an_empty_name_is_not_the_same_as_none() -> None:
    """It is most often that of a variable of a shell that is not set; an empty flag or pattern may have a meaning."""
    tried = set()
    for made in commands().values():
        for declared in declared_options(made.kind) if hasattr(made, "kind") else ():
            names = declared.item is str and declared.option.path == "any" and not declared.choices
            if names and not declared.option.variable and (declared.option.split or not declared.many):
                (typed,) = (parameter for parameter in made.params if parameter.name == declared.name)
                for empty in ("", " ", ","):
                    with pytest.raises(click.BadParameter, match="the value is empty"):
                        typed.type_cast_value(click.Context(made), empty)
                tried.add(declared.name)
    assert {"metric", "columns", "dispatch", "function", "counters", "compare_devices"} <= tried
