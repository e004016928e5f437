"""Requerying: scenarios, interactive adversaries and the games they play with a service."""
