"""What a trained language model writes behind a prompt: `stagecraft generate`."""
