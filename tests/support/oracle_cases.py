"""Recorded outputs of the published implementations, and how to compare with them.

tests/oracles/ holds what FlowGRPO (July and November 2025), DanceGRPO, MixGRPO, DiffusionNFT
and DDPO returned for stored inputs. The float64 recordings of steps used float32 noise levels,
up-cast, and 0.5 ln(2 pi) in float32.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from digen_core.maths.flow_sde import TRANSITIONS, Transition
from support.paths import ROOT

DATA = ROOT / "tests" / "oracles"
DTYPES = {"f32": torch.float32, "f64": torch.float64}
# Relative to max(1, |expected|): a few roundings of float32 (6e-8 each) where an inverse step size
# enlarges them, and of float64 (1.1e-16). The recording has its own, which may be the larger ones.
ROUNDING = {"f32": 2e-6, "f64": 1e-15}
VALUE_TOLERANCE = ROUNDING
LOGPROB_TOLERANCE = {"f32": ROUNDING["f32"], "f64": 1e-7}


class Case(NamedTuple):
    """One recorded step."""

    file: str
    group: str
    place: int
    precision: str
    label: str

    def recorded(self, key: str) -> torch.Tensor:
        values = oracle(self.file)[f"{self.group}/{self.precision}/{key}"]
        return torch.as_tensor(values[self.place])

    def setting(self, key: str) -> np.generic | np.ndarray:
        values: np.ndarray = oracle(self.file)[f"{self.group}/{key}"]
        found: np.generic | np.ndarray = values[self.place]
        return found

    def given(self, key: str) -> torch.Tensor:
        shape = "packed3d" if self.group == "mix" else self.group.split("_")[1]
        value = oracle(self.file)[f"in/{shape}/{key}"]
        return torch.as_tensor(value).to(DTYPES[self.precision])

    def step(self, transition: str, noise_level: float) -> Transition:
        """Return our transition at this case's inputs, from float32 noise levels."""
        sigmas = self.sigmas().float()
        step = torch.as_tensor(self.setting("step_index"))
        latents = "sample" if self.file == "flowgrpo" else "latents"
        return TRANSITIONS[transition](
            self.given(latents),
            self.given("model_output"),
            sigmas[step],
            sigmas[step + 1],
            noise_level=noise_level,
            sigma_max=float(sigmas[1]),
        )

    def sigmas(self) -> torch.Tensor:
        """Return the schedule, whose float64 values are all exact in float32."""
        return torch.as_tensor(oracle(self.file)[f"sched/{self.setting('schedule')}/sigmas"])

    def sigma_next(self) -> torch.Tensor:
        return self.sigmas()[torch.as_tensor(self.setting("step_index")) + 1]

    def step_size(self) -> torch.Tensor:
        return self.sigmas()[torch.as_tensor(self.setting("step_index"))] - self.sigma_next()


@cache
def oracle(file: str) -> dict[str, np.ndarray]:
    with np.load(DATA / f"{file}.npz", allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files}


def cases(file: str, *groups: str) -> list[Case]:
    found = []
    for group in groups:
        settings = {
            name: values
            for key, values in oracle(file).items()
            for owner, _, name in [key.partition("/")]
            if owner == group and "/" not in name
        }
        for index in range(len(settings["schedule"])):
            label = "-".join(f"{name}={values[index]}" for name, values in settings.items())
            found += [Case(file, group, index, precision, label) for precision in DTYPES]
    return found


def name_of(case: Case) -> str:
    return f"{case.group}-{case.place}-{case.precision}-{case.label}"


def on_each(recorded: Sequence[Case]) -> Callable[[Callable[[Case], None]], Callable[[], None]]:
    """Run a test on each of some cases; an error names the case that it is of."""
    assert recorded

    def decorated(test: Callable[[Case], None]) -> Callable[[], None]:
        def on_all() -> None:
            for case in recorded:
                try:
                    test(case)
                except BaseException as error:
                    error.add_note(f"case {name_of(case)}")
                    raise

        return on_all

    return decorated


def assert_values(case: Case, got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.dtype == DTYPES[case.precision]
    assert_within(got, expected, VALUE_TOLERANCE[case.precision])


def assert_logprobs(case: Case, got: torch.Tensor, expected: torch.Tensor) -> None:
    assert_within(got, expected, LOGPROB_TOLERANCE[case.precision])


def assert_within(got: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Compare in float64; the error is absolute below 1 and relative above."""
    got, expected = got.detach().double(), expected.double()
    assert got.shape == expected.shape
    error = ((got - expected).abs() / expected.abs().clamp(min=1)).max().item()
    assert error <= tolerance


def extra(key: str) -> torch.Tensor:
    """Return an array of extras.npz."""
    return torch.as_tensor(oracle("extras")[key])
