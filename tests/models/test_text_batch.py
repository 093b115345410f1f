"""Texts read together say what each says alone."""

import pytest
import torch
from native_kit import native, needs_native
from test_decoder import FAMILIES, V, decoder, network

from specchat.decoding.teacher_forcing import read_after
from specchat.models.decoder.decoder import TextBatch


def texts(lengths):
    noise = torch.Generator().manual_seed(3)
    return [[int(t) for t in torch.randint(0, V, (length,), generator=noise)] for length in lengths]


def said_together(model, chunks):
    """What follows the last token of every text, whose chunks are read pass by pass with those of the others."""
    batch = TextBatch(model, len(chunks), 80)
    for turn in range(max(map(len, chunks))):
        said = batch.read({text: own[turn] for text, own in enumerate(chunks) if turn < len(own)})
        yield {text: row for row, text in enumerate(t for t, own in enumerate(chunks) if turn < len(own))}, said


CHUNKS = [[(0, 9), (9, 10), (10, 11)], [(0, 40), (40, 41)], [(0, 2), (2, 3), (3, 30)]]


def read_in_chunks(model):
    """Three texts, and the logits after the end of each where they are read together, piece by piece."""
    whole = texts([11, 41, 30])
    chunks = [[text[a:b] for a, b in spans] for text, spans in zip(whole, CHUNKS, strict=True)]
    ends = {}
    for rows, said in said_together(model, chunks):
        ends.update({text: said.logits[row] for text, row in rows.items()})
    return whole, ends


@needs_native
@pytest.mark.parametrize("family", ["llama, tied", "mistral, sliding window", "gemma3"])
def test_texts_read_together_get_the_bits_of_texts_read_alone(family):
    model = native(network(family))
    whole, ends = read_in_chunks(model)
    for text, tokens in enumerate(whole):
        assert torch.equal(ends[text], read_after(model, tokens))


@pytest.mark.parametrize("family", FAMILIES)
def test_torchs_layers_read_texts_together_too(family):
    model = decoder(network(family))
    whole, ends = read_in_chunks(model)
    for text, tokens in enumerate(whole):
        alone = read_after(model, tokens)
        torch.testing.assert_close(ends[text], alone, atol=1e-4 * float(alone.std()), rtol=0)


def test_a_text_can_be_rewound_and_another_read_in_its_place():
    model = decoder(network("llama"))
    one, other = texts([20, 20])
    batch = TextBatch(model, 2, 64)
    batch.read({0: one, 1: other})
    batch.rewind(1, 0)
    again = batch.read({1: one[:-1], 0: [7]})
    torch.testing.assert_close(again.logits[0], read_after(model, one[:-1]), atol=1e-3, rtol=1e-4)
