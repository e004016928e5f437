"""HPKE sealing and the key sets it uses."""
