"""Commands that simulate: campaigns, requerying, attacks on device budgets, and what to know before a run."""
