"""The gRPC service and its small HTTP application."""
