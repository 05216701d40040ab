"""Translation of test sets and their scores."""
