"""Campaign files: TOML read strictly, with the line and the remedy of every mistake."""
