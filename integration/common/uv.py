"""uv, the resolver that makes the locks; it asks the index that pip is configured for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from sm120.integration.common.disk import refuse_if_full
from sm120.integration.common.pip import Answer, configured
from sm120.integration.common.refusal import Refusal


def uv(*arguments: str, doing: str, folder: Path) -> Answer:
    """Run uv in `folder`; what it answers, whatever that is.

    pip's index and certificates are uv's, too. Folders of wheels (`find-links`) and further indexes are asked only
    where pip may ask no index: what lies on one machine is not what a lock is for.

    Raises:
        Refusal: `uv-missing`, `disk-full`.
    """
    beside = Path(sys.executable).with_name("uv")
    program = str(beside) if beside.is_file() else shutil.which("uv")
    if program is None:
        raise Refusal("uv-missing", "there is no uv", fix="build/dev/bin/python -m pip install --editable .")
    settings = configured()
    options = []
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        options.append("--no-index")
        options += [f"--find-links={place}" for place in settings.get("find-links", "").split()]
    elif index := settings.get("index-url"):
        options.append(f"--default-index={index}")
    environment = os.environ | {"NO_COLOR": "1", "UV_NO_PROGRESS": "1"}
    if cert := settings.get("cert"):
        environment.setdefault("SSL_CERT_FILE", cert)
    answer = subprocess.run(
        [program, *arguments, *options], capture_output=True, text=True, cwd=folder, env=environment
    )
    if answer.returncode != 0:
        refuse_if_full(f"{answer.stdout}{answer.stderr}", doing, folder)
    return answer


def uv_reason(answer: Answer) -> str:
    """What uv says was wrong, on one line, without its hints."""
    said = re.split(r"(?m)^\s*hint:", answer.stderr or answer.stdout)[0]
    return " ".join(said.removeprefix("error: ").split()) or "uv gave no reason"
