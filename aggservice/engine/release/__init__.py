"""From sums to a summary that is paid for: noise, statement, charge and output."""
