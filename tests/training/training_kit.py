"""A tiny target, its vocabulary of words, and texts of its own, made in memory."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
import transformers

from specchat.acceptance.follow import Follow
from specchat.controllers.fixed import Off
from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.sampling import Sampling
from specchat.decoding.speculate import Speculator
from specchat.drafters.nothing import Nothing
from specchat.drafters.parts import Parts
from specchat.models import draft_heads
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.eager import EagerNetwork
from specchat.models.decoder.layer_weights import Builder
from specchat.models.decoder.shape import Shape
from specchat.models.decoder.weight_check import prepared
from specchat.models.weights import families
from specchat.models.weights.weight_source import TensorSource
from specchat.registry import NoOptions
from specchat.training.job import Subject
from specchat.training.texts import TrainingText
from specchat.trees.given_shapes import Chain

V = 64
END, USER, REPLY = 0, 1, 2
CHECKSUM = "ab" * 32
SOURCES, NETWORKS = WeakKeyDictionary(), WeakKeyDictionary()


class Words:
    """Every token from 3 on is a word of its own; a turn is `USER words REPLY`."""

    size = V
    eos_ids = frozenset({END})

    def token_bytes(self, token):
        return b"" if token < 3 else f" w{token}".encode()

    token_spelling = token_bytes

    def encode_chat(self, messages):
        [message] = messages
        return [USER, *(self.word(word) for word in message["content"].split()), REPLY]

    def encode_text(self, text):
        return [self.word(word) for word in text.split()]

    def word(self, word):
        return int(word[1:]) if word[1:].isdigit() else 3 + sum(word.encode()) % (V - 3)


def target(seed=0, spread=0.25, forgetful=False):
    """A random network; the wider its weights are spread, the surer it is. A forgetful one hardly attends to the text,
    so that each token follows from the one before: that can be learnt from a few texts."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=V, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, pad_token_id=None,
    )  # fmt: skip
    net = transformers.AutoModelForCausalLM.from_config(config).eval().float()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.01 if forgetful and "o_proj" in name else spread)
        net.lm_head.weight[END] = 0.0  # replies seldom end by themselves
    source = TensorSource(net.state_dict(), families.FAMILIES["llama"])
    weights = Builder(Shape.of(config), source, "float32", torch.device("cpu")).build()
    made = Decoder(EagerNetwork(weights), 1024)
    SOURCES[made], NETWORKS[made] = source, net
    return made


def weights_of(model):
    """The weights of a target that was made here, prepared for a decoder."""
    return prepared(SOURCES[model], model.network.shape)


def subject(model=None, checksum=CHECKSUM):
    model = model or target()
    return Subject("tiny", checksum, "Apache-2.0", model, Words(), Sampling(), lambda: weights_of(model))


def some_texts(count, reply=12):
    """Texts that need not be the target's own."""
    noise = torch.Generator().manual_seed(5)
    draw = lambda n: [int(t) for t in torch.randint(3, V, (n,), generator=noise)]  # noqa: E731
    return [TrainingText(index, [USER, *draw(4 + index % 3), REPLY], draw(reply), True) for index in range(count)]


@torch.no_grad()
def own_texts(model, count=60, reply=24):
    """Texts that the target writes, each token the likeliest, all at once."""
    prompts = [[USER, 3 + index % 7, 3 + index // 7, 9, REPLY] for index in range(count)]
    tokens = torch.tensor(prompts)
    for _ in range(reply):
        tokens = torch.cat([tokens, NETWORKS[model](tokens).logits[:, -1:].argmax(2)], dim=1)
    written = [row[len(prompts[0]) :] for row in tokens.tolist()]
    ended = [words[: words.index(END) + 1] if END in words else words for words in written]
    return [TrainingText(index, prompts[index], ended[index], True) for index in range(count)]


def recipe(method):
    """How a family is trained."""
    return draft_heads.FAMILIES[method].load().recipe


def unroll(network, features, tokens, steps):
    """(B, S − steps, H) logits for each step, from (B, S, taps, d) states of the target; see `DraftNetwork.states`."""
    return [network.logits(states) for states in network.states(network.fused(features), tokens, steps)]


def plainly(model, prompt, sampling, noise, count):
    """What plain decoding writes behind these tokens."""
    none = NoOptions()
    plain = Speculator(model, Nothing(none, Parts(model)), Chain(none), Follow(none), Off(none, Budget(nodes=0)))
    context = Context(list(prompt), len(prompt), V, sampling, noise)
    plain.start(context.history)
    while len(context.history) < len(prompt) + count and context.history[-1] != END:
        plain.round(context)
    return context.history[len(prompt) :]
