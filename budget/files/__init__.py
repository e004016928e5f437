"""Result files: staged where only the service can read them, published after they are paid for."""
