"""Which files are Python's own or of installed packages: all others are the user's."""

import functools
import os
import site
import sysconfig


@functools.cache
def folders() -> tuple[str, ...]:
    """Where Python and its packages lie, each with a separator at its end; those of the machine and of the
    user, too, which a virtual environment may see."""
    named = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    named += site.getsitepackages()
    if site.ENABLE_USER_SITE:
        named.append(site.getusersitepackages())
    return tuple(sorted({os.path.realpath(folder) + os.sep for folder in named if folder}))


def is_installed(file: str) -> bool:
    """Whether `file` lies in one of them, or in a folder that is called as those of packages are: of another
    environment, which .pth files, PYTHONPATH or Nix let this one see. A package that was installed from its
    own folder (`pip install -e`) is the user's."""
    real = os.path.realpath(file)
    return real.startswith(folders()) or not _OF_PACKAGES.isdisjoint(real.split(os.sep)[:-1])


_OF_PACKAGES = frozenset({"site-packages", "dist-packages"})
