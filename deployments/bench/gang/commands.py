"""The commands of ``digen bench`` that measure gangs."""

from deployments.bench.commands import Several, require_all
from deployments.overrides import ConfigTokens, config_of
from digen_core.errors import UserError


def gang(*, members: Several[int] = None, hosts: int = 1, num_commands: int = 500) -> int:
    """Measure what a command inside a gang costs: its leader calls all members, and waits.

    Example: digen bench gang --members 2 4 8
    Example: digen bench gang --hosts 2

    Args:
        members: Of the gangs; 2 and 4 if none are given.
        hosts: Over which the members are dealt: loopback addresses, with TLS between them.
        num_commands: Of each gang, without arguments and with 1 MB of them.
    """
    sizes = members or [2, 4]
    require_all(
        members=(sizes, all(2 <= size <= 64 for size in sizes), "2 to 64"),
        hosts=(hosts, 1 <= hosts <= min(sizes), "1 to the fewest members"),
        num_commands=(num_commands, num_commands >= 2, "2 or more"),
    )

    from deployments.bench.gang import calls

    costs = calls.bench_gang(sizes, hosts, num_commands)
    calls.print_bench(costs)
    return 0 if all(cost.holds for cost in costs) else 1


def stages(
    *tokens: ConfigTokens,
    gbit_per_second: float = 1.0,
    latency: float = 0.0005,
    samples: int = 16,
    rounds: int = 3,
    codecs: Several[str] = None,
) -> int:
    """Measure steps and packs of a model in stages, with emulated links and several codecs.

    Example: digen bench stages shapes --gbit-per-second 0.03 --latency 0.02

    Args:
        tokens: CONFIG and settings, as in 'digen train'; parallel.stages is 2 if it is not set.
        gbit_per_second: Of the link between each two stages, each way.
        latency: Of the link: seconds that a byte is under way.
        samples: Of a step, and pairs of a pack.
        rounds: In which each is timed once, after one that warms up.
        codecs: Of the cuts, those of streams and of their gradients: none, bf16, int8, int8/int4,
            int4, int8/topk; default: all.
    """
    config = config_of(tokens, "digen bench stages")
    require_all(
        gbit_per_second=(gbit_per_second, 0 < gbit_per_second <= 1e4, "more than 0"),
        latency=(latency, 0 <= latency <= 10, "0 to 10 seconds"),
        samples=(samples, 1 <= samples <= 4096, "1 to 4096"),
        rounds=(rounds, 1 <= rounds <= 1000, "1 or more"),
    )

    from deployments.bench.gang import stages as bench_stages

    chosen = codecs or list(bench_stages.CODECS)
    if unknown := [name for name in chosen if name not in bench_stages.CODECS]:
        known = ", ".join(bench_stages.CODECS)
        raise UserError(f"--codecs names {unknown[0]!r}; use {known}")
    link = bench_stages.link_of(gbit_per_second, latency)
    found = bench_stages.bench_stages(config, link, chosen, samples=samples, rounds=rounds)
    bench_stages.print_bench(found, link, samples)
    return 0
