//! Finds the agent that a process has loaded, and the files of CUPTI.

use std::path::{Path, PathBuf};

use gpuprobe_event::agent::{AgentRequest, EMIT, LIBRARY};

use super::mapped_file::{lasting_path, open_mapped, read_maps};
use super::maps::executable_files;
use crate::access::{FileId, OpenedFile, RegularFile};
use crate::elf::{Elf, Table};
use crate::error::{Defect, DiscoverError};

/// Functions by which a program begins to use CUPTI. The agent of gpuprobe calls them too.
const CUPTI_BEGINS: [&str; 4] = [
    "cuptiSubscribe",
    "cuptiSubscribe_v2",
    "cuptiActivityRegisterCallbacks",
    "cuptiActivityRegisterCallbacks_v2",
];

/// A file, as it can be opened now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessFile {
    pub path: PathBuf,
    pub id: FileId,
    pub opened: OpenedFile,
}

/// The library of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentLibrary {
    pub file: ProcessFile,
    /// The file offset of the function that passes on batches.
    pub emit: u64,
    requests: Vec<(AgentRequest, RequestPoint)>,
}

/// Where a request to the agent is made: file offsets of a function and of the counter of its probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestPoint {
    pub function: u64,
    pub semaphore: u64,
}

impl AgentLibrary {
    pub fn point(&self, request: AgentRequest) -> Option<RequestPoint> {
        self.requests.iter().find(|(known, _)| *known == request).map(|(_, point)| *point)
    }
}

/// A file of CUPTI, with the offsets of functions by which a program begins to use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CuptiLibrary {
    pub file: ProcessFile,
    pub begins: Vec<u64>,
}

/// What a process has loaded for GPU times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuTimeLibraries {
    pub agent: Option<AgentLibrary>,
    pub cuptis: Vec<CuptiLibrary>,
    /// Why a file that has the name of the agent cannot be used.
    pub problem: Option<String>,
}

/// The agent and the files of CUPTI that a process has mapped.
pub fn gpu_time_libraries(proc_root: &Path, pid: u32) -> Result<GpuTimeLibraries, DiscoverError> {
    let folder = proc_root.join(pid.to_string());
    let mut found = GpuTimeLibraries::default();
    for mapping in executable_files(&read_maps(&folder, pid)?) {
        let name = mapping.file.path.file_name().unwrap_or_default().to_string_lossy();
        let (is_agent, is_cupti) = (name == LIBRARY, name.starts_with("libcupti.so"));
        if !is_agent && !is_cupti {
            continue;
        }
        let opened = open_mapped(&folder, &mapping);
        let opened = opened.map(|(file, path)| {
            let path = lasting_path(&mapping, &file, path);
            (file, path)
        });
        match opened {
            Ok((file, path)) if is_agent => match agent_in(&file, path) {
                Ok(agent) => found.agent = Some(agent),
                Err(defect) => found.problem = Some(defect.of(&mapping.file.path).to_string()),
            },
            // without its functions it cannot be watched, which harms nothing
            Ok((file, path)) => found.cuptis.extend(cupti_in(&file, path)),
            Err((_, why)) if is_agent => found.problem = Some(why),
            Err(_) => {}
        }
    }
    Ok(found)
}

fn agent_in(file: &RegularFile, path: PathBuf) -> Result<AgentLibrary, Defect> {
    let elf = Elf::parse(file)?;
    let symbols = elf.symbols(Table::Dynamic, &|name| name.starts_with(b"gpuprobe_agent_"))?;
    let address = |name: &str| symbols.iter().find(|symbol| symbol.name == name).map(|symbol| symbol.address);
    let code = |name: &str| address(name).and_then(|address| elf.code_offset(address));
    let emit = code(EMIT).ok_or_else(|| Defect::malformed(format!("it has no function {EMIT}")))?;
    let point = |request: AgentRequest| {
        let semaphore = address(request.semaphore()).and_then(|address| elf.data_offset(address))?;
        Some((request, RequestPoint { function: code(request.function())?, semaphore }))
    };
    let requests: Vec<_> = AgentRequest::ALL.into_iter().filter_map(point).collect();
    if !requests.iter().any(|(request, _)| *request == AgentRequest::Collect) {
        return Err(Defect::malformed("it is of another version"));
    }
    let file = ProcessFile { path, id: file.id, opened: file.opened() };
    Ok(AgentLibrary { file, emit, requests })
}

fn cupti_in(file: &RegularFile, path: PathBuf) -> Option<CuptiLibrary> {
    let elf = Elf::parse(file).ok()?;
    let is_wanted = |name: &[u8]| CUPTI_BEGINS.iter().any(|known| known.as_bytes() == name);
    let symbols = elf.symbols(Table::Dynamic, &is_wanted).ok()?;
    let begins = symbols.iter().filter_map(|symbol| elf.code_offset(symbol.address)).collect();
    Some(CuptiLibrary { file: ProcessFile { path, id: file.id, opened: file.opened() }, begins })
}
