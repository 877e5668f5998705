"""What the process whose copies workers are imports first: it looks for garbage rarely.

To import it is all: such a process runs nothing else before its copies do.
"""

from tasks.cluster.garbage import collect_rarely

collect_rarely()
