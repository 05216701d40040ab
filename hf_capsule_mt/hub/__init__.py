"""Conversion of checkpoints, complete directories, model cards and publishing."""
