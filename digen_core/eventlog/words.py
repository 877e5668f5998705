"""Events and instructions in words, and what they concern. Iterations count from 1, as in pages."""

from digen_core.control import protocol as p
from digen_core.control.protocol import Batch, Event, Fragment, Instruction, Pack
from digen_core.inputs.text import number_of


def named(fragment: Fragment) -> str:
    """Return the name of a fragment."""
    return f"i{fragment.iteration + 1} g{fragment.group} f{fragment.index}"


def batch_named(batch: Batch) -> str:
    """Return the names of the fragments of a batch."""
    first, *others = batch.fragments
    return " + ".join([named(first), *(f"g{own.group} f{own.index}" for own in others)])


def pack_named(pack: Pack) -> str:
    """Return the name of a pack, and how large it is."""
    return f"i{pack.iteration + 1} p{pack.index} ({number_of(pack.num_pairs, 'pair')})"


def instruction_text(do: Instruction) -> str:  # noqa: C901 - a row for each kind
    """Return what an instruction asks for; the device that does it stands elsewhere."""
    match do:
        case p.Generate(batch, first, end, version):
            return f"generate {batch_named(batch)}, steps {first} to {end - 1}, with v{version}"
        case p.Pause(batch):
            return f"pause {batch_named(batch)}"
        case p.Score(fragment):
            return f"score {named(fragment)}"
        case p.ComputeAdvantages(iteration, groups):
            return f"compute advantages of i{iteration + 1} {_groups(groups)}"
        case p.Train(pack, version):
            return f"train {pack_named(pack)} at v{version}"
        case p.Reduce(iteration, devices):
            return f"add up the gradients of i{iteration + 1} from {', '.join(devices)}"
        case p.Step(iteration, version):
            return f"make v{version + 1} of v{version} and the gradient of i{iteration + 1}"
        case p.CopyState(version, _, source):
            return f"copy the optimizer's state of v{version} from {source}"
        case p.Push(version, device, source):
            return f"load v{version}" + (f" from {source}" if source != device else "")
        case p.Switch(_, role):
            return f"turn to the work of a {role}"
        case p.Release():
            return "leave"
        case p.FinishIteration(iteration, updated):
            return f"i{iteration + 1} is over, {'updated' if updated else 'without an update'}"


def event_text(event: Event) -> str:  # noqa: C901 - a row for each kind
    """Return what happened."""
    match event:
        case p.DeviceJoined(device):
            return f"{device.name} joined ({' and '.join(sorted(device.roles))})"
        case p.DevicesLost(devices):
            return f"lost {', '.join(devices)}"
        case p.DeviceLeaving(device):
            return f"{device} is to leave"
        case p.VersionLoaded(_, version):
            return f"loaded v{version}"
        case p.ReduceFailed(iteration):
            return f"a sum of gradients of i{iteration + 1} is gone with its device"
        case p.PushFailed(_, version, source):
            return f"could not load v{version} from {source}"
        case p.Switched(_, role):
            return f"turned to the work of a {role}"
        case p.IterationOffered(iteration):
            return f"i{iteration + 1} may begin"
        case p.BatchPaused(batch, next_step):
            return f"paused {batch_named(batch)} before step {next_step}"
        case p.BatchLate(batch, pace):
            return f"takes {pace:.1f} times as long for {batch_named(batch)} as predicted"
        case p.BatchGenerated(batch):
            return f"generated {batch_named(batch)}"
        case p.FragmentScored(fragment):
            return f"scored {named(fragment)}"
        case p.AdvantagesComputed(iteration, groups, skipped):
            without = f"; without signal: {_groups(skipped)}" if skipped else ""
            return f"computed advantages of i{iteration + 1} {_groups(groups)}{without}"
        case p.GroupsReplaced(iteration, groups):
            pairs = ", ".join(f"g{old} by g{new}" for old, new in groups)
            return f"replaced of i{iteration + 1} {pairs}"
        case p.PackTrained(pack):
            return f"trained {pack_named(pack)}"
        case p.PackTooLarge(pack):
            return f"{pack_named(pack)} does not fit into memory"
        case p.CostsUpdated():
            return "learnt what work costs"
        case p.GradientReduced(iteration):
            return f"added up the gradient of i{iteration + 1}"
        case p.Stepped(version):
            return f"made v{version}"
        case p.UpdateSkipped(iteration, version):
            return f"did not make v{version}: the update of i{iteration + 1} is NaN or infinite"
        case p.StateCopied(_, version):
            return f"copied the optimizer's state of v{version}"


def _groups(groups: tuple[int, ...]) -> str:
    return " ".join(f"g{group}" for group in groups)
