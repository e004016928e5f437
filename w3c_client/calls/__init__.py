"""The calls of pages and response headers: their options, the checks, and the text form."""
