"""specchat: a terminal chat on a speculative engine, where you watch the speculation happen."""

__version__ = "0.1.0"

__all__ = ["Message", "Pair", "ReplyStream", "RoundRecord", "SpecchatError", "__version__", "load"]


def __getattr__(name: str) -> object:
    """The library is imported when something of it is asked for; commands and the app use nothing of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module("specchat.library"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
