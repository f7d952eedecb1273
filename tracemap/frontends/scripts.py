"""Run a Python script, and capture the programs that it compiles: JAX functions that it calls, models that it builds.

While the script runs, `jax.jit` returns functions that keep the arguments of their first call. Calls inside other
jitted functions are not kept, as they are part of these.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import linecache
import runpy
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracemap.core.errors import ProgramFailed, TracemapError, UsageInvalid
from tracemap.core.units import join_names
from tracemap.frontends.imported import OWN_FOLDER, ImportedModel

if TYPE_CHECKING:
    from tracemap.map.bundle import Bundle


@dataclass(slots=True)
class CapturedProgram:
    """A program of a script.

    `found`: the imported model, the bundle that the script built, or the error of the import. `seconds`: the time of
    its calls without that of compiling.
    """

    name: str
    found: ImportedModel | Bundle | TracemapError
    calls: int = 0
    seconds: float = 0.0

    def add_call(self, seconds: float) -> None:
        """Count a call."""
        self.calls += 1
        self.seconds += seconds


@dataclass(slots=True)
class ScriptCapture:
    """The programs that a script has compiled up to now.

    `function`: capture only programs of this name; also a plain function, which is then jitted. "": all.
    """

    script: Path
    function: str
    programs: list[CapturedProgram] = field(default_factory=list)
    defined: list[str] = field(default_factory=list)
    """Names of jitted functions, called or not."""
    compile_seconds: float = 0.0
    """Time in which JAX has traced, lowered and compiled up to now."""

    def add_duration(self, event: str, duration: float, **_: object) -> None:
        """Count an event of `jax.monitoring`."""
        if event.startswith("/jax/core/compile/"):
            self.compile_seconds += duration


def run_script(capture: ScriptCapture, arguments: Sequence[str]) -> list[CapturedProgram]:
    """Run a script as `python SCRIPT ARGUMENTS` does; return its programs, the most expensive one first.

    Args:
        capture: the script; callers may add other programs to it while the script runs.
        arguments: the script's own arguments.

    Raises:
        ProgramFailed: the script raised an exception, or exited with another status than 0.
        UsageInvalid: the script compiled nothing, or nothing of this name.
    """
    script, function = capture.script, capture.function
    with ExitStack() as patches:
        patches.enter_context(_as_main(script, arguments))
        if importlib.util.find_spec("jax") is not None:
            patches.enter_context(_jitted_functions(capture))
        if function:
            patches.callback(sys.setprofile, None)
            sys.setprofile(_plain_calls(capture))
        _execute(script)
    named = [program for program in capture.programs if function in ("", program.name)]
    if not named:
        raise UsageInvalid(_nothing_captured(capture))
    return sorted(named, key=lambda program: -program.seconds)


def _execute(script: Path) -> None:
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise ProgramFailed(f"{script}: exited with {ended.code!r} before the profile began") from ended
    except TracemapError:
        raise
    except Exception as error:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_own(frame.filename)]
        text = "".join([*traceback.format_list(own), *traceback.format_exception_only(error)])
        raise ProgramFailed(f"{script}: raised an exception\n{text.rstrip()}") from error


def _is_own(file: str) -> bool:
    return file.startswith("<frozen runpy") or Path(file).is_relative_to(OWN_FOLDER)


def _nothing_captured(capture: ScriptCapture) -> str:
    called, file = [program.name for program in capture.programs], capture.script
    if capture.function:
        known = f" (it calls {', '.join(called)})" if called else ""
        return f"{file}: does not call {capture.function}{known}; call it once with example arguments"
    if capture.defined:
        return f"{file}: does not call {join_names(capture.defined)}; call it once with example arguments"
    return f"{file}: calls neither a function of jax.jit nor tracemap.build; name a plain function: {file}:FUNCTION"


@contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Set `sys.argv` and `sys.path` as Python does for a script."""
    argv, path = sys.argv, sys.path[:]
    sys.argv, sys.path[0:0] = [str(script), *arguments], [str(script.resolve().parent)]
    linecache.getlines(str(script))  # the model's locations name this file, which is unloaded when the script has ended
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


# ---- JAX


@contextmanager
def _jitted_functions(capture: ScriptCapture) -> Iterator[None]:
    """Capture the outermost calls of functions that `jax.jit` returns."""
    import jax
    from jax import monitoring
    from jax.extend import source_info_util

    for folder in (OWN_FOLDER, Path(click.__file__).parent, Path(runpy.__file__)):
        source_info_util.register_exclusion(str(folder))  # their frames are around the script, not in it
    jit = jax.jit

    @functools.wraps(jit)
    def captured(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - as for `jax.jit`
        jitted = jit(*arguments, **named)
        if hasattr(jitted, "lower"):
            return _Jitted(jitted, capture)
        return lambda function: _Jitted(jitted(function), capture)  # `@jax.jit(static_argnums=0)`

    jax.jit = captured
    monitoring.register_event_duration_secs_listener(capture.add_duration)
    try:
        yield
    finally:
        monitoring.unregister_event_duration_listener(capture.add_duration)
        jax.jit = jit


class _Jitted:
    """A jitted function that keeps its first outermost call, and measures the others."""

    def __init__(self, jitted: Any, capture: ScriptCapture) -> None:  # noqa: ANN401 - JAX's
        functools.update_wrapper(self, jitted)
        capture.defined.append(getattr(jitted, "__name__", "main"))
        self._jitted, self._capture = jitted, capture
        self._program: CapturedProgram | None = None

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401 - the user's
        if _is_traced((arguments, keywords)):
            return self._jitted(*arguments, **keywords)
        import jax

        if self._program is None:
            self._program = _captured(self._jitted, arguments, keywords)
            self._capture.programs.append(self._program)
        begin, compiling = time.monotonic(), self._capture.compile_seconds
        result = jax.block_until_ready(self._jitted(*arguments, **keywords))
        elapsed, compiled = time.monotonic() - begin, self._capture.compile_seconds - compiling
        self._program.add_call(max(0.0, elapsed - compiled))
        return result

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - JAX's
        return getattr(self._jitted, name)

    def __get__(self, instance: object, owner: type | None = None) -> Any:  # noqa: ANN401 - as for functions
        return self if instance is None else types.MethodType(self, instance)


def without_capture(program: object) -> object:
    """The program itself, if it is one of those that capture their calls."""
    return program._jitted if isinstance(program, _Jitted) else program


def _captured(jitted: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> CapturedProgram:  # noqa: ANN401 - JAX's
    """Import a program with its arguments now: the call may donate them."""
    from tracemap.frontends.jax import import_program

    name = getattr(jitted, "__name__", "main")
    try:
        return CapturedProgram(name, import_program(jitted, arguments, keywords))
    except TracemapError as error:
        return CapturedProgram(name, error)


def _is_traced(values: object) -> bool:
    """Whether a call is part of another function's trace."""
    import jax
    from jax._src.core import trace_state_clean

    return not trace_state_clean() or any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def _plain_calls(capture: ScriptCapture) -> Callable[[types.FrameType, str, object], None]:
    """A profile function that captures the first call of the script's plain function of this name, and jits it."""
    names = {str(capture.script), str(capture.script.resolve())}

    def look(frame: types.FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or code.co_name != capture.function or code.co_filename not in names:
            return
        function = frame.f_globals.get(capture.function)
        if not isinstance(function, types.FunctionType) or function.__code__ is not code:
            return
        arguments, keywords = _arguments_of(frame)
        if _is_traced((arguments, keywords)):
            return
        sys.setprofile(None)
        import jax

        capture.programs.append(_captured(jax.jit(function), arguments, keywords))

    return look


def _arguments_of(frame: types.FrameType) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments of a call that has just begun."""
    names, more, others, values = inspect.getargvalues(frame)
    count = frame.f_code.co_argcount
    positional = [*(values[name] for name in names[:count]), *(values[more] if more else ())]
    keywords = {name: values[name] for name in names[count:]}
    return positional, {**keywords, **(values[others] if others else {})}
