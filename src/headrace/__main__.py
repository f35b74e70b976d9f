"""`python -m headrace`: the program where its script is not on the path."""

from headrace.cli import program

if __name__ == "__main__":
    program()
