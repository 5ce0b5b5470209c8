"""Folders of images as arrays that `stagecraft train` reads ("data": {"type": "arrays"})."""
