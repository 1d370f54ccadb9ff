"""Rates and throttle times: those of Kafka 4.2's own classes, and the bound that follows for a client that obeys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.quotas.rate import PAUSE_MS_MAX, SampledRate, TokenBucket

ELEVEN = (
    (1000003, 164, 16.4, 10000, 0),
    (1000047, 754, 91.39784946236558, 10044, 0),
    (1003196, 534, 142.4507014617875, 10193, 0),
    (1003208, 20000, 2102.1068103870653, 10205, 11247),
    (1003303, 1461, 2224.5631067961162, 10300, 12613),
    (1006610, 20000, 4045.7245215423777, 10607, 32306),
    (1007234, 1051, 4297.136154823575, 10231, 33733),
    (1010238, 400, 4334.538348803127, 10235, 34129),
    (1011238, 123, 4338.677554272057, 10042, 33527),
    (1011617, 1035, 4280.203435370886, 10421, 34183),
)
"""Time, value, then rate, window and throttle time for a bound of 1000, as Kafka's `Rate` with 11 samples has them."""
ELEVEN_IDLE = (
    (1000003, 1096, 109.6, 10000, 0),
    (1003038, 657, 174.6885899352267, 10035, 0),
    (1003614, 1393, 296.4847799453397, 10611, 0),
    (1004614, 826, 374.3285270002827, 10611, 0),
    (1007909, 20000, 2198.0561158995047, 10906, 13066),
    (1008377, 1344, 2440.331598226335, 10374, 14942),
    (1008623, 20000, 4267.043314500942, 10620, 34696),
    (1008724, 1062, 4325.902434474396, 10721, 35657),
    (1012217, 1026, 4549.366342469791, 10179, 36129),
    (1012883, 50, 4274.596588289534, 10845, 35513),
    (1013883, 20000, 6118.764407561088, 10845, 55513),
    (1014298, 20000, 7669.449378330373, 11260, 75098),
    (1014840, 830, 8325.640524154116, 10226, 74912),
    (1015291, 47, 7978.364709187975, 10677, 74508),
    (1015524, 628, 7865.5362053162235, 10910, 74903),
    (1018743, 126, 7856.101163005354, 10834, 74279),
    (1019015, 1478, 7796.776517197911, 11106, 75485),
    (1020015, 1276, 4210.1315058344135, 10798, 34663),
    (1020214, 59, 4139.310721105756, 10997, 34523),
    (1020284, 738, 4595.013410151982, 10067, 36191),
    (1023484, 539, 4153.45699831366, 11267, 35530),
    (1035884, 1176, 117.6, 10000, 0),
)
THREE = (
    (1000003, 1456, 728.0, 2000, 0),
    (1000024, 158, 798.6145472538348, 2021, 0),
    (1000355, 0, 686.2244897959184, 2352, 0),
    (1001045, 20000, 10584.7208619001, 2042, 19572),
    (1002045, 408, 10784.524975514203, 2042, 19980),
    (1002074, 975, 11104.29744084983, 2071, 20926),
    (1005275, 460, 230.0, 2000, 0),
    (1016275, 165, 82.5, 2000, 0),
    (1028675, 121, 60.5, 2000, 0),
    (1028708, 13, 65.91244466305952, 2033, 0),
    (1040408, 732, 366.0, 2000, 0),
    (1041408, 988, 860.0, 2000, 0),
    (1042032, 1390, 1185.2134146341464, 2624, 486),
    (1043032, 1186, 1637.1951219512193, 2624, 1672),
    (1046204, 661, 330.5, 2000, 0),
    (1046900, 728, 515.2077151335311, 2696, 0),
    (1047442, 840, 995.9785522788204, 2238, 0),
    (1048442, 162, 1068.3646112600536, 2238, 153),
)
THREE_FULL = (
    (1000, 700, 350.0, 2000, 0),
    (1900, 200, 310.3448275862069, 2900, 0),
    (2000, 300, 600.0, 2000, 0),
    (2900, 2800, 1379.3103448275863, 2900, 1100),
    (3000, 500, 2250.0, 2000, 2500),
    (3900, 600, 1758.6206896551726, 2900, 2200),
    (4000, 4900, 3333.3333333333335, 3000, 7000),
    (4900, 800, 3413.793103448276, 2900, 7000),
    (5000, 900, 3600.0, 3000, 7800),
    (5900, 7000, 5068.9655172413795, 2900, 11800),
)
BUCKET = (
    (1000003, 2, 22.0, 20.0, 0),
    (1000827, 0, 21.648, 21.648, 0),
    (1001618, 1, 22.0, 21.0, 0),
    (1001811, 14, 21.386, 7.386, 0),
    (1006811, 2, 17.386, 15.386, 0),
    (1007476, 14, 16.716, 2.716, 0),
    (1007837, 14, 3.438, -10.562, 5281),
    (1012837, 0, -0.562, -0.562, 281),
    (1017837, 2, 9.438, 7.438, 0),
)
"""Time, tokens taken, tokens before and after, and throttle time, as Kafka's `TokenBucket` with a bound of 2 has them.
"""


@pytest.mark.parametrize(("samples", "steps"), [(11, ELEVEN), (11, ELEVEN_IDLE), (3, THREE), (3, THREE_FULL)])
def test_rate_is_that_of_kafka(samples: int, steps: tuple[tuple[int, int, float, int, int], ...]) -> None:
    rate = SampledRate(samples, 1000, steps[0][0])
    for at_ms, value, expected, window_ms, pause_ms in steps:
        rate.record(value, at_ms)
        assert rate.measure(at_ms) == pytest.approx(expected)
        assert (rate.elapsed_ms(at_ms), rate.throttle_ms(1000.0, at_ms)) == (window_ms, pause_ms)


def test_token_bucket_is_that_of_kafka() -> None:
    bucket = TokenBucket(11, 1000, 2.0, BUCKET[0][0])
    for at_ms, value, before, after, pause_ms in BUCKET:
        assert bucket.measure(2.0, at_ms) == pytest.approx(before)
        bucket.record(value, 2.0, at_ms)
        assert bucket.measure(2.0, at_ms) == pytest.approx(after)
        assert bucket.throttle_ms(2.0, at_ms) == pause_ms


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 2_000)), min_size=1, max_size=60))
def test_client_that_obeys_gets_its_rate_and_one_request_more(requests: list[tuple[int, int]]) -> None:
    """A naive count over all requests bounds the machine: it keeps I28 from any begin to any end."""
    bound, now_ms, rate = 1_000.0, 50_000, SampledRate(11, 1000, 50_000)
    sent: list[tuple[int, int]] = []
    for size, gap_ms in requests:
        rate.record(size, now_ms)
        sent.append((now_ms, size))
        now_ms += gap_ms + rate.throttle_ms(bound, now_ms)
    for first, (begin_ms, _) in enumerate(sent):
        total = 0
        for end_ms, size in sent[first:]:
            assert total <= bound * (end_ms - begin_ms + 11_000) / 1000 + 2_000
            total += size


def test_pause_of_a_tiny_quota_is_long_and_no_error() -> None:
    """Its quotient is above all numbers, or above all whole milliseconds of Kafka."""
    for bound in (5e-324, 1e-320, 1e-300):
        rate, bucket = SampledRate(11, 1000, 0), TokenBucket(11, 1000, bound, 0)
        rate.record(1, 0)
        bucket.record(1, bound, 0)
        assert rate.throttle_ms(bound, 1_000) == bucket.throttle_ms(bound, 1_000) == PAUSE_MS_MAX


def test_pause_is_never_longer_than_the_debt() -> None:
    rate = SampledRate(11, 1000, 0)
    rate.record(30_000, 0)
    pause_ms = rate.throttle_ms(1_000.0, 0)
    assert pause_ms == 20_000
    assert rate.throttle_ms(1_000.0, pause_ms) == 0


@pytest.mark.parametrize(("bound", "most"), [(1.0, 100), (50.0, 550)])
def test_bucket_is_overdrawn_at_a_full_one_or_a_hundred(bound: float, most: int) -> None:
    bucket = TokenBucket(11, 1000, bound, 0)
    bucket.record(11 * bound + most - 1, bound, 0)
    assert not bucket.is_overdrawn(bound, 0)
    bucket.record(1, bound, 0)
    assert bucket.is_overdrawn(bound, 0)
    assert not bucket.is_overdrawn(bound, 1_000), "time pays"


def test_bucket_without_a_burst_saves_nothing_and_keeps_its_debt() -> None:
    bucket = TokenBucket(0, 0, 0, 0)
    assert bucket.debt_ms(10, 5_000) == 0 and bucket.measure(10, 5_000) == 0, "idle time is not saved up"
    bucket.record(20, 10, 5_000)
    assert bucket.debt_ms(10, 5_000) == 2_000
    assert bucket.debt_ms(40, 5_000) == 500, "at another rate the debt has the same number of tokens"
    assert bucket.debt_ms(10, 6_500) == 500 and bucket.debt_ms(10, 8_000) == 0
