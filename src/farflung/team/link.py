"""Link profiles: how long bytes take between endpoints, by model. Rates are in bits, sizes in bytes."""

from __future__ import annotations

import math
import re

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict, Field

from farflung.errors import FarflungError, InputError
from farflung.team.message import SERVER

_RATES = {"bit": 1.0, "kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9}
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


class LinkProfile(BaseModel):
    """One kind of link, the same for every endpoint, the server included."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    name: str = Field(description="name of the profile, or the text it was read from")
    up_bps: float = Field(gt=0, description="rate at which an endpoint sends, bit/s (> 0, may be inf)")
    down_bps: float = Field(gt=0, description="rate at which an endpoint receives, bit/s (> 0, may be inf)")
    latency_s: float = Field(ge=0, allow_inf_nan=False, description="delay of one message, seconds (>= 0)")
    star: bool = Field(
        default=False,
        description="trainers reach each other through the server only: their rows are sent twice",
    )

    def __str__(self) -> str:
        return self.name

    def seconds(self, senders: ArrayLike, receivers: ArrayLike, bytes: ArrayLike) -> float:
        """Seconds until messages that set out together have all arrived.

        Latency + max over endpoints of max(sent / up, received / down). In a star, what goes from trainer to
        trainer goes trainer -> server -> trainer, and if there is any, the latency counts twice. Without any
        bytes there is no message and no time; bytes from an endpoint to itself use no link.

        `senders`, `receivers`: endpoints; `bytes`: sizes; integers or arrays [n] that broadcast.
        Raises FarflungError for negative bytes.
        """
        sender, receiver, size = (a.ravel() for a in np.broadcast_arrays(senders, receivers, bytes))
        if (size < 0).any():
            raise FarflungError(f"a message cannot have {size.min()} bytes: give sizes >= 0")
        sent = (size > 0) & (sender != receiver)
        sender, receiver, size = sender[sent], receiver[sent], size[sent]
        if not len(size):
            return 0.0
        latency = self.latency_s
        peer = (sender >= 0) & (receiver >= 0)
        if self.star and peer.any():
            latency *= 2
            hub = np.full(np.count_nonzero(peer), SERVER)
            size = np.concatenate([size, size[peer]])
            sender = np.concatenate([sender, hub])
            receiver = np.concatenate([np.where(peer, SERVER, receiver), receiver[peer]])
        return latency + max(_most_bits(sender, size) / self.up_bps, _most_bits(receiver, size) / self.down_bps)


PROFILES: dict[str, LinkProfile] = {
    profile.name: profile
    for profile in (
        LinkProfile(name="none", up_bps=math.inf, down_bps=math.inf, latency_s=0.0),
        LinkProfile(name="datacentre", up_bps=10e9, down_bps=10e9, latency_s=0.1e-3),
        LinkProfile(name="wan", up_bps=100e6, down_bps=100e6, latency_s=40e-3),
        LinkProfile(name="proximity", up_bps=1e6, down_bps=1e6, latency_s=20e-3),
        LinkProfile(name="edge", up_bps=10e6, down_bps=50e6, latency_s=30e-3, star=True),
    )
}
"""The named profiles; `none` takes no time at all."""


def parse_profile(text: object) -> LinkProfile:
    """Read a profile's name, or `up=10Mbit,down=50Mbit,latency=30ms` with `,star` behind it for a star.

    Rates in bit, kbit, Mbit or Gbit (each a second), or `inf`; latency in us, ms or s. The profile's own name
    (`str`) reads back as an equal one. A `LinkProfile` is passed through. Raises InputError.
    """
    if isinstance(text, LinkProfile):
        return text
    if str(text) in PROFILES:
        return PROFILES[str(text)]
    parts = [part.strip() for part in str(text).split(",")]
    star = parts[-1] == "star"
    pairs = [part.partition("=") for part in (parts[:-1] if star else parts)]
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    if set(fields) != {"up", "down", "latency"} or len(pairs) != 3:
        raise _wrong(text, "it is no name and does not give up, down and latency")
    up, down = (_quantity(text, name, fields[name], _RATES) for name in ("up", "down"))
    latency = _quantity(text, "latency", fields["latency"], _TIMES)
    if up == 0 or down == 0 or math.isinf(latency):
        raise _wrong(text, "rates must be above 0 and the latency finite")
    name = f"up={_rate(up)},down={_rate(down)},latency={_time(latency)}" + (",star" if star else "")
    return LinkProfile(name=name, up_bps=up, down_bps=down, latency_s=latency, star=star)


def _most_bits(endpoints: np.ndarray, size: np.ndarray) -> float:
    """Bits at the endpoint that has the most of them. `size`: bytes."""
    _, place = np.unique(endpoints, return_inverse=True)
    return 8 * float(np.bincount(place, weights=size).max())


def _quantity(text: object, name: str, value: str, units: dict[str, float]) -> float:
    """`10Mbit` -> 1e7 with the factors of `units`; `inf` is infinite."""
    if value == "inf":
        return math.inf
    found = re.fullmatch(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*([A-Za-z]+?)(?:/s)?", value)
    if found and found.group(2) in units:
        return float(found.group(1)) * units[found.group(2)]
    raise _wrong(text, f"{name} '{value}' must be a number with one of {', '.join(units)}")


def _rate(bps: float) -> str:
    if math.isinf(bps):
        return "inf"
    unit = next((unit for unit in ("Gbit", "Mbit", "kbit") if bps >= _RATES[unit]), "bit")
    return _written(bps, unit, _RATES[unit])


def _time(seconds: float) -> str:
    unit = "s" if seconds >= 1 else "ms"
    return _written(seconds, unit, _TIMES[unit])


def _written(value: float, unit: str, factor: float) -> str:
    """`value` in `unit` if that reads back exactly, else in the unit of factor 1."""
    scaled = value / factor
    if scaled * factor != value:
        scaled, unit = value, "bit" if unit.endswith("bit") else "s"
    return f"{repr(scaled).removesuffix('.0')}{unit}"


def _wrong(text: object, why: str) -> InputError:
    return InputError(
        f"'{text}' is no link profile ({why}): use one of {', '.join(PROFILES)}, "
        "or write 'up=10Mbit,down=50Mbit,latency=30ms[,star]'"
    )
