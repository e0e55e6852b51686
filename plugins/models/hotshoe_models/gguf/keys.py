"""What readers of GGUF files and builders of models both know. Imports nothing."""

#: A key that no published config.json has: matrices that checkpoints stack are apart, none is
#: transposed, and rows have the order that layers want.
CONVERTED = "converted"
#: Words of Baichuan 2, whose code norms the rows of the output matrix.
NORMED_WORDS = 125_696
