"""What tests of the layers in C share: whether there are any, and a small model in them."""

import pytest
from test_decoder import source_of

from specchat.compiled.build import NativeUnavailable
from specchat.models.base.shape import Shape
from specchat.models.native import kernels
from specchat.models.native.network import NativeNetwork
from specchat.models.own.decoder import Decoder


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
