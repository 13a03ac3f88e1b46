"""git as it is without its user: what comes out must not depend on the configuration of a machine.

A user's `apply.ignoreWhitespace` is fuzz by another name, and their attributes rewrite line ends.
"""

from __future__ import annotations

import os

CONFIG = (
    "core.quotepath=true",
    "core.autocrlf=false",
    # Both have a default place that is read even where there is no configuration.
    f"core.attributesFile={os.devnull}",
    f"core.excludesFile={os.devnull}",
    "diff.renames=true",
    "diff.algorithm=myers",
    "apply.ignoreWhitespace=no",
    "apply.whitespace=nowarn",
)
OPTIONS = [part for entry in CONFIG for part in ("-c", entry)]
"""What fixes the bytes on git's command line, where even the configuration of a repository counts for nothing."""

# Where git would look for a repository instead of in the folder that it is started in; git sets these for its hooks.
LOCATION = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
)


def isolated() -> dict[str, str]:
    """The environment without the user's, the machine's and the environment's own configuration of git."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name == "GIT_EXEC_PATH"}
    return kept | {
        "LC_ALL": "C",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
    }


def of_the_user() -> dict[str, str]:
    """The environment with the user's configuration, identity included, for git in the folder it is started in."""
    return {name: value for name, value in os.environ.items() if name not in LOCATION} | {"LC_ALL": "C"}
