"""A cluster on this machine: an embedded ZooKeeper, bookies in a directory, and their processes."""
