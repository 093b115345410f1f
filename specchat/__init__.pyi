"""What `specchat` gives at run time by `__getattr__`."""

from specchat.engine.protocol.commands import Message as Message
from specchat.errors import SpecchatError as SpecchatError
from specchat.library import Pair as Pair
from specchat.library import ReplyStream as ReplyStream
from specchat.library import RoundRecord as RoundRecord
from specchat.library import load as load

__version__: str
