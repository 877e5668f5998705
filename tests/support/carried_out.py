"""Instructions of a controller that are carried out as they are given."""

from digen_core.control import protocol as p


def done(do: p.Instruction) -> p.Event:  # noqa: C901 - a table
    """Return what is told when an instruction was carried out, where nothing is the matter."""
    match do:
        case p.Push(version, device):
            return p.VersionLoaded(device, version)
        case p.CopyState(version, device):
            return p.StateCopied(device, version)
        case p.Generate(batch):
            return p.BatchGenerated(batch)
        case p.Score(fragment):
            return p.FragmentScored(fragment)
        case p.ComputeAdvantages(index, groups):
            return p.AdvantagesComputed(index, groups)
        case p.Switch(device, role):
            return p.Switched(device, role)
        case p.Train(pack):
            return p.PackTrained(pack)
        case p.Reduce(index):
            return p.GradientReduced(index)
        case p.Step(_, version):
            return p.Stepped(version + 1)
    raise AssertionError(f"nothing is told of {do}")
