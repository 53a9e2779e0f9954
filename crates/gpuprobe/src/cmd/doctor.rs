//! `gpuprobe doctor`: what this machine can do, and what to do about what it cannot.

mod cost;

use std::ffi::OsStr;
use std::fmt::Write;
use std::path::Path;

use anyhow::Result;
use gpuprobe_capture::{
    KernelSupport, NVML_LIBRARY, NvmlVersions, Support, Tier, Verdict, XidWay, driver_version,
    kernel_support, nvml_versions, support, xid_way,
};
use gpuprobe_discover::{
    DriverModule, HostPaths, Inspector, Library, ProbeCost, Scan, SkipCause, driver_modules, plan,
};
use gpuprobe_event::Hooks;
use gpuprobe_event::driver::Version;
use gpuprobe_output::units::printable;
use serde_json::{Value, json};

use crate::cli::DoctorArgs;
use crate::select::Selection;
use crate::stdout::print;

pub(crate) fn run(args: &DoctorArgs) -> Result<u8> {
    if args.cost {
        return cost::run(args);
    }
    let proc_root = Path::new("/proc");
    let scan = match args.pid {
        Some(pid) => Inspector::new().of_pid(proc_root, pid)?,
        None => Inspector::new().of_host(proc_root, &HostPaths::default()),
    };
    let support = support();
    let libraries = scan.libraries.iter().map(Probable::of).collect::<Result<Vec<_>>>()?;
    let nvml = nvml_versions(OsStr::new(NVML_LIBRARY));
    let modules = driver_modules(proc_root, Path::new("/sys"));
    let beneath = kernel_support();
    let xids = xid_way(&beneath);
    let report = Report { support, beneath, driver: driver_version(), modules, xids, nvml, libraries, scan };
    let text = if args.json {
        format!("{:#}\n", report.json())
    } else {
        let mut text = String::new();
        report.text(&mut text)?;
        text
    };
    print(&text)?;
    Ok(u8::from(!report.support.privileged() || report.support.best_tier().is_none()))
}

struct Report {
    support: Support,
    /// What `--kernel` has to work with.
    beneath: KernelSupport,
    driver: Option<String>,
    /// The modules that the driver is made of, where they are loaded.
    modules: Vec<DriverModule>,
    /// How errors of GPUs are heard of, but for NVML.
    xids: Option<XidWay>,
    /// The management library, or why there is none.
    nvml: Result<NvmlVersions, String>,
    libraries: Vec<Probable>,
    scan: Scan,
}

/// A library, and what could be probed in it.
struct Probable {
    library: Library,
    functions: usize,
    cheap: usize,
}

impl Probable {
    fn of(library: &Library) -> Result<Self> {
        let all = Selection::from_globs(&["*".to_owned()], &Hooks::default())?;
        let (planned, _) = plan(std::slice::from_ref(library), &|l, name| all.function(l, name));
        let points = || planned.targets.iter().flat_map(|t| &t.functions).map(|f| f.point);
        Ok(Self {
            library: library.clone(),
            functions: points().count(),
            cheap: points().filter(|p| p.cost == ProbeCost::Emulated).count(),
        })
    }

    /// Exports that no table knows, or that jump to another.
    fn others(&self) -> usize {
        self.library.functions.len().saturating_sub(self.functions)
    }
}

/// The tiers that are better than the one taken, with what each lacks.
fn better(support: &Support) -> impl Iterator<Item = (Tier, &'static str)> + '_ {
    Tier::ALL.into_iter().filter_map(|tier| Some((tier, support.lacks(tier)?.name)))
}

impl Report {
    fn text(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out, "kernel         {}", self.support.kernel)?;
        let driver = self.driver.as_deref().unwrap_or("not loaded; stand-ins and traces still work");
        writeln!(out, "NVIDIA driver  {}", printable(driver))?;
        if let Some(version) = &self.driver {
            writeln!(out, "               {}", Version::parse(version).told())?;
        }
        for module in &self.modules {
            let types = if module.has_types { "with its types" } else { "without types: by kprobes alone" };
            writeln!(out, "               module {}, {types}", printable(&module.name))?;
        }
        if let Some(way) = self.xid_way() {
            writeln!(out, "               errors of GPUs (XIDs) {way}")?;
        }
        match &self.nvml {
            Ok(nvml) => writeln!(out, "NVML           {}", printable(&nvml.library))?,
            Err(why) => writeln!(out, "NVML           none, so no state of GPUs: {}", printable(why))?,
        }
        match self.support.best_tier() {
            Some(tier) => writeln!(out, "attach by      {tier}")?,
            None => writeln!(out, "attach by      nothing: see below")?,
        }
        for (tier, missing) in better(&self.support) {
            writeln!(out, "               not {tier}: the kernel has no {missing}")?;
        }
        writeln!(out)?;
        for feature in self.support.features.iter().chain(&self.beneath.features) {
            let (mark, rest) = match feature.present {
                true => ("ok     ", String::new()),
                false => ("MISSING", format!(": {}", feature.without)),
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
        self.libraries_text(out)
    }

    /// Where there is a driver.
    fn xid_way(&self) -> Option<String> {
        let by_nvml = || "by NVML alone, which only counts them: the driver has no tracepoint, and the kernel no probes";
        (!self.modules.is_empty())
            .then(|| self.xids.map_or_else(|| by_nvml().to_owned(), |way| way.to_string()))
    }

    fn libraries_text(&self, out: &mut impl Write) -> Result<()> {
        if self.libraries.is_empty() {
            writeln!(out, "no libcuda, libcudart, NVML or NCCL found")?;
        }
        for Probable { library, functions, cheap } in &self.libraries {
            // whoever made the file chose both
            let (path, soname) = (library.path.to_string_lossy(), printable(&library.soname));
            writeln!(out, "{} ({}, {soname})", printable(&path), library.kind)?;
            writeln!(out, "        {functions} functions can be probed, {cheap} of them cheaply")?;
        }
        for skipped in &self.scan.skipped {
            writeln!(out, "SKIPPED {}", crate::skips::line(skipped))?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let support = &self.support;
        json!({
            "kernel": support.kernel,
            "driver": self.driver,
            "modules": self.modules.iter()
                .map(|m| json!({"name": m.name, "types": m.has_types}))
                .collect::<Vec<_>>(),
            "xids": self.xid_way(),
            "nvml": self.nvml.as_ref().ok().map(|nvml| json!({"version": nvml.library, "driver": nvml.driver})),
            "attach": support.best_tier().map(Tier::as_str),
            "lacking": better(support).map(|(tier, missing)| (tier.as_str(), missing)).collect::<Vec<_>>(),
            "features": support.features.iter().chain(&self.beneath.features)
                .map(|f| json!({"name": f.name, "present": f.present, "without": f.without}))
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
