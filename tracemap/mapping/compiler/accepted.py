"""Whether iree-compile takes flags at all: asked once, before many compilations would fail of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tracemap.errors import UsageInvalid
from tracemap.mapping.compiler.messages import failed
from tracemap.owned.home import temporary_folder
from tracemap.toolchain import find_tool, run_tool

_TRY = re.compile(r"\s*Try: '.*'")
_MOST = 400


def check_accepted(flags: Sequence[str]) -> None:
    """Refuse flags that iree-compile does not know, whose values it does not take, or that only print something.

    Raises:
        UsageInvalid: there are such; the message has the compiler's own words.
        ToolMissing: there is no compiler.
    """
    with temporary_folder() as folder:
        source, target = folder / "empty.mlir", folder / "read.mlir"
        source.write_text("module {}\n", encoding="utf-8")
        done = run_tool([find_tool("iree-compile"), source, "--compile-to=input", "-o", target, *flags])
        if done.returncode < 0:
            raise failed(UsageInvalid, done.returncode, done.stderr, "with these flags ")
        if done.returncode != 0:
            said = " ".join(_TRY.sub("", line.removeprefix("iree-compile: ")) for line in done.stderr.splitlines())
            raise UsageInvalid(f"iree-compile does not take the flags: {said[:_MOST] or 'it does not say why'}")
        if not target.is_file():
            raise UsageInvalid("with these flags iree-compile prints something and compiles nothing; leave them out")
