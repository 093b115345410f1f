"""What tests of the layers in C share: whether there are any, and a small model in them."""

import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from test_decoder import source_of

from specchat.compiled.build import NativeUnavailable
from specchat.models.cpu_kernels import kernels
from specchat.models.cpu_kernels.network import NativeNetwork
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.shape import Shape
from specchat.models.weights.gguf_source import StoredTensor
from specchat.models.weights.weight_source import StoredRows, TensorSource


def have(processor="native"):
    try:
        kernels.kernels_for(processor)
    except NativeUnavailable as error:
        return str(error)
    return ""


needs_native = pytest.mark.skipif(bool(have()), reason=have() or "-")


def native(net, precision="int8", context_tokens=512, processor="native", source=None):
    source = source or source_of(net)
    return Decoder(NativeNetwork(Shape.of(net.config), source, precision, processor), context_tokens)


class FourBitSource(TensorSource):
    """The weights of a small Llama, rounded to 4 bits, with minima in every second layer."""

    def stored(self, name, layer=None):
        if name in ("embed", "head"):
            return super().stored(name, layer)
        tensor = self._rounded(name, layer)
        return StoredRows(int(tensor.kind), tensor.data, tensor.shape[1])

    def dequantised(self):
        """A state with the numbers that 4 bits leave."""
        state = dict(self._tensors)
        for layer in range(3):
            for ours in ("q", "k", "v", "o", "gate", "up", "down"):
                state[self._name(ours, layer, "weight")] = self._rounded(ours, layer).dense()
        return state

    def _rounded(self, name, layer):
        weight = self.dense(name, layer)
        kind = GGMLQuantizationType.Q4_0 if layer % 2 else GGMLQuantizationType.Q4_1
        return StoredTensor(weight.shape, kind, quantize(weight.numpy(), kind))
