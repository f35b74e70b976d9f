"""From layers of a profile to the start that a plan states, and what each of its choices saves."""

from headrace.domain.errors import ProfileError
from headrace.domain.layers import Layer, LayerTimes, Residency, Transfer
from headrace.domain.profile import Profile
from headrace.planning.provisioning.planners import NEED_HELPER, StartPlanned, plan_start
from headrace.starts import HELPER, HOST, Choice, chain_of, choice_of, timeline, transfers


def plan_residency(profile: Profile, times: LayerTimes, planner: str) -> Residency:
    """
    Raises:
        DocumentError: no such planner.
        ProfileError: it loads over a second device, and the profile has no figures for one.
    """
    if planner in NEED_HELPER and not times.forward_us:
        raise ProfileError(
            f"profile {profile.model!r}: planner {planner!r} copies over a second device, and"
            f" {times.device!r} has no forward_us\n  try    a planner without +pt, or a profile of"
            " two linked devices"
        )
    return stated(profile.layers, times, plan_start(planner, chain_of(times)), planner)


def stated(
    layers: tuple[Layer, ...], times: LayerTimes, start: StartPlanned, planner: str
) -> Residency:
    """What a plan says of a start."""
    choice = start.choice

    def with_opening(layers_us: int) -> int:
        return max(times.open_p99_us + layers_us, times.start_p99_us)

    host = tuple(
        i for i, layer in enumerate(layers) if layer.weights_bytes and choice.source[i] == HOST
    )
    return Residency(
        planner=planner,
        device=times.device,
        share=times.share,
        batch_size=times.batch_size,
        host=host,
        transfers=tuple(
            Transfer(layers=tuple(group), helper=choice.source[group[0]] == HELPER)
            for group in transfers(choice)
        ),
        waits_for_all=start.waits_for_all,
        host_bytes=sum(layers[i].weights_bytes for i in host),
        start_us=with_opening(start.total_us),
        bound_us=None if start.bound_us is None else with_opening(start.bound_us),
    )


def saved_by_host(times: LayerTimes, residency: Residency) -> dict[int, int]:
    """Layer left on the host -> how much later the start would be, were it a copy of its own."""
    chain = chain_of(times)
    choice = choice_of(residency, chain.count)
    source, joined = choice.source, choice.joined
    now = timeline(chain, choice)
    found = {}
    for layer in residency.host:
        helper = any(group.helper and group.layers[0] < layer for group in residency.transfers)
        other = Choice(
            source=(*source[:layer], HELPER if helper else 1, *source[layer + 1 :]),
            joined=_apart(joined, source, layer),
        )
        found[layer] = timeline(chain, other).total_us - now.total_us
    return found


def _apart(joined: tuple[bool, ...], source: tuple[int, ...], layer: int) -> tuple[bool, ...]:
    """A layer in the midst of a transfer parts it: the next one copied begins anew."""
    behind = next((i for i in range(layer + 1, len(source)) if source[i] != HOST), None)
    return tuple(flag and i != behind for i, flag in enumerate(joined))
