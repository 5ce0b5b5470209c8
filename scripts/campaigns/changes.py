"""Changes to files that whoever means harm might make, or a disk: bytes, and what JSON says."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, "", "x" * 5000, "../../etc/passwd", "\u202e\x1b[31m", [], {}, [[[[]]]], {"a": {"b": 1}},
    0, -1, 1, 2**31 - 1, 2**31, 2**53, 2**63 - 1, -(2**63), 2**64, 1e308, -1e308, 1e-320, 0.5,
)  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """Everything inside, as holder and key."""
    inside: list[Any] = list(value.items() if isinstance(value, dict) else enumerate(value))
    found = [(value, key) for key, _ in inside]
    for _, child in inside:
        if isinstance(child, (dict, list)):
            found += places(child)
    return found


def change_value(root: Any, choose: random.Random) -> Any:
    """One value is another, is gone, or is there twice."""
    if not isinstance(root, (dict, list)) or not root:
        return choose.choice(ODD)
    all_places = places(root)
    holder, key = choose.choice(all_places)
    other_holder, other_key = choose.choice(all_places)
    kind = choose.randrange(6)
    if kind == 0:
        del holder[key]
    elif kind == 1:
        holder[key] = json.loads(json.dumps(other_holder[other_key]))
    elif kind == 2 and isinstance(holder, list):
        holder += [json.loads(json.dumps(holder[key]))] * choose.choice((1, 2, 1000))
    elif kind == 3 and isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
        holder[key] += choose.choice((-1, 1))
    elif kind == 4 and isinstance(holder, dict):
        holder[f"{key}{choose.choice('sx_')}"] = holder.pop(key)
    else:
        holder[key] = choose.choice(ODD)
    return root


def change_json(text: bytes, choose: random.Random) -> bytes:
    try:
        root = json.loads(text)
    except ValueError:
        return change_bytes(text, choose)
    for _ in range(choose.choice((1, 1, 1, 2, 3))):
        root = change_value(root, choose)
    return json.dumps(root).encode()


def change_bytes(data: bytes, choose: random.Random) -> bytes:
    at = choose.randrange(len(data) + 1)
    kind = choose.randrange(7)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes([choose.randrange(256)]) + data[at:]
    if kind == 2:
        return data[:at] + data[at + choose.choice((1, 4, 4096)) :]
    if kind == 3:
        return data[:at] + bytes(choose.choice((8, 4096))) + data[at + 8 :]
    if kind == 4:
        return data + data
    if kind == 5:
        return b""
    return (
        data[:at] + bytes([data[at] ^ 1 << choose.randrange(8)]) + data[at + 1 :] if at < len(data) else data
    )


def change_safetensors(data: bytes, choose: random.Random) -> bytes:
    """The header's values, with the length before it made to fit."""
    length = struct.unpack("<Q", data[:8])[0]
    header = change_json(data[8 : 8 + length], choose)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def change_file(path: Path, choose: random.Random) -> None:
    data = path.read_bytes()
    if choose.random() < 0.3:
        data = change_bytes(data, choose)
    elif path.suffix == ".json":
        data = change_json(data, choose)
    elif path.suffix == ".jsonl":
        lines = data.splitlines(keepends=True)
        at = choose.randrange(len(lines))
        lines[at] = change_json(lines[at], choose) + b"\n"
        data = b"".join(lines)
    elif path.suffix == ".safetensors":
        data = change_safetensors(data, choose)
    else:
        data = change_bytes(data, choose)
    path.write_bytes(data)
