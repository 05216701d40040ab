"""Paper-literal float64 versions of the routing algorithms, written as loops; for tests and benchmarks only."""
