"""Pure maths of the algorithms: tensors and floats in, tensors out."""
