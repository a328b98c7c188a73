"""Runs whose worker is gone, and work that gave up.

`places` finds a source's tables, `reading` reads runs, `executors` tells which workers live, `leased` and `queued`
change runs, `buried` reads work that gave up and `reviving` brings it back; `store` and `work` are the run store's own
writing side, which defines what these words mean.
"""
