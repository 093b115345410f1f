"""The fields of the settings form, and the size of one step of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from specchat.controllers import controller_names
from specchat.drafters.members import names_in
from specchat.engine.protocol.events import Hello, MethodInfo, OptionInfo
from specchat.errors import UsageError, cut, nearest
from specchat.registry import Option

FAMILIES = {"drafter": "draft", "policy": "polic", "rule": "rule", "controller": "control"}
"""Settings that name a method, and what their family's name contains."""

JOINED = ("controller",)
"""Settings that take several of their choices, joined by `+`."""

_SECTIONS = (
    ("most used", ("temperature", "top_p", "max_tokens", "drafter", "nodes", "depth", "width")),
    ("sampling", ("top_k", "min_p", "seed")),
    ("penalties", ("repetition_penalty", "presence_penalty", "frequency_penalty")),
    ("speculation", ("policy", "rule", "controller")),
    ("early pruning", ("prune_layer", "prune_keep")),
    ("drafting while the target reads", ("loop", "mirror_layer", "mirror_candidates")),
    ("learning", ("learn",)),
    ("engine · needs a reload", ("dtype", "device", "backend", "kernels", "threads", "memory")),
)


@dataclass(frozen=True)
class Field:
    name: str  # `temperature`, or `prompt_lookup.max_ngram` for a method's option
    info: OptionInfo
    value: Any
    section: str
    default: Any = None  # the shipped value
    saved: Any = None  # the value at the next start

    @property
    def label(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def of_method(self) -> bool:
        return "." in self.name

    @property
    def typed(self) -> bool:
        """Whether values of it are typed, and not only chosen."""
        return self.name in JOINED or not (self.info.choices or self.info.kind == "bool")

    @property
    def words(self) -> str:
        """What a search looks through."""
        return f"{self.name} {self.name.replace('_', ' ')} {self.info.help} {self.section}".lower()

    def rank(self, query: str) -> int:
        """How well a search fits, best 0: the name itself, the beginning of it, a part of it, only the description."""
        name, wanted = self.name.replace("_", " ").lower(), " ".join(query.replace("_", " ").lower().split())
        label = self.label.replace("_", " ").lower()
        if wanted in (name, label):
            return 0
        if label.startswith(wanted) or name.startswith(wanted):
            return 1
        return 2 if all(word in name for word in wanted.split()) else 3

    def parse(self, text: str) -> Any:
        """The value a user typed; raises UsageError in words for the field."""
        if self.name in JOINED:
            return "+".join(controller_names(text, self.info.choices))
        value: object = text.strip()
        if self.info.kind == "int" and text.strip().endswith(".0"):
            value = text.strip()[:-2]
        return self._option.parse(value, "")

    @property
    def range_text(self) -> str:
        return self._option.range_text()

    @property
    def _option(self) -> Option:
        about = {name: getattr(self.info, name) for name in OptionInfo.__struct_fields__}
        return Option(**{**about, "choices": tuple(self.info.choices)})

    def stepped(self, direction: int) -> Any:
        """The value one step away, or the same at the end of the range."""
        if choices := self.info.choices:
            if self.value not in choices:
                return choices[0 if direction > 0 else -1]
            return choices[(choices.index(self.value) + direction) % len(choices)]
        if self.info.kind == "bool":
            return not self.value
        if self.info.kind == "int":
            return self._within(_stepped_int(int(self.value), direction))
        if self.info.kind == "float":
            small = self.info.maximum is not None and self.info.maximum <= 1.0
            return self._within(round(float(self.value) + direction * (0.05 if small else 0.1), 4))
        return self.value

    def _within(self, value: float) -> Any:
        low, high = self.info.minimum, self.info.maximum
        value = value if low is None else max(low, value)
        value = value if high is None else min(high, value)
        return int(value) if self.info.kind == "int" else value


def fields_of(
    hello: Hello,
    settings: Mapping[str, Any],
    default: Mapping[str, Any] | None = None,
    saved: Mapping[str, Any] | None = None,
) -> list[Field]:
    """Every field the form shows, in order; the options of the methods in use come last, each method's together.

    `default` are the settings that were shipped and `saved` those of the next start; where they are not known, the
    options' own defaults stand in, and every value is held to be saved.
    """
    infos = {info.name: info for info in hello.settings}
    known = {"pair", *(name for _, names in _SECTIONS for name in names)}
    layers = (settings, default or {}, settings if saved is None else saved)
    fields: list[Field] = []
    own: list[Field] = []
    for section, names in [*_SECTIONS, ("more", tuple(name for name in infos if name not in known))]:
        for name in names:
            if name in infos:
                info = infos[name]
                if name in FAMILIES and not info.choices:
                    info = replace(info, choices=[method.name for method in methods_of(hello.methods, name)])
                fields.append(Field(name, info, *_values(name, info, section, layers)))
            for method in _in_use(hello.methods, name, settings):
                for info in method.options:
                    full = f"{method.name}.{info.name}"
                    own.append(Field(full, info, *_values(full, info, f"the {name} {method.name}", layers)))
    return [*fields, *own]


def field_not_in_use(hello: Hello, settings: Mapping[str, Any], name: str) -> tuple[Field, str] | None:
    """An option of a method that is not in use, and the setting that chooses the method; None for other names.

    Raises:
        UsageError: the method has no such option.
    """
    owner, dot, option = name.partition(".")
    method = next((method for method in hello.methods if dot and method.name == owner), None)
    if method is None:
        return None
    chooses = next(setting for setting, family in FAMILIES.items() if family in method.family)
    infos = {info.name: info for info in method.options}
    if option not in infos:
        known = nearest(option, infos) or "; it has none"
        raise UsageError(f"{chooses} {owner!r} has no option {cut(option, 40)!r}{known}")
    return Field(name, infos[option], *_values(name, infos[option], "", (settings, {}, settings))), chooses


def _values(
    name: str, info: OptionInfo, section: str, layers: tuple[Mapping[str, Any], ...]
) -> tuple[Any, str, Any, Any]:
    """The value in force, the section, the shipped value and the saved one."""
    value, default, saved = (
        (layer.get("method_options") or {} if "." in name else layer).get(name, info.default) for layer in layers
    )
    return value, section, default, saved


def _in_use(methods: list[MethodInfo], setting: str, settings: Mapping[str, Any]) -> list[MethodInfo]:
    """The methods this setting chose, and those that they are made of."""
    if setting not in FAMILIES:
        return []
    known = {method.name: method for method in methods_of(methods, setting)}
    chosen = [known[name] for name in str(settings.get(setting)).split("+") if name in known]
    given = settings.get("method_options") or {}
    options = [(f"{one.name}.of", info.default) for one in chosen for info in one.options if info.name == "of"]
    members = {name for option, default in options for name in names_in(str(given.get(option, default)))}
    return [*chosen, *(method for name, method in known.items() if name in members and method not in chosen)]


def methods_of(methods: list[MethodInfo], setting: str) -> list[MethodInfo]:
    return [method for method in methods if FAMILIES[setting] in method.family]


def _stepped_int(value: int, direction: int) -> int:
    """By ones while small, by ever larger round steps after."""
    reference = abs(value) if direction > 0 else abs(value) - 1
    step = next((step for limit, step in ((16, 1), (64, 4), (256, 16), (1024, 64)) if reference < limit), 256)
    if step == 1:
        return value + direction
    return (value // step + 1) * step if direction > 0 else (value - 1) // step * step
