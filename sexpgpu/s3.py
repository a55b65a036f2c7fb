"""Objects of S3, for data sources and checkpoints: opened through s3fs, and refused as a disk refuses.

Credentials, region and endpoint are what the AWS libraries find: `AWS_ACCESS_KEY_ID`, `AWS_PROFILE`, `AWS_ENDPOINT_URL`
and their files. Nothing is imported before the first `s3://`.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from sexpgpu.diagnostics import Diagnostic, DiagnosticError

SCHEME = "s3://"
INSTALL = "pip install 'sexpgpu[s3]'"
_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S, _ATTEMPTS = 10, 60, 5


class S3Error(OSError):
    """What S3, or the way there, refused. happened, remedy: in words for the user."""

    def __init__(self, happened: str, remedy: str) -> None:
        super().__init__(happened)
        self.happened, self.remedy = happened, remedy


def is_s3(written: str) -> bool:
    """Whether a written path is one of S3."""
    return written.startswith(SCHEME)


@cache
def open_s3() -> Any:
    """The file system of s3fs, one a process.

    Raises: E-IO-005 where the extra is not installed.
    """
    try:
        import s3fs  # type: ignore[import-untyped]
    except ImportError as error:
        message = f"`{SCHEME}` needs the extra `s3`, which is not installed here"
        raise DiagnosticError(Diagnostic("E-IO-005", message, help=(INSTALL,))) from error
    config = {
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "read_timeout": _READ_TIMEOUT_S,
        "retries": {"max_attempts": _ATTEMPTS, "mode": "standard"},
    }
    fs = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True, config_kwargs=config)
    fs.retries = 2  # on top of the attempts below it, for bodies that break off
    return fs


@contextmanager
def telling_s3() -> Iterator[None]:
    """Turn what the libraries raise into `S3Error`; a missing object stays FileNotFoundError."""
    from botocore.exceptions import (  # type: ignore[import-untyped]
        BotoCoreError,
        ClientError,
        NoCredentialsError,
        ParamValidationError,
    )

    try:
        yield
    except FileNotFoundError:
        raise
    except NoCredentialsError as error:
        remedy = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        raise S3Error("there are no credentials for S3", remedy) from error
    except ParamValidationError as error:
        raise S3Error("that is no name of a bucket and an object", "write s3://BUCKET/PREFIX") from error
    except PermissionError as error:
        remedy = "check the credentials (AWS_ACCESS_KEY_ID or AWS_PROFILE) and what the bucket permits them"
        raise S3Error("S3 denies the access", remedy) from error
    except (BotoCoreError, TimeoutError, ConnectionError) as error:
        remedy = "check the network and AWS_ENDPOINT_URL, then go on with --resume latest"
        raise S3Error(f"S3 cannot be reached ({_first_line(error)})", remedy) from error
    except (ClientError, OSError) as error:
        remedy = "wait until it is well again, then go on with --resume latest"
        raise S3Error(f"S3 refused ({_first_line(error)})", remedy) from error


def _first_line(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0]


# --- data sources -------------------------------------------------------------------------------------------


def find_objects(written: str) -> tuple[Path, ...]:
    """Local copies of the objects that an address or pattern means, sorted by address; empty where there is none.

    A copy lies in `~/.cache/sexpgpu/s3` under the object's own name and is taken again for as long as the object's tag
    and size are the same.
    Raises: S3Error, OSError (of the disk), E-IO-005
    """
    fs = open_s3()
    with telling_s3():
        try:
            found = fs.glob(written, detail=True)
        except FileNotFoundError:
            return ()
    return tuple(_copied(fs, found[key]) for key in sorted(found) if found[key]["type"] == "file")


def _copied(fs: Any, info: dict[str, Any]) -> Path:
    key, size = info["name"], info["size"]
    version = hashlib.sha256(f"{key}\n{info['ETag']}\n{size}".encode()).hexdigest()
    target = Path.home() / ".cache" / "sexpgpu" / "s3" / version / key.rpartition("/")[2]
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
        try:
            with telling_s3():
                fs.get_file(key, str(temporary))
            if temporary.stat().st_size != size:
                raise S3Error(f"S3 sent {temporary.stat().st_size} bytes of {size}", "try again")
            os.replace(temporary, target)
        finally:
            with suppress(OSError):
                temporary.unlink()
    return target
