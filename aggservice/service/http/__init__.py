"""The HTTP app: public keys, metrics and the report collector."""
