"""What models have read of texts is kept and comes back with the same bits, or not at all."""

from __future__ import annotations

import logging
import zlib
from types import SimpleNamespace

import pytest
import torch
from contracts.kit import collect, converse
from contracts.models import V, native_decoder, own_decoder, shared_network, tiny_network
from native_kit import needs_native

from specchat.config.prompt_files import PromptFiles
from specchat.core.states import HiddenStateSink
from specchat.core.tree import TokenTree
from specchat.decoding.state_feed import StateFeed
from specchat.models.backends.transformers_model import ReferenceModel
from specchat.models.decoder.prompt_cache import (
    BLOCK_TOKENS,
    KeptText,
    KeptTexts,
    PromptCache,
    restored,
    rounded,
    rounded_bytes,
)

ROOM = 64 << 20
GEMMA = "gemma3_text"  # some of its layers see a window of the text alone
MAKERS = {"eager": own_decoder, "native": native_decoder}
every_kernel = pytest.mark.parametrize("kernels", ["eager", pytest.param("native", marks=needs_native)])


def text(seed, count=200):
    return torch.randint(V, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def model(kernels="eager", cache=None, family="llama", name="tiny"):
    made = MAKERS[kernels](shared_network(family), 1024)
    if cache is not None:
        assert made.keep_texts_in(KeptTexts(cache, name))
    return made


def said(made, tokens):
    """What follows a text, and how many rows were read for it."""
    before = made.counters.rows
    made.prefill(tokens)
    reading = made.read(TokenTree(tokens[0], V).freeze())
    made.keep([])
    return reading.logits[0].clone(), made.counters.rows - before


def save(made, files, owner="chat"):
    made.kept.cache.files = files
    assert made.kept.cache.save(owner, [made.kept_text()], lambda: False)


def same(kernels, one, other):
    return torch.equal(one, other) if kernels == "native" else torch.allclose(one, other, atol=1e-5)


@every_kernel
@pytest.mark.parametrize("family", ["llama", GEMMA])
def test_two_texts_by_turns_are_read_once(kernels, family):
    made = model(kernels, PromptCache(ROOM), family)
    shared = text(0, 70)
    texts = [shared + text(1), shared + text(2), text(3)]
    for turn in range(3):
        for tokens in texts:
            tokens += text(turn + 10, 5)
            logits, rows = said(made, tokens)
            assert same(kernels, logits, said(model(kernels, family=family), tokens)[0])
            assert turn == 0 or rows <= 7, "only what is new is read"


@every_kernel
def test_a_text_comes_back_from_wherever_another_one_parts_from_it(kernels):
    made, tokens = model(kernels, PromptCache(ROOM)), text(1)
    wanted = said(model(kernels), tokens)[0]
    for cut in (0, 1, 47, 48, 49, 63, 64, 65, 112, 120, 127, 128, 140, 185, 191, 192, 199):
        said(made, tokens)
        said(made, tokens[:cut] + text(cut + 2, 90))
        logits, rows = said(made, tokens)
        assert made.rows.prefix[:200] == tokens
        assert same(kernels, logits, wanted), cut
        assert rows <= 18


def test_a_text_that_goes_on_where_another_one_was_cut_is_not_mistaken_for_it():
    made = model(cache=PromptCache(ROOM))
    first = text(1, 100)
    said(made, first)
    said(made, text(2))
    other = [*first[:-1], (first[-1] + 1) % V]
    assert torch.allclose(said(made, other + first)[0], said(model(), other + first)[0], atol=1e-5)


@every_kernel
def test_another_process_goes_on_from_the_disk(tmp_path, kernels):
    files, tokens = PromptFiles(tmp_path / "prompts", ROOM), text(1)
    first = model(kernels, PromptCache(0))
    said(first, tokens)
    save(first, files)
    logits, rows = said(model(kernels, PromptCache(0, files)), [*tokens, 5])
    assert rows <= len(tokens) % BLOCK_TOKENS + 4
    assert same(kernels, logits, said(model(kernels), [*tokens, 5])[0])
    for name in ("other weights", "tiny "):
        assert said(model(kernels, PromptCache(0, files), name=name), tokens)[1] > len(tokens), "nothing of it is used"
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in tmp_path.glob("prompts/*/*"))


@every_kernel
def test_what_does_not_come_out_again_is_read_anew(tmp_path, kernels, caplog):
    """Blocks that are whole, and hold what other weights computed."""
    files, tokens = PromptFiles(tmp_path / "prompts", ROOM), text(1)
    stranger = MAKERS[kernels](tiny_network("llama", seed=5), 1024)
    stranger.keep_texts_in(KeptTexts(PromptCache(0), "tiny"))
    said(stranger, tokens)
    save(stranger, files)
    with caplog.at_level(logging.WARNING):
        made = model(kernels, PromptCache(0, files))
        logits, rows = said(made, tokens)
    assert same(kernels, logits, said(model(kernels), tokens)[0])
    assert rows >= len(tokens)
    assert len(caplog.records) == 1
    assert not list(tmp_path.glob("prompts/blocks/*"))


def test_rows_that_were_never_read_are_not_kept():
    made = model(cache=PromptCache(ROOM))
    tokens = text(1)
    said(made, tokens)
    made.fill_for_benchmark(300)
    assert made.kept_text() is None
    logits, rows = said(made, tokens)
    assert rows <= 2, "what was held before came back"
    assert torch.allclose(logits, said(model(), tokens)[0], atol=1e-5)


def test_memory_is_bounded_and_the_ends_of_texts_go_first():
    made = model(cache=PromptCache(0))
    block = made.cache.block_bytes(BLOCK_TOKENS, made.network.like)
    made.kept.cache.most_bytes = 4 * block
    texts = [text(seed, 3 * BLOCK_TOKENS) for seed in range(5)]
    for turn in range(20):
        said(made, texts[turn % 5])
        assert made.kept.cache.held_bytes <= 4 * block
    said(made, texts[0])
    said(made, text(9, 2 * BLOCK_TOKENS))
    found = list(made.kept.load(texts[0], 0, block))
    assert [(one.first, one.end) for one in found] == [(0, 64), (64, 128), (128, 192)]
    said(made, texts[1])
    assert 0 < len(list(made.kept.load(texts[0], 0, block))) < 3, "its beginning stays"


def test_models_that_cannot_keep_rows_say_so():
    reference = ReferenceModel(shared_network("llama"), 512)
    assert not reference.keep_texts_in(KeptTexts(PromptCache(ROOM), "tiny"))
    assert reference.kept_text() is None
    view = model(cache=PromptCache(ROOM)).with_new_cache()
    assert view.kept is None


@every_kernel
@pytest.mark.parametrize("drafter", ["hydra", "eagle", "draft_model"])
def test_replies_are_the_same_and_what_was_read_is_not_read_again(tmp_path, kernels, drafter):
    """With a draft model, and with networks that need the target's states of the whole text."""
    files = PromptFiles(tmp_path / "prompts", ROOM)
    settings = {"drafter": drafter, "max_tokens": 12, "temperature": 0.8, "seed": 3}
    shared = text(0, 24)  # no whole block, as is the beginning of most chats
    texts = [shared + text(1, 176), shared + text(2, 176)]

    def pair(cache=None):
        draft = model(kernels, cache, name="draft") if drafter == "draft_model" else None
        return converse(model(kernels, cache), draft, **settings)

    plain = [collect(pair().reply(tokens, 7)).tokens for tokens in texts]
    chat = pair(PromptCache(ROOM, files))
    for turn in range(2):
        for number, tokens in enumerate(texts):
            got = collect(chat.reply(tokens, 7))
            assert got.tokens == plain[number]
            assert turn == 0 or got.begun.reused_tokens >= len(tokens) - 1 - BLOCK_TOKENS
            if turn == 0:
                assert chat.target.kept.cache.save("chat", chat.kept_texts(), lambda: False)
    again = pair(PromptCache(ROOM, files))
    got = collect(again.reply(texts[1], 7))
    assert got.tokens == plain[1]
    assert got.begun.reused_tokens == 192 - (drafter == "hydra"), "which skips all states but the last"
    if drafter == "draft_model":
        assert again._draft.counters.rows < 120


@every_kernel
def test_states_that_a_drafter_was_given_come_back_as_they_were(tmp_path, kernels):
    """By turns with a text that parts from it within a block, from memory, and in another process from the disk."""
    files = PromptFiles(tmp_path / "prompts", ROOM)
    tokens = text(1)
    texts = [tokens, tokens[:100] + text(2, 100)]

    def opened(cache):
        target, taken = model(kernels, cache), {}

        def take(states):
            assert sorted(states.layers) == [1, 2]
            for row, position in enumerate(range(states.first, states.end)):
                taken[position] = torch.stack([states.layers[layer][row] for layer in (1, 2)])

        feed = StateFeed(SimpleNamespace(hidden_state_sink=HiddenStateSink(frozenset({1, 2}), take)))
        feed.keep_states_in(target.kept)
        return target, feed, taken

    def given(target, feed, taken, tokens):
        taken.clear()
        before = target.counters.rows
        feed.recall(target, tokens)
        feed.read(target, tokens)
        return dict(taken), target.counters.rows - before

    wanted = [given(*opened(None), tokens)[0] for tokens in texts]
    assert all(sorted(states) == list(range(200)) for states in wanted)

    def check(got, number):
        assert all(same(kernels, states, wanted[number][position]) for position, states in got.items())
        assert max(got) >= 191, "only a few tokens may be put off"

    chat = opened(PromptCache(ROOM))
    for turn in range(3):
        for number, tokens in enumerate(texts):
            states, rows = given(*chat, tokens)
            check(states, number)
            assert turn == 0 or rows <= 200 % BLOCK_TOKENS + 4, "the states of whole blocks are kept"
    chat[0].kept.cache.files = files
    kept = [chat[0].kept_text(), KeptText(texts[1], lambda: chat[1].kept)]
    assert chat[0].kept.cache.save("chat", kept, lambda: False)
    states, rows = given(*opened(PromptCache(0, files)), texts[1])
    check(states, 1)
    assert sorted(states)[:192] == list(range(192))
    assert rows <= 200 % BLOCK_TOKENS + 4


def test_any_byte_of_a_file_may_be_wrong(tmp_path, caplog):
    """Every kind of damage costs a line in the log, and the text is read anew."""
    files, tokens = PromptFiles(tmp_path / "prompts", ROOM), text(1, 70)
    first = model(cache=PromptCache(0))
    wanted = said(first, tokens)[0]
    save(first, files)
    [block] = tmp_path.glob("prompts/blocks/*")
    whole = block.read_bytes()
    random = torch.Generator().manual_seed(1)

    def place(most):
        return int(torch.randint(most, (1,), generator=random))

    def flipped(at):
        return whole[:at] + bytes([whole[at] ^ (1 << place(8))]) + whole[at + 1 :]

    header = len(whole) - first.cache.block_bytes(BLOCK_TOKENS, first.network.like)
    other = bytearray(whole[header:])
    other[place(len(other))] ^= 255
    damaged = [
        *(flipped(at) for at in range(header)),
        *(flipped(header + place(len(whole) - header)) for _ in range(40)),
        *(whole[: place(len(whole))] for _ in range(20)),
        b"",
        whole + b"\0",
        whole * 3,
        whole[:header],
        whole[: header - 4] + zlib.crc32(bytes(other)).to_bytes(4, "little") + whole[header:],
    ]
    for data in damaged:
        block.write_bytes(data)
        caplog.clear()
        made = model(cache=PromptCache(0, files))
        made.recall(tokens)
        assert made.rows.prefix == [], "nothing of it is used"
        assert len(caplog.records) == 1
        assert not block.exists()
    assert torch.allclose(said(made, tokens)[0], wanted, atol=1e-5)


@every_kernel
def test_what_was_rounded_is_told_apart_from_what_was_read(kernels, tmp_path):
    """Rows that follow from rounded ones are lossy, in memory too; what is read anew is not."""

    def eight(cache):
        made = MAKERS[kernels](shared_network("llama"), 1024)
        made.keep_texts_in(KeptTexts(cache, "tiny", eight_bits=True))
        return made

    tokens, other = text(1), text(2)
    files = PromptFiles(tmp_path / "prompts", ROOM)
    exact, first = model(kernels, PromptCache(ROOM)), eight(PromptCache(ROOM))
    wanted = said(exact, tokens)[0]
    assert same(kernels, said(first, tokens)[0], wanted)
    assert not first.is_lossy(tokens)
    save(first, files)
    small = sum(file.stat().st_size for file in (tmp_path / "prompts/blocks").iterdir())
    save(exact, files)
    whole = sum(file.stat().st_size for file in (tmp_path / "prompts/blocks").iterdir()) - small
    assert small < {"eager": 0.29, "native": 0.55}[kernels] * whole, "32 or 16 bits before"
    again = eight(PromptCache(ROOM, files))
    logits, rows = said(again, tokens)
    assert rows <= 18
    assert again.is_lossy(tokens)
    assert not torch.equal(logits, wanted)
    assert (logits - wanted).abs().max() < 0.05 * wanted.abs().max()
    said(again, other)
    assert not again.is_lossy(other)
    said(again, tokens)
    assert again.is_lossy(tokens), "it came back from memory"
    said(again, tokens[:3] + other)
    assert again.is_lossy(tokens[:3] + other), "three rows of it stayed"
    said(again, text(3))
    assert not again.is_lossy(text(3))
    said(again, tokens)
    again.keep_texts_in(KeptTexts(again.kept.cache, "tiny"))
    logits, rows = said(again, tokens)
    assert not again.is_lossy(tokens)
    assert same(kernels, logits, wanted), "exact blocks are taken alone"
    rounded_alone = eight(PromptCache(ROOM, files))
    said(rounded_alone, tokens)
    files.erase(["chat"])
    said(rounded_alone, other)
    assert said(rounded_alone, tokens)[1] <= 18
    assert rounded_alone.is_lossy(tokens), "it came back from memory alone"


def test_rounded_numbers_are_near_and_of_a_known_size():
    for seed, dtype in enumerate([torch.float32, torch.bfloat16, torch.float16] * 7):
        numbers = torch.randn(40, 64, generator=torch.Generator().manual_seed(seed)) * 10.0 ** (seed % 5 - 2)
        numbers[seed % 40] = 0.0
        content = numbers.to(dtype).view(-1).view(torch.uint8)
        stored = rounded(content, dtype)
        assert len(stored) == rounded_bytes(len(content), dtype)
        back = restored(stored, dtype).view(dtype).float().view(40, 64)
        step = numbers.abs().amax(dim=1, keepdim=True) / 127
        assert ((back - numbers).abs() <= 0.5 * step + 2.0**-7 * numbers.abs() + 1e-30).all()
        damaged = stored.clone()
        damaged[seed * 7 % len(damaged)] ^= 255
        assert len(restored(damaged, dtype)) == len(content), "any bytes are numbers"
