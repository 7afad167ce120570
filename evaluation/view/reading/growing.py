"""Reads a file of lines while another process appends to it: each look gives the lines that are new."""

from pathlib import Path


class GrowingFile:
    """A file of which only new lines are read.

    Args:
        path: The file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end = 0
        self._file: tuple[int, int] | None = None

    def news(self) -> tuple[bool, list[tuple[int, bytes]]]:
        """True if the file is another one or has shrunk, so that earlier lines no longer count; and the new lines.

        Each line comes with its place, the number of bytes before it. An unfinished last line is left for later.

        Raises:
            OSError: The file cannot be read.
        """
        try:
            status = self.path.stat()
        except FileNotFoundError:
            gone, self._file, self._end = self._file is not None, None, 0
            return gone, []
        here = status.st_dev, status.st_ino
        again = self._file is not None and (here != self._file or status.st_size < self._end)
        if again:
            self._end = 0
        self._file = here
        return again, self._read() if status.st_size > self._end else []

    def _read(self) -> list[tuple[int, bytes]]:
        lines: list[tuple[int, bytes]] = []
        with self.path.open("rb") as file:
            file.seek(self._end)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                lines.append((self._end, line))
                self._end += len(line)
        return lines
