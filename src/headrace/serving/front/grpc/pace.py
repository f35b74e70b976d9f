"""What one connection may cost all others: at a time, and for nothing.

*At a time.* Work is counted in frames, which take a few us each; what takes longer counts as more
(`worked`). Once `_TURN_FRAMES` are worked off, or `_TURN_ANSWERS` calls of one read are answered,
other connections have their turn, and nothing more is read until the rest was looked at.

*For nothing.* A frame that costs its sender nothing and us something is cheap: each that is neither
DATA nor HEADERS, an entry of SETTINGS, a DATA that is empty or nobody's. More than `_CHEAP_FRAMES`
between two sweeps end the connection. By WINDOW_UPDATE a client says that it took an answer, and
some say so for each frame, of the call and of the connection: one for every `_UPDATE_BYTES` that
were sent is not counted.
"""

from headrace.serving.front.grpc.frames import ENHANCE_YOUR_CALM, Http2Error

_TURN_FRAMES = 64
_TURN_ANSWERS = 8
_CHEAP_FRAMES = 10_000
_UPDATE_BYTES = 1 << 10


class Pace:
    """Of one connection."""

    __slots__ = ("_cheap", "_updated_bytes", "answered", "worked")

    def __init__(self) -> None:
        self.worked = 0
        """Since others had their turn, in frames."""
        self.answered = 0
        """Calls of this read that were answered, whether or not the peer takes the answers."""
        self._cheap = 0
        self._updated_bytes = 0
        """Of what was sent, for which there were updates."""

    @property
    def is_over(self) -> bool:
        """It is the others' turn."""
        return self.worked >= _TURN_FRAMES or self.answered >= _TURN_ANSWERS

    def forgive(self) -> None:
        """Some time has passed."""
        self._cheap = 0

    def count_cheap(self, count: int = 1) -> None:
        """
        Raises:
            Http2Error: there were too many.
        """
        self._cheap += count
        if self._cheap > _CHEAP_FRAMES:
            raise Http2Error(ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    def count_update(self, sent_bytes: int) -> None:
        """A WINDOW_UPDATE, when so many bytes of answers had been sent in all.

        Raises:
            Http2Error: there were too many for that.
        """
        if sent_bytes - self._updated_bytes >= _UPDATE_BYTES:
            self._updated_bytes += _UPDATE_BYTES
        else:
            self.count_cheap()
