"""Files in and out: each file becomes a datum of the format `blob`, and each datum a file again.

from ondisk import files

with ondisk.open("photos") as photos:
    files.append(photos, ["camera"], time="name:%Y%m%d_%H%M", fields={"site": "path:1"})
    files.export(photos, "site: north", "north", name="{reftime:%Y%m%d_%H%M}_{site}.jpg")
"""

from ondisk.files.append import append
from ondisk.files.export import ExportResult, export

__all__ = ["ExportResult", "append", "export"]
