"""Views: what commands print, draw and write about runs, plans and clusters."""
