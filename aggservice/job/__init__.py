"""One job: what is asked for, what is answered, and both as messages; below engine, service and client library."""
