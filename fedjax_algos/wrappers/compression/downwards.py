"""Encodes broadcasts: lossily each time, or as the change of the vectors that clients hold.

Clients start from the decoded vectors, so their updates are differences to these. The server keeps
the exact params, and they are evaluated. With v of the broadcast and v^ at the clients, "ef21"
sends `c = C(v - v^)`, and then `v^ += c` (EF21-P). In the first round v^ is v itself.
"""

from typing import Literal

from fedjax_algos.base.errors import require
from fedjax_algos.core import Algorithm
from fedjax_algos.wrappers.compose import add
from fedjax_algos.wrappers.compression.codec import unchanged
from fedjax_algos.wrappers.compression.coding import Coding
from fedjax_algos.wrappers.compression.feedback import Feedback, check_codec, contractive
from fedjax_algos.wrappers.stages import Down

CatchUp = Literal["sum", "full"]


def encode_broadcasts(
    name: str, algorithm: Algorithm, coding: Coding, feedback: Feedback, catch_up: CatchUp
) -> Algorithm:
    """Makes the server send encoded vectors; see `compress`."""
    what, fix = f"{name}: direction=down with feedback={feedback}", "give feedback=ef21 or none"
    by_clients = feedback in ("ef", "diana")
    require(not by_clients, f"{what} does not fit: it is a rule of clients; {fix}")
    if feedback == "none":
        down = Down(name, coding.encode, coding.decode)
        return algorithm if coding.codec is unchanged else add(name, algorithm, down=down)
    check_codec(what, coding.codec, feedback)
    coding = coding._replace(codec=contractive(coding.codec))
    down = Down(name, coding.encode, coding.decode, held=True, catch_up=catch_up)
    return add(what, algorithm, down=down, needs=["one exchange"], fix="give feedback=none")
