"""Pages are followed: what they train is trained, shorter, and what follows is done with that.

Other commands are checked up to where they would begin: test_printed_commands.py.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.pages import PAGES, ROOT, parts_of, read_page

FOLLOWED = [
    "README.md",
    "docs/install.md",
    "docs/models.md",
    "docs/rewards.md",
    "docs/samples.md",
    "docs/tutorials/own-reward.md",
]
ELSEWHERE = {
    "docs/checkpoints.md": "goes on with a run; README.md does so, too",
    "docs/clusters.md": "on a cluster; tests/operation has its own",
    "docs/recipes.md": "models of a hub",
    "docs/tracking.md": "other places; tests/tasks/tracking/test_also.py has its own",
    "docs/tutorials/pairs.md": "takes long; tests/integration/test_pairs_page.py has fewer pairs",
    "docs/tutorials/small-cards.md": "gangs; tests/integration/test_stages.py has its own",
    "docs/tutorials/two-sites.md": "two sites; tests/integration/test_pushed_bytes.py has its own",
}
DONE = ("train", "evaluate", "replay", "compare", "report", "config", "make-tiny")
NOT_HERE = {
    "--suite ": "a suite's prompts and models; tests/integration/test_suites.py has its own",
    "--rewards.clipscore": "a CLIP model; tests/integration/test_suites.py has other rewards",
}
"""What a command that is not done names, and what it would need."""
SHORT = {"--evaluation.samples-per-prompt": "1", "--max-minutes": "5"}
MOST_ITERATIONS = 4
DIGEN = [sys.executable, "-c", "from deployments.cli import main; main()"]


def trains(page: Path) -> bool:
    """Whether a page has a command that trains and is not refused."""
    commands = read_page(page.read_text()).commands
    return any(
        re.match(r"(?:\S+=\S+ )?(?:\.venv/bin/)?digen train ", command.text)
        and "digen: " not in command.answer
        for command in commands
        if not command.is_mention
    )


def test_every_page_that_trains_is_followed():
    found = {page.relative_to(ROOT).as_posix() for page in PAGES if trains(page)}
    assert found == {*FOLLOWED, *ELSEWHERE}


class Follower:
    """Somebody who does what a page says, in a folder of their own."""

    def __init__(self, folder: Path, api_url: str) -> None:
        self.folder = folder
        self._iterations, self._background = 1, []
        hidden = ("DASK_SCHEDULER_ADDRESS", "MLFLOW_TRACKING_URI")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        self._environment = environment | {"PREFECT_API_URL": api_url, "PYTHONPATH": str(ROOT)}

    def follow(self, text: str) -> list[str]:
        """Do what a command line says, if it is one that is done here; return what was done."""
        done = []
        words, *others = parts_of(text)
        environment = dict(self._environment)
        while re.fullmatch(r"[A-Z_]+=.*", words[0]):
            name, _, value = words.pop(0).partition("=")
            environment[name] = f"{value}:{environment.get(name, '')}"
        program = words.pop(0).removeprefix(".venv/bin/")
        out = self.folder / others[0][1] if others and others[0][:1] == [">"] else None
        if program == "python" and words[0].endswith(".py"):
            command = [sys.executable, *words]
            self._background.append(subprocess.Popen(command, cwd=self.folder, env=environment))
        elif (program == "python" and "runs/NAME" in words[1]) or program == "digen":
            words = self._shortened([self._named(word) for word in words])
            if program == "python" or words[:1] in [[name] for name in DONE]:
                command = [*(DIGEN if program == "digen" else [sys.executable]), *words]
                self._call(command, environment, out)
                done.append(" ".join([program, *words]))
        return done

    def end(self) -> None:
        """End what still runs."""
        for process in self._background:
            process.terminate()
            process.wait()

    def _call(self, command: list[str], environment: dict, out: Path | None) -> None:
        called = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=900
        )
        assert called.returncode == 0, f"{command}: {called.stderr}"
        if out:
            out.write_text(called.stdout)

    def _named(self, word: str) -> str:
        """Put the newest run, and the one before, for runs/NAME and runs/OTHER."""
        if "runs/" not in word:
            return word
        configs = self.folder.glob("runs/*/config.json")
        runs = sorted((path.parent for path in configs), key=lambda run: run.stat().st_ctime)
        names = [f"runs/{run.name}" for run in runs][::-1]
        word = word.replace("runs/NAME", names[0])
        return word.replace("runs/OTHER", names[-1])

    def _shortened(self, words: list[str]) -> list[str]:
        if words[:1] == ["replay"]:
            return [*words[:2], str(min(int(words[2]), self._iterations)), *words[3:]]
        if words[:1] != ["train"] or ("--resume" in words and "auto" not in words):
            return words  # a run goes on with what it began with
        if "--num-iterations" not in words:
            words = [*words, "--num-iterations", "1"]
        place = words.index("--num-iterations") + 1
        self._iterations = min(int(words[place]), MOST_ITERATIONS)
        words[place] = str(self._iterations)
        return [*words, *(part for pair in SHORT.items() for part in pair)]


@pytest.fixture
def follower(tmp_path):
    from support.prefect_process import PrefectProcess

    server = PrefectProcess(tmp_path)
    server.start()
    here = tmp_path / "here"
    here.mkdir()
    found = Follower(here, server.api_url)
    yield found
    found.end()
    server.stop()


@pytest.mark.operation
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FOLLOWED)
def test_a_page_is_followed(name, follower):
    page = read_page((ROOT / name).read_text())
    for file, content in page.files.items():
        (follower.folder / file).write_text(content)
    done = []
    for command in page.commands:
        if command.is_mention or "digen: " in command.answer:
            continue
        if any(named in command.text for named in NOT_HERE):
            continue
        done += follower.follow(command.text)
    assert any(text.startswith("digen train") for text in done), done
