"""Declaration of options: next to their fields, with their help."""

from __future__ import annotations

import difflib
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from tracemap.core.errors import UsageInvalid, start_of
from tracemap.core.units import Integer, Unknown

# ---- address
#
# Options that take a folder or a bucket address. They are strings, since a Path would drop one of an address's slashes.


_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SWALLOWED: Final = re.compile(r"[A-Za-z0-9]{2,}:/(?!/)")


def is_address(text: str) -> bool:
    """Whether a text starts like an address: SCHEME://."""
    return _ADDRESS.match(text) is not None


def parse_address(name: str, value: str | os.PathLike[str]) -> str:
    """Return an address unchanged, and anything else as a path.

    Raises:
        UsageInvalid: an address was passed as a Path, which turns it into a folder named `s3:`; or the value is empty.
    """
    text = os.fspath(value)
    if not text:  # as a path it would be the working folder, which nobody has named
        raise UsageInvalid(f"{name} is empty; name a folder, or the address of a bucket")
    if is_address(text):
        return text
    if not isinstance(value, str) and _SWALLOWED.match(text):
        raise UsageInvalid(f"{name} is {text!r}, an address converted to a path; pass it as a string")
    return str(Path(text))


# ---- arguments


_MAX_QUOTED = 60


def invalid_value(name: str, value: object, expected: str) -> UsageInvalid:
    """The error for a value of the wrong type or outside its limits."""
    return UsageInvalid(f"{name} is {start_of(repr(value), _MAX_QUOTED)}; it must be {expected}")


def check_string(name: str, value: object) -> str:
    """Check that a value is a string.

    Raises:
        UsageInvalid: it is not.
    """
    if not isinstance(value, str):
        raise invalid_value(name, value, "a string")
    return value


def check_path(name: str, value: object, expected: str = "a path") -> Path:
    """Convert a string or a path object to a path.

    Raises:
        UsageInvalid: the value is not a path, or contains a NUL, which file names cannot contain.
    """
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise invalid_value(name, value, expected)
    if "\0" in os.fspath(value):
        raise invalid_value(name, value, f"{expected} without a NUL")
    return Path(value)


def check_list(name: str, value: object) -> list[object]:
    """Convert an iterable to a list; strings do not count as iterables.

    Raises:
        UsageInvalid: the value is not iterable.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise invalid_value(name, value, "a list")
    return list(value)


def check_files_mapping(name: str, value: object) -> dict[str, Path]:
    """Convert a mapping of names to files.

    Raises:
        UsageInvalid: the value is not such a mapping.
    """
    if not isinstance(value, Mapping):
        raise invalid_value(name, value, "a dictionary of names and files")
    return {
        check_string(f"a name in {name}", key): check_path(f"a file in {name}", file) for key, file in value.items()
    }


# ---- option
#
# Declaration of an option: next to its field, with its help text and the values that it accepts.
#
# The fields are the only list of a command's options. `tracemap.commands.framework` derives the command line from them,
# the Python API accepts them by name, and requests to other rooms contain the whole record.


T = TypeVar("T")
FLAGS_AFTER_DASHES: Final = "--"
"""Name of the option that takes everything after the first `--`."""
_KEY = "option"
_TYPE_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "a string", Path: "a path"}


@dataclass(frozen=True, slots=True)
class Option:
    """Properties of an option. Its name, type and default are those of its field.

    The limits apply to every value except the default, which may lie outside of them (0: no samples).
    """

    help: str
    names: tuple[str, ...] = ()
    """Names on the command line; default: two dashes and the field's name."""
    metavar: str = ""
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    variable: str = ""
    """Environment variable that replaces the option if it is not given."""
    bare: Integer | str | None = None
    """Value if the option is given without one; None: the value is required."""
    path: Literal["any", "file", "folder", "address"] = "any"
    """Path that the command line accepts: any, an existing file or folder, or a text that may be an address."""
    split: bool = False
    """Whether the value is a comma-separated list."""


def option(default: T, text: str, *names: str, **about: Any) -> T:  # noqa: ANN401 - the fields of `Option`, which checks them
    """An optional field of an options record; `about` goes to `Option`."""
    declared: T = field(default=default, metadata={_KEY: Option(text, names, **about)})
    return declared


def required(text: str, *names: str, **about: Any) -> Any:  # noqa: ANN401 - the same; and it is whatever its field says
    """A required field of an options record; `about` goes to `Option`."""
    return field(metadata={_KEY: Option(text, names, **about)})


def count(default: T, text: str, *names: str, **about: Any) -> T:  # noqa: ANN401 - as in `option`
    """An option that is a number of things, at least 1 by default."""
    return option(default, text, *names, **{"metavar": "N", "at_least": 1, **about})


def duration(default: float, text: str, *names: str) -> float:
    """An option that is a positive time in seconds, at most a day."""
    return option(default, text, *names, metavar="S", above=0, at_most=86_400)


def percentage(default: T, text: str, **about: Any) -> T:  # noqa: ANN401 - as in `option`
    """An option that is a percentage."""
    return option(default, text, metavar="PERCENT", at_least=0, **about)


def name_list(text: str, *names: str, **about: Any) -> tuple[str, ...]:  # noqa: ANN401 - as in `option`
    """An option that is a comma-separated list, empty by default."""
    return option((), text, *names, **{"metavar": "A,B", "split": True, **about})


@dataclass(frozen=True, slots=True)
class Options:
    """Base class of options records; checks every value against its field's type and limits.

    Values may have the forms of the command line: a path or a choice may be a string, a list any iterable, and `None`
    means that the option was not given.

    Raises:
        UsageInvalid: an option does not accept its value.
    """

    def __post_init__(self) -> None:
        for declared in declared_options(type(self)):
            # The only place that sets a field after construction: it converts the given value.
            object.__setattr__(self, declared.name, declared.taken(getattr(self, declared.name)))


AnyOptions = TypeVar("AnyOptions", bound=Options)


def merge_options(
    kind: type[AnyOptions], options: AnyOptions | None, changes: Mapping[str, object], **named: object
) -> AnyOptions:
    """Merge options (None: the defaults) with changes by name, and with the values in `named` that are not None.

    Raises:
        TypeError: an option does not exist, or a required one is missing.
        UsageInvalid: an option does not accept its value.
    """
    known = [declared.name for declared in declared_options(kind)]
    for name in changes:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            suggestion = f"; did you mean {close[0]!r}?" if close else "."
            raise TypeError(f"there is no option {name!r}{suggestion} The options are: {', '.join(known)}")
    if options is not None and not isinstance(options, kind):
        raise invalid_value("options", options, f"a record of the type {kind.__name__}")
    changes = {**changes, **{name: value for name, value in named.items() if value is not None}}
    return kind(**changes) if options is None else replace(options, **changes)


@dataclass(frozen=True, slots=True)
class DeclaredOption:
    """An option with its field's declaration. `item` is the type of its value, or of the elements if `many`."""

    name: str
    item: type
    many: bool
    choices: tuple[str, ...]
    """Accepted values; empty: any value."""
    default: object
    """`dataclasses.MISSING` if the option is required."""
    option: Option

    @property
    def names(self) -> tuple[str, ...]:
        """Names on the command line."""
        return self.option.names or ("--" + self.name.replace("_", "-"),)

    @property
    def required(self) -> bool:
        """Whether the option is required."""
        return self.default is MISSING

    def taken(self, value: object) -> object:
        """Convert a given value to the field's value.

        Raises:
            UsageInvalid: the option does not accept it.
        """
        if not self.required and (value is None or (type(value) is type(self.default) and value == self.default)):
            return self.default
        if self.option.bare is not None and value is self.option.bare:
            return value
        if not self.many:
            return self._item_taken(value)
        series = split_names(value) if self.option.split and isinstance(value, str) else value
        return tuple(self._item_taken(item) for item in check_list(self.name, series))

    def _item_taken(self, value: object) -> object:
        if self.choices:
            if not isinstance(value, str) or value not in self.choices:
                raise self._invalid_value(value, f"one of {', '.join(self.choices)}")
            return self.item(value)
        takes_address = self.option.path == "address"
        if isinstance(value, (str, os.PathLike)) and (takes_address or self.item is Path):
            path = check_path(self.name, value)
            return parse_address(self.name, value) if takes_address else path
        if self.item is float and type(value) is int:  # `95` is a number as much as `95.0`
            value = float(value)
        if not isinstance(value, self.item) or (isinstance(value, bool) and self.item is not bool):
            raise self._invalid_value(value, _TYPE_NAMES[self.item])  # in Python, bool is a subclass of int
        if not all(holds(value, limit) for _, limit, holds in self._limits()):
            raise self._invalid_value(value, " and ".join(f"{word} {limit}" for word, limit, _ in self._limits()))
        return value

    def _limits(self) -> list[tuple[str, float, Callable[[Any, Any], bool]]]:
        """Limits of a value: wording, limit and comparison; empty for options that are not numbers."""
        limits = [
            ("at least", self.option.at_least, operator.ge),
            ("above", self.option.above, operator.gt),
            ("at most", self.option.at_most, operator.le),
        ]
        return [(word, limit, holds) for word, limit, holds in limits if limit is not None]

    def _invalid_value(self, value: object, expected: str) -> UsageInvalid:
        return invalid_value(self.name, value, expected)


def declared_options(kind: type[Options]) -> tuple[DeclaredOption, ...]:
    """Options of a record, in the order of its fields (cached)."""
    if kind not in _DECLARED:
        types = get_type_hints(kind)
        _DECLARED[kind] = tuple(_declared(field_, types[field_.name]) for field_ in fields(kind))
    return _DECLARED[kind]


_DECLARED: dict[type[Options], tuple[DeclaredOption, ...]] = {}


def _declared(field_: Field[Any], hint: Any) -> DeclaredOption:  # noqa: ANN401 - a type, as `typing` gives it
    """Read a type: `X`, `X | None`, `X | Unknown`, `tuple[X, ...]`, where X may be a `Literal` or an enum of texts."""
    known = [kind for kind in get_args(hint) if kind not in {type(None), Unknown, ...}]
    wrapped = get_origin(hint) is not Literal and known
    item = known[0] if wrapped else getattr(hint, "known", hint)  # `Integer` and `Text` are types of their own
    choices: tuple[str, ...] = get_args(item) if get_origin(item) is Literal else ()
    if choices:
        item = str
    elif issubclass(item, StrEnum):
        choices = tuple(member.value for member in item)
    many = get_origin(hint) is tuple
    return DeclaredOption(field_.name, item, many, choices, field_.default, field_.metadata[_KEY])


def split_names(text: str) -> list[str]:
    """Split a list such as `page-faults,cpu/event=0x3c,umask=0/`: commas between slashes separate terms, not names.

    The second slash ends a name, except for modifiers. Without a second slash, as in ratios, a slash has no meaning.

    >>> split_names("page-faults,cpu/event=0x3c,umask=0/,r1a8")
    ['page-faults', 'cpu/event=0x3c,umask=0/', 'r1a8']
    >>> split_names("op,D1mr/Ir,DLmr/Ir")
    ['op', 'D1mr/Ir', 'DLmr/Ir']
    """
    whole = r"(?:[^,/]|/[^/]*/(?=[:ukhpG]*\s*(?:,|$))|/)+"
    names = (found.group().strip() for found in re.finditer(whole, text))
    return [name for name in names if name]


# ---- tolerance


ABSOLUTE: Final = "Absolute tolerance for floats.  [default: 1e-4; f16 1e-3, bf16 and narrower 1e-2]"
RELATIVE: Final = (
    "Relative tolerance for floats, as a fraction of the expected value, in addition to --atol.  [default: 1e-5]"
)
