"""A vision-language model as a judge: what it is asked, and what its answers are worth."""
