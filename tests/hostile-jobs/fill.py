"""Makes many files: fill.py DIRECTORY HOW_MANY. Names of a few files: that is as slow to remove, and faster to make."""
import os, sys

os.chdir(sys.argv[1])
for number in range(int(sys.argv[2])):
    if number % 1000 == 0:
        place = f"d{number}"
        os.mkdir(place)
        first = f"{place}/{number}"
        os.close(os.open(first, os.O_CREAT | os.O_WRONLY))
    else:
        os.link(first, f"{place}/{number}")
