"""Tables over millions of keys: sums, report ids and privacy units."""
