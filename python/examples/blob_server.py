"""A store of blobs over HTTP: PUT, GET with ranges, HEAD and DELETE.

    python blob_server.py blobs.kaml --port 8080
    curl -T film.mp4 http://127.0.0.1:8080/film.mp4
    curl -r 1000000-1999999 http://127.0.0.1:8080/film.mp4 | wc -c

A blob is stored in parts of 256 KiB. Each upload has a number of its own, and one batch at its end makes it visible under its name: readers see the
old blob or the new one. It serves every client that can reach it: let a proxy in front of it check who has access.
"""

import argparse
import re
import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Iterator, Optional, Tuple
from urllib.parse import unquote

import kaml

PART = 256 << 10


class Blobs:
    """Blobs on a device. Any number of threads may call it."""

    def __init__(self, device: kaml.Device) -> None:
        self._device = device
        self._names = device.ensure_namespace("blob names", kaml.KeyKind.ANY)  # name -> upload and length
        self._parts = device.ensure_namespace("blob parts", kaml.KeyKind.ORDERED)  # upload and number -> bytes

    def find(self, name: str) -> Optional[Tuple[bytes, int]]:
        """The upload and the length of a blob."""
        found = self._device.get(self._names, name)
        return None if found is None else (found[:8], int.from_bytes(found[8:], "big"))

    def put(self, name: str, pieces: Iterator[bytes]) -> None:
        """Stores a blob; visible and durable when it returns."""
        upload, length, old = secrets.token_bytes(8), 0, self.find(name)
        try:
            for number, piece in enumerate(pieces):
                self._device.put(self._parts, upload + number.to_bytes(4, "big"), piece)
                length += len(piece)
            self._device.put(self._names, name, upload + length.to_bytes(8, "big"))
        except BaseException:
            self._remove(upload)
            raise
        if old is not None:
            self._remove(old[0])

    def read(self, upload: bytes, start: int, stop: int) -> Iterator[bytes]:
        """The bytes of an upload from `start` to `stop`: only parts that have some of them are read."""
        for number in range(start // PART, -(-stop // PART)):
            part = self._device.get(self._parts, upload + number.to_bytes(4, "big"))
            if part is None:
                raise LookupError("the blob was replaced meanwhile")
            yield part[max(start - number * PART, 0) : stop - number * PART]

    def delete(self, name: str) -> bool:
        """Deletes a blob. Returns false if there was none."""
        found = self.find(name)
        if found is not None:
            self._device.delete(self._names, name)
            self._remove(found[0])
        return found is not None

    def _remove(self, upload: bytes) -> None:
        self._device.delete_range(self._parts, upload, upload + b"\xff" * 5)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    blobs: Blobs

    def do_PUT(self) -> None:
        if not self.headers.get("Content-Length", "").isdigit():
            return self._end(HTTPStatus.LENGTH_REQUIRED)
        missing = int(self.headers["Content-Length"])

        def pieces() -> Iterator[bytes]:
            for at in range(0, missing, PART):
                piece = self.rfile.read(min(PART, missing - at))
                if len(piece) < min(PART, missing - at):
                    raise ConnectionError("the upload was cut off")
                yield piece

        self.blobs.put(self._name(), pieces())
        self._end(HTTPStatus.CREATED)

    def do_GET(self) -> None:
        found = self.blobs.find(self._name())
        if found is None:
            return self._end(HTTPStatus.NOT_FOUND)
        upload, length = found
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        start, stop = 0, length
        if wanted and wanted[1]:
            start, stop = int(wanted[1]), min(int(wanted[2] or length) + 1, length)
        elif wanted and wanted[2]:
            start = max(length - int(wanted[2]), 0)  # the last bytes
        if wanted and start >= stop:
            return self._end(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Range": f"bytes */{length}"})
        self.send_response(HTTPStatus.PARTIAL_CONTENT if wanted else HTTPStatus.OK)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Accept-Ranges", "bytes")
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{length}")
        self.end_headers()
        if self.command == "GET":
            for piece in self.blobs.read(upload, start, stop):
                self.wfile.write(piece)

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        self._end(HTTPStatus.NO_CONTENT if self.blobs.delete(self._name()) else HTTPStatus.NOT_FOUND)

    def _name(self) -> str:
        return unquote(self.path.lstrip("/")) or "index"

    def _end(self, status: HTTPStatus, headers: "dict[str, str]" = {}) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def serve(device: kaml.Device, port: int) -> ThreadingHTTPServer:
    """A server for the blobs of a device; `serve_forever` runs it."""
    handler = type("Handler", (Handler,), {"blobs": Blobs(device)})
    return ThreadingHTTPServer(("127.0.0.1", port), handler)


def main() -> None:
    parser = argparse.ArgumentParser(description="A store of blobs over HTTP.")
    parser.add_argument("device")
    parser.add_argument("--port", type=int, default=8080)
    arguments = parser.parse_args()
    with kaml.Device.open_or_create(arguments.device) as device, serve(device, arguments.port) as server:
        print("http://%s:%d/" % server.server_address[:2], flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
