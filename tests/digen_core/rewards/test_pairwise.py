"""The reward ``pairwise`` against real servers: which pairs it asks about, and what comes of it."""

import json
import math
import time
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from digen_core.config.rewards.judges import PairwiseConfig
from digen_core.data.prompts import Prompt
from digen_core.errors import UserError
from digen_core.preflight.reward_probe import probe
from digen_core.rewards.judge.pairwise import Pairwise, drawn_pairs
from digen_core.rewards.pixels import as_pixels
from digen_core.rewards.scoring import RewardError, score_images
from support.judge_servers import MODEL, fails, images_of, judging, says
from support.raw_servers import serving

LEVELS = (0.2, 0.9, 0.4, 0.6)
IMAGES = torch.tensor(LEVELS)[:, None, None, None].expand(4, 3, 32, 32)
VERDICT = """
score = "verdict"
user = "{prompt}"
pattern = 'is (\\w+)'
first = "left"
second = "Right"
tie = "neither"
"""


def levels_of(request):
    images, _ = images_of(request)
    return [int(image.max()) for image in images]


def brighter(request):
    """Prefer the brighter image, the surer the more they differ."""
    one, other = levels_of(request)[-2:]
    sure = 1 / (1 + math.exp(-(one - other) / 50))
    return says(A=0.9 * sure, b=0.9 * (1 - sure), C=0.1)


def refusing(pair):
    """Return an answer to each request, which refuses the one about a pair: any may come first."""
    levels = [round(LEVELS[sample] * 255) for sample in pair]
    return lambda request: (
        fails(400, "no")(request) if levels_of(request) == levels else brighter(request)
    )


def biased(request):
    """Prefer the brighter image, and the first one a little more than by that."""
    one, other = levels_of(request)
    return says(A=0.8, B=0.2) if one + 60 > other else says(A=0.2, B=0.8)


@pytest.fixture
def server():
    with judging(brighter) as server:
        yield server


def score(url, samples=IMAGES, prompt="a dog", metadata=None, sources=None, **options):
    options = {"backoff_seconds": 0, "max_attempts": 1, "model": MODEL, "url": url, **options}
    config, count = PairwiseConfig(**options), len(samples)
    function = Pairwise(config, torch.device("cpu"))
    rows = [metadata or {}] * count
    found = score_images(
        {"duel": function}, {"duel": config}, samples, [prompt] * count, rows, sources
    )
    return {name.removeprefix("duel/"): values for name, values in found.items()}


# --- which pairs ------------------------------------------------------------------------------


@given(st.integers(2, 13), st.data(), st.integers(0, 2**63 - 1), st.text(max_size=4))
def test_every_sample_has_as_many_opponents_and_comes_first_as_often_as_second(
    count, data, seed, prompt
):
    opponents = data.draw(st.none() | st.integers(1, count - 1))
    most = count - 1 if opponents is None else opponents
    if most % 2 and count % 2:
        return  # the config refuses it
    pairs = drawn_pairs(count, opponents, (seed, prompt))
    assert len(pairs) == len({frozenset(pair) for pair in pairs}) == count * most // 2
    first, second = (Counter(pair[place] for pair in pairs) for place in (0, 1))
    for sample in range(count):
        assert first[sample] + second[sample] == most
        assert abs(first[sample] - second[sample]) <= most % 2
    assert pairs == drawn_pairs(count, opponents, (seed, prompt))


def test_without_a_number_all_pairs_are_compared_once():
    for count in (2, 3, 4, 7):
        pairs = {frozenset(pair) for pair in drawn_pairs(count, None, (0, ""))}
        assert pairs == set(map(frozenset, combinations(range(count), 2)))


def test_pairs_depend_on_the_seed_and_the_prompt():
    drawn = {tuple(drawn_pairs(8, 2, own)) for own in ((0, "a"), (0, "b"), (1, "a"), (2, "a"))}
    assert len(drawn) == 4
    assert drawn_pairs(1, None, (0, "a")) == []


# --- what comes of it -------------------------------------------------------------------------


def test_the_score_is_the_share_of_comparisons_that_a_sample_wins(server):
    found = score(server.url)
    # of 0.2, 0.9, 0.4, 0.6: the brightest beats all three, the darkest none
    assert found["score"].tolist() == pytest.approx([0, 1, 1 / 3, 2 / 3])
    assert found["ties"].tolist() == [0] * 4
    assert found["answered"].tolist() == pytest.approx([0.9] * 4)
    assert found["score"].sum() == 4 / 2
    assert len(server.requests) == 6


def test_probabilities_count_as_such(server):
    found = score(server.url, counts="probabilities")
    values = as_pixels(IMAGES)[:, 0, 0, 0].astype(float)
    sure = 1 / (1 + np.exp(-(values[:, None] - values[None, :]) / 50))
    np.testing.assert_allclose(found["score"], (sure.sum(axis=1) - 0.5) / 3, rtol=1e-12)
    assert found["score"].sum() == pytest.approx(2)


def test_scores_go_with_their_samples(server):
    order = [2, 0, 3, 1]
    found, moved = score(server.url), score(server.url, IMAGES[order])
    np.testing.assert_allclose(moved["score"], found["score"][order])


def test_equal_samples_tie(server):
    found = score(server.url, IMAGES[:1].expand(4, -1, -1, -1))
    assert found["score"].tolist() == [0.5] * 4
    assert found["ties"].tolist() == [1] * 4


def test_a_bounded_number_of_opponents_is_asked_about(server):
    images = torch.linspace(0, 1, 8)[:, None, None, None].expand(8, 3, 16, 16)
    found = score(server.url, images, opponents=2)
    assert len(server.requests) == 8
    assert set(found["score"]) <= {0, 0.5, 1}
    assert found["score"].sum() == 4
    assert found["score"][0] == 0
    assert found["score"][7] == 1
    again = score(server.url, images, opponents=2)
    np.testing.assert_array_equal(found["score"], again["score"])


def test_what_a_judge_gives_to_the_first_place_is_given_to_all_alike():
    """It always prefers the first of the equal ones: of an odd group each comes first as often."""
    images = torch.full((5, 3, 16, 16), 0.5)
    with judging(biased) as server:
        found = score(server.url, images)
        assert found["score"].tolist() == [0.5] * 5
        assert found["first"].tolist() == [1] * 5  # and that is told


def test_in_both_orders_a_judge_that_contradicts_itself_ties():
    with judging(biased) as server:
        found = score(server.url, orders="both")
        assert len(server.requests) == 12
    # 0.9 beats all by more than the bias, 0.2 and 0.4, and 0.4 and 0.6, contradict it.
    assert found["score"].tolist() == pytest.approx([0.5 / 3, 1, 1 / 3, 1.5 / 3])
    assert found["ties"].tolist() == pytest.approx([1 / 3, 0, 2 / 3, 1 / 3])
    assert found["score"].sum() == pytest.approx(2)


def test_in_both_orders_a_win_and_a_tie_count_their_mean(template):
    def shy(request):
        one, other = levels_of(request)
        return says("it is left" if one > other else "it is neither")

    with judging(shy) as server:
        found = score(server.url, template=template(VERDICT), orders="both", max_tokens=64)
    assert found["score"].tolist() == pytest.approx([0.25, 0.75, 1.25 / 3, 1.75 / 3])
    assert found["ties"].tolist() == [0] * 4
    assert found["first"].tolist() == [0.75] * 4


def test_a_request_shows_both_with_their_titles_and_asks(server):
    score(server.url, IMAGES[:2], prompt='a "dog"')
    (request,) = server.requests
    system, user = request["messages"]
    kinds = [part["type"] for part in user["content"]]
    assert kinds == ["text", "image_url", "text", "image_url", "text"]
    texts = [part["text"] for part in user["content"] if part["type"] == "text"]
    assert texts[:2] == ["Image A:", "Image B:"]
    assert '---\na "dog"\n---' in texts[2]
    assert system["content"].startswith("You compare images")
    del request["messages"]
    assert request == {
        "model": MODEL, "temperature": 0, "seed": 0, "max_tokens": 1,
        "logprobs": True, "top_logprobs": 20,
    }  # fmt: skip


def test_frames_of_videos_and_sources_are_shown(server, template):
    videos = IMAGES[:2, None].expand(2, 9, 3, 32, 32)
    path = template('source = true\nuser = "{prompt}"')
    sources = torch.zeros(2, 3, 32, 32)
    score(server.url, videos, sources=sources, takes="videos", template=path, max_frames=2)
    assert len(images_of(server.requests[0])[0]) == 1 + 2 * 2
    assert levels_of(server.requests[0])[0] == 0
    with pytest.raises(RewardError, match="shows source images, but the prompts come without"):
        score(server.url, videos, takes="videos", template=path)


def test_a_verdict_in_words_is_read(template):
    def says_so(request):
        one, other = levels_of(request)
        word = "neither" if abs(one - other) < 60 else "LEFT" if one > other else "right"
        return says(f"This is hard, is it? The better is {word} .")

    with judging(says_so) as server:
        found = score(server.url, template=template(VERDICT), max_tokens=64)
        assert server.requests[0]["max_tokens"] == 64
    assert found["score"].tolist() == pytest.approx([0.5 / 3, 1, 1 / 3, 1.5 / 3])
    assert found["ties"].tolist() == pytest.approx([1 / 3, 0, 2 / 3, 1 / 3])
    assert "answered" not in found


# --- trouble ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer", "message"),
    [
        (
            "",
            says(yes=0.9, no=0.1),
            "neither A nor B among the 2 likeliest tokens, but 'yes', 'no'",
        ),
        ("", says("A"), "without log-probs; a score of choice needs a server that gives them"),
        ("", b"\x1b[2J", "answered what is not JSON"),
        ("", {"choices": []}, "which is no chat completion"),
        (VERDICT, says("I cannot tell."), "in which nothing is as the pattern says"),
        (
            VERDICT,
            says("it is both"),
            "answered 'both' where the pattern has 'left' or 'right' or 'neith",
        ),
        (VERDICT, says("it is", finish_reason="length"), "which max_tokens cut off; raise it"),
    ],
)
def test_garbage_is_one_clear_line(server, template, text, answer, message):
    options = {"template": template(text)} if text else {}
    server.answers = [lambda request: answer] * 6
    with pytest.raises(RewardError, match=message) as caught:
        score(server.url, concurrency=1, **options)
    assert str(caught.value).startswith(f"reward 'duel' failed: {server.url}/chat/completions ans")
    assert "\n" not in str(caught.value)
    assert len(server.requests) == 1  # not asked again, nor about the others: the run ends


def test_a_pair_without_an_answer_is_a_tie_where_that_is_neutral(server, caplog):
    one, other = drawn_pairs(4, None, (0, "a dog"))[0]
    server.answers = [refusing((one, other))] * 6
    found = score(server.url, on_failure="neutral")
    wanted = np.array([0, 1, 1 / 3, 2 / 3])
    for sample, against in ((one, other), (other, one)):
        wanted[sample] += ((LEVELS[sample] < LEVELS[against]) - 0.5) / 3
    np.testing.assert_allclose(found["score"], wanted)
    assert found["score"].sum() == pytest.approx(2)
    assert not found["failed"].any()
    assert "answered 400: no; all samples have a score without it" in caplog.text


def test_it_drops_the_group_where_nothing_is_to_be_filled_in(server):
    pair = drawn_pairs(4, None, (0, "a dog"))[0]
    server.answers = [refusing(pair)] * 6
    found = score(server.url, on_failure="drop")
    assert set(np.flatnonzero(found["failed"])) == set(pair)


def test_a_sample_that_the_judge_refuses_has_no_score_and_the_others_have(server):
    def picky(request):
        return fails(400, "too bright")(request) if max(levels_of(request)) > 200 else None

    server.answers = [lambda request: picky(request) or brighter(request)] * 6
    found = score(server.url, on_failure="neutral")
    assert found["failed"].tolist() == [0, 1, 0, 0]
    assert found["score"].tolist() == pytest.approx([0.5 / 3, 0, 1.5 / 3, 2.5 / 3])


def test_requests_that_may_go_better_are_sent_again(server):
    server.answers = [fails(503, "wait"), None, fails(429, "wait")]
    found = score(server.url, max_attempts=3)
    assert found["score"].tolist() == pytest.approx([0, 1, 1 / 3, 2 / 3])
    assert len(server.requests) == 8


def test_a_silent_server_is_not_asked_about_every_pair():
    def silent(connection, is_over):
        is_over.wait()

    images = torch.rand(12, 3, 16, 16)
    with serving(silent) as (url, requests):
        started = time.monotonic()
        found = score(url, images, on_failure="neutral", timeout=1.0, max_attempts=2, concurrency=2)
        assert found["failed"].tolist() == [1] * 12
        assert time.monotonic() - started < 6  # 66 / 2 * 2 * 1 s, if it were
        assert len(requests) <= 4


def test_a_template_for_single_samples_is_told(server, template):
    with pytest.raises(UserError, match="score is 'yes_no', which is for the reward type 'judge'"):
        score(server.url, template="digen:judges/alignment.toml")
    for names in ('first = "A"\nsecond = " a"', 'first = " "'):
        with pytest.raises(UserError, match="first and second must be two names"):
            score(server.url, template=template(f'{names}\nuser = "{{prompt}}"'))
    for tie in ("LEFT ", "right", " "):
        with pytest.raises(UserError, match=r"tie is .*; use another name than those of first an"):
            score(server.url, template=template(VERDICT.replace("neither", tie)))
    with pytest.raises(RewardError, match=r"names \{mood\}, which the prompt has not"):
        score(server.url, template=template('user = "{mood}"'))


def test_a_text_is_a_question_to_be_answered_with_a_or_b(server, template):
    score(server.url, template=template("Which? {prompt}", "which.txt"), prompt="x")
    assert server.requests[0]["messages"][-1]["content"][-1]["text"] == "Which? x"
    assert json.dumps(server.requests[0]).count("Image A") == 0


def test_it_is_tried_with_one_group_before_the_start(server):
    config = PairwiseConfig(url=server.url, model=MODEL, opponents=6)
    function = Pairwise(config, torch.device("cpu"))
    prompts = [Prompt("a"), Prompt("b")]
    rewards = {"duel": config}
    probe({"duel": function}, rewards, (16, 16, 1), prompts, torch.device("cpu"), pytest.fail)
    assert len(server.requests) == 1
