"""What a browser keeps: sources, pending reports and rate limits."""
