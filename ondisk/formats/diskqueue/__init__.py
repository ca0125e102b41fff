"""The segment format of the Beats disk queue: a header, then frames, plain or in the blocks of one LZ4 frame."""
