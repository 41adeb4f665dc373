#!/usr/bin/env python3
"""Writes the dashboards next to this folder, from code.

    .venv/bin/python dashboards/source/build.py           write dashboards/*.json
    .venv/bin/python dashboards/source/build.py --check   only say whether they are what this would write
"""

import argparse
import pathlib
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder

import endpoints
import pipeline
import workers

FOLDER = pathlib.Path(__file__).resolve().parent.parent
BOOKS = {"pipeline": pipeline, "endpoints": endpoints, "workers": workers}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file differs")
    check = arguments.parse_args().check
    stale = []
    for name, module in BOOKS.items():
        path = FOLDER / f"{name}.json"
        built = encode(module.dashboard().build())
        if path.exists() and path.read_text() == built:
            continue
        stale.append(path.name)
        if not check:
            path.write_text(built)
            print(f"wrote dashboards/{path.name}")
    if check and stale:
        sys.exit(f"{', '.join(stale)}: not what the code gives; run dashboards/source/build.py and commit the result")


def encode(book):
    for number, panel in enumerate(book.panels or [], start=1):
        panel.id_val = number
    return JSONEncoder(sort_keys=True, indent=2).encode(book) + "\n"


if __name__ == "__main__":
    main()
