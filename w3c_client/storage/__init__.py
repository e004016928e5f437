"""What a browser keeps: impressions, the time line of epochs, and how clearing changes them."""
