"""The fronts that there are: one row each."""

from headrace.serving.front.base import MakeFront
from headrace.serving.front.http_front import HttpFront

FRONTS: dict[str, MakeFront] = {"http": HttpFront}
