//! Jobs whose processes have ranks.

use std::collections::HashMap;

use super::Candidate;
use super::command::command_of_all_ranks;
use super::related;

/// The processes of each job: they have the same command or container.
pub(super) fn jobs(candidates: Vec<Candidate<'_>>) -> Vec<Vec<Candidate<'_>>> {
    let command = |candidate: &Candidate<'_>| Some(command_of_all_ranks(&candidate.process.command));
    let commands = candidates.iter().map(command).collect();
    let containers = candidates.iter().map(|candidate| candidate.process.container.clone()).collect();
    related::sets(candidates, &[commands, containers]).into_iter().flat_map(instances).collect()
}

/// Separates the runs of one command. Each rank occurs once in a run. Processes that a rank has forked, such as those
/// that load data, have its rank, too, and larger numbers: they are left out unless they call the GPU.
fn instances(mut set: Vec<Candidate<'_>>) -> Vec<Vec<Candidate<'_>>> {
    set.sort_by(|a, b| (&a.process.container, a.tgid()).cmp(&(&b.process.container, b.tgid())));
    let mut seen: HashMap<(&str, u32), usize> = HashMap::new();
    let mut instances: Vec<Vec<Candidate<'_>>> = Vec::new();
    for candidate in set {
        let Some(rank) = &candidate.process.rank else { continue };
        let occurrence = seen.entry((&rank.variable, rank.number)).or_default();
        if instances.len() == *occurrence {
            instances.push(Vec::new());
        }
        if let Some(instance) = instances.get_mut(*occurrence) {
            instance.push(candidate);
        }
        *occurrence += 1;
    }
    let is_run = |(index, instance): &(usize, Vec<Candidate<'_>>)| {
        *index == 0 || instance.iter().any(|candidate| candidate.is_in_call)
    };
    instances.into_iter().enumerate().filter(is_run).map(|(_, instance)| instance).collect()
}
