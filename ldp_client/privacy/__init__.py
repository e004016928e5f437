"""What a protocol's reports leak: exact enumeration and bounds."""
