"""The check for the compiler that torch.compile calls, which comes with the system."""

import os
import shutil

from digen_core.errors import ConfigError


def require_compiler(device_type: str) -> None:
    """Check that the compiler is there that torch.compile calls for a device.

    Args:
        device_type: of torch: ``cpu`` takes a C++ compiler, ``cuda`` a C compiler.

    Raises:
        ConfigError: it is not; the message is one line.
    """
    variable, names = ("CC", ("gcc", "clang")) if device_type == "cuda" else ("CXX", ("g++",))
    asked = os.environ.get(variable)
    if not any(shutil.which(name) for name in ((asked,) if asked else names)):
        raise ConfigError(
            f"model.compile needs a compiler on every worker, but {asked or ' or '.join(names)} is "
            f"not there; install one (on Debian: apt install g++), name it in {variable}, or set "
            "model.compile to false"
        )
