"""Writes chats on a thread of its own, so that a slow disk blocks neither the app nor the engine.

Each running specchat holds a file lock, by which others know whose replies are still being written. What removed chats
leave in freed pages, in copies of older versions and among the sent prompts is erased here too.
"""

from __future__ import annotations

import mmap
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from specchat.config import private_dir
from specchat.config.file_reading import open_regular
from specchat.config.kept_files import locked
from specchat.config.prompt_files import FOLDER, PromptFiles
from specchat.errors import StoreError
from specchat.store.chats import Chats, Removed
from specchat.store.database import is_damage, open_copy, open_to_write, saying
from specchat.store.prompt_history import FILE, History
from specchat.store.records import new_id

YOUNG_S = 60.0


class ProcessLock:
    """This process's lock. A process number may be reused by another process; a lock is not."""

    def __init__(self, folder: Path) -> None:
        self.name = new_id()
        self._file = _file(private_dir(folder), self.name)
        self._held = ExitStack()
        self._held.enter_context(locked(self._file, 0))

    def leave(self) -> None:
        """Release the lock: this process is ending."""
        self._held.close()
        with suppress(OSError):
            self._file.unlink(missing_ok=True)


def is_gone(folder: Path, name: str | None) -> bool:
    """Whether the specchat of this name has ended, however it did."""
    if name is None or not (file := _file(folder, name)).exists():
        return True
    try:
        with locked(file, 0):
            pass
    except TimeoutError:
        return False
    with suppress(OSError):
        file.unlink(missing_ok=True)
    return True


def sweep(folder: Path) -> None:
    """Remove what processes left that were killed; a young file may be about to be locked."""
    for file in folder.glob("*.lock"):
        with suppress(OSError):
            if time.time() - file.stat().st_mtime > YOUNG_S:
                is_gone(folder, file.stem)


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.lock"


FLUSH_S = 0.8
"""A reply that is being written is flushed this often."""

RETRY_S = 5.0
"""How long to wait before what could not be written is tried again."""

Job = Callable[[Chats, str], None]
"""Something to write; gets the chats and the name under which this process writes."""


class Writer:
    """Does jobs in order, all that wait in one transaction. What cannot be written now is kept and tried again.

    Its three callbacks are called from its own thread: `remark` with one line; `problem` with the reason
    why nothing is being saved, or nothing once it is again; `anew` when the file was replaced by an empty one
    and what is still known should be put once more.
    """

    def __init__(
        self,
        path: Path,
        *,
        remark: Callable[[str], object],
        problem: Callable[[str], object],
        anew: Callable[[], object],
    ) -> None:
        self._path = path
        self._remark, self._problem_is, self._anew = remark, problem, anew
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque([_open_early])
        self._growing: dict[str, Job] = {}  # latest wins
        self._flush_at = self._not_before = 0.0
        self._connection: sqlite3.Connection | None = None
        self._presence: ProcessLock | None = None
        self.problem = ""  # why nothing is being saved
        self._busy = self._closing = self._damaged = False
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def put(self, job: Job, *, of: str = "") -> None:
        """Write this; it settles what was growing under the name `of`."""
        with self._changed:
            self._growing.pop(of, None)
            self._jobs.append(job)
            self._changed.notify_all()

    def grow(self, of: str, job: Job) -> None:
        """Write this, or whatever newer is given under the same name, within a second."""
        with self._changed:
            if not self._growing:
                self._flush_at = time.monotonic() + FLUSH_S
            self._growing[of] = job
            self._changed.notify_all()

    def settled(self, patience_s: float) -> bool:
        """Wait until everything put so far is written; False where that takes too long or fails."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self.problem) or not (self._jobs or self._busy), patience_s)
            return not (self._jobs or self._busy or self.problem)

    def close(self, patience_s: float = 5.0) -> bool:
        """Write what is left and let the file go; False where something could not be written."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(patience_s)
        return not (self._thread.is_alive() or self._jobs or self._growing)

    def _run(self) -> None:
        while True:
            with self._changed:
                while (wait_s := self._wait_s()) is None or wait_s > 0:
                    self._changed.wait(wait_s)
                closing, self._busy = self._closing, True
                flush = closing or (self._growing and time.monotonic() >= self._flush_at)
                jobs, growing = list(self._jobs), dict(self._growing) if flush else {}
            self._attempt(jobs, growing)
            with self._changed:
                self._busy = False
                self._changed.notify_all()
            if closing:
                self._shut()
                if self._presence is not None:
                    self._presence.leave()
                return

    def _wait_s(self) -> float | None:
        """Seconds until there is something to do; None: nothing waits."""
        if self._closing:
            return 0.0
        if not self._jobs and not self._growing:
            return None
        return max(0.0 if self._jobs else self._flush_at, self._not_before) - time.monotonic()

    def _attempt(self, jobs: list[Job], growing: dict[str, Job]) -> None:
        """Write these; on success they are forgotten, on failure they wait for the next attempt."""
        try:
            with saying(self._path):
                self._write([*jobs, *growing.values()])
        except StoreError as error:
            if is_damage(error.__cause__):
                self._shut()
                self._damaged = True
            self._not_before = time.monotonic() + RETRY_S
            self._say(str(error))
            return
        with self._changed:
            for _ in jobs:
                self._jobs.popleft()
            for name, job in growing.items():
                if self._growing.get(name) is job:
                    del self._growing[name]
            self._flush_at = time.monotonic() + FLUSH_S
        self._say("")

    def _write(self, jobs: list[Job]) -> None:
        connection, name = self._open()
        chats = Chats(connection)
        try:
            with chats.transaction():
                for job in jobs:
                    job(chats, name)
        except sqlite3.IntegrityError:
            for job in jobs:
                try:
                    with chats.transaction():
                        job(chats, name)
                except sqlite3.IntegrityError as error:
                    self._remark(f"one message was not saved: {error}")

    def _open(self) -> tuple[sqlite3.Connection, str]:
        folder = self._path.parent / "running"
        if self._presence is None:
            self._presence = ProcessLock(folder)
        if self._connection is None:
            self._connection, remark = open_to_write(self._path, suspected=self._damaged)
            self._damaged = False
            chats = Chats(self._connection)
            with chats.transaction():
                chats.interrupt(owner for owner in chats.owners() if is_gone(folder, owner))
                removed = chats.purge()
                chats.forget_rounds()
            erase(self._path, chats, removed)
            sweep(folder)
            if remark:
                self._remark(remark)
                self._anew()
        return self._connection, self._presence.name

    def _say(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._problem_is(problem)

    def _shut(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _open_early(chats: Chats, name: str) -> None:
    """The first job: opens the file, so that a problem with saving is reported at once, not at the first message."""


def erase(path: Path, chats: Chats, removed: Removed) -> list[str]:
    """Erase the words of chats that were removed from the file at `path`, from it and from the files beside it.

    Returns:
        A line for every file that may hold them still. Damaged files are never changed.
    """
    if not removed.ids:
        return []
    left: list[str] = []
    try:
        with saying(path):
            chats.compact()
    except StoreError as error:
        left.append(f"{error}; it may hold their words until the next removal")
    for copy in sorted(path.parent.glob(f"{path.name}.v*.bak")):
        try:
            with open_copy(copy) as connection:
                older = Chats(connection)
                with older.transaction():
                    older.remove(*filter(older.holds, removed.ids))
                older.compact()
        except StoreError as error:
            left.append(f"{error}; it may hold them still")
    for damaged in sorted(path.parent.glob(f"{path.name}.damaged-*")):
        if _names(damaged, removed.ids):
            left.append(f"{damaged} holds them still: delete it if no other chat in it is to be saved")
    sent = History(path.with_name(FILE))
    sent.forget(removed.sent)
    if trouble := PromptFiles(path.with_name(FOLDER)).erase(removed.ids):
        left.append(trouble)
    return [*left, *([f"{path.with_name(FILE)}: {sent.problem}"] if sent.problem else [])]


def _names(file: Path, ids: tuple[str, ...]) -> bool:
    """Whether one of the ids stands in a file; one that cannot be read counts as naming them."""
    try:
        with open_regular(file) as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return any(data.find(id.encode()) >= 0 for id in ids)
    except ValueError:  # an empty file
        return False
    except OSError:
        return True
