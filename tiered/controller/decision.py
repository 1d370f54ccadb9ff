"""A decision of the controller: the value that `decide` returns for one request.

`decide` judges a request against the image and returns changes; it changes nothing itself. `apply` takes changes that
are committed, or that will be applied again from the log if their commit fails.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from tiered.metadata.changes import Change
from tiered.metadata.image import Image
from tiered.value import value

Reply = TypeVar("Reply")


@value
class ControllerResult(Generic[Reply]):
    """The changes to append, in order, and the reply to send once they are committed.

    The reply of a decision without changes needs no commit of its own, and leaves after those of all earlier decisions.
    `after` is the image after the changes, if the reply is made from it: to apply ten thousand changes takes tens of
    milliseconds.
    """

    changes: tuple[Change, ...]
    reply: Reply
    after: Image | None = None
