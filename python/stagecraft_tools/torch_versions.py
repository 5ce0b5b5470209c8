"""The versions of torch that Stagecraft works with: torch_versions.txt."""

import importlib.metadata
import os
from typing import NamedTuple


class Version(NamedTuple):
    torch: str
    torchvision: str

    @property
    def minor(self) -> str:
        return minor(self.torch)


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def read() -> list[Version]:
    with open(
        os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_versions.txt"), encoding="utf-8"
    ) as lines:
        return [Version(*line.split()) for line in lines if line.strip() and not line.startswith("#")]


VERSIONS = read()


def installed() -> str | None:
    """The version of the torch that this Python would import, or None. It is not imported, which takes
    seconds."""
    try:
        return importlib.metadata.version("torch").split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def version_like(version: str | None) -> Version | None:
    """The one of that minor, or None."""
    return next((v for v in VERSIONS if version and v.minor == minor(version)), None)
