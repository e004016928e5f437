"""What a registration leads to: sources stored, triggers attributed, reports made."""
