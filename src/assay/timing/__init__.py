"""How long did it take?"""
