"""Notes that can be read as they were: every change is kept, moments have names, and a mistake is undone.

    python notes.py notes.kaml write shopping "tea, bread"
    python notes.py notes.kaml mark monday              # a moment with a name
    python notes.py notes.kaml write shopping "nothing"
    python notes.py notes.kaml read shopping --at monday
    python notes.py notes.kaml history shopping
    python notes.py notes.kaml undo shopping
    python notes.py notes.kaml return monday            # all notes as on Monday; what was before gets a name too

The notes are in a versioned namespace, so a write costs what it costs elsewhere and a moment costs nothing.
"""

import argparse
import datetime
import itertools
import sys
from typing import Iterator, List, Optional, Tuple

import kaml


class Notes:
    """Notes on a device."""

    def __init__(self, device: kaml.Device) -> None:
        self._device = device
        self._notes = device.ensure_namespace("notes", versioned=True)
        self._moments = device.ensure_namespace("moments", kaml.KeyKind.ANY)

    def write(self, name: str, text: str) -> None:
        """Replaces a note; its earlier texts are kept."""
        self._device.put(self._notes, name, text.encode())

    def erase(self, name: str) -> None:
        """Removes a note from the present."""
        self._device.delete(self._notes, name)

    def read(self, name: str, at: Optional[str] = None) -> Optional[str]:
        """A note as it is, or as it was at a moment; none if it did not exist."""
        if at is None:
            text = self._device.get(self._notes, name)
        else:
            text = self._device.get_as_of(self._notes, self._moment(at), name)
        return None if text is None else text.decode()

    def mark(self, moment: str) -> None:
        """Gives the present a name, which it keeps."""
        if self._device.exists(self._moments, moment):
            raise ValueError(f"there is a moment {moment!r} already")
        self._device.put(self._moments, moment, b"%d" % self._device.snapshot(self._notes))

    def moments(self) -> List[str]:
        """Names of all moments, oldest first."""
        found = [(int(self._device.get(self._moments, key) or 0), key.decode()) for key in self._device.keys(self._moments)]
        return [name for _, name in sorted(found)]

    def history(self, name: str, limit: int = 20) -> Iterator[Tuple[datetime.datetime, Optional[str]]]:
        """When a note changed and to what, newest first; no text where it was erased."""
        for changes, version in enumerate(itertools.islice(self._device.history(self._notes, name), limit)):
            text = None if version.deleted else self._device.get_back(self._notes, changes, name)
            yield datetime.datetime.fromtimestamp(version.time_ns / 1e9), None if text is None else text.decode()

    def undo(self, name: str) -> None:
        """Undoes the last change of a note."""
        self._device.undo(self._notes, name)

    def return_to(self, moment: str) -> str:
        """Makes all notes what they were at a moment. Returns the name of the moment before, so nothing is lost."""
        before = self._device.roll_back(self._notes, self._moment(moment))
        name = f"before returning to {moment} ({before})"
        self._device.put(self._moments, name, b"%d" % before)
        return name

    def _moment(self, name: str) -> int:
        number = self._device.get(self._moments, name)
        if number is None:
            raise KeyError(f"there is no moment {name!r}; there are {self.moments()}")
        return int(number)


def main() -> None:
    parser = argparse.ArgumentParser(description="Notes that can be read as they were.")
    parser.add_argument("device")
    parser.add_argument("action", choices=("write", "erase", "read", "history", "undo", "mark", "moments", "return"))
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("text", nargs="?", default="")
    parser.add_argument("--at", help="a moment")
    arguments = parser.parse_args()
    with kaml.Device.open_or_create(arguments.device) as device:
        notes, name = Notes(device), arguments.name
        try:
            if arguments.action == "write":
                notes.write(name, arguments.text)
            elif arguments.action == "erase":
                notes.erase(name)
            elif arguments.action == "read":
                print(notes.read(name, arguments.at) or f"there is no note {name!r}")
            elif arguments.action == "history":
                for time, text in notes.history(name):
                    print(f"{time:%Y-%m-%d %H:%M:%S}  {text if text is not None else '(erased)'}")
            elif arguments.action == "undo":
                notes.undo(name)
            elif arguments.action == "mark":
                notes.mark(name)
            elif arguments.action == "moments":
                print("\n".join(notes.moments()))
            else:
                print("the moment before is:", notes.return_to(name))
        except (KeyError, ValueError) as mistake:
            sys.exit(str(mistake.args[0]))


if __name__ == "__main__":
    main()
