"""The action for GitHub: its steps run as the runner runs them, on two versions of a model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from tests.support import ROOT, SAMPLES

ACTION = ROOT / ".github" / "actions" / "check" / "action.yml"
INSTALLS = "Install"
"""The step that would change the environment of these tests."""


def steps(inputs: dict[str, str]) -> list[tuple[str, str, dict[str, str]]]:
    """Name, script and variables of each step, with inputs or their defaults in place of expressions."""
    action = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
    assert action["runs"]["using"] == "composite"
    values = {name: inputs.get(name, about.get("default")) for name, about in action["inputs"].items()}

    def expanded(text: str) -> str:
        return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: str(values[match[1]]), text)

    return [
        (step["name"], step["run"], {name: expanded(value) for name, value in step["env"].items()})
        for step in action["runs"]["steps"]
    ]


@pytest.mark.quick
def test_inputs_reach_scripts_only_as_variables() -> None:
    """An expression in a script would be run as code."""
    for name, script, _ in steps({"model": "m", "baseline": "b"}):
        assert "${{" not in script, name


@pytest.mark.long
@pytest.mark.parametrize("is_slower", [False, True])
def test_the_steps_of_the_action(tmp_path: Path, *, is_slower: bool) -> None:
    text = (SAMPLES / "models" / "hand_mlp.mlir").read_text(encoding="utf-8")
    (tmp_path / "old.mlir").write_text(text, encoding="utf-8")
    (tmp_path / "new.mlir").write_text(text, encoding="utf-8")
    if is_slower:
        (tmp_path / "old.mlir").write_text(
            "func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {\n  return %x : tensor<8xf32>\n}\n"
        )
    summary = tmp_path / "summary.md"
    inputs = {
        "model": "new.mlir",
        "baseline": "old.mlir",
        "seconds": "0.5",
        "repeat": "2",
        "fail-over": "60",
        "record-flags": f"--flagfile {SAMPLES / 'flags' / 'hand_mlp.flags'}" if not is_slower else "--serial",
    }
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    runner = {**os.environ, "PATH": programs, "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    done = None
    for name, script, variables in steps(inputs):
        if name != INSTALLS:
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
                cwd=tmp_path,
                env={**runner, **variables},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0 or name == "Check", done.stderr
    assert done is not None
    assert done.returncode == int(is_slower), done.stdout + done.stderr
    assert ("::error file=" in done.stdout) == is_slower
    assert summary.read_text().startswith("### tracemap: ")
    results = json.loads((tmp_path / "tracemap.sarif").read_text())["runs"][0]["results"]
    assert bool([result for result in results if result["level"] == "error"]) == is_slower
    assert ElementTree.parse(tmp_path / "tracemap.xml").getroot().get("failures") == str(int(is_slower))


@pytest.mark.quick
def test_the_workflow_in_the_documentation_calls_the_action() -> None:
    text = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    inputs = yaml.safe_load(ACTION.read_text(encoding="utf-8"))["inputs"]
    (call,) = [step for step in yaml.safe_load(block)["jobs"]["check"]["steps"] if "/actions/check@" in step["uses"]]
    assert {name for name, about in inputs.items() if about.get("required")} <= call["with"].keys() <= inputs.keys()
    assert all(f"`{name}`" in text for name in inputs.keys() - call["with"].keys())
