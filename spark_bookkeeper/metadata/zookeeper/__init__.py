"""The metadata store in ZooKeeper, in Apache BookKeeper's own tree."""
