"""Names of runs: unique for simultaneous recordings, whatever a killed one left."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import Built
from tests.parallel import findings_of_round
from tests.recording import request, sample
from tests.support import check_cli, run_cli
from tracemap.capture.record import record
from tracemap.capture.run_names import reserve_next_run, reserve_run
from tracemap.core.errors import ProgramFailed


def takes_marks(folder: Path) -> bool:
    try:
        os.setxattr(folder, "user.tracemap", b"")
    except OSError:
        return False
    return True


def fail_with_profile(output: Path) -> None:
    with reserve_run(output, force=False) as reservation:
        reservation.profile.write_bytes(b"IRPF")
        raise ProgramFailed("no luck")


@pytest.mark.long
def test_recordings_at_the_same_time_have_a_run_each(built: Built, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(built("hand_mlp"), tmp_path / "mlp.tracemap"))
    assert findings_of_round(bundle, 4) == []


def test_each_number_is_taken_once(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with reserve_next_run(runs) as first, reserve_next_run(runs) as second:
        assert [first.output.name, second.output.name] == ["run-001.parquet", "run-002.parquet"]
        assert first.profile != second.profile
        first.output.touch()
    with reserve_next_run(runs) as again:
        assert again.output.name == "run-002.parquet"
    (runs / "run-001.parquet").unlink()
    with reserve_next_run(runs):
        pass
    assert not runs.exists()


def test_one_recording_at_a_time_makes_a_run(built: Built, tmp_path: Path) -> None:
    output = tmp_path / "run.csv"
    with reserve_run(output, force=False):
        for option in ((), ("--force",)):
            done = run_cli("record", built("hand_mlp"), "-o", output, *option)
            assert done.returncode == 2
            assert "another recording is writing this run" in done.stderr
            assert done.stderr.endswith("[target-exists]\n")
    assert list(tmp_path.iterdir()) == []


def test_what_was_recorded_is_named_and_does_not_refuse_the_next_run(tmp_path: Path) -> None:
    if not takes_marks(tmp_path):
        pytest.skip("the file system of temporary files has no attributes of users")
    output = tmp_path / "run.parquet"
    with pytest.raises(ProgramFailed) as caught:
        fail_with_profile(output)
    profile = output.with_name("run.parquet.ireeprof")
    (note,) = caught.value.__notes__
    assert str(profile) in note
    assert profile.read_bytes() == b"IRPF"
    with reserve_run(output, force=False) as next_one:
        assert next_one.profile == profile
        assert not profile.read_bytes()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_profile_of_somebody_else_is_kept(made: Path, tmp_path: Path) -> None:
    """By --force it is replaced, as whatever is in the way."""
    own = tmp_path / "run.ireeprof"
    own.write_bytes(b"IRPF")
    record(request(sample(made, "hand_mlp"), tmp_path / "run", iterations=1))
    assert own.read_bytes() == b"IRPF"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.ireeprof"]
    record(request(sample(made, "hand_mlp"), tmp_path / "run", iterations=1, force=True))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.long
def test_what_a_killed_recording_left_in_a_bundle_is_replaced(built: Built, tmp_path: Path) -> None:
    if not takes_marks(tmp_path):
        pytest.skip("the file system of temporary files has no attributes of users")
    bundle = Path(shutil.copytree(built("hand_mlp"), tmp_path / "mlp.tracemap"))
    left = bundle / "runs" / "run-001.parquet.ireeprof"
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"IRPF")
    os.setxattr(left, "user.tracemap", b"recording")
    check_cli("record", bundle, "--iterations", "1")
    assert [path.name for path in left.parent.iterdir()] == ["run-001.parquet"]
