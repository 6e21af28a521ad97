"""Dumps on disk: HDF5 files of raw codes with an index, readable without the program that wrote them (docs/schema.md).

    write_part(folder, record, arrays, info=…, platform=…)   one case, written whole or not at all
    completed(folder) · intact(folder)                       what a resumed run need not do again; intact: by digest, and what is damaged
    pack(folder, out) · merge(paths, out)                    many files into one
    extract(dump, out)                                       some of its results, or digests alone
    Dump.open(path)                                          reading, verified, safe against hostile files

Importing this costs nothing: h5py is loaded by the first file that is opened or written.
"""

from accuracy_eval.store.packing import extract, intact, merge, pack, packed_parts, remove_packed, unpack
from accuracy_eval.store.parts import completed, part_files, part_name, write_part
from accuracy_eval.store.reading import Dump
from accuracy_eval.store.schema import SCHEMA, content_digest
from accuracy_eval.store.shards import Shards

__all__ = [
    "SCHEMA",
    "Dump",
    "Shards",
    "completed",
    "content_digest",
    "extract",
    "intact",
    "merge",
    "pack",
    "packed_parts",
    "part_files",
    "part_name",
    "remove_packed",
    "unpack",
    "write_part",
]
