"""Registrations: the headers of a response as values, or every problem with them."""
