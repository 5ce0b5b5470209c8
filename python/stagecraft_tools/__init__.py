"""What the Python tools on the command line share."""
