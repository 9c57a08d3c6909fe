"""A training in one process."""

import loop


def main() -> None:
    loop.train(0, 1)


if __name__ == "__main__":
    main()
