"""Commands of those who run a service, collect reports or ask for summaries."""
