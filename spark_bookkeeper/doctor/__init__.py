"""What is wrong with a cluster, and what to do about it. Looks, and changes nothing."""
