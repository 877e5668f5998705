"""A scorer for stories: rewards of a config behind HTTP, each under its name.

    python -m deployments.chaos.scorer PORT REWARDS

REWARDS is a file of JSON, the config's table of these rewards.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch

from deployments.chaos.services import TABLE
from digen_core.config.rewards import CalledConfig
from digen_core.rewards import reward_functions
from digen_core.rewards.remote_protocol import Request, decode_request
from digen_core.rewards.scoring import RewardFn, score_images


class Scorer(ThreadingHTTPServer):
    """Answers with what rewards find."""

    def __init__(self, port: int, configs: dict[str, CalledConfig]) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self._configs = configs
        self._functions: dict[str, RewardFn] = reward_functions(configs, torch.device("cpu"))

    def answer(self, name: str, request: Request) -> dict[str, list[float]]:
        """Return the components of a reward, by name."""
        images = torch.tensor(request.samples).movedim(-1, -3) / 255
        one, config = {name: self._functions[name]}, {name: self._configs[name]}
        asked = request.prompts, request.metadata
        sources = more = None
        if request.sources is not None:
            sources = torch.tensor(request.sources).movedim(-1, -3) / 255
        if request.more_sources is not None:
            more = [torch.tensor(own).movedim(-1, -3) / 255 for own in request.more_sources]
        found = score_images(one, config, images, *asked, sources, more)
        own = f"{name}/"
        return {
            key.removeprefix(own): values.tolist()
            for key, values in found.items()
            if key.startswith(own)
        }


class Handler(BaseHTTPRequestHandler):
    """Of one request."""

    server: Scorer

    def do_POST(self) -> None:
        """Score what is sent."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = decode_request(body, self.headers["Content-Type"])
        answer = json.dumps(self.server.answer(self.path.removeprefix("/"), request)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def main() -> None:
    """Serve until it is ended."""
    rewards = TABLE.validate_json(Path(sys.argv[2]).read_bytes())
    Scorer(int(sys.argv[1]), rewards).serve_forever()


if __name__ == "__main__":
    main()
