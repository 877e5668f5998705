"""Pure maths: formulas of the algorithms (tensors and floats in, tensors out), and statistics."""
