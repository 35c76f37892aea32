"""How far to draft: the tables of DISCO's paper, in our form."""
