"""The segment format of the Beats disk queue: a header, then frames, plain or in the blocks of one LZ4 frame.

header           the segment's first bytes, of every version
drafts           two versions that were never released
blocks           LZ4: reads blocks one by one, and writes them so that a segment can grow
block_search     finds the next whole block after damage
frame            a length, a checksum and a length around each payload
event            the content of a frame
payload          an event in any of three kinds: cbor_payload, json_payload, protobuf
frame_reader     reads all frames of a segment, up to damage and after it
seg              the format of ondisk that uses the others
edges            how a segment begins, and whether it may be continued
cbor             the part of CBOR that Beats reads correctly
"""
