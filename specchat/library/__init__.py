"""The library: load a pair, stream replies, and read their rounds as the records that the engine sends.

The engine is a process of its own unless `process=False`; only then, and for `check`, this process imports torch.
"""

from specchat.engine.protocol.commands import Message
from specchat.errors import SpecchatError
from specchat.library.pair import Pair, load
from specchat.library.reply_stream import ReplyStream, RoundRecord

__all__ = ["Message", "Pair", "ReplyStream", "RoundRecord", "SpecchatError", "load"]
