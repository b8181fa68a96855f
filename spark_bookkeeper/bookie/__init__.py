"""The slot log: how one storage partition holds the entries of its ledgers, and is fenced.

``FORMAT.md`` describes the files. Knows nothing of the metadata store.
"""
