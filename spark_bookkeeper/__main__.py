"""``python -m spark_bookkeeper`` is the command line."""

from spark_bookkeeper.cli.main import main

if __name__ == "__main__":
    main()
