#!/usr/bin/env python3
"""Looks at the headers of an install tree: they include each other as <stagecraft/...>, the standard library
and ATen/core/Tensor.h, and nothing else.

    public_headers.py INCLUDE_DIR
"""

import re
import sys
from pathlib import Path


def main():
    root = Path(sys.argv[1])
    headers = sorted(root.rglob("*.h"))
    wrong = [] if headers else [f"{root}: no headers"]
    for header in headers:
        text = header.read_text()
        wrong += [
            f"{header}: {name} is not installed"
            for name in re.findall(r"#include <(stagecraft/[^>]+)>", text)
            if not (root / name).is_file()
        ]
        # The standard library's names have neither a folder nor a dot.
        wrong += [
            f"{header}: includes <{name}>"
            for name in re.findall(r"#include <([^>]+)>", text)
            if ("/" in name or "." in name)
            and name != "ATen/core/Tensor.h"
            and not name.startswith("stagecraft/")
        ]
    print("\n".join(wrong) if wrong else f"{len(headers)} public headers stand by themselves")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
