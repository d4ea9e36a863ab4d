"""Writing a file at once or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from tanren_dsl.errors import TanrenError


def write_whole(path: str | Path, content: str | bytes, *, keep_mode: bool = False) -> None:
    """Put a file in place whole, or leave the older one; a link is followed, the mode may be kept.

    What is no regular file, such as a pipe or `/dev/null`, is written to and never replaced.

    Raises:
        TanrenError: the file cannot be written; an older one is left as it was.
    """
    data = content.encode() if isinstance(content, str) else content
    target = Path(os.path.realpath(path))
    temporary: str | None = None
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(data)
            return
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, target.stat().st_mode & 0o7777 if keep_mode else 0o666 & ~_umask())
        os.replace(temporary, target)
        temporary = None
    except OSError as error:
        raise TanrenError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
