"""One campaign on several APIs through one service, and one report about all of them."""
