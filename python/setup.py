"""What pyproject.toml cannot say: the versions of torch stand in stagecraft_tools/torch_versions.txt
alone."""

import os
import runpy
from typing import Any

from setuptools import setup

VERSIONS = runpy.run_path(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "stagecraft_tools", "torch_versions.py")
)["VERSIONS"]


def within(name: str, versions: Any) -> str:
    """Any patch of one of the minors: `name>=2.11,<2.16,!=2.12.*,...`."""
    minors = sorted(tuple(int(part) for part in version.split(".")[:2]) for version in versions)
    (major, first), (_, last) = minors[0], minors[-1]
    without = [f"!={major}.{minor}.*" for minor in range(first, last) if (major, minor) not in minors]
    return f"{name}{','.join([f'>={major}.{first}', f'<{major}.{last + 1}', *without])}"


setup(
    install_requires=[within("torch", [v.torch for v in VERSIONS]), "safetensors", "numpy"],
    extras_require={
        "models": [
            "transformers",
            "tokenizers",
            "pillow",
            within("torchvision", [v.torchvision for v in VERSIONS]),
        ]
    },
)
