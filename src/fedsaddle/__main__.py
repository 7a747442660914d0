"""python -m fedsaddle."""

from fedsaddle.cli import main

if __name__ == "__main__":
    main()
