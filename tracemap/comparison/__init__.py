"""Two models and their costs compared: which op became which, and what each costs more or less than before."""
