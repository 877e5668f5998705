"""The serial reference: a whole run as one loop. Every schedule must equal its weights."""
