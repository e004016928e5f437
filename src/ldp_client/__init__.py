"""Longitudinal local differential privacy: clients, estimators and tracking."""
