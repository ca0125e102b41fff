"""The protocol of writers beside readers, crashes, power cuts and other programs, explored exhaustively as a model."""
