"""Transport: values that cross process boundaries, and the files that runs write."""
