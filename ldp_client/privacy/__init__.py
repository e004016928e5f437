"""The privacy loss of a protocol's reports: exact enumeration and bounds."""
