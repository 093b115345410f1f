"""Every deliberate error of specchat: one line a person can act on, and the exit code it means.

    SpecchatError                 anything we say on purpose
    ├── UsageError                what was asked for does not exist or does not fit (exit code 2)
    │   ├── ConfigError           … in a file: names the file, the table, the key
    │   ├── CombinationError      … parts that cannot work together, and the nearest that can
    │   ├── RecordingError        … a file that is not a recording, or one that contradicts itself
    │   ├── ConstraintError       … a schema or grammar that no reply can be held to
    │   ├── PromptEmpty           … a prompt without any token
    │   └── PromptTooLong         … a prompt that leaves no room in the context
    ├── WeightsError              weights could not be found, fetched, trusted or read
    │   ├── WeightsNotHere        … that have to be fetched first
    │   ├── DamagedWeights        … files that are not what they should be, or contradict themselves (exit code 2)
    │   └── PackedWeightsError    … layers on the disk that cannot be written, or were changed (exit code 2)
    ├── ModelError                this network cannot be run the way specchat needs
    │   ├── TokenizerMismatch     target and draft model do not share one token table
    │   ├── DamagedModel          its description and its weights do not go together (exit code 2)
    │   ├── RanksLost             another process that holds a part of it has ended, or does not answer
    │   ├── TargetLost            the machine that it runs on has gone, or answers nonsense
    │   ├── NotNumbers            its logits are not numbers: weights are damaged
    │   └── NotEnoughMemory       weights that do not fit into the memory that is free
    │       ├── NoMemoryLeft      … or an allocation that failed, which ends the engine
    │       └── MemoryLimitTooLow … or into what the setting `memory` allows (exit code 2)
    ├── ProposalError             a drafter proposed something that is not a token
    ├── TrainingError             a drafter cannot be trained: data, disk or memory
    │   └── CheckpointError       … from the checkpoint that is there: damaged, or of another training (exit code 2)
    ├── EngineError               the engine process failed, died or speaks another protocol
    │   └── PlanRefused           … or tells a process that computes with it what contradicts itself
    ├── InstallationError         a library is not installed, or cannot be loaded
    └── StoreError                chats could not be kept, found or read

A broken invariant is not such an error: it is an `assert` with a sentence.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class SpecchatError(Exception):
    """Something specchat says on purpose; `str(error)` is one complete line."""

    exit_code = 1


class UsageError(SpecchatError):
    """Something that was asked for does not exist or does not fit."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration file says something we cannot accept."""


class CombinationError(UsageError):
    """Parts that cannot work together."""


class RecordingError(UsageError):
    """A file that is not a recording, or one that contradicts itself."""


class ConstraintError(UsageError):
    """A schema, an expression or a grammar that a reply cannot be held to."""


class PromptEmpty(UsageError):
    """A prompt without a token to go on from."""


class PromptTooLong(UsageError):
    """A prompt that leaves no room for a reply in the model's context."""


class WeightsError(SpecchatError):
    """Weights that could not be found, fetched, trusted or read."""


class WeightsNotHere(WeightsError):
    """Weights that have to be fetched first: of these models, by name, so many bytes; 0 where that is not known."""

    def __init__(self, message: str, models: Mapping[str, int]) -> None:
        super().__init__(message)
        self.models = models


class DamagedWeights(WeightsError):
    """Files of a model that are not what they should be, or that contradict themselves."""

    exit_code = 2


class PackedWeightsError(WeightsError):
    """Layers that were packed to be read in every pass, and cannot be written, read or trusted."""

    exit_code = 2


class ModelError(SpecchatError):
    """A network that cannot be run the way specchat needs."""


class DamagedModel(ModelError):
    """A network whose description and weights do not go together."""

    exit_code = 2


class TokenizerMismatch(ModelError):
    """A draft model whose token table is not the target's."""


class NotNumbers(ModelError):
    """A network whose logits are not finite numbers. `who` is its name, empty where that is not known."""

    def __init__(self, who: str = "") -> None:
        name = who or "a network"
        super().__init__(f"{name} gives logits that are not numbers: its weights, or what it was given, are damaged")
        self.who = who


class RanksLost(ModelError):
    """A rank that has ended or does not answer: what was loaded over several ranks is gone."""


class TargetLost(ModelError):
    """The connection to a target on another machine has ended. The next prompt starts it anew."""


class NotEnoughMemory(ModelError):
    """Weights that do not fit into the memory that is free."""


class NoMemoryLeft(NotEnoughMemory):
    """An allocation that failed, or a thread that could not be started for want of memory; the process ends."""


class MemoryLimitTooLow(NotEnoughMemory):
    """Models that do not fit into what the setting `memory` allows."""

    exit_code = 2


class ProposalError(SpecchatError):
    """A drafter proposed something that is not a token of the target."""


class TrainingError(SpecchatError):
    """A drafter that cannot be trained: what is wrong with its data, the disk or the memory."""


class CheckpointError(TrainingError):
    """A checkpoint that a training cannot go on from: it is damaged, or of another training."""

    exit_code = 2


class EngineError(SpecchatError):
    """The engine process failed, died, or speaks another protocol."""


class PlanRefused(EngineError):
    """A message to a rank that contradicts itself, or what the rank holds."""


class InstallationError(SpecchatError):
    """A library that is not installed, or that the system cannot load."""

    @classmethod
    def of(cls, error: ImportError | OSError, library: str = "a library") -> InstallationError:
        """The line about what an import raised."""
        said = cut(str(error))
        return cls(f"{library} cannot be loaded: {said}; installing specchat anew in a fresh environment mends that")


class StoreError(SpecchatError):
    """Chats that could not be kept, found or read."""


_LONGEST_NAME = 100
"""Comparing takes time with the square of the length, and no name is longer."""


class _Short(reprlib.Repr):
    """`repr` of a value that came from outside: it may be long, nested, or a number too large to be written out."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 3, 80, 80, 40

    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > 4096:  # Python refuses to write out much more than that
            return f"a number of {x.bit_length()} bits"
        return super().repr_int(x, level)


def short(value: Any) -> str:
    """The value as an error shows it, on one line and never long."""
    return _Short().repr(value)


def cut(text: str, longest: int = 200) -> str:
    """A library's message about a value from outside: on one line, its middle left out where it is long."""
    text = " ".join(text.split())
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]} … {text[-half:]}"


def nearest(word: str, known: Iterable[str]) -> str:
    """What the user probably meant, as the tail of a sentence: `; did you mean 'chain'?`.

    Falls back to listing what is known, so the line is never a dead end.
    """
    names = list(dict.fromkeys(known))
    # At 0.5 "theme" would be near "threads", and "mirrors" near "pairs".
    close = difflib.get_close_matches(word[:_LONGEST_NAME], names, n=1, cutoff=0.55)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""


def installs(extra: str) -> str:
    """The command that installs an extra of pyproject.toml, and where it works: no package index has specchat."""
    return f"pip install -e '.[{extra}]' in the folder of specchat's repository"


def meant(word: str, known: Iterable[str]) -> str:
    """What the user probably meant, as the tail of a sentence; empty where nothing is near."""
    hint = nearest(word, known)
    return hint if hint.startswith("; did you mean") else ""


@contextmanager
def os_errors_as(kind: type[SpecchatError], what: str) -> Iterator[None]:
    """Within it, what the system refuses is an error of this kind, which says `what` and the system's reason."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}") from None
