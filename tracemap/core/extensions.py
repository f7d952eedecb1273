"""Extensions: readers, exports and advice rules of other packages, found by their entry points (docs/extending.md).

Installed packages are only searched when an extension may be needed. Names of tracemap's own formats and rules cannot
be replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tracemap.core.errors import ExtensionBroken, TracemapError, start_of
from tracemap.core.process.signals import EndedBySignal
from tracemap.core.sanitize import for_terminal

READERS: Final = "tracemap.readers"
EXPORTS: Final = "tracemap.exports"
ADVICE: Final = "tracemap.advice"

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_MOST_QUOTED: Final = 300
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Extension:
    """An entry point of another package. `package`: its name and version."""

    name: str
    package: str
    entry: EntryPoint

    def load(self) -> Any:  # noqa: ANN401 - the object of another package
        """Import its object.

        Raises:
            ExtensionBroken: it cannot be imported.
        """
        return self.run(self.entry.load)

    def run(self, function: Callable[..., _T], *arguments: object) -> _T:
        """Call a function of the extension. What it prints goes to standard error: standard output has the result.

        Raises:
            ExtensionBroken: it fails.
            TracemapError: it reports an error of the input.
        """
        try:
            with redirect_stdout(sys.stderr):
                return function(*arguments)
        except (TracemapError, KeyboardInterrupt, EndedBySignal):
            raise
        except BaseException as error:  # some libraries have errors that are no Exception
            raise self.broken(f"{type(error).__name__}: {error}") from error

    def broken(self, why: str) -> ExtensionBroken:
        """The error for an extension that does not do what its group needs."""
        kind = self.entry.group.removeprefix("tracemap.").removesuffix("s")
        reason = start_of(for_terminal(" ".join(why.split())), _MOST_QUOTED)
        return ExtensionBroken(
            f"the {kind} {for_terminal(self.name)!r} of the package {for_terminal(self.package)} does not work "
            f"({reason}); update or uninstall the package"
        )


@cache
def extensions(group: str) -> tuple[Extension, ...]:
    """All extensions of a group, by name and package."""
    from importlib.metadata import distributions, entry_points

    # Most machines have none. Parsing the entry points of all packages takes twice as long as searching their texts.
    if not any(group in (package.read_text("entry_points.txt") or "") for package in distributions()):
        return ()
    found = [Extension(entry.name, _package_of(entry), entry) for entry in entry_points(group=group)]
    return tuple(sorted(found, key=lambda extension: (extension.name, extension.package)))


def extension_named(group: str, name: str, own: Collection[str]) -> Extension | None:
    """The extension of a name; None if there is none, or if tracemap has its own of this name.

    Raises:
        ExtensionBroken: several packages have it.
    """
    named = [] if name in own else [extension for extension in extensions(group) if extension.name == name]
    if len(named) > 1:
        others = ", ".join(extension.package for extension in named[1:])
        raise named[0].broken(f"another package has the same name: {others}")
    return named[0] if named else None


def _package_of(entry: EntryPoint) -> str:
    if entry.dist is None:
        return entry.value.partition(":")[0].partition(".")[0]
    return f"{entry.dist.name} {entry.dist.version}"
