"""The figures of the README: each beside a peer, both in one run, in turn; medians and ratios."""
