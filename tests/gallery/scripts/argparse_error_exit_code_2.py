"""argparse refuses an argument: usage with the script's own name to stderr, exit code 2, before anything was trained."""
# runner: args=--unknown 1
# runner: ends=exit 2
import argparse

parser = argparse.ArgumentParser(description="trains")
parser.add_argument("--epochs", type=int)
print(parser.format_usage())
print(parser.parse_args().epochs)
