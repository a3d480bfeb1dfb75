"""Speed of diffnum, as ratios of things measured side by side: `make bench`, or `python -m bench`."""
