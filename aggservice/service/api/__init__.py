"""The gRPC servicers and the gate that every call passes."""
