"""Files: a strict TOML reader whose refusals name the line, and writing that replaces a file whole or not at all."""
