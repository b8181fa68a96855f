"""Where a bookie keeps its files: the interface, its back ends, and who picks one."""
