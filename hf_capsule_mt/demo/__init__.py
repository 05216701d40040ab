"""A demonstration in the browser: translations and their routing, step by step."""
