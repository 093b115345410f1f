"""What `specchat` gives at run time by `__getattr__`."""

from specchat.library import Message as Message
from specchat.library import Pair as Pair
from specchat.library import ReplyStream as ReplyStream
from specchat.library import RoundRecord as RoundRecord
from specchat.library import SpecchatError as SpecchatError
from specchat.library import load as load

__version__: str
