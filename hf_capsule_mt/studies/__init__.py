"""Studies: several systems with several seeds each, run by one command and compared in one table."""
