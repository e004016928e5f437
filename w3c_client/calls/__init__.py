"""What a page or a response header asks for: options, their checks, and their text form."""
