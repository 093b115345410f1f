"""Trains a drafter in a process of its own: starts, pauses and stops it, and remembers what is not finished."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from specchat.config.file_reading import UNREADABLE
from specchat.config.settings_saving import set_all_for_pair
from specchat.config.toml_editing import replace_text
from specchat.engine.protocol.text import one_line
from specchat.engine.protocol.training_report import decode_report
from specchat.errors import ConfigError, UsageError, os_errors_as
from specchat.tui.state.training import Training, TrainingChoices
from specchat.tui.system.processes import OwnProcess, own_command

if TYPE_CHECKING:  # the command line reads this module, and needs no app
    from specchat.tui.services.terminal_app import TerminalApp

_MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class TrainingEstimate:
    """What a training would take: bytes of disk and seconds of one core; and how much of the disk is free."""

    disk_bytes: int
    seconds: float
    free_bytes: int


Estimate = Callable[[TrainingChoices], TrainingEstimate]
"""Raises SpecchatError if that training is not possible."""


@dataclass(frozen=True)
class TrainingHere:
    """What it takes to train on this machine.

    Args:
        estimate: says what a training would take.
        unfinished: the file that remembers a training that was stopped; None remembers none.
    """

    estimate: Estimate
    unfinished: Path | None = None


class TrainingRunner:
    """At most one training. It ends with the app, and can be gone on with at the next start."""

    def __init__(self, app: TerminalApp, unfinished: Path | None, ended: Callable[[], None]) -> None:
        """No training yet.

        Args:
            unfinished: the file that remembers what was asked for; None remembers nothing.
            ended: called when a training is over.
        """
        self.command: Callable[..., list[str]] = own_command
        self._app, self._chat, self._unfinished, self._ended = app, app.chat, unfinished, ended
        self.process: OwnProcess | None = None

    def start(self, request: TrainingChoices, *, resume: bool = False) -> None:
        """Train this.

        Raises:
            UsageError: a training is running.
            ConfigError: what was asked for cannot be remembered.
        """
        if self.process is not None:
            raise UsageError("one drafter is being trained already; /train stop ends that")
        self._remember(request)
        training = self._chat.background.training = Training(request)
        self.process = OwnProcess(
            self.command(*request.words(resume=resume)), lambda line: self._on_line(training, line), in_background=True
        )
        self._app.run_in_background(self._watch(training, self.process))
        self._app.redraw()

    def stop(self) -> None:
        """Tell the training to stop; it keeps the best.

        Raises:
            UsageError: none is running.
        """
        if self.process is None or self._chat.background.training is None:
            raise UsageError("no drafter is being trained")
        self._chat.background.training.phase = "stopping"
        self.process.cancel()
        self._app.redraw()

    def pause(self, busy: bool) -> None:
        training, process = self._chat.background.training, self.process
        if training is None or process is None or training.phase not in ("running", "paused"):
            return
        process.pause(busy)
        training.phase = "paused" if process.paused else "running"

    def unfinished(self) -> TrainingChoices | None:
        """What was asked for and is not finished; None where all is.

        Raises:
            ConfigError: the file that remembers it is damaged.
        """
        file = self._unfinished
        if file is None or not file.is_file():
            return None
        try:
            with file.open("rb") as opened:
                return msgspec.json.decode(opened.read(_MOST_BYTES), type=TrainingChoices)
        except (OSError, *UNREADABLE) as error:
            raise ConfigError(f"{file} holds no training: {one_line(str(error))}; remove it") from None

    def use(self) -> str:
        """Make the quickest way of the verdict what the pair starts with; returns what was written where.

        Raises:
            ConfigError: the file cannot be changed.
        """
        training = self._chat.background.training
        assert training is not None, "a verdict is answered"
        assert training.judged is not None, "a verdict is answered"
        saved = set_all_for_pair(training.request.pair, training.judged.settings)
        training.used = True
        return saved.line()

    def forget(self) -> None:
        """The user has seen how the training ended."""
        if self._chat.background.training is not None and self._chat.background.training.ended:
            self._chat.background.training = None
            self._app.redraw()

    async def close(self) -> None:
        if self.process is not None:
            await self.process.end()

    async def _watch(self, training: Training, process: OwnProcess) -> None:
        done, problem = False, ""
        try:
            done = await process.run()
        except OSError as error:
            problem = f"it could not be started: {error.strerror or error}"
        finally:
            self.process = None
        training.phase = "done" if done else "stopped" if process.cancelled else "failed"
        training.problem = "" if done or process.cancelled else problem or process.last_words
        if done:
            self._remember(None)
        self._ended()
        self._app.redraw()

    def _on_line(self, training: Training, line: bytes) -> None:
        try:
            training.apply(decode_report(line))
        except msgspec.DecodeError:  # a library that prints
            return
        self._app.redraw()

    def _remember(self, request: TrainingChoices | None) -> None:
        if self._unfinished is None:
            return
        with os_errors_as(ConfigError, f"{self._unfinished} cannot be written"):
            if request is None:
                self._unfinished.unlink(missing_ok=True)
            else:
                replace_text(self._unfinished, msgspec.json.encode(request).decode())
