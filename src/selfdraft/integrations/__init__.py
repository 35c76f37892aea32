"""selfdraft inside other libraries: their interface, our decoding."""
