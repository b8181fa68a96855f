"""Files on a disk or in a bucket: the interface, its back ends, batches of requests, time limits.

``storage.py`` defines the interface of a back end; ``roots.py`` opens the back end of a URI.
"""
