"""Past one machine: scoring on Ray Data and serving on Ray Serve."""
