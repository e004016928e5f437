"""The kinds of job: what a session does with opened reports until they are charged."""
