"""What a shuffle of local reports costs, releases and guarantees."""
