"""The layers of a decoder in C, compiled for the user's own processor: whole numbers of 4 and 8 bits, tree passes whose
bits are those of plain decoding."""
