"""Campaign files: TOML read strictly; every refusal names the line and the remedy."""
