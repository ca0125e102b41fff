"""The segment format of the Beats disk queue: a header, then frames, plain or in the blocks of one LZ4 frame.

header           the segment's first 8 or 12 bytes
blocks           LZ4: reads blocks one by one, and writes them so that a segment can grow
block_search     finds the next whole block after damage
frame            a length, a checksum and a length around each payload
payload          an event as CBOR
frame_reader     reads all frames of a segment, up to damage and after it
seg              the format of ondisk that uses the others
cbor             the part of CBOR that Beats reads correctly
"""
