"""Training of translation models; `train.py` is its command line."""
