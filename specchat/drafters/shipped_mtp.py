"""The head that was trained with the target and comes in its files guesses depth by depth."""

from __future__ import annotations

from specchat.drafters.parts import Parts
from specchat.drafters.trained_network import NetworkDrafter


class ShippedMtp(NetworkDrafter):
    """Proposes what the target's own multi-token prediction head holds likely, see `models/shipped_mtp.py`.

    Reference: DeepSeek-V3 Technical Report, arXiv:2412.19437.
    """

    def __init__(self, options: object, parts: Parts) -> None:
        super().__init__(parts, parts.shipped_head())
