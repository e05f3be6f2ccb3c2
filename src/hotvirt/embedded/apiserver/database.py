"""The store's file: SQLite with a write-ahead log, of our format, and what brings it to the disk."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from pathlib import Path
from typing import Final

FORMAT: Final = 1
APPLICATION_ID: Final = 0x48564150  # "HVAP"
CHECKPOINT_EVERY: Final = 3 << 20
"""Bytes of objects after which the log is moved into the file."""

log = logging.getLogger(__name__)


class StoreError(Exception):
    """The folder or file cannot be used; the message says what to do."""


def open_database(path: Path, first_revision: int) -> sqlite3.Connection:
    existed = path.exists() and path.stat().st_size > 0
    try:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1)
    except sqlite3.Error as error:
        raise StoreError(f"Cannot open {path}: {error}. Check that the folder can be written.") from error
    try:
        # Nobody else may write: the image in memory would not know. It also saves the shared-memory file.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        # Checkpoints wait for the disk: they are made apart, not by whoever commits just then.
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("PRAGMA synchronous = FULL")
        if not existed or not _is_ours(db, path):
            _create(db, first_revision)
    except sqlite3.OperationalError as error:
        db.close()
        if "locked" in str(error):
            raise StoreError(f"{path} is in use by another process: stop that one first.") from error
        raise StoreError(f"Cannot open {path}: {error}.") from error
    except sqlite3.DatabaseError as error:
        db.close()
        raise StoreError(f"{path} is not a Hotvirt database ({error}): use another folder.") from error
    except BaseException:
        db.close()
        raise
    return db


def _is_ours(db: sqlite3.Connection, path: Path) -> bool:
    """False when there is nothing in it yet."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application == 0 and version == 0 and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
        return False
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is not a Hotvirt database: use another folder.")
    if version != FORMAT:
        raise StoreError(
            f"{path} has format {version}, and this version of Hotvirt reads format {FORMAT}: "
            "use the version that made it, or another folder."
        )
    return True


def _create(db: sqlite3.Connection, first_revision: int) -> None:
    db.execute("BEGIN IMMEDIATE")
    db.execute(
        "CREATE TABLE log (rev INTEGER PRIMARY KEY, replaces INTEGER NOT NULL, type INTEGER NOT NULL,"
        " resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, time REAL NOT NULL,"
        " data BLOB NOT NULL)"
    )
    db.execute("CREATE TABLE meta (compacted INTEGER NOT NULL)")
    db.execute("INSERT INTO meta VALUES (?)", (first_revision,))
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {FORMAT}")
    db.execute("COMMIT")


class Commits:
    """Whether each waits for the disk, and when their log is moved into the file."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._syncs = True
        self._written = 0

    def sync_each(self, each: bool) -> None:
        """Whether a commit waits for the disk. If not, its log is still written in order, by the system."""
        if each != self._syncs:
            self._db.execute(f"PRAGMA synchronous = {'FULL' if each else 'NORMAL'}")
            self._syncs = each

    def checkpoint_due(self, more: int) -> bool:
        """Whether the log is long enough, with so many bytes more."""
        self._written += more
        if self._written < CHECKPOINT_EVERY:
            return False
        self._written = 0
        return True

    def checkpoint(self) -> None:
        try:
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:  # the log has everything: the next one makes up for it
            log.warning("The log of the API's database could not be moved into its file: %s", error)


class Syncer:
    """Brings the log to the disk behind commits that did not wait for it."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(f"{database.name}-wal")
        self._asked = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="api-store-sync", daemon=True)
        self._thread.start()

    def sync_soon(self) -> None:
        self._asked.set()

    def close(self) -> None:
        self._ended = True
        self._asked.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            if self._ended:
                return
            try:
                file = os.open(self._path, os.O_RDONLY)
                try:
                    os.fdatasync(file)
                finally:
                    os.close(file)
            except OSError as error:  # the next durable write fails of it, and says so to whoever wrote
                log.warning("%s cannot be brought to the disk: %s", self._path, error)
