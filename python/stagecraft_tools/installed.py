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
    """Whether `file` lies in one of them. A package that was installed from its own folder (`pip install
    -e`) is the user's."""
    return os.path.realpath(file).startswith(folders())
