"""Result files: staged where only the service can read, published once they are paid for."""
