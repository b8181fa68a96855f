"""What the whole cluster agrees on: ledgers, bookies, cookies, changed by compare-and-swap.

``store.py`` says what a metadata store offers; the ZooKeeper store keeps Apache BookKeeper's own
tree, the memory store is its twin for tests. Knows nothing of how bookies store entries.
"""
