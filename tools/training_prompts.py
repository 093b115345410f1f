"""Writes prompts of many kinds for `specchat train --prompts FILE`, from texts that lie on every machine with Python.

    python tools/training_prompts.py prompts.jsonl [--count 20000] [--seed 0]

The texts are the language reference that comes with Python (PSF licence), and docstrings and functions of its standard
library and of numpy and torch (BSD licences). Each prompt is a task about a passage of them (summary, translation, a
question, a correction, a list, a rewriting), about a function, or a wish about a topic. The same count and seed write
the same file with the same versions of these packages. `train` leaves out what repeats a benchmark's question.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import pkgutil
import random
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc_data.topics import topics
from types import ModuleType

SHORTEST, LONGEST = 120, 900
"""Characters of a passage."""

MODULES = """
argparse asyncio base64 bisect calendar collections configparser csv dataclasses datetime decimal difflib email
fractions functools gzip hashlib heapq html http inspect ipaddress itertools json logging mailbox mimetypes
operator os pathlib pickle platform queue random re sched secrets shelve shutil socket sqlite3 statistics string
subprocess tarfile tempfile textwrap threading timeit tokenize traceback typing unittest urllib uuid warnings
wave weakref xml zipfile numpy numpy.linalg numpy.fft numpy.random torch torch.nn torch.optim
torch.nn.functional
"""

_WHOLE = ("email", "html", "http", "json", "logging", "unittest", "urllib")
"""Packages whose modules are looked into as well."""

LANGUAGES = ("French", "German", "Spanish", "Italian", "Portuguese")

ABOUT_PASSAGES = (
    "Summarise this text in two sentences.\n\n{passage}",
    "Summarise the following in one short paragraph for a beginner:\n\n{passage}",
    "Translate into {language}:\n\n{sentence}",
    "How do you say this in {language}? {sentence}",
    "{passage}\n\nTranslate the first sentence of this text into {language}.",
    "Read the text and answer the question.\n\nText: {passage}\n\nQuestion: What is this about?",
    "Using only this text, explain what {word} means here.\n\n{passage}",
    "{passage}\n\nWhich three points of this text are the most important? Answer as a list.",
    "Give this text a title:\n\n{passage}",
    "Rewrite this in simpler words:\n\n{sentence}",
    "Rewrite this as a list with short points:\n\n{passage}",
    "Write three questions that this text answers:\n\n{passage}",
    'Is the following true or false according to the text, and why? "{sentence}"\n\nText: {passage}',
    "Quote the sentence of this text that mentions {word}:\n\n{passage}",
    "Continue this text with one more paragraph:\n\n{passage}",
    "Turn this into a conversation between a teacher and a student:\n\n{passage}",
    "Correct the mistakes in this text: {mistyped}",
    "Extract all names of functions, classes and modules from this text as a JSON list:\n\n{passage}",
)

ABOUT_FUNCTIONS = (
    "Explain what this Python function does:\n\n```python\n{function}\n```",
    "Write a docstring for this function:\n\n```python\n{function}\n```",
    "Write three tests with pytest for this function:\n\n```python\n{function}\n```",
    "Are there mistakes in this function? Review it.\n\n```python\n{function}\n```",
    "Rewrite this function in JavaScript:\n\n```python\n{function}\n```",
    "Add type hints to this function and return all of it:\n\n```python\n{function}\n```",
    "Write a Python function called `{name}`. It is described like this: {described}",
)

WISHES = (
    "Write a short poem about {topic}.",
    "Write an email to a friend about {topic}.",
    "Tell me a story about {topic} in five sentences.",
    "Explain {topic} to a child of ten.",
    "What are the advantages and disadvantages of {topic}?",
    "Give me five facts about {topic}.",
    "Compare {topic} and {other}.",
    "Pretend that you are an expert on {topic}. A beginner asks you how to start. What do you say?",
    "Make a plan for a week in which I learn about {topic}.",
    "What is the history of {topic}?",
    "Write a dialogue between two people who disagree about {topic}.",
    "Which words would you use to describe {topic}? Give ten, with what each means.",
    "How would you teach {topic} to a class? Write an outline.",
    "I have to give a speech about {topic}. Write the beginning.",
    "Make a table with three columns about {topic} and {other}.",
    "What would change in the world without {topic}?",
)

TOPICS = """
bread, rivers, bicycles, the moon, music, trains, coffee, bees, winter, volcanoes, chess, sleep, bridges,
libraries, whales, glass, markets, memory, forests, clocks, photography, gravity, salt, dreams, cats, maps,
the printing press, friendship, money, tea, deserts, elections, vaccines, gardens, robots, football,
ancient Rome, the stock market, painting, rice, submarines, earthquakes, language, honesty, electric cars,
dinosaurs, theatre, batteries, cheese, museums, tides, the human heart, cooking for friends, running,
solar panels, public transport, handwriting, lighthouses, poetry, insects, cities, weather forecasts, noise,
mountains, medicine in the Middle Ages, working from home, numbers, pottery, satellites, fear, rainbows,
the Silk Road, algorithms, recycling, wine, horses, the sea, fashion, patience, mirrors, online shopping,
probability, coral reefs, jazz, islands, newspapers, kindness, comets, hospitals, logic
"""


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("file", type=Path)
    asked.add_argument("--count", type=int, default=20_000)
    asked.add_argument("--seed", type=int, default=0)
    chosen = asked.parse_args()
    drawn = random.Random(chosen.seed)
    passages, functions = list(all_passages()), list(all_functions())
    print(f"{len(passages)} passages, {len(functions)} functions", file=sys.stderr)
    prompts: dict[str, str] = {}
    for _ in range(20 * chosen.count):
        kind, prompt = one_prompt(drawn, passages, functions)
        prompts.setdefault(prompt, kind)
        if len(prompts) == chosen.count:
            break
    lines = (json.dumps({"kind": kind, "prompt": prompt}) for prompt, kind in prompts.items())
    chosen.file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def one_prompt(drawn: random.Random, passages: list[str], functions: list[Callable[..., object]]) -> tuple[str, str]:
    """A kind and a prompt of it: half are about passages, a quarter each about functions and topics."""
    kind = drawn.choice(("passage", "passage", "function", "wish"))
    if kind == "wish":
        topic, other = drawn.sample([each.strip() for each in TOPICS.split(",")], 2)
        return kind, drawn.choice(WISHES).format(topic=topic, other=other)
    if kind == "function":
        function = drawn.choice(functions)
        described = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
        source = textwrap.dedent(inspect.getsource(function)).rstrip()
        return kind, drawn.choice(ABOUT_FUNCTIONS).format(function=source, name=function.__name__, described=described)
    passage = drawn.choice(passages)
    sentences = [one for one in re.split(r"(?<=[.!?])\s+", passage) if 30 <= len(one) <= 240] or [passage[:200]]
    words = re.findall(r"[A-Za-z_]{5,}", passage) or ["it"]
    sentence = drawn.choice(sentences)
    return kind, drawn.choice(ABOUT_PASSAGES).format(
        passage=passage,
        sentence=sentence,
        word=f"“{drawn.choice(words)}”",
        language=drawn.choice(LANGUAGES),
        mistyped=mistyped(drawn, sentence),
    )


def mistyped(drawn: random.Random, text: str) -> str:
    """The text with some neighbouring letters exchanged."""
    letters = list(text)
    for at in range(1, len(letters) - 1):
        if letters[at].isalpha() and letters[at + 1].isalpha() and drawn.random() < 0.06:
            letters[at], letters[at + 1] = letters[at + 1], letters[at]
    return "".join(letters)


def all_passages() -> Iterator[str]:
    """Paragraphs of prose: of the language reference, and of docstrings."""
    for _, text in sorted(topics.items()):
        yield from prose(text)
    for function in documented():
        yield from prose(inspect.getdoc(function) or "")


def prose(text: str) -> Iterator[str]:
    """Its paragraphs, joined to a usual length; code and lists of options are left out."""
    held = ""
    for paragraph in re.split(r"\n\s*\n", text):
        joined = " ".join(paragraph.split()).replace("“", '"').replace("”", '"')
        if paragraph.startswith("   ") or ">>>" in joined or not re.match(r"[A-Z].*[.:]$", joined):
            continue
        held = f"{held} {joined}".strip()
        if len(held) >= SHORTEST:
            if len(held) <= LONGEST:
                yield held
            held = ""


def all_functions() -> Iterator[Callable[..., object]]:
    """Documented functions of a length that can be shown."""
    for function in documented():
        try:
            source = inspect.getsource(function)
        except (OSError, TypeError):
            continue
        if 4 <= source.count("\n") <= 24:
            yield function


def documented() -> Iterator[Callable[..., object]]:
    """Functions of the modules, in the order of their names, each once."""
    seen: set[int] = set()
    for name in MODULES.split():
        module = importlib.import_module(name)
        parts = [module, *(submodules(module) if name in _WHOLE else [])]
        for owner in [owner for part in parts for owner in (part, *filter(inspect.isclass, members(part)))]:
            for function in filter(inspect.isfunction, members(owner)):
                if function.__doc__ and id(function) not in seen:
                    seen.add(id(function))
                    yield function


def members(owner: object) -> list[object]:
    """What a module or a class holds, in the order of the names."""
    return [member for _, member in sorted(vars(owner).items())]


def submodules(package: ModuleType) -> Iterator[ModuleType]:
    """The modules of a package that can be imported here."""
    for found in pkgutil.iter_modules(package.__path__):
        if not found.name.startswith("__"):
            yield importlib.import_module(f"{package.__name__}.{found.name}")


if __name__ == "__main__":
    main()
