"""The process of a target for those who draft elsewhere: `specchat engine --target`, over standard input and output."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.config import load_catalog, user_settings
from specchat.core.reading import Reading
from specchat.core.request import HeadNeeds, PassRequest
from specchat.core.sampling import best_tokens
from specchat.core.seams import Model
from specchat.core.states import HiddenStateSink, TextStates
from specchat.core.tree import TokenTree
from specchat.engine.protocol.events import Event, Loading
from specchat.engine.protocol.stage_text import loading_text
from specchat.engine.server.pair_loading import Loader
from specchat.errors import PlanRefused, SpecchatError
from specchat.models.hub.checksum import weights_sha256
from specchat.models.model_loading import Loaded
from specchat.models.ranks.plan import MOST_BYTES, demand
from specchat.models.remote import messages as m
from specchat.models.remote.model import TOKENIZER_FILES
from specchat.settings import Settings

NAMED = 16
"""Likeliest tokens of a row that are sent where any but the first are wanted."""

_MOST_FILE_BYTES = 32 << 20
_SAY_EVERY_S = 0.5


class _Stopped(Exception):
    """A prompt is read no further."""


@dataclass
class _Held:
    """A cache, its text, and the tree that was read last."""

    model: Model
    text: list[int] = field(default_factory=list)
    tree: TokenTree | None = None
    reading: Reading | None = None


def serve_target() -> None:
    """Hold a target until standard input closes. What libraries print goes to standard error."""
    answers = Connection(os.dup(1), readable=False)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    TargetHost(Connection(os.dup(0), writable=False), answers, load_target).run()
    os._exit(0)  # no waiting for threads of libraries


def load_target(opening: m.Open, say: Callable[[str], None]) -> Loaded:
    """The model of this machine's catalog, fetched if it is not here."""
    own = {name: value for name, value in user_settings().items() if name in ("device", "threads")}
    asked = {"dtype": opening.dtype, "kernels": opening.kernels, "backend": opening.backend}
    settings = Settings().but({**own, **asked})
    said_s = 0.0

    def tell(event: Event) -> None:
        nonlocal said_s
        if isinstance(event, Loading) and time.monotonic() - said_s > _SAY_EVERY_S:
            said_s = time.monotonic()
            share = f" {100 * event.done // event.total} %" if event.total and event.unit == "bytes" else ""
            say(loading_text(event) + share)

    return Loader(load_catalog(), tell, lambda: False).load_target(opening.model, settings)


class TargetHost:
    """Answers one client's requests, one after another."""

    def __init__(
        self, requests: Connection, answers: Connection, load: Callable[[m.Open, Callable[[str], None]], Loaded]
    ) -> None:
        self._requests, self._answers, self._load = requests, answers, load
        self._loaded: Loaded | None = None
        self._name = ""
        self._embedded: set[int] = set()  # tokens whose embeddings were sent
        self._held: dict[int, _Held] = {}

    def run(self) -> None:
        """Until the client goes."""
        try:
            self._answer(m.Hello(m.PROTOCOL))
            while True:
                self._do(m.call_of(self._requests.recv_bytes(MOST_BYTES)))
        except (EOFError, OSError):
            return
        except PlanRefused as error:
            print(error, file=sys.stderr, flush=True)

    def _answer(self, answer: m.Answer) -> None:
        self._answers.send_bytes(m.encoded(answer))

    def _do(self, call: m.Call) -> None:
        for number in call.gone:
            self._held.pop(number, None)
        try:
            answer = self._answer_to(call.request)
        except (PlanRefused, EOFError, OSError):
            raise
        except SpecchatError as error:
            answer = m.Failed(str(error)[:4000])
        except Exception as error:  # a fault of ours there: it is told here
            answer = m.Failed(f"internal error: {type(error).__name__}: {error}"[:4000])
        if answer is not None:
            self._answer(answer)

    def _answer_to(self, request: m.Request) -> m.Answer | None:
        match request:
            case m.Open():
                return self._open(request)
            case m.NewCache():
                demand(len(self._held) < 64, "more caches than there can be")
                first = self._model
                self._held[request.cache] = _Held(first.with_new_cache() if self._held else first)
                return m.Done()
            case m.Prefill():
                return self._prefill(request)
            case m.Read():
                return self._read(request)
            case m.Fill():
                held = self._cache(request.cache)
                demand(request.tokens <= held.model.context_tokens, "a text longer than the context")
                held.model.fill_for_benchmark(request.tokens)
                held.text, held.tree, held.reading = [-1] * request.tokens, None, None
                return m.Done(request.tokens)
            case m.Rows():
                reading = self._cache(request.cache).reading
                demand(reading is not None, "logits of no pass")
                assert reading is not None, "refused above"
                return m.Tensors(m.packed(reading.on_host.logits))
            case m.Weights():
                model = self._model
                demand(all(token < model.vocab_size for token in request.tokens), "a token that there is not")
                if request.head:
                    return m.Tensors(m.packed(model.head_rows(request.tokens)))
                return m.Tensors(self._embedded_rows(request.tokens))
            case m.Checksum():
                spec = load_catalog().model(self._name)
                return m.Sum(weights_sha256(spec))
            case m.Stop():  # it came when the prompt was read
                return None

    def _open(self, opening: m.Open) -> m.Answer:
        if opening.protocol != m.PROTOCOL:
            return m.Failed("another version of specchat asks")
        self._held.clear()
        self._embedded.clear()
        self._name = opening.model
        self._loaded = loaded = self._load(opening, lambda text: self._answer(m.Said(text[:4000])))
        model = loaded.model
        return m.Opened(
            *(model.vocab_size, model.hidden_size, model.layers, model.context_tokens, loaded.weight_bytes),
            *(loaded.precision, loaded.kernels, [note[:4000] for note in loaded.notes], sorted(loaded.eos_ids)),
            {} if loaded.folder is None else _files_in(loaded.folder),
        )

    def _prefill(self, request: m.Prefill) -> m.Answer:
        held = self._cache(request.cache)
        self._keep(held, request.kept)
        vocab_size = held.model.vocab_size
        demand(request.common <= len(held.text), "a text that is not held")
        demand(all(token < vocab_size for token in request.tokens), "a token that the vocabulary does not have")
        text = [*held.text[: request.common], *request.tokens]
        demand(len(text) <= held.model.context_tokens, "a text longer than the context")
        held.tree = held.reading = None

        def on_chunk(done: int, total: int) -> None:
            self._answer(m.Progress(done, total))
            while self._requests.poll(0):
                call = m.call_of(self._requests.recv_bytes(MOST_BYTES))
                demand(isinstance(call.request, m.Stop), "a request before the last one was answered")
                raise _Stopped

        layers = frozenset(request.taps)
        tap = HiddenStateSink(layers, lambda states: self._answer(_states_message(states))) if layers else None
        demand(all(layer < held.model.layers for layer in request.taps), "a layer that there is not")
        try:
            held.model.prefill(text, on_chunk, tap)
        except _Stopped:
            text = text[: held.model.cached(text)]
        except BaseException:
            held.text = []
            raise
        held.text = text
        return m.Done(len(text))

    def _keep(self, held: _Held, kept: Sequence[int] | None) -> None:
        if kept is None:
            return
        tree = held.tree
        demand(tree is not None, "a path of no tree")
        assert tree is not None, "refused above"
        at = 0
        for node in kept:
            demand(node < len(tree) and tree.parents[node] == at, "a path that is not in the tree")
            at = node
        held.model.keep(kept)
        held.text += [tree.tokens[node] for node in (0, *kept)]
        held.tree = held.reading = None

    def _read(self, request: m.Read) -> m.Answer:
        began = time.perf_counter()
        held = self._cache(request.cache)
        self._keep(held, request.kept)
        model, judge = held.model, request.judge
        tree = self._grown(held, request) if request.new is not None else m.tree_of(request, model.vocab_size)
        known = 0 if held.tree is not tree or held.reading is None else held.reading.nodes[-1] + 1
        new = request.new
        if new is not None:
            demand(new and new[-1] < len(tree) and new == sorted(set(new)) and new[0] >= known, "nodes in no order")
        needs = HeadNeeds(request.likeliest, request.logits)
        context = rule = None
        if judge is not None:
            demand(new is None, "a verdict about a part of a tree")
            context = m.context_of(judge, [*held.text, tree.tokens[0]], model.vocab_size)
            method = ACCEPTANCE_RULES[judge.rule]
            rule = method.load()(method.make_options(judge.options))
            needs = needs | rule.needs(context.sampling)
        demand(all(layer < model.layers for layer in request.taps), "a layer that there is not")
        held.tree, held.reading = tree, None
        reading = model.read(tree, new, PassRequest(frozenset(request.taps), needs=needs))
        held.reading = reading
        nodes = reading.nodes
        verdict = None
        if rule is not None and context is not None:
            found = rule.judge(tree, reading, context)
            pairs = m.logprob_pairs(tree, found.path)
            logprobs = reading.logprobs_after([node for node, _ in pairs], [token for _, token in pairs])
            assert found.bonus is not None, "rules end with a bonus"
            bonus_logprob = reading.logprobs_after([(found.path or (0,))[-1]], [found.bonus])[0]
            sources = list(found.sources)
            verdict = m.Verdict(list(found.path), found.bonus, sources, [*map(float, logprobs)], float(bonus_logprob))
        first = [row[0] for row in reading.best_after(nodes, 1)]
        tokens = highest = None
        if request.likeliest:
            tokens, highest = map(m.packed, self._likeliest(reading))
        logits = m.packed(reading.on_host.logits) if request.logits else None
        visited = slice(None) if verdict is None else [0, *verdict.path]
        states = [m.packed(reading.taps[layer][visited]) for layer in sorted(request.taps)]
        text = None if reading.text_states is None else _states_message(reading.text_states)
        return m.Passed(
            *(time.perf_counter() - began, first, tokens, highest, verdict, logits, states, text),
            self._not_embedded([tree.tokens[node] for node in verdict.path] + [verdict.bonus] if verdict else []),
        )

    def _embedded_rows(self, tokens: Sequence[int]) -> m.Packed:
        self._embedded.update(tokens)
        return m.packed(self._model.embed(tokens))

    def _not_embedded(self, tokens: Sequence[int]) -> m.Embedded | None:
        """The embeddings of emitted tokens that the drafter there does not have, where it draws on embeddings."""
        missing = sorted(set(tokens) - self._embedded) if self._embedded else []
        return m.Embedded(missing, self._embedded_rows(missing)) if missing else None

    def _grown(self, held: _Held, request: m.Read) -> TokenTree:
        """The tree of the last pass with the nodes that it has got since, or a new one."""
        told, tree = m.tree_of(request, held.model.vocab_size), held.tree
        if tree is None or told.tokens[: len(tree)] != tree.tokens or told.parents[: len(tree)] != tree.parents:
            tree = TokenTree(told.tokens[0], held.model.vocab_size)
        tree.extend(told.parents[len(tree) :], told.tokens[len(tree) :])
        return tree

    @staticmethod
    def _likeliest(reading: Reading) -> tuple[Tensor, Tensor]:
        """(rows, K) tokens and their log-probabilities."""
        tokens = reading.said.likeliest
        if tokens is None:
            tokens = best_tokens(reading.on_host.logits.float(), min(NAMED, reading.logits.shape[1]))[1]
        tokens = tokens.cpu().int()
        rows = [node for node in reading.nodes for _ in range(tokens.shape[1])]
        values = reading.logprobs_after(rows, tokens.flatten().tolist())
        return tokens, torch.tensor(values, dtype=torch.float64).view(tokens.shape)

    @property
    def _model(self) -> Model:
        demand(self._loaded is not None, "a request before a model is loaded")
        assert self._loaded is not None, "refused above"
        return self._loaded.model

    def _cache(self, number: int) -> _Held:
        demand(number in self._held, f"cache {number}, which is not here")
        return self._held[number]


def _states_message(states: TextStates) -> m.States:
    return m.States(states.first, [m.packed(states.layers[layer]) for layer in sorted(states.layers)])


def _files_in(folder: Path) -> dict[str, bytes]:
    """The files that a tokenizer is made of; those that are too large are left out, and it is refused there."""
    found: dict[str, bytes] = {}
    for name in TOKENIZER_FILES:
        file = folder / name
        if file.is_file() and file.stat().st_size <= _MOST_FILE_BYTES:
            found[name] = file.read_bytes()
    return found
