"""A target on another machine, as a `Model`, and its loading: one message a round takes the tree there and brings the
verdict back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from specchat.config import cache_dir
from specchat.config.directories import private_dir
from specchat.config.kept_files import write_whole
from specchat.core.reading import Counters, NamedInMemory, Reading, RowInMemory
from specchat.core.request import DEFAULT_REQUEST, PassRequest
from specchat.core.seams import OnChunk, TargetElsewhere
from specchat.core.states import HiddenStateSink, TextStates
from specchat.core.tree import ROOT, TokenTree
from specchat.errors import ModelError, PlanRefused, TargetLost
from specchat.models.decoder.cache_rows import common_prefix
from specchat.models.decoder.cached_model import FixedPasses
from specchat.models.model_loading import Loaded, load_tokenizer
from specchat.models.ranks.plan import demand
from specchat.models.remote import messages as m
from specchat.models.remote.link import TargetLink, connect
from specchat.settings import Settings

_TAPPED_TOKENS = 1024
"""Tokens of a text that are read in one request where their states come here."""

_ROWS_A_MESSAGE = 1024
"""Rows of a matrix that are asked for at once: 32 MB of the widest."""

_Answered = TypeVar("_Answered", bound=m.Answer)


class RemoteModel(FixedPasses, TargetElsewhere):
    """Reads texts and trees there. It shows states after layers, and rows of embedding and head; it takes no extra rows
    and leaves out no layers.

    Logits of whole rows come only where somebody looks at them: the rule judges there (`PassRequest.judging`).
    Where the connection was lost, the next text starts the process anew and is read from its beginning.
    """

    runs_in = "a target on another machine"
    instead = "the target here"

    def __init__(self, link: TargetLink) -> None:
        """Nothing read yet."""
        facts = link.facts
        self.link, self.at, self.kernels = link, link.at, facts.kernels
        self.vocab_size, self.hidden_size, self.layers = facts.vocab_size, facts.hidden_size, facts.layers
        self.context_tokens = facts.context_tokens
        self.device = torch.device("cpu")
        self.counters = Counters()
        self.passes = 0
        self._cache: int | None = None
        self._generation = 0
        self._text: list[int] = []  # what the cache there holds
        self._kept: list[int] | None = None  # the path of the last round, which is not told yet
        self._tree: TokenTree | None = None
        self._read: set[int] = set()  # its nodes that were read
        self._logits_there = 0  # the number of the pass whose logits can be asked for

    def close(self) -> None:
        self.link.close()

    # ------------------------------------------------------------------------------------------ text

    def cached(self, tokens: Sequence[int]) -> int:
        return common_prefix(self._text, tokens) if self._there else 0

    def recall(self, tokens: Sequence[int]) -> None:
        """Nothing is put back: no other texts are kept."""

    def prefill(self, tokens: Sequence[int], on_chunk: OnChunk = None, tap: HiddenStateSink | None = None) -> None:
        if not tokens and not self._there:
            self._forget()
            return
        self.link.reopen(lambda: None if on_chunk is None else on_chunk(0, len(tokens)))
        cache = self._cache_there(anew=True)
        taps = [] if tap is None else sorted(tap.layers)
        common = common_prefix(self._text, tokens)
        total, each = len(tokens) - common, _TAPPED_TOKENS if taps else len(tokens)
        for first in range(common, max(len(tokens), common + 1), each or 1):
            until = min(len(tokens), first + each)
            self._read_on(cache, tokens[:until], taps, first - common, total, on_chunk, tap)

    def _read_on(
        self,
        cache: int,
        tokens: Sequence[int],
        taps: list[int],
        before: int,
        total: int,
        on_chunk: OnChunk,
        tap: HiddenStateSink | None,
    ) -> None:
        """One request of a text, of which so many missing tokens were read `before`. States are given to the tap when
        it is over: what takes them may ask for something else."""
        stopped: list[BaseException] = []
        states: list[TextStates] = []

        def take(told: m.States) -> None:
            states.append(self._text_states(told, taps, tokens))
            demand(sum(max(1, len(one.tokens)) for one in states) <= len(tokens), "states of more than the text")

        def go_on(done: int, _: int) -> bool:
            try:
                if on_chunk is not None:
                    on_chunk(before + done, total)
            except BaseException as error:
                stopped.append(error)
            return not stopped

        common = common_prefix(self._text, tokens)
        message = m.Prefill(cache, self._take_kept(), common, list(tokens[common:]), taps)
        held = self._asked(message, m.Done, go_on, take).held
        with self._checking():
            demand(held <= len(tokens) if stopped else held == len(tokens), "another text was read")
        self._text, self._tree, self._logits_there = list(tokens[:held]), None, 0
        if tap is not None:
            for one in states:
                tap.take(one)
        if stopped:
            raise stopped[0]

    def keep(self, path: Sequence[int]) -> None:
        """Keep the root and the accepted path, as far as they were read. Told with the next message."""
        tree, read = self._tree, self._read
        self._tree = None
        if tree is None or ROOT not in read:
            return
        kept = [ROOT, *path]
        while kept[-1] not in read:
            kept.pop()
        self._text += [tree.tokens[node] for node in kept]
        self._kept = kept[1:]

    def fill_for_benchmark(self, tokens: int) -> None:
        """Have the cache there act as if so many tokens had been read."""
        cache = self._cache_there(anew=True)
        self._take_kept()
        self._asked(m.Fill(cache, tokens), m.Done)
        self._text, self._tree = [-1] * tokens, None  # no text begins so

    # ------------------------------------------------------------------------------------------ tree

    def read(
        self, tree: TokenTree, new_nodes: Sequence[int] | None = None, request: PassRequest = DEFAULT_REQUEST
    ) -> Reading:
        """Read nodes of a tree in one pass there, and have it judged there where that is asked for."""
        self.check_request(request)
        taps = sorted(request.taps)
        nodes = tuple(range(len(tree)) if new_nodes is None else new_nodes)
        judge = None if request.judging is None else m.judge_message(tree, request.judging)
        inline = request.needs.logits and request is not DEFAULT_REQUEST
        new = None if new_nodes is None else list(new_nodes)
        cache = self._cache_there()
        kept = self._take_kept()
        message = m.Read(
            *(cache, kept, list(tree.tokens), list(tree.parents), new, request.needs.likeliest, inline, taps, judge)
        )
        if self._tree is not tree:
            self._tree, self._read = tree, set()
        answer = self._asked(message, m.Passed)
        with self._checking():
            elsewhere = m.judged(answer.verdict, answer.took_s, tree, self.vocab_size)
            said = RemoteHead(self, tree, nodes, answer)
            states = self._states(answer, taps, nodes)
            if answer.embedded is not None:
                tokens = answer.embedded.tokens
                demand(all(token < self.vocab_size for token in tokens), "a token that the vocabulary does not have")
                rows = m.unpacked(answer.embedded.rows, len(tokens), self.hidden_size)
                self.link.embedded.update(zip(tokens, rows, strict=True))
            text = None if answer.text is None else self._text_states(answer.text, taps, self._text)
        self._read |= set(nodes)
        self.passes += 1
        self._logits_there = self.passes
        self.counters.count(len(nodes), self.layers)
        head = said if request.head is None else request.head.after(said.logits)
        return Reading(nodes, head, frozenset(nodes), taps=states, text_states=text, elsewhere=elsewhere)

    def _states(self, passed: m.Passed, taps: Sequence[int], nodes: Sequence[int]) -> dict[int, Tensor]:
        """Layer → (nodes, d); zeros for nodes that were not visited."""
        demand(len(passed.states) == len(taps), "states of other layers")
        sent = range(len(nodes)) if passed.verdict is None else [ROOT, *passed.verdict.path]
        found: dict[int, Tensor] = {}
        for layer, states in zip(taps, passed.states, strict=True):
            rows = m.unpacked(states, len(sent), self.hidden_size)
            found[layer] = rows.new_zeros(len(nodes), self.hidden_size)
            found[layer][list(sent)] = rows
        return found

    def _text_states(self, told: m.States, taps: Sequence[int], tokens: Sequence[int]) -> TextStates:
        demand(len(told.layers) == len(taps) > 0, "states of other layers")
        rows = [m.unpacked(layer, -1, self.hidden_size) for layer in told.layers]
        end = told.start + len(rows[0])
        demand(end <= len(tokens) and all(len(one) == len(rows[0]) for one in rows), "states of other tokens")
        return TextStates(told.start, tuple(tokens[told.start : end]), dict(zip(taps, rows, strict=True)))

    def logits_of_last_pass(self, number: int, rows: int) -> Tensor:
        """(rows, V) of the pass that was the `number`-th; ModelError: there was another one since."""
        if number != self._logits_there or self._cache is None:
            raise ModelError("the logits of an earlier pass are not kept where the target is")
        answer = self._asked(m.Rows(self._cache), m.Tensors)
        with self._checking():
            return m.unpacked(answer.rows, rows, self.vocab_size)

    # ------------------------------------------------------------------------------------------ there

    @property
    def _there(self) -> bool:
        """Whether the process there holds what is known to be held."""
        return not self.link.lost and self._generation == self.link.generation

    def _cache_there(self, anew: bool = False) -> int:
        """The number of its cache, which is new where the process is; TargetLost: the text that it held is gone."""
        if self._cache is None or not self._there:
            if self._text and not anew:
                raise TargetLost(f"the target at {self.link.at} was started anew; ask again")
            self._forget()
            self._generation, self._cache = self.link.generation, self.link.number(self)
            self._asked(m.NewCache(self._cache), m.Done)
        return self._cache

    def _asked(
        self,
        request: m.Request,
        kind: type[_Answered],
        on_progress: Callable[[int, int], bool] | None = None,
        on_states: Callable[[m.States], None] | None = None,
    ) -> _Answered:
        try:
            return self.link.ask(request, kind, on_progress, on_states)
        except BaseException:  # what is held there is not known any more
            self._forget()
            raise

    @contextmanager
    def _checking(self) -> Iterator[None]:
        """What is refused of an answer ends the connection; raises TargetLost."""
        try:
            yield
        except PlanRefused as error:
            self._forget()
            self.link.lose(str(error))

    def _take_kept(self) -> list[int] | None:
        kept, self._kept = self._kept, None
        return kept

    def _forget(self) -> None:
        if self._cache is not None:
            self.link.let_go(self._cache)
        self._cache, self._text, self._kept, self._tree, self._read = None, [], None, None, set()
        self._logits_there = 0

    # ------------------------------------------------------------------------------------------ weights

    def with_new_cache(self) -> RemoteModel:
        twin = RemoteModel(self.link)
        twin.context_tokens = self.context_tokens
        return twin

    def embed(self, tokens: Sequence[int]) -> Tensor:
        """(n, d) rows of the embedding, each fetched once."""
        known = self.link.embedded
        if missing := [token for token in dict.fromkeys(tokens) if token not in known]:
            known.update(zip(missing, self._rows_of(missing, head=False), strict=True))
        return torch.stack([known[token] for token in tokens]) if tokens else torch.empty(0, self.hidden_size)

    def head_rows(self, tokens: Sequence[int]) -> Tensor:
        """(n, d) float32 rows of the head. A network that guesses these tokens will ask for their embeddings in every
        round, so these are fetched too."""
        self.embed(tokens)
        return self._rows_of(tokens, head=True).float()

    def weights_sha256(self) -> str:
        """The checksum of the weights there, by which trained drafters know their target."""
        return self.link.ask(m.Checksum(), m.Sum).sha256

    def _rows_of(self, tokens: Sequence[int], *, head: bool) -> Tensor:
        self.link.reopen()
        found = []
        for first in range(0, len(tokens), _ROWS_A_MESSAGE):
            some = list(tokens[first : first + _ROWS_A_MESSAGE])
            answer = self.link.ask(m.Weights(some, head), m.Tensors)
            with self._checking():
                found.append(m.unpacked(answer.rows, len(some), self.hidden_size))
        return torch.cat(found) if found else torch.empty(0, self.hidden_size)

    # ------------------------------------------------------------------------------------------ memory

    def cache_bytes(self, tokens: int, longest: int | None = None) -> int:
        """Nothing here."""
        return 0

    def pass_bytes(self, rows: int, tokens: int, logits: bool = True) -> int:
        """The most that may come here: all logits."""
        return 8 * rows * self.vocab_size if logits else 0

    def limit_context_(self, tokens: int) -> None:
        self.context_tokens = tokens


class RemoteHead:
    """The head's output of a pass there: the likeliest tokens, and all logits once somebody looks at them."""

    logsumexp: Tensor | None = None
    tokens: Tensor | None = None
    in_memory: NamedInMemory | None = None
    row_in_memory: Callable[[int], RowInMemory] | None = None

    def __init__(self, model: RemoteModel, tree: TokenTree, nodes: Sequence[int], passed: m.Passed) -> None:
        """PlanRefused: the answer does not fit the pass."""
        demand(len(passed.first) == len(nodes), "likeliest tokens of other rows")
        demand(all(token < model.vocab_size for token in passed.first), "a token that the vocabulary does not have")
        self._model, self._pass, self._rows = model, model.passes + 1, len(nodes)
        self.first: Sequence[int] | None = passed.first
        self.likeliest: Tensor | None = None
        self.highest: Tensor | None = None
        self._logits = None if passed.logits is None else m.unpacked(passed.logits, len(nodes), model.vocab_size)
        self._known: dict[tuple[int, int], float] = {}
        if passed.likeliest is not None and passed.highest is not None:
            self.likeliest = named = m.unpacked_tokens(passed.likeliest, model.vocab_size, len(nodes), -1)
            values = m.unpacked(passed.highest, len(nodes), named.shape[1])
            for row, (tokens, logprobs) in enumerate(zip(named.tolist(), values.tolist(), strict=True)):
                self._known |= {(row, token): logprob for token, logprob in zip(tokens, logprobs, strict=True)}
        if passed.verdict is not None:
            pairs = m.logprob_pairs(tree, passed.verdict.path)
            demand(len(pairs) == len(passed.verdict.logprobs), "log-probabilities of other nodes")
            self._known |= dict(zip(pairs, passed.verdict.logprobs, strict=True))  # a whole tree's rows are its nodes
            last = (passed.verdict.path or [ROOT])[-1]
            self._known[last, passed.verdict.bonus] = passed.verdict.bonus_logprob

    @property
    def logits(self) -> Tensor:
        if self._logits is None:
            self._logits = self._model.logits_of_last_pass(self._pass, self._rows)
        return self._logits

    def log_probabilities(self, rows: Sequence[int], tokens: Sequence[int]) -> list[float]:
        asked = list(zip(rows, tokens, strict=True))
        if self._logits is None and all(one in self._known for one in asked):
            return [self._known[one] for one in asked]
        logits = self.logits.float()
        return [float(logits[row, token] - torch.logsumexp(logits[row], dim=-1)) for row, token in asked]


TOKENIZER_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja", "tokenizer.model", "vocab.json", "merges.txt",
)  # fmt: skip
"""Files that a tokenizer and its chat template are made of: these alone are sent and taken."""


def load_remote(name: str, settings: Settings, say: Callable[[str], None], cancelled: Callable[[], bool]) -> Loaded:
    """The model of this name at `settings.target_at`.

    Raises:
        TargetLost: it cannot be reached.
        ModelError: it cannot be loaded there, or its tokenizer not here.
    """
    s = settings
    opening = m.Open(m.PROTOCOL, name, s.dtype, s.kernels, s.backend)
    return loaded_at(connect(s.target_at, opening, say, cancelled), name)


def loaded_at(link: TargetLink, name: str) -> Loaded:
    """The model at the link's other end."""
    facts, tokenizer, folder, ends = link.facts, None, None, frozenset(link.facts.ends)
    if facts.files:
        folder = _kept(facts.files, link.at)
        tokenizer, _ = load_tokenizer(name, folder)
    there = f"{name} runs at {link.at}: {facts.weight_bytes / 1e6:.1f} MB of weights in {facts.precision}"
    notes = (there, *facts.notes)
    model = RemoteModel(link)
    return Loaded(name, model, tokenizer, ends, 0, facts.precision, facts.kernels, notes, folder)


def _kept(files: dict[str, bytes], at: str) -> Path:
    """A folder in the cache that holds these files, named after what they say."""
    if unknown := files.keys() - set(TOKENIZER_FILES):
        raise ModelError(f"the target at {at} sent a file that belongs to no tokenizer: {sorted(unknown)[0][:40]!r}")
    told = hashlib.sha256()
    for file, data in sorted(files.items()):
        told.update(f"{file} {len(data)} ".encode() + data)
    folder = cache_dir() / "targets" / told.hexdigest()[:32]
    private_dir(folder)
    for file, data in files.items():
        if not (folder / file).is_file() or (folder / file).read_bytes() != data:
            write_whole(folder / file, data)
    return folder
