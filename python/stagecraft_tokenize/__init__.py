"""Text as a file of tokens that `stagecraft train` reads ("data": {"type": "tokens"})."""
