"""From a pending report to the network: assembly, delays and retries."""
