"""What comes with a model gets so much memory and processor time, and no more."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import textwrap

import pytest
from tokenizers import Regex, pre_tokenizers
from transformers import AutoTokenizer

from specchat.decoding.vocabulary import TransformersVocabulary
from specchat.errors import ModelError, WeightsError
from specchat.models.weights.foreign_code import bounded
from specchat.models.weights.tokenizer_files import open_tokenizer, refuse_growth
from tests.tiny_models import tokenizer, write_tokenizer

THOUSANDFOLD = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
GROWS_BY_1000 = r"makes text up to 1,000,000 times as long, by 'Replace' above all; at most 1,000 times"


def in_file(folder, **parts):
    """A tokenizer.json with these parts."""
    write_tokenizer(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer() | parts))
    return folder


def sequence(*parts):
    return {"type": "Sequence", "normalizers": list(parts)}


def charsmap(*texts):
    """SentencePiece's table of replacements, with an empty trie."""
    return base64.b64encode(bytes(4) + b"".join(text.encode() + b"\0" for text in texts)).decode()


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"normalizer": sequence(THOUSANDFOLD, THOUSANDFOLD)}, f"normalizer {GROWS_BY_1000}"),
        ({"normalizer": sequence(THOUSANDFOLD, sequence(THOUSANDFOLD))}, f"normalizer {GROWS_BY_1000}"),
        ({"normalizer": {"type": "Prepend", "prepend": "b" * 1000}}, "normalizer makes text up to 1,001 times"),
        (
            {"normalizer": {"type": "Replace", "pattern": {"Regex": ""}, "content": "b" * 1000}},
            "normalizer makes text up to 1,001 times",
        ),
        (
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap("b", "c" * 2000)}},
            "normalizer makes text up to 2,000 times as long, by 'Precompiled'",
        ),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}] * 20}},
            "pre_tokenizer makes text up to 1,048,576 times as long, by 'ByteLevel'",
        ),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits"}] * 65}},
            "pre_tokenizer has 65 parts; at most 64",
        ),
        (
            {"post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}] * 1001}},
            "post_processor makes text up to 1,001 times as long, by 'TemplateProcessing'",
        ),
        (
            {
                "normalizer": {"type": "Prepend", "prepend": "b" * 99},
                "post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}] * 100},
            },
            "its parts together make text up to [0-9,]+ times as long; at most 1,000 times",
        ),
    ],
    ids=["replace", "nested", "prepend", "nowhere", "table", "bytes", "parts", "template", "together"],
)
def test_a_tokenizer_that_makes_text_far_longer_is_refused_by_file_and_part(tmp_path, parts, says):
    folder = in_file(tmp_path, **parts)
    with pytest.raises(WeightsError, match=f"^{folder}/tokenizer.json: {says}"):
        open_tokenizer(folder)


def test_a_tokenizer_that_is_not_utf8_is_refused_by_its_file(tmp_path):
    folder = in_file(tmp_path, normalizer={"type": "Prepend", "prepend": "cafe"})
    said = (folder / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").write_bytes(said.replace(b"cafe", b"caf\xe9"))
    with pytest.raises(WeightsError, match=f"^{folder}/tokenizer.json cannot be read: .*(?i:utf-8)"):
        refuse_growth(folder / "tokenizer.json")


@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "Prepend", "prepend": "▁"},
        sequence({"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
        sequence(*[{"type": "Replace", "pattern": {"String": "``"}, "content": '"'}] * 20, {"type": "NFKC"}),
    ],
    ids=["one", "two", "many"],
)
def test_what_published_tokenizers_do_is_let_through(tmp_path, normalizer):
    folder = in_file(tmp_path, normalizer=normalizer)
    refuse_growth(folder / "tokenizer.json")
    assert open_tokenizer(folder).encode("hello")


def test_names_of_added_tokens_do_not_grow_while_a_tokenizer_is_loaded(tmp_path):
    """Otherwise loading takes all memory, before a text is read."""
    added = [{**token, "normalized": True, "content": "aaaa"} for token in tokenizer()["added_tokens"][:1]]
    folder = in_file(tmp_path, normalizer=sequence(*[THOUSANDFOLD] * 4), added_tokens=added)
    with pytest.raises(WeightsError, match="1,000,000,000,000 times"):
        open_tokenizer(folder)


def test_a_pattern_that_the_library_gives_up_on_is_told_in_one_line(tmp_path):
    write_tokenizer(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    loaded.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    vocabulary = TransformersVocabulary(loaded, frozenset({0}))
    for text in ("a" * 30 + "b", "a" * 60 + "b"):
        for encode in (vocabulary.encode, vocabulary.encode_text):
            with pytest.raises(
                ModelError, match=r"^this model's tokenizer cannot read a text: [^\n]*retry-limit[^\n]*$"
            ):
                encode(text)


def ended(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = textwrap.dedent(program)
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_one_operation_that_holds_pythons_lock_is_ended_with_the_process(preloaded):
    done = ended(
        """
        from specchat.models.weights.foreign_code import bounded
        print("begins", flush=True)
        with bounded(cpu_s=0.2):
            10 ** (10**8)
        print("goes on")
        """
    )
    assert (done.stdout, done.returncode) == ("begins\n", -signal.SIGPROF)


def test_a_library_that_asks_for_more_memory_ends_the_process_with_a_line(preloaded, tmp_path):
    write_tokenizer(tmp_path)
    done = ended(
        """
        import sys
        from tokenizers import normalizers
        from transformers import AutoTokenizer
        from specchat.decoding import vocabulary
        loaded = AutoTokenizer.from_pretrained(sys.argv[1])
        loaded.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Replace("a", "a" * 1000)] * 3)
        print("begins", flush=True)
        vocabulary.TransformersVocabulary(loaded, frozenset({0})).encode("a")
        """,
        str(tmp_path),
    )
    assert (done.stdout, done.returncode) == ("begins\n", -signal.SIGABRT)
    assert "memory allocation of" in done.stderr


def test_bounds_within_bounds_leave_the_narrower_ones():
    with bounded(more_bytes=1 << 29), bounded(more_bytes=1 << 33), pytest.raises(MemoryError):
        bytearray(1 << 30)
