"""Runs that are hurt at random and compared with runs that were left alone."""
