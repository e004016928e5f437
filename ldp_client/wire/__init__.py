"""Local reports as bytes, sealed reports and device tokens."""
