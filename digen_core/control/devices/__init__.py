"""Devices of a run as the controller knows them: what each has been told, and when it is free."""
