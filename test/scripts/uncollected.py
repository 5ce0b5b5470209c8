"""Imported before PyTorch: none of its thousands of modules is garbage, and looking for some takes a process a second at its start and end."""

import atexit
import gc

gc.disable()
atexit.register(gc.freeze)
