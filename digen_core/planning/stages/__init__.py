"""Stages on unequal devices: what each block takes, where blocks are put, what that is worth."""
