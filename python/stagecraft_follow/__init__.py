"""stagecraft-follow: a run's figures, in the tool that people already have open."""
