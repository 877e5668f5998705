"""Servers that speak OpenAI's chat completions: one that a test scripts, one with a tiny model."""

import base64
import json
import math
import string
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

Request = dict[str, Any]
Answer = Callable[[Request], Any]
"""Returns a body, or a status with headers and a body."""

MODEL = "tiny/judge"


class JudgeServer:
    """Answers every request with the same text and log-probs, unless ``answers`` say otherwise."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.requests: list[Request] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[Answer] = []
        self.seconds = 0.0
        self.in_flight = self.peak = 0
        self.models = [MODEL]
        self._lock = threading.Lock()
        self._answer = answer or (lambda request: says(yes=0.75, no=0.25))
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                known = self.path == "/v1/models" and outer.models is not None
                tree = {"data": [{"id": name} for name in outer.models]} if known else {}
                self.reply(200 if known else 404, {}, json.dumps(tree).encode())

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer._lock:
                    outer.requests.append(request)
                    outer.headers.append(dict(self.headers))
                    answer = outer.answers.pop(0) if outer.answers else None
                    outer.in_flight += 1
                    outer.peak = max(outer.peak, outer.in_flight)
                time.sleep(outer.seconds)
                found = (answer or outer.answer)(request)
                with outer._lock:
                    outer.in_flight -= 1
                if self.path != "/v1/chat/completions":
                    found = fails(404, '{"detail":"Not Found"}')(request)
                self.reply(*(found if isinstance(found, tuple) else (200, {}, found)))

            def reply(
                self, status: int, headers: dict[str, str], body: bytes | dict[str, Any]
            ) -> None:
                body = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *args: object) -> None:
                pass  # who asked may have had enough

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def answer(self, request: Request) -> Any:
        if self.models is not None and request["model"] not in self.models:
            return (
                404,
                {},
                {"error": {"message": f"The model `{request['model']}` does not exist."}},
            )
        return self._answer(request)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def judging(answer: Answer | None = None) -> Iterator[JudgeServer]:
    """Yield a server that runs."""
    server = JudgeServer(answer)
    try:
        yield server
    finally:
        server.close()


def says(text: str = "", finish_reason: str = "stop", **probabilities: float) -> dict[str, Any]:
    """Return a chat completion with a text, and the first token's probabilities by token."""
    top = [{"token": t, "logprob": math.log(p)} for t, p in probabilities.items()]
    logprobs = {"content": [{**top[0], "top_logprobs": top}]} if top else None
    choice = {"message": {"role": "assistant", "content": text}, "logprobs": logprobs}
    return {"choices": [{"index": 0, "finish_reason": finish_reason, **choice}]}


def fails(status: int, text: str = "", **headers: str) -> Answer:
    """Return an answer with a status, whatever the request."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda request: (status, named, text.encode())


def images_of(request: Request) -> tuple[list[np.ndarray], list[str]]:
    """Return the images of a request as arrays of uint8, and the kinds of their files."""
    content = request["messages"][-1]["content"]
    addresses = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    kinds = [address.partition(";")[0] for address in addresses]
    files = [BytesIO(base64.b64decode(address.partition(",")[2])) for address in addresses]
    return [np.asarray(Image.open(file).convert("RGB")) for file in files], kinds


def texts_of(request: Request) -> tuple[str, str]:
    """Return the texts of system and user; the former may be none."""
    system = [m["content"] for m in request["messages"] if m["role"] == "system"]
    (user,) = [p["text"] for p in request["messages"][-1]["content"] if p["type"] == "text"]
    return "".join(system), user


class TinyVlm:
    """A LLaVA of random weights: CLIP's vision tower and a Llama, of a few thousand parameters."""

    def __init__(self, letters: str = string.ascii_lowercase[:10]) -> None:
        import torch
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import (
            CLIPImageProcessor,
            CLIPVisionConfig,
            LlamaConfig,
            LlavaConfig,
            LlavaForConditionalGeneration,
            LlavaProcessor,
            PreTrainedTokenizerFast,
        )

        self._lock = threading.Lock()
        # Few enough that all are among the 20 likeliest tokens; a prompt is read by its letters.
        self.tokens = [
            "<unk>", "<image>", "yes", "Yes", " yes", "YES", "no", "No", "\u2581no", "maybe",
            *letters,
        ]  # fmt: skip
        vocabulary = {token: index for index, token in enumerate(self.tokens)}
        words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=words, unk_token="<unk>", pad_token="<unk>", eos_token="<unk>",
            additional_special_tokens=["<image>"],
        )  # fmt: skip
        sides = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
        vision = CLIPVisionConfig(**sides, num_hidden_layers=2, image_size=32, patch_size=8)
        text = LlamaConfig(
            **sides, num_hidden_layers=2, vocab_size=len(self.tokens), max_position_embeddings=4096,
        )  # fmt: skip
        torch.manual_seed(0)
        self.model = LlavaForConditionalGeneration(
            LlavaConfig(
                vision_config=vision,
                text_config=text,
                image_token_index=1,
                vision_feature_layer=-1,
            )
        ).eval()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(5)  # so that images and prompts make a difference
        self.processor = LlavaProcessor(
            CLIPImageProcessor(
                size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
            ),
            tokenizer, patch_size=8, vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        )  # fmt: skip

    def log_probs(self, images: list[np.ndarray], system: str, user: str) -> dict[str, float]:
        """Return the log-probs of the first token of the answer, by token."""
        import torch

        text = f"{system}{'<image>' * len(images)}{user}"
        files = [Image.fromarray(image) for image in images]
        with self._lock:  # fast tokenizers are one thread's
            inputs = self.processor(images=files, text=text, return_tensors="pt")
        with torch.no_grad():
            logits = self.model(**inputs).logits[0, -1].double()
        return dict(zip(self.tokens, logits.log_softmax(-1).tolist(), strict=True))

    def answer(self, request: Request) -> Any:
        """Answer a request as such servers do."""
        images, _ = images_of(request)
        found = self.log_probs(images, *texts_of(request))
        top = sorted(found.items(), key=lambda pair: -pair[1])[: request["top_logprobs"]]
        entries = [{"token": token, "logprob": logprob} for token, logprob in top]
        tree = says(top[0][0], "length")
        tree["choices"][0]["logprobs"] = {"content": [{**entries[0], "top_logprobs": entries}]}
        return tree
