"""Experiments of the papers: data sets, runs and figures."""
