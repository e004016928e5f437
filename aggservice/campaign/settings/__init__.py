"""What a campaign says once it is read: people, ads, measures, keys and queries as values."""
