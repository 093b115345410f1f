"""Files of a training: put in place in one step, and used by one training at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from safetensors import SafetensorError

from specchat.config.file_locking import locked
from specchat.config.file_replacing import replacing
from specchat.errors import TrainingError


@contextmanager
def writing(file: Path) -> Iterator[Path]:
    """A file to write to, which then takes the place of this one; nothing but the training writes to its folders.

    Raises:
        TrainingError: the disk is full, or cannot be written.
    """
    try:
        with replacing(file, alone=True) as draft:
            yield draft
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TrainingError(f"{file} cannot be written: {reason}") from None


@contextmanager
def only_user(folder: Path) -> Iterator[None]:
    """Be the only training that writes to a folder.

    Raises:
        TrainingError: another one does so now, or the folder cannot be written.
    """
    lock = folder / "lock"
    with ExitStack() as held:
        try:
            held.enter_context(locked(lock, 0))
        except TimeoutError:
            raise TrainingError(f"another training uses {folder} now; wait for its end, or stop it") from None
        except OSError as error:
            raise TrainingError(f"{lock} cannot be written: {error.strerror or error}") from None
        yield
