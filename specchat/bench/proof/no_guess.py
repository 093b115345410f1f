"""What to say where a check of the combination that is set made no guess, and so compared plain with plain."""

from __future__ import annotations

from specchat.settings import Settings


def no_guess(settings: Settings) -> str:
    """Why nothing was drafted, and which setting would change that."""
    return f"no guess was made: {_reason(settings)}"


def _reason(settings: Settings) -> str:
    usual = Settings()
    if settings.drafter == "none":
        return f"drafter 'none' proposes nothing; set another one, such as --drafter {usual.drafter}"
    if settings.controller == "off":
        return f"controller 'off' is plain decoding; set --controller {usual.controller}"
    if settings.nodes == 0:
        return f"nodes = 0 is plain decoding; set --nodes {usual.nodes}"
    if settings.controller != "fixed":
        return f"controller {settings.controller!r} planned no nodes; set --controller fixed"
    return f"drafter {settings.drafter!r} found nothing to propose; set --budget full, or another drafter"
