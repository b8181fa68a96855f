"""The processes of a cluster: the bookie agent, an embedded ZooKeeper, a whole local cluster."""
