"""Tables in a terminal that is too narrow for them, or in a file."""

import io

import pytest

from deployments.views.cluster_table import print_cluster
from deployments.views.terminal import Output, borderless
from digen_core.planning.clusters.cluster import Cluster

KIND, HOST = "NVIDIA-H100-80GB-HBM3", "gpu-node-0017.cluster.example.org"


@pytest.fixture
def shown():
    """Returns what is printed in 80 columns."""

    def shown(print_it):
        file = io.StringIO()
        print_it(Output(file=file, width=80, markup=False, soft_wrap=True))
        return file.getvalue()

    return shown


def test_no_kind_and_no_host_of_a_cluster_is_cut(shown):
    group = {"kind": KIND, "count": 4, "hosts": [HOST], "site": "frankfurt-1", "watts": 700}
    linear = {"step": {"per_item": 1.0}, "pack": {"per_item": 1.0}}
    cluster = Cluster.model_validate({"devices": [group], "reference": linear})
    text = shown(lambda console: print_cluster(cluster, console))
    assert KIND in text
    assert HOST in text
    assert {len(line) for line in text.splitlines()[1:]} == {len(text.splitlines()[1])}


def test_columns_stay_that_there_is_no_room_for(shown):
    table = borderless(gap=1)
    for heading in ("devices", "seconds/iter.", ""):
        table.add_column(heading, no_wrap=True)
    table.add_row("4 " + 3 * KIND, "12.18", "best")
    table.add_row("2 a + 3 b", "48.62", "")
    first, second, third = shown(lambda console: console.print(table)).splitlines()[-3:]
    assert second.split() == ["4", 3 * KIND, "12.18", "best"]
    assert len(first) == len(second) == len(third) > 80


def test_texts_are_wrapped_at_blanks_while_their_words_have_room(shown):
    table = borderless()
    table.add_column("name", no_wrap=True)
    table.add_column("what it is")
    table.add_row("a name", "words " * 30)
    lines = shown(lambda console: console.print(table)).splitlines()
    assert len(lines) > 3
    assert max(map(len, lines)) <= 80
