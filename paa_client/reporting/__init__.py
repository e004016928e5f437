"""From contributions to reports: budgets, selection and scopes."""
