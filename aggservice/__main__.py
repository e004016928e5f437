"""``python -m aggservice``: the command line."""

from aggservice.commands import main

if __name__ == "__main__":
    main()
