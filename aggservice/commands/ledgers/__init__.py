"""Commands over a ledger or an exported log: reading and auditing."""
