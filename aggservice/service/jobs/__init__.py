"""Jobs of the service: slots, folders, the book of jobs and the runner."""
