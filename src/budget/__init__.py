"""Privacy budgets: amounts, filters, the ledger and its audit."""
