"""Estimators, their variance and the steps they invert."""
