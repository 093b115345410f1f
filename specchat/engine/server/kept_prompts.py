"""The prompt cache of the pair in use: its models keep texts there, and what a reply added is written when idle."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

import torch

from specchat import __version__
from specchat.config import ModelSpec, load_catalog, state_dir
from specchat.config.prompt_files import FOLDER, PromptFiles
from specchat.decoding.conversation import Conversation
from specchat.engine.server.loaded_pair import LoadedPair
from specchat.errors import ConfigError, ModelError, UsageError, WeightsError
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.prompt_cache import KeptText, KeptTexts, PromptCache
from specchat.models.hub import checksum
from specchat.models.hub.disk import Cancelled
from specchat.models.machine import available_bytes
from specchat.models.model_loading import Loaded
from specchat.settings import Settings, parse_amount_or_off

LEAST_TOKENS = 256
"""Shorter texts are read again: that takes less than a second."""

_MOST_IN_MEMORY = 1 << 30
_SHARE = 8
"""Of the memory that is free when a pair is loaded, one part in so many."""

_MOST_UNWRITTEN = 8
"""Chats of which something is still to be written, where there is no pause between replies."""

_log = logging.getLogger(__name__)


class KeptPrompts:
    """The texts that the models of one target's pair have read."""

    def __init__(self, pair: LoadedPair, settings: Settings) -> None:
        """Nothing kept in memory yet: there is room for as much as is free, or for nothing where memory is limited."""
        free = available_bytes(torch.device("cpu")) or 0
        self.cache = PromptCache(0 if settings.memory else min(_MOST_IN_MEMORY, free // _SHARE))
        self._unwritten: list[tuple[str, list[KeptText]]] = []  # chats, and what was read of them
        self._unnamed: list[Loaded] = []
        self._eight_bits = settings.prompt_cache_8bit
        self.use(pair)
        self.change(settings)

    def use(self, pair: LoadedPair) -> None:
        """Have these models keep their texts here."""
        self._unnamed = []
        for loaded in (pair.target, *pair.drafts):
            if isinstance(loaded.model, Decoder) and (loaded.model.kept is None or not loaded.model.kept.on_disk):
                name = _name(loaded, pair, checksum.known_sha256)
                if name is None:
                    self._unnamed.append(loaded)
                if name is not None or loaded.model.kept is None:
                    known, name = name is not None, name or secrets.token_hex()
                    loaded.model.keep_texts_in(KeptTexts(self.cache, name, known, self._eight_bits))
        self._pair = pair

    def change(self, settings: Settings) -> None:
        """Keep as much on the disk as the settings say, in the form that they say."""
        if settings.prompt_cache_8bit != self._eight_bits:
            self._eight_bits = settings.prompt_cache_8bit
            for loaded in (self._pair.target, *self._pair.drafts):
                if isinstance(loaded.model, Decoder) and (kept := loaded.model.kept) is not None:
                    loaded.model.keep_texts_in(KeptTexts(self.cache, kept.name, kept.on_disk, self._eight_bits))
        most = parse_amount_or_off(settings.prompt_cache)
        if most != (0 if self.cache.files is None else self.cache.files.most_bytes):
            self.cache.files = PromptFiles(state_dir() / FOLDER, most) if most else None

    def replied(self, owner: str, conversation: Conversation) -> None:
        """A reply has ended in a text of this chat; empty: in one that is not to be kept on the disk."""
        if owner and self.cache.files is not None and len(conversation.held_text) >= LEAST_TOKENS:
            self._unwritten = [*self._unwritten, (owner, conversation.kept_texts())][-_MOST_UNWRITTEN:]

    @property
    def due(self) -> bool:
        """Whether there is something to find out, or to write."""
        return bool(self._unwritten or self._unnamed) and self.cache.files is not None

    def save(self, interrupted: Callable[[], bool]) -> None:
        """Write what was read of chats and is not on the disk, the last one first, until a command arrives."""
        if self.cache.files is None:
            return
        try:
            self._name_models(interrupted)
            while self._unwritten and self.cache.save(*self._unwritten[-1], interrupted):
                self._unwritten.pop()
        except Cancelled:
            return
        except (OSError, ModelError) as error:  # ModelError: its rows are gone with another process
            _log.warning("prompt cache: nothing is written: %s", getattr(error, "strerror", None) or error)
            self._unwritten = []

    def _name_models(self, interrupted: Callable[[], bool]) -> None:
        """Find out the checksums that were not known when the models were loaded; Cancelled where a command arrived."""
        while self._unnamed:
            loaded = self._unnamed[-1]
            name = _name(loaded, self._pair, lambda spec: checksum.weights_sha256(spec, cancelled=interrupted))
            assert isinstance(loaded.model, Decoder), "only decoders keep texts"
            if name is not None:
                loaded.model.keep_texts_in(KeptTexts(self.cache, name, eight_bits=self._eight_bits))
            self._unnamed.pop()


def _name(loaded: Loaded, pair: LoadedPair, sha256: Callable[[ModelSpec], str | None]) -> str | None:
    """All that a model's keys and values follow from besides the text; None where a checksum is not known."""
    model = loaded.model
    assert isinstance(model, Decoder), "only decoders keep texts"
    trained = pair.trained.draft_models.get(loaded.name)
    try:
        weights = sha256(load_catalog().model(loaded.name)) if trained is None else trained.sha256
    except (ConfigError, UsageError, WeightsError):
        return None
    if weights is None:
        return None
    network = model.network
    form = (loaded.kernels, loaded.precision, network.device.type, network.like.dtype, network.key_interleave)
    return repr((__version__, weights, *form, network.shape))
