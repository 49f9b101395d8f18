"""Files in a multipart body."""

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from besnn.serve.problems import Problem


def read_files(body: bytes, content_type: str, max_files: int) -> list[bytes]:
    r"""The files of a `multipart/form-data` body, in order. Each part must be one, and the body must be whole.

    >>> body = b'--x\r\nContent-Disposition: form-data; name="a"; filename="b"\r\n\r\nhello\r\n--x--\r\n'
    >>> read_files(body, "multipart/form-data; boundary=x", max_files=1)
    [b'hello']
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise Problem(400, "multipart-invalid", "Content-Type names no boundary: let your HTTP library write that header")
    parts = _Parts(max_files)
    try:
        parser = MultipartParser(boundary, parts.callbacks())  # type: ignore[arg-type]  # its type wants all callbacks; it takes some
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise Problem(400, "multipart-invalid", "the body is not of the multipart form that Content-Type says") from None
    if not parts.ended:
        raise Problem(400, "multipart-invalid", "the body ends before its last boundary: send it again")
    if not parts.files:
        raise Problem(422, "input-invalid", "there is no file in the body: send each image as a file part")
    return parts.files


class _Parts:
    """Gathers parts as the parser finds them."""

    def __init__(self, max_files: int) -> None:
        self.files: list[bytes] = []
        self.ended = False
        self._max_files = max_files
        self._name, self._value, self._data = bytearray(), bytearray(), bytearray()
        self._disposition = b""

    def callbacks(self) -> dict[str, object]:
        """What the parser calls."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._name.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_part_data": lambda data, start, end: self._data.extend(data[start:end]),
            "on_part_end": self._end_part,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._disposition = b""
        self._data = bytearray()

    def _end_header(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._name, self._value = bytearray(), bytearray()

    def _end_part(self) -> None:
        if b"filename" not in parse_options_header(self._disposition)[1]:
            raise Problem(422, "input-invalid", "a part of the body is not a file: send nothing but files")
        if len(self.files) == self._max_files:
            raise Problem(422, "input-invalid", f"there are more than {self._max_files} files: send fewer at a time")
        self.files.append(bytes(self._data))

    def _end(self) -> None:
        self.ended = True
