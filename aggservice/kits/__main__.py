"""``python -m aggservice.kits [NAME…]``: run the kit of every entry, built in and installed, or of those named."""

from __future__ import annotations

import sys

from aggservice.kits.tables import judge


def main(names: list[str]) -> int:
    """Print a line per entry; return 1 if one fails or nothing has such a name."""
    judged = failed = 0
    for kind, name, problem in judge(tuple(names)):
        judged += 1
        failed += bool(problem)
        sys.stdout.write(f"{kind:<20} {name:<28} {problem or 'ok'}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{judged - failed} passed, {failed} failed\n")
    return int(failed > 0 or not judged)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
