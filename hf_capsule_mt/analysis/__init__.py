"""Probes of what trained models have learnt; needs the extra `analysis`."""
