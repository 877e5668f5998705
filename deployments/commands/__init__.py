"""The commands of ``digen``. Heavy imports come after the checks."""
