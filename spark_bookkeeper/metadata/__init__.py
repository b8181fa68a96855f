"""The metadata on which the whole cluster agrees: ledgers, bookies, cookies.

``store.py`` defines the store; each change is a compare-and-swap. The ZooKeeper store keeps
BookKeeper's own tree, the memory store is its twin for tests. Nothing here reads or writes entries.
"""
