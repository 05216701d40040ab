"""What models do: statistics of their routing, probes, examples, figures, tables and reports."""
