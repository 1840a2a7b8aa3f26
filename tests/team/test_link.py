import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from farflung.errors import FarflungError, InputError
from farflung.team.link import PROFILES, LinkProfile, parse_profile
from farflung.team.message import EVALUATOR, SERVER

MB = 1_000_000


def naive_seconds(profile: LinkProfile, rows: list[tuple[int, int, int]]) -> float:
    hops, latencies = [], 0
    for sender, receiver, size in rows:
        if size == 0 or sender == receiver:
            continue
        if profile.star and sender >= 0 and receiver >= 0:
            hops += [(sender, SERVER, size), (SERVER, receiver, size)]
            latencies = 2
        else:
            hops.append((sender, receiver, size))
            latencies = max(latencies, 1)
    busiest = 0.0
    for endpoint in {end for hop in hops for end in hop[:2]}:
        sent = sum(size for sender, _, size in hops if sender == endpoint)
        received = sum(size for _, receiver, size in hops if receiver == endpoint)
        busiest = max(busiest, 8 * sent / profile.up_bps, 8 * received / profile.down_bps)
    return latencies * profile.latency_s + busiest


ENDPOINTS = st.sampled_from([EVALUATOR, SERVER, 0, 1, 2, 3, 2**31 - 1])


@given(
    st.lists(st.tuples(ENDPOINTS, ENDPOINTS, st.integers(0, 2**40)), max_size=12),
    st.sampled_from(sorted(PROFILES)),
)
def test_seconds_equal_a_naive_loop(rows, name):
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    assert PROFILES[name].seconds(*columns) == pytest.approx(naive_seconds(PROFILES[name], rows), rel=1e-12)


def test_ten_megabytes_over_100_megabits_take_eight_tenths_of_a_second():
    assert PROFILES["wan"].seconds(0, 1, 10 * MB) == pytest.approx(0.8 + 0.040)
    assert PROFILES["datacentre"].seconds(0, 1, 10 * MB) == pytest.approx(0.008 + 0.0001)
    assert PROFILES["proximity"].seconds(0, 1, MB) == pytest.approx(8.0 + 0.020)


def test_the_server_is_the_bottleneck_of_a_broadcast():
    assert PROFILES["wan"].seconds(SERVER, np.arange(5), MB) == pytest.approx(0.04 + 5 * 0.08)
    assert PROFILES["edge"].seconds(np.arange(5), SERVER, MB) == pytest.approx(0.03 + max(0.8, 5 * 0.16))


def test_pairs_that_share_no_endpoint_go_at_once():
    wan = PROFILES["wan"]
    assert wan.seconds([0, 2], [1, 3], MB) == wan.seconds(0, 1, MB)
    assert wan.seconds([0, 1], [1, 0], MB) == wan.seconds(0, 1, MB)  # both ways at a time


def test_in_a_star_peer_rows_are_sent_twice_and_wait_twice():
    edge = PROFILES["edge"]
    assert edge.seconds(0, 1, MB) == pytest.approx(2 * 0.03 + 0.8)
    assert edge.seconds([0, 1], [1, 0], MB) == pytest.approx(2 * 0.03 + 1.6)  # the hub sends both
    assert edge.seconds([0, SERVER], [SERVER, 1], MB) == pytest.approx(0.03 + 0.8)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=str)
def test_without_bytes_there_is_no_message(profile):
    assert profile.seconds([], [], []) == 0.0
    assert profile.seconds([0, 1], [1, 0], 0) == 0.0
    assert profile.seconds(2, 2, MB) == 0.0
    assert profile.seconds([0, 0, 1], [SERVER, 1, 2], [MB, 0, 0]) == profile.seconds(0, SERVER, MB)


def test_none_takes_no_time():
    assert PROFILES["none"].seconds(SERVER, np.arange(100), 2**50) == 0.0


def test_negative_bytes_are_refused():
    with pytest.raises(FarflungError, match="cannot have -5 bytes"):
        PROFILES["wan"].seconds([0, 1], SERVER, [3, -5])


def test_parse_reads_names_and_quantities():
    assert parse_profile("wan") is PROFILES["wan"]
    assert parse_profile(PROFILES["edge"]) is PROFILES["edge"]
    custom = parse_profile("up=10Mbit,down=50Mbit,latency=30ms,star")
    assert custom.model_dump(exclude={"name"}) == PROFILES["edge"].model_dump(exclude={"name"})
    other = parse_profile(" latency = 1.5s , down=2.5kbit/s, up=3 Gbit")
    assert (other.up_bps, other.down_bps, other.latency_s, other.star) == (3e9, 2500.0, 1.5, False)
    assert str(other) == "up=3Gbit,down=2.5kbit,latency=1.5s"
    assert parse_profile("up=inf,down=7bit,latency=0s").up_bps == math.inf


RATES = st.floats(min_value=1e-300, max_value=1e300) | st.just(math.inf)


@given(RATES, RATES, st.floats(min_value=0, max_value=1e300), st.booleans())
def test_the_name_of_a_parsed_profile_reads_back(up, down, latency, star):
    def rate(bps):
        return "inf" if math.isinf(bps) else f"{bps!r}bit"

    text = f"up={rate(up)},down={rate(down)},latency={latency!r}s" + (",star" if star else "")
    profile = parse_profile(text)
    assert (profile.up_bps, profile.down_bps, profile.latency_s, profile.star) == (up, down, latency, star)
    assert parse_profile(str(profile)) == profile


@pytest.mark.parametrize("profile", PROFILES.values(), ids=str)
def test_json_round_trip(profile):
    assert LinkProfile.model_validate_json(profile.model_dump_json()) == profile
    assert parse_profile(str(profile)) == profile


@pytest.mark.parametrize(
    "text",
    [
        "lan",
        "",
        None,
        {"up": 1},
        "up=10Mbit,down=50Mbit",
        "up=10Mbit,down=50Mbit,latency=30ms,hub",
        "up=10Mbit,up=10Mbit,down=50Mbit,latency=30ms",
        "star",
        "up=10MB,down=50Mbit,latency=30ms",
        "up=10,down=50Mbit,latency=30ms",
        "up=0Mbit,down=50Mbit,latency=30ms",
        "up=10Mbit,down=50Mbit,latency=inf",
        "up=10Mbit,down=50Mbit,latency=30",
        "up=-1Mbit,down=50Mbit,latency=30ms",
    ],
)
def test_a_wrong_profile_is_one_line_that_lists_what_exists(text):
    with pytest.raises(InputError, match="none, datacentre, wan, proximity, edge") as caught:
        parse_profile(text)
    assert "\n" not in str(caught.value)


def test_profiles_are_frozen_and_checked():
    with pytest.raises(ValidationError):
        PROFILES["wan"].up_bps = 1.0
    for wrong in ({"up_bps": 0}, {"down_bps": math.nan}, {"latency_s": -1}, {"latency_s": math.inf}):
        with pytest.raises(ValidationError):
            LinkProfile(**{"name": "x", "up_bps": 1, "down_bps": 1, "latency_s": 0, **wrong})
