"""The story of a fragment, a pack, a version or a device, and how somebody asks for it."""

from itertools import product

import pytest

from digen_core.control import protocol as p
from digen_core.errors import UserError
from digen_core.eventlog.story import devices_in, story_of
from digen_core.eventlog.topics import Topic, parse_topic, topics_of
from support.recorded import recorded

DEVICES = {"rollout-0", "trainer-0", "v2"}


@pytest.mark.parametrize(
    ("words", "topic"),
    [
        ("i5 g3 f1", Topic(iteration=4, group=3, fragment=1)),
        ("f1 g3", Topic(group=3, fragment=1)),
        ("p7", Topic(pack=7)),
        ("v10 rollout-0", Topic(version=10, device="rollout-0")),
        ("v2", Topic(device="v2")),  # a device may be called so
        ("", Topic()),
    ],
)
def test_words_are_read(words, topic):
    assert parse_topic(words.split(), DEVICES) == topic


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("x", "'x' is nothing that the log tells of; ask for i5, g3, f1, p7, v2 or one of the"),
        ("rollout-9", "devices rollout-0, trainer-0, v2"),
        ("g-1", "'g-1' is nothing"),
        ("i99999999999", "is nothing that the log tells of"),
        ("g1 g2", "'g2' is the second group; ask for one at a time"),
        ("rollout-0 trainer-0", "'trainer-0' is the second device"),
        ("f1", "f1 is of which group? For example: g3 f1"),
    ],
)
def test_words_that_mean_nothing_are_refused(words, message):
    with pytest.raises(UserError) as error:
        parse_topic(words.split(), DEVICES)
    assert message in str(error.value)


def test_what_happens_to_a_group_happens_to_its_fragments():
    (topic,) = topics_of(p.ComputeAdvantages(2, (3,)))
    assert topic.concerns(Topic(iteration=2, group=3, fragment=1))
    assert not topic.concerns(Topic(iteration=2, group=4, fragment=1))
    assert not topic.concerns(Topic(pack=0))
    (switch,) = topics_of(p.Switch("trainer-0", "rollout"))
    assert not switch.concerns(Topic(group=3))


@pytest.fixture(scope="module")
def log():
    return recorded("gap", 1, num_iterations=2, losses=0, pause_odds=0).log("a-run", "")


def test_a_fragment_is_told_from_its_first_step_to_its_last_pair(log):
    lines = story_of(log, Topic(iteration=0, group=2, fragment=1))
    texts = [line.text for line in lines]
    device = lines[0].device
    assert texts[:6] == [
        "generate i1 g2 f1, steps 0 to 3, with v0",
        "generated i1 g2 f1",
        "score i1 g2 f1",
        "scored i1 g2 f1",
        "compute advantages of i1 g2",
        "computed advantages of i1 g2",
    ]
    assert [line.device for line in lines[:4]] == [device] * 4
    assert {"train", "trained"} == {text.split()[0] for text in texts[6:]}
    assert [line.time for line in lines] == sorted(line.time for line in lines)
    assert lines[1].seconds == lines[1].time - lines[0].time
    assert lines[0].seconds is None


def test_a_version_is_made_and_loaded(log):
    texts = [line.text for line in story_of(log, Topic(version=1))]
    assert texts[:2] == ["make v1 of v0 and the gradient of i1", "made v1"]
    assert [t.startswith("load v1") for t in texts].count(True) == texts.count("loaded v1") == 5


def test_a_pack_is_told_of_one_iteration(log):
    lines = story_of(log, Topic(iteration=1, pack=0))
    assert [line.text.split()[:3] for line in lines] == [
        ["train", "i2", "p0"],
        ["trained", "i2", "p0"],
    ]
    assert len(story_of(log, Topic(pack=0))) == 4


def test_every_line_of_a_device_is_of_that_device(log):
    devices = devices_in(log)
    assert devices == {"rollout-0", "rollout-1", "rollout-2", "trainer-0", "trainer-1"}
    for name in devices:
        lines = story_of(log, Topic(device=name))
        assert {line.device for line in lines if "add" not in line.text} == {name}
        events = [line for line in lines if line.is_event]
        assert len(lines) == 2 * len(events), "each instruction is answered"


def test_lost_work_is_told_with_the_loss():
    for seed, layout in product(range(5), ("gap", "elastic")):
        log = recorded(layout, seed, losses=9).log("a-run", "")
        handled = [entry for part in log.segments for entry in part.handled]
        lost = [entry.event for entry in handled if isinstance(entry.event, p.DevicesLost)]
        for name in {name for event in lost for name in event.devices}:
            lines = story_of(log, Topic(device=name))
            assert any(line.text.startswith("lost ") for line in lines)
            if any("which was to generate" in line.text for line in lines):
                return
    pytest.fail("no seed lost a device that generated")


def test_a_log_knows_devices_that_are_gone_at_its_end():
    log = recorded("gap", 0, losses=0).log("a-run", "")
    event = p.DevicesLost(("rollout-1",))
    log.segments[-1].handled.append(type(log.segments[0].handled[0])(9999.0, event))
    assert "rollout-1" in devices_in(log)
