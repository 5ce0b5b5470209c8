"""Imported before PyTorch: none of its thousands of modules is garbage, and looking for some makes a process
start and end a second later."""

import atexit
import gc

gc.disable()
atexit.register(gc.freeze)
