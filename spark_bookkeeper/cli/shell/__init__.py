"""What every command shares: options, output, exit codes, how a cluster is reached."""
