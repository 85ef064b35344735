"""WebShop (Yao et al. 2022): shopping from an instruction, in text; the official rules in plain Python."""
