"""Files of claims, what was seen of them, and the verdict that follows; `../claims.py` shows it."""
