"""A training from beginning to end: prompts and replies, states, the first network, learning, the drafter's folder."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specchat.config import private_dir
from specchat.config.kept_files import remove_unfinished, replacing
from specchat.config.trained_drafters import DESCRIPTION, WEIGHTS, TrainedDrafter, read_drafter, write_drafter
from specchat.core.drafting_networks import ChangedGuess
from specchat.core.sampling import Sampling
from specchat.decoding.vocabulary import Vocabulary
from specchat.errors import TrainingError, UsageError, WeightsError, short
from specchat.models.decoder.decoder import Decoder
from specchat.models.draft_heads import FAMILIES
from specchat.models.draft_heads.draft_language_model import DraftModelSizes
from specchat.models.draft_heads.eagle import EagleSizes
from specchat.models.draft_heads.head import HEAD_TOKENS, DraftNetwork, SharedWeights
from specchat.models.draft_heads.loading import family_of, load_network, new_network, read_tokens
from specchat.models.draft_heads.masks import PromptTokens, PromptTokenSizes
from specchat.models.draft_heads.sizes import NetworkSizes
from specchat.models.machine import fastest_float
from specchat.models.weights.weight_source import WeightSource
from specchat.training import StageName, distillation
from specchat.training.checkpoints import Standing
from specchat.training.corpus import Corpus, shared_with
from specchat.training.disk import drafter_folder, needs_of, only_user
from specchat.training.distillation import DenoisingLoss
from specchat.training.draft_texts import DraftTexts, is_own
from specchat.training.fitting import CHECKPOINT, SHARE_OF_START, BatchAcceptance, BatchLoss, Fitting, Schedule
from specchat.training.limits import (
    BOOSTED,
    CHAIN_SELECTIONS,
    CHATS,
    LOSSES,
    SELECTIONS,
    SELF,
    TREE_LOSS,
    depths_of,
    refuse_other_method,
    texts_per_batch,
)
from specchat.training.losses import acceptance, chain_loss, columns_of, guessed_chains, tree_loss
from specchat.training.mask_learning import FrozenTarget, MaskLearning
from specchat.training.online_learning import MOST_CHANGED, changed_guesses
from specchat.training.plain_text import PlainText, learn_plain, next_token
from specchat.training.states import StateReading, grouped, read_shard, shard_file, tapped_layers
from specchat.training.texts import TextPlan, TextStore, TextWriting
from specchat.training.training_request import Places, TrainingRequest

_MEASUREMENTS = 24
"""How often progress is measured in a training that goes through."""

_FEWEST_TEXTS = 40


@dataclass(frozen=True)
class Subject:
    """The target that is drafted for; `weights` opens its weights, prepared for a decoder of its shape."""

    name: str
    checksum: str
    licence: str
    model: Decoder
    vocabulary: Vocabulary
    sampling: Sampling
    weights: Callable[[], WeightSource] | None = None


@dataclass(frozen=True)
class Stage:
    """How far a stage is: `done` of `total`, what there is to say, and while it learns the last point of the curve."""

    name: StageName
    done: float
    total: float
    unit: str
    says: str = ""
    measured: Mapping[str, Any] | None = None


class Job:
    """One training. Every stage goes on where it was stopped."""

    def __init__(
        self,
        request: TrainingRequest,
        subject: Subject,
        tell: Callable[[Stage], None],
        clock: Callable[[], float] = time.monotonic,
        start: TrainedDrafter | None = None,
        reference: TrainedDrafter | None = None,
    ) -> None:
        """A training whose stages are told of. It begins with the weights of `start`, or with random ones, and learns
        where `reference` says, or everywhere. `clock` may leave out seconds in which the process was stopped.

        Raises:
            UsageError: the start does not match what is trained.
            TrainingError: a training of this name is there already.
        """
        self.request = request
        self.kept: TrainedDrafter | None = None  # as good as it got, once learning has begun and ended
        self.changed: tuple[ChangedGuess, ...] = ()  # by learning, in a text that it never learnt from
        self._clock = clock
        self._subject = subject
        self._tell = tell
        shape = subject.model.network.shape
        made, taps = family_of(request.drafter).load(), tapped_layers(subject.model.layers)
        self._recipe, self._sizes = made.recipe, sizes_asked_for(made.sizes_for(shape, taps), request, start)
        self._start, self._reference = start, reference
        self._plain = PlainText.of(request.plain, subject.vocabulary) if request.plain else None
        if start is not None:
            check_start(start, request.drafter, self._sizes, subject.checksum)
        self.places = Places.of(request, subject.name, subject.checksum)
        self.needs = needs_of(request.drafter, self._sizes, shape, request.tokens, len(taps), self.places.states)

    def run(self) -> TrainedDrafter:
        """Everything that is still to be done. Interrupted while it learns, it leaves a drafter as good as it got.

        Raises:
            TrainingError: data, disk or memory do not suffice.
        """
        remove_unfinished(private_dir(self.places.drafter.parent))
        with only_user(self.places.data):
            texts = self._write_texts()
            corpus, sources = self._read_states(texts)
            before = torch.get_num_threads()  # one where native kernels run the target
            torch.set_num_threads(self._subject.model.network.threads)
            try:
                fitting = self._fitting(corpus, sources)
                try:
                    fitting.run(self._tell_learning(fitting))
                except KeyboardInterrupt:
                    if fitting.standing.tokens and fitting.best_weights.exists():
                        self.kept = self._write_drafter(fitting, corpus)
                    raise
            finally:
                torch.set_num_threads(before)
            self.kept = self._write_drafter(fitting, corpus)
            self.changed = self._changed(fitting, corpus)
            return self.kept

    def _write_texts(self) -> TextStore:
        """Stages 1 and 2."""
        request, subject = self.request, self._subject
        self.needs.check(self.places.data)
        store = TextStore(self.places.texts, subject.vocabulary.size)
        plan = TextPlan(subject.vocabulary, request.given_prompts(), subject.sampling, request.seed)

        def tell(done: int) -> None:
            says = f"{len(store.texts)} texts"
            self._tell(Stage("replies", min(done, request.tokens), request.tokens, "tokens", says))

        TextWriting(plan, subject.model, store).run(request.tokens, tell)
        return store

    def _read_states(self, store: TextStore) -> tuple[Corpus, list[str]]:
        """Stage 3."""
        groups = grouped(list(store.texts.values()), self.request.tokens)
        if sum(map(len, groups)) < _FEWEST_TEXTS:
            raise TrainingError(f"{sum(map(len, groups))} texts are too few to learn from: give it more prompts")
        reading = StateReading(self._subject.model, self._subject.checksum, self.places.states)
        sources = reading.run(groups, lambda done: self._tell(Stage("states", done, len(groups), "files")))
        files = [shard_file(self.places.states, number) for number in range(len(sources))]
        vocab_size, layers = self._subject.model.vocab_size, len(reading.layers)
        shards = [read_shard(file, source, True, vocab_size) for file, source in zip(files, sources, strict=True)]
        for file, shard in zip(files, shards, strict=True):
            if shard.states.shape[1:] != (layers, self._subject.model.hidden_size):
                raise TrainingError(f"{file} holds states of another shape; remove it and it is made again")
        recipe = self._recipe
        return Corpus(shards, recipe.steps, recipe.reads_back, recipe.measured_texts, recipe.reads_states), sources

    def _fitting(self, corpus: Corpus, sources: list[str]) -> Fitting:
        """Stage 4, where it stands."""
        request, model = self.request, self._subject.model
        recipe, texts = self._recipe, texts_per_batch(model.network.shape.hidden)
        sizes, start, plain = self._sizes, self._start, self._plain
        also = None if plain is None else torch.unique(plain.shard.tokens)
        network = first_network(request.drafter, sizes, model, corpus, request.seed, start, also)
        seen, further = int(FAMILIES[request.drafter].epochs * corpus.tokens), start is not None
        rate, hours = recipe.rate(texts, further=further), request.hours / (1 if plain is None else 2)
        between = max(1, seen // min(_MEASUREMENTS, recipe.measurements))
        schedule = Schedule(seen, 3600 * hours, rate, between, further, recipe.glancing)
        data = hashlib.blake2b("".join(sources).encode(), digest_size=8).hexdigest()
        about = {"method": request.drafter, "options": sizes.options(), "seed": request.seed, "data": data}
        about |= {"from": label_of(start), "steps": recipe.steps, "glancing": recipe.glancing, **self._said_of_loss()}
        if plain is not None and not (self.places.run / CHECKPOINT).exists():
            learn_plain(plain, partial(self._fitting_of_plain, network, texts, about), self._tell_share)
        if self._reference is not None and request.select == BOOSTED:
            columns = columns_of(network.shared.tokens, model.vocab_size).to(network.shared.head.device)
            earlier = reference_network(self._reference, network, self._subject.checksum)
            corpus = distillation.unreproduced(corpus, earlier, columns, texts)
        fitting = Fitting(
            network, corpus, schedule, self.places.run, model.vocab_size, recipe.steps, texts, request.seed, about,
            self._clock, *self._learning(network), self._draft_texts(corpus, about, lambda: fitting.done),
        )  # fmt: skip
        if fitting.standing.best:
            self._check_best(fitting)
        return fitting

    def _fitting_of_plain(
        self, network: DraftNetwork[NetworkSizes], texts: int, about: Mapping[str, Any], corpus: Corpus
    ) -> Fitting:
        """The network's learning of plain text, once through, where it stands."""
        request, folder = self.request, self.places.run / "plain"
        private_dir(folder)
        schedule = Schedule(corpus.tokens, 1800 * request.hours, self._recipe.rate(texts), max(1, corpus.tokens // 4))
        return Fitting(
            network, corpus, schedule, folder, self._subject.model.vocab_size, self._recipe.steps, texts, request.seed,
            about, self._clock, next_token,
        )  # fmt: skip

    def _tell_share(self, done: float, says: str, measured: Mapping[str, Any] | None = None) -> None:
        self._tell(Stage("learning", done, 1.0, "share", says, measured))

    def _draft_texts(self, corpus: Corpus, about: Mapping[str, Any], done: Callable[[], float]) -> DraftTexts | None:
        """What makes the texts of every epoch, where the draft model writes some of them."""
        request, subject = self.request, self._subject
        if not is_own(request.texts):
            return None
        label = hashlib.blake2b(repr(sorted(about.items())).encode(), digest_size=16).hexdigest()
        reading = StateReading(subject.model, subject.checksum, self.places.written, states=False)
        return DraftTexts(
            corpus, reading, self.places.written, request.texts, subject.vocabulary.eos_ids, request.seed,
            0 if self._start else 1, label, lambda says: self._tell_share(done(), says),
        )  # fmt: skip

    def _learning(self, network: DraftNetwork[NetworkSizes]) -> tuple[BatchLoss, BatchAcceptance]:
        """The loss, and the measurement of progress."""
        if self._recipe.through_target:
            weights, model = self._subject.weights, self._subject.model
            assert weights is not None, "a target's weights can be read"
            device = network.shared.head.device
            target = FrozenTarget(model.network.shape, weights(), fastest_float(device), device)
            assert isinstance(network, PromptTokens), "masks alone run through the target"
            learning = MaskLearning(target)
            return learning.loss, learning.acceptance
        return self._loss(network), acceptance

    def _loss(self, network: DraftNetwork[NetworkSizes]) -> BatchLoss:
        if self.request.loss == TREE_LOSS:  # the network has the weights it starts from
            return partial(tree_loss, reference=copy.deepcopy(network, {id(network.shared): network.shared}))
        loss = distillation.LOSSES[self.request.loss or LOSSES[0]]
        if self._recipe.denoises:
            return DenoisingLoss(loss if self.request.loss else None)
        if not self._recipe.distils:
            return partial(chain_loss, loss=loss, select=self.request.select or CHAIN_SELECTIONS[0])
        if self._reference is None or self.request.select == BOOSTED:
            return distillation.Distillation(loss)
        reference = reference_network(self._reference, network, self._subject.checksum)
        return distillation.Distillation(loss, reference, distillation.SELECTIONS[self.request.select or SELECTIONS[0]])

    def _said_of_loss(self) -> dict[str, Any]:
        """The loss as a checkpoint and drafter.toml name it; nothing where there is no choice."""
        if not self._recipe.distils:
            chosen = {"loss": self.request.loss, "select": self.request.select}
            return {name: value for name, value in chosen.items() if value}
        said: dict[str, Any] = {"loss": self.request.loss or LOSSES[0]}
        if self._plain is not None:
            said |= {"plain": self._plain.label}
        if is_own(self.request.texts):
            said |= {"written_by": self.request.texts}
        if self._reference is not None:
            said |= {"reference": label_of(self._reference), "select": self.request.select or SELECTIONS[0]}
        return said

    def _tell_learning(self, fitting: Fitting) -> Callable[[Standing], None]:
        def tell(standing: Standing) -> None:
            last = standing.curve[-1]
            depths = " ".join(f"{share:.2f}" for share in last["by_depth"])
            says = f"τ {last['tau']:.2f} (best {standing.best:.2f}), right by depth {depths}"
            self._tell_share(fitting.done, says, last)

        return tell

    def _write_drafter(self, fitting: Fitting, corpus: Corpus) -> TrainedDrafter:
        """Stage 5."""
        self._check_best(fitting)
        folder = self.places.drafter
        with drafter_folder(folder) as made:
            with replacing(made / WEIGHTS, alone=True) as draft:
                shutil.copyfile(fitting.best_weights, draft)
            self._describe(made, fitting, corpus)
        return read_drafter(folder, (self.request.drafter,))

    def _check_best(self, fitting: Fitting) -> None:
        """Read the best weights as a drafter will be read."""
        method, sizes = self.request.drafter, fitting.network.sizes
        try:
            load_network(method, sizes.options(), fitting.best_weights, lambda tokens: fitting.network.shared)
        except WeightsError as error:
            raise TrainingError(f"{error}; remove {self.places.run} to begin anew, or choose another --name") from None

    def token_label(self, token: int) -> str:
        return self._subject.vocabulary.token_label(token)

    def _changed(self, fitting: Fitting, corpus: Corpus) -> tuple[ChangedGuess, ...]:
        """Guesses of the weights that it began with and of the best ones, of one text; none where masks guess."""
        if self._recipe.through_target:
            return ()
        request, network = self.request, fitting.network
        ended = load_network(request.drafter, network.sizes.options(), fitting.best_weights, lambda _: network.shared)
        began = _begun(request.drafter, network.sizes, network.shared, request.seed, self._start)
        found: tuple[ChangedGuess, ...] = ()
        for batch in corpus.unseen(1):
            batch, first = batch.to(network.shared.head.device), int(batch.first[0])
            columns = columns_of(network.shared.tokens.to(batch.tokens.device), self._subject.model.vocab_size)
            one, other = (
                network.shared.tokens[guessed_chains(each.to(batch.tokens.device), batch, columns, 1)[1].cpu()]
                for each in (began, ended)
            )
            places = batch.drafted(1, batch.tokens.shape[1] - 1)[0].nonzero()[:, 0].cpu() + 2 - first
            changed = changed_guesses(batch.tokens[0, first:].cpu(), (one, other), places)[2]
            found = max(found, changed, key=len)
            if len(found) == MOST_CHANGED:
                break
        return found

    def _describe(self, folder: Path, fitting: Fitting, corpus: Corpus) -> None:
        request, subject, standing = self.request, self._subject, fitting.standing
        best = max(standing.curve, key=lambda point: float(point["tau"]))
        learnt = [point for point in standing.curve if SHARE_OF_START not in point]
        write_drafter(
            folder,
            method=request.drafter,
            target=subject.name,
            target_sha256=subject.checksum,
            licence=subject.licence,
            options=fitting.network.sizes.options(),
            data={
                "prompts": request.prompts if request.prompts in (SELF, CHATS) else Path(request.prompts).name,
                "texts": len(corpus.learnt),
                "reply_tokens": corpus.tokens,
                "seed": request.seed,
                **data_of(self._start),
                **self._said_of_loss(),
                "command": command(request),
            },
            figures={
                "tokens_seen": standing.tokens,
                "seconds": round(standing.seconds),
                "chain_tau_held_out": best["tau"],
                "right_by_depth_held_out": best["by_depth"],
                **({SHARE_OF_START: best[SHARE_OF_START]} if SHARE_OF_START in best else {}),
                "curve_tokens": [point["tokens"] for point in learnt],
                "curve_tau": [point["tau"] for point in learnt],
            },
        )


def sizes_asked_for(sizes: NetworkSizes, request: TrainingRequest, start: TrainedDrafter | None = None) -> NetworkSizes:
    """These sizes with what a request says of them. What it leaves open is as in the drafter that it begins with."""
    if start is not None and start.method == request.drafter:
        chosen = next((keys for kind, keys in _CHOSEN.items() if isinstance(sizes, kind)), {})
        begun = sizes_of(start)
        sizes = dataclasses.replace(sizes, **{key: getattr(begun, key) for key in chosen})
    if isinstance(sizes, PromptTokenSizes) and request.ensemble > 1:
        return dataclasses.replace(sizes, ensemble=request.ensemble)
    if isinstance(sizes, DraftModelSizes) and (depths := depths_of(request.drafter, request.depths)):
        return dataclasses.replace(sizes, layers=depths[-1], depths=depths)
    if isinstance(sizes, EagleSizes) and request.form:
        return sizes.of_form(request.form)
    return sizes


_CHOSEN: Mapping[type[NetworkSizes], Mapping[str, str]] = {
    PromptTokenSizes: {"ensemble": "--ensemble"},
    DraftModelSizes: {"layers": "--depths", "depths": "--depths"},
    EagleSizes: {"sampled": "--form", "parted": "--form"},
}
"""Sizes that a request may choose, and the flag that does."""


def sizes_of(trained: TrainedDrafter) -> NetworkSizes:
    """The sizes that its folder names; ConfigError: they are wrong."""
    where = f"{trained.folder / DESCRIPTION}, [options]"
    return family_of(trained.method).load().sizes_type.read(trained.options, where)


def check_start(start: TrainedDrafter, method: str, sizes: NetworkSizes, target_sha256: str) -> None:
    """Refuse a drafter of another method, target or size than is trained; UsageError says what to do instead."""
    named = f"--from {short(start.name)}"
    instead = "leave out --from and begin with nothing"
    refuse_other_method(start.name, start.method, method)
    if start.target_sha256 != target_sha256:
        raise UsageError(f"{named} was trained for other weights of {start.target}; {instead}")
    found = sizes_of(start).options()
    flags = next((flags for kind, flags in _CHOSEN.items() if isinstance(sizes, kind)), {})
    for key, wanted in sizes.options().items():
        if found[key] != wanted:
            instead = f"leave out {flags[key]}, which is as in {start.name}, or --from" if key in flags else instead
            raise UsageError(f"{named} has {key} = {short(found[key])}, and {wanted} is trained; {instead}")


def first_network(
    method: str,
    sizes: NetworkSizes,
    target: Decoder,
    corpus: Corpus,
    seed: int,
    start: TrainedDrafter | None,
    also: Tensor | None = None,
) -> DraftNetwork[NetworkSizes]:
    """The network before it learns, on the target's device.

    A network has no numbers of its own for a token, since embeddings and the head's rows are the target's: which tokens
    it can guess may change at any time. A start was trained on more texts, as a rule, and the corpus is nearer to what
    is to be drafted, so the most frequent tokens of both are taken in turn. Measured with few texts of a subject of
    their own, they hold more of what the target says there than either list; with texts as before, hardly less.
    """
    known = None if start is None else read_tokens(start.weights)
    shared = shared_with(target, corpus, HEAD_TOKENS, known, also)
    network = _begun(method, sizes, shared, seed, start)
    return network.train().requires_grad_(True).to(shared.head.device)


def _begun(
    method: str, sizes: NetworkSizes, shared: SharedWeights, seed: int, start: TrainedDrafter | None
) -> DraftNetwork[NetworkSizes]:
    if start is None:
        return new_network(method, sizes, shared, torch.Generator().manual_seed(seed))
    return load_network(start.method, start.options, start.weights, lambda tokens: shared)


def reference_network(
    reference: TrainedDrafter, network: DraftNetwork[NetworkSizes], target_sha256: str
) -> DraftNetwork[NetworkSizes]:
    """The network of a trained drafter that guesses the same tokens as this one, to be compared with, not to learn.

    Raises:
        UsageError: it was trained for other weights.
    """
    if reference.target_sha256 != target_sha256:
        raise UsageError(f"--reference {short(reference.name)} was trained for other weights of {reference.target}")
    found = load_network(reference.method, reference.options, reference.weights, lambda tokens: network.shared)
    return found.to(network.shared.head.device)


def label_of(start: TrainedDrafter | None) -> str | None:
    """The start as a checkpoint names it: it must be the same on `--resume`."""
    return None if start is None else f"{start.name} ({start.sha256[:12]})"


def data_of(start: TrainedDrafter | None) -> Mapping[str, Any]:
    """The start as drafter.toml names it: its name, its checksum, and what it had learnt from, as far as that is
    known."""
    if start is None:
        return {}
    seen = [start.data.get(key) for key in ("reply_tokens", "from_reply_tokens")]
    before = sum(count for count in seen if type(count) is int)
    return {"from": start.name, "from_sha256": start.sha256, "from_reply_tokens": before}


def command(request: TrainingRequest) -> str:
    """The command line that trains this again."""
    chosen = {
        "from": request.start, "loss": request.loss, "reference": request.reference, "select": request.select,
        "texts": request.texts, "plain": request.plain, "ensemble": request.ensemble if request.ensemble > 1 else 0,
        "depths": ",".join(map(str, depths_of(request.drafter, request.depths))), "form": request.form,
    }  # fmt: skip
    flags = "".join(f" --{name} {value}" for name, value in chosen.items() if value)
    hours = f" --hours {request.hours:g}" if request.hours else ""
    return (
        f"specchat train {request.pair} --drafter {request.drafter} --prompts {request.prompts}{flags} "
        f"--tokens {request.tokens}{hours} --name {request.name} --seed {request.seed}"
    )
