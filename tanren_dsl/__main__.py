"""`python -m tanren_dsl` is the command line."""

from tanren_dsl.cli import main

if __name__ == "__main__":
    main(prog_name="tanren-dsl")
