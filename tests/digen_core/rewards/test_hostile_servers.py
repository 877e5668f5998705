"""The remote reward against real servers that drip, flood, compress and lead elsewhere."""

import gzip
import time
import tracemalloc

import pytest
import torch

from digen_core.config.rewards.servers import RemoteConfig
from digen_core.rewards.attempts import PermanentError, TransientError
from digen_core.rewards.remote import ANSWER_BYTES_PER_SAMPLE, Remote
from digen_core.rewards.scoring import RewardError, score_images
from digen_core.rewards.server import ANSWER_BYTES
from support.raw_servers import OK, drips, floods, sends, serving
from support.waiting import comes_to

IMAGES = torch.zeros(2, 3, 4, 4)
LIMIT = ANSWER_BYTES + ANSWER_BYTES_PER_SAMPLE * len(IMAGES)


def ask(url, **options):
    config = RemoteConfig(url=url, **options)
    return Remote(config, torch.device("cpu"))(IMAGES, ["a", "b"])


DRIPS = {
    "its status": (b"HTTP/1.1 200 ", b"O"),
    "its headers": (OK, b"X-A: b\r\n"),
    "its body": (OK + b"Content-Length: 1000000\r\n\r\n", b" "),
    "its chunks": (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "an error page": (b"HTTP/1.1 500 no\r\nContent-Length: 1000\r\n\r\n", b"x"),
    "nothing but continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.parametrize("case", DRIPS)
def test_a_server_that_drips_is_given_up_in_time(case):
    with serving(drips(*DRIPS[case])) as (url, requests):
        started = time.monotonic()
        with pytest.raises(TransientError, match=r"gave no whole answer in 0.3 s$"):
            ask(url, timeout=0.3)
        assert time.monotonic() - started < 30  # for ever, before
        assert comes_to(lambda: requests)  # on a busy machine it is read after it was given up
        assert len(requests) == 1


def test_all_attempts_have_the_same_limit():
    config = RemoteConfig(url="http://x", timeout=0.2, max_attempts=3, backoff_seconds=0)
    with serving(drips(*DRIPS["its body"])) as (url, requests):
        config = config.model_copy(update={"url": url})
        function = Remote(config, torch.device("cpu"))
        with pytest.raises(RewardError, match=r"in 0.2 s \(attempt 3 of 3\)"):
            score_images({"q": function}, {"q": config}, IMAGES, ["a", "b"])
        assert comes_to(lambda: len(requests) == 3)


def test_no_more_is_read_than_an_answer_can_be_long():
    with serving(floods) as (url, _):
        tracemalloc.start()
        with pytest.raises(PermanentError, match=rf"more than {LIMIT} bytes for 2 samples"):
            ask(url, timeout=60)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 4_000_000


def test_an_answer_that_is_as_long_as_it_may_be_is_read():
    text = b'{"score": [1, 2]}'.ljust(LIMIT)
    head = OK + b"Content-Length: %d\r\n\r\n" % LIMIT
    with serving(sends(head, text)) as (url, _):
        assert ask(url)["score"].tolist() == [1, 2]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_nothing_is_decompressed(encoding):
    bomb = gzip.compress(b" " * 50_000_000)
    head = OK + f"Content-Encoding: {encoding}\r\nContent-Length: {len(bomb)}\r\n\r\n".encode()
    with serving(sends(head, bomb)) as (url, requests):
        tracemalloc.start()
        with pytest.raises(PermanentError, match=f"answered in {encoding}, but was asked for ide"):
            ask(url)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert b"accept-encoding: identity" in requests[0].lower()
    assert peak < 4_000_000


@pytest.mark.parametrize("status", [b"301 Moved", b"302 Found", b"307 Later", b"308 Gone"])
def test_a_token_does_not_follow_a_redirect(status, monkeypatch):
    monkeypatch.setenv("SCORER_TOKEN", "s3cret")
    with serving(sends(OK + b'Content-Length: 17\r\n\r\n{"score": [1, 2]}')) as (other, stolen):
        head = b"HTTP/1.1 " + status + b"\r\nLocation: " + other.encode() + b"\r\n\r\n"
        with (
            serving(sends(head)) as (url, requests),
            pytest.raises(PermanentError, match="a redirect, which is not followed; set"),
        ):
            ask(url, token_variable="SCORER_TOKEN")
        assert b"s3cret" in requests[0]
        assert not stolen
