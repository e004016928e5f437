"""What a run leaves behind: metrics, plots and the page for a reader in a hurry."""
