"""The queue of jobs over files: rows in a database that outlive the service, shared by several services."""
