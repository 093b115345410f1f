"""Errors of the libraries that read a model's files, as one line.

What transformers, tokenizers and safetensors raise for a damaged file is of any kind, a panic of compiled code
included. Nothing else of specchat catches so much: our own readers know what they raise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from specchat.errors import DamagedModel, ModelError, SpecchatError

_LONGEST = 300


@contextmanager
def one_line(what: str) -> Iterator[None]:
    """Whatever a library raises inside becomes `what: reason`. Cancelling and our own errors pass.

    Raises:
        ModelError: in place of what was raised.
    """
    try:
        yield
    except SpecchatError:
        raise
    except Exception as error:
        raise library_error(what, error) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of compiled Rust; its class cannot be imported
            raise
        raise library_error(what, error) from None


def library_error(what: str, error: BaseException) -> ModelError:
    """The error `what: reason`: a damaged model, unless memory, the system or the installation is to blame."""
    of_system = isinstance(error, OSError) and error.errno is not None
    kind = ModelError if of_system or isinstance(error, MemoryError | ImportError) else DamagedModel
    return kind(f"{what}: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """The first line of what an error says, with the next where it ends in a colon; its kind where it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    line = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
