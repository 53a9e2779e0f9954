//! `gpuprobe doctor`: reports what this machine supports, and how to fix what is missing.

mod gpu_time;
mod predicted_cost;
mod readiness;
mod support;

use std::ffi::OsStr;
use std::fmt::Write;
use std::path::Path;

use anyhow::Result;
use gpuprobe_capture::{
    LinuxSupport, NVML_LIBRARY, NvmlVersions, RocmSmiVersion, Support, Tier, Verdict, XidSource,
    kmod_version, linux_support, nvml_versions, rocm_smi_version, support, xid_source,
};
use gpuprobe_discover::{
    HostPaths, Inspector, Library, NvidiaKmod, ProbeCost, Scan, SkipCause, Skipped, nvidia_kmods, plan,
};
use gpuprobe_event::driver::Version;
use gpuprobe_event::{Api, Hooks};
use gpuprobe_output::units::printable;
use serde_json::{Value, json};

use self::gpu_time::GpuTimeSupport;
use crate::cli::{DoctorArgs, Layer};
use crate::cmd::daemon::EVERYTHING;
use crate::session::host::nvml_loader::nvml_loader;
use crate::session::probes::selection::Selection;
use crate::terminal::stdout::print;

pub(crate) fn run(args: &DoctorArgs) -> Result<u8> {
    if args.cost {
        return predicted_cost::run(args);
    }
    let proc_root = Path::new("/proc");
    let scan = match args.pid {
        Some(pid) => Inspector::new().of_pid(proc_root, pid)?,
        None => Inspector::new().of_host(proc_root, &HostPaths::default()),
    };
    let support = support();
    let libraries = scan.libraries.iter().map(Probable::of).collect::<Result<Vec<_>>>()?;
    let nvml = nvml_versions(nvml_loader(), OsStr::new(NVML_LIBRARY));
    let modules = nvidia_kmods(proc_root, Path::new("/sys"));
    let linux = linux_support();
    let xids = xid_source(&linux);
    let report = Report {
        support,
        linux_support: linux,
        driver: kmod_version(),
        modules,
        xids,
        nvml,
        rocm_smi: rocm_smi_version(),
        libraries,
        scan,
        gpu_time: GpuTimeSupport::find(proc_root, args.pid),
    };
    if args.support {
        return support::run(args, &report);
    }
    let text = if args.json {
        format!("{:#}\n", report.json())
    } else {
        let mut text = String::new();
        report.text(&mut text)?;
        text
    };
    print(&text)?;
    Ok(u8::from(!readiness::is_ready(&report.support)))
}

struct Report {
    support: Support,
    /// Support for `--driver`.
    linux_support: LinuxSupport,
    driver: Option<String>,
    /// The loaded NVIDIA kernel modules.
    modules: Vec<NvidiaKmod>,
    /// How GPU errors (XIDs) are captured, apart from NVML.
    xids: Option<XidSource>,
    /// NVML, or why it cannot be used.
    nvml: Result<NvmlVersions, String>,
    /// ROCm SMI, or why it cannot be used.
    rocm_smi: Result<RocmSmiVersion, String>,
    libraries: Vec<Probable>,
    scan: Scan,
    /// Support for `--gpu-time`.
    gpu_time: GpuTimeSupport,
}

/// A library and the number of functions that can be probed.
struct Probable {
    library: Library,
    functions: usize,
    cheap: usize,
    /// The failure points that the daemon probes, and why functions have none.
    failure_points: usize,
    without_points: Vec<Skipped>,
}

impl Probable {
    fn of(library: &Library) -> Result<Self> {
        let all = Selection::from_globs(&["*".to_owned()], Layer::Both, &Hooks::default())?;
        let (planned, _) =
            plan(std::slice::from_ref(library), &|l, name| all.function(l, name), &|_, _| None);
        let daemon = predicted_cost::daemon_selection(EVERYTHING);
        let (failing, without_points) =
            plan(std::slice::from_ref(library), &|_, _| None, &|l, name| daemon.failure_point(l, name));
        let points = || planned.targets.iter().flat_map(|t| &t.functions).map(|f| f.point);
        Ok(Self {
            library: library.clone(),
            functions: points().count(),
            cheap: points().filter(|p| p.cost == ProbeCost::Emulated).count(),
            failure_points: failing.targets.iter().map(|target| target.failure_points.len()).sum(),
            without_points,
        })
    }

    /// Exports that are not in the catalogue, or that jump to another export.
    fn others(&self) -> usize {
        self.library.functions.len().saturating_sub(self.functions)
    }
}

/// The better tiers that this machine does not support, with what each lacks.
fn better(support: &Support) -> impl Iterator<Item = (Tier, &'static str)> + '_ {
    Tier::ALL.into_iter().filter_map(|tier| Some((tier, support.lacks(tier)?.name)))
}

impl Report {
    fn text(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out, "kernel         {}", self.support.kernel)?;
        let driver = self.driver.as_deref().unwrap_or("not loaded; stand-ins and traces still work");
        writeln!(out, "NVIDIA driver  {}", printable(driver))?;
        if let Some(version) = &self.driver {
            writeln!(out, "               {}", Version::parse(version).describe())?;
        }
        for module in &self.modules {
            let types = if module.has_types { "with its types" } else { "without types: by kprobes only" };
            writeln!(out, "               module {}, {types}", printable(&module.name))?;
        }
        if let Some(way) = self.xid_source() {
            writeln!(out, "               GPU errors (XIDs) {way}")?;
        }
        match &self.nvml {
            Ok(nvml) => writeln!(out, "NVML           {}", printable(&nvml.library))?,
            Err(why) => {
                writeln!(out, "NVML           none (optional), so no state of GPUs: {}", printable(why))?
            }
        }
        writeln!(out, "ROCm SMI       {}", printable(&self.rocm_smi_text()))?;
        writeln!(out, "GPU times      {}", printable(&self.gpu_time.text()))?;
        match self.support.best_tier() {
            Some(tier) => writeln!(out, "attach by      {tier}")?,
            None => writeln!(out, "attach by      nothing: see below")?,
        }
        for (tier, missing) in better(&self.support) {
            writeln!(out, "               not {tier}: the kernel has no {missing}")?;
        }
        writeln!(out)?;
        for feature in self.support.features.iter().chain(&self.linux_support.features) {
            let (mark, rest) = match (feature.present, feature.optional) {
                (true, _) => ("ok     ", String::new()),
                (false, true) => ("missing", format!(" (optional): {}", feature.without)),
                (false, false) => ("MISSING", format!(": {}", feature.without)),
            };
            writeln!(out, "{mark} {}{rest}", feature.name)?;
        }
        for check in &self.support.checks {
            let mark = match check.verdict {
                Verdict::Good => "ok     ",
                Verdict::Limited => "LIMITED",
                Verdict::Bad => "BAD    ",
            };
            writeln!(out, "{mark} {}: {}", check.name, check.found)?;
        }
        writeln!(out)?;
        self.libraries_text(out)?;
        writeln!(out)?;
        writeln!(out, "{}", self.verdict())?;
        Ok(())
    }

    fn verdict(&self) -> String {
        printable(&readiness::verdict(&self.support, self.driver.is_some())).into_owned()
    }

    /// Whether the state of AMD's GPUs is read.
    fn rocm_smi_text(&self) -> String {
        let found = match &self.rocm_smi {
            Ok(found) => found,
            Err(why) => return format!("none (optional), so no state of AMD's GPUs: {why}"),
        };
        let release = found.release.as_deref().unwrap_or("of unknown release");
        let gpus = match &found.gpus {
            Ok(1) => "1 GPU".to_owned(),
            Ok(count) => format!("{count} GPUs"),
            Err(why) => why.clone(),
        };
        format!("{release} ({}): {gpus}", found.file.display())
    }

    /// How XIDs are captured, if an NVIDIA kernel module is loaded.
    fn xid_source(&self) -> Option<String> {
        let by_nvml = || "only by NVML, which just counts them: the NVIDIA module has no tracepoint, and the Linux kernel no probes";
        (!self.modules.is_empty())
            .then(|| self.xids.map_or_else(|| by_nvml().to_owned(), |way| way.to_string()))
    }

    fn libraries_text(&self, out: &mut impl Write) -> Result<()> {
        if self.libraries.is_empty() {
            let names: Vec<_> = Api::gpu_libraries().flat_map(|api| api.row().libraries).copied().collect();
            writeln!(out, "no GPU library found: {}", names.join(", "))?;
        }
        for Probable { library, functions, cheap, failure_points, without_points } in &self.libraries {
            // escaped: other users may have made the file
            let (path, soname) = (library.path.to_string_lossy(), printable(&library.soname));
            writeln!(out, "{} ({}, {soname})", printable(&path), library.kind)?;
            writeln!(out, "        {functions} functions can be probed, {cheap} of them cheaply")?;
            if *failure_points > 0 {
                writeln!(out, "        {failure_points} failure points")?;
            }
            for skipped in without_points {
                writeln!(out, "        {}", skipped.reason)?;
            }
        }
        for skipped in &self.scan.skipped {
            writeln!(out, "SKIPPED {}", crate::session::probes::skips::line(skipped))?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let support = &self.support;
        json!({
            "ready": readiness::is_ready(support),
            "verdict": self.verdict(),
            "kernel": support.kernel,
            "driver": self.driver,
            "modules": self.modules.iter()
                .map(|m| json!({"name": m.name, "types": m.has_types}))
                .collect::<Vec<_>>(),
            "xids": self.xid_source(),
            "nvml": self.nvml.as_ref().ok().map(|nvml| json!({"version": nvml.library, "driver": nvml.driver})),
            "rocm_smi": self.rocm_smi.as_ref().ok().map(|found| json!({
                "path": found.file.to_string_lossy(),
                "version": found.release,
                "gpus": found.gpus.as_ref().ok(),
            })),
            "gpu_times": self.gpu_time.json(),
            "attach": support.best_tier().map(Tier::as_str),
            "lacking": better(support).map(|(tier, missing)| (tier.as_str(), missing)).collect::<Vec<_>>(),
            "features": support.features.iter().chain(&self.linux_support.features)
                .map(|f| json!({"name": f.name, "present": f.present, "optional": f.optional, "without": f.without}))
                .collect::<Vec<_>>(),
            "checks": support.checks.iter()
                .map(|c| json!({"name": c.name, "verdict": c.verdict.as_str(), "found": c.found}))
                .collect::<Vec<_>>(),
            "libraries": self.libraries.iter()
                .map(|p| json!({
                    "path": p.library.path.to_string_lossy(),
                    "api": p.library.kind.as_str(),
                    "soname": p.library.soname,
                    "static": p.library.is_static,
                    "functions": p.functions,
                    "cheap": p.cheap,
                    "others": p.others(),
                    "failure_points": p.failure_points,
                    "without_failure_points": p.without_points.iter().map(|s| &s.reason).collect::<Vec<_>>(),
                }))
                .collect::<Vec<_>>(),
            "skipped": self.scan.skipped.iter()
                .map(|s| json!({
                    "path": s.path.to_string_lossy(),
                    "cause": s.cause.map(SkipCause::as_str),
                    "reason": s.reason,
                }))
                .collect::<Vec<_>>(),
        })
    }
}
