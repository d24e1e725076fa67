"""How fast any layer makes tokens equal: a layer is a function of a token matrix, whatever it computes inside."""
