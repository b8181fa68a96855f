"""Code that all commands share: options, output, exit codes, access to a cluster."""
