"""Files on a disk or in a bucket: the interface, its back ends, batches of requests, time limits.

``storage.py`` says what a back end must offer; ``roots.py`` opens the one that a URI names.
"""
