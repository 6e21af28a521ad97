"""Where work runs: worker processes on this host, or actors of a cluster. What is run comes as an argument."""
