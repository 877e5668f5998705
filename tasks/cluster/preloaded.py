"""What workers, or the process whose copies they are, import first: they look for garbage rarely.

To import it is all: nothing else of digen's runs there before the imports that it is for.
"""

from tasks.cluster.garbage import collect_rarely

collect_rarely()
