"""The slot log: how one storage partition stores the entries of its ledgers, and is fenced.

``FORMAT.md`` describes the files. This package does not use the metadata store.
"""
