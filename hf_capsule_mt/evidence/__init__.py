"""What the documents show of results: tables, and the records that they are drawn from."""
