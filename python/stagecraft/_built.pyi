TORCH: str  # the minor, as in 2.15
