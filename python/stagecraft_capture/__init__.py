"""Captures PyTorch modules as folders that Stagecraft trains (docs/reference/model_folder.md)."""
