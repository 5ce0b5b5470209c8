"""What the bundle needs of its machine: torch, an environment, hosts that answer."""

import glob
import hashlib
import importlib.util
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SSH_SECONDS = 5  # for the connection; thrice that for the answer


def refuse(text):
    """It cannot begin."""
    print("gpu_first: " + " ".join(str(text).split()), file=sys.stderr)
    sys.exit(2)


def manifest():
    """check.py has read it already."""
    return json.loads((ROOT / "MANIFEST.json").read_text(encoding="utf-8"))


def torch_folder(facts):
    """(folder, version) of the torch that this python3 imports; it is not imported, which takes seconds.
    Refuses one of another minor, or for another CUDA, than the programs were linked to."""
    minor, cuda = ".".join(facts["torch"].split(".")[:2]), str(facts["cuda"])
    needed = (
        f"this bundle needs torch {minor} for CUDA {cuda} (its programs load libcudart.so.{cuda}); PYTHON=..."
        " names another python3"
    )
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        return refuse(f"{sys.executable} has no torch; {needed}")
    folder = Path(found.submodule_search_locations[0])
    try:
        text = (folder / "version.py").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        refuse(f"{folder}/version.py: {error}; {needed}")
    said = [
        re.search(rf"^{name}\b[^=\n]*= *'([^']*)'", text, re.MULTILINE) for name in ("__version__", "cuda")
    ]
    version = said[0].group(1) if said[0] else "of unknown version"
    built_for = said[1].group(1) if said[1] else None
    if minor.split(".") != version.split(".")[:2] or built_for is None or built_for.split(".")[0] != cuda:
        refuse(
            f"{sys.executable} has torch {version} for {f'CUDA {built_for}' if built_for else 'no CUDA'};"
            f" {needed}"
        )
    return folder, version


def environment(torch):
    libraries = [
        ROOT / "lib",
        ROOT / "openmpi/lib",
        torch / "lib",
        *map(Path, sorted(glob.glob(f"{torch.parent}/nvidia/*/lib"))),
    ]
    # a container's driver may be there
    libraries += filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    base = {
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        "OPAL_PREFIX": str(ROOT / "openmpi"),
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        # Open MPI 5 asks netlink for the way from a machine to itself, finds none, and complains.
        "OMPI_MCA_reachable": "^netlink",
        "HOME": str(ROOT),  # where there is none, Open MPI does not start
        "STAGECRAFT_CAPTURED_MODELS": str(ROOT / "data/captured"),  # test_gpu's
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IGNORE_CPU_AFFINITY": "1",
    }
    return {**base, **os.environ, **{name: base[name] for name in ("LD_LIBRARY_PATH", "OPAL_PREFIX")}}


def is_here(host):
    """Whether it is this machine, to which Open MPI needs no ssh: an address of it can be bound."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as ours:
            ours.bind(address)
        return True
    except (OSError, UnicodeError):
        return False


def not_reached(host):
    """Text: why nothing can be started there, or None."""
    if is_here(host):
        return None
    path = ROOT / "MANIFEST.json"
    same = (
        f"echo {hashlib.sha256(path.read_bytes()).hexdigest()} {shlex.quote(f' {path}')} | sha256sum -c"
        " --status"
    )
    command = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={SSH_SECONDS}", host, same]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=3 * SSH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{host}: ssh has not answered after {3 * SSH_SECONDS} s"
    except OSError as error:
        return f"{host}: ssh cannot be started: {error.strerror}"
    if done.returncode == 0:
        return None
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    if done.returncode == 255 or not lines:
        without = "ssh failed" if done.returncode == 255 else f"another bundle is in {ROOT}"
        return f"{host}: {lines[-1] if lines else without}"
    return f"{host}: this bundle is not in {ROOT}: {lines[-1]}"


def reach(hosts):
    """All at once, before the first part begins."""
    with ThreadPoolExecutor(len(hosts)) as pool:
        silent = list(filter(None, pool.map(not_reached, hosts)))
    if silent:
        refuse(f"--hosts: {'; '.join(silent)}")
