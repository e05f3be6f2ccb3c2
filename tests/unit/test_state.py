"""The state folder: whose it is, who has it, and that a refusal leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hotvirt.embedded import state
from hotvirt.embedded.state import AlreadyRunning, Running, StateDir, StateError, write_atomically


def test_a_new_folder_is_made_for_its_owner_only_and_known_again(tmp_path: Path) -> None:
    folder = StateDir(tmp_path / "deep" / "state")
    assert not folder.exists()
    folder.prepare()
    assert folder.exists()
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.prepare()


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    StateDir(tmp_path).prepare()
    assert StateDir(tmp_path).exists()


def test_a_folder_of_somebody_else_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(StateError, match="is not empty and is not Hotvirt's"):
        StateDir(tmp_path).prepare()
    assert [entry.name for entry in tmp_path.iterdir()] == ["precious"]


def test_a_file_a_strange_marker_and_a_newer_format_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StateError, match="is not a folder"):
        StateDir(file).prepare()
    other = tmp_path / "other"
    other.mkdir()
    (other / "format").write_text("qcow2")
    with pytest.raises(StateError, match="is not Hotvirt's"):
        StateDir(other).exists()
    (other / "format").write_text("hotvirt state folder, format 99\n")
    with pytest.raises(StateError, match="another version of Hotvirt"):
        StateDir(other).exists()


def test_a_full_disk_is_refused_and_nothing_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "SPACE_NEEDED", 1 << 62)
    with pytest.raises(StateError, match="is full"):
        StateDir(tmp_path / "state").prepare()
    assert not (tmp_path / "state").exists()


def test_one_at_a_time_has_the_folder(tmp_path: Path) -> None:
    folder = StateDir(tmp_path)
    folder.prepare()
    assert folder.running() is None
    with folder.locked() as lock:
        with pytest.raises(AlreadyRunning, match=f"process {os.getpid()}"), folder.locked():
            raise AssertionError("two had it")
        assert folder.running() == Running(os.getpid(), "", False)
        lock.say(server="https://127.0.0.1:1", ready=True)
        assert folder.running() == Running(os.getpid(), "https://127.0.0.1:1", True)
    assert folder.running() is None
    with folder.locked():
        assert folder.running() == Running(os.getpid(), "", False)


def test_an_atomic_write_has_its_rights_and_leaves_no_rest(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("old")
    file.chmod(0o644)
    write_atomically(file, b"new", 0o600)
    assert file.read_bytes() == b"new"
    assert file.stat().st_mode & 0o777 == 0o600
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        write_atomically(tmp_path / "folder", b"x", 0o600)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder", "secret"]


def test_where_the_folder_is_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTVIRT_STATE_DIR", str(tmp_path / "named"))
    assert state.default_state_dir() == tmp_path / "named"
    monkeypatch.delenv("HOTVIRT_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state.default_state_dir() == tmp_path / "hotvirt"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state.default_state_dir() == tmp_path / ".local" / "state" / "hotvirt"
