"""Code generated from proto/ at build."""
