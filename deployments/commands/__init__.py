"""What the commands of ``digen`` take and do. Heavy imports come after the checks."""
