"""`python -m accuracy_eval` is the command `accuracy-eval`."""

from accuracy_eval.cli import main

if __name__ == "__main__":
    main()
