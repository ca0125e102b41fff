"""The segment format of the Beats disk queue: a header, then frames, plain or in the blocks of one LZ4 frame.

header     the segment's first 8 or 12 bytes
blocks     LZ4: the blocks of a stream, read one by one and written so that a segment can grow
frame      a length, a checksum and a length around each payload
payload    an event as CBOR
reader     all frames of a segment, up to damage and behind it
seg        all of it as a format of ondisk
cbor       the CBOR that Beats reads right
"""
