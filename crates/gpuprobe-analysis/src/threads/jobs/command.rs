//! Command lines of the processes of one job: they differ in numbers only.

/// Options whose value is another one for each process of a job, without the word `rank`. The last two are those of
/// Python's `multiprocessing`.
const NUMBERED_OPTIONS: [&str; 8] = [
    "device",
    "device_id",
    "gpu",
    "gpu_id",
    "process_id",
    "worker_id",
    "pipe_handle",
    "spawn_main(tracker_fd",
];
/// The option of processes that Python's `multiprocessing` started anew. All programs start them by the same command.
const STARTED_BY_PYTHON: &str = "--multiprocessing-fork";

/// A command line without the values of options that number the processes of a job: `--local_rank=3`, `--gpu 3`. Of a
/// title such as `VLLM::Worker_TP3`, which programs write over their command line, without all numbers.
pub(super) fn command_of_all_ranks(command: &str) -> String {
    if !command.contains(' ') && command.contains("::") {
        return command.chars().filter(|c| !c.is_ascii_digit()).collect();
    }
    let mut words = Vec::new();
    let mut is_number_next = false;
    for word in command.split_whitespace() {
        let is_value = is_number_next && !word.starts_with('-');
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let is_option = name.starts_with('-') || value.is_some();
        let plain = name.trim_start_matches('-').replace('-', "_").to_ascii_lowercase();
        let is_numbered = is_option && (plain.contains("rank") || NUMBERED_OPTIONS.contains(&plain.as_str()));
        if !is_value {
            words.push(if is_numbered { name } else { word });
        }
        is_number_next = is_numbered && value.is_none();
    }
    words.join(" ")
}

/// The program of a command line: its executable, and for Python also the script or module. If that is not clear, the
/// whole command.
pub(super) fn program(command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    let Some(executable) = words.first() else { return String::new() };
    let name = executable.rsplit('/').next().unwrap_or(executable);
    if !name.starts_with("python") {
        return command_of_all_ranks(executable);
    }
    let script = words.iter().position(|word| word.ends_with(".py"));
    let module = words.iter().position(|word| *word == "-m").map(|option| option + 1);
    match script.into_iter().chain(module).min().and_then(|last| words.get(..=last)) {
        Some(program) => program.join(" "),
        None => command_of_all_ranks(command),
    }
}

/// Whether all programs have this command: only processes of one parent belong together then.
pub(super) fn is_of_any_program(command: &str) -> bool {
    command.split_whitespace().any(|word| word == STARTED_BY_PYTHON)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_options_that_number_processes_are_ignored() {
        for (command, same) in [
            ("python t.py --local_rank=3 --lr 0.1", "python t.py --local_rank --lr 0.1"),
            ("python t.py --local-rank 3 -x", "python t.py --local-rank -x"),
            ("t --gpu 3 --rank -1", "t --gpu --rank -1"),
            ("t --Device=cuda:3 node_rank=2", "t --Device node_rank"),
            ("t --epochs 3 rank", "t --epochs 3 rank"),
            ("VLLM::Worker_TP3", "VLLM::Worker_TP"),
            ("server2", "server2"),
            ("", ""),
        ] {
            assert_eq!(command_of_all_ranks(command), same);
        }
    }

    #[test]
    fn processes_that_python_started_differ_in_their_pipes() {
        let command = |tracker: u32, pipe: u32| {
            format!(
                "python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd={tracker}, \
                 pipe_handle={pipe}) --multiprocessing-fork"
            )
        };
        assert_eq!(command_of_all_ranks(&command(5, 7)), command_of_all_ranks(&command(6, 19)));
        assert!(is_of_any_program(&command(5, 7)) && !is_of_any_program("python t.py"));
    }

    #[test]
    fn a_program_is_an_executable_or_a_script() {
        for (command, expected) in [
            ("/srv/server --port 8000", "/srv/server"),
            ("/usr/bin/python3.11 -u /a/train.py --lr 1", "/usr/bin/python3.11 -u /a/train.py"),
            ("python -m vllm.server a.py", "python -m vllm.server"),
            ("python -X dev serve", "python -X dev serve"),
            ("python -m", "python -m"),
            ("VLLM::Worker_TP3", "VLLM::Worker_TP"),
            ("", ""),
        ] {
            assert_eq!(program(command), expected);
        }
    }
}
