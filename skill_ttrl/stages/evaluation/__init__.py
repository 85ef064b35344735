"""Measuring policies: samples, outcomes, controls, comparisons."""
