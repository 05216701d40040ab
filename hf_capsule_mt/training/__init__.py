"""Training of translation models; `hf-capsule-mt train` is its command line."""
