"""Learnt costs: from spans whose seconds are known, by hand."""

from dataclasses import replace

import pytest

from digen_core.control.costs import Costs, DeviceCosts, Linear, Sent
from digen_core.control.protocol import Device
from digen_core.errors import UserError
from digen_core.planning.predict import expected_seconds
from digen_core.planning.profile import (
    LineFit,
    Measured,
    Profile,
    costs_of,
    load_profile,
)
from digen_core.records import Crossing, Span

DEVICES = [
    Device("fast", frozenset({"rollout"}), "h100"),
    Device("slow", frozenset({"rollout"}), "a100"),
    Device("train", frozenset({"trainer"}), "h100"),
]
NOTHING = Costs(kinds={})


def span(kind, device, started, ended, **others):
    return Span(0, kind, kind, device, others.pop("queued", started), started, ended, **others)


def denoise(device, started, seconds, num_items, num_steps=1, **others):
    steps = {"first_step": 0, "end_step": num_steps}
    ended = started + seconds
    return span("denoise", device, started, ended, num_items=num_items, **steps, **others)


def packs(seconds_of, sizes, device="train"):
    spans, now = [], 0.0
    for size in sizes:
        spans.append(span("train", device, now, now + seconds_of(size), num_items=size))
        now = spans[-1].ended
    return spans


def test_a_pack_that_did_not_fit_teaches_nothing():
    known = packs(lambda size: 1.0 + 2.0 * size, [1, 4])
    failed = span("train", "train", 90.0, 99.0, num_items=0)
    costs = Profile(NOTHING, DEVICES).learn([*known, failed])
    assert costs == Profile(NOTHING, DEVICES).learn(known)
    assert costs.kinds["h100"].pack(4) == pytest.approx(9.0)


def test_what_encodes_samples_teaches_the_cost_of_the_steps_whose_place_it_takes():
    """9 s for 4 samples and 3 s for 1, in the place of 3 steps: 1/3 + 2/3 n."""
    spans = [
        replace(denoise("fast", 20.0 * n, 1.0 + 2.0 * n, n, num_steps=3), kind="samples")
        for n in (1, 4)
    ]
    costs = Profile(NOTHING, DEVICES).learn(spans)
    assert parts(costs.kinds["h100"].step) == pytest.approx((1 / 3, 2 / 3))
    assert expected_seconds(costs, "h100", spans[1]) == pytest.approx(9.0)


def test_samples_that_cost_differently_are_on_one_line():
    """Of 4 samples that cost 0.5, 1 or 2.5: 1 + 2 n with n of 2, 4 and 10."""
    spans = [
        denoise("fast", 100.0 * cost, 1 + 2 * 4 * cost, 4, cost=cost) for cost in (0.5, 1.0, 2.5)
    ]
    costs = Profile(NOTHING, DEVICES).learn(spans)
    assert costs.kinds["h100"].step.fixed == pytest.approx(1.0)
    assert costs.kinds["h100"].step.per_item == pytest.approx(2.0)


def test_what_was_measured_is_told_of_the_mean_size():
    """A sample that costs 4 took 2 s beside the second that is fixed: one of the mean size 0.5."""
    measured = Measured(step=Linear(fixed=1.0, per_item=2.0))
    assert measured.of_mean_size(4.0) == Measured(step=Linear(fixed=1.0, per_item=0.5))


def test_a_line_is_recovered_for_each_kind_and_operation():
    spans = [
        denoise("fast", 0.0, 3 * (1 + 2 * 4), 4, num_steps=3),  # a task of three steps
        denoise("fast", 30.0, 1 + 2 * 8, 8),
        denoise("slow", 0.0, 2 + 4 * 4, 4),
        denoise("slow", 30.0, 2 + 4 * 8, 8),
        *packs(lambda n: 0.5 + 0.25 * n, [1, 4, 8, 16]),
    ]
    kinds = Profile(NOTHING, DEVICES).learn(spans).kinds
    assert parts(kinds["h100"].step) == pytest.approx((1, 2))
    assert parts(kinds["a100"].step) == pytest.approx((2, 4))
    assert parts(kinds["h100"].pack) == pytest.approx((0.5, 0.25))


def parts(line):
    return line.fixed, line.per_item


def test_what_compiled_teaches_nothing():
    present = Costs(kinds={"h100": DeviceCosts(step=Linear(), pack=Linear(fixed=0.5))})
    profile = Profile(present, DEVICES)
    compiling = [replace(span, compile_seconds=29.0) for span in packs(lambda n: 30.0, [4, 8])]
    assert profile.learn(compiling).kinds["h100"].pack == Linear(fixed=0.5)
    warm = packs(lambda n: 0.25 * n, [4, 8])
    late = [replace(span, started=span.started + 60, ended=span.ended + 60) for span in warm]
    assert parts(profile.learn([*compiling, *late]).kinds["h100"].pack) == pytest.approx((0, 0.25))


def test_of_one_size_the_ratio_of_the_parts_stays():
    present = Costs(
        kinds={"h100": DeviceCosts(step=Linear(), pack=Linear(fixed=1.0, per_item=0.5))}
    )
    # A pack of 4 was thought to take 3 s; it takes 6.
    costs = Profile(present, DEVICES).learn(packs(lambda n: 6.0, [4, 4, 4]))
    assert costs.kinds["h100"].pack == Linear(fixed=2.0, per_item=1.0)


@pytest.mark.parametrize("size", [3, 6, 7, 12])
def test_of_one_size_the_seconds_are_those_that_were_seen_however_old_they_are(size):
    """Weights of 0.6, 0.36, ... are rounded, so the mean of packs of 3 may be 3 + 4e-16 pairs."""
    present = DeviceCosts(step=Linear(), pack=Linear(fixed=0.1, per_item=1.0))
    profile = Profile(Costs(kinds={"h100": present}), DEVICES)
    for _ in range(24):
        own = profile.learn(packs(lambda n: 0.1 + n, [size] * 7)).kinds["h100"].pack
        assert own(size) == pytest.approx(0.1 + size)


def test_of_nearly_one_size_the_line_goes_through_the_mean():
    fit = LineFit()
    for cost in (0.93, 1.07):
        fit.add(3 * cost, 0.1 + 3 * cost)
        fit.add(3 * (cost + 0.05), 0.1 + 3 * (cost + 0.05))
    assert fit.line(Linear(fixed=0.1, per_item=1.0))(3) == pytest.approx(3.1)


def test_of_one_size_and_nothing_known_all_is_per_item():
    costs = Profile(NOTHING, DEVICES).learn(packs(lambda n: 6.0, [4, 4]))
    assert costs.kinds["h100"].pack == Linear(per_item=1.5)


def test_no_part_is_negative():
    falling, steep = LineFit(), LineFit()
    for size, seconds in ((1, 3.0), (3, 1.0)):
        falling.add(size, seconds)
    for size, seconds in ((1, 1.0), (3, 5.0)):  # the line through both is 2 n - 1
        steep.add(size, seconds)
    assert falling.line(Linear()) == Linear(fixed=2.0)
    assert steep.line(Linear()) == Linear(per_item=16 / 10)


def test_what_took_less_than_no_time_is_left_out():
    """A clock was set back while a task ran."""
    backwards = packs(lambda n: -3600.0, [4])
    assert "h100" not in Profile(NOTHING, DEVICES).learn(backwards).kinds
    costs = Profile(NOTHING, DEVICES).learn(packs(lambda n: -3600.0 if n == 3 else 4.0, [1, 1, 3]))
    assert costs.kinds["h100"].pack == Linear(per_item=4.0)
    present = Costs(kinds={"h100": DeviceCosts(step=Linear(), pack=Linear(per_item=1.0))})
    assert Profile(present, DEVICES).learn(backwards).kinds == present.kinds


def test_what_is_older_weighs_less():
    profile = Profile(NOTHING, DEVICES)
    profile.learn(packs(lambda n: 1.0 * n, [1]))
    for _ in range(12):
        profile.learn(packs(lambda n: 2.0 * n, [1]))
    # Weights 0.6 ** 12 of 1 s and (1 - 0.6 ** 12) / 0.4 of 2 s.
    old, new = 0.6**12, (1 - 0.6**12) / 0.4
    assert profile.costs.kinds["h100"].pack(1) == pytest.approx((old + 2 * new) / (old + new))


def test_what_was_seen_very_long_ago_is_known_as_it_was():
    """After 1500 iterations its weight would be a number that rounds to itself, 1 s an item."""
    profile = Profile(NOTHING, DEVICES)
    profile.learn([denoise("slow", 0.0, 8.0, 4), *packs(lambda n: 2.0 + n, [1, 4])])
    for _ in range(1500):
        costs = profile.learn([denoise("fast", 0.0, 4.0, 4)])
    assert costs.kinds["a100"].step(4) == pytest.approx(8.0)
    assert costs.kinds["h100"].pack(2) == pytest.approx(4.0)
    assert costs.kinds["h100"].step(4) == pytest.approx(4.0)


def test_decoding_carries_the_encoding_of_its_group_on_its_device():
    spans = [
        span("encode", "fast", 0.0, 1.0, group=3),
        span("score", "fast", 5.0, 7.0, group=3, num_items=2),
        span("score", "slow", 5.0, 7.0, group=3, num_items=2),
        span("score", "reward-servers", 5.0, 7.0, group=4, num_items=2),  # no device of the run
    ]
    kinds = Profile(NOTHING, DEVICES).learn(spans).kinds
    assert kinds["h100"].decode(2) == pytest.approx(3.0)
    assert kinds["a100"].decode(2) == pytest.approx(2.0)


def test_a_span_counts_from_when_its_device_was_free_and_it_was_asked_for():
    spans = [
        denoise("fast", 1.0, 1.0, 1, queued=0.0),  # 2 s with the way to the device
        denoise("fast", 3.0, 1.0, 1, queued=0.0),  # 2 s since the one before
        denoise("fast", 9.0, 2.0, 1, queued=9.0),
    ]
    assert Profile(NOTHING, DEVICES).learn(spans).kinds["h100"].step(1) == pytest.approx(2.0)


def test_the_update_by_hand():
    spans = [
        *packs(lambda n: 1.0 * n, [2, 2]),  # until 4
        span("reduce", "train", 4.1, 4.2),
        span("step", "train", 4.3, 4.5, version=1),
        span("push", "fast", 4.6, 4.75, version=1),
        span("push", "slow", 4.6, 5.25, version=1),
        span("push", "slow", 1.0, 1.5, version=0),  # of a step that is not here
    ]
    costs = Profile(NOTHING, DEVICES).learn(spans)
    assert costs.optimizer_step == pytest.approx(0.5)
    assert costs.push == pytest.approx((0.25 + 0.75) / 2)


def test_pushes_that_failed_and_those_made_in_their_place_do_not_count():
    """A source that is gone fails at once; one that hangs, after long. Other devices count."""
    spans = [
        span("step", "train", 4.3, 4.5, version=1),
        span("push", "fast", 4.6, 4.75, version=1),
        span("push", "slow", 4.6, 4.61, version=1),  # failed
        span("push", "slow", 5.0, 64.5, version=1),  # failed
        span("push", "slow", 65.0, 66.0, version=1),
    ]
    profile = Profile(NOTHING.model_copy(update={"push": 3.0}), DEVICES)
    assert profile.learn(spans).push == pytest.approx(0.25)
    assert profile.learn([spans[0], *spans[2:]]).push == pytest.approx(0.25)  # all were


def score(pool, worker, started, seconds, num_items):
    own = span("score", worker, started, started + seconds, num_items=num_items, queued=0.0)
    return replace(own, task=f"score g00 f0 {pool}")


def test_the_pool_that_is_waited_for_teaches_what_rewards_take():
    """Two judges need 2.5 s a sample, so 1.25 s together, and the one worker of ocr 1 s."""
    decoded = span("score", "fast", 5.0, 6.0, num_items=4)  # by a device of the run
    judges = [score("judge", "judge-0", 6.0, 8.0, 4), score("judge", "judge-1", 6.0, 12.0, 4)]
    profile = Profile(NOTHING, DEVICES)
    costs = profile.learn([decoded, *judges, score("ocr", "ocr-0", 6.0, 4.0, 4)])
    assert (costs.reward, costs.reward_servers) == (pytest.approx(2.5), 2)
    assert costs.kinds["h100"].decode(4) == pytest.approx(1.0)
    costs = profile.learn([score("ocr", "ocr-0", 20.0, 400.0, 4)])
    assert costs.reward > 50, "the other pool is waited for now"
    assert costs.reward_servers == 1
    assert profile.learn([]).reward == costs.reward
    assert Profile(NOTHING, DEVICES).learn([decoded]).reward == 0


def test_an_iteration_without_update_changes_nothing_else():
    profile = Profile(NOTHING.model_copy(update={"push": 3.0}), DEVICES)
    assert profile.learn([denoise("fast", 0.0, 1.0, 1)]).push == 3.0


def test_measurements_are_averaged_by_kind_and_lent_to_kinds_without():
    line = Linear(fixed=1.0, per_item=2.0)
    other = Linear(fixed=3.0, per_item=0.0)
    second = replace(DEVICES[0], name="fast-2")
    costs = costs_of(
        {
            DEVICES[0]: Measured(step=line),
            second: Measured(step=other),
            DEVICES[1]: Measured(),
            DEVICES[2]: Measured(pack=line),
        }
    )
    assert costs.kinds["h100"].step == Linear(fixed=2.0, per_item=1.0)
    assert costs.kinds["h100"].pack == line
    assert costs.kinds["a100"].step == Linear(fixed=2.0, per_item=1.0)
    assert costs.kinds["a100"].decode == Linear()


def test_a_profile_is_read_as_it_was_saved(tmp_path):
    profile = Profile(NOTHING, DEVICES)
    profile.learn(packs(lambda n: 0.5 + 0.25 * n, [1, 4]))
    profile.save(tmp_path)
    assert load_profile(tmp_path / "profile.json") == profile.costs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read the profile .*: No such file or directory; give the profile.json of"),
        ("{", "is no profile of a run: Invalid JSON"),
        ('{"kinds": {}, "pull": 1}', "is no profile of a run: pull: Extra inputs"),
        ('{"kinds": {"h100": {"pack": {}}}}', "kinds.h100.step: Field required"),
        ('{"kinds": {}, "reward_servers": 0}', "reward_servers: Input should be greater than or"),
        ('{"kinds": {}, "push": -1}', "push: Input should be greater than or equal to 0"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_in_one_line(text, message, tmp_path):
    path = tmp_path / "profile.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=message) as error:
        load_profile(path)
    assert "\n" not in str(error.value)


def test_a_link_is_learnt_from_what_crossed_it_and_is_no_part_of_a_push():
    devices = [replace(DEVICES[0], site="b"), replace(DEVICES[2], site="a")]
    sent = Sent(version=100.0)
    profile = Profile(NOTHING.model_copy(update={"sent": sent}), devices)
    spans = [
        *packs(lambda n: n, [1]),
        span("step", "train", 1.0, 2.0, version=1),
        span("push", "fast", 2.0, 15.5, version=1),
        span("push", "train", 2.0, 2.5, version=1),
    ]
    ab = frozenset("ab")
    crossings = [Crossing(ab, 100.0, 2.0, 12.5), Crossing(ab, 10.0, 30.0, 31.5)]
    costs = profile.learn(spans, crossings)
    (link,) = costs.links
    assert link.sites == ab
    assert (link.bytes_per_second, link.latency) == pytest.approx((10.0, 0.5))
    assert costs.push == pytest.approx((13.5 - 10.5 + 0.5) / 2)
    assert profile.learn([]).links == (link,)


def test_what_a_version_has_is_learnt_from_those_that_crossed():
    """A delta is less than the weights; of a gang it comes in parts, and to each site by itself."""
    sent = Sent(version=100.0, condition=3.0)
    profile = Profile(NOTHING.model_copy(update={"sent": sent}), DEVICES)
    ab, ac = frozenset("ab"), frozenset("ac")
    others = [Crossing(ab, 500.0, 0.0, 1.0)]
    assert profile.learn([], others).sent == sent
    parts = [Crossing(ab, 12.0, 0.0, 1.0, 1), Crossing(ab, 8.0, 0.0, 1.0, 1)]
    costs = profile.learn([], [*others, *parts, Crossing(ac, 30.0, 0.0, 1.0, 1)])
    assert costs.sent == Sent(version=100.0, condition=3.0, delta=25.0)
    assert profile.learn([], others).sent == costs.sent
    later = profile.learn([], [Crossing(ab, 10.0, 2.0, 3.0, 2)]).sent.delta
    assert later == pytest.approx((2 * 0.6**2 * 25 + 10) / (2 * 0.6**2 + 1))
