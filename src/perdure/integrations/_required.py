"""Refuses to load where the extra `trl` is not installed, or another release of TRL than the one it names."""

import importlib.metadata
import importlib.util

from perdure.core.errors import MissingExtra, Refused

for _library in ("torch", "transformers", "datasets", "trl"):
    if importlib.util.find_spec(_library) is None:
        raise MissingExtra(_library, "trl")
if not importlib.metadata.version("trl").startswith("1.16."):
    raise Refused(
        f"trl {importlib.metadata.version('trl')} is installed; the trainer overrides methods of trl 1.16 that are no "
        "public interface: pip install 'perdure[trl]'"
    )
