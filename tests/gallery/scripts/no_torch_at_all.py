"""A script that never imports torch and prints with its exit code 5."""
# runner: ends=exit 5
import sys

print(sum(number * number for number in range(1000)))
print("torch" in dir(), __name__, len(sys.argv))
sys.exit(5)
