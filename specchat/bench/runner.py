"""Runs a whole benchmark: for every precision load the pair once, measure all contestants, judge their texts."""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from specchat.bench.check_text import SameText, compare_texts
from specchat.bench.circumstances import circumstances, peak_memory, reset_peak_memory
from specchat.bench.configurations import AS_WRITTEN, Configuration, SpeltOut, load_pair, parse_configurations, plain_of
from specchat.bench.contestants import Ours
from specchat.bench.installed_peers import find_peers
from specchat.bench.interleaved_run import InterleavedRun
from specchat.bench.measured_reply import Measured
from specchat.bench.peer_engines import Peer
from specchat.bench.report import Perplexity, Report, Result, Run, summarise
from specchat.bench.workloads import Workload
from specchat.config import load_catalog
from specchat.config.trained_drafters import NO_TRAINED
from specchat.decoding.assemble import sampling
from specchat.decoding.combinations import check_settings, needs_weights
from specchat.decoding.profiling import measure_costs
from specchat.decoding.teacher_forcing import Comparer, chained
from specchat.engine.client.race import same_text_promised
from specchat.engine.server.loaded_pair import LoadedPair
from specchat.engine.server.pair_loading import Loader
from specchat.errors import SpecchatError, UsageError, nearest
from specchat.models.backends.scripted import ScriptedVocabulary
from specchat.models.model_loading import streaming_network
from specchat.settings import OPTIONS, Settings


@dataclass(frozen=True)
class BenchPlan:
    """The plan of a benchmark.

    Args:
        settings: in force for every contestant; each precision and configuration changes its own part.
        compare: the configurations, as `--compare` names them.
        dtypes: precisions to run; empty is the settings' own.
        warm: measure every configuration a second time with a drafter that has seen other prompts' replies.
        spelt: what `every` became, and notes on what was left out.
    """

    settings: Settings
    workload: Workload
    compare: str = "auto"
    dtypes: tuple[str, ...] = ()
    warm: bool = False
    peers: bool = False
    perplexity: bool = True
    spelt: SpeltOut = AS_WRITTEN


@dataclass
class BenchProgress:
    """Progress of the benchmark, for display; `step` is called before each reply."""

    say: Callable[[str], None] = lambda what: None
    begin: Callable[[str, int], None] = lambda title, steps: None
    step: Callable[[str, str], None] = lambda who, what: None


def parse_dtypes(text: str) -> tuple[str, ...]:
    """`float32,bfloat16` as the precisions they name.

    Raises:
        UsageError: a precision that the settings do not know.
    """
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for name in names:
        if name not in OPTIONS["dtype"].choices:
            raise UsageError(f"--dtypes: {name!r} is not a number format{nearest(name, OPTIONS['dtype'].choices)}")
    return names


@dataclass
class Bench:
    """One benchmark. `report` can be asked for at any time; after an interruption it says what was measured so far."""

    plan: BenchPlan
    progress: BenchProgress = field(default_factory=BenchProgress)
    _runs: list[Run] = field(default_factory=list)
    _current: _Precision | None = None

    def run(self) -> Report:
        """Measure everything; KeyboardInterrupt passes through, and `report` then holds what there is."""
        _refuse_early(self.plan)
        for dtype in self.plan.dtypes or (self.plan.settings.dtype,):
            settings = self.plan.settings.but({"dtype": dtype})
            self._current = _Precision(self.plan, settings, self.progress)
            self._current.measure()
            self._runs.append(self._current.result(judged=True))
            self._current = None
            gc.collect()
        return self.report(complete=True)

    def report(self, complete: bool = False) -> Report:
        runs = list(self._runs)
        if self._current is not None and self._current.started:
            runs.append(self._current.result(judged=False))
        settings = self.plan.settings
        names = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed")
        return Report(
            circumstances=circumstances(),
            workload=self.plan.workload.name,
            questions=len(self.plan.workload.questions),
            settings={name: getattr(settings, name) for name in names},
            runs=tuple(runs),
            complete=complete,
        )


class _Precision:
    """The pair in one number format, and the contestants measured on it."""

    def __init__(self, plan: BenchPlan, settings: Settings, progress: BenchProgress) -> None:
        self._plan, self._settings, self._progress = plan, settings, progress
        progress.say(f"loading {settings.pair} in {settings.dtype}")
        first, *others = (one.settings for one in parse_configurations(plan.compare, settings))
        pair = self._pair = load_pair(first, progress.say, others)
        self._notes = [*plan.spelt.notes, *pair.notes]
        reset_peak_memory(pair.device)
        self._perplexity: Perplexity | None = None
        if plan.perplexity:
            progress.say("reading the fixed text")
            self._perplexity = measure_perplexity(pair)
        self._ours = self._contestants()
        self._peers = self._find_peers() if plan.peers else []
        self._comparer = Comparer(pair.target.model, exact=pair.exact)
        self._run = InterleavedRun(
            contestants=[*self._ours, *self._peers],
            encode=lambda messages: pair.vocabulary.encode_chat(messages),
            room=pair.target.model.context_tokens - settings.max_tokens - 1,
            seed=max(0, settings.seed),
            on_reply=progress.step,
            notes=self._notes,
        )

    @property
    def started(self) -> bool:
        return bool(self._run.measured)

    def measure(self) -> None:
        questions = self._plan.workload.questions
        self._progress.begin(f"{self._pair.name} {self._pair.precision}", self._run.steps(questions))
        self._run.run(questions)

    def result(self, judged: bool) -> Run:
        """The figures so far; texts are compared where `judged`."""
        pair, run = self._pair, self._run
        by_name = {c.name: [m for m in run.measured if m.contestant == c.name] for c in run.contestants}
        plain = by_name[self._ours[0].name]
        memory = peak_memory(pair.device)
        results = [self._our_result(ours, plain, by_name[ours.name], judged) for ours in self._ours]
        results += [Result(peer.name, "peer", peer.about, summarise(plain, by_name[peer.name])) for peer in self._peers]
        return Run(
            pair=pair.name,
            target=pair.target.name,
            draft=pair.draft_names,
            device=str(pair.device),
            dtype=pair.precision,
            threads=pair.threads,
            load_s=pair.load_s,
            weight_bytes=sum(loaded.weight_bytes for loaded in (pair.target, *pair.drafts)),
            results=tuple(results),
            memory=memory,
            perplexity=self._perplexity,
            notes=(*self._notes, *_disk_notes(pair)),
            measured=tuple(run.measured),
        )

    def _contestants(self) -> list[Ours]:
        """Plain first, then every configuration cold, then warm where asked for."""
        self._progress.say("timing passes by their rows")
        pair = self._pair
        costs = measure_costs(pair.target.model, pair.draft.model if pair.draft else None, fits=pair.room_for_rows)
        chosen = [c for c in parse_configurations(self._plan.compare, self._settings) if not c.plain]
        ours = [Ours(plain_of(self._settings), pair, costs=costs)]
        for configuration in tuple(chosen):
            try:
                ours.append(Ours(configuration, pair, costs=costs))
            except SpecchatError as error:
                if configuration.name not in self._plan.spelt.every:
                    raise
                self._notes.append(f"left out: {configuration.name}: {error}")
                chosen.remove(configuration)
        if self._plan.warm:
            ours += [Ours(configuration, pair, taught=True, costs=costs) for configuration in chosen]
        return ours

    def _find_peers(self) -> list[Peer]:
        questions = self._plan.workload.questions
        if any(question.json_schema for question in questions):
            self._notes.append("other engines are left out: they hold no reply to a schema")
            return []
        self._progress.say("loading other engines")
        sample = self._pair.vocabulary.encode_chat([{"role": "user", "content": questions[0].turns[0]}])
        peers, notes = find_peers(self._pair, self._settings, sample)
        self._notes += notes
        return peers

    def _our_result(self, ours: Ours, plain: list[Measured], own: list[Measured], judged: bool) -> Result:
        plainly = ours is self._ours[0]
        return Result(
            name=ours.name,
            kind="plain" if plainly else "ours",
            settings=_method_settings(ours.configuration),
            groups=summarise(plain, own),
            lossless=ours.lossless,
            same_text=self._compare(ours, plain, own) if judged and not plainly else None,
        )

    def _compare(self, ours: Ours, plain: list[Measured], own: list[Measured]) -> SameText:
        settings = ours.configuration.settings
        promised = same_text_promised(dataclasses.asdict(settings), ours.lossless)
        return compare_texts(self._comparer, plain, own, sampling(settings), promised)


_TEXT = Path(__file__).with_name("text.txt")
"""A short story of our own, the same for every model and precision."""

_ROWS = 32


def measure_perplexity(pair: LoadedPair, text: str | None = None) -> Perplexity | None:
    """Perplexity of the fixed text, read through the same passes that verify drafts; None for less than two tokens."""
    target = pair.target.model
    text = _TEXT.read_text(encoding="utf-8") if text is None else text
    encode = ScriptedVocabulary().encode if pair.target.tokenizer is None else pair.target.tokenizer.encode
    tokens = encode(text)[: target.context_tokens - _ROWS]
    if len(tokens) < 2:
        return None
    with torch.inference_mode():
        surprise = 0.0
        for token, logits in zip(tokens[1:], chained(target, tokens[:1], tokens[1:], _ROWS), strict=True):
            surprise -= float(torch.log_softmax(logits.float(), dim=-1)[token])
    target.prefill(())
    return Perplexity(math.exp(surprise / (len(tokens) - 1)), len(tokens) - 1)


def _disk_notes(pair: LoadedPair) -> tuple[str, ...]:
    """How quickly the disk gave the layers that are read each pass; none where all stay in memory."""
    network = streaming_network(pair.target.model)
    if network is None or network.streamed is None:
        return ()
    return (f"while layers were read the disk gave {network.streamed.read_rate / 1e9:.2f} GB/s",)


def _refuse_early(plan: BenchPlan) -> None:
    """Refuse typing errors and parts that do not fit before anything is loaded."""
    catalog = load_catalog()
    pair, loader = catalog.pair(plan.settings.pair), Loader(catalog, lambda event: None, lambda: False)
    for configuration in parse_configurations(plan.compare, plan.settings):
        chosen = configuration.settings
        if configuration.name in plan.spelt.every:
            continue  # left out where it does not fit
        trained = loader.trained_drafters(chosen) if needs_weights(chosen) else NO_TRAINED
        drafts = dict.fromkeys(loader.draft_names(pair), True)
        check_settings(chosen, bool(drafts), trained, draft_models=drafts)


def _method_settings(configuration: Configuration) -> dict[str, Any]:
    names = ("drafter", "policy", "rule", "controller", "width", "depth", "nodes")
    chosen: dict[str, Any] = {name: getattr(configuration.settings, name) for name in names}
    if configuration.settings.method_options:
        chosen["method_options"] = dict(configuration.settings.method_options)
    return chosen
