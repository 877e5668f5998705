"""The remote reward against a real HTTP server, which fails, is slow, and answers nonsense."""

import json
import pickle
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pyarrow as pa
import pytest
import torch

from digen_core.config.rewards.servers import RemoteConfig
from digen_core.errors import UserError
from digen_core.rewards.pixels import as_pixels
from digen_core.rewards.remote import Remote
from digen_core.rewards.remote_protocol import ARROW, JSON, Request, decode_request, encode_request
from digen_core.rewards.scoring import RewardError, score_images

IMAGES = torch.rand(5, 3, 6, 8, generator=torch.Generator().manual_seed(0))
VIDEOS = torch.rand(5, 4, 3, 6, 8, generator=torch.Generator().manual_seed(1))
PROMPTS = ["a", "bb", 'ä "c"\n', "dddd", ""]


def judge(pixels, prompts):
    """Mean red, and the length of the prompt."""
    red = pixels[..., 0].reshape(len(pixels), -1).mean(axis=1)
    return {"score": (red / 255).tolist(), "letters": [len(prompt) for prompt in prompts]}


class Server:
    """A scorer of the protocol; a test puts its misbehaviour into ``answers``."""

    def __init__(self):
        self.requests, self.answers, self.metadata, self.sources = [], [], [], []
        self.more_sources = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = decode_request(body, self.headers["Content-Type"])
                pixels, prompts = request.samples, request.prompts
                outer.requests.append((pixels, prompts, dict(self.headers)))
                outer.metadata += request.metadata
                outer.sources.append(request.sources)
                outer.more_sources.append(request.more_sources)
                answer = outer.answers.pop(0) if outer.answers else None
                status, text, *more = (answer or outer.honest)(pixels, prompts)
                self.send_response(status)
                for name, value in (more[0] if more else {}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda *args: None  # who asked may have had enough
        self.url = f"http://127.0.0.1:{self._server.server_port}/score"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def honest(self, pixels, prompts):
        return 200, json.dumps(judge(pixels, prompts)).encode()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


def says(status, text):
    """Return an answer whatever the request."""
    return lambda pixels, prompts: (status, text.encode())


def score(server, samples=IMAGES, metadata=(), sources=None, more=None, **options):
    options = {"backoff_seconds": 0, "max_attempts": 1, "url": server.url, **options}
    config = RemoteConfig(**options)
    function = Remote(config, torch.device("cpu"))
    asked = PROMPTS, metadata, sources, more
    return score_images({"quality": function}, {"quality": config}, samples, *asked)


@pytest.mark.parametrize("body", ["arrow", "json"])
def test_images_arrive_bit_for_bit_and_scores_come_back(server, body):
    found = score(server, body=body)
    expected = judge(as_pixels(IMAGES), PROMPTS)
    np.testing.assert_array_equal(found["quality/score"], expected["score"])
    np.testing.assert_array_equal(found["quality/letters"], expected["letters"])
    ((pixels, prompts, headers),) = server.requests
    assert (pixels.dtype, prompts) == (np.uint8, PROMPTS)
    np.testing.assert_array_equal(pixels, as_pixels(IMAGES))
    assert headers["Content-Type"] == {"arrow": ARROW, "json": JSON}[body]


@pytest.mark.parametrize("body", ["arrow", "json"])
def test_what_samples_are_edits_of_arrives(server, body):
    sources = torch.rand(IMAGES.shape)
    score(server, sources=sources, body=body, batch_size=3)
    np.testing.assert_array_equal(np.concatenate(server.sources), as_pixels(sources))
    score(server, body=body)
    assert server.sources[-1] is None


@pytest.mark.parametrize("body", ["arrow", "json"])
def test_all_that_samples_are_edits_of_arrives(server, body):
    sources = torch.rand(IMAGES.shape)
    numbers = [0, 2, 1, *[0] * (len(IMAGES) - 3)]
    more = [torch.rand(number, *IMAGES.shape[1:]) for number in numbers]
    score(server, sources=sources, more=more, body=body, batch_size=3)
    np.testing.assert_array_equal(np.concatenate(server.sources), as_pixels(sources))
    first, *others = server.more_sources
    for found, expected in zip(first, more[:3], strict=True):
        np.testing.assert_array_equal(found, as_pixels(expected))
    assert others == [None] * len(others)


@pytest.mark.parametrize("body", ["arrow", "json"])
def test_what_rows_say_about_prompts_arrives(server, body):
    metadata = [{"spec": {"class": "dog", "n": n}, "tag": None} for n in range(len(PROMPTS))]
    score(server, metadata=metadata, body=body, batch_size=2)
    assert server.metadata == metadata
    score(server, VIDEOS, metadata=metadata, frame_stride=3)
    frames = [row for row in metadata for _ in range(2)]
    assert server.metadata[len(metadata) :] == frames


def test_without_metadata_it_gets_empty_objects(server):
    score(server)
    assert server.metadata == [{}] * len(PROMPTS)


@pytest.mark.parametrize("body", ["arrow", "json"])
def test_videos_arrive_whole(server, body):
    score(server, VIDEOS, body=body, takes="videos", batch_size=2)
    sent = np.concatenate([pixels for pixels, _, _ in server.requests])
    np.testing.assert_array_equal(sent, as_pixels(VIDEOS))


def test_without_takes_videos_it_is_sent_frames(server):
    found = score(server, VIDEOS, frame_stride=3)
    ((pixels, prompts, _),) = server.requests
    assert pixels.shape == (10, 6, 8, 3)
    assert prompts == [prompt for prompt in PROMPTS for _ in range(2)]
    red = as_pixels(VIDEOS[:, ::3])[..., 0].mean(axis=(1, 2, 3)) / 255
    np.testing.assert_allclose(found["quality/score"], red)


@pytest.mark.parametrize(("size", "batches"), [(1, [1] * 5), (2, [2, 2, 1]), (8, [5])])
def test_batches_are_of_the_size_asked_for(server, size, batches):
    found = score(server, batch_size=size)
    assert [len(prompts) for _, prompts, _ in server.requests] == batches
    np.testing.assert_array_equal(
        found["quality/score"], judge(as_pixels(IMAGES), PROMPTS)["score"]
    )


def test_a_group_is_one_request_whatever_the_size(server):
    score(server, batch_size=2, sees="groups")
    assert [len(prompts) for _, prompts, _ in server.requests] == [5]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_in_trouble_is_asked_again(server, status):
    server.answers = [says(status, "busy"), says(status, "busy")]
    score(server, max_attempts=3)
    assert len(server.requests) == 3
    server.answers = [says(status, "please\n wait")] * 9
    with pytest.raises(RewardError, match=rf"'quality' failed: http.* answered {status}: please w"):
        score(server, max_attempts=2)


def test_a_server_that_refuses_is_not_asked_again(server):
    server.answers = [says(400, "images too small")]
    with pytest.raises(RewardError, match=r"score answered 400: images too small$"):
        score(server, max_attempts=5)
    assert len(server.requests) == 1


def test_a_slow_server_is_given_up_and_asked_again(server):
    given_up = threading.Event()

    def slow(pixels, prompts):
        given_up.wait(60)
        return server.honest(pixels, prompts)

    server.answers = [slow, None]
    started = time.monotonic()
    score(server, timeout=2.0, max_attempts=2)  # in which a busy machine answers, too
    assert time.monotonic() - started < 30
    server.answers = [slow]
    with pytest.raises(RewardError, match=r"gave no whole answer in 0.2 s$"):
        score(server, timeout=0.2)
    given_up.set()


def test_a_server_that_is_not_there_is_named(server):
    server.close()
    with pytest.raises(
        RewardError, match=r"127.0.0.1:\d+/score cannot be reached: All connection attempts fai"
    ):
        score(server)
    server.close = lambda: None


WRONG = {
    "NaN": ('{"score": [1, NaN, 1, 1, 1]}', "'quality' returned nan for image 1 of 5"),
    "Inf": ('{"score": [1, 1, 1, 1, -Infinity]}', "'quality' returned -inf for image 4 of 5"),
    "too few": ('{"score": [1, 2]}', "answered 2 numbers as 'score' for 5 samples"),
    "too many of a part": (
        '{"score": [1, 2, 3, 4, 5], "x": [1, 2, 3, 4, 5, 6]}',
        "answered 6 numbers as 'x' for 5 samples",
    ),
    "null": ('{"score": [1, null, 1, 1, 1]}', "as 'score', not a list of numbers"),
    "words": ('{"score": "good"}', "answered 'good' as 'score', not a list of numbers"),
    "truth": ('{"score": [true, true, true, true, true]}', "not a list of numbers"),
    "no score": ('{"scores": [1]}', "not an object with a list 'score'"),
    "a list": ("[1, 2, 3, 4, 5]", r"answered \[1, 2, 3, 4, 5\], not an object with a list 'score'"),
    "HTML": ("<html>", "answered what is not JSON: Expecting value"),
    "nothing": ("", "answered what is not JSON"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_answer_outside_the_protocol_is_refused(server, case):
    text, message = WRONG[case]
    server.answers = [says(200, text)]
    with pytest.raises(RewardError, match=message):
        score(server, max_attempts=3)
    assert len(server.requests) == 1


def test_a_pickle_is_not_opened(server):
    body = pickle.dumps({"score": [1.0] * 5})
    server.answers = [lambda pixels, prompts: (200, body)]
    with pytest.raises(RewardError, match="answered what is not JSON"):
        score(server)


def test_components_that_change_between_batches_are_refused(server):
    server.answers = [None, says(200, '{"score": [1, 2]}')]
    with pytest.raises(RewardError, match=r"answered \['score'\] for one batch and \['letters'"):
        score(server, batch_size=2)


def test_a_failed_server_can_be_neutral(server):
    server.answers = [says(500, "down")] * 2
    found = score(server, on_failure="neutral", max_attempts=2)
    assert found["quality/failed"].tolist() == [1] * 5
    server.answers = [says(200, '{"score": [1, NaN, 3, 4, 5]}')]
    found = score(server, on_failure="neutral")
    assert found["quality/failed"].tolist() == [0, 1, 0, 0, 0]


def test_a_token_is_sent_and_must_be_there(server, monkeypatch):
    monkeypatch.setenv("SCORER_TOKEN", "s3cret")
    score(server, token_variable="SCORER_TOKEN")
    assert server.requests[0][2]["Authorization"] == "Bearer s3cret"
    monkeypatch.delenv("SCORER_TOKEN")
    with pytest.raises(UserError, match="the environment variable SCORER_TOKEN, which is not se"):
        score(server, token_variable="SCORER_TOKEN")


@pytest.mark.parametrize("token", ["s3cret\n", "s3 cret", "s3cret\u00e4", "\x7fs3cret"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_told(server, monkeypatch, token):
    monkeypatch.setenv("SCORER_TOKEN", token)
    with pytest.raises(UserError, match="variable SCORER_TOKEN, whose value has a bl") as caught:
        score(server, token_variable="SCORER_TOKEN")
    assert "cret" not in str(caught.value)


def test_a_server_that_asks_for_a_pause_gets_it(server):
    busy = says(503, "busy")
    server.answers = [lambda *asked: (*busy(*asked), {"Retry-After": "0.3"})]
    started = time.monotonic()
    score(server, max_attempts=2)
    assert time.monotonic() - started >= 0.3
    assert len(server.requests) == 2


def test_numbers_that_are_none_are_refused(server):
    for text, message in (
        ("[" * 30_000 + "]" * 30_000, "answered lists in lists in lists"),
        ('{"score": [1, 1, 1, 1, 1' + "0" * 400 + "]}", "an integer that is too large for a numb"),
        ('{"score": [1, 1, 1, 1, 1' + "0" * 9000 + "]}", "answered what is not JSON: Exceeds"),
    ):
        server.answers = [says(200, text)]
        with pytest.raises(RewardError, match=message):
            score(server, max_attempts=3)
    assert len(server.requests) == 3


def test_the_arrow_body_is_read_by_any_arrow():
    request = Request(as_pixels(IMAGES), PROMPTS, [{}] * len(PROMPTS))
    table = pa.ipc.open_stream(encode_request(request, "arrow")).read_all()
    assert table.schema.names == ["prompt", "metadata", "sample"]
    assert table.schema.field("sample").type == pa.fixed_shape_tensor(pa.uint8(), (6, 8, 3))
    assert table["prompt"].to_pylist() == PROMPTS


def test_another_content_type_is_refused():
    with pytest.raises(ValueError, match="content type 'application/x-pickle'; use"):
        decode_request(b"", "application/x-pickle")
